"""Counts vector fused multiply-adds in the inner loops of compiled kernels: fma.py OBJDUMP OBJECT...

An inner loop is the code from the target of a backward branch to that branch, if it contains no other loop. Each function
with a name multiply* (depthwise convolutions: row_*, tall_*, wide_*) must have an inner loop with multiply-adds; its best loop
is the one with the most. The tool prints per object the number of functions, the smallest and largest percentage of
multiply-adds in their best loops, and how many of these loops spill (load or store a vector on the stack). The exit code is 1
if a function has no multiply-add in a loop, or an object has no such function.
"""

import re
import subprocess
import sys
from pathlib import Path

FUNCTION = re.compile(r"^[0-9a-f]+ <((?:multiply|row_|tall_|wide_)[^>]*)>:$")
INTEGERS = re.compile("int8|quads")  # their products have no multiply-adds of floats
LINE = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
BRANCH = re.compile(r"^(b|b\.\w+|cbn?z|tbn?z|j\w+)$")
TARGET = re.compile(r"\b([0-9a-f]+) <")
FMA = re.compile(r"fmla\s+v\d+\.4s|vfn?madd\d+ps\s.*[yz]mm|vfn?madd\d+ps\s.*xmm")
SPILL = re.compile(r"(ldr|str|ldp|stp|ldur|stur)\s+q.*\[sp|vmov[au]ps\s.*\(%r[sb]p\)")


def functions(objdump, path):
    """Yields (name, [(address, instruction, operands)]) for each function that multiplies, of an object."""
    command = [objdump, "-d", "--no-show-raw-insn", str(path)]
    text = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    name, code = None, []
    for line in text.splitlines():
        found = LINE.match(line)
        if found and name:
            code.append((int(found[1], 16), found[2], found[3]))
        elif not found and name and code:
            yield name, code
            name, code = None, []
        start = FUNCTION.match(line)
        if start and not INTEGERS.search(start[1]):
            name, code = start[1], []
    if name:
        yield name, code


FETCHING = 8  # the largest number of instructions of a loop that only prefetches


def inner_loops(code):
    """Yields the instructions of each loop that contains no other loop. Loops that only prefetch weights are ignored."""
    loops = []
    for at, mnemonic, operands in code:
        target = TARGET.search(operands)
        if BRANCH.match(mnemonic) and target and int(target[1], 16) <= at:
            loops.append((int(target[1], 16), at))
    names = {loop: [m for a, m, _ in code if loop[0] <= a <= loop[1]] for loop in loops}
    loops = [loop for loop in loops if "prfm" not in names[loop] or len(names[loop]) > FETCHING]
    for begin, end in loops:
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e in loops):
            yield [f"{m} {o}" for a, m, o in code if begin <= a <= end]


def best_loop(code):
    """Returns (multiply-adds, instructions, spills) of the inner loop with the most multiply-adds."""
    counts = [
        (sum(map(bool, map(FMA.match, loop))), len(loop), sum(map(bool, map(SPILL.match, loop))))
        for loop in inner_loops(code)
    ]
    return max(counts, default=(0, 0, 0))


def check(objdump, path):
    """Prints the object's line. Returns a message per function without multiply-adds in a loop."""
    found = {name: best_loop(code) for name, code in functions(objdump, path)}
    if not found:
        return [f"{path}: no function that multiplies"]
    shares = [fma / max(size, 1) for fma, size, _ in found.values()]
    spilling = [name for name, counts in found.items() if counts[2]]
    print(
        f"{Path(path).name:32} {len(found):3} functions, {sum(f[0] for f in found.values()):5} multiply-adds in "
        f"inner loops, {100 * min(shares):.0f} to {100 * max(shares):.0f}% of their instructions, {len(spilling)} spill"
    )
    return [
        f"{path}: no vector multiply-add in a loop of {n}" for n, f in found.items() if not f[0]
    ]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    problems = [problem for path in sys.argv[2:] for problem in check(sys.argv[1], path)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

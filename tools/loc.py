"""Measures the size and shape of the sources with lizard, and fails over the limits.

The core is src/ without jit, device, frontend, deploy and cli: the JIT counted as a part of device/cpu before it had a folder. Lines are lines of code, without blanks and comments.
The share of comments is that of the characters, blanks not counted, in src/ and include/.
"""

import re
import statistics
import sys

import lizard

from sources import ROOT, find, read

LIMITS = {
    "core lines": (None, 14999),
    "function median": (None, 12),
    "function p95": (None, 55),
    "comments %": (20, None),
}
NOT_CORE = ("jit", "device", "frontend", "deploy", "cli")
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
FUNCTION_LINES, FILE_LINES = 60, 800  # soft: printed, no failure


def split_comments(text):
    """Characters in comments and in all, whitespace not counted; and the text with comments blanked."""
    comments, code = 0, []

    def blank(match):
        nonlocal comments
        piece = match.group()
        if piece[0] != "/":
            return piece
        comments += len("".join(piece.split()))
        return "\n" * piece.count("\n")

    code = TOKEN.sub(blank, text)
    return comments, len("".join(text.split())), code


def code_lines(path):
    return sum(1 for line in split_comments(read(path))[2].splitlines() if line.strip())


def functions(paths):
    for path in paths:
        for f in lizard.analyze_file(str(ROOT / path)).function_list:
            yield f.nloc, f"{path}:{f.start_line} {f.name}"


def measure(files):
    core = [
        p
        for p in files
        if p.parts[0] == "src" and not (len(p.parts) > 2 and p.parts[1] in NOT_CORE)
    ]
    found = sorted(functions([p for p in files if p.suffix == ".c"]))
    lengths = [n for n, _ in found] or [0]
    counts = [split_comments(read(p))[:2] for p in files]
    return {
        "core lines": sum(map(code_lines, core)),
        "function median": statistics.median(lengths),
        "function p95": lengths[min(len(lengths) - 1, int(0.95 * len(lengths)))],
        "comments %": round(100 * sum(c for c, _ in counts) / max(1, sum(n for _, n in counts)), 1),
    }, found


def print_table(files):
    sizes = {}
    for path in [*files, *find(".py")]:
        parts = path.parts[:3] if path.parts[1] == "device" else path.parts[:2]
        key = "/".join(parts if len(path.parts) > len(parts) else path.parts[:-1])
        sizes[key] = (
            sizes.get(key, 0) + code_lines(path)
            if path.suffix != ".py"
            else sizes.get(key, 0) + sum(1 for line in read(path).splitlines() if line.strip())
        )
    for key, lines in sorted(sizes.items()):
        print(f"  {key:24s} {lines:6d}")


def main():
    files = [p for p in find(".c", ".h", ".def") if p.parts[0] in ("src", "include")]
    values, found = measure(files)
    print("lines of code")
    print_table(files)
    for lines, where in found:
        if lines > FUNCTION_LINES:
            print(f"  long function, {lines} lines: {where}")
    for path in files:
        if (lines := len(read(path).splitlines())) > FILE_LINES:
            print(f"  long file, {lines} lines: {path}")
    failed = 0
    for name, value in values.items():
        low, high = LIMITS[name]
        good = (low is None or value >= low) and (high is None or value <= high)
        limit = f">= {low}" if low is not None else f"<= {high}"
        print(f"{name:16s} {value:8}  {limit:9s} {'ok' if good else 'OVER THE LIMIT'}")
        failed |= not good
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

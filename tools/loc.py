"""Measures the sizes of the sources, and fails if a limit is exceeded: loc.py

Lines are lines of code, without blank lines, comments and Python's docstrings. Each folder has a limit in FOLDERS, about 5 %
above its size when the limit was set, so that growth is a decision. A folder without a limit is an error, too.

The core is src/ without jit, device, frontend, deploy, report and cli: the code that maps models to steps and runs these.
The lengths of functions (by lizard) and the share of comments (in characters, without whitespace) are those of src/ and
include/.
"""

import ast
import io
import re
import statistics
import sys
import tokenize

import lizard

from sources import ROOT, find, read

CORE_LINES = 31470
LIMITS = {
    "core lines": (None, CORE_LINES),
    "function median": (None, 12),
    "function p95": (None, 55),
    "comments %": (20, None),
}
NOT_CORE = ("jit", "device", "frontend", "deploy", "report", "cli")
FOLDERS = {
    "bench": 1500,
    "examples": 210,
    "examples/custom_layer": 120,
    "include/sol": 600,
    "python/sol": 3620,
    "python/sol/bench": 1180,
    "python/sol/onnx": 1130,
    "python/sol/onnx/capi": 30,
    "python/sol/pytorch": 9700,
    "src": 190,
    "src/base": 1410,
    "src/cli": 1740,
    "src/deploy": 2990,
    "src/device": 860,
    "src/device/c": 40,
    "src/device/cpu": 410,
    "src/device/far": 1520,
    "src/device/null": 95,
    "src/device/ref": 1750,
    "src/device/ve": 1070,
    "src/dfp": 5540,
    "src/dnn": 9280,
    "src/frontend": 70,
    "src/frontend/onnx": 12000,
    "src/ir": 5300,
    "src/jit": 880,
    "src/pass": 1990,
    "src/plan": 2790,
    "src/report": 400,
    "src/run": 5150,
    "test": 76,
    "test/deploy": 1830,
    "test/fault": 180,
    "test/fuzz": 220,
    "test/onnx": 4700,
    "test/op": 5640,
    "test/torch": 11210,
    "test/unit": 13720,
    "test/veda": 1960,
    "tools": 2830,
}
TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
FUNCTION_LINES, FILE_LINES = 60, 800  # longer ones are printed, but are no failure


def split_comments(text):
    """Returns (characters in comments, all characters, the text without comments) of a C source.

    Whitespace does not count.
    """
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


def docstring_lines(text):
    """Returns the numbers of lines with strings that are statements: docstrings, and strings between other statements."""
    return {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, node.end_lineno + 1)
    }


def python_lines(text):
    no_code = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(text))


def code_lines(path):
    text = read(path)
    if path.suffix == ".py":
        return python_lines(text)
    return sum(1 for line in split_comments(text)[2].splitlines() if line.strip())


def functions(paths):
    for path in paths:
        for f in lizard.analyze_file(str(ROOT / path)).function_list:
            yield f.nloc, f"{path}:{f.start_line} {f.name}"


def is_core(path):
    return path.parts[0] == "src" and not (len(path.parts) > 2 and path.parts[1] in NOT_CORE)


def measure(files):
    found = sorted(functions([p for p in files if p.suffix == ".c"]))
    lengths = [n for n, _ in found] or [0]
    counts = [split_comments(read(p))[:2] for p in files]
    return {
        "core lines": sum(map(code_lines, filter(is_core, files))),
        "function median": statistics.median(lengths),
        "function p95": lengths[min(len(lengths) - 1, int(0.95 * len(lengths)))],
        "comments %": round(100 * sum(c for c, _ in counts) / max(1, sum(n for _, n in counts)), 1),
    }, found


def sum_folders(files):
    """Returns {folder: lines of code}; the files of a subfolder count only for the subfolder."""
    sizes = {}
    for path in files:
        sizes[str(path.parent)] = sizes.get(str(path.parent), 0) + code_lines(path)
    return sizes


def check_folders(sizes, limits):
    """Returns (a line per folder, whether all are correct). A limit without a folder is an error, too."""
    lines = []
    for folder in sorted({*sizes, *limits}):
        size, limit = sizes.get(folder, 0), limits.get(folder)
        verdict = (
            "no limit: give it a row in tools/loc.py"
            if limit is None
            else "no such folder: remove its row in tools/loc.py"
            if not size
            else "OVER THE LIMIT"
            if size > limit
            else "ok"
        )
        lines.append((f"  {folder:20s} {size:6d}  <= {limit or 0:6d} {verdict}", verdict == "ok"))
    return [line for line, _ in lines], all(good for _, good in lines)


def main():
    everything = find(".c", ".h", ".def", ".py")
    files = [p for p in everything if p.parts[0] in ("src", "include") and p.suffix != ".py"]
    print("lines of code")
    lines, good = check_folders(sum_folders(everything), FOLDERS)
    print(*lines, sep="\n")
    values, found = measure(files)
    for length, where in found:
        if length > FUNCTION_LINES:
            print(f"  long function, {length} lines: {where}")
    for path in files:
        if (length := len(read(path).splitlines())) > FILE_LINES:
            print(f"  long file, {length} lines: {path}")
    for name, value in values.items():
        low, high = LIMITS[name]
        within = (low is None or value >= low) and (high is None or value <= high)
        limit = f">= {low}" if low is not None else f"<= {high}"
        print(f"{name:16s} {value:8}  {limit:9s} {'ok' if within else 'OVER THE LIMIT'}")
        good = good and within
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())

"""Checks the #includes of the sources against the order of folders. A folder includes only itself and folders left of it.

    base < jit, run < ir < pass < plan < dfp, dnn < device/* < deploy, report < the files of src/ itself

A device never includes another device. Python, examples and the command line program include only include/sol; frontends
also include base.
"""

import re
import sys
from pathlib import Path

from sources import ROOT, find, read

RANK = {
    "base": 0,
    "jit": 1,
    "run": 1,
    "ir": 2,
    "pass": 3,
    "plan": 4,
    "dfp": 5,
    "dnn": 5,
    "device": 6,
    "deploy": 7,
    "report": 7,
    "": 8,
}
OUTSIDE = ("frontend", "cli")
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<(sol/[^>]+)>)', re.M)


def folder(path):
    """Returns a source's folder: 'device/cpu' for src/device/cpu/x.c, 'ir' for src/ir/x.c, '' for src/x.c."""
    parts = path.parts[1:-1]
    return "/".join(parts[:2] if parts[:1] == ("device",) else parts[:1])


def resolve(source, name):
    """Returns the path of an included file, relative to the root; None if it is neither beside the source nor in src."""
    for base in (source.parent, Path("src")):
        if (ROOT / base / name).is_file():
            return (ROOT / base / name).resolve().relative_to(ROOT)
    return None


def refuse(source, target):
    """Returns the reason why `source` may not include `target`, both under src; or None."""
    a, b = folder(source), folder(target)
    if a == b:
        return None
    top_a, top_b = a.split("/")[0], b.split("/")[0]
    if top_a == "frontend" and top_b == "base":
        return None
    if top_a in OUTSIDE:
        return f"src/{top_a} sees only include/sol" + (" and base" * (top_a == "frontend"))
    if top_b in OUTSIDE:
        return f"nothing includes src/{top_b}"
    if top_a == top_b == "device" and "/" in b:
        return "a device never includes another device"
    for top in (top_a, top_b):
        if top not in RANK:
            return f"folder src/{top} has no place in the order; add it to tools/layers.py"
    if top_a == top_b:
        return None
    if top_b == "" or RANK[top_b] >= RANK[top_a]:
        return f"src/{a or '.'} is not to the right of src/{b or '.'}"
    return None


def check(source):
    for quoted, _ in INCLUDE.findall(read(source)):
        if not quoted:
            continue
        target = resolve(source, quoted)
        if source.parts[0] == "src":
            if target is None:
                yield f"{quoted} is not under src"
            elif target.parts[0] == "src" and (reason := refuse(source, target)):
                yield f"includes {quoted}: {reason}"
        elif target is not None and target.parts[0] == "src":
            yield f"includes {quoted}: Python and programs see only include/sol"


def main():
    sources = [
        p
        for p in find(".c", ".h", ".def")
        if p.parts[0] in ("src", "include", "python", "examples")
    ]
    errors = [f"{source}: {error}" for source in sources for error in check(source)]
    print(*errors, sep="\n", end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks that the installed extension exports PyInit__core and nothing else: symbols.py VENV"""

import subprocess
import sys
from pathlib import Path


def main():
    found = sorted(Path(sys.argv[1]).glob("lib/python*/site-packages/sol/_core*.so"))
    if not found:
        print(f"no extension sol/_core*.so is installed in {sys.argv[1]}")
        return 1
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", found[0]], text=True, capture_output=True, check=True
    ).stdout
    extra = sorted({line.split()[-1] for line in listing.splitlines()} - {"PyInit__core"})
    if extra or "PyInit__core" not in listing:
        print(f"{found[0].name} exports more than PyInit__core:", *extra[:20])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

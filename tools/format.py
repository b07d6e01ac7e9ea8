"""Formats the C sources with the pinned version of clang-format. --check only lists the files that would change."""

import re
import subprocess
import sys
from pathlib import Path

from sources import ROOT, find


def main():
    check = "--check" in sys.argv[1:]
    tool = Path(sys.executable).parent / "clang-format"
    files = [str(p) for p in find(".c", ".h")]
    mode = ["--dry-run", "--Werror", "--ferror-limit=1"] if check else ["-i"]
    result = subprocess.run(
        [tool, *mode, *files], cwd=ROOT, capture_output=True, text=True, check=False
    )
    named = (
        re.match(r"(.+?):\d+:\d+: (?:error|warning):", line) for line in result.stderr.splitlines()
    )
    bad = sorted({match.group(1) for match in named if match})
    if bad:
        print("not formatted (`make fmt` does it):", *bad, sep="\n    ")
    elif result.returncode:
        print(result.stderr)
    return 1 if result.returncode else 0


if __name__ == "__main__":
    sys.exit(main())

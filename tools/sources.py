"""Finds the source files that the tools check: files that git does not ignore; all files if this is no git repository."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "python", "test", "examples", "bench", "tools")


def find(*suffixes):
    """Returns the paths of all sources with these suffixes, relative to the root, sorted."""
    git = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *FOLDERS],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    if git.returncode == 0 and git.stdout:
        names = {Path(name) for name in git.stdout.splitlines()}
    else:
        names = {p.relative_to(ROOT) for f in FOLDERS for p in (ROOT / f).rglob("*")}
    return sorted(p for p in names if p.suffix in suffixes and (ROOT / p).is_file())


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")

"""Writes the table of docs/numerics.md from the results of zoo.py: numerics.py DEFAULT.json DETERMINISTIC.json

It replaces the rows of networks that are in both files. All other rows stay.
"""

import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "numerics.md"
TABLE = re.compile(r"(<!-- table: begin -->\n)(.*)(<!-- table: end -->)", re.DOTALL)
HEAD = "| network | default | PyTorch there | deterministic | PyTorch there |\n|---|---:|---:|---:|---:|\n"


def read_rows(path):
    """Returns {network: row} of the networks that ran in SOL without fallback; {} if the file does not exist."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())
    return {row["name"]: row for row in rows if "name" in row and not row["fallbacks"]}


def format_row(name, default, deterministic):
    figures = [row[key] for row in (default, deterministic) for key in ("error", "torch")]
    return f"| {name} | " + " | ".join(f"{x:.1e}" for x in figures) + " |"


def main():
    default, deterministic = (read_rows(Path(path)) for path in sys.argv[1:3])
    text = PAGE.read_text()
    lines = TABLE.search(text)[2].splitlines()[2:]
    rows = {line.split("|")[1].strip(): line for line in lines}
    for name in default.keys() & deterministic.keys():
        rows[name] = format_row(name, default[name], deterministic[name])
    table = HEAD + "".join(rows[name] + "\n" for name in sorted(rows))
    PAGE.write_text(TABLE.sub(lambda found: found[1] + table + found[3], text))


if __name__ == "__main__":
    main()

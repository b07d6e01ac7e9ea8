"""Operators and modules of PyTorch's own test lists: each RULE-th one, and those whose results were wrong once. `make operators` runs
all of them, and writes docs/operators.md."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("expecttest")
ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "operator_lists.py"
RULE = 12
SAMPLES = 4
ONCE_WRONG = [
    "masked.norm",
    "nn.functional.cosine_similarity",
    "nn.functional.embedding_bag",
    "put",
]


def _run(path, *options):
    """Returns the rows of the tool, {name: row}."""
    done = subprocess.run(
        [sys.executable, TOOL, "--json", path, "--samples", str(SAMPLES), *options],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert path.exists(), done.stderr[-2000:]
    return {row["name"]: row for row in json.loads(path.read_text())}


def _documented():
    """The names that docs/operators.md lists as native."""
    text = (ROOT / "docs" / "operators.md").read_text().partition("\n## Native\n")[2]
    lines = [line.partition(": ")[2].rstrip(".") for line in text.splitlines()]
    return {name for line in lines for name in line.split(", ")}


@pytest.mark.parametrize("kind", ["operators", "modules", "gradients"])
def test_each_twelfth_runs_as_documented(kind, tmp_path):
    rows = _run(tmp_path / "rows.json", "--kinds", kind, "--every", str(RULE))
    assert len(rows) > 8
    bad = {"wrong", "error", "time limit", "crash"}
    assert not [row for row in rows.values() if row["outcome"] in bad]
    known = _documented()
    lost = [
        row for name, row in rows.items() if name in known and row["outcome"] not in ("native", "")
    ]
    assert not lost


def test_once_wrong(tmp_path):
    names = tmp_path / "names"
    names.write_text("\n".join(ONCE_WRONG))
    rows = _run(tmp_path / "rows.json", "--kinds", "operators", "--names", names, "--samples", "20")
    assert len(rows) == len(ONCE_WRONG)
    assert not {"wrong", "error", "crash"} & {row["outcome"] for row in rows.values()}, rows


def test_a_crash_costs_one_name(tmp_path):
    """The process of a name that ends is replaced; so is one that takes too long."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import operator_lists
    finally:
        sys.path.pop(0)

    class Crashing:
        names = ["a", "b"]

        def run(self, name):
            if name == "a":
                raise EOFError
            return {
                "name": name,
                "group": "computes",
                "outcome": "native",
                "n": 1,
                "native": 1,
                "reason": "",
            }

        def end(self):
            return -11

    runner = operator_lists.Runner("operators", 1)
    runner._make = Crashing
    assert [runner.run(name)["outcome"] for name in Crashing.names] == ["crash", "native"]

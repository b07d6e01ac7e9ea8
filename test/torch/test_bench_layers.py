"""`python -m sol.bench --layers`: the list of rows, their limit, the table, and rows that fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sol.bench import layer_table, limit

LIST = """
import os, torch

class Row:
    def __init__(self, name):
        self.name = name
        self.model = {"softmax": torch.nn.Softmax(-1), "linear": torch.nn.Linear(64, 64)}.get(name)
        if name == "crash":
            os.abort()

    def inputs(self):
        return (torch.randn(16, 64),)

NAMES = ["softmax", "crash", "nothing", "linear"]
build = Row
"""


def run_layers(folder, *args):
    (folder / "rows.py").write_text(LIST)
    command = [sys.executable, "-m", "sol.bench", "--layers", "--list", "rows.py", *args]
    command += ["--seconds", "0.05", "--threads", "1", "--peers", "eager"]
    env = {**os.environ, "SOL_DISABLE": "onednn,openblas", "SOL_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)


def test_rows(tmp_path):
    """A row that ends the process loses only itself."""
    (tmp_path / "d.md").write_text("\n".join(["a", *layer_table.MARKS, "z"]))
    done = run_layers(tmp_path, "--json", "r.json", "--svg", "r.svg", "--readme", "d.md")
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {row["network"]: row for row in json.loads((tmp_path / "r.json").read_text())["rows"]}
    assert list(rows) == ["softmax", "crash", "nothing", "linear"]
    assert "exit code" in rows["crash"]["failed"] and "NoneType" in rows["nothing"]["failed"]
    for name in "softmax", "linear":
        row = rows[name]
        assert set(row["ms"]) == {"eager", "sol"} and row["error"] < 1e-5 and not row["fallbacks"]
        assert row["of_limit"] == pytest.approx(row["limit"]["ms"] / row["ms"]["sol"][0])
        assert row["peer_of_limit"] > 0 and name in (tmp_path / "r.svg").read_text()
    text = (tmp_path / "d.md").read_text()
    assert "| softmax |" in text and text.startswith("a\n") and text.endswith("\nz")
    assert "geometric mean of 2 ratios" in done.stdout and "FAILED" in done.stdout


def test_the_limit_of_a_row():
    """Each value is moved once; of a table only the rows that are read."""
    x, norm = torch.zeros(8, 32), torch.nn.LayerNorm(32)
    found = limit.measure_alone(norm, (x,), norm(x))
    assert found["is_memory"] and found["bytes"] == 4 * (2 * 8 * 32 + 2 * 32)
    table, words = torch.nn.Embedding(1000, 32), torch.zeros(5, dtype=torch.int64)
    found = limit.measure_alone(table, (words,), table(words))
    assert found["bytes"] == 5 * 8 + 2 * 4 * 5 * 32
    linear, x = torch.nn.Linear(512, 512), torch.zeros(512, 512)
    found = limit.measure_alone(linear, (x,), linear(x))
    assert not found["is_memory"] and found["gflop"] == pytest.approx(2e-9 * 512**3)


def test_the_list_of_rows():
    """Every row of the list can be built; names are unique and say what is measured."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
    import layers

    assert len(layers.NAMES) == len(set(layers.NAMES)) >= 80
    for name in layers.NAMES[::9]:
        row = layers.build(name)
        with torch.no_grad():
            row.model(*row.inputs())

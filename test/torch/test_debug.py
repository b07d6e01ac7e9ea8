"""What SOL writes for people, and what `python -m sol` says."""

import subprocess
import sys

import pytest
import torch
from conftest import assert_runs_in_sol

import sol.pytorch as sol


@pytest.fixture
def option():
    """Sets options for one test."""
    before = {}

    def set_option(name, value):
        before.setdefault(name, sol.config[name])
        sol.config[name] = value

    yield set_option
    for name, value in before.items():
        sol.config[name] = value


def test_files(net, x, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option("compiler::debug", True)
    fast = sol.optimize(net, sol.input([0, 3, 9, 7]), name="../tiny net")
    assert_runs_in_sol(fast, x)
    (folder,) = [path for path in (tmp_path / ".sol").iterdir() if "net" in path.name]
    before = (folder / "before.dot").read_text()
    assert "digraph" in before and "conv" in before and "conftest.py" in before
    assert "digraph" in (folder / "after.dot").read_text()
    assert "total" in (folder / "times.txt").read_text()
    assert (folder / "report.txt").read_text()


def test_nothing_is_written_without_debug(net, x, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_runs_in_sol(sol.optimize(net, sol.input([0, 3, 9, 7])), x)
    assert not list(tmp_path.iterdir())


def test_profile(net, x, option, capfd):
    option("compiler::profile", True)
    option("log::level", sol.log.info)
    assert_runs_in_sol(sol.optimize(net, sol.input([0, 3, 9, 7])), x)
    assert "GFlop/s" in capfd.readouterr().err


def test_reference_device_agrees(net, x, option):
    option("compiler::device", "ref")
    assert_runs_in_sol(sol.optimize(net, sol.input([0, 3, 9, 7]), strict=True), x)


def test_unknown_device(net, option):
    option("compiler::device", "abacus")
    with pytest.raises(ValueError, match="abacus"):
        sol.optimize(net, sol.input([0, 3, 9, 7]))


def test_list():
    text = subprocess.check_output([sys.executable, "-m", "sol"], text=True)
    for word in ("pytorch", torch.__version__, *sol.devices(), "compiler", "cache"):
        assert word in text


def test_versions_and_devices():
    assert sol.versions()["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert sol.devices()["ref"][0]

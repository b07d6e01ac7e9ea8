"""The files of `compiler::debug`, and the output of `python -m sol`."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from conftest import assert_runs_in_sol

import sol.pytorch as sol
from sol.svg import Row, draw_layers

SVG = "{http://www.w3.org/2000/svg}"


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
    root = ElementTree.parse(folder / "before.svg").getroot()
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert any("conv [n,8" in word for word in words) and any("conftest.py" in w for w in words)
    assert (
        len(list(root.iter(f"{SVG}path"))) >= len(words) - 2
    )  # each layer but the input reads one
    page = (folder / "after.html").read_text()
    assert page.startswith("<!doctype html>") and "<svg" in page and "Memory over time" in page
    assert "total" in (folder / "times.txt").read_text()
    assert (folder / "report.txt").read_text()
    assert not list(folder.glob("*.dot"))  # a browser cannot show them


def test_memory_is_drawn(net, x, option, tmp_path, monkeypatch):
    """The chart of memory does not need matplotlib, and also works for short calls."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    option("compiler::debug_memory_consumption", True)
    assert_runs_in_sol(sol.optimize(net, sol.input([0, 3, 9, 7]), name="net"), x)
    root = ElementTree.parse(tmp_path / ".sol/net/memory.svg").getroot()
    words = " ".join(text.text for text in root.iter(f"{SVG}text"))
    assert "MiB" in words and "packed weights" in words and "intermediate results" in words
    (curve,) = [path for path in root.iter(f"{SVG}path") if path.get("class") == "curve"]
    assert curve.get("d").count("L") >= 3


def test_pictures_of_large_networks():
    """Arrows that overlap get different lanes. Names with special characters are shown as text."""
    rows = [Row("<a & 'b'> \x1b[2J", []), *(Row(f"layer {i}", [i, i // 2]) for i in range(60))]
    root = ElementTree.fromstring(draw_layers("<net>", rows))
    assert len(list(root.iter(f"{SVG}rect"))) == 1 + 61
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert words[:2] == ["<net>", "<a & 'b'> \\x1b[2J"]
    arrows = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("class") == "arrow"]
    assert len(arrows) == len(set(arrows)) == 60 + 59  # layer 0 reads one tensor twice


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
    assert_runs_in_sol(sol.optimize(net, sol.input([0, 3, 9, 7]), fullgraph=True), x)


def test_unknown_device(net, option):
    option("compiler::device", "abacus")
    with pytest.raises(ValueError, match=r'"abacus": it can be \w+, ref, c, ve, far, null'):
        sol.optimize(net, sol.input([0, 3, 9, 7]))


def test_list():
    text = subprocess.check_output([sys.executable, "-m", "sol"], text=True)
    for word in ("pytorch", torch.__version__, *sol.devices(), "compiler", "cache"):
        assert word in text


def test_versions_and_devices():
    assert sol.versions()["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert sol.devices()["ref"][0]

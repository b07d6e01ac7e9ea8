"""The program `sol`: each command once, on an ONNX file and on a text, and its error messages."""

import ctypes
import functools
import html.parser
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_network import make_model, real

import sol.onnx as sol

PROGRAM = Path(__file__).resolve().parents[2] / "build/release/sol"
TEXT = """model "a <b> & \\"c\\"" {
  symbol $0 "batch"
  %0 = input f32[$0,3,8,8] "x"
  %1 = param f32[16,3,3,3] "w"
  %2 = conv %0 %1 pad=[1,1,1,1] # "<net>.py:7"
  %3 = relu %2 # "<net>.py:8"
  %4 = mean %3 axes=[2,3]
  %5 = exp %4
  output %5 "y"
}
"""


def run(*args, code=0, **env):
    done = subprocess.run(
        [PROGRAM, *map(str, args)], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def net(tmp_path):
    """(path of a network, path of its input)."""
    x = real(2, 3, 9, 9)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
    ]
    model = make_model(nodes, {"x": x}, {"w": real(8, 3, 3, 3)}, free=["x"])
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path, x


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "net.sol"
    path.write_text(TEXT)
    return path


def test_run(net, tmp_path):
    path, x = net
    np.save(tmp_path / "x.npy", x)
    x.tofile(tmp_path / "x.raw")
    expected = sol.load(path)(x)
    for name in "x.npy", "x.raw":
        shown = run(
            "run", path, "--batch=2", f"--input={tmp_path / name}", f"--output={tmp_path}/y"
        )
        assert "f32[2,8,1,1]" in shown
        np.testing.assert_allclose(np.load(tmp_path / "y0.npy"), expected, rtol=1e-5)


def test_random_input_is_the_same_again(text):
    first, again, other = (run("run", text, f"--seed={seed}") for seed in (1, 1, 2))
    assert first == again != other and "y f32[1,16]" in first


def test_bench(net, tmp_path):
    path, _ = net
    shown = run("bench", path, "--seconds=0.01", "--runs=5", f"--json={tmp_path}/r.json")
    assert "median" in shown and "p99" in shown
    times = json.loads((tmp_path / "r.json").read_text())
    assert 0 < times["least_ms"] <= times["median_ms"] <= times["p90_ms"] <= times["p99_ms"]
    assert times["calls"] >= 5 and times["batch"] == 1


def test_profile_and_compile(text):
    shown = run("profile", text, "--runs=3", "--threads=1")
    assert "conv" in shown and "1 threads" in shown
    assert "cluster 0" in run("compile", text)


def test_dump(text):
    assert run("dump", text).startswith("# as built\nmodel")
    assert run("dump", text, "--after=1") != run("dump", text)
    assert "no pass" in run("dump", text, "--after=nothing", code=1)


class Page(html.parser.HTMLParser):
    """Collects the text of an HTML page. Text that looks like a tag would be missing."""

    def __init__(self, page):
        super().__init__()
        self.words, self.tags = [], []
        self.feed(page)

    def handle_data(self, data):
        self.words.append(data)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        assert tag not in ("b", "net.py:7", "script", "link")


def test_report(text, tmp_path):
    folder = tmp_path / "a <b>"
    folder.mkdir()
    text = text.rename(folder / "net.sol")
    run("report", text, f"--output={tmp_path}/r.html", "--runs=3")
    page = Page((tmp_path / "r.html").read_text())
    words = " ".join(page.words)
    assert "a <b>/net.sol" in words and "(<net>.py:8)" in words
    assert "Memory over time" in words and "refuses" in words and "svg" in page.tags
    numbers = [word for word in words.split() if word[0].isdigit()]
    assert numbers and not any("e+" in number for number in numbers)


def test_run_of_what_is_interpreted(tmp_path):
    nodes = [
        helper.make_node("NonZero", ["n"], ["where"]),
        helper.make_node("Cast", ["where"], ["x"], to=1),
        helper.make_node("Exp", ["x"], ["y"]),
    ]
    n = np.arange(-3, 3).reshape(2, 3)
    path = tmp_path / "mixed.onnx"
    path.write_bytes(make_model(nodes, {"n": n}, {}).SerializeToString())
    np.save(tmp_path / "n.npy", n)
    told = run("run", path, f"--input={tmp_path}/n.npy", f"--output={tmp_path}/y")
    assert "y f32[2,5]" in told and "interpreted" in told
    np.testing.assert_allclose(np.load(tmp_path / "y0.npy"), np.exp(np.nonzero(n)), rtol=1e-6)
    assert "y f32[2," in run("run", path)
    assert "has 1 inputs, not 2" in run("run", path, "--input=a.npy", "--input=b.npy", code=1)
    shown = run("bench", path, "--runs=3", "--seconds=0", f"--json={tmp_path}/r.json")
    assert "3 calls" in shown and json.loads((tmp_path / "r.json").read_text())["median_ms"] > 0
    assert "NonZero" in run("profile", path, "--runs=1")
    for command in "compile", "report", "deploy", "dump":
        assert "NonZero" in run(command, path, code=1)


@pytest.mark.usefixtures("keep_objects")
def test_a_structure_that_depends_on_a_size(tmp_path):
    """The batch size selects the axis of a sum. Each command compiles the network as a whole for the sizes of the call."""
    port = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
        helper.make_node("Mod", ["n", "two"], ["axis"]),
        helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=0),
    ]
    two = helper.make_tensor("two", TensorProto.INT64, [1], [2])
    inputs, outputs = port("x", shape=["n", 3]), port("y", shape=["m"])
    graph = helper.make_graph(nodes, "net", [inputs], [outputs], [two])
    path = tmp_path / "axis.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    for batch, result in (4, "f32[3]"), (5, "f32[5]"):
        size = f"--batch={batch}"
        assert f"y {result}" in run("run", path, size)
        assert f"batch {batch}" in run("bench", path, size, "--runs=1", "--seconds=0")
        assert "DFP" in run("profile", path, size, "--runs=1")
        assert "DFP" in run("compile", path, size)
        run("deploy", path, size, f"--output={tmp_path}", f"--lib-name=Net{batch}")


@pytest.mark.usefixtures("keep_objects")
def test_deploy(net, tmp_path):
    path, x = net
    folder = tmp_path / "out"
    folder.mkdir()
    assert "Net.h" in run("deploy", path, f"--output={folder}", "--lib-name=Net", "--batch=2")
    assert {p.name for p in folder.iterdir()} == {"Net.h", "libNet.so"}
    library = ctypes.CDLL(str(folder / "libNet.so"))
    y = np.full((2, 8, 1, 1), -1, np.float32)
    out = ctypes.c_void_p(y.ctypes.data)
    library.predict(None, x.ctypes.data_as(ctypes.c_void_p), ctypes.byref(out))
    np.testing.assert_allclose(y, sol.load(path)(x), rtol=1e-5, atol=1e-6)
    run("deploy", path, f"--output={folder}", "--target=c_source", "--static-memory")
    assert (folder / "MyNetwork.c").is_file()
    assert "c_source" in run("deploy", path, "--target=exe", code=2)
    assert "name" in run("deploy", path, f"--output={folder}", "--lib-name=a-b", code=1)
    assert "folder" in run("deploy", path, "--output=/dev/null/nowhere", code=1)


def test_devices_and_cache(tmp_path):
    assert "ref" in run("devices")
    cache = {"SOL_CACHE_DIR": str(tmp_path / "cache")}
    assert str(tmp_path) in run("cache", **cache)
    run("cache", "clear", **cache)
    assert "sol cache clear" in run("cache", "nonsense", code=2, **cache)


def test_wrong_usage(net, tmp_path):
    path, x = net
    assert "usage" in run(code=2)
    assert "usage" in run("--help")
    assert "no command" in run("frobnicate", path, code=2)
    assert "needs a model" in run("run", code=2)
    assert "is no number" in run("run", path, "--batch=x", code=2)
    assert "unrecognized" in run("run", path, "--colour=red", code=2)
    assert "cannot read" in run("run", tmp_path / "missing.onnx", code=1)
    np.save(tmp_path / "x.npy", x[:1])
    message = run("run", path, "--batch=2", f"--input={tmp_path}/x.npy", code=1)
    assert "its shape is not (2, 3, 9, 9)" in message
    np.save(tmp_path / "x.npy", x.astype(np.float64))
    assert "not f32" in run("run", path, "--batch=2", f"--input={tmp_path}/x.npy", code=1)
    (tmp_path / "x.npy").write_bytes(b"nothing")
    assert "is no .npy" in run("run", path, "--batch=2", f"--input={tmp_path}/x.npy", code=1)
    (tmp_path / "x.raw").write_bytes(b"nothing")
    assert "does not hold" in run("run", path, "--batch=2", f"--input={tmp_path}/x.raw", code=1)
    text = tmp_path / "wrong.sol"
    text.write_text(TEXT.replace("relu", "rely"))
    assert "line 6" in run("run", text, code=1)

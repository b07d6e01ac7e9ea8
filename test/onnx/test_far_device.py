"""Networks from ONNX files on far devices, in Python and by the program `sol`: arrays are the host's, SOL computes on the device."""

import numpy as np
import pytest
from onnx import helper
from test_cli import TEXT, run
from test_network import make_model, real
from test_session import make_model as make_open

import sol.onnx as sol

pytestmark = pytest.mark.skipif(
    not sol.devices().get("far", (False,))[0], reason="kernels of far devices are compiled"
)


@pytest.fixture(autouse=True)
def far():
    sol.device.set("far")
    yield
    sol.device.set(None)


def conv_net(x):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
    ]
    return make_model(nodes, {"x": x}, {"w": real(8, 3, 3, 3)}, free=["x"]).SerializeToString()


def load_on_host(data):
    sol.device.set(None)
    return sol.load(data)


def test_network():
    x = real(2, 3, 9, 9)
    data = conv_net(x)
    net = sol.load(data)
    expected = load_on_host(data)
    for batch in 1, 2, 5:
        x = real(batch, 3, 9, 9)
        before = net.program.transfers
        y = net(x)
        np.testing.assert_allclose(y, expected(x), rtol=1e-4, atol=1e-5)
        after = net.program.transfers
        assert after["to_device"] - before["to_device"] == x.nbytes
        assert after["to_host"] - before["to_host"] == y.nbytes
        assert after["weights"] == before["weights"] >= 8 * 3 * 9 * 4
    found = sol.profile(net, x, runs=1).transfers
    assert (found["to_device"], found["to_host"]) == (x.nbytes, y.nbytes)


def test_session():
    """A compiled part, and a node that is interpreted."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("NonZero", ["b"], ["y"]),
    ]
    x = real(3, 4)
    data = make_open(nodes, {"x": x}, constants={"w": real(4, 5)}).SerializeToString()
    net = sol.load(data)
    expected = load_on_host(data)
    for n in 3, 7:
        x = real(n, 4)
        np.testing.assert_array_equal(net(x), expected(x))
    assert net.counts == expected.counts and min(net.counts) > 0


def test_there_is_no_such_device():
    sol.config["compiler::device_number"] = 7
    with pytest.raises(RuntimeError, match="there is no far 7, but 2 of them"):
        sol.load(conv_net(real(2, 3, 9, 9)))


# ---- The program ----


@pytest.fixture
def files(tmp_path):
    x = real(2, 3, 9, 9)
    (tmp_path / "net.onnx").write_bytes(conv_net(x))
    np.save(tmp_path / "x.npy", x)
    return tmp_path / "net.onnx", f"--input={tmp_path / 'x.npy'}", tmp_path


@pytest.mark.parametrize("device", ["far", "far:0", "far:1"])
def test_run(files, device):
    path, x, folder = files
    run("run", path, x, f"--output={folder / 'host'}")
    run("run", path, x, f"--output={folder / 'far'}", f"--device={device}")
    host, far = (np.load(folder / f"{name}0.npy") for name in ("host", "far"))
    np.testing.assert_allclose(far, host, rtol=1e-4, atol=1e-5)


def test_profile_report_and_bench(files):
    path, x, folder = files
    shown = run("profile", path, x, "--runs=2", "--device=far:1")
    assert f"a call copies {2 * 3 * 81 * 4} bytes to the device, {2 * 8 * 4} to the host" in shown
    assert "copies" not in run("profile", path, x, "--runs=2")
    run("report", path, x, "--runs=2", f"--output={folder / 'r.html'}", "--device=far:1")
    page = (folder / "r.html").read_text()
    assert "<th>compiled for</th><td>far 1</td>" in page and "bytes to the device" in page
    assert "median" in run("bench", path, x, "--runs=2", "--seconds=0", "--device=far")


def test_text(tmp_path):
    (tmp_path / "net.sol").write_text(TEXT)
    shown = [
        run("run", tmp_path / "net.sol", "--batch=2", *more) for more in ((), ("--device=far",))
    ]
    numbers = [np.array(text.split(":")[-1].split()[:8], float) for text in shown]
    np.testing.assert_allclose(*numbers, rtol=1e-4)


@pytest.mark.parametrize(
    "device, code, text",
    [
        ("far:2", 1, "there is no far 2, but 2 of them"),
        ("far:x", 2, "is no number from 0 on"),
        ("far:-1", 2, "is no number from 0 on"),
        ("gpu:0", 2, "it can be x86, "),
        ("x86:1", 1, "there is no device x86 1: it is the only one"),
    ],
)
def test_wrong_devices(files, device, code, text):
    path, x, _ = files
    assert text in run("run", path, x, f"--device={device}", code=code)


def test_device_that_dies(files):
    path, x, _ = files
    message = run("run", path, x, "--device=far", code=1, SOL_FAR="die=1")
    assert "far 0: " in message and "signal 9" in message


def test_too_little_memory(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = make_model(nodes, {"x": real(2, 1024)}, {"w": real(1024, 512)})
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    message = run("run", tmp_path / "net.onnx", "--device=far", code=1, SOL_FAR="memory=1")
    assert "far 0: no memory for" in message

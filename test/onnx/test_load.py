"""sol.onnx: the forms in which load takes a model, the attributes and text of a network, and sol.profile, report and memory of it."""

import io
import os
import threading

import numpy as np
import pytest
from onnx import helper
from test_cli_files import CONTROL, EVIL, WRONG, build, conv_model, evil_model
from test_network import make_model, real

import sol
import sol.onnx


@pytest.fixture
def net():
    return sol.load(conv_model(("batch", 3, 9, 7)).SerializeToString())


def session():
    node = helper.make_node("Mod", ["x", "x"], ["y"])  # not compiled: x may be 0
    return build([node], {"x": ("INT32", ("batch", 3))}, kind="INT32").SerializeToString()


# ---- Arguments of load ----


@pytest.mark.parametrize("name", ["net.bin", "net"])
def test_a_model_may_have_any_name(tmp_path, name):
    data = conv_model(("batch", 3, 9, 7)).SerializeToString()
    (tmp_path / name).write_bytes(data)
    x = real(2, 3, 9, 7)
    expected = sol.load(data)(x)
    for model in (
        tmp_path / name,
        str(tmp_path / name),
        bytearray(data),
        io.BytesIO(data),
        open(tmp_path / name, "rb"),
    ):
        np.testing.assert_array_equal(sol.load(model)(x), expected)


def test_a_model_may_come_through_a_pipe(tmp_path):
    for i, data in enumerate((conv_model((1, 3, 9, 7)).SerializeToString(), session())):
        path = tmp_path / f"fifo{i}"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=[data])
        writer.start()
        assert sol.load(path).inputs[0][0] == "x"
        writer.join()


def test_a_missing_file_is_told_once(tmp_path):
    for call in sol.load, sol.onnx.deploy, sol.deploy:
        with pytest.raises(FileNotFoundError) as error:
            call(tmp_path / "missing.onnx")
        assert str(error.value).count("missing.onnx") == 1
    with pytest.raises(IsADirectoryError):
        sol.load(tmp_path)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_model_is_told(tmp_path, name):
    data, words = WRONG[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError) as error:
        sol.load(tmp_path / name)
    assert name in str(error.value) and (words in str(error.value) or words == "neither")
    with pytest.raises((ValueError, NotImplementedError)):
        sol.load(data)


def test_what_cannot_be_a_model(tmp_path):
    (tmp_path / "net.sol").write_text('# text\nmodel "m" {\n}\n')
    with pytest.raises(ValueError, match="text form"):
        sol.load(tmp_path / "net.sol")
    with pytest.raises(TypeError, match="binary"):
        sol.load(io.StringIO("model"))
    with pytest.raises(TypeError, match="path, bytes or a file object"):
        sol.load(3)


# ---- Open sizes ----


def test_inputs_that_contradict_each_other():
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    net = sol.load(
        make_model(nodes, {"a": real(2, 3), "b": real(2, 3)}, free=["a", "b"]).SerializeToString()
    )
    with pytest.raises(
        ValueError, match=r"input b has the shape \[4, 3\], not \[N, 3\]: N is 2 by input a"
    ):
        net(real(2, 3), real(4, 3))


def test_shapes_to_compile_for():
    data = conv_model().SerializeToString()
    assert "compiled as a whole" in repr(sol.load(data))
    net = sol.load(data, shapes={"x": (2, 3, 9, 7)})
    x = real(2, 3, 9, 7)
    np.testing.assert_allclose(net(x), sol.load(data)(x), rtol=1e-4, atol=1e-5)
    assert net.counts[1] == 0 and sol.profile(net, x, runs=1).steps
    with pytest.raises(ValueError, match="no such input"):
        sol.load(data, shapes={"z": (1,)})
    with pytest.raises(ValueError, match="dim 1 is 3, not 4"):
        sol.load(data, shapes={"x": (2, 4, 9, 7)})
    with pytest.raises(ValueError, match="4 dims, not 2"):
        sol.load(data, shapes={"x": (2, 4)})


@pytest.mark.usefixtures("keep_objects")
def test_deploy_for_shapes(tmp_path):
    data = conv_model().SerializeToString()
    sol.deploy(data, path=tmp_path / "open")
    sol.deploy(data, path=tmp_path, shapes={"x": (1, 3, 8, 8)})
    assert (tmp_path / "libMyNetwork.so").is_file()


# ---- Attributes and text ----


def test_a_network_shows_what_it_takes(net):
    shown = str(net)
    assert "x: float32 [batch, 3, 9, 7]" in shown and "y: float32 [batch, 4, 9, 7]" in shown
    assert "compiled as a whole, 2 nodes" in shown
    shown = str(sol.load(session()))
    assert "x: int32 [batch, 3]" in shown and "partly interpreted" in shown


def test_profile(net):
    x = real(2, 3, 9, 7)
    expected = net(x)
    found = sol.profile(net, x, runs=2)
    conv = next(step for step in found.steps if "conv" in step.layers)
    assert conv.flops == 2 * 2 * 9 * 7 * 4 * 27 and conv.implementation in str(found)
    assert found.call_s > 0 and str(net.profile(x, runs=1))
    np.testing.assert_array_equal(net(x), expected)


def test_report(net, tmp_path):
    sol.report(net, real(2, 3, 9, 7), path=tmp_path / "page.html", runs=1)
    page = (tmp_path / "page.html").read_text()
    assert "x f32[2,3,9,7]" in page and "y f32[2,4,9,7]" in page


def test_memory(net):
    small, large = sol.memory(net), sol.memory(net, 64)
    assert small.parameters == large.parameters == 4 * 4 * 27
    assert small.arena <= large.arena and small.own > 0 and "MiB" in str(small)
    assert sol.memory(net, inputs=[real(64, 3, 9, 7)]) == net.memory(64) == large
    fixed = sol.load(conv_model((2, 3, 9, 7)).SerializeToString())
    assert sol.memory(fixed, 2) == sol.memory(fixed)
    with pytest.raises(ValueError, match=r"no batch of 32: its inputs are \[2, 3, 9, 7\]"):
        sol.memory(fixed, 32)
    with pytest.raises(TypeError):
        sol.memory(fixed, 2.0)


def test_an_interpreted_network_has_no_program(tmp_path):
    net = sol.load(session())
    for call in (
        lambda: sol.report(net, path=tmp_path / "page.html"),
        lambda: sol.memory(net),
    ):
        with pytest.raises(NotImplementedError, match="partly interpreted"):
            call()


@pytest.mark.parametrize("kind", ["FLOAT", "INT32"])
def test_names_cannot_control_the_terminal(tmp_path, kind, capfd):
    path = tmp_path / f"net{EVIL.strip()}"
    path.write_bytes(evil_model(kind).SerializeToString())
    net = sol.load(path)
    x = np.ones((2, 3), "float32" if kind == "FLOAT" else "int32")
    said = [str(net)]
    if kind == "FLOAT":
        said += [str(sol.profile(net, x, runs=1)), net.program.report()]
        sol.report(net, x, path=tmp_path / "page.html", runs=1)
        said.append((tmp_path / "page.html").read_text())
    for call in (
        lambda: net(x[0]),
        lambda: net(x[:, :2]),
        lambda: net(x.astype("float16")),
        lambda: net(["a"]),
        lambda: sol.memory(net, -1),
        lambda: sol.load(path.with_name("missing" + EVIL)),
        lambda: sol.load(path, shapes={EVIL: (1,)}),
    ):
        with pytest.raises(Exception) as error:
            call()
        if not isinstance(error.value, OSError):  # Python's own message has the path in quotes
            said.append(str(error.value))
    sol.log.say(sol.log.warn, f"name {EVIL}")
    said.append(capfd.readouterr().err)
    for text in said:
        assert not CONTROL.search(text), repr(text)


@pytest.mark.parametrize(
    "op, words", [("Compress", "interprets this operator"), ("NoSuch", "no such operator")]
)
def test_deploy_of_what_is_interpreted(tmp_path, op, words):
    """Deploying a network with an operator that only the interpreter has: the message does not say that the operator is missing."""
    inputs = {"x": ("INT8", (2,)), "s": ("FLOAT", (1,))}
    data = build([helper.make_node(op, ["x", "s"], ["y"])], inputs).SerializeToString()
    with pytest.raises(NotImplementedError, match=f"node 0, {op}.*{words}"):
        sol.deploy(data, path=tmp_path)

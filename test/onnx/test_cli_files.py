"""The program `sol`: accepted files of models and inputs, and the error messages for all others."""

import gzip
import io
import os
import re
import subprocess
import threading
import zipfile

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from test_cli import PROGRAM, TEXT, run
from test_network import real

import sol.onnx as sol


def conv_model(size=("batch", 3, "height", "width")):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return build(nodes, {"x": ("FLOAT", size)}, {"w": real(4, 3, 3, 3)})


def build(nodes, inputs, constants=None, outputs=("y",), kind="FLOAT"):
    ports = [
        helper.make_tensor_value_info(
            name, getattr(TensorProto, dtype), list(size) if size else None
        )
        for name, (dtype, size) in inputs.items()
    ]
    results = [helper.make_tensor_value_info(y, getattr(TensorProto, kind), None) for y in outputs]
    values = [
        helper.make_tensor(name, TensorProto.FLOAT, value.shape, value.tobytes(), raw=True)
        for name, value in (constants or {}).items()
    ]
    graph = helper.make_graph(nodes, "net", ports, results, values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(path, model):
    path.write_bytes(model.SerializeToString())
    return path


def pipe(data, *args, code=0):
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, input=data)
    assert done.returncode == code, done.stdout + done.stderr
    return (done.stdout if code == 0 else done.stderr).decode()


# ---- Files of models ----


@pytest.mark.parametrize("name", ["cnn.bin", "cnn", "cnn.txt", "cnn.onnx"])
def test_onnx_is_known_by_its_content(tmp_path, name):
    path = write(tmp_path / name, conv_model((2, 3, 9, 9)))
    assert "y f32[2,4,9,9]" in run("run", path)


def test_a_text_may_have_any_name(tmp_path):
    for name in "net.sol", "net.onnx", "net":
        (tmp_path / name).write_text("# a comment\n\n" + TEXT)
        assert "y f32[1,16]" in run("run", tmp_path / name)


def test_standard_input_and_pipes(tmp_path):
    data = conv_model((2, 3, 9, 9)).SerializeToString()
    for path in "-", "/dev/stdin":
        assert "y f32[2,4,9,9]" in pipe(data, "run", path)
        assert "y f32[1,16]" in pipe(TEXT.encode(), "run", path)
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=lambda: (tmp_path / "fifo").write_bytes(data))
    writer.start()
    assert "y f32[2,4,9,9]" in run("run", tmp_path / "fifo")
    writer.join()


def test_an_interpreted_network_may_come_through_a_pipe():
    nodes = [helper.make_node("Add", ["n", "n"], ["y"])]
    data = build(nodes, {"n": ("INT64", (2, 3))}, kind="INT64").SerializeToString()
    assert "y i64[2,3]" in pipe(data, "run", "-")


def pickled():
    """Files of torch.save: a zip archive, and a pickle as before version 1.6."""
    old, new = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.ones(2)}, old, _use_new_zipfile_serialization=False)
    torch.save({"a": torch.ones(2)}, new)
    return old.getvalue(), new.getvalue()


def zipped():
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("a", "b")
    return data.getvalue()


def array():
    data = io.BytesIO()
    np.save(data, np.ones(3))
    return data.getvalue()


WRONG = {
    "net.pt": (pickled()[0], "pickle"),
    "net.pth": (pickled()[1], "torch"),
    "net.zip": (zipped(), "zip archive"),
    "net.onnx": (b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "net.onnx.gz": (gzip.compress(b"x" * 99), "gzip"),
    "net.bin": (b"", "empty"),
    "net.npy": (array(), "NumPy"),
    "lfs.onnx": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "net.safetensors": (b"\x10\0\0\0\0\0\0\0" + b'{"a": {"b": 1}} ', "safetensors"),
    "net.json": (b'{"irVersion": 8}', "JSON"),
    "notes.txt": (b"Model of Mr. Smith\n", "neither"),
    "noise.onnx": (bytes(range(7, 256)) * 9, "noise.onnx"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_model_is_told(tmp_path, name):
    data, words = WRONG[name]
    (tmp_path / name).write_bytes(data)
    message = run("run", tmp_path / name, code=1)
    assert words in message and str(tmp_path / name) in message and "Traceback" not in message


def test_paths_that_cannot_be_read(tmp_path):
    assert "directory" in run("run", tmp_path, code=1)
    message = run("run", tmp_path / "missing", code=1)
    assert "No such file" in message and message.count("missing") == 1
    path = write(tmp_path / "net.onnx", conv_model((1, 3, 9, 9)))
    path.chmod(0)
    if not os.access(path, os.R_OK):  # root can read any file
        assert "denied" in run("run", path, code=1)


# ---- Open sizes ----


@pytest.fixture
def cnn(tmp_path):
    return write(tmp_path / "cnn.onnx", conv_model())


def save_array(path, array):
    np.save(path, array)
    return f"--input={path}"


def test_arrays_give_open_sizes(cnn, tmp_path):
    x = real(2, 3, 11, 7)
    option = save_array(tmp_path / "x.npy", x)
    assert "y f32[2,4,11,7]" in run("run", cnn, option, f"--output={tmp_path}/y")
    expected = sol.load(cnn)(x)
    np.testing.assert_allclose(np.load(tmp_path / "y0.npy"), expected, rtol=1e-4, atol=1e-5)
    assert "batch 2" in run("bench", cnn, option, "--runs=1", "--seconds=0")


def test_shapes_give_open_sizes(cnn):
    assert "y f32[1,4,48,64]" in run("run", cnn, "--shape=x:1,3,48,64")
    assert "y f32[2,4,48,64]" in run("run", cnn, "--shape=2x3x48x64")
    shown = run("bench", cnn, "--shape=4,3,8,8", "--runs=1", "--seconds=0")
    assert "batch 4" in shown and "samples/s" in shown and "images" not in shown
    assert "3, height, width" in run("run", cnn, "--shape=y:1,2", code=1)
    assert "such as 1,3,480,640" in run("run", cnn, "--shape=x:1,a", code=1)


def test_sizes_that_nobody_gives_are_told(cnn):
    done = subprocess.run([PROGRAM, "run", cnn, "--batch=2"], capture_output=True, text=True)
    assert "y f32[2,4,1,1]" in done.stdout
    assert "input x is (2, 3, 1, 1)" in done.stderr and "--shape=x:" in done.stderr


def two_inputs(kind="FLOAT"):
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    shape = ("batch", "sequence")
    return build(nodes, {"a": (kind, shape), "b": (kind, shape)}, kind=kind)


@pytest.mark.parametrize("kind", ["FLOAT", "INT32"])
def test_inputs_share_sizes(tmp_path, kind):
    """Two inputs with a common open size must agree, in compiled and in interpreted networks."""
    path = write(tmp_path / "two.onnx", two_inputs(kind))
    a, b = (np.ones((2, n), "float32" if kind == "FLOAT" else "int32") for n in (5, 6))
    options = [save_array(tmp_path / "a.npy", a), save_array(tmp_path / "b.npy", b)]
    assert "[2,5]" in run("run", path, options[0], options[0])
    assert "[3,4]" in run("run", path, "--shape=b:3,4")
    message = run("run", path, *options, code=1)
    assert "b.npy: its shape is not (2, 5) but (2, 6), for input b" in message
    assert "sequence is 5 by input a" in message and "a.npy" in message


def test_a_size_that_is_used_twice(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = write(tmp_path / "square.onnx", build(nodes, {"x": ("FLOAT", ("n", "n"))}))
    message = run("run", path, save_array(tmp_path / "x.npy", real(2, 3)), code=1)
    assert "not (n, n) but (2, 3)" in message or "not (2, 2) but (2, 3)" in message


@pytest.mark.parametrize("kind", ["FLOAT", "INT32"])
def test_wrong_shapes_are_told_with_the_right_ones(tmp_path, kind):
    nodes = [helper.make_node("Neg", ["image"], ["y"])]
    path = write(tmp_path / "net.onnx", build(nodes, {"image": (kind, ("batch", 3, 8))}, kind=kind))
    dtype = "float32" if kind == "FLOAT" else "int32"
    for shape in (2, 4, 8), (2, 3), ():
        option = save_array(tmp_path / "x.npy", np.ones(shape, dtype))
        message = run("run", path, option, code=1)
        assert f"but {shape}, for input image" in message and "(batch, 3, 8)" in message
        assert "x.npy" in message
    message = run("run", path, save_array(tmp_path / "x.npy", np.ones((2, 3, 8), "uint8")), code=1)
    assert "|u1" in message and ("f32" if kind == "FLOAT" else "i32") in message
    assert "input image" in message
    big = np.ones((2, 3, 8), ">f4" if kind == "FLOAT" else ">i4")
    assert ">" in run("run", path, save_array(tmp_path / "x.npy", big), code=1)
    fortran = save_array(tmp_path / "x.npy", np.asfortranarray(np.ones((2, 3, 8), dtype)))
    assert "C order" in run("run", path, fortran, code=1)


def test_a_fixed_batch_is_not_another_one(tmp_path):
    path = write(tmp_path / "net.onnx", conv_model((2, 3, 8, 8)))
    assert "--batch=3" in run("run", path, "--batch=3", code=1)
    assert "batch 2" in run("bench", path, "--runs=1", "--seconds=0")


def test_the_number_of_inputs(tmp_path):
    path = write(tmp_path / "two.onnx", two_inputs())
    message = run("run", path, "--input=a.npy", code=1)
    assert "has 2 inputs, not 1" in message and "a (batch, sequence)" in message


def test_inputs_through_a_pipe(cnn, tmp_path):
    x = io.BytesIO()
    np.save(x, real(1, 3, 5, 6))
    os.mkfifo(tmp_path / "x.npy")
    writer = threading.Thread(target=lambda: (tmp_path / "x.npy").write_bytes(x.getvalue()))
    writer.start()
    assert "y f32[1,4,5,6]" in run("run", cnn, f"--input={tmp_path}/x.npy")
    writer.join()


@pytest.mark.usefixtures("keep_objects")
def test_sizes_of_a_library_s_simple_function(cnn, tmp_path):
    """Open sizes stay open in the library; those of its simple function come from the command line."""
    run("deploy", cnn, f"--output={tmp_path}", "--shape=x:2,3,10,12", "--lib-name=Net")
    assert "[2*, 3, 10*, 12*]" in (tmp_path / "Net.h").read_text()


def test_a_formula_as_a_size(tmp_path):
    """In SOL's text form a size may be a formula. The shape of an array does not determine its symbol."""
    text = TEXT.replace("input f32[$0,3,8,8]", "input f32[2*$0,3,8,8]")
    (tmp_path / "net.sol").write_text(text)
    assert "formula" in run("run", tmp_path / "net.sol", code=1)


# ---- Messages and names ----


def test_random_weights_are_told(tmp_path):
    (tmp_path / "net.sol").write_text(TEXT)
    done = subprocess.run([PROGRAM, "run", tmp_path / "net.sol"], capture_output=True, text=True)
    assert "weights are random" in done.stderr


EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\n"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def evil_model(kind="FLOAT"):
    """A model in which every name contains control characters and markup."""
    node = helper.make_node("Relu" if kind == "FLOAT" else "Neg", ["x" + EVIL], ["y" + EVIL])
    node.name, node.doc_string = "node" + EVIL, EVIL
    shape = ("batch" + EVIL, 3)
    model = build([node], {"x" + EVIL: (kind, shape)}, outputs=("y" + EVIL,), kind=kind)
    model.graph.name = model.graph.doc_string = model.producer_name = EVIL
    return model


@pytest.mark.parametrize("kind", ["FLOAT", "INT32"])
def test_names_cannot_control_the_terminal(tmp_path, kind):
    path = write(tmp_path / f"net{EVIL.strip()}.onnx", evil_model(kind))
    np.save(tmp_path / "x.npy", np.ones(7, "float32"))
    calls = [
        ["run", path], ["run", path, f"--input={tmp_path}/x.npy"], ["run", path, "--shape=1"],
        ["run", str(path) + "missing"], ["compile", path], ["profile", path, "--runs=1"], ["dump", path],
        ["bench", path, "--runs=1", "--seconds=0"], ["report", path, f"--output={tmp_path}/r.html"],
        ["run", path, f"--shape={EVIL}:1"], ["help", EVIL], [EVIL], ["run", path, EVIL],
        ["run", path, f"--device={EVIL}"], ["run", path, f"--batch={EVIL}"], ["run", path, f"--{EVIL}"],
    ]  # fmt: skip
    shown = ""
    for call in calls:
        env = {**os.environ, "SOL_LOG": "TRACE", "SOL_DEBUG": "all"}
        done = subprocess.run([PROGRAM, *call], capture_output=True, env=env)
        shown += (done.stdout + done.stderr).decode()  # all output is UTF-8
    assert not CONTROL.search(shown), repr(CONTROL.search(shown))
    assert "\\x1b" in shown and not any(line.startswith("\x1b") for line in shown.splitlines())
    if kind == "FLOAT":
        assert not CONTROL.search((tmp_path / "r.html").read_text())

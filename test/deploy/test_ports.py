"""The text of headers: names of inputs and outputs, sizes, memory; and the models that deploying refuses."""

import collections
import ctypes
import dataclasses
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from deploy_net import WARNINGS, build_portable, load
from torch import nn

import sol.pytorch as sol

C_SOURCE = {"target": sol.deployment.c_source}
ROOT = Path(__file__).resolve().parents[2]


def read_ports(folder, kind):
    """The names of inputs or outputs in the header's comment, in order."""
    text = (folder / "Net.h").read_text()
    return [x.strip() for x in re.findall(rf"^ \*   {kind} +\d+  \w+ \[.*?\]  (.*)$", text, re.M)]


def check_header(folder):
    """The header is valid C and C++, and declares the functions that the source defines."""
    for language in ("c", "c++"):
        argv = ["gcc", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-x", language]
        assert subprocess.run([*argv, folder / "Net.h"]).returncode == 0
    argv = ["gcc", "-std=c99", *WARNINGS, "-c", "Net.c", "-o", "Net.o"]
    assert subprocess.run(argv, cwd=folder).returncode == 0


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass
class Found:
    scores: torch.Tensor
    pair: Pair


class Results(nn.Module):
    """Returns make(x, x + 1, x * 2)."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, image):
        return self.make(image * 3, image + 1, image - 2)


RESULTS = {
    "one": (lambda a, b, c: a, ["output0"]),
    "tuple": (lambda a, b, c: (a, b, c), ["output0", "output1", "output2"]),
    "dict": (lambda a, b, c: {"scores": a, "boxes": b, "mask": c}, ["scores", "boxes", "mask"]),
    "order": (lambda a, b, c: {"z": a, "a": b, "m": c}, ["z", "a", "m"]),
    "ordered": (lambda a, b, c: collections.OrderedDict(b=a, a=b), ["b", "a"]),
    "nested": (
        lambda a, b, c: {"boxes": (a, [b]), "more": {"x": c}},
        ["boxes.0", "boxes.1.0", "more.x"],
    ),
    "named tuple": (lambda a, b, c: Pair(a, b), ["left", "right"]),
    "dataclass": (lambda a, b, c: Found(a, Pair(b, c)), ["scores", "pair.left", "pair.right"]),
    "list of dicts": (lambda a, b, c: [{"x": a}, {"x": b}], ["output0.x", "output1.x"]),
    "numbers": (lambda a, b, c: {1: a, (2, 3): b}, ["1", "_2_ 3_"]),
    "same": (lambda a, b, c: {"a": a, "b": b, "again": a}, ["a", "b", "again"]),
    "no names": (lambda a, b, c: {"": a, "int": b, "NULL": c}, ["(no name)", "int", "NULL"]),
    "nasty": (
        lambda a, b, c: {"*/ int x; /*": a, "a\nb": b, "\udc80%s" + "y" * 200: c},
        ["_ int x_ _", "a_b", "_s" + "y" * 58],
    ),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_outputs_have_the_keys_of_the_result(tmp_path, kind):
    make, names = RESULTS[kind]
    model = Results(make).eval()
    sol.deploy(model, [torch.zeros(2, 3)], lib_name="Net", path=tmp_path, **C_SOURCE)
    assert read_ports(tmp_path, "input") == ["image"]
    assert read_ports(tmp_path, "output") == names
    check_header(tmp_path)
    x = torch.randn(2, 3)
    values = [np.empty((2, 3), np.float32) for _ in names]
    library = build_portable(tmp_path)
    library.predict(
        None,
        ctypes.c_void_p(x.data_ptr()),
        *[ctypes.byref(ctypes.c_void_p(y.ctypes.data)) for y in values],
    )
    leaves, todo = [], [model(x)]
    while todo:
        part = todo.pop(0)
        if isinstance(part, torch.Tensor):
            leaves.append(part)
            continue
        if dataclasses.is_dataclass(part):
            part = vars(part)
        todo[:0] = list(part.values()) if isinstance(part, dict) else list(part)
    for y, expected in zip(values, leaves, strict=True):
        np.testing.assert_allclose(y, expected.numpy(), rtol=1e-6)


def test_a_real_library_has_names_too(tmp_path):
    model = Results(RESULTS["dict"][0]).eval()
    sol.deploy(model, [sol.input([0, 3])], lib_name="Net", path=tmp_path)
    assert read_ports(tmp_path, "output") == ["scores", "boxes", "mask"]
    text = (tmp_path / "Net.h").read_text()
    assert "float **output0_scores, float **output1_boxes" in text
    assert "[1*, 3]" in text and "sizes: the open sizes" in text
    library = load(tmp_path)
    assert library.Net_run(ctypes.c_void_p(1), None, None, None) == 1
    shape = (ctypes.c_int64 * 8)()
    assert library.Net_input_shape(0, (ctypes.c_int64 * 1)(5), shape) == 2
    assert list(shape[:2]) == [5, 3]
    for what in (library.Net_input_shape, library.Net_output_shape):
        assert what(0, (ctypes.c_int64 * 1)(-5), shape) == -1
        assert library.Net_error()


class Inputs(nn.Module):
    def forward(self, image, scale: float, extra, *rest, flag=True):
        return image * scale + extra["a b"] + extra["int"] * rest[0] - rest[1]


def test_inputs_have_the_names_of_forward(tmp_path):
    x = torch.zeros(2)
    given = [x, 2.0, {"a b": x, "int": x, "unused": x}, x, x]
    sol.deploy(Inputs().eval(), given, lib_name="Net", path=tmp_path, **C_SOURCE)
    names = ["image", "extra.a b", "extra.int", "rest.0", "rest.1"]
    assert read_ports(tmp_path, "input") == names
    text = (tmp_path / "Net.h").read_text()
    assert "const float *input0_image, const float *input1_extra_a_b" in text
    check_header(tmp_path)


def test_an_optimized_module_has_the_same_names(tmp_path):
    fast = sol.optimize(Results(RESULTS["dict"][0]).eval(), sol.input([0, 3]))
    sol.deploy(fast, lib_name="Net", path=tmp_path, **C_SOURCE)
    assert read_ports(tmp_path, "output") == ["scores", "boxes", "mask"]


@pytest.mark.parametrize("memory", ["dynamic", "static"])
def test_portable_sizes_are_fixed(tmp_path, memory):
    """The header names only sizes that the library accepts."""
    model = nn.Linear(3, 2).eval()
    sol.deploy(model, [sol.input([0, 3])], lib_name="Net", path=tmp_path, memory=memory, **C_SOURCE)
    text = (tmp_path / "Net.h").read_text()
    comments = "".join(re.findall(r"/\*.*?\*/", text, re.S))
    assert "[1, 3]" in text and not re.search(r"\d\*|star|[oO]pen sizes|takes others", comments)
    assert "All sizes are fixed" in text
    library = build_portable(tmp_path)
    context, shape = ctypes.c_void_p(), (ctypes.c_int64 * 8)()
    assert library.Net_open(None, ctypes.byref(context)) == 0
    x, y = np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float32)
    pointers = [(ctypes.c_void_p * 1)(array.ctypes.data) for array in (x, y)]
    for size, code in ((1, 0), (2, 1), (0, 1)):
        sizes = (ctypes.c_int64 * 1)(size)
        assert library.Net_run(context, sizes, *pointers) == code
        assert bool(library.Net_error()) == bool(code)
        assert library.Net_input_shape(0, sizes, shape) == (-1 if code else 2)
        assert library.Net_output_shape(0, sizes, shape) == (-1 if code else 2)


def test_portable_header_says_where_large_weights_are(tmp_path):
    """Weights of more than 4 MiB are in a file, also without weights="file". The file is not searched beside the library."""
    model = nn.Linear(1100, 1000).eval()
    sol.deploy(model, [torch.zeros(1, 1100)], lib_name="Net", path=tmp_path, **C_SOURCE)
    assert (tmp_path / "Net.weights").exists()
    text = (tmp_path / "Net.h").read_text()
    assert "Net.weights" in text and "working directory" in text and "beside" not in text


# ---- Models that can be deployed ----


def test_training_mode_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    given = [torch.zeros(2, 3)]
    with pytest.raises(ValueError, match=r"the model is in training mode.*eval\(\)"):
        sol.deploy(model, given, lib_name="Net", path=tmp_path, **C_SOURCE)
    model.eval()[2].train()
    with pytest.raises(ValueError, match=r"2 is in training mode.*eval\(\)"):
        sol.deploy(model, given, lib_name="Net", path=tmp_path, **C_SOURCE)
    fast = sol.optimize(model.eval(), *given)
    fast.train()
    with pytest.raises(ValueError, match="training mode"):
        sol.deploy(fast, lib_name="Net", path=tmp_path, **C_SOURCE)
    assert not list(tmp_path.iterdir())
    sol.deploy(fast.eval(), lib_name="Net", path=tmp_path, **C_SOURCE)


class Refused(nn.Module):
    def forward(self, x):
        return {"x": x + 1, "n": 3, "none": None}


def test_what_cannot_be_deployed_is_named(tmp_path):
    with pytest.raises(NotImplementedError, match="n is 3"):
        sol.deploy(Refused().eval(), [torch.zeros(2)], path=tmp_path)
    with pytest.raises(NotImplementedError, match="stft|complex|aten"):
        model = Results(lambda a, b, c: torch.fft.fft(a).real).eval()
        sol.deploy(model, [torch.zeros(8)], path=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["size_t", "FILE", "NULL", "uint64_t", "weights_hash_add"])
def test_names_of_c(tmp_path, name):
    with pytest.raises(ValueError, match="name"):
        sol.deploy(
            nn.ReLU().eval(), [torch.zeros(2)], lib_name="Net", func_name=name, path=tmp_path
        )


def test_what_is_only_interpreted(tmp_path):
    """An operator that only the interpreter has cannot be deployed."""
    import sol.onnx

    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    nodes = [helper.make_node("NonZero", ["x"], ["y"], name="q")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [1, None])],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    (tmp_path / "q.onnx").write_bytes(model)
    assert sol.onnx.load(model)(np.array([2, 4], np.uint8)).tolist() == [[0, 1]]
    with pytest.raises(NotImplementedError, match="NonZero") as info:
        sol.onnx.deploy(model, path=tmp_path)
    assert "no such operator" not in str(info.value) and "interprets" in str(info.value)


def test_forward_that_writes_is_refused(tmp_path):
    """A library has no Python objects to write."""

    class Counting(torch.nn.Module):
        n = 0

        def forward(self, x):
            self.n += 1
            return x * self.n

    with pytest.raises(NotImplementedError, match="writes to model.n"):
        sol.deploy(Counting().eval(), [sol.input([1, 3])], path=tmp_path)
    assert not list(tmp_path.iterdir())

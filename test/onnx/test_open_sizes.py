"""ONNX networks with open rows, columns and lengths: one compile for all, against ONNX's own reference."""

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import sol.onnx

PROGRAM = Path(__file__).resolve().parents[2] / "build/release/sol"
RANDOM = np.random.default_rng(0)


def weight(name, *shape):
    return numpy_helper.from_array((RANDOM.standard_normal(shape) * 0.2).astype("f4"), name)


def numbers(name, *values, dtype="i8"):
    return numpy_helper.from_array(np.array(values, dtype), name)


def make(nodes, inputs, outputs, weights):
    def ports(kinds):
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in kinds.items()]

    graph = helper.make_graph(nodes, "net", ports(inputs), ports(outputs), weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images():
    """A convolution and pooling of stride 2, an enlargement, slices that count from the end, and a global pooling."""
    node = helper.make_node
    nearest = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[3, 3, 3, 3], strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Resize", ["c", "", "scales"], ["d"], **nearest),
        node("Conv", ["d", "v"], ["e"], auto_pad="SAME_UPPER"),
        node("Slice", ["e", "starts", "ends", "axes"], ["f"]),
        node("GlobalAveragePool", ["f"], ["g"]),
        node("Flatten", ["g"], ["y"]),
    ]
    weights = [
        weight("w", 16, 3, 7, 7), weight("v", 8, 16, 3, 3), numbers("scales", 1, 1, 2, 2, dtype="f4"),
        numbers("starts", 1, 0), numbers("ends", -1, 2**40), numbers("axes", 2, 3),
    ]  # fmt: skip
    inputs = {"x": ["n", 3, "height", "width"]}
    return make(nodes, inputs, {"y": ["n", 8], "f": ["n", 8, "fh", "fw"]}, weights)


def sequences():
    """Half of a sequence's length, by shape arithmetic; its last token; a product over it."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["a", "t"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "a"], ["y"]),
        node("Slice", ["y", "starts", "ends", "axes"], ["last"]),
        node("Concat", ["x", "y", "last"], ["z"], axis=1),
    ]
    weights = [
        weight("w", 16, 16),
        numbers("starts", -1),
        numbers("ends", 2**40),
        numbers("axes", 1),
    ]
    outputs = {"z": ["n", "zs", 16]}
    return make(nodes, {"x": ["n", "length", 16]}, outputs, weights)


CASES = {
    "images": (images, [(1, 3, 64, 64), (2, 3, 33, 57), (1, 3, 97, 30), (3, 3, 9, 200), (1, 3, 224, 224)]),
    "sequences": (sequences, [(1, 1, 16), (2, 7, 16), (1, 64, 16), (3, 33, 16), (0, 5, 16)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results(name):
    build, shapes = CASES[name]
    model = build()
    network, reference = sol.onnx.load(model.SerializeToString()), ReferenceEvaluator(model)
    assert "compiled as a whole" in repr(network)
    for shape in shapes:
        x = RANDOM.standard_normal(shape).astype("f4")
        results = network(x)
        results = results if isinstance(results, tuple) else (results,)
        for ours, theirs in zip(results, reference.run(None, {"x": x})):
            assert ours.shape == theirs.shape
            assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_too_small():
    """A window that does not fit is an error that names the node and the sizes."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="first")]
    inputs, outputs = {"x": ["n", 3, "h", "w_"]}, {"y": ["n", 4, "a", "b"]}
    network = sol.onnx.load(
        make(nodes, inputs, outputs, [weight("w", 4, 3, 5, 5)]).SerializeToString()
    )
    message = r"conv \(first\): a window of \[5,5\] does not fit into input \[2,3,4,9\]"
    with pytest.raises(ValueError, match=message):
        network(np.zeros((2, 3, 4, 9), "f4"))
    assert network(np.zeros((2, 3, 5, 9), "f4")).shape == (2, 4, 1, 5)


def test_unknown_to_fit():
    """A sum of sizes that are equal only for some heights is computed in a session."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["a", "", "s"], ["b"], mode="nearest",
                         coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        helper.make_node("Add", ["x", "b"], ["y"]),
    ]  # fmt: skip
    shape = ["n", 2, "h", "w"]
    model = make(nodes, {"x": shape}, {"y": shape}, [numbers("s", 1, 1, 2, 2, dtype="f4")])
    network = sol.onnx.load(model.SerializeToString())
    x = RANDOM.standard_normal((1, 2, 8, 6)).astype("f4")
    assert np.allclose(network(x), ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_program(tmp_path):
    """The program `sol` runs such a network, for the sizes of --shape."""
    onnx.save(images(), tmp_path / "net.onnx")
    argv = [PROGRAM, "run", tmp_path / "net.onnx", "--shape=2,3,40,60"]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
    assert done.returncode == 0 and "f f32[2,8,18,30]" in done.stdout
    argv = [PROGRAM, "run", tmp_path / "net.onnx", "--shape=1,3,0,60"]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
    assert done.returncode != 0 and "no rows or columns in input [1,3,0,60]" in done.stderr


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_index_of_the_largest_of_no_values(op):
    node = helper.make_node(op, ["x"], ["y"], axis=1, name="best", keepdims=0)
    model = make([node], {"x": ["n", "length"]}, {"y": ["n"]}, [])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    net = sol.onnx.load(model.SerializeToString())
    assert net(np.zeros((0, 3), "f4")).shape == (0,)
    with pytest.raises(ValueError, match=r"\(best\): no values along the axis, of input \[2,0\]"):
        net(np.zeros((2, 0), "f4"))
    np.testing.assert_array_equal(net(np.ones((2, 3), "f4")), [0, 0])

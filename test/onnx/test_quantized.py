"""QDQ models against onnx.reference: products between DequantizeLinear and QuantizeLinear are computed with integers."""

import numpy as np
import onnx
import onnx.helper as h
import onnx.reference
import pytest
from onnx import TensorProto, numpy_helper

import sol.onnx as sol

rng = np.random.default_rng(0)


def make(shape, weight, kind, per_channel, is_signed, relu=False, bias=False):
    """x -> quantize, dequantize -> MatMul or Conv by a dequantized weight -> [Add] [Relu] -> quantize, dequantize -> y."""
    k = weight[1] if kind == "MatMul" else weight[0]
    axis = 1 if kind == "MatMul" else 0
    scale = rng.uniform(0.001, 0.01, k if per_channel else ()).astype(np.float32)
    code = np.int8 if is_signed else np.uint8
    values = {
        "w": rng.integers(-127, 128, weight).astype(np.int8), "ws": scale, "wz": np.zeros(scale.shape, np.int8),
        "xs": np.float32(0.02), "xz": code(3), "ys": np.float32(0.05), "yz": code(10),
        "b": rng.normal(size=(k, *[1] * (len(shape) - 2)) if kind == "Conv" else k).astype(np.float32),
    }  # fmt: skip
    node, last = h.make_node, "m"
    pads = {"pads": [1, 1, 1, 1]} if kind == "Conv" else {}
    nodes = [
        node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=axis),
        node(kind, ["xd", "wd"], ["m"], **pads),
    ]
    for op, others in ([("Add", ["b"])] if bias else []) + ([("Relu", [])] if relu else []):
        nodes.append(node(op, [last, *others], [op]))
        last = op
    nodes.append(node("QuantizeLinear", [last, "ys", "yz"], ["yq"]))
    nodes.append(node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]))
    x, y = (h.make_tensor_value_info(n, TensorProto.FLOAT, [None] * len(shape)) for n in "xy")
    x = h.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    parameters = [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    graph = h.make_graph(nodes, "g", [x], [y], parameters)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 19)], ir_version=9)


CASES = [
    ([4, 45], (45, 37), "MatMul"), ([1, 100], (100, 200), "MatMul"), ([2, 3, 64], (64, 17), "MatMul"),
    ([1, 3, 9, 9], (20, 3, 3, 3), "Conv"), ([2, 33, 6, 5], (16, 33, 3, 3), "Conv"),
]  # fmt: skip


@pytest.mark.parametrize("shape, weight, kind", CASES)
@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize("more", [{}, {"relu": True}, {"bias": True, "relu": True}])
def test_qdq(shape, weight, kind, is_signed, more):
    model = make(shape, weight, kind, per_channel=len(more) != 1, is_signed=is_signed, **more)
    x = rng.normal(size=shape).astype(np.float32)
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    difference = np.abs(np.asarray(sol.load(model.SerializeToString())(x)) - expected)
    assert difference.max() <= 0.0501  # one step, where a value is nearly in the middle of two
    assert (difference > 0.01).mean() < 0.01


def code_and_back(name, scale, zero):
    """Nodes that quantize ``name`` and dequantize it again, as NAMEd."""
    return [
        h.make_node("QuantizeLinear", [name, scale, zero], [f"{name}q"]),
        h.make_node("DequantizeLinear", [f"{name}q", scale, zero], [f"{name}d"]),
    ]


@pytest.mark.parametrize("groups, channels", [(1, 20), (20, 20), (17, 34), (2, 32)])
@pytest.mark.parametrize("code", [np.uint8, np.int8])
def test_residual(groups, channels, code):
    """Two convolutions of 8 bits, also grouped ones, and the sum of their results, of 8 bits too."""
    per_group = channels // groups
    values = {
        "s": np.float32(0.02), "t": np.float32(0.03), "z": code(3),
        "ws": np.float32(0.01), "wz": np.int8(0),
        "v": rng.integers(-127, 128, (channels, per_group, 3, 3)).astype(np.int8),
        "w": rng.integers(-127, 128, (channels, per_group, 1, 1)).astype(np.int8),
    }  # fmt: skip
    node = h.make_node
    nodes = [
        *code_and_back("x", "s", "z"),
        node("DequantizeLinear", ["v", "ws", "wz"], ["vd"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        node("Conv", ["xd", "vd"], ["a"], pads=[1, 1, 1, 1], group=groups),
        *code_and_back("a", "t", "z"),
        node("Conv", ["ad", "wd"], ["b"], group=groups),
        *code_and_back("b", "s", "z"),
        node("Add", ["bd", "ad"], ["y"]),
        *code_and_back("y", "t", "z"),
    ]
    x = h.make_tensor_value_info("x", TensorProto.FLOAT, [2, channels, 9, 7])
    y = h.make_tensor_value_info("yd", TensorProto.FLOAT, [None] * 4)
    parameters = [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    graph = h.make_graph(nodes, "g", [x], [y], parameters)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 19)], ir_version=9)
    x = rng.normal(size=(2, channels, 9, 7)).astype(np.float32)
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    difference = np.abs(np.asarray(sol.load(model.SerializeToString())(x)) - expected)
    assert difference.max() <= 0.0901  # three steps: of a, of b, of the sum
    assert (difference > 0.01).mean() < 0.03

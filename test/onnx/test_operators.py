"""Operators that are composed of several layers: all nodes are compiled, and the results are those of ONNX's reference."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import sol.onnx as sol

rng = np.random.default_rng(0)


def real(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def whole(*values, dtype=np.int64):
    return np.array(values, dtype)


def load(op, inputs, opset, n_out, **attributes):
    """All inputs are passed at the call; None is an input that is left out. Returns (model, network, inputs by name)."""
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    named = {name: x for name, x in zip(names, inputs, strict=True) if name}
    outputs = [f"y{i}" for i in range(n_out)]
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in named.items()
    ]
    node = helper.make_node(op, names, outputs, **attributes)
    results = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs]
    graph = helper.make_graph([node], "g", ports, results)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model, sol.load(model.SerializeToString()), named


def run(op, *inputs, opset=20, n_out=1, tolerance=1e-5, **attributes):
    model, network, named = load(op, inputs, opset, n_out, **attributes)
    got = network(*named.values())
    assert not network.counts[1], "a node is interpreted"
    expected = ReferenceEvaluator(model).run(None, named)
    for a, b in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", ["Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Atanh"])
def test_functions(op, dtype):
    run(op, rng.uniform(-0.9, 0.9, (3, 37)).astype(dtype))


def test_acosh():
    run("Acosh", rng.uniform(1, 9, (3, 37)).astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_gather_elements(axis, dtype):
    x = rng.integers(0, 9, (4, 5, 3)).astype(dtype)
    shape = [4, 5, 3]
    shape[axis] = 7
    run("GatherElements", x, rng.integers(-3, 3, shape), axis=axis)


def test_gather_nd():
    x = real(3, 4, 5)
    run("GatherND", x, rng.integers(-3, 3, (6, 2)))
    run("GatherND", x, rng.integers(0, 3, (2, 6, 3)))
    run("GatherND", x, rng.integers(0, 3, (3, 6, 1)), batch_dims=1)


@pytest.mark.parametrize(
    "op, inputs",
    [
        ("GatherElements", (real(3, 2), whole([0, 2]))),
        ("GatherElements", (real(3, 2), whole([0, 0], [-3, 0]))),
        ("GatherND", (real(3, 2), whole([0, 2], [0, 0]))),
        ("NegativeLogLikelihoodLoss", (real(3, 2), whole(0, 1, 2))),
    ],
)
def test_index_out_of_its_dim(op, inputs):
    """An index beyond its dim may still be an element of the table; it must not be read."""
    attributes = {"axis": 1} if op == "GatherElements" else {}
    _, network, named = load(op, inputs, 20, 1, **attributes)
    with pytest.raises(IndexError, match="an index is outside of its dim"):
        network(*named.values())


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis):
    index = rng.integers(-6, 6, (2, 3))  # beyond the depth: no position
    run("OneHot", index, np.array(5), real(2), axis=axis)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [None, 2, -100])
def test_losses(reduction, ignored):
    more = {} if ignored is None else {"ignore_index": ignored}
    target = rng.integers(0, 5, (3, 4))
    if ignored is not None:
        target[0, 1] = ignored
    for weight in ([], [rng.uniform(0.5, 1, 5).astype(np.float32)]):
        run(
            "NegativeLogLikelihoodLoss", real(3, 5, 4), target, *weight, reduction=reduction, **more
        )
        run("SoftmaxCrossEntropyLoss", real(3, 5, 4), target, *weight, reduction=reduction, **more)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_last_extreme(op, axis):
    x = whole([1, 3, 3, 1], [3, 1, 1, 3], dtype=np.float32)
    run(op, x, axis=axis, select_last_index=1, keepdims=0)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative_sums(exclusive, reverse):
    for axis in (0, 1, 2):
        x = real(3, 4, 2, dtype=np.float64)
        run("CumSum", x, np.array(axis), exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode, padding_mode, align_corners):
    if mode == "cubic" and padding_mode == "border":
        return  # ONNX's reference moves the position into the image; PyTorch and SOL move each neighbour
    grid = rng.uniform(-1.4, 1.4, (2, 3, 4, 2)).astype(np.float32)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    run("GridSample", real(2, 3, 5, 6), grid, tolerance=1e-4, **attributes)


def test_sum_pools():
    x = real(2, 3, 9, 8)
    run("LpPool", x, kernel_shape=[3, 2], strides=[2, 1], p=3)
    run("AveragePool", x, kernel_shape=[3, 2], dilations=[2, 3], strides=[1, 2])
    run("AveragePool", x, kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 1, 1])


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk", [(3, 4), (4, 5)]),
        ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("bhwd,hkd->bhwk", [(2, 3, 4, 5), (3, 6, 5)]),
        ("bii->bi", [(2, 3, 3)]),
        ("ij->ji", [(3, 4)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]),
        ("ij,k->i", [(2, 3), (4,)]),
    ],
)
def test_einsum(equation, shapes):
    run("Einsum", *[real(*shape) for shape in shapes], equation=equation)


def test_sources():
    run("EyeLike", real(4, 6), k=1)
    run("EyeLike", real(4, 6), k=-2, dtype=TensorProto.INT64)
    run("Range", np.float32(1), np.float32(9.5), np.float32(2.5))
    run("CenterCropPad", real(5, 8, 3), whole(8, 5), axes=[0, 1], opset=18)


@pytest.mark.parametrize("axis", [1, 2])
def test_dft(axis):
    run("DFT", real(2, 6, 5, 2), None, np.array(axis), tolerance=1e-4)
    run("DFT", real(2, 6, 5, 1), None, np.array(axis), onesided=1, tolerance=1e-4)

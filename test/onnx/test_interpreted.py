"""Interpreted operators that have layers: element types that layers do not have, values that are kept for later runs, limits."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from test_session import check, load, make_model, real, rng, run, whole

import sol.onnx as sol

UNSIGNED = [np.uint16, np.uint32, np.uint64]
RARE = [
    *UNSIGNED,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.int4,
    ml_dtypes.uint4,
    np.object_,
]


def values(dtype, *shape):
    n = int(np.prod(shape))
    if dtype is np.object_:
        return np.array([f"text {i}" for i in range(n)], dtype=object).reshape(shape)
    return (np.arange(n) % 7).astype(dtype).reshape(shape)


def moved(op, inputs, expected, **attributes):
    got = run(op, *inputs, **attributes)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", RARE)
def test_moves_of_rare_types(dtype):
    x, y = values(dtype, 3, 4), values(dtype, 2, 4)
    moved("Transpose", [x], x.T)
    moved("Reshape", [x, whole(2, -1)], x.reshape(2, 6))
    moved("Concat", [x, y, x], np.concatenate([x, y, x]), axis=0)
    moved("Slice", [x, whole(2), whole(-9), whole(0), whole(-1)], x[2::-1])
    moved("Gather", [x, whole(2, -3)], x[[2, 0]])
    moved("Expand", [x[:1], whole(5, 1, 4)], np.broadcast_to(x[:1], (5, 1, 4)))
    moved("Tile", [x, whole(2, 2)], np.tile(x, (2, 2)))
    keep = rng.random((3, 4)) < 0.5
    moved("Where", [keep, x, x[::-1]], np.where(keep, x, x[::-1]))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_padding_of_rare_types(dtype):
    x = values(dtype, 2, 3)
    moved("Pad", [x, whole(0, 1, 1, 0)], np.pad(x, [(0, 1), (1, 0)]))
    fill = np.array(5, dtype)
    moved("Pad", [x, whole(0, 1, 1, 0), fill], np.pad(x, [(0, 1), (1, 0)], constant_values=5))


def test_padding_of_strings():
    x = values(np.object_, 2)
    assert run("Pad", x, whole(1, 0)).tolist() == ["", "text 0", "text 1"]
    fill = np.array("fill", dtype=object)
    assert run("Pad", x, whole(0, 2), fill).tolist() == ["text 0", "text 1", "fill", "fill"]


def test_shape_of_strings():
    assert run("Shape", values(np.object_, 2, 3)).tolist() == [2, 3]


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod", "BitwiseXor", "Max"])
def test_unsigned_integers(op, dtype):
    top = min(np.iinfo(dtype).max, 2**63 - 1)
    x, y = (rng.integers(1, top, 50, dtype=dtype, endpoint=True) for _ in range(2))
    with np.errstate(over="ignore"):
        check(op, x, y)


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_results_of_other_types(dtype):
    x = values(dtype, 4, 5)
    assert run("ArgMax", x).dtype == np.int64
    check("ReduceSum", x, whole(1))
    check("Less", x, x[::-1].copy())
    check("OneHot", values(dtype, 3), whole(4)[0], np.array([2, 9], dtype))


def test_huge_unsigned_integers_are_refused():
    x = np.array([2**63], np.uint64)
    with pytest.raises(NotImplementedError, match=r"2\^63"):
        run("Add", x, x)
    assert run("Concat", x, x, axis=0).tolist() == [2**63, 2**63]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("power", [np.int64, np.float32])
def test_powers_of_integers(dtype, power):
    x, y = np.arange(12).astype(dtype), (np.arange(12) % 5).astype(power)
    assert (
        run("Pow", x, y).tolist()
        == (x.astype(np.int64) ** y.astype(np.int64)).astype(dtype).tolist()
    )
    assert run("Pow", x, np.array(3, power)).dtype == dtype


def test_negative_powers_of_integers():
    x = whole(-2, -1, 0, 1, 2)
    assert run("Pow", x, whole(-3, -3, -3, -3, -3)).tolist() == [0, -1, 0, 1, 0]
    assert run("Pow", x, whole(-2, -2, -2, -2, -2)).tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL2", "ReduceLogSum"])
def test_reductions_of_integers_round_towards_0(op):
    x = np.array([[1, 2, 2], [7, 8, 8]], np.int32)
    exact = {
        "ReduceMean": x.mean(1),
        "ReduceL2": np.sqrt((x**2).sum(1)),
        "ReduceLogSum": np.log(x.sum(1)),
    }[op]
    assert run(op, x, whole(1), opset=18, keepdims=0).tolist() == exact.astype(int).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int64, np.bool_])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extremes_of_no_values(op, dtype):
    """The number of the element type that no value is beyond."""
    x, lowest = np.zeros((2, 0), dtype), op == "ReduceMax"
    if dtype is np.bool_:
        limit = not lowest
    elif dtype is np.float32:
        limit = -np.inf if lowest else np.inf
    else:
        limit = np.iinfo(dtype).min if lowest else np.iinfo(dtype).max
    got = run(op, x, whole(1))
    assert got.dtype == dtype and got.tolist() == [[limit], [limit]]


# ---- What is kept for later runs of a node ----


def test_kept_models_fit_shapes_types_and_values():
    """More shapes and values than models are kept; each result is that of its own call."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "times"], ["t"]),
        helper.make_node("Reshape", ["y", "t"], ["z"]),
    ]
    x = {"x": real(2, 3), "times": whole(1, 1), "y": values(np.uint32, 6)}
    net = load(nodes, x, outputs=("z", "t"))
    for turn in range(30):
        a, b = 1 + turn % 7, 1 + turn % 3
        y = values(np.uint32, a * b * 2)
        z, t = net(real(a, b), whole(2, 1), y)
        assert t.tolist() == [2 * a, b]
        assert z.dtype == np.uint32 and z.tolist() == y.reshape(2 * a, b).tolist()


def test_values_that_change_in_a_loop():
    """The bounds of the slice and the divisor differ in each iteration."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["i", "one"], ["next"]),
            helper.make_node("Slice", ["v", "i1", "end"], ["part"]),
            helper.make_node("ReduceSum", ["part"], ["sum"], keepdims=0),
            helper.make_node("Div", ["sum", "next"], ["result"]),
            helper.make_node("Unsqueeze", ["i", "zero"], ["i1"]),
            helper.make_node("Identity", ["c"], ["c2"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("c2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("result", TensorProto.INT64, []),
        ],
    )
    body.node.insert(0, body.node[4])
    del body.node[5]
    constants = {"one": whole(1)[0], "zero": whole(0), "end": whole(99)}
    loop = helper.make_node("Loop", ["n", ""], ["y"], body=body)
    v = whole(*range(3, 23))
    model = make_model([loop], {"n": whole(0)[0], "v": v}, constants=constants)
    net = sol.load(model.SerializeToString())
    for _ in range(2):
        expected = [int(v[i:].sum()) // (i + 1) for i in range(20)]
        assert net(whole(20)[0], v).tolist() == expected


# ---- Limits that only compiling has ----


def test_long_ranges():
    got = run("Range", whole(5)[0], whole(10**6)[0], whole(3)[0])
    np.testing.assert_array_equal(got, np.arange(5, 10**6, 3))
    got = run("Range", *np.float32([0, 1e5, 0.5]))
    np.testing.assert_array_equal(got, np.arange(0, 1e5, 0.5, dtype=np.float32))


def test_reflected_sound():
    x = real(1, 100_000)
    got = run("Pad", x, whole(0, 400, 0, 400), mode="reflect")
    np.testing.assert_array_equal(got, np.pad(x, [(0, 0), (400, 400)], mode="reflect"))


@pytest.mark.parametrize("seed", range(12))
def test_transposed_convolutions_over_three_dims(seed):
    draw = np.random.default_rng(seed)
    groups, per, out = (int(draw.integers(1, 3)) for _ in range(3))
    kernel, stride, dilation = (draw.integers(1, 4, 3).tolist() for _ in range(3))
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    pads = [int(draw.integers(0, r + 1)) // 2 for r in reach * 2]
    more = [int(draw.integers(0, s)) for s in stride]
    x = real(2, groups * per, *draw.integers(2, 5, 3).tolist())
    weight, bias = real(groups * per, out, *kernel), real(groups * out)
    attributes = {
        "strides": stride,
        "dilations": dilation,
        "pads": pads,
        "output_padding": more,
        "group": groups,
    }
    named = {"x0": x, "x1": weight, "x2": bias}
    node = helper.make_node("ConvTranspose", list(named), ["y"], **attributes)
    model = make_model([node], named)
    got = sol.load(model.SerializeToString())(*named.values())
    if groups == 1:  # the reference does not know groups
        expected = ReferenceEvaluator(model).run(None, named)[0]
    else:
        each = [
            sol.load(
                make_model(
                    [
                        helper.make_node(
                            "ConvTranspose", list(named), ["y"], **attributes | {"group": 1}
                        )
                    ],
                    named,
                ).SerializeToString()
            )(
                x[:, g * per : (g + 1) * per].copy(),
                weight[g * per : (g + 1) * per].copy(),
                bias[g * out : (g + 1) * out].copy(),
            )
            for g in range(groups)
        ]
        expected = np.concatenate(each, axis=1)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_batch_norm_in_training_measures_the_batch():
    x, one = real(4, 3, 5, 6) * 3 + 2, [real(3) for _ in range(4)]
    one[3] = np.abs(one[3])
    named = {f"x{i}": v for i, v in enumerate([x, *one])}
    node = helper.make_node(
        "BatchNormalization", list(named), ["y", "m", "v"], training_mode=1, momentum=0.7
    )
    y, m, v = load([node], named, outputs=("y", "m", "v"), opset=15)(*named.values())
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    np.testing.assert_allclose(m, one[2] * 0.7 + mean * 0.3, rtol=1e-4)
    np.testing.assert_allclose(v, one[3] * 0.7 + var * 0.3, rtol=1e-4)
    by = (1, 3, 1, 1)
    scaled = (x - mean.reshape(by)) / np.sqrt(var.reshape(by) + 1e-5)
    np.testing.assert_allclose(
        y, scaled * one[0].reshape(by) + one[1].reshape(by), rtol=1e-3, atol=1e-4
    )

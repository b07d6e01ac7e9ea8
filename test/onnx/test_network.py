"""sol.onnx: networks called with NumPy arrays, compared with ONNX's own reference; and errors of calls."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import sol.onnx as sol

rng = np.random.default_rng(0)


def real(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def whole(*values):
    return np.array(values, np.int64)


def make_model(nodes, inputs, constants=(), outputs=("y",), opset=17, free=()):
    """``inputs``: {name: array}; names in ``free`` have an open first size. ``constants``: {name: array}."""

    def port(name, x):
        shape = list(x.shape)
        if name in free:
            shape[0] = "N"
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shape)

    graph = helper.make_graph(
        nodes,
        "g",
        [port(*item) for item in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(x, name) for name, x in dict(constants).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def check(model, inputs, tolerance=1e-5):
    network = sol.load(model.SerializeToString())
    got = network(**inputs)
    assert not network.counts[1], f"{network.counts[1]} nodes are interpreted, not compiled"
    expected = ReferenceEvaluator(model).run(None, inputs)
    for a, b in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * abs(b).max(initial=1e-6))


def run(op, inputs, constants=(), opset=17, n_out=1, tolerance=1e-5, **attributes):
    """Runs one node, with inputs x0, x1, .. and initializers c0, c1, .., and compares with the reference."""
    inputs = {f"x{i}": x for i, x in enumerate(inputs)}
    constants = {f"c{i}": x for i, x in enumerate(constants)}
    outputs = [f"y{i}" for i in range(n_out)]
    node = helper.make_node(op, [*inputs, *constants], outputs, **attributes)
    check(make_model([node], inputs, constants, outputs, opset), inputs, tolerance)


# ---- Operators ----


@pytest.mark.parametrize("opset", [11, 17, 22])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 2, 0, 1], "strides": [2, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "VALID"},
        {"dilations": [2, 1], "kernel_shape": [3, 2]},
    ],
)
def test_conv(attributes, opset):
    run("Conv", [real(2, 3, 9, 8)], [real(5, 3, 3, 2), real(5)], opset, **attributes)


def test_conv_of_groups_and_rows():
    run("Conv", [real(1, 6, 7, 7)], [real(4, 3, 3, 3)], group=2)
    run("Conv", [real(2, 3, 17)], [real(4, 3, 5)], pads=[2, 1], strides=[2])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 3]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    ],
)
def test_pools(op, attributes):
    run(op, [real(2, 3, 9, 8)], **attributes)


def test_other_windows():
    run(
        "AveragePool",
        [real(1, 2, 9, 9)],
        kernel_shape=[3, 3],
        pads=[2, 2, 2, 2],
        count_include_pad=1,
    )
    run("MaxPool", [real(1, 2, 9, 9)], kernel_shape=[3, 3], pads=[2, 2, 2, 2])
    run("MaxPool", [real(1, 2, 12)], kernel_shape=[3], strides=[2])
    run("GlobalAveragePool", [real(2, 3, 5, 4)])
    run("GlobalMaxPool", [real(2, 3, 5, 4)])
    run("LRN", [real(7, 7, 5, 4)], size=5, alpha=0.1, beta=0.6, bias=1.5)


@pytest.mark.parametrize("a, b", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(a, b):
    x = real(7, 5) if a else real(5, 7)
    w = real(4, 7) if b else real(7, 4)
    run("Gemm", [x], [w, real(4)], transA=a, transB=b)
    run("Gemm", [x], [w, real(5, 1)], transA=a, transB=b, alpha=0.5, beta=2.0)


def test_products_and_normalization():
    run("MatMul", [real(2, 3, 5)], [real(5, 4)])
    statistics = [real(3), real(3), real(3), np.abs(real(3)) + 0.5]
    run("BatchNormalization", [real(2, 3, 4, 4)], statistics, epsilon=0.01)
    run("InstanceNormalization", [real(2, 3, 4, 4)], [real(3), real(3)])
    run("LayerNormalization", [real(2, 3, 4)], [real(3, 4), real(3, 4)], axis=1)
    for opset, axis in (11, 2), (17, 1), (17, -1):
        run("Softmax", [real(2, 3, 4)], opset=opset, axis=axis)
        run("LogSoftmax", [real(2, 3, 4)], opset=opset, axis=axis)


def test_old_softmax():
    """Before opset 13 all dims from the axis on are treated as one. The reference has only the new definition."""
    x = real(2, 3, 4)
    model = make_model([helper.make_node("Softmax", ["x"], ["y"], axis=1)], {"x": x}, opset=11)
    powers = np.exp(x - x.max((1, 2), keepdims=True))
    expected = powers / powers.sum((1, 2), keepdims=True)
    np.testing.assert_allclose(sol.load(model.SerializeToString())(x), expected, rtol=1e-5)


UNARY = "Relu Sigmoid Tanh Exp Abs Neg Erf Softplus Softsign HardSwish Mish Selu Celu Elu LeakyRelu"


@pytest.mark.parametrize("op", [*UNARY.split(), "HardSigmoid", "Identity", "Dropout"])
def test_unary(op):
    run(op, [real(2, 3, 5)], opset=18)


def test_positive():
    for op in ("Log", "Sqrt", "Reciprocal"):
        run(op, [np.abs(real(2, 3)) + 0.1])
    for power in (1, 2, 3, 4, 0.5, -1, -0.5):
        run("Pow", [np.abs(real(2, 3)) + 0.1], [np.array(power, np.float32)])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum"])
def test_binary(op):
    run(op, [real(2, 3, 4), real(3, 1)])
    run(op, [real(2, 3, 4)], [np.float32(1.5).reshape(())])
    run(op, [real(4)], [real(2, 1)])


def test_old_broadcast():
    """Before opset 7 an attribute gave the axis at which the second operand begins. The reference does not support it."""
    x, b = real(2, 3, 4, 5), real(3, 4)
    node = helper.make_node("Add", ["x", "b"], ["y"], axis=1, broadcast=1)
    model = make_model([node], {"x": x}, {"b": b}, opset=6)
    np.testing.assert_array_equal(sol.load(model.SerializeToString())(x), x + b[:, :, None])


def test_clip():
    run("Clip", [real(4, 5)], [np.array(-0.5, np.float32), np.array(0.5, np.float32)])
    run("Clip", [real(4, 5)], opset=10, max=0.25)
    run("PRelu", [real(2, 3, 4)], [real(3, 1)])


@pytest.mark.parametrize("op", "Mean Sum Max Min SumSquare L1 L2 LogSumExp".split())
def test_reductions(op):
    run(f"Reduce{op}", [real(2, 3, 4)], opset=11, axes=[1, -1], keepdims=0)
    run(f"Reduce{op}", [real(2, 3, 4)], [whole(0, 2)], opset=18)
    run(f"Reduce{op}", [real(2, 3, 4)], opset=18, noop_with_empty_axes=0)


def test_shapes():
    run("Reshape", [real(2, 3, 4)], [whole(0, -1)])
    run("Flatten", [real(2, 3, 4)], axis=2)
    run("Squeeze", [real(1, 3, 1)], [whole(0)])
    run("Squeeze", [real(1, 3, 1)], opset=11, axes=[2])
    run("Unsqueeze", [real(2, 3)], [whole(0, -1)])
    run("Transpose", [real(2, 3, 4)], perm=[2, 0, 1])
    run("Transpose", [real(2, 3, 4)])
    run("Concat", [real(2, 3), real(2, 5)], axis=-1)
    run("Split", [real(2, 7)], [whole(2, 5)], n_out=2, axis=1)
    run("Split", [real(2, 7)], opset=18, n_out=3, axis=1, num_outputs=3)
    run("Slice", [real(5, 6)], [whole(1, -4), whole(4, 100), whole(0, 1), whole(1, 2)])
    run("Slice", [real(5, 6)], opset=9, starts=[1], ends=[-1], axes=[1])
    run("Expand", [real(3, 1)], [whole(2, 1, 4)])
    run("Pad", [real(2, 3, 4)], [whole(0, 1, 2, 0, 0, 1), np.array(1.5, np.float32)])
    run("DepthToSpace", [real(1, 8, 2, 3)], blocksize=2, mode="DCR")
    run("DepthToSpace", [real(1, 8, 2, 3)], blocksize=2, mode="CRD")
    run("SpaceToDepth", [real(1, 2, 4, 6)], blocksize=2)


@pytest.mark.parametrize(
    "a, b",
    [
        ((2, 3, 4, 5), (2, 3, 5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((4, 5), (2, 5, 6)),
        ((5,), (2, 5, 6)),
        ((2, 4, 5), (5,)),
        ((5,), (5,)),
        ((1, 12, 64, 64), (1, 12, 64, 128)),
    ],
)
def test_matmul(a, b):
    run("MatMul", [real(*a), real(*b)])
    run("MatMul", [real(*a)], [real(*b)])


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons(op):
    """Comparisons whose truth values are not outputs: Where reads them, or Cast."""
    nodes = [
        helper.make_node(op, ["a", "b"], ["c"]),
        helper.make_node("Where", ["c", "a", "k"], ["y"]),
        helper.make_node("Cast", ["c"], ["z"], to=TensorProto.FLOAT),
    ]
    a, b = real(3, 4), real(4)
    a[0] = b
    a[1, 0] = np.nan
    check(make_model(nodes, {"a": a, "b": b}, {"k": real(3, 1)}, ("y", "z")), {"a": a, "b": b})


def test_truth():
    nodes = [
        helper.make_node("Less", ["a", "b"], ["p"]),
        helper.make_node("IsNaN", ["a"], ["q"]),
        helper.make_node("Not", ["q"], ["r"]),
        helper.make_node("And", ["p", "r"], ["s"]),
        helper.make_node("Xor", ["p", "q"], ["t"]),
        helper.make_node("Or", ["s", "t"], ["u"]),
        helper.make_node("And", ["u", "mask"], ["v"]),
        helper.make_node("Where", ["v", "a", "b"], ["y"]),
    ]
    a, b = real(5, 4), real(5, 4)
    mask = np.tril(np.ones((5, 4), bool))
    check(make_model(nodes, {"a": a, "b": b}, {"mask": mask}), {"a": a, "b": b})


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper):
    for k in (0, 1, -2, 9, -9):
        run("Trilu", [real(2, 4, 5)], [np.array(k)], upper=upper)


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(axis, dtype):
    index = np.array([[0, 3], [-1, 2], [1, -4]], dtype)
    run("Gather", [real(4, 4, 4), index], axis=axis)
    run("Gather", [real(4, 4, 4)], [index], axis=axis)
    run("Gather", [real(4, 4, 4)], [np.array(-1, dtype)], axis=axis)
    run("Gather", [real(4, 4, 4)], [np.array([0, 2], dtype)], axis=axis)


def test_embedding():
    """An index outside of the table is an error of the call, in any thread."""
    words, index = real(50, 7), rng.integers(-50, 50, (3, 400))
    nodes = [
        helper.make_node("Gather", ["words", "index"], ["e"]),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    model = make_model(nodes, {"index": index}, {"words": words}, free=["index"])
    net = sol.load(model.SerializeToString())
    np.testing.assert_array_equal(net(index), np.maximum(words[index], 0))
    for wrong in (50, -51, 2**40):
        index[1, 333] = wrong
        with pytest.raises(IndexError, match=f"number {wrong}, but there are 50 rows"):
            net(index)


def test_tile():
    run("Tile", [real(2, 3)], [whole(1, 4)])
    run("Tile", [real(2, 1, 3)], [whole(3, 2, 2)])


# ---- Other sizes ----


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 0, 2, 0, 1, 1], "strides": [2, 1, 2]},
        {"dilations": [2, 1, 1], "group": 2},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2, 3]},
    ],
)
def test_conv_of_volumes(attributes):
    groups = attributes.get("group", 1)
    x, w = real(2, 4, 6, 5, 7), real(6, 4 // groups, 3, 2, 3)
    run("Conv", [x], [w, real(6)], **attributes)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 0, 1, 1, 1, 0], "strides": [2, 1, 2]},
        {"strides": [2, 2, 2], "ceil_mode": 1},
    ],
)
def test_pools_of_volumes(op, attributes):
    run(op, [real(2, 3, 6, 7, 5)], kernel_shape=[3, 2, 2], **attributes)


def test_wide_padding():
    run("AveragePool", [real(1, 2, 9, 9)], kernel_shape=[3, 3], pads=[2, 2, 2, 2], opset=19)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"strides": [2, 3], "pads": [1, 0, 1, 2]},
        {"strides": [3, 2], "output_padding": [1, 1]},
        {"dilations": [2, 2], "pads": [3, 1, 0, 2]},
        {"strides": [3, 2], "output_shape": [10, 8]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ],
)
def test_transposed_conv(attributes):
    x, w, b = real(2, 4, 3, 3), real(4, 3, 3, 3), real(3)
    run("ConvTranspose", [x], [w, b], **attributes)
    run("ConvTranspose", [x, w], [], **attributes)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads(mode):
    x = real(3, 4, 5)
    for pads in ([0, 1, 2, 0, 2, 1], [2, 0, 1, 1, 0, 2]):
        run("Pad", [x], [whole(*pads)], opset=19, mode=mode)
    inputs = ["x", "p", "", "a"] if mode != "constant" else ["x", "p", "v", "a"]
    node = helper.make_node("Pad", inputs, ["y"], mode=mode)
    constants = {"p": whole(1, -2), "v": np.float32(0.5).reshape(()), "a": whole(-3)}
    got = sol.load(make_model([node], {"x": x}, constants, opset=19).SerializeToString())(x)
    more = {"constant_values": 0.5} if mode == "constant" else {}
    np.testing.assert_array_equal(got, np.pad(x[:1], [(1, 0), (0, 0), (0, 0)], mode, **more))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
)
def test_resize(mode, coordinates):
    empty = np.zeros(0, np.float32)
    for scales in ([1, 1, 2.5, 0.6], [1, 1, 0.5, 3]):
        run(
            "Resize",
            [real(1, 2, 5, 6)],
            [empty, np.array(scales, np.float32)],
            opset=18,
            mode=mode,
            coordinate_transformation_mode=coordinates,
        )


def test_resize_to_sizes():
    node = helper.make_node("Resize", ["x", "", "", "n"], ["y"], mode="linear")
    check(
        make_model([node], {"x": real(1, 2, 5, 6)}, {"n": whole(1, 2, 8, 3)}),
        {"x": real(1, 2, 5, 6)},
    )


# ---- Networks ----


def flatten_as_exporters_do():
    """A model that flattens x with an open batch, by Shape, Gather, arithmetic and Reshape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Mul", ["three", "four"], ["rest"]),
        helper.make_node("Unsqueeze", ["n", "zero1"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["y"]),
    ]
    constants = {
        "zero": np.array(0),
        "zero1": whole(0),
        "three": whole(3),
        "four": whole(4),
        "w": real(12, 5),
    }
    return make_model(nodes, {"x": real(2, 3, 4)}, constants, free=["x"])


@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_open_batch(batch):
    check(flatten_as_exporters_do(), {"x": real(batch, 3, 4)})


def test_file_and_external_data(tmp_path):
    model, x = flatten_as_exporters_do(), real(3, 3, 4)
    expected = ReferenceEvaluator(model).run(None, {"x": x})[0]
    path = tmp_path / "model.onnx"
    options = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save_model(model, path, **options, convert_attribute=False)
    np.testing.assert_allclose(sol.load(path)(x), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="external data"):
        sol.load(path.read_bytes())
    np.testing.assert_allclose(sol.load(path.read_bytes(), folder=tmp_path)(x), expected, rtol=1e-5)


def test_arrays_that_are_not_contiguous():
    net, x = sol.load(flatten_as_exporters_do().SerializeToString()), real(6, 3, 8)
    np.testing.assert_array_equal(net(x[::2, :, ::2]), net(x[::2, :, ::2].copy()))


def test_results_are_new_memory():
    net = sol.load(flatten_as_exporters_do().SerializeToString())
    first, second = net(real(1, 3, 4)), net(real(1, 3, 4))
    assert not np.shares_memory(first, second) and not np.array_equal(first, second)


def test_report(tmp_path):
    net = sol.load(flatten_as_exporters_do().SerializeToString())
    net.report(real(2, 3, 4), path=tmp_path / "page.html", runs=2)
    assert "linear" in (tmp_path / "page.html").read_text()


# ---- Bad input ----


def test_bad_arrays():
    net = sol.load(flatten_as_exporters_do().SerializeToString())
    for call, error, words in (
        (lambda: net(), TypeError, "expected the inputs"),
        (lambda: net(real(1, 3, 4), real(1)), TypeError, "expected the inputs"),
        (lambda: net(z=real(1, 3, 4)), TypeError, "no input z"),
        (lambda: net(real(1, 3, 4), x=real(1, 3, 4)), TypeError, "expected the inputs"),
        (lambda: net([1.0]), TypeError, "input x is no NumPy array but a list"),
        (lambda: net(np.zeros((1, 3, 4))), TypeError, "input x is float64, not float32"),
        (lambda: net(real(1, 3, 5)), ValueError, r"\[1, 3, 5\], not \[N, 3, 4\]"),
        (lambda: net(real(3, 4)), ValueError, "input x has the shape"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_bad_files(tmp_path):
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(ValueError, match="empty.onnx is empty"):
        sol.load(tmp_path / "empty.onnx")
    (tmp_path / "noise.onnx").write_bytes(bytes(range(7, 256)))
    with pytest.raises(ValueError, match="noise.onnx: "):
        sol.load(tmp_path / "noise.onnx")
    with pytest.raises(NotImplementedError, match="node 0, Bernoulli"):
        sol.load(
            make_model(
                [helper.make_node("Bernoulli", ["x"], ["y"])], {"x": real(1)}
            ).SerializeToString()
        )

"""Values at the limits of float32, rows of infinities, and the order of rounding, in compiled and in interpreted networks."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from test_session import load, make_model, real

INF, NAN = np.inf, np.nan
ROWS = np.array(
    [
        [100, 100],
        [-200, -200],
        [3e38, -3e38],
        [-INF, -INF],
        [-INF, 1],
        [INF, 1],
        [INF, -INF],
        [INF, INF],
        [NAN, 1],
        [NAN, INF],
    ]
)
KINDS = ["float32", "float64"]  # the first is compiled, the second is interpreted


def run(op, x, opset=17, **attributes):
    return load([helper.make_node(op, ["x"], ["y"], **attributes)], {"x": x}, opset=opset)(x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keeps", [0, 1])
def test_log_of_sums_of_exponentials(kind, keeps):
    x = ROWS.astype(kind)
    with np.errstate(all="ignore"):
        expected = np.logaddexp(x[:, 0], x[:, 1])
    got = run("ReduceLogSumExp", x, axes=[1], keepdims=keeps)
    assert got.shape == ((10, 1) if keeps else (10,))
    np.testing.assert_allclose(got.ravel(), expected, rtol=1e-6)
    total = run("ReduceLogSumExp", x[:2], keepdims=0)
    np.testing.assert_allclose(total, 100 + np.log(2), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_of_such_rows(kind):
    """The softmax of a row of -infinity is 0 / 0 by ONNX's definition."""
    x = np.delete(ROWS.astype(kind), 2, 0)
    for op in ("Softmax", "LogSoftmax"):
        node = helper.make_node(op, ["x"], ["y"])
        with np.errstate(all="ignore"):
            expected = ReferenceEvaluator(make_model([node], {"x": x})).run(None, {"x": x})[0]
        np.testing.assert_allclose(run(op, x), expected, rtol=1e-6)


def test_dynamic_quantization():
    """Scale, zero point and values are exactly equal to the reference, which rounds to float32 at each step."""
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    more = {"outputs": ("y", "scale", "zero")}
    model = make_model([node], {"x": real(64)}, **more)
    net, reference = load([node], {"x": real(64)}, **more), ReferenceEvaluator(model)
    draws = [real(64) * 10.0**k + shift for k in range(-6, 6) for shift in (0, -1, 3) for _ in "ab"]
    ends = [np.zeros(3), np.full(3, 2.5), np.full(3, -2.5), [0.5, 1.5, 255], [-127.5, 127.5, 0]]
    for x in [np.float32(x) for x in draws + ends]:
        for got, expected in zip(net(x), reference.run(None, {"x": x}), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)


def attend(q, mask, inputs, **attributes):
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], **attributes)
    model = make_model([node], inputs, opset=24)
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(model).run(None, {**inputs, "q": q, "m": mask})[0]
    net = load([node], inputs, opset=24)
    np.testing.assert_allclose(net(q, inputs["k"], inputs["v"], mask), expected, atol=1e-6)
    return expected


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_to_nothing(causal):
    """A row is 0 only if the mask hides all of it. NaN in any other row stays NaN."""
    inputs = {name: real(1, 2, 4, 8) for name in "qkv"} | {"m": np.zeros((4, 4), np.float32)}
    mask, q = inputs["m"].copy(), inputs["q"].copy()
    mask[1] = -INF
    assert not attend(q, mask, inputs, is_causal=causal)[0, 0, 1].any()
    q[0, 0, 1:3] = NAN
    y = attend(q, mask, inputs, is_causal=causal)
    assert not y[0, 0, 1].any() and np.isnan(y[0, 0, 2]).all()


def test_a_softmax_over_a_mask_is_no_attention():
    """A Softmax over a mask gives 0 / 0, as ONNX defines it, where Attention gives 0."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Add", ["s", "m"], ["t"]),
        helper.make_node("Softmax", ["t"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs = {"q": real(1, 4, 8), "k": real(1, 8, 4), "v": real(1, 4, 8)}
    mask = np.zeros((4, 4), np.float32)
    mask[1] = -INF
    net = load(nodes, {**inputs, "m": mask})
    y = net(*inputs.values(), mask)
    assert np.isnan(y[0, 1]).all() and np.isfinite(y[0, [0, 2, 3]]).all()
    assert net.counts == (4, 0)


def test_resize_compiles_with_an_empty_region():
    x, none = real(1, 2, 4, 4), np.zeros(0, np.float32)
    node = helper.make_node("Resize", ["x", "roi", "s"], ["y"], mode="linear")
    scales = np.float32([1, 1, 2, 2])
    inputs = {"x": x, "roi": none}
    for given, constants in [(["x"], {"roi": none, "s": scales}), (["x", "roi"], {"s": scales})]:
        ports = {name: inputs[name] for name in given}
        net = load([node], ports, constants=constants)
        model = make_model([node], ports, constants=constants)
        expected = ReferenceEvaluator(model).run(None, ports)[0]
        np.testing.assert_allclose(net(*ports.values()), expected, rtol=1e-5, atol=1e-6)
        assert net.counts == (1, 0)


@pytest.mark.parametrize("op", ["Softmax", "ReduceMax", "ReduceLogSumExp", "ReduceSum"])
def test_of_no_values(op):
    """A tensor without values is interpreted. The file is valid, also if layers do not support such a tensor."""
    x = np.zeros((2, 0), np.float32)
    got = load([helper.make_node(op, ["x"], ["y"])], {"x": x}, constants={})(x)
    node = helper.make_node(op, ["c"], ["y"])
    other = load([node], {}, constants={"c": x})()
    np.testing.assert_array_equal(got, other)
    expected = {"ReduceSum": 0, "Softmax": np.zeros((2, 0))}.get(op, -INF)
    np.testing.assert_array_equal(got.ravel(), np.ravel(expected))

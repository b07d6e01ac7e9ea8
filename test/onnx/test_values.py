"""Values at the ends of float32, whole rows of infinity, and what is rounded when: compiled and interpreted alike."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from test_mixed import load, make_model, real


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
KINDS = ["float32", "float64"]  # the one is compiled, the other interpreted


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
    """A row of -infinity alone has no softmax: ONNX's text leaves it at 0 / 0."""
    x = np.delete(ROWS.astype(kind), 2, 0)
    for op in ("Softmax", "LogSoftmax"):
        node = helper.make_node(op, ["x"], ["y"])
        with np.errstate(all="ignore"):
            expected = ReferenceEvaluator(make_model([node], {"x": x})).run(None, {"x": x})[0]
        np.testing.assert_allclose(run(op, x), expected, rtol=1e-6)


def test_dynamic_quantization():
    """Scale, zero point and values to the last digit: the reference rounds to float32 at each step."""
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    more = dict(outputs=("y", "scale", "zero"))
    model = make_model([node], {"x": real(64)}, **more)
    net, reference = load([node], {"x": real(64)}, **more), ReferenceEvaluator(model)
    draws = [real(64) * 10.0**k + shift for k in range(-6, 6) for shift in (0, -1, 3) for _ in "ab"]
    ends = [np.zeros(3), np.full(3, 2.5), np.full(3, -2.5), [0.5, 1.5, 255], [-127.5, 127.5, 0]]
    for x in [np.float32(x) for x in draws + ends]:
        for got, expected in zip(net(x), reference.run(None, {"x": x}), strict=True):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)

"""Norms, attention, activations with parameters, reductions and triangles of ONNX files, against ONNX's own reference."""

import numpy as np
import pytest
from onnx import helper
from test_network import check, make_model, real, run, whole

import sol.onnx as sol

# ---- Norms ----


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_layer_norm(axis):
    x = real(2, 3, 4) * 8 + 100  # the mean of squares minus the squared mean would have no digits
    shape = x.shape[axis:]
    run("LayerNormalization", [x], [real(*shape), real(*shape)], 17, axis=axis, tolerance=2e-5)
    run("LayerNormalization", [x], [real(*shape)], 17, axis=axis, epsilon=0.5, tolerance=2e-5)
    run("RMSNormalization", [x], [real(*shape)], 23, axis=axis, epsilon=0.5)


def test_statistics_of_layer_norm():
    run("LayerNormalization", [real(2, 3, 4)], [real(3, 4), real(3, 4)], 17, n_out=3, axis=1)


def test_group_norm():
    x = real(2, 6, 3, 5) * 8 + 100
    for groups in 1, 2, 6:
        run("GroupNormalization", [x], [real(6), real(6)], 21, num_groups=groups, tolerance=2e-5)
    run("GroupNormalization", [x], [real(2), real(2)], 18, num_groups=2, tolerance=2e-5)
    run("InstanceNormalization", [x], [real(6), real(6)], 22, epsilon=0.1, tolerance=2e-5)
    run("InstanceNormalization", [real(2, 3, 7)], [real(3), real(3)])


def test_other_norms():
    x = real(2, 3, 4, 5)
    x[0, 1] = 0
    run("LpNormalization", [x], p=2, axis=2)
    run("LpNormalization", [np.abs(x)], p=1, axis=2)  # ONNX's reference adds up negative numbers
    run("MeanVarianceNormalization", [real(2, 3, 4, 5)])
    run("MeanVarianceNormalization", [real(2, 3, 4)], axes=[1, 2])


def test_hardmax():
    x = np.round(real(2, 3, 4))  # several elements are the largest
    for opset, axis in (13, 1), (13, -1), (11, 2):
        run("Hardmax", [x], opset=opset, axis=axis)


def test_old_hardmax():
    """Before opset 13, it is over all dims from the axis on, unlike in ONNX's reference."""
    x = np.round(real(2, 3, 4))
    node = helper.make_node("Hardmax", ["x"], ["y"], axis=1)
    network = sol.load(make_model([node], {"x": x}, opset=11).SerializeToString())
    expected = np.eye(12, dtype=np.float32)[x.reshape(2, 12).argmax(1)]
    np.testing.assert_array_equal(network(x=x).reshape(2, 12), expected)
    assert not network.counts[1]


# ---- Attention ----


def attention(*inputs, opset=23, **attributes):
    run("Attention", inputs, opset=opset, **attributes)


def test_attention():
    attention(real(2, 3, 4, 8), real(2, 3, 5, 8), real(2, 3, 5, 6))
    attention(real(2, 3, 4, 8), real(2, 3, 5, 8), real(2, 3, 5, 6), scale=0.3, is_causal=1)
    attention(real(2, 3, 4, 8), real(2, 3, 5, 8), real(2, 3, 5, 6), softcap=2.0)


def test_attention_of_joined_heads():
    attention(real(2, 4, 24), real(2, 5, 24), real(2, 5, 12), q_num_heads=3, kv_num_heads=3)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_grouped_heads(causal):
    attention(real(2, 6, 4, 8), real(2, 2, 5, 8), real(2, 2, 5, 3), is_causal=causal)
    heads = {"q_num_heads": 6, "kv_num_heads": 2}
    attention(real(2, 4, 48), real(2, 5, 16), real(2, 5, 6), is_causal=causal, **heads)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 1, 5), (2, 1, 4, 5)])
def test_masked_attention(shape):
    q, k, v = real(2, 3, 4, 8), real(2, 3, 5, 8), real(2, 3, 5, 6)
    attention(q, k, v, real(*shape))
    mask = real(*shape) > 0
    mask[..., 0] = True  # ONNX's reference gives NaN for a row that sees nothing
    attention(q, k, v, mask)


def test_attention_of_nothing():
    """A row that sees no key gives 0."""
    names = ["q", "k", "v", "mask"]
    inputs = dict(zip(names, [real(1, 1, 2, 4), real(1, 1, 3, 4), real(1, 1, 3, 4)]))
    inputs["mask"] = np.array([[False] * 3, [True] * 3])
    model = make_model([helper.make_node("Attention", names, ["y"])], inputs, opset=23)
    network = sol.load(model.SerializeToString())
    y = network(**inputs)
    assert not network.counts[1] and not y[0, 0, 0].any() and y[0, 0, 1].all()


def test_keys_and_values_as_outputs():
    run("Attention", [real(2, 3, 4, 8), real(2, 3, 5, 8), real(2, 3, 5, 6)], opset=23, n_out=3)


# ---- Activations ----


@pytest.mark.parametrize(
    "op, attributes",
    [
        ("Selu", {"alpha": 1.5, "gamma": 0.5}),
        ("Celu", {"alpha": 0.5}),
        ("Elu", {"alpha": 0.5}),
        ("Softsign", {}),
        ("ThresholdedRelu", {"alpha": 0.2}),
        ("Shrink", {"lambd": 0.3}),
        ("Shrink", {"lambd": 0.3, "bias": 0.1}),
    ],
)
def test_activation(op, attributes):
    run(op, [real(2, 3, 5)], **attributes)


def test_prelu():
    run("PRelu", [real(2, 3, 4, 5)], [real(3, 1, 1)])
    run("PRelu", [real(2, 3, 5), real(5)])


# ---- Reductions, triangles, slices ----


@pytest.mark.parametrize("kind", ["L1", "L2", "LogSum", "LogSumExp", "SumSquare"])
def test_reduction(kind):
    run(f"Reduce{kind}", [np.abs(real(2, 3, 4)) + 0.1], axes=[1], keepdims=0)
    run(f"Reduce{kind}", [np.abs(real(2, 3, 4)) + 0.1], [whole(0, -1)], 18)
    if kind != "LogSumExp":  # ONNX's reference refuses this
        run(f"Reduce{kind}", [np.array(2.5, np.float32)], keepdims=0)


def test_log_sum_exp_of_infinities():
    x = real(4, 3) * 1000
    x[0, :] = -np.inf
    x[1, 1] = np.inf
    node = helper.make_node("ReduceLogSumExp", ["x"], ["y"], axes=[1], keepdims=0)
    network = sol.load(make_model([node], {"x": x}).SerializeToString())
    np.testing.assert_allclose(network(x=x), np.logaddexp.reduce(x, 1), rtol=1e-6)


@pytest.mark.parametrize("k", [None, 0, 2, -1, 100, -100, 2**62])
@pytest.mark.parametrize("upper", [0, 1])
def test_triangle(upper, k):
    run("Trilu", [real(2, 4, 5)], [] if k is None else [np.array(k)], upper=upper)


@pytest.mark.parametrize(
    "start, end, step",
    [(-1, -100, -1), (5, 0, -2), (3, 1, -1), (0, 5, -1), (-100, 100, 2), (2, -100, -(2**62))],
)
def test_slices_backwards(start, end, step):
    run("Slice", [real(6, 4)], [whole(start), whole(end), whole(0), whole(step)])


def test_open_batch():
    """Sizes that are known only at the call stay open in norms and attention."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "w"], ["a"]),
        helper.make_node("Attention", ["a", "a", "a"], ["b"], is_causal=1),
        helper.make_node("GroupNormalization", ["b", "v", "v"], ["c"], num_groups=2),
        helper.make_node("Trilu", ["c"], ["y"]),
    ]
    x = real(3, 4, 5, 8)
    model = make_model(nodes, {"x": x}, {"w": real(8), "v": real(4)}, opset=23, free=["x"])
    check(model, {"x": x})
    check(model, {"x": x[:1]})

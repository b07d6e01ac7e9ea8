"""Operators of the domain com.microsoft, which ONNX Runtime's quantization and optimizers write: results are those of formulas in
NumPy. Results of 8 bits may differ by 1 where a value is halfway between two integers."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sol.onnx as sol

rng = np.random.default_rng(0)
HIGH = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 0]}


def real(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def codes(dtype, *shape):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def f32(x):
    return np.array(x, np.float32)


def make(op, inputs, outputs=("y",), domain="com.microsoft", opset=17, n_live=1, **attributes):
    """A model of one node. The first ``n_live`` inputs are passed at the call, the others are constants, None is left out."""
    named = [("" if x is None else f"x{i}", x) for i, x in enumerate(inputs)]
    node = helper.make_node(op, [name for name, _ in named], outputs, domain=domain, **attributes)
    ports = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(x.dtype), [None, *x.shape[1:]]
        )
        for name, x in named[:n_live]
    ]
    constants = [numpy_helper.from_array(x, name) for name, x in named[n_live:] if name]
    results = [
        helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs if name
    ]
    graph = helper.make_graph([node], "g", ports, results, constants)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


def run(op, *inputs, n_live=1, **more):
    """Also checks that the node is compiled."""
    network = sol.load(make(op, inputs, n_live=n_live, **more))
    results = network(*inputs[:n_live])
    assert network.counts == (1, 0)
    return results


def same(got, expected, tolerance=1e-5):
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


# ---- Quantized numbers ----


def floats(x, scale, zero):
    return (x.astype(np.float32) - zero) * np.float32(scale)


def steps(y, scale, zero, dtype):
    limits = np.iinfo(dtype)
    return np.clip(np.rint(y / np.float32(scale)) + zero, limits.min, limits.max)


def near(got, y, scale, zero, dtype):
    """``y`` are floats, ``got`` their quantized values."""
    expected = steps(y, scale, zero, dtype)
    assert got.dtype == dtype and got.shape == expected.shape
    off = np.abs(got.astype(np.int64) - expected)
    assert off.max() <= 1 and (off > 0).mean() < 0.05


def triple(x, scale, zero):
    return [x, f32(scale), np.array(zero, x.dtype)]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op", [np.add, np.multiply])
def test_quantized_arithmetic(op, dtype):
    name = "QLinearAdd" if op is np.add else "QLinearMul"
    a, b = codes(dtype, 3, 4, 5), codes(dtype, 4, 5)
    result = [f32(0.07), np.array(5, dtype)]
    got = run(name, *triple(a, 0.02, 3), *triple(b, 0.05, 9), *result)
    near(got, op(floats(a, 0.02, 3), floats(b, 0.05, 9)), 0.07, 5, dtype)
    got = run(name, a, f32(0.02), None, b, f32(0.05), None, f32(0.07))
    near(got, op(floats(a, 0.02, 0), floats(b, 0.05, 0)), 0.07, 0, dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantized_functions(dtype):
    x = codes(dtype, 3, 40)
    y, low = floats(x, 0.05, 3), np.iinfo(dtype).min
    unit = [f32(1 / 256), np.array(low, dtype)]
    got = run("QLinearSigmoid", *triple(x, 0.05, 3), *unit)
    near(got, 1 / (1 + np.exp(-y)), 1 / 256, low, dtype)
    e = np.exp(y - y.max(1, keepdims=True))
    got = run("QLinearSoftmax", *triple(x, 0.05, 3), *unit, axis=1)
    near(got, e / e.sum(1, keepdims=True), 1 / 256, low, dtype)
    result = [f32(0.04), np.array(4, dtype)]
    got = run("QLinearLeakyRelu", *triple(x, 0.05, 3), *result, alpha=0.1)
    near(got, np.where(y < 0, np.float32(0.1) * y, y), 0.04, 4, dtype)


@pytest.mark.parametrize("channels_last", [0, 1])
def test_quantized_pools(channels_last):
    x = codes(np.uint8, 2, 5, 6, 7)
    first = np.moveaxis(x, -1, 1) if channels_last else x
    result = [f32(0.02), np.array(4, np.uint8)]

    def check(op, y, **more):
        got = run(op, *triple(x, 0.05, 3), *result, channels_last=channels_last, **more)
        near(np.moveaxis(got, -1, 1) if channels_last else got, y, 0.02, 4, np.uint8)

    y = floats(first, 0.05, 3)
    check("QLinearGlobalAveragePool", y.mean((2, 3), keepdims=True))
    pool = make("AveragePool", [y], domain="", **HIGH)
    check("QLinearAveragePool", sol.load(pool)(y), **HIGH)


def test_quantized_concat():
    a, b = codes(np.uint8, 2, 3), codes(np.uint8, 2, 5)
    node = [f32([0.05]), np.array([3], np.uint8), *triple(a, 0.04, 2), *triple(b, 0.06, 7)]
    got = run("QLinearConcat", *node, n_live=3, axis=1)
    near(got, np.hstack([floats(a, 0.04, 2), floats(b, 0.06, 7)]), 0.05, 3, np.uint8)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("is_float", [False, True])
def test_quantized_gemm(turned, is_float):
    a, b, bias = codes(np.uint8, 5, 8), codes(np.int8, 8, 6), rng.integers(-999, 999, 6)
    scale = rng.uniform(0.001, 0.02, 6).astype(np.float32)
    y = floats(a, 0.02, 7) @ (b * scale) * 1.5 + bias * scale * np.float32(0.02) * 1.5
    columns = [b.T.copy() if turned else b, scale, np.zeros(6, np.int8), bias.astype(np.int32)]
    result = [] if is_float else [f32(0.3), np.array(128, np.uint8)]
    got = run("QGemm", *triple(a, 0.02, 7), *columns, *result, transB=turned, alpha=1.5)
    if is_float:
        same(got, y, 1e-4)
    else:
        near(got, y, 0.3, 128, np.uint8)


def test_products_of_integers():
    a, b, bias = codes(np.uint8, 2, 5, 8), codes(np.int8, 8, 6), real(6)
    scale, zero = rng.uniform(0.001, 0.02, 6).astype(np.float32), codes(np.int8, 6)
    y = floats(a, 0.02, 7) @ ((b.astype(np.float32) - zero) * scale) + bias
    columns = [b, f32(0.02), scale, np.array(7, np.uint8), zero, bias]
    same(run("MatMulIntegerToFloat", a, *columns), y, 1e-4)


def rounded(x):
    """x as DynamicQuantizeLinear rounds it."""
    unit = (max(x.max(), 0) - min(x.min(), 0)) / np.float32(255)
    zero = np.rint(-min(x.min(), 0) / unit)
    return (np.clip(np.rint(x / unit) + zero, 0, 255) - zero) * unit


def test_dynamic_products():
    x, b, scale, bias = real(2, 5, 8), codes(np.int8, 8, 6), f32(0.03), real(6)
    y = rounded(x) @ b * scale + bias
    same(run("DynamicQuantizeMatMul", x, b, scale, None, bias), y, 1e-4)


@pytest.mark.parametrize("per_gate", [False, True])
def test_dynamic_lstm(per_gate):
    x, w, r, bias = real(6, 2, 5), codes(np.int8, 2, 5, 16), codes(np.int8, 2, 4, 16), real(2, 32)
    scales = [rng.uniform(0.001, 0.01, (2, 16) if per_gate else 2).astype(np.float32) for _ in "wr"]
    zeros = [codes(np.int8, *scale.shape) // 8 for scale in scales]
    wide = [
        np.swapaxes(
            (v.astype(np.float32) - z.reshape(2, 1, -1)) * s.reshape(2, 1, -1), 1, 2
        ).astype(np.float32)
        for v, s, z in zip((w, r), scales, zeros, strict=True)
    ]
    more = {"outputs": ("y", "h", "c"), "hidden_size": 4, "direction": "bidirectional"}
    pairs = [scales[0], zeros[0], scales[1], zeros[1]]
    got = run("DynamicQuantizeLSTM", x, w, r, bias, None, None, None, None, *pairs, **more)
    a = rounded(x)
    expected = sol.load(make("LSTM", [a, *wide, bias], domain="", **more))(a)
    for left, right in zip(got, expected, strict=True):
        same(left, right)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_of_few_bits(bits, dtype):
    rows, columns, block = 6, 40, 16  # the last block is not full
    whole = rng.integers(0, 1 << bits, (rows, 3 * block))
    zeros = rng.integers(0, 1 << bits, (rows, 3))
    scale, x, bias = real(rows, 3).astype(dtype), real(2, 5, columns).astype(dtype), real(rows)

    def pack(values):
        values = np.pad(values, ((0, 0), (0, -values.shape[1] % (8 // bits))))
        parts = values.reshape(rows, -1, 8 // bits) << (bits * np.arange(8 // bits))
        return parts.sum(2).astype(np.uint8)

    def check(zero, *more):
        inputs = [pack(whole).reshape(rows, 3, -1), scale.ravel(), *more]
        sizes = {"K": columns, "N": rows, "bits": bits, "block_size": block}
        w = (whole.reshape(rows, 3, block) - zero) * scale[..., None].astype(np.float32)
        y = x.astype(np.float32) @ w.reshape(rows, -1)[:, :columns].T
        got = run("MatMulNBits", x, *inputs, **sizes)
        assert got.dtype == dtype
        same(got, y + (bias.astype(dtype) if more else 0), 1e-4 if dtype == np.float32 else 0.1)

    check(1 << (bits - 1))
    check(zeros[..., None], pack(zeros).ravel(), None, bias.astype(dtype))


def test_numbers_of_16_bits():
    x, zero = real(3, 5), np.array(9, np.uint16)
    got = sol.load(make("QuantizeLinear", [x, f32(0.1), zero]))(x)
    np.testing.assert_array_equal(got, steps(x, 0.1, 9, np.uint16))
    y = run("DequantizeLinear", codes(np.uint8, 3, 5), f32(0.1), np.array(9, np.uint8))
    assert y.dtype == np.float32


# ---- Fused operators ----

ACTIVATIONS = {
    "Relu": ([], lambda y: np.maximum(y, 0)),
    "Tanh": ([], np.tanh),
    "Sigmoid": ([], lambda y: 1 / (1 + np.exp(-y))),
    "LeakyRelu": ([0.25], lambda y: np.where(y < 0, 0.25 * y, y)),
    "HardSigmoid": ([0.25, 0.5], lambda y: np.clip(0.25 * y + 0.5, 0, 1)),
    "Clip": ([-0.5, 0.75], lambda y: np.clip(y, -0.5, 0.75)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    parameters, function = ACTIVATIONS[name]
    x, w, bias, more = real(2, 3, 8, 8), real(4, 3, 3, 3), real(4), real(2, 4, 6, 6)
    plain = sol.load(make("Conv", [x, w, bias], domain=""))(x)
    listed = {"activation": name} | ({"activation_params": parameters} if parameters else {})
    same(run("FusedConv", x, w, bias, **listed), function(plain))
    same(run("FusedConv", x, w, bias, more, **listed), function(plain + more))
    x, w, bias = real(5, 8), real(8, 6), real(6)
    named = dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
    got = run("FusedGemm", x, w, bias, activation=name, alpha=1.5, beta=0.5, **named)
    same(got, function(1.5 * x @ w + 0.5 * bias))


@pytest.mark.parametrize("n_live", [1, 2])
def test_fused_matmul(n_live):
    a, b = real(2, 8, 5), real(6, 8)
    got = run("FusedMatMul", a, b, n_live=n_live, transA=1, transB=1, alpha=0.25)
    same(got, 0.25 * np.swapaxes(a, 1, 2) @ b.T)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def tanh(y):
    return 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))


def test_gelus():
    x, bias = real(3, 40), real(40)
    same(run("Gelu", x), gelu(x))
    same(run("BiasGelu", x, bias), gelu(x + bias))
    same(run("FastGelu", x), tanh(x))
    same(run("FastGelu", x, bias), tanh(x + bias))
    same(run("QuickGelu", x, alpha=1.5), x / (1 + np.exp(-1.5 * x)))


def norm(x, weight, bias=0):
    x = x - x.mean(-1, keepdims=True)
    return rms(x, weight) + bias


def rms(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def test_norms_with_a_skip():
    x, skip, weight, shift, bias = real(2, 5, 16), real(2, 5, 16), real(16), real(16), real(16)
    outputs = ("y", "", "", "sum")

    def check(op, inputs, total, expected):
        got = run(op, x, *inputs, outputs=outputs, epsilon=1e-5)
        same(got[0], expected, 1e-4)
        same(got[1], total)

    s = x + skip + bias
    check("SkipLayerNormalization", [skip, weight, shift, bias], s, norm(s, weight, shift))
    check("SkipLayerNormalization", [skip, weight, None, bias], s, norm(s, weight))
    check("SkipSimplifiedLayerNormalization", [skip, weight, bias], s, rms(s, weight))
    s = x + skip[:1]
    check("SkipLayerNormalization", [skip[:1], weight, shift], s, norm(s, weight, shift))
    y = run("SimplifiedLayerNormalization", x, weight, domain="", axis=-1, epsilon=1e-5)
    same(y, rms(x, weight), 1e-4)
    y = run("LayerNormalization", x, weight, shift, domain="", opset=12, epsilon=1e-5)
    same(y, norm(x, weight, shift), 1e-4)


MASK = np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)


@pytest.mark.parametrize("has_segments", [False, True])
def test_embeddings(has_segments):
    ids, segments = (rng.integers(0, n, (2, 7)).astype(np.int32) for n in (30, 2))
    words, places, kinds = real(30, 16), real(12, 16), real(2, 16)
    weight, bias = real(16), real(16)
    s = words[ids] + places[:7] + (kinds[segments] if has_segments else 0)
    inputs = [words, places, kinds if has_segments else None, weight, bias]
    model = make(
        "EmbedLayerNormalization", [ids, segments if has_segments else None, *inputs, MASK],
        outputs=("y", "n", "sum"), epsilon=1e-5,
    )  # fmt: skip
    y, n, total = sol.load(model)(ids)
    same(y, norm(s, weight, bias), 1e-4)
    same(total, s)
    assert n.tolist() == [7, 4] and n.dtype == np.int32
    order = (ids % 12).astype(np.int32)
    inputs = [words, places, None, weight, bias, None, order]
    y = run("EmbedLayerNormalization", ids, None, *inputs, epsilon=1e-5)
    same(y, norm(words[ids] + places[order], weight, bias), 1e-4)


def attend(q, k, v, heads, bias=0):
    """All are [batch, places, heads * size]."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[-1]) + bias
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = (e / e.sum(-1, keepdims=True) @ v).swapaxes(1, 2)
    return y.reshape(*y.shape[:2], -1)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(
    "mask", [None, MASK, np.array([7, 4], np.int32), np.tril(np.ones((2, 7, 7), np.int32))]
)
def test_packed_attention(mask, causal):
    x, w, bias = real(2, 7, 16), real(16, 48), real(48)
    hidden = np.triu(np.full((7, 7), -np.inf), 1) if causal else np.zeros((7, 7))
    if mask is not None:
        seen = np.arange(7) < mask[:, None] if mask.ndim == 1 else mask
        seen = seen[:, None] if mask.ndim == 3 else seen[:, None, None]
        hidden = hidden + np.where(seen, 0, -10000)
    more = [] if mask is None else [mask]
    got = run("Attention", x, w, bias, *more, num_heads=4, unidirectional=causal)
    same(got, attend(*np.split(x @ w + bias, 3, axis=2), 4, hidden), 1e-4)


def test_attention_with_other_sizes():
    x, w, bias, more = real(2, 7, 16), real(16, 40), real(40), real(1, 4, 7, 7)
    sizes = {"num_heads": 4, "qkv_hidden_sizes": [16, 16, 8]}
    got = run("Attention", x, w, bias, None, None, more, **sizes)
    same(got, attend(*np.split(x @ w + bias, [16, 32], axis=2), 4, more), 1e-4)


def test_multi_head_attention():
    q, k, v, bias = real(2, 7, 16), real(2, 7, 16), real(2, 7, 16), real(48)
    got = run("MultiHeadAttention", q, k, v, num_heads=4, n_live=3)
    same(got, attend(q, k, v, 4), 1e-4)
    parts = [x + b for x, b in zip((q, k, v), np.split(bias, 3), strict=True)]
    hidden = np.where(MASK, 0, -10000)[:, None, None]
    got = run("MultiHeadAttention", q, k, v, bias, MASK, num_heads=4, n_live=3)
    same(got, attend(*parts, 4, hidden), 1e-4)


# ---- What is refused ----


@pytest.mark.parametrize(
    "op, inputs, attributes, error, message",
    [
        ("FusedConv", [real(1, 1, 4, 4), real(1, 1, 3, 3)], {"activation": "Cos"}, NotImplementedError, 'activation "Cos"'),
        ("FusedMatMul", [real(2, 2), real(2, 2)], {"transBatchA": 1}, NotImplementedError, "transBatchA"),
        ("QLinearAdd", [codes(np.uint8, 3), f32(1)], {}, ValueError, "input 3 or its scale is missing"),
        ("QLinearSigmoid", [codes(np.uint8, 3), f32(1)], {}, ValueError, "input 3, a scale, is missing"),
        ("QLinearConcat", [f32([1]), codes(np.uint8, 1), codes(np.uint8, 3)], {}, ValueError, "3 inputs"),
        ("QGemm", [codes(np.uint8, 3, 3), f32(1)], {}, ValueError, "B or its scale is missing"),
        ("EmbedLayerNormalization", [MASK, None, real(3, 4)], {}, ValueError, "input 3 is missing"),
        ("Attention", [real(2, 7, 16), real(16, 48)], {"num_heads": 3}, ValueError, "num_heads 3"),
        ("Attention", [real(2, 7, 16), real(16, 48)], {"num_heads": 4, "qkv_hidden_sizes": [16, 8, 24]}, ValueError, "qkv_hidden_sizes"),
        ("MultiHeadAttention", [real(2, 7, 16)], {"num_heads": 4}, NotImplementedError, "packed"),
        ("DynamicQuantizeLSTM", [real(2, 2, 2), codes(np.int8, 1, 2, 8), codes(np.int8, 1, 2, 8)], {}, ValueError, "input 8 is missing"),
        ("MatMulNBits", [real(2, 16), codes(np.uint8, 2, 1, 8), real(2)], {"K": 16, "N": 3, "block_size": 16}, ValueError, "input 1 has 16 values"),
        ("MatMulNBits", [real(2, 16), codes(np.uint8, 2, 1, 8), real(2)], {"K": 16, "N": 2, "block_size": 9}, NotImplementedError, "sizes that do not fit"),
        ("NoSuchOperator", [real(2)], {}, NotImplementedError, "com.microsoft.NoSuchOperator"),
    ],
)  # fmt: skip
def test_what_is_refused(op, inputs, attributes, error, message):
    with pytest.raises(error, match=message):
        sol.load(make(op, inputs, **attributes))(inputs[0])

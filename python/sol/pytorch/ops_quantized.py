"""Ops of quantized networks, which PyTorch's PT2E writes: quantize, dequantize, and the range of a tensor.

The operators are those of the namespace quantized_decomposed. Products of what dequantize returns are computed with integers
(src/pass/quantize.c), so these functions write the layers that the pass knows. Scales and zero points are parameters also where the
graph has numbers: then layers of equal structure share a kernel.

The table and its conventions are those of ops.py.
"""

import torch

from sol.pytorch.builder import DTYPES, Value, needs

NAMES = {torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16"}


def _type(dtype):
    needs(dtype in NAMES, f"quantization to {dtype}")
    return NAMES[dtype]


def _number(b, x, dtype):
    """A number, or a tensor of one element, as a Value of rank 0 and this type."""
    if isinstance(x, Value):
        return b.cast(b.reshape(x, ()), dtype)
    return b.constant(torch.tensor(x, dtype=DTYPES[dtype]))


def _zero_point(b, x, dtype):
    """A zero point in the type of the integers, or None if it is known to be 0. One that is computed stays i32."""
    if isinstance(x, Value):
        return _number(b, x, "i32")
    return _number(b, x, dtype) if x else None


def _reciprocal(b, scale):
    """PyTorch divides in double, and multiplies by the quotient in float."""
    if not isinstance(scale, Value):
        return _number(b, 1 / scale, "f32")
    return b.cast(b.layer("reciprocal", _number(b, scale, "f64")), "f32")


def _quantize(b, x, scale, zero_point, quant_min, quant_max, dtype, out):
    name = _type(dtype)
    y = b.layer("mul", b.cast(x, "f32"), _reciprocal(b, scale))
    y, zero = b.layer("round", y), _zero_point(b, zero_point, name)
    if zero is not None:
        y = b.layer("add", y, b.cast(zero, "f32"))
    return b.cast(b.layer("clamp", y, min=float(quant_min), max=float(quant_max)), name)


def _read(b, x, scale, zero):
    y = b.cast(x, "i32")
    if zero is not None:
        y = b.layer("sub", y, b.cast(zero, "i32"))
    return b.cast(b.layer("mul", b.cast(y, "f32"), scale), b.dtype)


def _dequantize(b, x, scale, zero_point, out, **_):
    return _read(b, x, _number(b, scale, "f32"), _zero_point(b, zero_point, x.dtype))


def _only_zero(b, scales, zero_points):
    """The scales, where all zero points are 0; else a call is refused: the scales are read at a row that does not exist."""
    bad = b.layer("reduce_max", b.layer("abs", zero_points), axes=[0], keepdim=True)
    table = b.reshape(scales, (1, *scales.shape))
    return b.reshape(b.layer("gather", table, b.cast(bad, "i64"), axis=0), scales.shape)


def _dequantize_channels(b, x, scales, zero_points=None, axis=0, out=None, **_):
    """Zero points of weights are 0 in practice, but their values are not known before a call."""
    shape = tuple(n if i == axis % x.rank else 1 for i, n in enumerate(x.shape))
    scales, zero = b.cast(scales, "f32"), None
    if zero_points is not None and x.constant:
        scales = _only_zero(b, scales, zero_points)
    elif zero_points is not None:
        zero = b.reshape(b.cast(zero_points, "i32"), shape)
    return _read(b, x, b.reshape(scales, shape), zero)


def _choose(b, x, quant_min, quant_max, eps, dtype, out):
    """The scale and the zero point of a range that has all values of x, and 0."""
    x, zero = b.cast(x, "f32"), b.scalar(0.0)
    low = b.layer("minimum", b.layer("reduce_min", x), zero)
    high = b.layer("maximum", b.layer("reduce_max", x), zero)
    scale = b.layer("div", b.layer("sub", high, low), float(quant_max - quant_min))
    scale = b.layer("maximum", scale, float(eps))
    point = b.layer("round", b.layer("div", low, scale))
    point = b.layer(
        "clamp", b.layer("sub", float(quant_min), point), min=float(quant_min), max=float(quant_max)
    )
    return [b.reshape(b.cast(scale, "f64"), out[0]), b.reshape(b.cast(point, "i64"), out[1])]


TABLE = {
    "quantized_decomposed.quantize_per_tensor.default quantized_decomposed.quantize_per_tensor.tensor": _quantize,
    "quantized_decomposed.dequantize_per_tensor.default quantized_decomposed.dequantize_per_tensor.tensor": _dequantize,
    "quantized_decomposed.dequantize_per_channel.default": _dequantize_channels,
    "quantized_decomposed.choose_qparams.tensor": _choose,
}

"""ATen ops of element types: casts, comparisons, logic, bits, quotients, selections, and rows of a table by indices.

The table and the conventions of its functions are those of ops.py. Before a function is called, the importer casts its tensors to
the element type of the result, except arguments in KEPT and those of ops in KEEPING: PyTorch's rules of promotion for
arithmetic. ``Builder.dtype`` is the element type of the result.
"""

import math

import torch

from sol.pytorch import ops_index
from sol.pytorch.builder import DTYPES, Value, all_axes, normal_axis
from sol.pytorch.builder import needs as _needs

# Arguments that never take the result's type: indices and conditions.
KEPT = {"index", "indices", "mask", "condition", "attn_mask"}
# Ops whose result has a type of its own.
KEEPING = {
    "to", "_to_copy", "type_as", "eq", "ne", "lt", "le", "gt", "ge", "argmax", "argmin", "isnan", "isinf", "isfinite",
    "bucketize", "searchsorted", "one_hot", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full",
    "view_as_complex", "view", "broadcast_tensors",
    "quantized_decomposed.quantize_per_tensor", "quantized_decomposed.dequantize_per_tensor",
    "quantized_decomposed.dequantize_per_channel", "quantized_decomposed.choose_qparams",
    "argsort", "less", "less_equal", "greater", "greater_equal", "not_equal", "signbit", "isposinf", "isneginf", "isclose", "count_nonzero", "isin", "isreal", "nll_loss", "nll_loss_nd", "nll_loss2d", "cross_entropy_loss", "multi_margin_loss",
}  # fmt: skip
FLOATS = {"f32", "f64", "f16", "bf16"}


# ---- Promotion ----


def _as_example(x):
    """Returns a tensor of a Value's type for torch.result_type; tensors of rank 0 have less weight there."""
    if not isinstance(x, Value):
        return x
    return torch.empty((1,) if x.rank else (), dtype=DTYPES[x.dtype], device="meta")


def _common(b, x, other):
    """Returns both operands in the type in which PyTorch compares them."""
    dtype = torch.result_type(_as_example(x), _as_example(other))
    name = next(name for name, known in DTYPES.items() if known is dtype)
    return b.cast(b.value(x, name), name), b.cast(b.value(other, name), name)


# ---- Casts ----


def _to(b, x, out, **_):
    return b.cast(x, b.dtype)


# ---- Comparisons and logic ----


def _compare(kind, swaps=False, negates=False):
    def run(b, x, other, out):
        x, other = _common(b, x, other)
        y = b.layer(kind, other, x) if swaps else b.layer(kind, x, other)
        return b.layer("bit_not", y) if negates else y

    return run


def _layer(kind):
    return lambda b, x, other, out: b.layer(kind, x, other)


def _unary(kind):
    return lambda b, x, out: b.layer(kind, x)


def _is_nan(b, x, out):
    return b.layer("bit_not", b.layer("equal", x, x))


def _is_inf(b, x, out):
    _needs(x.dtype in FLOATS, "isinf of integers")
    return b.layer("equal", b.layer("abs", x), math.inf)


def _where(b, condition, x, other, out):
    return b.layer("where", b.cast(condition, "bool"), b.value(x), b.value(other))


def _masked_fill(b, x, mask, value, out):
    return _where(b, mask, value, x, out)


def _any(kind):
    def run(b, x, out, dim=None, keepdim=False):
        if x.rank == 0:
            return x
        return b.layer(kind, x, axes=all_axes(dim, x.rank), keepdim=bool(keepdim))

    return run


# ---- Quotients ----


def _check_divisor(b, other):
    """Raises Unsupported if an integer may be divided by 0: PyTorch raises an exception then."""
    known = not isinstance(other, Value) and other != 0
    _needs(b.dtype in FLOATS or known, "a quotient of integers by a tensor")


def _quotient(kind):
    def run(b, x, other, out):
        _check_divisor(b, other)
        return b.layer(kind, x, other)

    return run


def _div_mode(b, x, other, out, rounding_mode=None):
    if rounding_mode is None:
        return b.layer("div", x, other)
    return _quotient("trunc_div" if rounding_mode == "trunc" else "floor_div")(b, x, other, out)


def _rounding(kind):
    return lambda b, x, out: x if x.dtype not in FLOATS else b.layer(kind, x)


# ---- Indices ----


def _arg_extreme(kind):
    def run(b, x, out, dim=None, keepdim=False):
        if dim is None:
            _needs(all(isinstance(n, int) for n in x.shape), f"{kind} over an open batch")
            y = b.layer(kind, b.reshape(x, (math.prod(x.shape),)), axis=0)
            return b.reshape(y, out)
        if x.rank == 0:
            return b.cast(b.value(0), "i64")
        return b.layer(kind, x, axis=normal_axis(dim, x.rank), keepdim=bool(keepdim))

    return run


def _extreme_with_index(kind):
    def run(b, x, dim, out, keepdim=False):
        if x.rank == 0:
            return [x, b.value(0, "i64")]
        axis = normal_axis(dim, x.rank)
        best = b.layer(f"reduce_{kind}", x, axes=[axis], keepdim=bool(keepdim), strict=True)
        return [best, b.layer(f"arg{kind}", x, axis=axis, keepdim=bool(keepdim))]

    return run


def _embedding(b, weight, indices, out, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    padding = {"padding": int(padding_idx)} if padding_idx >= 0 else {}
    return b.layer("gather", weight, ops_index.as_index(indices), axis=0, wraps=False, **padding)


def _index_select(b, x, dim, index, out):
    if x.rank == 0:
        x = b.reshape(x, (1,))
    axis = normal_axis(dim, x.rank)
    y = b.layer("gather", x, ops_index.as_index(index), axis=axis, wraps=False)
    return b.reshape(y, out)


def _index(b, x, indices, out):
    """x[:, :, index]: tensors of integers."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) > 1:
        return ops_index.index_all(b, x, indices, out)
    axis, index = given[0]
    return b.layer("gather", x, ops_index.as_index(index), axis=axis)


# ---- Sequences of numbers, sums ----


def _arange(b, out, start=0, end=None, step=1, **_):
    _needs(isinstance(step, (int, float)), "a range with an open step")
    if not isinstance(start, float) and isinstance(step, int):
        text = {"start": start, "step": step, "shape": list(out), "dtype": b.dtype}
        return b.layer("arange", **text)
    count = b.cast(b.layer("arange", shape=list(out), dtype="i64"), b.dtype)
    return b.layer("add", b.layer("mul", count, step), start)


def _cumsum(b, x, dim, out, dtype=None):
    return x if x.rank == 0 else b.layer("cumsum", x, axis=normal_axis(dim, x.rank))


def _prod(b, x, out, dim=None, keepdim=False, dtype=None):
    if x.rank == 0:
        return x
    return b.layer("prod", x, axes=all_axes(dim, x.rank), keepdim=bool(keepdim))


TABLE = {
    "to.dtype to.device to.dtype_layout to.other _to_copy.default type_as.default": _to,
    "eq.Tensor eq.Scalar": _compare("equal"),
    "ne.Tensor ne.Scalar not_equal.Tensor not_equal.Scalar": _compare("equal", negates=True),
    "lt.Tensor lt.Scalar less.Tensor less.Scalar": _compare("less"),
    "gt.Tensor gt.Scalar greater.Tensor greater.Scalar": _compare("less", swaps=True),
    "le.Tensor le.Scalar less_equal.Tensor less_equal.Scalar": _compare("less_equal"),
    "ge.Tensor ge.Scalar greater_equal.Tensor greater_equal.Scalar": _compare("less_equal", swaps=True),
    "logical_and.default bitwise_and.Tensor bitwise_and.Scalar __and__.Tensor __and__.Scalar": _layer("bit_and"),
    "logical_or.default bitwise_or.Tensor bitwise_or.Scalar __or__.Tensor __or__.Scalar": _layer("bit_or"),
    "logical_xor.default bitwise_xor.Tensor bitwise_xor.Scalar __xor__.Tensor": _layer("bit_xor"),
    "logical_not.default bitwise_not.default": _unary("bit_not"),
    "isnan.default": _is_nan,
    "isinf.default": _is_inf,
    "where.self where.ScalarOther where.ScalarSelf where.Scalar": _where,
    "masked_fill.Scalar masked_fill.Tensor": _masked_fill,
    "any.default any.dim any.dims": _any("reduce_max"),
    "all.default all.dim all.dims": _any("reduce_min"),
    "floor_divide.default floor_divide.Scalar": _quotient("floor_div"),
    "remainder.Tensor remainder.Scalar": _quotient("mod"),
    "fmod.Tensor fmod.Scalar": _quotient("rem"),
    "div.Tensor_mode div.Scalar_mode divide.Tensor_mode divide.Scalar_mode": _div_mode,
    "floor.default": _rounding("floor"),
    "ceil.default": _rounding("ceil"),
    "trunc.default fix.default": _rounding("trunc"),
    "round.default": _rounding("round"),
    "sign.default sgn.default": _unary("sign"),
    "sin.default": _unary("sin"),
    "cos.default": _unary("cos"),
    "argmax.default": _arg_extreme("argmax"),
    "argmin.default": _arg_extreme("argmin"),
    "max.dim": _extreme_with_index("max"),
    "min.dim": _extreme_with_index("min"),
    "embedding.default": _embedding,
    "index_select.default": _index_select,
    "index.Tensor": _index,
    "arange.default arange.start arange.start_step": _arange,
    "cumsum.default": _cumsum,
    "prod.default prod.dim_int": _prod,
}  # fmt: skip

"""The table of ATen ops: the libsol layers that each op becomes.

A function here takes the Builder, the op's arguments by the names of its schema (``self`` and ``input`` are called ``x``;
tensors are Values), and ``out``, the shape that PyTorch computed, or the list of shapes. It returns a Value, or a list of
Values for an op with several results. It raises Unsupported with a reason for what SOL does not support. It never gets an
in-place op: the importer replaces ``relu_`` by ``relu`` if no other tensor sees the write.

The other parts of the table:

    ops_norm.py     norms, attention, activations with parameters, statistics
    ops_math.py     formulas, such as hypot                ops_loss.py    losses
    ops_product.py  products of vectors and matrices       ops_einsum.py  einsum
    ops_index.py    values at computed positions           ops_sample.py  pixels at computed points
    ops_move.py     order, copies and windows of values    ops_shape.py   stacks, splits, diagonals
    ops_volume.py   convolutions and pools of volumes      ops_resize.py  upsampling
    ops_type.py     element types, comparisons, logic      ops_order.py   sorts and scans
    ops_scatter.py  writes at computed positions           ops_window.py  convolutions with computed weights
    ops_bag.py      sums of embeddings                     ops_recurrent.py  LSTM, GRU, RNN
    ops_quantized.py  integers that stand for floats       ops_random.py  dropout
    stops.py        where gradients end

A new op is one row of a TABLE.
"""

import functools
import math

from sol.pytorch import (
    ops_bag,
    ops_einsum,
    ops_index,
    ops_loss,
    ops_math,
    ops_move,
    ops_norm,
    ops_order,
    ops_product,
    ops_quantized,
    ops_random,
    ops_recurrent,
    ops_resize,
    ops_sample,
    ops_scatter,
    ops_shape,
    ops_type,
    ops_volume,
    ops_window,
    stops,
)
from sol.pytorch.builder import Value, all_axes, batched, normal_axis, pair
from sol.pytorch.builder import needs as _needs

# ---- Convolution and linear ----


def _batched(b, x, run):
    """Runs an op of [n,c,h,w] tensors for ``x`` of the shape [n,c,h,w] or [c,h,w]."""
    return batched(b, x, 4, "rows and columns", run)


def _conv2d(b, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, out=None):
    kernel, dilation = weight.shape[2:], pair(dilation)
    pad = _conv_padding(padding, kernel, dilation)
    if not weight.constant:
        window = (weight, bias, pair(stride), pad, dilation, groups)
        return _batched(b, x, lambda x4: ops_window.conv(b, x4, *window))
    inputs = [weight] if bias is None else [weight, bias]
    attributes = {"stride": pair(stride), "pad": pad, "dilation": dilation, "groups": groups}
    return _batched(b, x, lambda x4: b.layer("conv", x4, *inputs, **attributes))


def _conv_padding(padding, kernel, dilation):
    """Returns [top, left, bottom, right]. If 'same' needs an odd padding, the larger half is at the end."""
    if padding == "valid":
        return [0, 0, 0, 0]
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return [t // 2 for t in total] + [t - t // 2 for t in total]
    return pair(padding) * 2


def _conv1d(b, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, out=None):
    """A 1-D convolution, as a 2-D convolution of images with one row."""

    def one_row(value):
        return b.reshape(value, (*value.shape[:-1], 1, value.shape[-1]))

    def first(sizes):
        return sizes[0] if isinstance(sizes, (list, tuple)) else sizes

    if not isinstance(padding, str):
        padding = [0, first(padding)]
    y = _conv2d(
        b,
        one_row(x),
        one_row(weight),
        bias,
        [1, first(stride)],
        padding,
        [1, first(dilation)],
        groups,
    )
    return b.reshape(y, out)


def _conv_transpose2d(
    b, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, out=None
):
    if not weight.constant:
        window = map(pair, (stride, padding, output_padding))
        window = (weight, bias, *window, groups, pair(dilation))
        return _batched(b, x, lambda x4: ops_window.conv_transpose(b, x4, *window))
    inputs = [weight] if bias is None else [weight, bias]
    pads = {"pad": pair(padding) * 2, "output_pad": pair(output_padding)}
    attributes = {"stride": pair(stride), "dilation": pair(dilation), "groups": groups, **pads}
    return _batched(b, x, lambda x4: b.layer("conv_transpose", x4, *inputs, **attributes))


def _conv_transpose1d(
    b, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, out=None
):
    """A 1-D transposed convolution, as a 2-D one of images with one row."""
    image, window = (b.reshape(v, (*v.shape[:-1], 1, v.shape[-1])) for v in (x, weight))
    stride, dilation = ([1, pair(n)[-1]] for n in (stride, dilation))
    padding, output_padding = ([0, pair(n)[-1]] for n in (padding, output_padding))
    y = _conv_transpose2d(b, image, window, bias, stride, padding, output_padding, groups, dilation)
    return b.reshape(y, out)


def _convolution(
    b, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, out, **_
):
    if weight.rank == 5 and transposed:
        window = (stride, padding, output_padding, groups, dilation)
        return ops_volume.conv_transpose3d(b, x, weight, bias, *window)
    if weight.rank == 5:
        return ops_volume.conv3d(b, x, weight, bias, stride, padding, dilation, groups)
    _needs(weight.rank in (3, 4), f"a convolution over {weight.rank - 2} dimensions")
    if transposed:
        conv = _conv_transpose2d if weight.rank == 4 else _conv_transpose1d
        return conv(b, x, weight, bias, stride, padding, output_padding, groups, dilation, out)
    conv = _conv2d if weight.rank == 4 else _conv1d
    return conv(b, x, weight, bias, stride, padding, dilation, groups, out)


def _matmul(b, x, other, out):
    """Becomes a linear layer if the right operand is a constant matrix, else a matmul layer."""
    if other.constant and other.rank == 2 and x.rank > 0:
        return ops_product.linear(b, x, b.layer("permute", other, axes=[1, 0]), None, out)
    return ops_product.product(b, x, other)


def _mm(b, x, mat2, out):
    return _matmul(b, x, mat2, out)


def _addmm(b, x, mat1, mat2, beta=1, alpha=1, out=None):
    if x.rank == 1 and x.constant and beta == alpha == 1 and x.shape[0] == mat2.shape[1]:
        return ops_product.linear(b, mat1, b.layer("permute", mat2, axes=[1, 0]), x, out)
    product = _scale(b, _matmul(b, mat1, mat2, None), alpha)
    return b.layer("add", product, _scale(b, x, beta))


def _baddbmm(b, x, batch1, batch2, out, beta=1, alpha=1):
    product = _scale(b, b.layer("matmul", batch1, batch2), alpha)
    return b.layer("add", product, _scale(b, x, beta))


def _scale(b, x, factor):
    return x if factor == 1 else b.layer("mul", x, factor)


# ---- Pointwise ----


def _unary(kind):
    return lambda b, x, out: b.layer(kind, x)


def _clamp(b, x, min=None, max=None, out=None, strict=False):
    low, high = min, max
    if not isinstance(low, Value) and not isinstance(high, Value):
        low = -math.inf if low is None else float(low)
        high = math.inf if high is None else float(high)
        return b.layer("clamp", x, min=low, max=high, **({"strict": True} if strict else {}))
    x = x if low is None else b.layer("maximum", x, low)
    return x if high is None else b.layer("minimum", x, high)


def _hardtanh(b, x, min_val=-1.0, max_val=1.0, out=None):
    """Unlike clamp, it has no gradient at its limits."""
    return _clamp(b, x, min_val, max_val, strict=True)


def _leaky_relu(b, x, negative_slope=0.01, out=None):
    return b.layer("leaky_relu", x, alpha=float(negative_slope))


def _gelu(b, x, approximate="none", out=None):
    return b.layer("gelu_tanh" if approximate == "tanh" else "gelu", x)


def _softplus(b, x, beta=1, threshold=20, out=None):
    if threshold != 20:
        return ops_math.softplus(b, x=x, beta=beta, threshold=threshold, out=out)
    return _scale(b, b.layer("softplus", _scale(b, x, beta)), 1 / beta)


def _pow(b, x, exponent, out):
    powers = {2: ["square"], 0.5: ["sqrt"], -1: ["reciprocal"], -0.5: ["rsqrt"], 4: ["square"] * 2}
    if exponent == 1:
        return x
    if exponent == 3:
        return b.layer("mul", b.layer("square", x), x)
    if isinstance(exponent, Value) or exponent not in powers:
        return b.layer("pow", x, exponent)
    for kind in powers[exponent]:
        x = b.layer(kind, x)
    return x


def _binary(kind):
    def run(b, x, other, out, alpha=1):
        if alpha != 1:
            other = b.layer("mul", other, alpha)
        return b.layer(kind, x, other)

    return run


def _rsub(b, x, other, out, alpha=1):
    return b.layer("sub", other, _scale(b, x, alpha))


def _div(b, x, other, out):
    return b.layer("div", x, other)


def _scaled(kind, factor):
    """A layer and a factor, such as a logarithm with another base."""
    return lambda b, x, out: b.layer("mul", b.layer(kind, x), factor)


def _exp2(b, x, out):
    return b.layer("exp", b.layer("mul", x, math.log(2)))


def _tan(b, x, out):
    return b.layer("div", b.layer("sin", x), b.layer("cos", x))


def _lerp(b, x, end, weight, out):
    return b.layer("add", x, b.layer("mul", b.layer("sub", end, x), weight))


def _addcmul(kind):
    def run(b, x, tensor1, tensor2, out, value=1):
        return b.layer("add", x, _scale(b, b.layer(kind, tensor1, tensor2), value))

    return run


# ---- Pooling and reductions ----


def _window(kernel_size, stride, padding, **more):
    kernel = pair(kernel_size)
    stride = pair(stride) if stride not in ([], None) else kernel
    return dict(kernel=kernel, stride=stride, pad=pair(padding) * 2, **more)


def _max_pool2d(b, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, out=None):
    window = _window(kernel_size, stride, padding, dilation=pair(dilation), ceil=ceil_mode)
    return _batched(b, x, lambda x4: b.layer("max_pool", x4, **window))


def _avg_pool2d(
    b, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
    divisor_override=None, out=None,
):  # fmt: skip
    window = _window(kernel_size, stride, padding, ceil=ceil_mode, count_pad=count_include_pad)
    if divisor_override is not None:
        size = None if out is None else out[-2:]
        return _batched(b, x, lambda x4: _sum_pool(b, x4, size, divisor_override, **window))
    return _batched(b, x, lambda x4: b.layer("avg_pool", x4, **window))


def _sum_pool(b, x, size, divisor, kernel, stride, pad, ceil, **_):
    """The sum of each window, divided by a number: a mean of all values and zeros, times their number. With ``ceil``, zeros fill the
    last windows."""
    if ceil:
        _needs(all(isinstance(n, int) for n in (*size, *x.shape[2:])), "ceil_mode of open sizes")
        reach = [(n - 1) * s + k for n, s, k in zip(size, stride, kernel)]
        behind = [max(p, r - n - p) for r, n, p in zip(reach, x.shape[2:], pad)]
        x, pad = b.layer("pad", x, pad=[*pad[:2], *behind]), [0, 0, 0, 0]
    y = b.layer("avg_pool", x, kernel=kernel, stride=stride, pad=pad, ceil=False, count_pad=True)
    return b.layer("mul", y, math.prod(kernel) / divisor)


def _pool1d(pool):
    """A pool of rows, as a pool of images with one row."""

    def one_row(name, sizes):
        beside = 0 if name == "padding" else 1
        return [beside, *(sizes if isinstance(sizes, (list, tuple)) else [sizes])]

    def run(b, x, kernel_size, out, **names):
        pairs = {k: one_row(k, v) for k, v in names.items() if k in ("padding", "dilation")}
        if names.get("stride") not in ([], None):
            pairs["stride"] = one_row("stride", names["stride"])
        kernel = one_row("kernel", kernel_size)
        image = b.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
        return b.reshape(pool(b, image, kernel, **{**names, **pairs}, out=None), out)

    return run


def _adaptive_avg_pool1d(b, x, output_size, out):
    image = b.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    return b.reshape(_adaptive_avg_pool2d(b, image, None, (1, out[-1])), out)


def _adaptive_avg_pool2d(b, x, output_size, out):
    size = list(out[-2:])
    _needs(all(isinstance(n, int) for n in size), "adaptive pooling to an open size")
    return _batched(b, x, lambda x4: b.layer("adaptive_avg_pool", x4, kernel=size))


def _reduce(kind):
    def run(b, x, dim=None, keepdim=False, dtype=None, out=None):
        if x.rank == 0:
            return x
        return b.layer(kind, x, axes=all_axes(dim, x.rank), keepdim=bool(keepdim))

    return run


# ---- Shapes ----


def _identity(b, x, out, **_):
    return x


def _reshape(b, x, out, **_):
    return b.reshape(x, out)


def _squeeze(b, x, out, dim=None):
    """Squeezes dims of size 1. If a dim is open, the graph is not valid for a size of 1, which has another rank."""
    for axis in all_axes(dim, x.rank):
        if not isinstance(x.shape[axis], int):
            b.exclude(x.shape[axis], 1)
    return b.reshape(x, out)


def _permute(b, x, dims, out):
    axes = [normal_axis(axis, x.rank) for axis in dims]
    return x if axes == sorted(axes) else b.layer("permute", x, axes=axes)


def _transpose(b, x, dim0, dim1, out):
    axes = list(range(x.rank))
    i, j = normal_axis(dim0, x.rank), normal_axis(dim1, x.rank)
    if axes:
        axes[i], axes[j] = axes[j], axes[i]
    return _permute(b, x, axes, out)


def _swapaxes(b, x, axis0, axis1, out):
    return _transpose(b, x, axis0, axis1, out)


def _t(b, x, out):
    return _transpose(b, x, 0, 1, out) if x.rank == 2 else x


def _expand(b, x, out, **_):
    return x if tuple(out) == x.shape else b.layer("expand", x, shape=list(out))


def _cut(b, x, axis, start, size, step=1):
    """Returns ``size`` elements of ``axis``, from the index ``start`` on, with the distance ``step``."""
    if size == x.shape[axis] and step == 1:
        return x
    return b.slice(x, axis, start, size, step)


def _slice(b, x, out, dim=0, start=None, end=None, step=1):
    axis = normal_axis(dim, x.rank)
    return _cut(b, x, axis, ops_move.first_index(start or 0, x.shape[axis]), out[axis], step)


def _narrow(b, x, dim, start, length, out):
    axis = normal_axis(dim, x.rank)
    return _cut(b, x, axis, ops_move.first_index(start, x.shape[axis]), length)


def _select(b, x, dim, index, out):
    axis = normal_axis(dim, x.rank)
    return b.reshape(_cut(b, x, axis, ops_move.first_index(index, x.shape[axis]), 1), out)


def _split(b, x, out, dim=0, **_):
    """chunk, split and split_with_sizes: the sizes of the parts come from ``out``."""
    axis, start, parts = normal_axis(dim, x.rank), 0, []
    for shape in out:
        parts.append(_cut(b, x, axis, start, shape[axis]))
        start += shape[axis]
    return parts


def _unbind(b, x, out, dim=0):
    return [_select(b, x, dim, i, shape) for i, shape in enumerate(out)]


def _cat(b, tensors, out, dim=0):
    # PyTorch allows tensors of shape [0] beside tensors of any shape, and ignores them.
    tensors = [x for x in tensors if x.shape != (0,)]
    if len(tensors) == 1:
        return tensors[0]
    return b.layer("concat", *tensors, axis=normal_axis(dim, len(out)))


def _stack(b, tensors, out, dim=0):
    axis = normal_axis(dim, len(out))
    shape = (*out[:axis], 1, *out[axis + 1 :])
    return b.layer("concat", *[b.reshape(x, shape) for x in tensors], axis=axis)


def _pad(b, x, pad, out, mode="constant", value=0):
    """``pad`` has two values per dim, from the last dim on. A value below 0 removes elements."""
    _needs(all(isinstance(size, int) for size in pad), "a padding that depends on open sizes")
    if mode != "constant":
        return ops_move.pad_with_copies(b, x, pad, mode)
    x = ops_move.crop(b, x, pad)
    pad = [max(0, size) for size in pad] + [0] * (4 - len(pad))
    x, pad = ops_move.pad_outer_dims(b, x, pad[4:], value or 0), pad[:4]
    if not any(pad):
        return x
    left, right, top, bottom = pad[:4]
    sides, value = [top, left, bottom, right], float(value or 0)
    if x.rank == 1:
        return b.reshape(b.layer("pad", b.reshape(x, (1, *x.shape)), pad=sides, value=value), out)
    return b.layer("pad", x, pad=sides, value=value)


def _full(b, out, fill_value=0.0, **_):
    value = b.value(fill_value)
    return b.layer("expand", value, shape=list(out)) if out else value


_ones = functools.partial(_full, fill_value=1.0)


# ---- The table ----

# "name.overload name.overload": function, with the names of torch.ops.aten.
TABLE = {
    "conv2d.default conv2d.padding": _conv2d,
    "conv1d.default conv1d.padding": _conv1d,
    "convolution.default _convolution.default _convolution.deprecated": _convolution,
    "conv_transpose2d.input": _conv_transpose2d,
    "conv_transpose1d.default": _conv_transpose1d,
    "linear.default": ops_product.linear,
    "matmul.default": _matmul,
    "mm.default bmm.default": _mm,
    "addmm.default": _addmm,
    "baddbmm.default": _baddbmm,
    "relu.default": _unary("relu"),
    "relu6.default": lambda b, x, out: _hardtanh(b, x, 0.0, 6.0),
    "hardtanh.default": _hardtanh,
    "clamp.default clamp.Tensor clip.default clip.Tensor": _clamp,
    "clamp_min.default clamp_min.Tensor clamp_max.default clamp_max.Tensor": _clamp,
    "leaky_relu.default": _leaky_relu,
    "gelu.default": _gelu,
    "softplus.default": _softplus,
    "sigmoid.default": _unary("sigmoid"),
    "tanh.default": _unary("tanh"),
    "silu.default": _unary("silu"),
    "hardswish.default": _unary("hardswish"),
    "hardsigmoid.default": _unary("hardsigmoid"),
    "mish.default": _unary("mish"),
    "exp.default": _unary("exp"),
    "log.default": _unary("log"),
    "sqrt.default": _unary("sqrt"),
    "rsqrt.default": _unary("rsqrt"),
    "abs.default": _unary("abs"),
    "neg.default negative.default": _unary("neg"),
    "square.default": _unary("square"),
    "reciprocal.default": _unary("reciprocal"),
    "erf.default special_erf.default": _unary("erf"),
    "pow.Tensor_Scalar pow.Tensor_Tensor": _pow,
    "pow.Scalar": lambda b, x, exponent, out: b.layer("pow", b.value(x), exponent),
    "add.Tensor add.Scalar": _binary("add"),
    "sub.Tensor sub.Scalar subtract.Tensor": _binary("sub"),
    "mul.Tensor mul.Scalar multiply.Tensor": _binary("mul"),
    "rsub.Scalar rsub.Tensor": _rsub,
    "div.Tensor div.Scalar divide.Tensor true_divide.Tensor": _div,
    "log2.default": _scaled("log", 1 / math.log(2)),
    "log10.default": _scaled("log", 1 / math.log(10)),
    "exp2.default special_exp2.default": _exp2,
    "tan.default": _tan,
    "lerp.Scalar lerp.Tensor": _lerp,
    "maximum.default max.other": _binary("maximum"),
    "minimum.default min.other": _binary("minimum"),
    "addcmul.default": _addcmul("mul"),
    "addcdiv.default": _addcmul("div"),
    "max_pool2d.default": _max_pool2d,
    "avg_pool2d.default": _avg_pool2d,
    "adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "max_pool1d.default": _pool1d(_max_pool2d),
    "avg_pool1d.default": _pool1d(_avg_pool2d),
    "adaptive_avg_pool1d.default": _adaptive_avg_pool1d,
    "mean.default mean.dim": _reduce("mean"),
    "sum.default sum.dim_IntList": _reduce("sum"),
    "amax.default max.default": _reduce("reduce_max"),
    "amin.default min.default": _reduce("reduce_min"),
    "contiguous.default clone.default detach.default alias.default lift_fresh_copy.default": _identity,
    "view_copy.default unsqueeze_copy.default positive.default conj_physical.default": _reshape,
    "alias_copy.default real.default resolve_conj.default resolve_neg.default": _identity,
    "view.default reshape.default flatten.using_ints unflatten.int ravel.default": _reshape,
    "unsqueeze.default _unsafe_view.default view_as.default reshape_as.default": _reshape,
    "squeeze.default squeeze.dim squeeze.dims squeeze_copy.default squeeze_copy.dim squeeze_copy.dims": _squeeze,
    "permute.default permute_copy.default": _permute,
    "transpose.int transpose_copy.int swapdims.default": _transpose,
    "swapaxes.default": _swapaxes,
    "t.default t_copy.default": _t,
    "expand.default expand_as.default broadcast_to.default expand_copy.default": _expand,
    "slice.Tensor slice_copy.Tensor": _slice,
    "narrow.default": _narrow,
    "select.int select_copy.int": _select,
    "chunk.default split.Tensor split.sizes split_with_sizes.default": _split,
    "tensor_split.sections tensor_split.indices split_copy.Tensor split_with_sizes_copy.default": _split,
    "unsafe_chunk.default unsafe_split.Tensor unsafe_split_with_sizes.default": _split,
    "unbind.int unbind_copy.int": _unbind,
    "cat.default concat.default concatenate.default": _cat,
    "stack.default": _stack,
    "constant_pad_nd.default pad.default": _pad,
    "full.default zeros.default zeros_like.default new_zeros.default": _full,
    "full_like.default new_full.default": _full,
    # Memory with any values, which a later op fills: with zeros they are the same at each call.
    "empty.memory_format empty_like.default new_empty.default": _full,
    "ones.default ones_like.default new_ones.default": _ones,
}

for part in (
    ops_bag, ops_einsum, ops_index, ops_loss, ops_math, ops_move, ops_norm, ops_order, ops_product, ops_quantized, ops_random, ops_recurrent,
    ops_resize, ops_sample, ops_scatter, ops_shape, ops_type, ops_volume, stops,
):  # fmt: skip
    TABLE |= part.TABLE

OPS = {name: function for names, function in TABLE.items() for name in names.split()}

# Ops that only check something: torch.export has evaluated them, and Batches checks the batch size at each call.
IGNORED = {
    "_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.msg",
    "sym_constrain_range.default", "sym_constrain_range_for_size.default",
}  # fmt: skip

"""A part of the table of ATen ops (ops.py): norms, softmax, attention, activations with parameters, statistics.

Most of these ops are one composite layer each, which libsol decomposes.
"""

import math

import torch

from sol.pytorch import ops_random
from sol.pytorch.builder import DTYPES, Hidden, all_axes, needs, normal_axis

# ---- Norms ----


def _affine(weight, bias):
    """Returns the inputs after x of a norm. A bias alone needs a weight of 1."""
    if bias is None:
        return [] if weight is None else [weight]
    return [1.0 if weight is None else weight, bias]


def _last_axes(x, shape):
    return list(range(x.rank - len(shape), x.rank))


def _layer_norm(b, x, normalized_shape, weight=None, bias=None, eps=1e-5, out=None, **_):
    axes = _last_axes(x, normalized_shape)
    return b.layer("layer_norm", x, *_affine(weight, bias), axes=axes, eps=float(eps))


def _rms_norm(b, x, normalized_shape, weight=None, eps=None, out=None):
    axes = _last_axes(x, normalized_shape)
    eps = torch.finfo(DTYPES[x.dtype]).eps if eps is None else eps
    return b.layer("rms_norm", x, *_affine(weight, None), axes=axes, eps=float(eps))


def _group_norm(b, x, num_groups, weight=None, bias=None, eps=1e-5, out=None, **_):
    if weight is None and bias is not None:
        weight = b.layer("expand", 1.0, shape=list(bias.shape))
    return b.layer("group_norm", x, *_affine(weight, bias), groups=num_groups, eps=float(eps))


def _instance_norm(
    b, x, weight=None, bias=None, running_mean=None, running_var=None, use_input_stats=True,
    eps=1e-5, out=None, **_,
):  # fmt: skip
    if use_input_stats:
        _check_statistics(running_mean)
        return _group_norm(b, x, x.shape[1], weight, bias, eps)
    return _batch_norm(b, x, weight, bias, running_mean, running_var, False, eps, out)


def _batch_norm(
    b, x, weight=None, bias=None, running_mean=None, running_var=None, training=False,
    eps=1e-5, out=None, **_,
):  # fmt: skip
    if running_mean is None:
        return _batch_statistics(b, x, weight, bias, eps)
    if training:
        _check_statistics(running_mean)
    return _normalize(b, x, running_mean, running_var, weight, bias, eps)


def _check_statistics(running_mean):
    """Raises Hidden for an op that writes its running statistics, which its schema does not say."""
    if running_mean is not None:
        raise Hidden("it updates its statistics")


def _normalize(b, x, mean, variance, weight, bias, eps):
    channels = list(mean.shape)
    if weight is None:
        weight = b.layer("expand", b.value(1.0, x.dtype), shape=channels)
    if bias is None:
        bias = b.layer("expand", b.value(0.0, x.dtype), shape=channels)
    return b.layer("batch_norm", x, mean, variance, weight, bias, eps=float(eps))


def _widen(b, *tensors):
    """Returns tensors, of which some may be None, in the types in which PyTorch computes statistics: f32 instead of f16 and bf16."""
    return [
        b.cast(x, "f32") if x is not None and x.dtype in ("f16", "bf16") else x for x in tensors
    ]


def _batch_norm_inference(b, x, weight, bias, running_mean, running_var, eps, out=None, **_):
    """batch_norm in the functional form of a graph. Its other two results are empty outside of training."""
    x_type = x.dtype
    x, weight, bias, *running = _widen(b, x, weight, bias, running_mean, running_var)
    return [b.cast(_batch_norm(b, x, weight, bias, *running, False, eps), x_type)]


def _batch_norm_training(
    b, x, weight, bias, running_mean, running_var, training, momentum, eps, out=None, **_
):
    """batch_norm with the batch's statistics, in the functional form of a graph: [y, mean, 1 / deviation, new running mean, new
    running variance]. The running ones of f16 and bf16 are f32 here: the graph rounds them."""
    needs(training, "batch_norm of another kind")
    results, mean, variance = _by_batch(b, x, weight, bias, eps)
    count = _count(b, [x.shape[axis] for axis in _batch_axes(x)], variance.dtype)
    unbiased = b.layer("mul", variance, b.layer("div", count, b.layer("sub", count, 1.0)))
    running = zip(_widen(b, running_mean, running_var), (mean, unbiased))
    return [*results, *(_move(b, old, new, momentum) for old, new in running)]


def _batch_norm_untracked(b, x, weight, bias, training, momentum, eps, out=None):
    """batch_norm without running statistics, in the functional form of a graph: [y, mean, 1 / deviation]."""
    needs(training, "batch_norm of another kind")
    return _by_batch(b, x, weight, bias, eps)[0]


def _by_batch(b, x, weight, bias, eps):
    """Returns ([y, mean, 1 / deviation] of batch_norm with the batch's statistics, in the type of x; mean; variance)."""
    x_type, axes = x.dtype, _batch_axes(x)
    x, weight, bias = _widen(b, x, weight, bias)
    mean = b.layer("mean", x, axes=axes)
    variance = b.layer("variance", x, correction=0.0, axes=axes)
    y = _normalize(b, x, mean, variance, weight, bias, eps)
    scale = b.layer("rsqrt", b.layer("add", variance, float(eps)))
    return [b.cast(value, x_type) for value in (y, mean, scale)], mean, variance


def _batch_axes(x):
    """All axes but that of the channels."""
    return [0, *range(2, x.rank)]


def _move(b, running, new, momentum):
    """Returns a running statistic after a batch with the statistic ``new``."""
    kept = b.layer("mul", running, 1.0 - momentum)
    return b.layer("add", kept, b.layer("mul", b.cast(new, running.dtype), float(momentum)))


def _count(b, sizes, dtype):
    """Returns the product of sizes as a value. An open size is a sum of ones: no layer reads it otherwise."""
    fixed = math.prod(n for n in sizes if isinstance(n, int))
    count = b.value(float(fixed), dtype)
    for n in sizes:
        if not isinstance(n, int):
            ones = b.layer("expand", b.value(1.0, dtype), shape=[n])
            count = b.layer("mul", count, b.layer("sum", ones, axes=[0]))
    return count


def _batch_statistics(b, x, weight, bias, eps):
    """batch_norm with mean and variance of the input: a layer norm over all dims but the channels."""
    channels = (x.shape[1], *[1] * (x.rank - 2))
    inputs = [t if t is None else b.reshape(t, channels) for t in (weight, bias)]
    return b.layer("layer_norm", x, *_affine(*inputs), axes=_batch_axes(x), eps=float(eps))


def _with_statistics(b, norm, x, eps, out):
    """Returns [the result of a norm, the mean, 1 / deviation] of native_layer_norm or native_group_norm."""
    outer = math.prod(out[1])
    needs(isinstance(outer, int), "statistics of an unknown number of groups")
    groups = b.reshape(x, (outer, math.prod(x.shape) // outer))
    mean = b.layer("mean", groups, axes=[1])
    variance = b.layer("variance", groups, correction=0.0, axes=[1])
    scale = b.layer("rsqrt", b.layer("add", variance, float(eps)))
    return [norm, b.reshape(mean, out[1]), b.reshape(scale, out[2])]


def _native_layer_norm(b, x, normalized_shape, weight=None, bias=None, eps=1e-5, out=None):
    y = _layer_norm(b, x, normalized_shape, weight, bias, eps)
    return _with_statistics(b, y, x, eps, out)


def _native_group_norm(b, x, weight=None, bias=None, group=1, eps=1e-5, out=None, **_):
    y = _group_norm(b, x, group, weight, bias, eps)
    return _with_statistics(b, y, x, eps, out)


# ---- Softmax, attention ----


def _softmax(kind):
    def run(b, x, dim, out, **_):
        if x.rank == 0:
            zero = b.layer("sub", x, x)  # NaN of NaN and infinities
            return zero if kind == "log_softmax" else b.layer("exp", zero)
        return b.layer(kind, x, axis=normal_axis(dim, x.rank))

    return run


def _safe_softmax(b, x, dim, out, dtype=None):
    """A softmax that is 0 where all values are -inf."""
    needs(x.rank > 0, "a softmax of a number")
    axis = normal_axis(dim, x.rank)
    largest = b.layer("reduce_max", x, axes=[axis], keepdim=True)
    y = b.layer("softmax", x, axis=axis)
    return b.layer("where", b.layer("equal", largest, -math.inf), b.value(0.0, x.dtype), y)


def _attention(
    b, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
    out=None, **_,
):  # fmt: skip
    """Heads are grouped if the key has fewer than the query; then ``enable_gqa`` is set."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if dropout_p:
        options = dropout_p, bool(is_causal), scale
        return ops_random.drop_attention(b, query, key, value, attn_mask, *options)
    inputs = [query, key, value] if attn_mask is None else [query, key, value, attn_mask]
    return b.layer("attention", *inputs, scale=scale, causal=bool(is_causal))


# ---- Activations ----


def _elu(b, x, alpha=1, scale=1, input_scale=1, out=None):
    scales = {"scale": float(scale), "input_scale": float(input_scale)}
    return b.layer("elu", x, alpha=float(alpha), **scales)


def _selu(b, x, out):
    return _elu(b, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def _celu(b, x, alpha=1.0, out=None):
    return _elu(b, x, alpha, 1, 1 / alpha)


def _prelu(b, x, weight, out):
    """There is one weight per channel, or one for all."""
    if x.rank > 1:
        weight = b.reshape(weight, (*weight.shape, *[1] * (x.rank - 2)))
    return b.layer("prelu", x, b.reshape(weight, ()) if x.rank == 0 else weight)


def _rrelu(b, x, lower=0.125, upper=1 / 3, training=False, out=None, **_):
    needs(not training, "rrelu in training mode")
    return b.layer("leaky_relu", x, alpha=(float(lower) + float(upper)) / 2)


def _log_sigmoid(b, x, out):
    return b.layer("neg", b.layer("softplus", b.layer("neg", x)))


def _hardshrink(b, x, out, lambd=0.5):
    near = b.layer("less_equal", b.layer("abs", x), float(lambd))
    return b.layer("where", near, b.value(0.0, x.dtype), x)


def _threshold(b, x, threshold, value, out):
    below = b.layer("less_equal", x, threshold)
    return b.layer("where", below, b.value(value, x.dtype), x)


def _softshrink(b, x, lambd=0.5, out=None):
    lambd = float(lambd)
    return b.layer("sub", x, b.layer("clamp", x, min=-lambd, max=lambd))


def _glu(b, x, out, dim=-1):
    axis = normal_axis(dim, x.rank)
    size = out[axis]
    a, gate = (b.layer("slice", x, axis=axis, start=i * size, shape=[size]) for i in (0, 1))
    return b.layer("mul", a, b.layer("sigmoid", gate))


# ---- Statistics, norms of vectors ----


def _norm(b, x, ord=2, dim=None, keepdim=False, out=None, **names):
    """linalg_vector_norm, and norm, which calls the order ``p``."""
    power = names.get("p", ord)
    if x.rank == 0 and power == 0:
        return b.cast(b.cast(x, "bool"), x.dtype)
    if x.rank == 0:
        return b.layer("abs", x)
    axes = all_axes(dim, x.rank)
    return b.layer("norm", x, p=float(2 if power is None else power), axes=axes, keepdim=keepdim)


def _variance(b, x, out, dim=None, unbiased=True, correction=None, keepdim=False):
    needs(x.rank > 0, "the variance of a number")
    correction = float(unbiased) if correction is None else float(correction)
    axes = all_axes(dim, x.rank)
    return b.layer("variance", x, correction=correction, axes=axes, keepdim=keepdim)


def _deviation(b, x, out, **names):
    return b.layer("sqrt", _variance(b, x, out, **names))


def _with_mean(statistic):
    """var_mean and std_mean: [the statistic, the mean]."""

    def run(b, x, out, dim=None, keepdim=False, **names):
        mean = b.layer("mean", x, axes=all_axes(dim, x.rank), keepdim=keepdim)
        return [statistic(b, x, out, dim=dim, keepdim=keepdim, **names), mean]

    return run


def _logsumexp(b, x, dim, out, keepdim=False):
    if x.rank == 0:
        return x
    return b.layer("logsumexp", x, axes=all_axes(dim, x.rank), keepdim=keepdim)


def _cosine_similarity(b, x1, x2, out, dim=1, eps=1e-8):
    """A dim of size 1 beside a larger one counts as often as that one."""
    shape = b.layer("mul", x1, x2).shape
    needs(shape, "the angle between numbers")
    axis = normal_axis(dim, len(shape))

    def unit(x):
        x = b.reshape(x, (1,) * (len(shape) - x.rank) + x.shape)
        if x.shape[axis] != shape[axis]:
            x = b.layer("expand", x, shape=[*x.shape[:axis], shape[axis], *x.shape[axis + 1 :]])
        size = b.layer("norm", x, axes=[axis], keepdim=True)
        return b.layer("div", x, b.layer("maximum", size, float(eps)))

    return b.layer("sum", b.layer("mul", unit(x1), unit(x2)), axes=[axis])


def _pairwise_distance(b, x1, x2, out, p=2, eps=1e-6, keepdim=False):
    return _norm(b, b.layer("add", b.layer("sub", x1, x2), float(eps)), p, [-1], keepdim)


# ---- The table ----


def _weight_norm(b, v, g, out, dim=0):
    """v in the length g: the norm runs over all dims but ``dim``. Of two parameters it is one again, such as a convolution's weight."""
    axes = [axis for axis in range(v.rank) if axis != normal_axis(dim, v.rank) or dim == -1]
    size = b.layer("norm", v, p=2.0, axes=axes, keepdim=True)
    return b.layer("mul", v, b.layer("div", g, size))


TABLE = {
    "_weight_norm.default": _weight_norm,
    "layer_norm.default": _layer_norm,
    "rms_norm.default": _rms_norm,
    "native_layer_norm.default": _native_layer_norm,
    "native_group_norm.default": _native_group_norm,
    "group_norm.default": _group_norm,
    "instance_norm.default": _instance_norm,
    "batch_norm.default": _batch_norm,
    "_native_batch_norm_legit_no_training.default": _batch_norm_inference,
    "_native_batch_norm_legit_functional.default": _batch_norm_training,
    "_native_batch_norm_legit.no_stats": _batch_norm_untracked,
    "softmax.int _softmax.default special_softmax.int": _softmax("softmax"),
    "log_softmax.int _log_softmax.default special_log_softmax.int": _softmax("log_softmax"),
    "_safe_softmax.default": _safe_softmax,
    "scaled_dot_product_attention.default": _attention,
    "elu.default": _elu,
    "selu.default": _selu,
    "celu.default": _celu,
    "prelu.default": _prelu,
    "rrelu.default": _rrelu,
    "log_sigmoid.default": _log_sigmoid,
    "hardshrink.default": _hardshrink,
    "softshrink.default": _softshrink,
    "threshold.default": _threshold,
    "glu.default": _glu,
    "linalg_vector_norm.default norm.Scalar norm.ScalarOpt_dim frobenius_norm.dim": _norm,
    "var.default var.dim var.correction": _variance,
    "std.default std.dim std.correction": _deviation,
    "var_mean.default var_mean.dim var_mean.correction": _with_mean(_variance),
    "std_mean.default std_mean.dim std_mean.correction": _with_mean(_deviation),
    "logsumexp.default special_logsumexp.default": _logsumexp,
    "cosine_similarity.default": _cosine_similarity,
    "pairwise_distance.default": _pairwise_distance,
}

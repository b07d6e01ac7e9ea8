"""A part of the table of ATen ops (ops.py): convolutions and pools of volumes [n,c,d,h,w], largest values with their positions.

Of these layers only conv knows a depth. A pool of windows is a pool of images, then one along the depth: a largest value or a
mean over a box is one over each dim in turn. The table and its conventions are those of ops.py.
"""

import functools
import math

import torch

from sol.pytorch import ops_window
from sol.pytorch.builder import batched, needs, pair
from sol.pytorch.ops_index import gather
from sol.pytorch.ops_math import FLOATS

MAX_DEPTH = 64  # values of a window along the depth; each becomes a slice


def _triple(x):
    x = list(x) if isinstance(x, (list, tuple)) else [x]
    return x * 3 if len(x) == 1 else x


def _batched(b, x, run):
    """Runs an op of [n,c,d,h,w] tensors for ``x`` of this shape or [c,d,h,w]."""
    return batched(b, x, 5, "depth, rows and columns", run)


# ---- Convolution ----


def _pads(padding, kernel, dilation):
    """Returns the numbers of zeros before and behind each dim. If 'same' needs an odd padding, the larger half is behind."""
    if padding == "valid":
        return [0] * 3, [0] * 3
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return [t // 2 for t in total], [t - t // 2 for t in total]
    return _triple(padding), _triple(padding)


def conv3d(b, x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, out=None):
    return _batched(
        b, x, lambda x5: _conv_volumes(b, x5, weight, bias, stride, padding, dilation, groups)
    )


def _conv_volumes(b, x, weight, bias, stride, padding, dilation, groups):
    stride, dilation, kernel = _triple(stride), _triple(dilation), weight.shape[2:]
    before, behind = _pads(padding, kernel, dilation)
    if not weight.constant:
        return _conv_images(b, x, weight, bias, stride, (before, behind), dilation, groups)
    inputs = [weight] if bias is None else [weight, bias]
    depth = [stride[0], dilation[0], before[0], behind[0]]
    window = {"stride": stride[1:], "pad": before[1:] + behind[1:], "dilation": dilation[1:]}
    return b.layer("conv", x, *inputs, groups=groups, depth=depth, **window)


def _conv_images(b, x, weight, bias, stride, padding, dilation, groups):
    """For a computed weight. Channel c * depth + i of the images is number i of the depth's window of channel c; so are the
    weight's dims joined."""
    before, behind = padding
    kernel = weight.shape[2:]
    x = _pad_depth(b, x, before[0], behind[0])
    n, c, _, h, w = x.shape
    windows, depth = _windows(b, x, kernel[0], stride[0], dilation[0])
    images = b.reshape(windows, (n, c * kernel[0], depth, h, w))
    images = b.reshape(
        b.layer("permute", images, axes=[0, 2, 1, 3, 4]), (n * depth, c * kernel[0], h, w)
    )
    flat = b.reshape(weight, (weight.shape[0], weight.shape[1] * kernel[0], *kernel[1:]))
    y = ops_window.conv(
        b, images, flat, bias, stride[1:], before[1:] + behind[1:], dilation[1:], groups
    )
    y = b.reshape(y, (n, depth, *y.shape[1:]))
    return b.layer("permute", y, axes=[0, 2, 1, 3, 4])


def conv_transpose3d(
    b, x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, out=None
):
    """Along the depth it is a convolution by the reversed kernel: of the input with zeros between its images, and at both ends."""
    triples = map(_triple, (stride, padding, output_padding, dilation))
    run = functools.partial(_transposed_images, b, weight, bias, groups, *triples)
    return _batched(b, x, run)


def _transposed_images(b, weight, bias, groups, stride, padding, output_padding, dilation, x):
    size = weight.shape[2]
    reach = dilation[0] * (size - 1)
    before, behind = reach - padding[0], reach - padding[0] + output_padding[0]
    needs(before >= 0 and behind >= 0, "a padding that is larger than the kernel")
    x = _pad_depth(b, _insert_zeros(b, x, stride[0]), before, behind)
    n, c, _, h, w = x.shape
    windows, depth = _windows(b, x, size, 1, dilation[0])
    images = b.reshape(windows, (n, c * size, depth, h, w))
    images = b.layer("permute", images, axes=[0, 2, 1, 3, 4])
    images = b.reshape(images, (n * depth, c * size, h, w))
    if size > 1:
        weight = b.layer("slice", weight, axis=2, start=size - 1, step=-1, shape=[size])
    flat = b.layer("permute", weight, axes=[0, 2, 1, 3, 4])
    flat = b.reshape(flat, (c * size, *flat.shape[2:]))
    if not weight.constant:
        window = (stride[1:], padding[1:], output_padding[1:], groups, dilation[1:])
        y = ops_window.conv_transpose(b, images, flat, bias, *window)
        y = b.reshape(y, (n, depth, *y.shape[1:]))
        return b.layer("permute", y, axes=[0, 2, 1, 3, 4])
    inputs = [flat] if bias is None else [flat, bias]
    attributes = {
        "stride": stride[1:],
        "dilation": dilation[1:],
        "groups": groups,
        "pad": padding[1:] * 2,
        "output_pad": output_padding[1:],
    }
    y = b.layer("conv_transpose", images, *inputs, **attributes)
    y = b.reshape(y, (n, depth, *y.shape[1:]))
    return b.layer("permute", y, axes=[0, 2, 1, 3, 4])


def _insert_zeros(b, x, stride):
    """Puts stride - 1 images of zeros between the images along the depth."""
    if stride == 1:
        return x
    n, c, d, h, w = x.shape
    y = b.layer("pad", b.reshape(x, (n, c, d, 1, h * w)), pad=[0, 0, stride - 1, 0])
    y = b.reshape(y, (n, c, d * stride, h, w))
    return b.layer("slice", y, axis=2, start=0, step=1, shape=[(d - 1) * stride + 1])


def _pad_depth(b, x, before, behind):
    if not before and not behind:
        return x
    n, c, d, h, w = x.shape
    y = b.layer("pad", b.reshape(x, (n, c, d, h * w)), pad=[before, 0, behind, 0])
    return b.reshape(y, (n, c, y.shape[2], h, w))


def _windows(b, x, size, stride, dilation):
    """Returns ([n,c,size,depth,h,w], depth): number i of all windows along the depth is a slice."""
    needs(size <= MAX_DEPTH, f"windows of {size} values")
    depth = (x.shape[2] - dilation * (size - 1) - 1) // stride + 1
    parts = []
    for i in range(size):
        part = b.layer("slice", x, axis=2, start=i * dilation, step=stride, shape=[depth])
        parts.append(b.reshape(part, (*x.shape[:2], 1, depth, *x.shape[3:])))
    return (b.layer("concat", *parts, axis=2) if size > 1 else parts[0]), depth


# ---- Pools ----


def _pool(kind, b, x, kernel, stride, padding, dilation, **names):
    """A pool of images [n * d, c, h, w], then of the depth as rows of images [n, c, d, h * w]."""
    n, c, d = x.shape[:3]

    def window(part):
        return {
            "kernel": kernel[part],
            "stride": stride[part],
            "pad": padding[part] * 2,
            **({"dilation": dilation[part]} if kind == "max_pool" else {}),
            **names,
        }

    y = b.reshape(x, (n, c * d, *x.shape[3:]))
    y = b.layer(kind, y, **window(slice(1, 3)))
    h, w = y.shape[2:]
    y = b.reshape(y, (n, c, d, h * w))
    kernel, stride, padding = [kernel[0], 1], [stride[0], 1], [padding[0], 0]
    dilation = [dilation[0], 1]
    y = b.layer(kind, y, **window(slice(0, 2)))
    return b.reshape(y, (n, c, y.shape[2], h, w))


def _strides(stride, kernel):
    return kernel if stride in ([], None) else _triple(stride)


def _max_pool3d(b, x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, out=None):
    kernel = _triple(kernel_size)
    window = (kernel, _strides(stride, kernel), _triple(padding), _triple(dilation))
    return _batched(b, x, lambda x5: _pool("max_pool", b, x5, *window, ceil=bool(ceil_mode)))


def _avg_pool3d(
    b, x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
    divisor_override=None, out=None,
):  # fmt: skip
    kernel = _triple(kernel_size)
    window = (kernel, _strides(stride, kernel), _triple(padding), [1, 1, 1])
    names = {"ceil": bool(ceil_mode), "count_pad": bool(count_include_pad)}
    if (
        divisor_override is not None
    ):  # the sum of each window: a mean of all values and zeros, times their number
        needs(not ceil_mode, "avg_pool3d with divisor_override and ceil_mode")
        names["count_pad"] = True
        y = _batched(b, x, lambda x5: _pool("avg_pool", b, x5, *window, **names))
        return b.layer("mul", y, math.prod(kernel) / divisor_override)
    return _batched(b, x, lambda x5: _pool("avg_pool", b, x5, *window, **names))


def _adaptive_avg_pool3d(b, x, output_size, out):
    size = list(out[-3:])
    needs(all(isinstance(n, int) for n in size), "adaptive pooling to an open size")
    if size == [1, 1, 1]:
        return b.layer("mean", x, axes=[x.rank - 3, x.rank - 2, x.rank - 1], keepdim=True)

    def run(x5):
        n, c, d = x5.shape[:3]
        y = b.reshape(x5, (n, c * d, *x5.shape[3:]))
        y = b.layer("adaptive_avg_pool", y, kernel=size[1:])
        columns = size[1] * size[2]
        y = b.reshape(y, (n, c, d, columns))
        y = b.layer("adaptive_avg_pool", y, kernel=[size[0], columns])
        return b.reshape(y, (n, c, *size))

    return _batched(b, x, run)


# ---- Largest values with their positions ----


def _max_pool_with_indices(
    b, x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False, out=None
):
    """Of images [.., h, w] with any number of dims in front. As PyTorch, the first largest value of a window is found, but the last
    NaN."""
    kernel, padding, dilation = map(pair, (kernel_size, padding, dilation))
    needs(x.dtype in FLOATS, "positions of largest integers")
    needs(padding == [0, 0] or dilation == [1, 1], "padding with dilation")
    window = {
        "kernel": kernel,
        "stride": pair(stride or kernel),
        "pad": padding * 2,
        "dilation": dilation,
        "ceil": bool(ceil_mode),
    }
    lead = (1, 1, *x.shape[:-2])[-max(2, x.rank - 2) :]
    image = b.reshape(x, (lead[0], math.prod(lead[1:]), *x.shape[-2:]))
    best = b.layer("max_pool", image, **window)
    at = b.layer("cast", b.layer("max_pool_index", image, **window), dtype="i64")
    return [b.reshape(best, out[0]), b.reshape(at, out[0])]


def _max_pool3d_with_indices(
    b, x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False, out=None
):
    """The largest values of the images and their positions, then the largest one along the depth: [.., d, rows * columns] are images
    whose columns are windows of one."""
    kernel, padding, dilation = map(_triple, (kernel_size, padding, dilation))
    stride, whole, size = _triple(stride or kernel), x.shape[-3:], out[0][-3:]
    lead = x.shape[:-3]
    shape = (*lead, whole[0], *size[1:])
    window = [t[1:] for t in (kernel, stride, padding, dilation)]
    best, at = _max_pool_with_indices(b, x, *window, ceil_mode, [shape, shape])
    columns = (*lead, whole[0], size[1] * size[2])
    best, at = b.reshape(best, columns), b.reshape(at, columns)
    window = [[t[0], one] for t, one in ((kernel, 1), (stride, 1), (padding, 0), (dilation, 1))]
    shape = (*lead, size[0], columns[-1])
    best, number = _max_pool_with_indices(b, best, *window, ceil_mode, [shape, shape])
    at = gather(
        b,
        b.reshape(at, (*lead, math.prod(columns[-2:]))),
        len(lead),
        b.reshape(number, (*lead, math.prod(shape[-2:]))),
        shape,
    )
    depth = b.layer("floor_div", number, columns[-1])
    at = b.layer("add", b.layer("mul", depth, whole[1] * whole[2]), at)
    return [b.reshape(best, out[0]), b.reshape(at, out[0])]


def _max_pool1d_with_indices(
    b, x, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False, out=None
):
    """Of images with one row."""

    def beside(sizes, first):
        sizes = sizes if isinstance(sizes, (list, tuple)) else [sizes]
        return [first, *sizes] if sizes else []

    image = b.reshape(x, (*x.shape[:-1], 1, x.shape[-1]))
    shape = (*out[0][:-1], 1, out[0][-1])
    window = (beside(kernel_size, 1), beside(stride, 1), beside(padding, 0), beside(dilation, 1))
    results = _max_pool_with_indices(b, image, *window, ceil_mode, [shape, shape])
    return [b.reshape(y, out[0]) for y in results]


def _adaptive_max_pool(n_dims):
    """Each window's values become the last dim; its largest value is the result. Windows that are shorter than others repeat
    their last value, which changes neither the largest one nor its first position."""

    def run(b, x, output_size, out):
        size, whole = out[0][-n_dims:], x.shape[-n_dims:]
        fixed = all(isinstance(n, int) for n in (*size, *whole))
        needs(fixed, "adaptive pooling of unknown sizes")
        starts = [[i * n // k for i in range(k)] for n, k in zip(whole, size)]
        ends = [[-(-(i + 1) * n // k) for i in range(k)] for n, k in zip(whole, size)]
        windows = [max(j - i for i, j in zip(*pair)) for pair in zip(starts, ends)]
        for i in range(n_dims):
            x = _spread(b, x, x.rank - n_dims + i, starts[i], ends[i], windows[i])
        y = _join_windows(b, x, size, windows)
        position = b.layer("argmax", y, axis=y.rank - 1)
        best = b.layer("reduce_max", y, axes=[y.rank - 1], strict=True)
        return [b.reshape(best, out[0]), _positions(b, position, starts, windows, whole, out[0])]

    return run


def _spread(b, x, axis, starts, ends, size):
    """Puts windows of ``size`` values along a dim, one behind the other."""
    if len(starts) * size == x.shape[axis]:
        return x
    rows = [min(i + j, end - 1) for i, end in zip(starts, ends) for j in range(size)]
    return b.layer("gather", x, b.constant(torch.tensor(rows)), axis=axis, wraps=False)


def _join_windows(b, x, size, windows):
    lead = x.shape[: x.rank - len(size)]
    if all(k == 1 for k in size):
        return b.reshape(x, (*lead, *size, math.prod(windows)))
    y = b.reshape(x, (*lead, *(k for pair in zip(size, windows) for k in pair)))
    first = len(lead)
    axes = [*range(first), *range(first, y.rank, 2), *range(first + 1, y.rank, 2)]
    y = b.layer("permute", y, axes=axes)
    return b.reshape(y, (*lead, *size, math.prod(windows)))


def _positions(b, position, starts, windows, whole, shape):
    """Turns positions in windows into positions in the whole tensor, in row-major order."""
    result, inner = None, math.prod(windows)
    n = len(starts)
    for i in range(n):
        inner //= windows[i]
        own = b.layer("mod", b.layer("floor_div", position, inner), windows[i])
        if len(starts[i]) > 1:
            first = b.constant(torch.tensor(starts[i]))
            own = b.layer("add", own, b.reshape(first, (len(starts[i]), *[1] * (n - 1 - i))))
        own = b.layer("mul", own, math.prod(whole[i + 1 :]))
        result = own if result is None else b.layer("add", result, own)
    return b.reshape(result, shape)


def _extremes(b, x, out, dim=None, keepdim=False):
    """aminmax: [the smallest, the largest]."""
    axes = list(range(x.rank)) if dim is None else [dim % max(1, x.rank)]
    if x.rank == 0:
        return [x, x]
    kinds = ("reduce_min", "reduce_max")
    return [b.reshape(b.layer(kind, x, axes=axes, keepdim=True), out[0]) for kind in kinds]


TABLE = {
    "conv3d.default conv3d.padding": conv3d,
    "conv_transpose3d.input": conv_transpose3d,
    "max_pool3d.default": _max_pool3d,
    "avg_pool3d.default": _avg_pool3d,
    "adaptive_avg_pool3d.default": _adaptive_avg_pool3d,
    "max_pool1d_with_indices.default": _max_pool1d_with_indices,
    "max_pool2d_with_indices.default": _max_pool_with_indices,
    "max_pool3d_with_indices.default": _max_pool3d_with_indices,
    "adaptive_max_pool1d.default": _adaptive_max_pool(1),
    "adaptive_max_pool2d.default": _adaptive_max_pool(2),
    "adaptive_max_pool3d.default": _adaptive_max_pool(3),
    "aminmax.default": _extremes,
}

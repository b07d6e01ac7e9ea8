"""A part of the table of ATen ops (ops.py): ops that rearrange, repeat or replace values, and triangles
of matrices."""

import math

import torch

from sol.pytorch.builder import batched, needs, normal_axis, pair

# ---- Order of values ----


def flip(b, x, dims, out):
    for dim in dims:
        axis = normal_axis(dim, x.rank)
        if x.rank and x.shape[axis] != 1:
            x = b.slice(x, axis, x.shape[axis] - 1, x.shape[axis], -1)
    return x


def roll(b, x, shifts, out, dims=()):
    """Without dims, the values are rolled in row-major order."""
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    if not dims:
        flat = b.reshape(x, (math.prod(x.shape),))
        return b.reshape(roll(b, flat, shifts, flat.shape, [0]), x.shape)
    for shift, dim in zip(shifts, dims if isinstance(dims, (list, tuple)) else [dims]):
        axis = normal_axis(dim, x.rank)
        size = x.shape[axis]
        first = size - shift % size if size != 0 else 0  # becomes number 0
        if first not in (0, size):
            parts = b.slice(x, axis, first, size - first), b.slice(x, axis, 0, first)
            x = b.layer("concat", *parts, axis=axis)
    return x


def _movedim(b, x, source, destination, out):
    source, destination = (
        [normal_axis(d, x.rank) for d in (dims if isinstance(dims, (list, tuple)) else [dims])]
        for dims in (source, destination)
    )
    axes = [d for d in range(x.rank) if d not in source]
    for to, axis in sorted(zip(destination, source)):
        axes.insert(to, axis)
    return x if axes == sorted(axes) else b.layer("permute", x, axes=axes)


def _turn(b, x, out):
    """numpy_T: reverses the order of all dims."""
    return x if x.rank < 2 else b.layer("permute", x, axes=list(reversed(range(x.rank))))


def _turn_matrix(b, x, out):
    """mT: exchanges the last two dims."""
    return b.layer("permute", x, axes=[*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _regroup(b, x, parts, axes, out):
    """Splits dims into ``parts``, permutes these, and joins them to the shape ``out``."""
    return b.reshape(b.layer("permute", b.reshape(x, parts), axes=axes), out)


def _pixel_shuffle(b, x, upscale_factor, out):
    factor, lead = upscale_factor, list(x.shape[:-3])
    channels, rows, columns = x.shape[-3] // factor**2, *x.shape[-2:]
    axes = [*range(len(lead)), *(len(lead) + i for i in (0, 3, 1, 4, 2))]
    return _regroup(b, x, (*lead, channels, factor, factor, rows, columns), axes, out)


def _pixel_unshuffle(b, x, downscale_factor, out):
    factor, lead = downscale_factor, list(x.shape[:-3])
    for size in lead:
        if not isinstance(size, int):
            b.exclude(size, 0)  # PyTorch returns an empty batch in its old shape
    channels, rows, columns = x.shape[-3], *(size // factor for size in x.shape[-2:])
    axes = [*range(len(lead)), *(len(lead) + i for i in (0, 2, 4, 1, 3))]
    return _regroup(b, x, (*lead, channels, rows, factor, columns, factor), axes, out)


def _channel_shuffle(b, x, groups, out):
    batch, channels, *rest = x.shape
    axes = [0, 2, 1, *range(3, len(rest) + 3)]
    return _regroup(b, x, (batch, groups, channels // groups, *rest), axes, out)


# ---- Windows ----

MAX_WINDOW = 256  # values of a window; each becomes a slice


def _unfold(b, x, dimension, size, step, out):
    """Windows along one dim; their values become the last dim: value j of all windows is a slice."""
    axis, n = normal_axis(dimension, x.rank), out[normal_axis(dimension, x.rank)]
    needs(x.rank > 0 and size <= MAX_WINDOW, f"windows of {size} values")
    parts = [b.slice(x, axis, j, n, step) for j in range(size)]
    return b.layer("concat", *(b.reshape(part, (*part.shape, 1)) for part in parts), axis=x.rank)


def im2col(b, x, kernel_size, dilation, padding, stride, out):
    """The windows of images [n,c,h,w] as columns [n, c * window, number of windows]."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = map(pair, (kernel_size, dilation, padding, stride))
    needs(x.rank == 4 and kh * kw <= MAX_WINDOW, f"windows of {kh * kw} values")
    if ph or pw:
        x = b.layer("pad", x, pad=[ph, pw, ph, pw])
    h, w = x.shape[2:]
    rows, columns = (h - dh * (kh - 1) - 1) // sh + 1, (w - dw * (kw - 1) - 1) // sw + 1
    parts = []
    for i in range(kh):
        lines = b.slice(x, 2, i * dh, rows, sh)
        for j in range(kw):
            part = b.slice(lines, 3, j * dw, columns, sw)
            parts.append(b.reshape(part, (*x.shape[:2], 1, rows * columns)))
    return b.reshape(b.layer("concat", *parts, axis=2), out)


def _col2im(b, x, output_size, kernel_size, dilation, padding, stride, out):
    """The sums of windows where they overlap: the inverse of im2col, from columns to images [n,c,h,w]."""
    window = list(zip(*map(pair, (kernel_size, dilation, padding, stride))))  # of rows, of columns
    (kh, _, ph, _), (kw, _, pw, _) = window
    needs(kh * kw <= MAX_WINDOW, f"windows of {kh * kw} values")
    needs(all(isinstance(size, int) for size in out[-2:]), "windows of images of open sizes")

    def run(columns):
        n, h, w = columns.shape[0], *out[-2:]
        counts = [
            (s + 2 * p - d * (k - 1) - 1) // st + 1 for s, (k, d, p, st) in zip((h, w), window)
        ]
        parts = b.reshape(columns, (n, out[-3], kh, kw, *counts))
        if all(k == st and d == 1 and p == 0 for k, d, p, st in window) and h % kh == w % kw == 0:
            return _regroup(b, parts, parts.shape, [0, 1, 4, 2, 5, 3], (n, *out[-3:]))
        image = _add_windows(
            b, parts, window, [-(-(s + 2 * p) // st) for s, (_, _, p, st) in zip((h, w), window)]
        )
        return b.slice(b.slice(image, 2, ph, h), 3, pw, w)

    return batched(b, x, 3, "windows", run)


def _add_windows(b, parts, window, whole):
    """Returns the sums of windows, with the padding. ``parts``: [n,c,kernel rows and columns,number of windows in both dims].

    With the stride s, value i of a window, with dilation d, belongs to the pixels s * q + r, where r is i * d mod s. So the pixels of
    each r, the phase, are a sum of some of the parts, each shifted by whole windows. ``whole``: how many q there are.
    """
    (kh, dh, _, sh), (kw, dw, _, sw) = window
    phases = {}
    for i in range(kh):
        for j in range(kw):
            part = b.slice(b.slice(parts, 2, i, 1), 3, j, 1)
            part = b.reshape(part, (*parts.shape[:2], *parts.shape[4:]))
            top, left = i * dh // sh, j * dw // sw
            behind = [n - size - t for n, size, t in zip(whole, parts.shape[4:], (top, left))]
            part = b.layer("pad", part, pad=[top, left, *behind])
            phase = i * dh % sh, j * dw % sw
            phases[phase] = b.layer("add", phases[phase], part) if phase in phases else part
    shape = (*parts.shape[:2], *whole)
    apart = (*parts.shape[:2], whole[0], 1, whole[1], 1)
    nothing = b.layer("expand", b.value(0.0, parts.dtype), shape=list(shape))
    rows = []
    for r in range(sh):
        columns = [b.reshape(phases.get((r, q), nothing), apart) for q in range(sw)]
        rows.append(b.layer("concat", *columns, axis=5) if sw > 1 else columns[0])
    image = b.layer("concat", *rows, axis=3) if sh > 1 else rows[0]
    return b.reshape(image, (*parts.shape[:2], whole[0] * sh, whole[1] * sw))


# ---- Repetitions ----


def _repeat(b, x, repeats, out):
    """[h, w] becomes [1, h, 1, w]; this is expanded, and pairs of dims are joined."""
    shape = (1,) * (len(repeats) - x.rank) + x.shape
    if all(times == 1 for times in repeats):
        return b.reshape(x, shape)
    apart = [size for dim in shape for size in (1, dim)]
    full = [size for pair in zip(repeats, shape) for size in pair]
    return b.reshape(b.layer("expand", b.reshape(x, apart), shape=full), out)


def _tile(b, x, dims, out):
    return _repeat(b, x, [1] * (x.rank - len(dims)) + list(dims), out)


def _repeat_interleave(b, x, repeats, out, dim=None, output_size=None):
    if dim is None:
        x, dim = b.reshape(x, (math.prod(x.shape),)), 0
    axis = normal_axis(dim, x.rank)
    apart = (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])
    full = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    return b.reshape(b.layer("expand", b.reshape(x, apart), shape=list(full)), out)


# ---- Padding ----


def _pairs(x, pad):
    """Yields (axis, number of values before, after) of a padding, which begins with the last dim."""
    for i in range(0, len(pad), 2):
        yield x.rank - 1 - i // 2, pad[i], pad[i + 1]


def crop(b, x, pad):
    """Removes the values that a padding below 0 removes."""
    for axis, before, after in _pairs(x, pad):
        gone = max(0, -before), max(0, -after)
        if any(gone):
            x = b.slice(x, axis, gone[0], x.shape[axis] - sum(gone))
    return x


def pad_outer_dims(b, x, pad, value):
    """Constant padding of dims -3, -4, .., each as the rows of a matrix whose columns are the dims behind it."""
    for axis, before, after in _pairs(x, [0] * 4 + list(pad)):
        if before or after:
            front, size, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
            rows = b.reshape(x, (*front, size, math.prod(rest)))
            rows = b.layer("pad", rows, pad=[before, 0, after, 0], value=float(value))
            x = b.reshape(rows, (*front, size + before + after, *rest))
    return x


def _side(b, x, axis, size, mode, is_front):
    """Returns the ``size`` values that a padding puts in front of ``x``, or behind it."""
    whole = x.shape[axis]
    if mode == "replicate":
        edge = b.slice(x, axis, 0 if is_front else whole - 1, 1)
        return b.layer("expand", edge, shape=[*x.shape[:axis], size, *x.shape[axis + 1 :]])
    if mode == "circular":
        return b.slice(x, axis, whole - size if is_front else 0, size)
    return b.slice(x, axis, size if is_front else whole - 2, size, -1)


def pad_with_copies(b, x, pad, mode):
    """Pads with values of ``x``: reflect, replicate, circular."""
    needs(mode in ("reflect", "replicate", "circular"), f"pad with mode={mode}")
    x = crop(b, x, pad)
    for axis, before, after in _pairs(x, pad):
        needs(isinstance(x.shape[axis], int), "padding of a dim of unknown size")
        front = [_side(b, x, axis, before, mode, True)] if before > 0 else []
        behind = [_side(b, x, axis, after, mode, False)] if after > 0 else []
        if front or behind:
            x = b.layer("concat", *front, x, *behind, axis=axis)
    return x


# ---- Writes into a part: the functional form of `x[...] = source` ----


def _copy(b, x, src, out, non_blocking=False):
    return src if src.shape == tuple(out) else b.layer("expand", src, shape=list(out))


def _fill(b, x, value, out):
    value = b.value(value)
    return b.layer("expand", value, shape=list(out)) if out else value


def first_index(start, whole):
    """Returns the first index of a slice: negative ones count from the end. Open sizes are large enough: a call checks."""
    if isinstance(start, int) and start < 0:
        start += whole
    if isinstance(start, int) and isinstance(whole, int):
        return min(max(start, 0), whole)
    return start


def _put(b, x, source, axis, start):
    """Returns ``x`` with ``source`` in place of the values along an axis from ``start`` on."""
    size = source.shape[axis]
    rest = x.shape[axis] - start - size
    front = [b.slice(x, axis, 0, start)] if start != 0 else []
    behind = [b.slice(x, axis, start + size, rest)] if rest != 0 else []
    return b.layer("concat", *front, source, *behind, axis=axis) if front or behind else source


def _slice_scatter(b, x, src, out, dim=0, start=None, end=None, step=1):
    axis = normal_axis(dim, x.rank)
    if src.shape == x.shape:
        return src
    if src.shape[axis] == 0:
        return x
    start = first_index(start or 0, x.shape[axis])
    if step != 1:
        return _put_apart(b, x, src, axis, start, step)
    return _put(b, x, src, axis, start)


def _put_apart(b, x, source, axis, start, step):
    """Returns ``x`` with the values of ``source`` at every ``step``-th position of an axis."""
    whole, n = x.shape[axis], source.shape[axis]
    needs(isinstance(start, int) and isinstance(whole, int), "a write with steps of unknown size")
    numbers = [(i - start) // step for i in range(whole)]
    written = [i >= start and (i - start) % step == 0 for i in range(whole)]
    rows = b.constant(torch.tensor([min(max(k, 0), n - 1) for k in numbers]))
    mask = b.reshape(b.constant(torch.tensor(written)), (whole, *[1] * (x.rank - 1 - axis)))
    return b.layer("where", mask, b.layer("gather", source, rows, axis=axis, wraps=False), x)


def _select_scatter(b, x, src, dim, index, out):
    axis = normal_axis(dim, x.rank)
    part = b.reshape(src, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _put(b, x, part, axis, first_index(index, x.shape[axis]))


# ---- Triangles ----


def _triangle(kind):
    return lambda b, x, out, diagonal=0: b.layer(kind, x, diagonal=diagonal)


# ---- The table ----

TABLE = {
    "flip.default": flip,
    "roll.default": roll,
    "movedim.int movedim.intlist": _movedim,
    "numpy_T.default": _turn,
    "mT.default mH.default adjoint.default matrix_H.default": _turn_matrix,
    "pixel_shuffle.default": _pixel_shuffle,
    "pixel_unshuffle.default": _pixel_unshuffle,
    "channel_shuffle.default native_channel_shuffle.default": _channel_shuffle,
    "unfold.default unfold_copy.default": _unfold,
    "im2col.default": im2col,
    "col2im.default": _col2im,
    "repeat.default": _repeat,
    "tile.default": _tile,
    "repeat_interleave.self_int": _repeat_interleave,
    "copy.default": _copy,
    "fill.Scalar fill.Tensor": _fill,
    "zero.default": lambda b, x, out: _fill(b, x, 0, out),
    "slice_scatter.default": _slice_scatter,
    "select_scatter.default": _select_scatter,
    "tril.default": _triangle("tril"),
    "triu.default": _triangle("triu"),
}

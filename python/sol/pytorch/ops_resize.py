"""ATen ops that resize images: upsampling in all modes, dim by dim.

Such an op is linear and treats each dim on its own. So PyTorch's op, applied to the unit vectors of one dim, gives the weights
of all its results: the rows of a matrix, with the rounding and the treatment of edges that PyTorch has. Rows with few weights
are the taps of a layer resample, which takes two neighboring dims at once; others (antialiasing) a product with the matrix. The table
and its conventions are those of ops.py.

An open dim that becomes an integer number of times as large has the same weights around each of its values. They are read from the
matrices of small sizes, too. For other open sizes, the nearest value is a gather: layers compute its indices at each call.
"""

import functools

import sympy
import torch

from sol.pytorch.builder import needs

MAX_TAPS = 16  # of a layer resample
MAX_GATHERS = 4  # of f64, which resample does not take: a cubic polynomial has four taps
MAX_SIZE = 4096  # of a dim; the matrix has the product of two sizes


def _upsample(name, n_dims):
    """``n_dims``: how many dims the op resizes."""
    op = getattr(torch.ops.aten, name)
    center = _CENTERS.get(name[:-2])

    def run(b, x, out, output_size=None, align_corners=None, scale_factors=None, **scales):
        given = [] if align_corners is None else [align_corners]
        factors = scale_factors or [scales.get(key) for key in _scale_names(n_dims)]
        waiting = []  # the taps of the dim before
        for i in range(n_dims):
            apply = functools.partial(_apply, op, given, [None] * (n_dims - 1) + [factors[i]])
            axis = x.rank - n_dims + i
            taps = _find_taps(x, axis, out[axis], apply) if x.dtype != "f64" else None
            if len(waiting) == 2 or (waiting and not taps):
                x, waiting = _resample(b, x, waiting), []
            if taps:
                waiting.append(taps)
            elif center is not None and _is_open(x.shape[axis], out[axis]):
                x = _take_nearest(b, x, axis, out[axis], factors[i], center)
            else:
                x = _resize(b, x, axis, out[axis], apply)
        return _resample(b, x, waiting) if waiting else x

    return run


def _scale_names(n_dims):
    return ["scales"] if n_dims == 1 else ["scales_d", "scales_h", "scales_w"][-n_dims:]


def _apply(op, given, factors, units, n):
    """Runs the op on rows, [c, size], and returns [c, n]. An image has one row: PyTorch 2.13 with antialias resizes an image of
    one column wrongly."""
    beside = [1] * (len(factors) - 1)
    image = units.reshape(1, len(units), *beside, units.shape[1])
    return op.default(image, [*beside, n], *given, *factors).reshape(len(units), n)


def _find_matrix(x, axis, n, apply):
    """The weights [n, size] of a dim whose sizes are known."""
    size = x.shape[axis]
    needs(0 < size <= MAX_SIZE and 0 < n <= MAX_SIZE, f"resizing {size} values to {n}")
    units = torch.eye(size, dtype=torch.float64 if x.dtype == "f64" else torch.float32)
    return apply(units, n).T.contiguous()


def _split(matrix):
    """The indices and weights [n, taps] of each row. An element without weight is no tap: it repeats another one, since 0 times an
    infinity is no 0."""
    taps = max(int((matrix != 0).sum(1).max()), 1)
    weights, index = matrix.abs().topk(taps, 1)
    index = torch.where(weights == 0, index[:, :1], index).sort(1).values
    weights = matrix.gather(1, index)
    repeated = index[:, 1:] == index[:, :-1]
    weights[:, 1:][repeated] = 0
    return index, weights


def _is_choice(weights):
    return weights.shape[1] == 1 and bool((weights == 1).all())


def _find_taps(x, axis, n, apply):
    """(axis, index, weights), or None if the dim is no weighted sum of few values."""
    size = x.shape[axis]
    if not isinstance(size, int) or not isinstance(n, int):
        return None
    matrix = _find_matrix(x, axis, n, apply)
    if n == size and torch.equal(matrix, torch.eye(n)):
        return None
    index, weights = _split(matrix)
    if _is_choice(weights) or index.shape[1] > MAX_TAPS:
        return None
    return axis, index, weights


def _resample(b, x, dims):
    """Resamples one dim, or two neighbors, by their taps."""
    dtype, inputs = x.dtype, []
    for _, index, weights in dims:
        inputs += [b.constant(index.T.contiguous()), b.constant(weights.T.contiguous())]
    y = b.layer("resample", b.cast(x, "f32"), *inputs, axis=dims[0][0])
    return b.cast(y, dtype)


def _resize(b, x, axis, n, apply):
    """Resizes one dim to ``n`` values. ``apply``: PyTorch's op on rows."""
    size = x.shape[axis]
    if not isinstance(size, int) or not isinstance(n, int):
        return _enlarge(b, x, axis, n, apply)
    matrix = _find_matrix(x, axis, n, apply)
    if n == size and torch.equal(matrix, torch.eye(n, dtype=matrix.dtype)):
        return x
    index, weights = _split(matrix)
    if _is_choice(weights):
        return _pick(b, x, axis, n, index[:, 0])
    if index.shape[1] > MAX_GATHERS:
        return _multiply(b, x, axis, matrix)
    return _add_taps(b, x, axis, index, weights)


# ---- Open sizes ----

# {an op that takes the nearest value: the place in a result, from 0 to 1, whose value it takes}
_CENTERS = {"upsample_nearest": 0.0, "_upsample_nearest_exact": 0.5}


def _is_open(size, n):
    """Is one of the sizes open, and ``n`` no multiple of ``size`` for which _enlarge is faster?"""
    if isinstance(size, int) and isinstance(n, int):
        return False
    k = sympy.cancel(sympy.sympify(n) / size)
    return size != n and not (k.is_Integer and k <= MAX_FACTOR)


def _take_nearest(b, x, axis, n, factor, center):
    """Result number i is value floor((i + center) * size / n), computed in f32 as PyTorch does. A given ``factor`` replaces n / size."""
    needs(x.dtype != "f64", "resizing open dims of f64")

    def number(size):
        return b.cast(b.layer("arange", start=size, step=0, shape=[1], dtype="i64"), "f32")

    size = x.shape[axis]
    scale = b.layer("div", number(size), number(n))
    if factor:
        scale = b.scalar(float(torch.tensor(1 / factor, dtype=torch.float32)))
    place = b.cast(b.layer("arange", shape=[n], dtype="i64"), "f32")
    place = b.layer("mul", b.layer("add", place, center) if center else place, scale)
    index = b.cast(b.layer("floor", place), "i64")
    last = b.layer("arange", start=size - 1, step=0, shape=[1], dtype="i64")
    return b.layer("gather", x, b.layer("minimum", index, last), axis=axis)


PROBES = 1, 2, 3, 6, 9  # sizes for which the weights are compared with PyTorch's
MAX_FACTOR = 8


def _enlarge(b, x, axis, n, apply):
    """Makes an open dim ``k`` times as large, for an integer k: result number k * i + p is a sum of the values around i."""
    k = sympy.cancel(sympy.sympify(n) / x.shape[axis])
    needs(k.is_Integer and 1 < k <= MAX_FACTOR, "resizing an open dim by no small integer")
    k = int(k)
    phases = _find_phases(apply, k)
    needs(phases, "resizing an open dim in a way that depends on its size")
    near = {offset: _shift(b, x, axis, offset) for phase in phases for offset in phase}
    parts = []
    for phase in phases:
        taps = [b.layer("mul", near[o], w) if w != 1 else near[o] for o, w in phase.items()]
        total = functools.reduce(functools.partial(b.layer, "add"), taps)
        parts.append(b.reshape(total, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])))
    y = b.layer("concat", *parts, axis=axis + 1)
    return b.reshape(y, (*x.shape[:axis], n, *x.shape[axis + 1 :]))


def _find_phases(apply, k):
    """Returns for each p < k the weights {offset: weight} of result k * i + p, or None if they are not the same for all sizes.
    Beyond an edge, the value at the edge counts."""
    middle = PROBES[-1] // 2
    rows = apply(torch.eye(PROBES[-1]), k * PROBES[-1]).T[k * middle : k * middle + k]
    phases = [{int(i) - middle: float(row[i]) for i in row.nonzero()[:, 0]} for row in rows]
    for size in PROBES:
        expected = torch.zeros(k * size, size)
        for row in range(k * size):
            for offset, weight in phases[row % k].items():
                expected[row, min(max(row // k + offset, 0), size - 1)] += weight
        if not torch.allclose(apply(torch.eye(size), k * size).T, expected, rtol=0, atol=1e-6):
            return None
    return phases


def _shift(b, x, axis, offset):
    """Returns ``x`` with value number i + ``offset`` at i, and the value at the edge beyond it."""
    if offset == 0:
        return x
    size, n = x.shape[axis], abs(offset)
    rest = b.layer("slice", x, axis=axis, start=max(offset, 0), step=1, shape=[size - n])
    edge = b.layer("slice", x, axis=axis, start=0 if offset < 0 else size - 1, step=1, shape=[1])
    if n > 1:
        edge = b.layer("expand", edge, shape=[*x.shape[:axis], n, *x.shape[axis + 1 :]])
    return b.layer("concat", *([edge, rest] if offset < 0 else [rest, edge]), axis=axis)


# ---- Known sizes ----


def _pick(b, x, axis, n, index):
    """Takes one value per result. If each value is repeated equally often, no indices are needed."""
    size = x.shape[axis]
    if n % size == 0 and torch.equal(index, torch.arange(n) // (n // size)):
        front, behind = x.shape[: axis + 1], x.shape[axis + 1 :]
        apart = b.reshape(x, (*front, 1, *behind))
        repeated = b.layer("expand", apart, shape=[*front, n // size, *behind])
        return b.reshape(repeated, (*x.shape[:axis], n, *behind))
    return b.layer("gather", x, b.constant(index.contiguous()), axis=axis)


def _add_taps(b, x, axis, index, weights):
    total = None
    for k in range(index.shape[1]):
        weight = weights[:, k].reshape(-1, *[1] * (x.rank - axis - 1)).contiguous()
        tap = b.layer("gather", x, b.constant(index[:, k].contiguous()), axis=axis)
        tap = b.layer("mul", tap, b.cast(b.constant(weight), x.dtype))
        total = tap if total is None else b.layer("add", total, tap)
    return total


def _multiply(b, x, axis, matrix):
    """Turns the dim to the end and multiplies by the matrix [n, size]."""
    order = [d for d in range(x.rank) if d != axis] + [axis]
    back = sorted(range(x.rank), key=order.__getitem__)
    turned = x if axis == x.rank - 1 else b.layer("permute", x, axes=order)
    y = b.layer("linear", turned, b.cast(b.constant(matrix), x.dtype))
    return y if axis == x.rank - 1 else b.layer("permute", y, axes=back)


_NAMES = {
    "upsample_nearest1d": 1, "upsample_nearest2d": 2, "upsample_nearest3d": 3,
    "_upsample_nearest_exact1d": 1, "_upsample_nearest_exact2d": 2, "_upsample_nearest_exact3d": 3,
    "upsample_linear1d": 1, "upsample_bilinear2d": 2, "upsample_trilinear3d": 3,
    "upsample_bicubic2d": 2, "_upsample_bilinear2d_aa": 2, "_upsample_bicubic2d_aa": 2,
}  # fmt: skip

TABLE = {f"{name}.default {name}.vec": _upsample(name, n_dims) for name, n_dims in _NAMES.items()}

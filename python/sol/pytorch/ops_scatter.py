"""A part of the table of ATen ops (ops.py): writes at computed positions.

Layers read at computed positions, but do not write there. So each position of the result is compared with all positions of the
index: a write replaces it if the index has it, and the last such write counts. Its value is then read by a gather. Sums and other
reductions take the values of all writes with this position. All of this takes the product of both numbers of positions, so more
than MAX_PAIRS stay with PyTorch.

Invariant: a position that is out of range is an error of the call, as in ops_index.py: positions are read from a line by a gather.
The table and its conventions are those of ops.py.
"""

import math

from sol.pytorch.builder import needs, normal_axis
from sol.pytorch.ops_index import Rows, gather
from sol.pytorch.ops_math import FLOATS

MAX_PAIRS = 1 << 18  # positions of the result, times those of the index, along one dim
MAX_MASK = 512  # values of a mask whose number is summed up

REDUCTIONS = {
    "add": "sum", "sum": "sum", "mean": "sum", "multiply": "prod", "prod": "prod", "amax": "reduce_max", "amin": "reduce_min",
}  # fmt: skip
COMBINES = {"sum": "add", "prod": "mul", "reduce_max": "maximum", "reduce_min": "minimum"}


def _neutral(b, kind, dtype):
    """The number that changes no reduction."""
    if kind in ("sum", "prod"):
        return b.value(1 if kind == "prod" else 0, dtype)
    needs(dtype in FLOATS, "a largest or smallest value of integers")
    return b.value(-math.inf if kind == "reduce_max" else math.inf, dtype)


def _checked(b, index, size, wraps):
    """Returns the positions ``index``, all of them from 0 to size - 1."""
    rows = Rows(b)
    rows.add_index(index, size, 1, wraps)
    return rows.take(b.layer("arange", shape=[size], dtype="i64"))


class Writes:
    """Writes into the first dim of ``size`` positions. ``index``: the positions [m, ..], of which the other dims are those of the
    result, or 1.

    ``hits``: bools [size, .., m]: whether write number m has a position.
    """

    def __init__(self, b, size, index, wraps=False):
        self._b, self._m = b, index.shape[0]
        needs(
            isinstance(size, int) and isinstance(self._m, int), "writes into a dim of unknown size"
        )
        needs(size * self._m <= MAX_PAIRS, f"{self._m} writes at {size} positions")
        index = _checked(b, index, size, wraps)
        index = b.reshape(self._last(index), (1, *index.shape[1:], self._m))
        line = b.layer("arange", shape=[size], dtype="i64")
        line = b.reshape(line, (size, *[1] * (index.rank - 1)))
        self.hits = b.layer("equal", index, line)

    def _last(self, x):
        """Moves the dim of the writes behind the others."""
        order = [*range(1, x.rank), 0]
        return x if x.rank == 1 else self._b.layer("permute", x, axes=order)

    def _reduce(self, kind, x):
        return self._b.layer(kind, x, axes=[x.rank - 1])

    def any(self):
        return self._reduce("reduce_max", self.hits)

    def last(self):
        """The number of the last write of each position, from 1 on; 0: none."""
        b = self._b
        number = b.layer("arange", start=1, shape=[self._m], dtype="i32")
        numbers = b.layer("where", self.hits, number, b.value(0, "i32"))
        return b.cast(self._reduce("reduce_max", numbers), "i64")

    def count(self):
        return self._reduce("sum", self._b.cast(self.hits, "i64"))

    def reduce(self, kind, source):
        """Reduces the values [m, ..] of all writes of each position, [size, ..]."""
        b, hits = self._b, self.hits
        extra = source.rank - (hits.rank - 1)
        if extra:
            hits = b.reshape(hits, (*hits.shape[:-1], *[1] * extra, self._m))
        source = self._last(source)
        source = b.reshape(source, (1, *source.shape))
        return self._reduce(kind, b.layer("where", hits, source, _neutral(b, kind, source.dtype)))


def _combine(b, x, writes, source, kind, includes_self):
    """Reduces x and the writes; only the writes, where there are any, unless ``includes_self``."""
    needs(x.dtype in FLOATS or kind in ("add", "sum"), "products or means of integers")
    reduction = REDUCTIONS[kind]
    y = writes.reduce(reduction, source)
    count = None
    if kind == "mean" or not includes_self:
        count = writes.count()
        count = b.reshape(count, (*count.shape, *[1] * (x.rank - count.rank)))
    is_written = None if includes_self else b.layer("less", b.value(0, "i64"), count)
    if includes_self:
        y = b.layer(COMBINES[reduction], x, y)
    if kind == "mean":
        n = b.layer("add", count, 1) if includes_self else b.layer("maximum", count, 1)
        y = b.layer("div", y, b.cast(n, x.dtype))
    return y if includes_self else b.layer("where", is_written, y, x)


# ---- One position per value ----


def _cut(b, x, shape):
    """Returns the first values of ``x`` along each dim."""
    for axis, size in enumerate(shape):
        if x.shape[axis] != size:
            x = b.layer("slice", x, axis=axis, start=0, step=1, shape=[size])
    return x


def _replace(b, x, part, axis=0):
    """Returns ``x`` with ``part`` in place of its first values along each dim."""
    if part.shape == x.shape:
        return part
    if part.shape[axis] == x.shape[axis]:
        return _replace(b, x, part, axis + 1)
    size = part.shape[axis]
    front = b.layer("slice", x, axis=axis, start=0, step=1, shape=[size])
    rest = x.shape[axis] - size
    behind = b.layer("slice", x, axis=axis, start=size, step=1, shape=[rest])
    return b.layer("concat", _replace(b, front, part, axis + 1), behind, axis=axis)


def _front(b, x, axis):
    """Moves an axis in front of the others."""
    order = [axis, *(i for i in range(x.rank) if i != axis)]
    return x if axis == 0 else b.layer("permute", x, axes=order)


def _back(b, x, axis):
    order = [*range(1, axis + 1), 0, *range(axis + 1, x.rank)]
    return x if axis == 0 else b.layer("permute", x, axes=order)


def _scatter(b, x, dim, index, out, src=None, value=None, reduce=None, include_self=True):
    """x[index[i][j]][j] = src[i][j] for dim 0 of two. The index may be smaller than x and src in the other dims."""
    if x.rank == 0:
        names = {"src": None if src is None else b.reshape(src, (1,)), "value": value}
        x1, index = b.reshape(x, (1,)), b.reshape(index, (1,) * max(1, index.rank))
        y = _scatter(b, x1, 0, index, (1,), reduce=reduce, include_self=include_self, **names)
        return b.reshape(y, ())
    if 0 in index.shape:
        return x
    axis = normal_axis(dim, x.rank)
    region = [x.shape[i] if i == axis else n for i, n in enumerate(index.shape)]
    part = _front(b, _cut(b, x, region), axis)
    numbers = _front(b, index, axis)
    writes = Writes(b, x.shape[axis], numbers)
    source = b.value(value, x.dtype) if src is None else _front(b, _cut(b, src, index.shape), axis)
    if reduce is None and src is None:
        y = b.layer("where", writes.any(), source, part)
    elif reduce is None:
        last = writes.last()
        at = b.layer("maximum", b.layer("sub", last, 1), 0)
        is_written = b.layer("less", b.value(0, "i64"), last)
        y = b.layer("where", is_written, gather(b, source, 0, at, part.shape), part)
    else:
        if src is None:
            source = b.layer("expand", source, shape=list(numbers.shape))
        y = _combine(b, part, writes, source, reduce, include_self)
    return _replace(b, x, _back(b, y, axis))


def _scatter_add(b, x, dim, index, src, out):
    return _scatter(b, x, dim, index, out, src, reduce="add")


# ---- One position per slice ----


def _write_rows(b, x, index, source, kind=None, includes_self=True, wraps=False):
    """Writes the rows ``source`` [m, ..] at the positions ``index`` [m] of the first dim of x."""
    writes = Writes(b, x.shape[0], index, wraps)
    if kind is None:
        last = writes.last()
        at = b.layer("maximum", b.layer("sub", last, 1), 0)
        is_written = b.layer("less", b.value(0, "i64"), last)
        is_written = b.reshape(is_written, (x.shape[0], *[1] * (x.rank - 1)))
        return b.layer("where", is_written, b.layer("gather", source, at, axis=0, wraps=False), x)
    needs(
        x.shape[0] * math.prod(index.shape) * math.prod(x.shape[1:]) <= MAX_PAIRS * 64,
        "sums of many rows",
    )
    return _combine(b, x, writes, source, kind, includes_self)


def _index_write(kind=None):
    """index_copy, index_add and index_reduce: x[index[i]] = source[i] for dim 0."""

    def run(b, x, dim, index, source, out, alpha=1, reduce=None, include_self=True):
        if x.rank == 0:
            x1, flat = b.reshape(x, (1,)), b.reshape(index, (math.prod(index.shape),))
            source = b.reshape(source, (math.prod(source.shape),))
            y = run(b, x1, 0, flat, source, (1,), alpha, reduce, include_self)
            return b.reshape(y, ())
        if alpha != 1:
            source = b.layer("mul", source, alpha)
        axis = normal_axis(dim, x.rank)
        index = b.reshape(index, (math.prod(index.shape),))
        if 0 in index.shape:
            return x
        if source.rank == 0:
            source = b.reshape(source, (1,) * x.rank)
        rows = _front(b, x, axis), index, _front(b, source, axis)
        return _back(b, _write_rows(b, *rows, reduce or kind, include_self), axis)

    return run


# ---- Several indices ----


def _index_put(b, x, indices, values, out, accumulate=False, **_):
    """x[i, :, j] = values: the dims with indices, joined, are the rows. The values have them in place of these dims, or in front if
    a dim without index lies between."""
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if any(indices[axis].dtype == "bool" for axis in given):
        return _put_at_mask(b, x, indices, given, values, accumulate)
    rest = [axis for axis in range(x.rank) if axis not in given]
    sizes = [x.shape[axis] for axis in given]
    needs(all(isinstance(n, int) for n in sizes), "positions in a dim of unknown size")
    shape = _broadcast([indices[axis].shape for axis in given])
    needs(all(isinstance(n, int) for n in shape), "an unknown number of positions")
    at, numbers = math.prod(sizes), None
    for axis, size in zip(given, sizes):
        at //= size
        number = b.layer("mul", _checked(b, indices[axis], size, True), at)
        numbers = number if numbers is None else b.layer("add", numbers, number)
    m, inner = math.prod(shape), [x.shape[axis] for axis in rest]
    if numbers.shape != tuple(shape):
        numbers = b.layer("expand", numbers, shape=list(shape))
    numbers = b.reshape(numbers, (m,))
    is_joined = given[-1] - given[0] + 1 == len(given)
    first = given[0] if is_joined else 0
    whole = [*inner[:first], *shape, *inner[first:]]
    if values.shape != tuple(whole):
        values = b.layer("expand", values, shape=whole)
    if first:
        n = len(shape)
        order = [*range(first, first + n), *range(first), *range(first + n, len(whole))]
        values = b.layer("permute", values, axes=order)
    values = b.reshape(values, (m, *inner))
    order = given + rest
    table = x if order == sorted(order) else b.layer("permute", x, axes=order)
    table = b.reshape(table, (math.prod(sizes), *inner))
    y = _write_rows(b, table, numbers, values, "add" if accumulate else None)
    y = b.reshape(y, (*sizes, *inner))
    back = [order.index(i) for i in range(x.rank)]
    return y if back == sorted(back) else b.layer("permute", y, axes=back)


def _broadcast(shapes):
    """The shape that NumPy's rules give."""
    rank = max(map(len, shapes))
    full = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return [next((n for n in sizes if n != 1), 1) for sizes in zip(*full)]


def _put_at_mask(b, x, indices, given, values, accumulate):
    """x[mask] = value, for a mask of the first dims."""
    needs(given == [0], "a mask beside other indices")
    mask = indices[0]
    needs(mask.rank <= x.rank, "a mask of a higher rank")
    if math.prod(values.shape) != 1:
        needs(mask.shape == x.shape and not accumulate, "rows at a mask")
        return _masked_scatter(b, x, mask, values, x.shape)
    mask = b.reshape(mask, (*mask.shape, *[1] * (x.rank - mask.rank)))
    value = b.reshape(values, ())
    if accumulate:
        value = b.layer("add", x, value)
    return b.layer("where", mask, value, x)


def _put(b, x, index, source, out, accumulate=False):
    """Positions in row-major order."""
    n = math.prod(x.shape)
    needs(isinstance(n, int), "positions in a dim of unknown size")
    flat, index = b.reshape(x, (n,)), b.reshape(index, (math.prod(index.shape),))
    if 0 in index.shape:
        return x
    source = b.reshape(source, index.shape)
    y = _write_rows(b, flat, index, source, "add" if accumulate else None, wraps=True)
    return b.reshape(y, out)


def _masked_scatter(b, x, mask, source, out):
    """Value number k of the source at the position number k of those that the mask has."""
    full = [
        t if t.shape == tuple(out) else b.layer("expand", t, shape=list(out)) for t in (x, mask)
    ]
    n = math.prod(out)
    needs(isinstance(n, int) and n <= MAX_MASK, "a large mask")
    x, mask = (b.reshape(t, (n,)) for t in full)
    number = b.layer("cumsum", b.cast(mask, "i64"), axis=0)
    number = b.layer("where", mask, b.layer("sub", number, 1), b.value(0, "i64"))
    source = b.reshape(source, (math.prod(source.shape),))
    needs(0 not in source.shape, "an empty source")
    taken = b.layer("gather", source, number, axis=0, wraps=False)
    return b.reshape(b.layer("where", mask, taken, x), out)


def _max_unpool(b, x, indices, out, **_):
    """Puts values at positions of an image of zeros, in row-major order."""
    lead = out[: len(out) - (3 if len(out) == 5 else 2)]
    size, n = math.prod(out[len(lead) :]), math.prod(x.shape[len(lead) :])
    zeros = b.layer("expand", b.value(0, x.dtype), shape=[*lead, size])
    at, source = (b.reshape(t, (*lead, n)) for t in (indices, x))
    return b.reshape(_scatter(b, zeros, len(lead), at, zeros.shape, src=source), out)


TABLE = {
    "max_unpool2d.default max_unpool3d.default": _max_unpool,
    "scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_reduce.two": _scatter,
    "scatter_add.default": _scatter_add,
    "index_copy.default": _index_write(),
    "index_add.default": _index_write("add"),
    "index_reduce.default": _index_write(),
    "index_put.default _unsafe_index_put.default _index_put_impl.default": _index_put,
    "put.default": _put,
    "masked_scatter.default": _masked_scatter,
}

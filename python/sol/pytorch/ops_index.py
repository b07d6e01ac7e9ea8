"""A part of the table of ATen ops (ops.py): values at computed positions, and sets of values.

The layer gather takes rows of a table. Here the table is a tensor as one column of values, or of slices. The numbers of its rows
are computed by layers of integers: the position in each dim, times the stride of that dim, summed up. The table of ops and its
conventions are those of ops.py.

Invariant: indices are data of a call, so each one is checked against its own dim. A sum could hide an index that is out of range;
such an index makes the row number -1, which gather refuses, as it does not wrap here.
"""

import math

from sol.pytorch.builder import Value, needs, normal_axis

MAX_SET = 4096  # values of a set that each value is compared with


class Rows:
    """Numbers of rows. ``add`` adds the positions in one dim."""

    def __init__(self, b):
        self._b, self._sum, self._is_bad = b, None, None

    def _join(self, kind, old, new):
        return new if old is None else self._b.layer(kind, old, new)

    def add_line(self, size, stride, shape):
        """Adds 0, 1, .. size - 1, in the shape ``shape``, in which all other dims are 1."""
        if size != 1:
            step = stride if isinstance(stride, int) else 1
            line = self._b.layer("arange", step=step, shape=[size], dtype="i64")
            if step != stride:
                line = self._b.layer("mul", line, stride)
            self.add(self._b.reshape(line, tuple(shape)))

    def add(self, offset):
        """Adds a term that is never out of range."""
        self._sum = self._join("add", self._sum, offset)

    def add_index(self, index, size, stride, wraps):
        """Adds positions that are data, in a dim of ``size``; negative ones count from its end if ``wraps``."""
        b = self._b
        index = b.cast(as_index(index), "i64")
        is_below = b.layer("less", index, 0)
        if wraps:
            index = b.layer("where", is_below, b.layer("add", index, size), index)
            is_below = b.layer("less", index, 0)
        is_bad = b.layer("bit_or", is_below, b.layer("less_equal", b.value(size, "i64"), index))
        self._is_bad = self._join("bit_or", self._is_bad, is_bad)
        self.add(index if stride == 1 else b.layer("mul", index, stride))

    def take(self, table):
        """Returns the rows of ``table``, along its first dim."""
        b, rows = self._b, self._sum
        if self._is_bad is not None:
            rows = b.layer("where", self._is_bad, b.value(-1, "i64"), rows)
        return b.layer("gather", table, rows, axis=0, wraps=False)


def as_index(x):
    needs(x.dtype in ("i64", "i32"), f"an index of type {x.dtype}")
    return x


def _strides(shape):
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


# ---- One index per value ----


def gather(b, x, dim, index, out, sparse_grad=False, wraps=False):
    """y[i][j] = x[index[i][j]][j] for dim 0 of two. The index may be smaller than x in the other dims."""
    if x.rank == 0:
        x, index = b.reshape(x, (1,)), b.reshape(index, (1,) * max(1, index.rank))
    axis = normal_axis(dim, x.rank)
    rows, strides = Rows(b), _strides(x.shape)
    rows.add_index(index, x.shape[axis], strides[axis], wraps)
    for other, size in enumerate(index.shape):
        if other != axis:
            line = [size if i == other else 1 for i in range(x.rank)]
            rows.add_line(size, strides[other], line)
    return b.reshape(rows.take(b.reshape(x, (math.prod(x.shape),))), out)


def _take_along_dim(b, x, indices, out, dim=None):
    """As gather, but x and the indices broadcast in the other dims."""
    if dim is None:
        return _take(b, x, indices, out)
    axis = normal_axis(dim, x.rank)
    needs(x.rank == indices.rank, "take_along_dim of other ranks")

    def full(t):
        shape = (*out[:axis], t.shape[axis], *out[axis + 1 :])
        return t if t.shape == shape else b.layer("expand", t, shape=list(shape))

    return gather(b, full(x), axis, full(indices), out, wraps=True)


def _take(b, x, index, out):
    rows = Rows(b)
    rows.add_index(index, math.prod(x.shape), 1, True)
    return b.reshape(rows.take(b.reshape(x, (math.prod(x.shape),))), out)


# ---- Several indices ----


def index_all(b, x, indices, out):
    """x[:, i, j]: the dims with indices, joined, are the table's rows. The result has them in place of these dims, or in front if
    a dim without index lies between."""
    given = [axis for axis, index in enumerate(indices) if index is not None]
    first, last = given[0], given[-1]
    needs(all(index.dtype != "bool" for index in indices if index), "an index of bools")
    rest = [axis for axis in range(x.rank) if axis not in given]
    sizes = [x.shape[axis] for axis in given]
    axes = given + rest
    table = x if axes == sorted(axes) else b.layer("permute", x, axes=axes)
    table = b.reshape(table, (math.prod(sizes), *(x.shape[axis] for axis in rest)))
    rows = Rows(b)
    for axis, size, stride in zip(given, sizes, _strides(sizes)):
        rows.add_index(indices[axis], size, stride, True)
    y = rows.take(table)
    n = y.rank - len(rest)
    if last - first + 1 == len(given) and first > 0:
        y = b.layer("permute", y, axes=[*range(n, n + first), *range(n), *range(n + first, y.rank)])
    return b.reshape(y, out)


# ---- Sets of values ----


def _is_in(b, x, values):
    """Whether each value of ``x`` is one of the vector ``values``."""
    needs(all(isinstance(n, int) for n in values.shape), "a set of unknown size")
    values = b.reshape(values, (math.prod(values.shape),))
    needs(values.shape[0] <= MAX_SET, f"a set of {values.shape[0]} values")
    same = b.layer("equal", b.reshape(x, (*x.shape, 1)), values)
    return b.layer("reduce_max", same, axes=[x.rank])


def _isin(b, out, assume_unique=False, invert=False, **names):
    """Elements and the set may be numbers."""
    dtype = next(x.dtype for x in names.values() if isinstance(x, Value))
    x, values = (b.value(value, dtype) for value in names.values())
    needs(x.dtype == values.dtype, "isin of two types")
    y = _is_in(b, x, values)
    return b.layer("bit_not", y) if invert else y


def _index_fill(b, x, dim, index, value, out):
    """Replaces the slices along a dim whose numbers are in the vector ``index``."""
    if x.rank == 0:
        return b.reshape(_index_fill(b, b.reshape(x, (1,)), 0, index, value, (1,)), ())
    axis = normal_axis(dim, x.rank)
    size = x.shape[axis]
    rows = Rows(b)
    rows.add_index(b.reshape(index, (math.prod(index.shape),)), size, 1, True)
    line = b.layer("arange", shape=[size], dtype="i64")
    is_in = _is_in(b, line, rows.take(line))
    mask = b.reshape(is_in, (size, *[1] * (x.rank - 1 - axis)))
    return b.layer("where", mask, b.value(value, x.dtype), x)


def _count_below(b, x, limits, right):
    """The number of ``limits`` (their last dim) below each of x, or not above it if ``right``. NaN is above all."""
    x = b.value(x, limits.dtype)
    size = limits.shape[-1]
    needs(x.dtype == limits.dtype, "limits of another type")
    needs(isinstance(size, int) and size <= MAX_SET, f"{size} limits")
    if limits.rank > 1:
        limits = b.reshape(limits, (*limits.shape[:-1], 1, size))
    above = b.layer("less" if right else "less_equal", b.reshape(x, (*x.shape, 1)), limits)
    count = b.cast(b.layer("bit_not", above), b.dtype)
    return b.layer("sum", count, axes=[count.rank - 1])


def _bucketize(b, x, boundaries, out, out_int32=False, right=False):
    return _count_below(b, x, boundaries, right)


def _searchsorted(b, sorted_sequence, x, out, out_int32=False, right=False, side=None, sorter=None):
    needs(sorter is None, "searchsorted with a sorter")
    return _count_below(b, x, sorted_sequence, right or side == "right")


def _one_hot(b, x, out, num_classes=-1):
    """Rows of the unit matrix, so that a class that is out of range is an error of the call."""
    needs(num_classes > 0, "one_hot with an unknown number of classes")
    line = b.layer("arange", shape=[num_classes], dtype="i64")
    rows = Rows(b)
    rows.add_index(x, num_classes, 1, False)
    number = b.reshape(rows.take(line), (*x.shape, 1))
    return b.cast(b.layer("equal", number, line), "i64")


TABLE = {
    "gather.default": gather,
    "take_along_dim.default": _take_along_dim,
    "take.default": _take,
    "index_fill.int_Scalar index_fill.int_Tensor": _index_fill,
    "isin.Tensor_Tensor isin.Tensor_Scalar isin.Scalar_Tensor": _isin,
    "bucketize.Tensor bucketize.Scalar": _bucketize,
    "searchsorted.Tensor searchsorted.Scalar": _searchsorted,
    "one_hot.default": _one_hot,
}

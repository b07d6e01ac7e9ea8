"""A part of the table of ATen ops (ops.py): embedding_bag, which reduces rows of a table in groups, the bags.

If bags have the same size, as where the indices are a matrix, their rows are the rows of a matrix. Else each row is compared with
each bag, which takes the product of their numbers. The table and its conventions are those of ops.py.
"""

import math
import re

from sol.pytorch.builder import needs
from sol.pytorch.ops_index import Rows, as_index

SUM, MEAN, MAX = 0, 1, 2
MAX_PAIRS = 1 << 16  # rows, times bags


def _embedding_bag(
    b, weight, indices, offsets, out, scale_grad_by_freq=False, mode=SUM, sparse=False,
    per_sample_weights=None, include_last_offset=False, padding_idx=None, **_,
):  # fmt: skip
    """Its other three results serve gradients; a graph that uses them stays with PyTorch."""
    needs(indices.rank == 1, "bags in a matrix")
    n, (bags, width) = indices.shape[0], out[0]
    rows = b.layer("gather", weight, as_index(indices), axis=0, wraps=False)
    counts = _counted(b, indices, padding_idx, weight.shape[0])
    step = _step(b, offsets)
    if step and n == step * bags:
        shape, is_in = (bags, step), None
    else:
        needs(isinstance(bags, int) and isinstance(n, int), "bags of an unknown number")
        needs(n * bags <= MAX_PAIRS, f"{n} rows in {bags} bags")
        shape, is_in = (1, n), _find_bags(b, offsets, n, bags)
    if per_sample_weights is not None:
        rows = b.layer("mul", rows, b.reshape(per_sample_weights, (n, 1)))
    if counts is not None:
        counts = b.reshape(counts, shape)
        is_in = counts if is_in is None else b.layer("bit_and", is_in, counts)
    y = _reduce(b, b.reshape(rows, (*shape, width)), is_in, mode, shape)
    return [b.reshape(y, (bags, width))]


def _step(b, offsets):
    """The size of all bags, if the offsets are known to be 0, size, 2 * size, .."""
    record = next((x for x in b.records if x.output == offsets.id and x.kind == "arange"), None)
    found = record and re.fullmatch(r"start=0 step=(\d+) .*", record.attributes)
    return int(found[1]) if found else None


def _counted(b, indices, padding_idx, size):
    """Which rows count: all (None), or those that are not the row ``padding_idx``, which may count from the end."""
    if padding_idx is None:
        return None
    return b.layer("bit_not", b.layer("equal", indices, padding_idx % size))


def _find_bags(b, offsets, n, bags):
    """Bools [bags, n]: whether a row is at or behind the first one of its bag, and before that of the next one."""
    rows = Rows(b)  # an offset behind all rows is an error of the call
    rows.add_index(offsets, n + 1, 1, False)
    offsets = rows.take(b.layer("arange", shape=[n + 1], dtype="i64"))
    if offsets.shape[0] > bags:  # include_last_offset: the last one ends the last bag
        offsets = b.layer("slice", offsets, axis=0, start=0, step=1, shape=[bags])
    line = b.layer("arange", shape=[n], dtype="i64")
    begins = b.layer("less_equal", b.reshape(offsets, (bags, 1)), line)
    number = b.layer("sum", b.cast(begins, "i64"), axes=[0])  # of each row's bag, from 1 on
    each = b.layer("arange", start=1, shape=[bags], dtype="i64")
    return b.layer("equal", b.reshape(each, (bags, 1)), number)


def _reduce(b, rows, is_in, mode, shape):
    """Reduces [1, n, width] or [bags, step, width] over the middle dim. An empty bag is 0."""
    if is_in is not None:
        neutral = b.value(-math.inf if mode == MAX else 0.0, rows.dtype)
        rows = b.layer("where", b.reshape(is_in, (*is_in.shape, 1)), rows, neutral)
    y = b.layer("reduce_max" if mode == MAX else "sum", rows, axes=[1])
    if is_in is None:
        return b.layer("div", y, b.value(float(shape[1]), y.dtype)) if mode == MEAN else y
    count = b.layer("sum", b.cast(is_in, y.dtype), axes=[1], keepdim=True)
    if mode == MEAN:
        return b.layer("div", y, b.layer("maximum", count, 1.0))
    if mode == MAX:
        return b.layer("where", b.layer("equal", count, 0.0), b.value(0.0, y.dtype), y)
    return y


TABLE = {"embedding_bag.default embedding_bag.padding_idx": _embedding_bag}

"""A part of the table of ATen ops (ops.py): sorted values, and scans, such as products of all values up to each one.

Layers have no loops whose steps depend on each other. So each value of a line is compared with each other one: a value's rank is
the number of values in front of it in the sorted line, and value number r of the sorted line is the one of rank r. A scan is a
reduction in which the values behind each one do not count. Both are point expressions, which are fused with what is around them,
and both take the square of a line's length. Longer lines than MAX_LINE stay with PyTorch, which needs fewer steps for them.

Invariant: the order is PyTorch's: NaN is above all numbers, and equal values keep their order. PyTorch promises no order of equal
values for topk and kthvalue. The table and its conventions are those of ops.py.
"""

import math

from sol.pytorch.builder import needs, normal_axis
from sol.pytorch.ops_math import Term

MAX_LINE = 256  # values that are compared with each other


class Line:
    """Lines of values along one axis of ``x``, which is moved behind the others. ``n``: the length of a line.

    ``own``, ``other``: Terms of each value and of those that it is compared with, for pairs of values [.., n, n].
    """

    def __init__(self, b, x, axis):
        if x.rank == 0:
            x = b.reshape(x, (1,))
        self._b, self._axis = b, normal_axis(axis, x.rank)
        self.n = x.shape[self._axis]
        needs(isinstance(self.n, int), "an order along a dim of unknown size")
        needs(0 < self.n <= MAX_LINE, f"an order of {self.n} values")
        last = x.rank - 1
        self._order = [i for i in range(x.rank) if i != self._axis] + [self._axis]
        self._x = x if self._axis == last else b.layer("permute", x, axes=self._order)
        self.values = Term(b, self._x)
        lead = self._x.shape[:-1]
        self.own = Term(b, b.reshape(self._x, (*lead, self.n, 1)))
        self.other = Term(b, b.reshape(self._x, (*lead, 1, self.n)))

    def numbers(self, n=None, across=False):
        """0, 1, .. n - 1 as a Term: of the other values, or of each value itself if ``across``."""
        n = n or self.n
        line = self._b.layer("arange", shape=[n], dtype="i32")
        return Term(self._b, self._b.reshape(line, (n, 1)) if across else line)

    def reduce(self, kind, pairs):
        """Reduces pairs [.., n, n] over the other values."""
        return pairs._layer(kind, pairs, axes=[pairs.value.rank - 1])

    def finish(self, y, out):
        """Moves the axis of a result [.., k] back. Its shape is ``out``."""
        y, back = y.value, [self._order.index(i) for i in range(len(self._order))]
        if back != sorted(back):
            y = self._b.layer("permute", y, axes=back)
        return self._b.reshape(y, out)

    def ranks(self, descending):
        """The number of values in front of each one in the sorted line."""
        own, other = (self.other, self.own) if descending else (self.own, self.other)
        is_above = other < own
        is_not_below = other.less_equal(own)
        if (
            self.values.is_float
        ):  # own is above other if it alone is NaN, and not below it if it is NaN
            is_nan = ~own.equal(own)
            is_above = is_above | (is_nan & other.equal(other))
            is_not_below = is_not_below | is_nan
        is_earlier = self.numbers() < self.numbers(across=True)
        is_in_front = is_earlier.choose(is_not_below, is_above)
        return self.reduce("sum", is_in_front.cast(dtype="i32"))

    def pick(self, ranks, wanted):
        """Returns [values, their numbers in the line] of the wanted ranks: a Term [.., k, 1]."""
        lead = self._x.shape[:-1]
        b = self._b
        has_rank = Term(b, b.reshape(ranks.value, (*lead, 1, self.n))).equal(wanted)
        number = self.reduce("sum", has_rank.choose(self.numbers(), 0)).cast(dtype="i64")
        if self.values.is_float:  # a sum would lose the sign of -0
            return [self.reduce("reduce_max", has_rank.choose(self.other, -math.inf)), number]
        dtype = self.values.value.dtype
        other = self.other.cast(dtype="i32") if dtype == "bool" else self.other
        value = self.reduce("sum", has_rank.choose(other, 0)).value
        return [Term(b, b.cast(value, dtype)), number]


# ---- Sorted lines ----


def _sort(b, x, out, dim=-1, descending=False, stable=False):
    line = Line(b, x, dim)
    ranks = line.ranks(bool(descending))
    results = line.pick(ranks, line.numbers(across=True))
    return [line.finish(y, shape) for y, shape in zip(results, out)]


def _argsort(b, x, out, dim=-1, descending=False, stable=False):
    return _sort(b, x, [out, out], dim, descending)[1]


def _msort(b, x, out):
    return _sort(b, x, [out, out], 0)[0]


def _topk(b, x, k, out, dim=-1, largest=True, sorted=True):
    line = Line(b, x, dim)
    needs(isinstance(k, int) and k > 0, "topk of an unknown number of values")
    results = line.pick(line.ranks(bool(largest)), line.numbers(k, across=True))
    return [line.finish(y, shape) for y, shape in zip(results, out)]


def _kthvalue(b, x, k, out, dim=-1, keepdim=False):
    line = Line(b, x, dim)
    results = line.pick(line.ranks(False), line.numbers(1, across=True) + (k - 1))
    return [line.finish(y, shape) for y, shape in zip(results, out)]


def _median(skips_nan):
    """The lower one of two middle values. The first NaN, if there is one and it is not skipped."""

    def run(b, x, out, dim=None, keepdim=False):
        if dim is None:
            y = b.reshape(x, (math.prod(x.shape),))
            return run(b, y, [out, out], 0)[0]
        line = Line(b, x, dim)
        wanted = line.numbers(1, across=True) + (line.n - 1) // 2
        if line.values.is_float:
            counts = line.values.equal(line.values).cast(dtype="i32")
            n = counts.sum(axes=[counts.value.rank - 1], keepdim=True)
            n = Term(b, b.reshape(n.value, (*n.value.shape, 1)))
            if skips_nan:
                wanted = (n - 1).maximum(0).floor_div(2)
            else:
                wanted = (n < line.n).choose(n, wanted)
        results = line.pick(line.ranks(False), wanted)
        return [line.finish(y, shape) for y, shape in zip(results, out)]

    return run


def _quantile(skips_nan):
    """Values between the two ranks around q * (n - 1). NaN, if there is one that is not skipped."""

    def run(b, x, q, out, dim=None, keepdim=False, interpolation="linear"):
        if dim is None:
            flat = b.reshape(x, (math.prod(x.shape),))
            return b.reshape(run(b, flat, q, None, 0, False, interpolation), out)
        line = Line(b, x, dim)
        q = Term(b, b.value(q, x.dtype))
        needs(q.value.rank < 2, "quantiles in a matrix")
        n_quantiles = q.value.shape[0] if q.value.rank else 1
        q = Term(b, b.reshape(q.value, (n_quantiles, 1)))
        is_number = line.values.equal(line.values)
        count = is_number.cast(dtype=x.dtype).sum(axes=[is_number.value.rank - 1], keepdim=True)
        count = Term(b, b.reshape(count.value, (*count.value.shape, 1)))
        at = q * (count - 1).maximum(0.0) if skips_nan else q * float(line.n - 1)
        y = _between(b, line, at, interpolation)
        if not skips_nan:
            count = Term(b, b.reshape(count.value, count.value.shape[:-1]))
            y = (count < float(line.n)).choose(math.nan, y)
        return y.value if out is None else _quantiles_first(b, line, y, q, out, keepdim)

    return run


def _between(b, line, at, interpolation):
    """Returns the values at the ranks ``at`` [.., k, 1], which may be between two."""
    ranks = line.ranks(False)

    def pick(rank):
        return line.pick(ranks, rank.cast(dtype="i32"))[0]

    if interpolation in ("lower", "higher", "nearest"):
        kind = {"lower": "floor", "higher": "ceil", "nearest": "round"}[interpolation]
        return pick(getattr(at, kind)())
    low, high = pick(at.floor()), pick(at.ceil())
    if interpolation == "midpoint":
        part = 0.5
    else:
        part = at - at.floor()
        part = Term(b, b.reshape(part.value, part.value.shape[:-1]))
    is_same = low.equal(high)  # the difference of infinities is NaN
    return is_same.choose(low, low + (high - low) * part)


def _quantiles_first(b, line, y, q, out, keepdim):
    """Moves the quantiles [.., k] in front of all dims."""
    last = y.value.rank - 1
    if last and q.value.shape[0] != 1:
        y = Term(b, b.layer("permute", y.value, axes=[last, *range(last)]))
    return b.reshape(y.value, out)


# ---- Scans ----


def _scan(line, kind, term, neutral):
    """Reduces ``term`` of the values up to each one."""
    is_behind = line.numbers(across=True) < line.numbers()
    return line.reduce(kind, is_behind.choose(neutral, term))


def _cumprod(b, x, dim, out, dtype=None):
    line = Line(b, b.cast(x, b.dtype), dim)
    one = Term(b, b.value(1, b.dtype))
    return line.finish(_scan(line, "prod", line.other, one), out)


def _cumulative_extreme(kind, neutral):
    """cummax and cummin: the last NaN, or the last one of equal values."""

    def run(b, x, dim, out):
        line = Line(b, x, dim)
        needs(line.values.is_float, "a scan of integers")
        best = _scan(line, kind, line.other, neutral)
        wanted = Term(b, b.reshape(best.value, line.own.value.shape))
        is_best = line.other.equal(wanted) | ~(line.other.equal(line.other) | wanted.equal(wanted))
        number = _scan(line, "reduce_max", is_best.choose(line.numbers(), 0), 0)
        return [line.finish(y, z) for y, z in zip((best, number.cast(dtype="i64")), out)]

    return run


def _log_cum_sum_exp(b, x, dim, out):
    """With the largest value factored out, unless it is infinite."""
    line = Line(b, x, dim)
    best = _scan(line, "reduce_max", line.other, -math.inf)
    best = (best.abs() < math.inf).choose(best, 0.0)
    apart = line.other - Term(b, b.reshape(best.value, line.own.value.shape))
    return line.finish(_scan(line, "sum", apart.exp(), 0.0).log() + best, out)


TABLE = {
    "sort.default sort.stable": _sort,
    "argsort.default argsort.stable": _argsort,
    "msort.default": _msort,
    "topk.default": _topk,
    "kthvalue.default": _kthvalue,
    "median.default median.dim": _median(False),
    "nanmedian.default nanmedian.dim": _median(True),
    "quantile.default quantile.scalar": _quantile(False),
    "nanquantile.default nanquantile.scalar": _quantile(True),
    "cumprod.default": _cumprod,
    "cummax.default": _cumulative_extreme("reduce_max", -math.inf),
    "cummin.default": _cumulative_extreme("reduce_min", math.inf),
    "logcumsumexp.default": _log_cum_sum_exp,
}

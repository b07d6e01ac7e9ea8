"""A part of the table of ATen ops (ops.py): products of vectors and matrices, distances, and sums along dims.

The table and its conventions are those of ops.py.
"""

import math

from sol.pytorch.builder import all_axes, needs, normal_axis


def _scale(b, x, factor):
    return x if factor == 1 else b.layer("mul", x, factor)


def turn(b, x):
    """Exchanges the last two dims; a vector stays as it is."""
    if x.rank < 2:
        return x
    return b.layer("permute", x, axes=[*range(x.rank - 2), x.rank - 1, x.rank - 2])


def product(b, x, other):
    """torch.matmul of two computed tensors: a vector is a row on the left, a column on the right, whose dim the result lacks."""
    needs(min(x.rank, other.rank) > 0, "a matrix product of a number")
    left = b.reshape(x, (1, *x.shape)) if x.rank == 1 else x
    right = b.reshape(other, (*other.shape, 1)) if other.rank == 1 else other
    y = b.layer("matmul", left, right)
    if x.rank == 1:
        y = b.reshape(y, (*y.shape[:-2], y.shape[-1]))
    return b.reshape(y, y.shape[:-1]) if other.rank == 1 else y


def linear(b, x, weight, bias=None, out=None):
    """torch.nn.functional.linear: a linear layer if the weight is constant, else a matrix product."""
    if not weight.constant:
        y = product(b, x, turn(b, weight))
        return y if bias is None else b.layer("add", y, bias)
    inputs = [weight] if bias is None else [weight, bias]
    if x.rank == 1:
        return b.reshape(b.layer("linear", b.reshape(x, (1, *x.shape)), *inputs), out)
    return b.layer("linear", x, *inputs)


def _dot(b, x, out, **names):
    (other,) = names.values()  # tensor, vec or other
    return product(b, x, other)


def _outer(b, x, vec2, out):
    return b.layer("mul", b.reshape(x, (*x.shape, 1)), vec2)


def _inner(b, x, other, out):
    """The last dims are summed, so the result has the other dims of both."""
    if min(x.rank, other.rank) == 0:
        return b.layer("mul", x, other)
    return _tensordot(b, x, other, [x.rank - 1], [other.rank - 1], out)


def _tensordot(b, x, other, dims_self, dims_other, out):
    """One matrix product: the dims that are summed are joined to one, and so are the others of each operand."""

    def matrix(t, gone, is_left):
        kept = [axis for axis in range(t.rank) if axis not in gone]
        axes = kept + gone if is_left else gone + kept
        sizes = [math.prod(t.shape[axis] for axis in part) for part in (kept, gone)]
        y = t if axes == sorted(axes) else b.layer("permute", t, axes=axes)
        return b.reshape(y, tuple(sizes if is_left else reversed(sizes)))

    left, right = all_in_order(x, dims_self), all_in_order(other, dims_other)
    for i, j in zip(left, right):
        needs(x.shape[i] == other.shape[j], "tensordot that broadcasts")
    y = b.layer("matmul", matrix(x, left, True), matrix(other, right, False))
    return b.reshape(y, out)


def all_in_order(x, dims):
    return [normal_axis(dim, x.rank) for dim in dims]


def _kron(b, x, other, out):
    """[a, b] and [c, d] give [a, 1, b, 1] * [c, 1, d], then the pairs of dims are joined."""
    rank = max(x.rank, other.rank)
    left, right = ((1,) * (rank - t.rank) + t.shape for t in (x, other))
    x = b.reshape(x, tuple(size for dim in left for size in (dim, 1)))
    other = b.reshape(other, tuple(size for dim in right for size in (1, dim)))
    return b.reshape(b.layer("mul", x, other), out)


def _added(multiply):
    """beta * x + alpha * a product of the op's other two tensors: addmv, addr, addbmm."""

    def run(b, x, out, beta=1, alpha=1, **names):
        y = _scale(b, multiply(b, *names.values()), alpha)
        # With beta = 0, PyTorch ignores x, also its NaNs.
        return (
            b.layer("expand", y, shape=list(out))
            if beta == 0
            else b.layer("add", y, _scale(b, x, beta))
        )

    return run


def _sum_of_products(b, batch1, batch2):
    return b.layer("sum", b.layer("matmul", batch1, batch2), axes=[0])


def _chain(b, out, **names):
    (matrices,) = names.values()
    y = matrices[0]
    for matrix in matrices[1:]:
        y = product(b, y, matrix)
    return y


def _vecdot(b, x, y, out, dim=-1):
    z = b.layer("mul", x, y)
    return b.layer("sum", z, axes=[normal_axis(dim, z.rank)])


def _cross(b, x, other, out, dim=None):
    """Component i is x[i+1] * other[i+2] - x[i+2] * other[i+1], with indices modulo 3."""
    if dim is None:
        dim = next(axis for axis, size in enumerate(x.shape) if size == 3)
    axis = normal_axis(dim, len(out))
    x, other = (t if t.shape == out else b.layer("expand", t, shape=list(out)) for t in (x, other))

    def turned(t, first):
        parts = [b.slice(t, axis, start, size) for start, size in ((first, 3 - first), (0, first))]
        return b.layer("concat", *parts, axis=axis)

    pairs = ((turned(x, i), turned(other, 3 - i)) for i in (1, 2))
    return b.layer("sub", *(b.layer("mul", *pair) for pair in pairs))


def _bilinear(b, input1, input2, weight, bias=None, out=None):
    """y[.., k] is the sum of input1[.., i] * weight[k, i, j] * input2[.., j]: input1 by all matrices at once."""
    n, i, j = weight.shape
    table = b.reshape(b.layer("permute", weight, axes=[1, 0, 2]), (i, n * j))
    rows = b.reshape(product(b, input1, table), (*input1.shape[:-1], n, j))
    y = product(b, rows, b.reshape(input2, (*input2.shape, 1)))
    y = b.reshape(y, out)
    return y if bias is None else b.layer("add", y, bias)


# ---- Distances, norms ----


def _cdist(b, x1, x2, out, p=2.0, compute_mode=None):
    """The norm of all differences of rows."""
    left = b.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    right = b.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    return b.layer("norm", b.layer("sub", left, right), p=float(p), axes=[len(out)])


def _dist(b, x, other, out, p=2):
    difference = b.layer("sub", x, other)
    if difference.rank == 0:
        return b.layer("abs", difference)
    return b.layer("norm", difference, p=float(p), axes=list(range(difference.rank)))


def _matrix_norm(b, x, out, ord="fro", dim=(-2, -1), keepdim=False, dtype=None):
    """The norms of matrices that need no eigenvalues: of all values, and the largest or smallest sum of a column or row."""
    sums = not isinstance(ord, str) and abs(ord) in (1, math.inf)
    needs(ord == "fro" or sums, f"the matrix norm {ord}")
    rows, columns = all_in_order(x, dim)
    if ord == "fro":
        return b.layer("norm", x, p=2.0, axes=sorted([rows, columns]), keepdim=keepdim)
    summed, rest = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = b.layer("sum", b.layer("abs", x), axes=[summed], keepdim=True)
    y = b.layer(f"reduce_{'max' if ord > 0 else 'min'}", sums, axes=[rest], keepdim=True)
    return b.reshape(y, out)


def _linalg_norm(b, x, out, ord=None, dim=None, keepdim=False, dtype=None):
    """Of the vector of all values without ``ord`` and ``dim``, of vectors along one dim, else of matrices."""
    needs(x.rank > 0, "a norm of a number")
    axes = all_axes(dim, x.rank)
    if ord is None or (len(axes) == 1 and not isinstance(ord, str)):
        p = 2.0 if ord is None else float(ord)
        return b.layer("norm", x, p=p, axes=axes, keepdim=keepdim)
    return _matrix_norm(b, x, out, ord, axes if dim is None else dim, keepdim)


# ---- Sums along a dim ----


def _diff(b, x, out, n=1, dim=-1, prepend=None, append=None):
    axis = normal_axis(dim, x.rank)
    parts = [part for part in (prepend, x, append) if part is not None]
    y = b.layer("concat", *parts, axis=axis) if len(parts) > 1 else x
    for _ in range(n):
        size = y.shape[axis] - 1
        y = b.layer("sub", *(b.slice(y, axis, start, size) for start in (1, 0)))
    return y


def _trapezoid(is_cumulative):
    """The sum of means of neighbours, times their distance: a number, or the differences of the points x."""

    def run(b, y, out, x=None, dx=1, dim=-1):
        axis = normal_axis(dim, y.rank)
        size = y.shape[axis] - 1
        means = b.layer("add", *(b.slice(y, axis, start, size) for start in (1, 0)))
        if x is None:
            step = float(dx) / 2
        else:
            at = normal_axis(dim, y.rank) if x.rank == y.rank else 0
            needs(x.rank in (1, y.rank), "points of another rank")
            step = b.layer("mul", _diff(b, x, None, dim=at), 0.5)
            if x.rank == 1:
                step = b.reshape(step, (*step.shape, *[1] * (y.rank - 1 - axis)))
        areas = b.layer("mul", means, step)
        if is_cumulative:
            return b.layer("cumsum", areas, axis=axis)
        return b.layer("sum", areas, axes=[axis])

    return run


def _sum_to_size(b, x, out, size):
    """Sums the dims that were broadcast."""
    lead = x.rank - len(out)
    axes = [i for i in range(x.rank) if i < lead or (out[i - lead] == 1 and x.shape[i] != 1)]
    return b.reshape(b.layer("sum", x, axes=axes, keepdim=True), out) if axes else x


TABLE = {
    "dot.default vdot.default mv.default": _dot,
    "outer.default ger.default": _outer,
    "inner.default": _inner,
    "tensordot.default": _tensordot,
    "kron.default": _kron,
    "addmv.default": _added(product),
    "addr.default": _added(lambda b, vec1, vec2: _outer(b, vec1, vec2, None)),
    "addbmm.default": _added(_sum_of_products),
    "chain_matmul.default linalg_multi_dot.default": _chain,
    "linalg_vecdot.default": _vecdot,
    "cross.default linalg_cross.default": _cross,
    "bilinear.default": _bilinear,
    "cdist.default": _cdist,
    "dist.default": _dist,
    "linalg_norm.default linalg_norm.ord_str": _linalg_norm,
    "linalg_matrix_norm.default linalg_matrix_norm.str_ord": _matrix_norm,
    "diff.default": _diff,
    "trapezoid.x trapezoid.dx trapz.x trapz.dx": _trapezoid(False),
    "cumulative_trapezoid.x cumulative_trapezoid.dx": _trapezoid(True),
    "sum_to_size.default": _sum_to_size,
}

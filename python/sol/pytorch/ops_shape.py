"""A part of the table of ATen ops (ops.py): ops that stack, split, turn or copy tensors, diagonals, and tensors that depend on
no other, such as eye.

The table and its conventions are those of ops.py. Names that end with _copy are ops without alias: their rows are those of the
views.
"""

import math

import torch

from sol.pytorch.builder import DTYPES, needs, normal_axis
from sol.pytorch.ops_move import flip, roll


def _slice(b, x, axis, start, size, step=1):
    return b.layer("slice", x, axis=axis, start=start, step=step, shape=[size])


# ---- Ranks, stacks ----


def at_least(b, x, rank):
    """atleast_1d, 2d and 3d: a vector is a row, a matrix gets a last dim."""
    if x.rank >= rank:
        return x
    if rank == 3 and x.rank > 0:
        return b.reshape(x, (1, *x.shape, 1) if x.rank == 1 else (*x.shape, 1))
    return b.reshape(x, (1,) * (rank - x.rank) + x.shape)


def _at_least(rank):
    def run(b, out, x=None, tensors=None):
        if tensors is not None:
            return [at_least(b, t, rank) for t in tensors]
        return at_least(b, x, rank)

    return run


def _concat(b, tensors, axis):
    return tensors[0] if len(tensors) == 1 else b.layer("concat", *tensors, axis=axis)


def _stack_along(rank, axis):
    """hstack, vstack and dstack."""

    def run(b, tensors, out):
        tensors = [at_least(b, t, rank) for t in tensors]
        return _concat(b, tensors, axis if len(out) > 1 else 0)

    return run


def _column_stack(b, tensors, out):
    columns = [t if t.rank > 1 else b.reshape(t, (math.prod(t.shape), 1)) for t in tensors]
    return _concat(b, columns, 1)


def _broadcast_tensors(b, tensors, out):
    pairs = zip(tensors, out)
    return [t if t.shape == n else b.layer("expand", t, shape=list(n)) for t, n in pairs]


def _block_diag(b, tensors, out):
    rows, at = [], 0
    for t in (at_least(b, t, 2) for t in tensors):
        sides = [0, at, 0, out[1] - at - t.shape[1]]
        at += t.shape[1]
        rows.append(b.layer("pad", t, pad=sides) if any(size != 0 for size in sides) else t)
    return _concat(b, rows, 0)


def _mesh(b, tensors, swaps):
    """Each vector along its own dim of all; the first two dims are exchanged if ``swaps``."""
    order = list(range(len(tensors)))
    if swaps and len(order) > 1:
        order[:2] = 1, 0
    sizes = [math.prod(t.shape) for t in tensors]
    shape = [sizes[i] for i in order]
    result = []
    for i, t in enumerate(tensors):
        line = [sizes[i] if j == i else 1 for j in order]
        result.append(b.layer("expand", b.reshape(t, tuple(line)), shape=shape))
    return result


def _meshgrid(b, tensors, out, indexing="ij"):
    return _mesh(b, tensors, indexing == "xy")


def _cartesian_prod(b, tensors, out):
    if len(tensors) == 1:
        return tensors[0]
    columns = [b.reshape(t, (out[0], 1)) for t in _mesh(b, tensors, False)]
    return _concat(b, columns, 1)


# ---- Splits ----


def _split_along(axis):
    """hsplit, vsplit and dsplit: the sizes of the parts come from ``out``."""

    def run(b, x, out, **_):
        at, start, parts = axis if x.rank > 1 else 0, 0, []
        for shape in out:
            parts.append(_slice(b, x, at, start, shape[at]))
            start += shape[at]
        return parts

    return run


# ---- Turns ----


def _turn_by_quarters(b, x, out, k=1, dims=(0, 1)):
    first, second = dims
    times = k % 4
    if times in (1, 2):
        x = flip(b, x, [second], None)
    if times in (2, 3):
        x = flip(b, x, [first], None)
    if times % 2 == 0:
        return x
    axes = list(range(x.rank))
    i, j = normal_axis(first, x.rank), normal_axis(second, x.rank)
    axes[i], axes[j] = axes[j], axes[i]
    return b.layer("permute", x, axes=axes)


def _shift(is_back):
    """fftshift, which moves the first half of each dim behind the second one, and ifftshift, which moves it back."""

    def run(b, x, out, dim=None):
        dims = list(range(x.rank)) if dim is None else dim
        dims = dims if isinstance(dims, (list, tuple)) else [dims]
        sizes = [x.shape[axis] for axis in dims]
        return roll(b, x, [(n + 1) // 2 if is_back else n // 2 for n in sizes], None, dims)

    return run


# ---- Diagonals ----


def _diagonal(b, x, out, offset=0, dim1=0, dim2=1):
    """The matrices' values in row-major order: a diagonal is a slice with a step of one row and one column."""
    i, j = normal_axis(dim1, x.rank), normal_axis(dim2, x.rank)
    axes = [axis for axis in range(x.rank) if axis not in (i, j)] + [i, j]
    if axes != sorted(axes):
        x = b.layer("permute", x, axes=axes)
    rows, columns = x.shape[-2:]
    flat = b.reshape(x, (*x.shape[:-2], rows * columns))
    start = offset if offset >= 0 else -offset * columns
    return _slice(b, flat, flat.rank - 1, start, out[-1], columns + 1)


def _linalg_diagonal(b, A, out, offset=0, dim1=-2, dim2=-1):
    return _diagonal(b, A, out, offset, dim1, dim2)


def _trace(b, x, out):
    size = min(x.shape)
    return b.layer("sum", _diagonal(b, x, (size,)))


def _diag_embed(b, x, out, offset=0, dim1=-2, dim2=-1):
    """Each value, followed by as many zeros as a row has: the rows of a square matrix, whose last row has no zeros behind it."""
    size, lead = x.shape[-1], x.shape[:-1]
    y = b.layer("pad", b.reshape(x, (*x.shape, 1)), pad=[0, 0, 0, size])
    flat = b.reshape(y, (*lead, size * (size + 1)))
    y = b.reshape(_slice(b, flat, x.rank - 1, 0, size * size), (*lead, size, size))
    if offset:
        down, right = max(0, -offset), max(0, offset)
        y = b.layer("pad", y, pad=[down, right, right, down])
    i, j = normal_axis(dim1, y.rank), normal_axis(dim2, y.rank)
    axes = iter(range(y.rank - 2))
    order = [y.rank - 2 if d == i else y.rank - 1 if d == j else next(axes) for d in range(y.rank)]
    return y if order == sorted(order) else b.layer("permute", y, axes=order)


def _diag(b, x, out, diagonal=0):
    return (_diag_embed if x.rank == 1 else _diagonal)(b, x, out, diagonal)


def _diagflat(b, x, out, offset=0):
    return _diag_embed(b, b.reshape(x, (math.prod(x.shape),)), out, offset)


# ---- Tensors that depend on no other ----


def _known(name):
    """An op without tensors: PyTorch computes it once."""
    op = getattr(torch.ops.aten, name)

    def run(b, out, dtype=None, layout=None, device=None, pin_memory=None, **names):
        sizes = [size for value in names.values() for size in _as_list(value)]
        needs(all(isinstance(x, (int, float)) for x in sizes), f"{name} of an open size")
        return b.constant(op(**names, dtype=DTYPES[b.dtype]))

    return run


def _as_list(x):
    return x if isinstance(x, (list, tuple)) else [x]


def _scalar_tensor(b, s, out, **_):
    return b.value(s)


def _is_real(b, x, out):
    """Whether values have no imaginary part: all of them."""
    value = b.value(True, "bool")
    return b.layer("expand", value, shape=list(out)) if out else value


TABLE = {
    "atleast_1d.default atleast_1d.Sequence": _at_least(1),
    "atleast_2d.default atleast_2d.Sequence": _at_least(2),
    "atleast_3d.default atleast_3d.Sequence": _at_least(3),
    "hstack.default": _stack_along(1, 1),
    "vstack.default row_stack.default": _stack_along(2, 0),
    "dstack.default": _stack_along(3, 2),
    "column_stack.default": _column_stack,
    "broadcast_tensors.default": _broadcast_tensors,
    "block_diag.default": _block_diag,
    "meshgrid.default meshgrid.indexing": _meshgrid,
    "cartesian_prod.default": _cartesian_prod,
    "hsplit.int hsplit.array": _split_along(1),
    "vsplit.int vsplit.array": _split_along(0),
    "dsplit.int dsplit.array": _split_along(2),
    "fliplr.default": lambda b, x, out: flip(b, x, [1], out),
    "flipud.default": lambda b, x, out: flip(b, x, [0], out),
    "rot90.default": _turn_by_quarters,
    "fft_fftshift.default": _shift(False),
    "fft_ifftshift.default": _shift(True),
    "diagonal.default diagonal_copy.default": _diagonal,
    "linalg_diagonal.default": _linalg_diagonal,
    "trace.default": _trace,
    "diag_embed.default": _diag_embed,
    "diag.default": _diag,
    "diagflat.default": _diagflat,
    "eye.default eye.m": _known("eye"),
    "linspace.default": _known("linspace"),
    "logspace.default": _known("logspace"),
    "tril_indices.default": _known("tril_indices"),
    "triu_indices.default": _known("triu_indices"),
    "scalar_tensor.default": _scalar_tensor,
    "isreal.default": _is_real,
}

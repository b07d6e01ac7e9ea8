"""Layers of libsol from Python values: sizes, attributes as text, and what was built, for debugging."""

from typing import NamedTuple

import sympy

from sol import _core

# The one symbol of a model: the size that the caller chooses, the batch.
BATCH = sympy.Symbol("n", integer=True, nonnegative=True)


class Unsupported(Exception):
    """The model has something that SOL does not do; the text is the reason that users see."""


class Value(NamedTuple):
    """A tensor of the model. ``shape``: ints and polynomials of BATCH.

    ``constant``: it depends on parameters only, so a conv or linear may take it as its weight.
    """

    id: int
    shape: tuple
    constant: bool = False

    @property
    def rank(self):
        return len(self.shape)


class Record(NamedTuple):
    """A layer that was built."""

    kind: str
    inputs: tuple
    output: int
    attributes: str
    origin: str
    shape: tuple


class Builder:
    """Adds layers to ``model``; ``origin`` is the user's line that they come from."""

    def __init__(self, name):
        self.model = _core.Model(name)
        self.records = []
        self.excluded = set()
        self.origin = ""
        self._batch = None

    def source(self, add, name, dtype, shape, constant):
        """An input or param (``add``: the model's method) -> Value."""
        dims = [size if isinstance(size, int) else self._symbol(size) for size in shape]
        value = Value(add(name, dtype, dims), tuple(shape), constant)
        kind = "param" if constant else "input"
        self.records.append(Record(kind, (), value.id, name, "", value.shape))
        return value

    def _symbol(self, size):
        if size != BATCH:
            raise Unsupported(f"an input of size {size}")
        if self._batch is None:
            self._batch = self.model.symbol("batch")
        return self._batch

    def scalar(self, number):
        """A number as a tensor of rank 0."""
        return Value(self.model.scalar(float(number)), (), True)

    def value(self, x):
        """``x`` itself, or a number as a tensor."""
        if isinstance(x, sympy.Expr):
            raise Unsupported(f"the number {x}, which depends on the batch size n")
        return x if isinstance(x, Value) else self.scalar(x)

    def layer(self, kind, *inputs, **attributes):
        """Adds a layer of ``layer.def`` -> Value. Numbers among the inputs become scalars.

        Raises ValueError with libsol's message when the layer does not fit.
        """
        inputs = [self.value(x) for x in inputs]
        text = " ".join(f"{key}={format_attribute(x)}" for key, x in attributes.items())
        ids = tuple(x.id for x in inputs)
        output = self.model.layer(kind, ids, text, self.origin)
        dims = self.model.shape(output)
        if dims is None:
            self.model.check()
            raise Unsupported(f"layer {kind} was refused")
        # Only what gives a whole new shape can have formulas in it.
        given = attributes.get("shape") if kind in ("reshape", "expand") else None
        shape = tuple(given or map(from_dim, dims))
        self.records.append(Record(kind, ids, output, text, self.origin, shape))
        return Value(output, shape, all(x.constant for x in inputs))

    def reshape(self, x, shape):
        """``x`` in another shape; nothing is added when it is the same."""
        return x if tuple(shape) == x.shape else self.layer("reshape", x, shape=list(shape))

    def exclude(self, size):
        """The graph holds for every batch but ``size``."""
        self.excluded.add(size)


def from_dim(dim):
    """A dim as libsol gives it: symbols are negative; formulas are unknown (None)."""
    return BATCH if dim is not None and dim < 0 else dim


def to_size(size):
    """An int or SymInt of torch.export as int or polynomial of BATCH."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.is_Integer:
        return int(expression)
    return sympy.expand(expression.xreplace(dict.fromkeys(expression.free_symbols, BATCH)))


def format_size(size):
    """As libsol reads it: 3, $0, 6*$0+1. Raises Unsupported for what is no polynomial."""
    if isinstance(size, int):
        return str(size)
    if not size.is_polynomial(BATCH):
        raise Unsupported(f"the size {size} is no polynomial of the batch size")
    text = ""
    for (power,), factor in sympy.Poly(size, BATCH).terms():
        sign = "-" if factor < 0 else "+" if text else ""
        factors = [str(abs(factor))] + [f"$0^{power}" if power > 1 else "$0"] * (power > 0)
        text += sign + "*".join(factors)
    return text


def format_attribute(x):
    """An attribute as text; lists in brackets, without blanks."""
    if isinstance(x, (list, tuple)):
        return "[" + ",".join(map(format_attribute, x)) + "]"
    if isinstance(x, bool):
        return str(x).lower()
    if isinstance(x, float):
        return repr(x)
    return format_size(x)


def pair(x):
    """One number or a list of one or two as [rows, columns]."""
    x = list(x) if isinstance(x, (list, tuple)) else [x]
    return x * 2 if len(x) == 1 else x


def normal_axis(axis, rank):
    """An axis counted from the front."""
    return int(axis) % max(rank, 1)


def all_axes(axes, rank):
    """Axes as a sorted list; None and [] are all of them."""
    if axes is None or axes == []:
        return list(range(rank))
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    return sorted(normal_axis(axis, rank) for axis in axes)

"""Builds a libsol model: converts sizes and attributes, and records the layers for debug output.

importer.py, ops.py  ->  Builder  ->  _core.Model
"""

from typing import NamedTuple

import sympy

from sol import _core
from sol.pytorch.inputs import DTYPE_NAMES

MAX_EXACT = 2**53  # integers of a larger magnitude are no exact Python floats
# {the name of an element type in libsol: torch's}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

# The only symbol of a model: the batch size, which is known only at the call.
BATCH = sympy.Symbol("n", integer=True, nonnegative=True)


class Unsupported(Exception):
    """The model uses something that SOL does not support. The message is the reason that users see."""


class Value(NamedTuple):
    """A tensor of the model. ``shape``: ints and polynomials of BATCH. ``dtype``: its name in libsol.

    ``constant``: the tensor depends on parameters only, so it may be the weight of a conv or linear.
    """

    id: int
    shape: tuple
    constant: bool = False
    dtype: str = "f32"

    @property
    def rank(self):
        return len(self.shape)


class Record(NamedTuple):
    """A built layer, input or param, for debug output. ``inputs``, ``output``: ids of tensors."""

    kind: str
    inputs: tuple
    output: int
    attributes: str
    origin: str
    shape: tuple


class Builder:
    """Adds layers to ``model`` (a _core.Model).

    ``origin``: the user's line that new layers come from. ``excluded``: batch sizes for which the graph is not valid. ``dtype``: the
    element type of the op's result, which numbers get where no tensor decides.
    """

    def __init__(self, name):
        self.model = _core.Model(name)
        self.records = []
        self.excluded = set()
        self.origin = ""
        self.dtype = "f32"
        self.params = []  # what each param of the model is; see importer.Imported
        self._batch = None
        self._hosts = {}  # key of a function -> its number in the model

    def source(self, add, name, dtype, shape, constant):
        """Adds an input or a param. Returns its Value. ``add``: Model.input or Model.param. Raises Unsupported."""
        dims = [size if isinstance(size, int) else self._symbol(size) for size in shape]
        value = Value(add(name, dtype, dims), tuple(shape), constant, dtype)
        kind = "param" if constant else "input"
        self.records.append(Record(kind, (), value.id, name, "", value.shape))
        return value

    def _symbol(self, size):
        if size != BATCH:
            raise Unsupported(f"an input of size {size}")
        if self._batch is None:
            self._batch = self.model.symbol("batch")
        return self._batch

    def constant(self, tensor):
        """Adds a param for a tensor that belongs to no module. Returns its Value."""
        name = f"constant{len(self.params)}"
        self.params.append(tensor)
        dtype = DTYPE_NAMES[tensor.dtype]
        return self.source(self.model.param, name, dtype, tensor.shape, True)

    def scalar(self, number, dtype="f32"):
        """Returns a Python number as a Value of rank 0. Raises Unsupported if the element type does not have it."""
        if dtype == "f32":
            return Value(self.model.scalar(float(number)), (), True)
        if isinstance(number, int) and abs(number) > MAX_EXACT:
            raise Unsupported(f"the number {number}")
        return self.layer("scalar", value=float(number), dtype=dtype)

    def value(self, x, dtype=None):
        """Returns ``x`` if it is a Value, else the number ``x`` as one. Raises Unsupported for a formula of the batch size."""
        if isinstance(x, sympy.Expr):
            raise Unsupported(f"the number {x}, which depends on the batch size n")
        return x if isinstance(x, Value) else self.scalar(x, dtype or self.dtype)

    def cast(self, x, dtype):
        """Returns ``x`` in an element type; ``x`` itself if it has that type."""
        return x if x.dtype == dtype else self.layer("cast", x, dtype=dtype)

    def layer(self, kind, *inputs, **attributes):
        """Adds a layer of the kind ``kind`` (src/ir/layer.def). Returns its output as a Value. Inputs may be numbers.

        Raises ValueError with libsol's message when the layer does not accept the inputs or attributes.
        """
        known = [x.dtype for x in inputs if isinstance(x, Value)]
        inputs = [self.value(x, known[0] if known else None) for x in inputs]
        text = " ".join(f"{key}={format_attribute(x)}" for key, x in attributes.items())
        ids = tuple(x.id for x in inputs)
        output = self.model.layer(kind, ids, text, self.origin)
        dims = self.model.shape(output)
        if dims is None:
            self.model.recover()
            raise Unsupported(f"layer {kind} was refused")
        # Model.shape returns None for a formula. The attribute `shape` of reshape and expand contains the formula.
        given = attributes.get("shape") if kind in ("reshape", "expand", "arange") else None
        shape = tuple(given or map(from_dim, dims))
        self.records.append(Record(kind, ids, output, text, self.origin, shape))
        constant = all(x.constant for x in inputs)
        return Value(output, shape, constant, self.model.dtype(output))

    def reshape(self, x, shape):
        """Returns ``x`` in the shape ``shape``; ``x`` itself if it has that shape."""
        return x if tuple(shape) == x.shape else self.layer("reshape", x, shape=list(shape))

    def host(self, name, function, inputs, types):
        """Adds a layer that ``function`` (host.Function) computes. Returns its outputs as a list of Values.

        ``types``: (dtype, shape) of each output. Layers with equal functions and inputs are computed once.
        """
        if function.key not in self._hosts:
            self._hosts[function.key] = self.model.host(name, function)
        text = " ".join(f"{dtype}{format_attribute(shape)}" for dtype, shape in types)
        ids = tuple(x.id for x in inputs)
        host = self._hosts[function.key]
        outputs = self.model.host_layer(host, ids, text, "pure=true", self.origin, len(types))
        self.model.recover()
        for output, (_, shape) in zip(outputs, types):
            self.records.append(Record(name, ids, output, "", self.origin, tuple(shape)))
        return [Value(x, tuple(shape), dtype=dtype) for x, (dtype, shape) in zip(outputs, types)]

    def exclude(self, size):
        """Notes that the graph is not valid for the batch size ``size``."""
        self.excluded.add(size)


def from_dim(dim):
    """Converts a dim of Model.shape: a negative number is a symbol, so BATCH; None (a formula) stays None."""
    return BATCH if dim is not None and dim < 0 else dim


def to_size(size):
    """Converts an int or SymInt of torch.export to an int or an expression of BATCH. All symbols are the batch size."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if expression.is_Integer:
        return int(expression)
    return sympy.expand(expression.xreplace(dict.fromkeys(expression.free_symbols, BATCH)))


def make_formula(size):
    """Returns a function that computes an expression of BATCH of the values of the model's symbols. Raises Unsupported."""
    code = compile(str(size), "<size>", "eval")

    def evaluate(symbols):
        return eval(code, {"__builtins__": {}}, {str(BATCH): symbols[0]})

    try:
        if all(evaluate((n,)) == int(size.subs(BATCH, n)) for n in (1, 2, 7)):
            return evaluate
    except Exception:
        pass  # it has a function that is no Python operator
    raise Unsupported(f"the size {size}")


def format_size(size):
    """Returns a size as text for libsol: 3, $0, 6*$0+1. Raises Unsupported for an expression that is no polynomial."""
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
    """Returns an attribute's value as text for libsol: lists in brackets, without blanks."""
    if isinstance(x, (list, tuple)):
        return "[" + ",".join(map(format_attribute, x)) + "]"
    if isinstance(x, bool):
        return str(x).lower()
    if isinstance(x, float):
        return repr(x)
    if isinstance(x, str):
        return x
    return format_size(x)


def needs(condition, reason):
    """Raises Unsupported with the reason if the condition does not hold."""
    if not condition:
        raise Unsupported(reason)


def pair(x):
    """Returns a number, or a list of one or two numbers, as [rows, columns]."""
    x = list(x) if isinstance(x, (list, tuple)) else [x]
    return x * 2 if len(x) == 1 else x


def normal_axis(axis, rank):
    """Returns an axis as an index from 0 to rank - 1; negative axes count from the end."""
    return int(axis) % max(rank, 1)


def all_axes(axes, rank):
    """Returns axes as a sorted list of indices; None and [] mean all axes."""
    if axes is None or axes == []:
        return list(range(rank))
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    return sorted(normal_axis(axis, rank) for axis in axes)

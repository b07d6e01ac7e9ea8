"""Builds a libsol model: converts sizes and attributes, and records the layers for debug output.

importer.py, ops.py  ->  Builder  ->  _core.Model
"""

import re
from typing import NamedTuple

import sympy

from sol import _core
from sol.pytorch.inputs import DTYPE_NAMES

MAX_DIVISOR = 64  # of a float that scales a size
MAX_EXACT = 2**53  # integers of a larger magnitude are no exact Python floats
# {the name of an element type in libsol: torch's}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

# Functions of torch.export's sizes that are quotients, rounded down: of sizes that the divisor divides, and of others.
QUOTIENTS = {"FloorDiv", "CleanDiv"}
REMAINDERS = {"Mod", "PythonMod"}
TERM = re.compile(r"[+-]?[^+-]+")


class Unsupported(Exception):
    """The model uses something that SOL does not support. The message is the reason that users see."""


class Hidden(Unsupported):
    """A write that the imported graph does not show. The functional form of the graph has no such write."""


class DependsOnData(Unsupported):
    """The shape of a tensor follows from values, not from shapes. Several graphs, with Python between them, may compute it."""


class Value(NamedTuple):
    """A tensor of the model. ``shape``: ints and polynomials of libsol's symbols: "$0", "$8" as in docs/ir.md. ``dtype``: its
    name in libsol.

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

    ``origin``: the user's line that new layers come from. ``excluded``: {(name of an open size, value)} for which the graph
    is not valid. ``symbols``: the names of the model's symbols. ``batches``: the graph's Batches, which name open sizes.
    ``dtype``: the element type of the op's result, which numbers get where no tensor decides. ``seed``: Value of the input that calls
    pass for random numbers, behind the graph's own, or None. ``may_draw``: calls can pass one.
    """

    def __init__(self, name, batches, may_draw):
        self.model = _core.Model(name)
        self.records = []
        self.excluded = set()
        self.origin = ""
        self.symbols = []
        self.dtype = "f32"
        self.params = []  # what each param of the model is; see importer.Imported
        self.seed = None  # the model's input for random numbers, if a layer draws some
        self._may_draw = may_draw
        self._n_streams = 0  # of random numbers
        self._batches = batches
        self._sizes = {}
        self._hosts = {}  # key of a function -> its number in the model

    def source(self, add, name, dtype, shape, constant):
        """Adds an input or a param. Returns its Value. ``add``: Model.input or Model.param. Raises Unsupported."""
        dims = [size if isinstance(size, int) else self._dim(size) for size in shape]
        value = Value(add(name, dtype, dims), tuple(shape), constant, dtype)
        kind = "param" if constant else "input"
        self.records.append(Record(kind, (), value.id, name, "", self._show(value.shape)))
        return value

    def _show(self, shape):
        """Returns a shape for people: with the names of open sizes."""
        names = {symbol(f"${i}"): sympy.Symbol(name) for i, name in enumerate(self.symbols)}
        return tuple(x if isinstance(x, int) else x.xreplace(names) for x in shape)

    def _dim(self, size):
        """Returns a symbol as a dim of Model.input. Raises Unsupported for a formula."""
        for i, name in enumerate(self.symbols):
            if size == self._symbol(name):
                return -1 - i
        raise Unsupported(f"an input of size {size}")

    def _symbol(self, name):
        """Returns the value of an open size: 16*$8 if it is a multiple of 16."""
        if name not in self.symbols:
            multiple = self._batches.multiples.get(name, 1)
            least = self._batches.least.get(name, 0)
            self.model.symbol(self._batches.titles[name], multiple, least)
            self.symbols.append(name)
        return self._normal(f"${self.symbols.index(name)}")

    def size(self, size):
        """Converts an int or SymInt of torch.export to an int or a polynomial. Raises Unsupported for other formulas."""
        if isinstance(size, int):
            return size
        expression = without_floats(size.node.expr)
        if expression not in self._sizes:
            names = self._batches.symbols
            unknown = expression.free_symbols - names.keys()
            if unknown:
                raise DependsOnData(f"the size {expression}, which depends on data")
            settled = self._batches.settle(expression)
            known = {x: self._symbol(names[x]) for x in settled.free_symbols}
            formula = merge_constants(settled.xreplace(known))
            self._sizes[expression] = self._normal(format_size(formula))
        return self._sizes[expression]

    def formula(self, size):
        """Returns (text, a function of the values of the model's symbols) of a SymInt or its formula. Raises Unsupported."""
        names = self._batches.symbols
        expression = without_floats(size if isinstance(size, sympy.Expr) else size.node.expr)
        if expression.free_symbols - names.keys():
            raise DependsOnData(f"the size {expression}, which depends on data")
        for x in expression.free_symbols:
            self._symbol(names[x])
        text = str(expression.xreplace({x: symbol(names[x]) for x in expression.free_symbols}))
        code, symbols = compile(text, "<size>", "eval"), self.symbols

        def evaluate(values):
            return eval(
                code, {"__builtins__": {}, "Min": min, "Max": max}, dict(zip(symbols, values))
            )

        try:
            evaluate([8] * len(symbols))
        except Exception:
            raise Unsupported(
                f"the size {size}"
            ) from None  # it has a function that is no Python operator
        return text, evaluate

    def _normal(self, text):
        """Returns the size in a text, in normal form, so that equal sizes are equal."""
        normal = self.model.size(text)
        if normal is None:
            self.model.check()
        return parse_size(normal)

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
        """Returns ``x`` if it is a Value, else the number or the formula of open sizes ``x`` as one."""
        if isinstance(x, sympy.Expr):
            return self._formula_value(x, dtype or self.dtype)
        return x if isinstance(x, Value) else self.scalar(x, dtype or self.dtype)

    def _formula_value(self, size, dtype):
        """Returns a formula of open sizes as a Value of rank 0: the start of a range of one number, as it is known only at a call."""
        number = self.layer("arange", start=size, shape=[1], dtype="i64")
        return self.reshape(self.cast(number, dtype), ())

    def random(self, shape):
        """Returns numbers of [0, 1), f32, which no other layer has: a stream of their own of the call's seed (seeds.py)."""
        who = self.origin or "it"
        needs(self._may_draw, f"{who} draws random numbers, for which a library has no seed")
        if self.seed is None:
            self.seed = self.source(self.model.input, "seed", "i64", (), False)
        self._n_streams += 1
        return self.layer("random", self.seed, shape=list(shape), stream=self._n_streams)

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
        dims = self.model.dims(output)
        if dims is None:
            self.model.recover()
            raise Unsupported(f"layer {kind} was refused")
        shape = tuple(map(parse_size, dims))
        self.records.append(Record(kind, ids, output, text, self.origin, self._show(shape)))
        sizes = *shape, attributes.get("start")
        is_open = any(isinstance(x, sympy.Expr) for x in sizes)
        constant = all(x.constant for x in inputs) and not is_open
        return Value(output, shape, constant, self.model.dtype(output))

    def reshape(self, x, shape):
        """Returns ``x`` in the shape ``shape``; ``x`` itself if it has that shape."""
        return x if tuple(shape) == x.shape else self.layer("reshape", x, shape=list(shape))

    def slice(self, x, axis, start, size, step=1):
        """Returns ``size`` values of ``axis``, from the index ``start`` on, with the distance ``step``."""
        return self.layer("slice", x, axis=axis, start=start, step=step, shape=[size])

    def host(self, name, function, inputs, types):
        """Adds a layer that ``function`` (host.Function) computes. Returns its outputs as a list of Values.

        ``types``: (dtype, shape) of each output. Layers with equal functions and inputs are computed once.
        """
        if function.key not in self._hosts:
            self._hosts[function.key] = self.model.host(name, function)
        return self._host_layer(self._hosts[function.key], name, inputs, types, "pure=true")

    def custom(self, layer, attributes, inputs, types):
        """Adds a layer that the C function of a CustomLayer computes; see ``host``. ``attributes``: as CustomLayer.pack returns them."""
        key = layer.code, repr(attributes)
        if key not in self._hosts:
            self._hosts[key] = self.model.custom(layer.code, attributes)
        pure = "pure=true" if layer.pure else ""
        return self._host_layer(self._hosts[key], layer.name, inputs, types, pure)

    def _host_layer(self, host, name, inputs, types, attributes):
        text = " ".join(f"{dtype}{format_attribute(shape)}" for dtype, shape in types)
        ids = tuple(x.id for x in inputs)
        outputs = self.model.host_layer(host, ids, text, attributes, self.origin, len(types))
        self.model.recover()
        for output, (_, shape) in zip(outputs, types):
            self.records.append(Record(name, ids, output, "", self.origin, self._show(shape)))
        return [Value(x, tuple(shape), dtype=dtype) for x, (dtype, shape) in zip(outputs, types)]

    def exclude(self, size, value):
        """Notes that the graph is not valid where ``size`` is ``value``. Raises Unsupported if it is a formula."""
        for name in self.symbols:
            if size == self._symbol(name):
                self.excluded.add((name, value))
                return
        raise Unsupported(f"an op that has another meaning where {size} is {value}")


def without_floats(expression):
    """Returns a size with quotients in place of products with floats: TruncToInt(1.5*ToFloat(s)) becomes FloorDiv(3*s, 2). Products
    with other numbers are left, as they may be rounded."""
    found = [x for x in sympy.preorder_traversal(expression) if type(x).__name__ == "TruncToInt"]
    if found:
        from torch.utils._sympy.functions import FloorDiv
    for x in found:
        factor, whole = x.args[0].as_coeff_Mul()
        if type(whole).__name__ == "ToFloat" and factor.is_Float and factor > 0:
            p, q = float(factor).as_integer_ratio()
            if q <= MAX_DIVISOR:
                expression = expression.xreplace({x: FloorDiv(p * whole.args[0], q)})
    return expression


def parse_size(text):
    """Returns the int or polynomial of a text such as "3" or "2*$8+1"."""
    if text.isdigit():
        return int(text)
    return sympy.Add(*[_parse_term(term) for term in TERM.findall(text)])


def _parse_term(text):
    product = sympy.Integer(-1 if text[0] == "-" else 1)
    for factor in text.lstrip("+-").split("*"):
        base, _, power = factor.partition("^")
        value = symbol(base) if base[0] == "$" else sympy.Integer(base)
        product *= value ** int(power or 1)
    return product


def symbol(name):
    return sympy.Symbol(name, integer=True, nonnegative=True)


def merge_constants(size):
    """Returns a formula in which the constant of each quotient's numerator is less than the divisor, as in libsol.

    floor((n - 1)/2) + 1 becomes floor((n + 1)/2), of which products have one term instead of four.
    """
    if not isinstance(size, sympy.Expr) or not size.args:
        return size
    size = size.func(*map(merge_constants, size.args))
    if type(size).__name__ not in QUOTIENTS or not size.args[1].is_Integer:
        return size
    whole, divisor = size.args
    extra = whole.as_coeff_Add()[0] // divisor
    return size.func(whole - extra * divisor, divisor) + extra if extra else size


def format_size(size):
    """Returns a size as text for libsol: 3, $0, 6*$0+floor(($1+1)/2). Raises Unsupported for another expression."""
    if isinstance(size, int):
        return str(size)
    terms = sympy.Add.make_args(sympy.expand(size))
    text = "".join(_format_term(size, term) for term in terms)
    return text.removeprefix("+") or "0"


def _format_term(size, term):
    sign, factors = "+", []
    for factor in sympy.Mul.make_args(term):
        base, power = factor.as_base_exp()
        if factor.is_Integer:
            sign = "-" if factor < 0 else "+"
            factors.append(str(abs(factor)))
        elif base.is_Symbol and power.is_Integer and power > 0:
            factors.append(base.name if power == 1 else f"{base.name}^{power}")
        else:
            factors.append(_format_quotient(size, factor))
    return sign + "*".join(factors)


def _format_quotient(size, factor):
    kind = type(factor).__name__
    if kind not in QUOTIENTS or not factor.args[1].is_Integer:
        raise Unsupported(f"the size {size} is no polynomial or quotient of open sizes")
    whole, divisor = factor.args
    return f"floor(({format_size(whole)})/{divisor})"


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


def batched(b, x, rank, dims, run):
    """Returns ``run(x)`` for an operator whose input has ``rank`` dims, of which ``x`` may lack the first one. ``dims``: the last
    ones, for messages."""
    if x.rank == rank:
        return run(x)
    needs(x.rank == rank - 1, f"rank {x.rank} where {dims} are expected")
    y = run(b.reshape(x, (1, *x.shape)))
    return b.reshape(y, y.shape[1:])


def normal_axis(axis, rank):
    """Returns an axis as an index from 0 to rank - 1; negative axes count from the end."""
    return int(axis) % max(rank, 1)


def all_axes(axes, rank):
    """Returns axes as a sorted list of indices; None and [] mean all axes."""
    if axes is None or axes == []:
        return list(range(rank))
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    return sorted(normal_axis(axis, rank) for axis in axes)

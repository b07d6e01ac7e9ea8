"""Custom layers: a C function of the user, as an operator of PyTorch and as a layer of SOL's programs.

    custom_layer: source or library -> _core.Custom, torch.library.custom_op -> CustomLayer
    in PyTorch:   the operator -> _Operator.run -> Custom.call, over tensors that it allocates
    in a program: importer.py finds the operator's CustomLayer -> Builder.custom; the program calls the C function itself

The shape function runs with PyTorch's fake tensors, too, so it sees open sizes as symbols. So torch.export, torch.compile and
sol.optimize keep each call as one node.
"""

import itertools
import math
import os
import re

import torch

from sol import _core
from sol.pytorch.custom_source import read_source
from sol.pytorch.inputs import DTYPE_NAMES

NAMESPACE = "sol"
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,99}")
# {the name of an operator, such as "sol::swirl": its CustomLayer}
_layers = {}
# The types of attributes: (Python's type, that of their items if they are lists, as PyTorch's schemas call them).
ATTRIBUTE_TYPES = {
    (bool, None): "bool", (int, None): "int", (float, None): "float", (str, None): "str",
    (list, int): "int[]", (list, float): "float[]",
}  # fmt: skip
# What a shape function raises for inputs that it does not expect. Other exceptions are PyTorch's own, about open sizes.
SHAPE_ERRORS = ArithmeticError, AttributeError, LookupError, TypeError, ValueError


def custom_layer(
    name,
    source=None,
    library=None,
    inputs=1,
    outputs=1,
    shape=None,
    dtype=None,
    attributes=None,
    flags="-O3",
    pure=True,
):
    """Returns a function of tensors that the C function ``name`` computes; it may be called in the forward of any module.

        swirl = sol.custom_layer("swirl", source="swirl.c", inputs=["x", "weight"], attributes={"angle": 0.5},
                                 shape=lambda x, weight, angle: x.shape)
        y = swirl(x, self.weight, angle=0.7)

    PyTorch sees it as an operator, torch.ops.sol.swirl. In networks of sol.optimize, torch.compile(backend="sol") and sol.deploy it is
    a layer of the program, which calls the C function without Python. sol.include_folder() has the header sol/custom.h, which
    says what the function gets and must do.

    name        a C identifier: that of the function, and of the layer in messages
    source      a C file, or C text with more than one line, which SOL compiles with the machine's compiler
    library     instead of ``source``: a shared library that has the function. sol.deploy needs a source
    inputs      the number of tensors, or a list of their names
    outputs     the number of results
    shape       a function of the tensors and attributes that returns the shape of the result, or with several outputs a list of
                shapes. It may use shapes and types of tensors, but no values. None: all results have the first input's shape
    dtype       the results' element type, a list of them, or a function that returns this; None: that of the first input
    attributes  {name: default value} of constants that calls may pass by name: bool, int, float, str, or a list of ints or floats
    flags       options for the compiler, separated by spaces
    pure        equal inputs give equal results, so that SOL may compute two equal calls once

    Raises TypeError or ValueError for bad arguments; OSError if the source cannot be read; RuntimeError with the compiler's message
    if it does not compile; NotImplementedError if there is no compiler.
    """
    if (source is None) == (library is None):
        raise TypeError(f"custom layer {name}: give either source or library")
    operator = _Operator(name, inputs, outputs, shape, dtype, attributes)
    if source is not None:
        operator.code = _core.Custom(name, text=read_source(name, source), flags=flags)
    else:
        operator.code = _core.Custom(name, path=_find_library(library))
    return CustomLayer(operator, pure)


def include_folder():
    """Returns the folder with sol/custom.h, for compilers of libraries with custom layers."""
    return os.path.join(os.path.dirname(_core.__file__), "include")


def find_layer(target):
    """Returns the CustomLayer whose operator is ``target`` (an OpOverload), or None."""
    return _layers.get(target.name()) if target.namespace == NAMESPACE else None


def _find_library(library):
    """Returns what dlopen gets: an absolute path, unless the name is to be searched in the system's folders."""
    path = os.path.abspath(os.fspath(library))
    return path if os.path.exists(path) else os.fspath(library)


class CustomLayer:
    """What custom_layer returns. It is immutable; copies of a module share it.

    ``code``: the _core.Custom. ``inputs``: names of the tensors.
    """

    def __init__(self, operator, pure):
        self.name = operator.name
        self.inputs = operator.inputs
        self.code = operator.code
        self.pure = bool(pure)
        self._operator = operator
        self._id = self._register(operator.name)
        self._definition = torch.library.custom_op(
            f"{NAMESPACE}::{self._id}",
            operator.run,
            mutates_args=(),
            device_types="cpu",
            schema=operator.schema,
        )
        self._definition.register_fake(operator.fake)
        self._op = getattr(getattr(torch.ops, NAMESPACE), self._id).default

    def _register(self, name):
        """Returns the name of a new operator. A second layer of a name gets another one, so that modules keep the first."""
        for i in itertools.count(1):
            own = name if i == 1 else f"{name}_{i}"
            if _layers.setdefault(f"{NAMESPACE}::{own}", self) is self:
                return own

    def __call__(self, *args, **kwargs):
        return self._op(*args, **kwargs)

    def __repr__(self):
        return f"<custom layer {self._id}{self._operator.schema}>"

    def __reduce__(self):
        return _restore, (f"{NAMESPACE}::{self._id}",)

    def register_autograd(self, backward, setup_context=None):
        """Says how PyTorch computes gradients; see torch.library.register_autograd. ``backward`` may call other custom layers."""
        self._definition.register_autograd(backward, setup_context=setup_context)

    def pack(self, attributes):
        """Returns {name: value}, with defaults for names that are missing, as _core.Custom takes it."""
        return self._operator.pack(attributes)


def _restore(name):
    if name not in _layers:
        raise RuntimeError(
            f"the custom layer {name} does not exist in this process: call sol.custom_layer first"
        )
    return _layers[name]


class _Operator:
    """The operator's schema, and its functions for PyTorch. ``code``: the _core.Custom."""

    def __init__(self, name, inputs, outputs, shape, dtype, attributes):
        _check_identifier(f"custom layer {name!r}: its name", name)
        self.name = name
        self.code = None
        self.inputs = _input_names(name, inputs)
        if type(outputs) is not int or outputs < 1:
            raise ValueError(f"custom layer {name}: outputs is {outputs!r}, not a number above 0")
        if shape is None and not self.inputs:
            raise TypeError(f"custom layer {name}: without inputs it needs a shape function")
        if shape is not None and not callable(shape):
            raise TypeError(f"custom layer {name}: shape is {shape!r}, not a function")
        self._outputs, self._shape, self._dtype = outputs, shape, dtype
        self._defaults = dict(attributes or {})
        self._types = {key: self._type_of(key, x) for key, x in self._defaults.items()}
        self.schema = self._make_schema()

    def _type_of(self, key, value):
        _check_identifier(f"custom layer {self.name}: the attribute {key!r}", key)
        items = {type(x) for x in value} if isinstance(value, (list, tuple)) else {None}
        kind = list if isinstance(value, (list, tuple)) else type(value)
        found = ATTRIBUTE_TYPES.get((kind, items.pop())) if len(items) == 1 else None
        if found is None or key in self.inputs:
            raise TypeError(
                f"custom layer {self.name}: the attribute {key}={value!r} "
                + ("has the name of an input" if found else "is no number, str, or list of numbers")
            )
        if "float" in found and not all(map(math.isfinite, value if kind is list else [value])):
            raise ValueError(f"custom layer {self.name}: the default {key}={value!r} is not finite")
        return found

    def _make_schema(self):
        arguments = [f"Tensor {x}" for x in self.inputs]
        arguments += ["*"] if self._types else []
        arguments += [
            f"{kind} {key}={_format_default(self._defaults[key])}"
            for key, kind in self._types.items()
        ]
        results = ", ".join(["Tensor"] * self._outputs)
        return f"({', '.join(arguments)}) -> {results if self._outputs == 1 else f'({results})'}"

    def pack(self, attributes):
        return tuple(
            (key, _pack(kind, attributes.get(key, self._defaults[key])))
            for key, kind in self._types.items()
        )

    # ---- PyTorch's calls ----

    def run(self, *inputs, **attributes):
        """The operator for tensors on the CPU."""
        inputs = [x.detach().resolve_neg().contiguous() for x in inputs]
        results = [torch.empty(s, dtype=d) for s, d in self._results(inputs, attributes)]
        self.code.call(
            list(map(_describe, inputs)), list(map(_describe, results)), self.pack(attributes)
        )
        return results[0] if self._outputs == 1 else tuple(results)

    def fake(self, *inputs, **attributes):
        """The operator for tensors without values."""
        device = inputs[0].device if inputs else "cpu"
        results = [
            torch.empty(s, dtype=d, device=device) for s, d in self._results(inputs, attributes)
        ]
        return results[0] if self._outputs == 1 else tuple(results)

    def _results(self, inputs, attributes):
        """Returns [(shape, dtype)] of the results."""
        for x in inputs:
            self._check_dtype(x.dtype, inputs)
        attributes = {**self._defaults, **attributes}
        shapes = (
            [inputs[0].shape] * self._outputs
            if self._shape is None
            else self._ask("shape", self._shape, inputs, attributes)
        )
        shapes = [shapes] if self._shape is not None and self._outputs == 1 else shapes
        shapes = self._check_list("shape", shapes, inputs)
        return [
            (self._check_shape(shape, inputs), self._check_dtype(dtype, inputs))
            for shape, dtype in zip(shapes, self._dtypes(inputs, attributes))
        ]

    def _dtypes(self, inputs, attributes):
        dtype = self._dtype
        if callable(dtype):
            dtype = self._ask("dtype", dtype, inputs, attributes)
        if dtype is None:
            dtype = inputs[0].dtype if inputs else torch.float32
        if isinstance(dtype, torch.dtype):
            return [dtype] * self._outputs
        return self._check_list("dtype", dtype, inputs)

    def _ask(self, what, function, inputs, attributes):
        try:
            return function(*inputs, **attributes)
        except SHAPE_ERRORS as error:
            text = f"its {what} function failed: {type(error).__name__}: {error}"
            raise self._error(ValueError, text, inputs) from error

    def _check_list(self, what, values, inputs):
        if isinstance(values, (list, tuple)) and len(values) == self._outputs:
            return values
        text = f"its {what} is {values!r}, not a list for {self._outputs} outputs"
        raise self._error(TypeError, text, inputs)

    def _check_shape(self, shape, inputs):
        is_list = isinstance(shape, (list, tuple, torch.Size)) and len(shape) <= 8
        if not is_list or not all(isinstance(x, (int, torch.SymInt)) for x in shape):
            text = f"its shape function returned {shape!r}, which is no list of at most 8 sizes"
            raise self._error(TypeError, text, inputs)
        if any(type(x) is int and x < 0 for x in shape):
            raise self._error(ValueError, f"its shape function returned {list(shape)}", inputs)
        return tuple(shape)

    def _check_dtype(self, dtype, inputs):
        if dtype not in DTYPE_NAMES:
            raise self._error(TypeError, f"SOL has no element type {dtype}", inputs)
        return dtype

    def _error(self, kind, text, inputs):
        given = ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in inputs)
        return kind(f"custom layer {self.name}({given}): {text}")


def _describe(tensor):
    return tensor.data_ptr(), DTYPE_NAMES[tensor.dtype], tensor.shape


def _check_identifier(what, name):
    if not isinstance(name, str) or not IDENTIFIER.fullmatch(name):
        raise ValueError(f"{what} is no name of C")


def _input_names(layer, inputs):
    if type(inputs) is int and inputs >= 0:
        return tuple(f"x{i}" for i in range(inputs)) if inputs != 1 else ("x",)
    if not isinstance(inputs, (list, tuple)) or len(set(inputs)) < len(inputs):
        raise TypeError(
            f"custom layer {layer}: inputs is {inputs!r}, neither a number nor a list of names"
        )
    for name in inputs:
        _check_identifier(f"custom layer {layer}: the input {name!r}", name)
    return tuple(inputs)


def _format_default(value):
    """Returns a default value as PyTorch's schemas write it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(repr, value))}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def _pack(kind, value):
    if kind == "str":
        return value
    convert = float if "float" in kind else int
    return tuple(map(convert, value)) if kind.endswith("[]") else (convert(value),)

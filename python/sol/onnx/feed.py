"""The values of a call of an ``InferenceSession``, checked against the inputs that the file declares.

check_feed(inputs, {name: value}) -> {name: value}, for Network.__call__

As in ONNX Runtime, a list of numbers becomes an array of the input's type, and an array of another type is an error.
"""

from typing import NamedTuple

import numpy

from sol import _core
from sol.onnx.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
from sol.onnx.session import NUMBERS, STRING, dtype_of

# ONNX's names of its element types, by number.
ELEMENTS = [
    "", "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "double", "uint32", "uint64",
    "complex64", "complex128", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4", "int4",
    "float4e2m1", "float8e8m0", "uint2", "int2",
]  # fmt: skip


class Port(NamedTuple):
    """An input or output. ``dims``: numbers, names or None for open sizes; None if the rank is unknown.

    ``has_default``: an initializer of the file gives its value, if the call does not.
    """

    name: str
    type: str
    dims: object
    has_default: bool = False


def check_feed(inputs, feed):
    """Returns {name: value} of the inputs (Port): those of the dict ``feed``, and None for each optional that is missing.

    Raises the exceptions of ``InferenceSession.run``.
    """
    if not hasattr(feed, "keys"):
        raise TypeError(f"input_feed is a dict of names, not a {type(feed).__name__}")
    _check_names(inputs, feed)
    return {
        port.name: _check_value(port, feed.get(port.name))
        for port in inputs
        if port.name in feed or not port.has_default
    }


def _check_names(inputs, feed):
    names = [port.name for port in inputs]
    needed = [x.name for x in inputs if not x.has_default and not x.type.startswith("optional")]
    if missing := [name for name in needed if name not in feed]:
        raise ValueError(f"the inputs {missing} are missing; the call has {list(feed)}")
    if unknown := [name for name in feed if name not in names]:
        raise InvalidArgument(f"there is no input {unknown[0]!r}; the inputs are {names}")


def _check_value(port, value):
    kind = port.type
    if kind.startswith("optional("):
        if value is None:
            return None
        kind = _inner(kind)
    what = f"input {_core.clean(port.name)}"
    if value is None:
        raise Fail(f"{what} is None; it is no optional but a {kind}")
    if kind.startswith("seq("):
        return _check_sequence(what, _inner(kind), value)
    if kind.startswith("map("):
        return _check_map(what, _inner(kind), value)
    array = _check_array(what, kind, value)
    if port.dims is not None:
        _check_shape(what, port.dims, array.shape)
    return array


def _inner(kind):
    """Returns "tensor(float)" for "seq(tensor(float))", and "float" for "tensor(float)"."""
    return kind[kind.index("(") + 1 : -1]


def _check_map(what, kind, value):
    """Returns (keys, values), two arrays. ``kind``: such as "int64,tensor(float)"."""
    if not isinstance(value, dict):
        raise InvalidArgument(f"{what} is a dict, not a {type(value).__name__}")
    key, item = kind.split(",", 1)
    columns = (f"tensor({key})", value.keys()), (item, value.values())
    return tuple(_array_of(what, column, list(items)) for column, items in columns)


def _check_sequence(what, kind, value):
    if not isinstance(value, list):
        raise InvalidArgument(f"{what} is a list of {kind}, not a {type(value).__name__}")
    if kind.startswith("map("):
        return [_check_map(f"an item of {what}", _inner(kind), item) for item in value]
    if kind.startswith("seq("):
        return [_check_sequence(f"an item of {what}", _inner(kind), item) for item in value]
    for item in value:
        if not isinstance(item, numpy.ndarray):
            raise RuntimeError(f"an item of {what} is no array but a {type(item).__name__}")
    return [_check_array(f"an item of {what}", kind, item) for item in value]


def _check_array(what, kind, value):
    """Returns a tensor in the machine's byte order. ``kind``: such as "tensor(float)"."""
    if isinstance(value, list):
        return _array_of(what, kind, value)
    if not isinstance(value, numpy.ndarray):
        raise RuntimeError(
            f"{what} is a {type(value).__name__}; a tensor is a NumPy array or nested lists of numbers, and a scalar is"
            " numpy.array(number, dtype)"
        )
    if (found := _describe(value.dtype)) != kind:
        raise InvalidArgument(f"{what} is a {found}, not a {kind}")
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def describe_value(value):
    """Returns ONNX's name of the type of a value: an array, a list, a dict, or None."""
    if isinstance(value, dict):
        key, item = next(iter(value.items()), (0, 0.0))
        kind = (
            "string" if isinstance(item, str) else "float" if isinstance(item, float) else "int64"
        )
        return f"map({'string' if isinstance(key, str) else 'int64'},tensor({kind}))"
    if isinstance(value, list):
        return f"seq({describe_value(value[0]) if value else ''})"
    return "optional" if value is None else _describe(value.dtype)


def _describe(dtype):
    """Returns ONNX's name of the type of an array, such as "tensor(float)"; NumPy's for a type that ONNX does not have."""
    number = STRING if dtype.kind in "OUST" else NUMBERS.get(dtype.name, 0)
    return f"tensor({ELEMENTS[number] or dtype})"


def _array_of(what, kind, value):
    """Returns an array of the type ``kind`` from nested lists. As in ONNX Runtime, fractions are cut off for integers."""
    try:
        return numpy.array(value, dtype_of(ELEMENTS.index(_inner(kind))))
    except (ValueError, TypeError, OverflowError) as error:
        raise RuntimeError(f"{what} is no {kind}: {error}") from error


def _check_shape(what, dims, found):
    fits = len(found) == len(dims) and all(
        not isinstance(size, int) or size == n for size, n in zip(dims, found)
    )
    if not fits:
        shape = ", ".join(_core.clean("?" if size is None else str(size)) for size in dims)
        raise InvalidArgument(f"{what} has the shape {list(found)}, not [{shape}]")

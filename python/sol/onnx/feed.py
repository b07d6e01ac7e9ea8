"""The values of a call of an ``InferenceSession``, checked against the inputs (NodeArg) that the file declares.

check_feed(inputs, {name: value}) -> {name: value}, for Network.__call__

As in ONNX Runtime, a list of numbers becomes an array of the input's type, and an array of another type is an error.
"""

from typing import NamedTuple

import numpy

from sol import _core
from sol.onnx.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
from sol.onnx.session import ML_TYPES, NUMBERS, NUMPY_TYPES, STRING, dtype_of

# ONNX's names of its element types, by number.
ELEMENTS = [
    "", "float", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "double", "uint32", "uint64",
    "complex64", "complex128", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "uint4", "int4",
    "float4e2m1", "float8e8m0", "uint2", "int2",
]  # fmt: skip


class Feed(NamedTuple):
    """An input. ``has_shape``: its shape is known; without this, a NodeArg with the shape [] may be anything.

    ``has_default``: an initializer of the file gives its value, if the call does not.
    """

    arg: object
    has_shape: bool
    has_default: bool


def check_feed(inputs, feed):
    """Returns {name: value} of the inputs (Feed): those of the dict ``feed``, and None for each optional that is missing.

    Raises the exceptions of ``InferenceSession.run``.
    """
    if not hasattr(feed, "keys"):
        raise TypeError(f"input_feed is a dict of names, not a {type(feed).__name__}")
    _check_names(inputs, feed)
    return {
        arg.name: _check_value(arg, has_shape, feed.get(arg.name))
        for arg, has_shape, has_default in inputs
        if arg.name in feed or not has_default
    }


def _check_names(inputs, feed):
    missing = [
        arg.name
        for arg, _, has_default in inputs
        if arg.name not in feed and not has_default and not arg.type.startswith("optional")
    ]
    if missing:
        names = [_core.clean(name) for name in missing]
        raise ValueError(f"the inputs {names} are missing; the call has {list(feed)}")
    names = [arg.name for arg, _, _ in inputs]
    if unknown := feed.keys() - set(names):
        first = min(unknown, key=str)
        raise InvalidArgument(f"there is no input {first!r}; the inputs are {names}")


def _check_value(arg, has_shape, value):
    kind = arg.type
    if kind.startswith("optional("):
        if value is None:
            return None
        kind = kind[len("optional(") : -1]
    if value is None:
        raise Fail(f"input {_core.clean(arg.name)} is None; it is no optional but a {kind}")
    if kind.startswith("seq("):
        return _check_sequence(arg, kind[len("seq(") : -1], value)
    array = _check_array(arg, kind, value)
    if has_shape:
        _check_shape(arg, array.shape)
    return array


def _check_sequence(arg, kind, value):
    if not isinstance(value, list):
        raise InvalidArgument(
            f"input {_core.clean(arg.name)} is a sequence: a list of {kind}, not a {type(value).__name__}"
        )
    for item in value:
        if not isinstance(
            item, (list, numpy.ndarray) if kind.startswith("seq(") else numpy.ndarray
        ):
            raise RuntimeError(
                f"an item of input {_core.clean(arg.name)} is no array but a {type(item).__name__}"
            )
    if kind.startswith("seq("):
        return [_check_sequence(arg, kind[len("seq(") : -1], item) for item in value]
    return [_check_array(arg, kind, item) for item in value]


def _check_array(arg, kind, value):
    """Returns a tensor in the machine's byte order. ``kind``: such as "tensor(float)"; "": any."""
    if isinstance(value, list):
        return _array_of(arg, kind, value)
    if not isinstance(value, numpy.ndarray):
        raise RuntimeError(
            f"input {_core.clean(arg.name)} is a {type(value).__name__}; a tensor is a NumPy array"
            " or nested lists of numbers, and a scalar is numpy.array(number, dtype)"
        )
    if kind not in ("", found := _describe(value.dtype)):
        raise InvalidArgument(f"input {_core.clean(arg.name)} is a {found}, not a {kind}")
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def _describe(dtype):
    """Returns ONNX's name of the type of an array, such as "tensor(float)"; NumPy's for a type that ONNX does not have."""
    number = STRING if dtype.kind in "OUST" else NUMBERS.get(dtype.name, 0)
    return f"tensor({ELEMENTS[number] or dtype})"


def _array_of(arg, kind, value):
    """Returns an array of the type ``kind`` from nested lists. As in ONNX Runtime, fractions are cut off for integers."""
    number = ELEMENTS.index(kind[len("tensor(") : -1] if kind else "float")
    dtype = dtype_of(number) if number in {STRING, *NUMPY_TYPES, *ML_TYPES} else None
    try:
        return numpy.array(value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise RuntimeError(f"input {_core.clean(arg.name)} is no {kind}: {error}") from error


def _check_shape(arg, found):
    fits = len(found) == len(arg.shape) and all(
        not isinstance(size, int) or size == n for size, n in zip(arg.shape, found)
    )
    if not fits:
        shape = ", ".join(_core.clean("?" if size is None else str(size)) for size in arg.shape)
        raise InvalidArgument(
            f"input {_core.clean(arg.name)} has the shape {list(found)}, not [{shape}]"
        )

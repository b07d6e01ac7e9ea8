"""Sessions (networks of which parts are interpreted): conversion of their values between Python and libsol.

A tensor is a NumPy array; element types that NumPy does not have come from ml_dtypes; strings are arrays of objects. A
sequence is a list, a map is a dict, and an optional without a value is None.
"""

import numpy

from sol import _core, device
from sol.config import config

# Element types by their numbers in onnx.TensorProto.DataType.
STRING = 8
NUMPY_TYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32"}
NUMPY_TYPES |= {7: "int64", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64"}
ML_TYPES = {16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2"}
ML_TYPES |= {20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn"}
ML_TYPES |= {24: "float8_e8m0fnu", 25: "uint2", 26: "int2"}
NUMBERS = {name: number for number, name in (NUMPY_TYPES | ML_TYPES).items()}


def dtype_of(number):
    """Returns the numpy dtype for ONNX's number of an element type."""
    if number == STRING:
        return numpy.dtype(object)
    if number in NUMPY_TYPES:
        return numpy.dtype(NUMPY_TYPES[number])
    import ml_dtypes  # only models with such types need it

    return numpy.dtype(getattr(ml_dtypes, ML_TYPES[number]))


def open_session(source, winograd):
    """Opens a Source (source.py) as a _core.Session. ``winograd``: False for deterministic mode. Raises the same exceptions as ``load``."""
    target = device.get()
    return _core.open_session(
        source.value,
        source.folder,
        target.name or None,
        target.number,
        winograd,
        config["compiler::autotune"],
    )


class Session:
    """Runs the calls of a ``Network`` that is not compiled as a whole. ``inputs``, ``outputs``, ``counts``: as there."""

    def __init__(self, core):
        self._core = core
        self.inputs = [self._port(*port) for port in core.inputs]
        self.outputs = [self._port(*port) for port in core.outputs]

    @staticmethod
    def _port(name, number, shape):
        return name, dtype_of(number) if number else None, shape

    @property
    def counts(self):
        """(compiled, interpreted): numbers of nodes in the last call."""
        return self._core.counts

    def size_name(self, size):
        """The name of an open size of an input, or None."""
        return self._core.size_name(size)

    def profile(self, values):
        """Runs a call and returns its rows, as Program.profile does."""
        kept = []
        return self._core.profile([to_core(x, kept) for x in values])

    def run(self, values):
        """Returns the list of results for ``values``, one per input, in the file's order."""
        kept = []
        return [to_numpy(x) for x in self._core.run([to_core(x, kept) for x in values])]


def to_core(value, kept):
    """Converts a value for _core.Session.run; appends the arrays to whose memory the result points to the list ``kept``.

    Raises TypeError for an element type that ONNX does not have.
    """
    if value is None:
        return None
    if isinstance(value, dict):
        value = tuple(_column(x) for x in (value.keys(), value.values()))
    if isinstance(value, (list, tuple)):
        return type(value)(to_core(x, kept) for x in value)
    array = numpy.require(value, requirements=["C", "A"])
    kept.append(array)
    if array.dtype.kind in "OUST":
        texts = [x if isinstance(x, bytes) else str(x).encode() for x in array.ravel()]
        return STRING, array.shape, texts
    if array.dtype.name not in NUMBERS:
        raise TypeError(f"elements of type {array.dtype} have no type in ONNX")
    return NUMBERS[array.dtype.name], array.shape, array.__array_interface__["data"][0]


def _column(items):
    """Returns the keys or values of a map as an array: texts, integers or floats (f32)."""
    array = numpy.array(list(items))
    return array.astype(numpy.float32) if array.dtype.kind == "f" else array


def to_numpy(value):
    """Converts a result of _core.Session.run to an array, a list (a sequence), a dict (a map), or None."""
    if value is None or isinstance(value, list):
        return value and [to_numpy(x) for x in value]
    if len(value) == 2:
        keys, values = map(to_numpy, value)
        return dict(zip(keys.tolist(), values.tolist()))
    number, shape, data = value
    if number != STRING:
        return numpy.frombuffer(data, dtype_of(number)).reshape(shape)
    texts = numpy.empty(len(data), object)
    texts[:] = [text.decode(errors="replace") for text in data]
    return texts.reshape(shape)

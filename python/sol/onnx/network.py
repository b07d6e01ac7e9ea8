"""A network from an ONNX file, called with NumPy arrays.

load(path, bytes or file) -> Network
Network(*arrays)          -> an array, or a tuple of arrays: new memory, into which the program writes its results
"""

import numpy

from sol import _core, device
from sol.config import config
from sol.onnx import measure
from sol.onnx.session import Session, open_session
from sol.onnx.shapes import check_shape, describe, find_sizes
from sol.onnx.source import read_source

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i64": "int64", "i32": "int32"}
DTYPES |= {"i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool"}


def to_numpy(dtype):
    """Returns the numpy dtype of an element type of SOL; NumPy itself has no bf16."""
    if dtype != "bf16":
        return numpy.dtype(DTYPES[dtype])
    import ml_dtypes  # only models with such types need it

    return numpy.dtype(ml_dtypes.bfloat16)


def load(model, batch_size=None, folder=None, shapes=None, deterministic=None):
    """Reads and compiles an ONNX file. Returns a Network.

    model          a path, a file object, or the bytes of a file
    batch_size     the usual value of an open first size: a hint for tuning; other values run, too
    folder         where the external data of a file object or of bytes are
    shapes         {input name: list of sizes} to compile for, if the file leaves sizes open
    deterministic  True: deterministic mode; None: as the option "compiler::winograd" says

    A network that cannot be compiled as a whole becomes a session: at each call, partitions of it run compiled for the
    shapes of that call, and the other nodes are interpreted (``Network.counts``). With ``shapes``, this is an error.

    Raises OSError when the path cannot be read, TypeError for another ``model``, ValueError when it is no ONNX model or
    malformed, NotImplementedError for operators that SOL does not implement. The last two name the node.
    """
    source = read_source(model, folder)
    winograd = config["compiler::winograd"] and not deterministic
    try:
        return Network(source.model(shapes), source.name, batch_size, winograd)
    except NotImplementedError:
        if shapes is not None:
            raise
        return Network(Session(open_session(source, winograd)), source.name)


class Network:
    """An ONNX network. Several threads may call it at the same time.

    ``inputs``, ``outputs``: [(name, numpy dtype, shape)]; printing the network shows them. A size below 0 is open; equal
    negative numbers are the same size. In a session, a dtype of None means that the value is no tensor, a shape of None is
    open as a whole, and a size of -1 has no name and may differ from other sizes of -1.

    ``name``: path or name of the file. ``program``: the _core.Program, or absent. ``session``: the Session, or None.
    """

    def __init__(self, model, name, batch_size=None, winograd=True):
        self.name = name
        self.batch_size = batch_size
        self.session = model if isinstance(model, Session) else None
        if self.session:
            self.inputs, self.outputs = model.inputs, model.outputs
            return
        self._counts = model.n_nodes(), 0
        self._symbols = model.symbols()
        self.program = model.compile(
            **device.get().options,
            batch_hint=batch_size or 0,
            winograd=winograd,
            autotune=config["compiler::autotune"],
        )
        self._weights = self.program.weights(model.values(), model)
        self.inputs = [_port(*port) for port in self.program.inputs]
        self.outputs = [_port(*port) for port in self.program.outputs]

    @property
    def counts(self):
        """(compiled, interpreted): numbers of nodes. For a session, those that the last call ran: in branches and in bodies of
        loops, a node counts each time that it runs."""
        return self.session.counts if self.session else self._counts

    def __call__(self, *arrays, **named):
        """Runs the network. Returns its output as an array, or a tuple of arrays if there are several, in new memory.

        The inputs are given in the file's order, or by name. Their dtypes must be those of ``inputs``; they are copied only
        if they are not contiguous. For a session, a sequence is a list, and an absent optional value is None.

        Raises TypeError for a missing or unknown input or another dtype, ValueError for a shape that does not fit.
        """
        if self.session:
            results = self.session.run(self.check_values(arrays, named))
            return results[0] if len(results) == 1 else tuple(results)
        call, results = self.prepare(arrays, named)
        self.program.run(*call)
        return results[0] if len(results) == 1 else tuple(results)

    def __repr__(self):
        lines = [f"ONNX network {_core.clean(self.name)}"]
        for kind, ports in (("input", self.inputs), ("output", self.outputs)):
            for name, dtype, shape in ports:
                what = f"{_describe_type(dtype)} {describe(shape, self.size_name)}"
                lines.append(f"  {kind:6} {_core.clean(name)}: {what}")
        ran = (
            "partly interpreted"
            if self.session
            else f"compiled as a whole, {self._counts[0]} nodes"
        )
        return "\n".join([*lines, f"  {ran}"])

    def profile(self, *arrays, runs=20):
        """See sol.profile."""
        return measure.profile(self, *arrays, runs=runs)

    def report(self, *arrays, path="report.html", runs=20):
        """See sol.report."""
        measure.report(self, *arrays, path=path, runs=runs)

    def memory(self, batch_size=None, inputs=None):
        """See sol.memory."""
        return measure.memory(self, batch_size, inputs)

    # ---- Used by profile, report and memory, too ----

    def prepare(self, arrays, named=()):
        """Returns ((weights, symbols, inputs, outputs), [output arrays]); the tuple holds the arguments of Program.run.

        The output arrays are new. The tuple keeps the memory of the inputs alive.
        """
        named = dict(named)
        arrays = [_check(*pair) for pair in zip(self.inputs, self._order(arrays, named))]
        symbols = self.symbols(self.find_sizes(arrays))
        results = [
            numpy.empty(self.program.output_shape(i, symbols), dtype)
            for i, (_, dtype, _) in enumerate(self.outputs)
        ]
        return (self._weights, symbols, Addresses(arrays), Addresses(results)), results

    def check_values(self, arrays, named=()):
        """Returns the values of a session's call in the file's order. Raises TypeError or ValueError for an array that does not fit."""
        values = self._order(arrays, dict(named))
        for (name, dtype, shape), value in zip(self.inputs, values):
            if isinstance(value, numpy.ndarray) and dtype is not None and dtype.kind != "O":
                _check_dtype(name, dtype, value)
            if shape is not None and isinstance(value, numpy.ndarray):
                check_shape(name, shape, value.shape, self.size_name)
        return values

    def find_sizes(self, arrays):
        """Returns {open size: its value} from the shapes of the input arrays. Raises ValueError when they do not fit."""
        return find_sizes(self.inputs, arrays, self.size_name)

    def symbols(self, sizes, default=1):
        """Returns a value per symbol of the program, from {open size: value}; ``default`` for sizes that are missing."""
        return [sizes.get(-1 - i, default) for i in range(len(self._symbols))]

    def size_name(self, size):
        """Returns the name of an open size, or None if it has no name or shares it with another size."""
        if self.session:
            return self.session.size_name(size)
        name = self._symbols[-1 - size]
        return name if self._symbols.count(name) == 1 else None

    def _order(self, arrays, named):
        names = [name for name, _, _ in self.inputs]
        if unknown := named.keys() - set(names):
            raise TypeError(f"there is no input {sorted(unknown)[0]}; the inputs are {names}")
        taken = dict(zip(names, arrays))
        if (
            len(arrays) > len(names)
            or taken.keys() & named.keys()
            or len(taken | named) < len(names)
        ):
            raise TypeError(f"expected the inputs {names}, got {len(arrays)} and {list(named)}")
        taken |= named
        return [taken[name] for name in names]


class Addresses(list):
    """A list of the arrays' addresses, which keeps the arrays alive."""

    def __init__(self, arrays):
        super().__init__(x.__array_interface__["data"][0] for x in arrays)
        self.arrays = arrays


def _check_dtype(name, dtype, array):
    if array.dtype != dtype:
        raise TypeError(f"input {_core.clean(name)} is {array.dtype}, not {dtype}")


def _check(port, array):
    name, dtype = _core.clean(port[0]), port[1]
    if not isinstance(array, numpy.ndarray):
        raise TypeError(f"input {name} is no NumPy array but a {type(array).__name__}")
    _check_dtype(name, dtype, array)
    return numpy.require(array, requirements=["C", "A"])


def _describe_type(dtype):
    if dtype is None:
        return "no tensor,"
    return "string" if dtype.kind == "O" else dtype.name


def _port(name, dtype, shape):
    return name, to_numpy(dtype), shape

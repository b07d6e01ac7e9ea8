"""A network from an ONNX file: how NumPy arrays reach its program.

load(path or bytes) -> Network
Network(*arrays)    -> an array, or a tuple of them: new memory, written by the program itself
"""

import os
import pathlib

import numpy

from sol import _core
from sol.config import config
from sol.onnx.mixed import Mixed, open_mixed
from sol.profile import median_rows

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i64": "int64", "i32": "int32"}
DTYPES |= {"i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool"}


def load(model, batch_size=None, folder=None):
    """Reads and compiles a network -> Network.

    ``model``: a path, or the bytes of a file, whose external data then lie in ``folder``. ``batch_size``: the usual value of a first
    dimension that the file leaves open, a hint for tuning. What cannot be compiled as a whole is compiled in parts, for the shapes
    of each call, and interpreted in between (``Network.counts``). Raises ValueError when the file cannot be read or is malformed,
    NotImplementedError for what SOL does not have; both name the node.
    """
    is_path = not isinstance(model, (bytes, bytearray, memoryview))
    source = os.fspath(model) if is_path else bytes(model)
    folder = None if folder is None else os.fspath(folder)
    name = source if is_path else "network"
    try:
        built = _core.read_onnx(source) if is_path else _core.parse_onnx(source, folder)
        return Network(built, name, batch_size)
    except NotImplementedError:
        return Network(Mixed(open_mixed(source, folder)), name)


class Network:
    """A network. Calls may overlap; each has memory of its own.

    ``inputs``, ``outputs``: [(name, dtype, shape)]; a size below 0 is open, equal numbers are equal sizes. Of a network of which parts
    are interpreted, a dtype of None is no tensor, and a shape of None is open.
    """

    def __init__(self, model, name, batch_size=None):
        self.name = name
        self.mixed = model if isinstance(model, Mixed) else None
        if self.mixed:
            self.inputs, self.outputs = model.inputs, model.outputs
            return
        self._counts = model.n_nodes(), 0
        self.program = model.compile(
            device=config["compiler::device"] or None,
            batch_hint=batch_size or 0,
            winograd=config["compiler::winograd"],
            autotune=config["compiler::autotune"],
        )
        self._weights = self.program.weights(model.values(), model)
        self.inputs = [_port(*port) for port in self.program.inputs]
        self.outputs = [_port(*port) for port in self.program.outputs]
        # Symbols that no input shows, if any, are 1.
        open_sizes = [-size for _, _, shape in self.inputs for size in shape if size < 0]
        self._n_symbols = max(open_sizes, default=0)

    @property
    def counts(self):
        """Numbers of nodes (compiled, interpreted), where that differs between calls, in the last one."""
        return self.mixed.counts if self.mixed else self._counts

    def __call__(self, *arrays, **named):
        """The outputs for inputs in the file's order, or by name. Arrays that are not contiguous are copied.

        Raises TypeError and ValueError, which name the input, for arrays that do not fit.
        """
        if self.mixed:
            results = self.mixed.run(self._order(arrays, named))
            return results[0] if len(results) == 1 else tuple(results)
        symbols, arrays, results = self._prepare(arrays, named)
        self.program.run(self._weights, symbols, _addresses(arrays), _addresses(results))
        return results[0] if len(results) == 1 else tuple(results)

    def report(self, *arrays, path="report.html", runs=20):
        """Writes a page for a browser: the network with the time of each kernel, memory over time, what was fused and chosen."""
        if self.mixed:
            raise NotImplementedError("a report of a network that is partly interpreted")
        symbols, arrays, results = self._prepare(arrays, {})
        call = self._weights, symbols, _addresses(arrays), _addresses(results)
        every = [self.program.profile(*call) for _ in range(max(1, runs) + 1)]
        # The first run finds nothing in the caches.
        page = self.program.page(self.name, symbols, median_rows(every[1:]))
        pathlib.Path(path).write_text(page, encoding="utf-8")

    def _prepare(self, arrays, named):
        """(values of the open sizes, checked inputs, memory for the outputs)."""
        arrays = [self._check(*pair) for pair in zip(self.inputs, self._order(arrays, named))]
        symbols = self._read_symbols(arrays)
        results = [
            numpy.empty(self.program.output_shape(i, symbols), dtype)
            for i, (_, dtype, _) in enumerate(self.outputs)
        ]
        return symbols, arrays, results

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

    @staticmethod
    def _check(port, array):
        name, dtype, shape = port
        if not isinstance(array, numpy.ndarray):
            raise TypeError(f"input {name} is no NumPy array but a {type(array).__name__}")
        if array.dtype != dtype:
            raise TypeError(f"input {name} is {array.dtype}, not {dtype}")
        fits = len(shape) == array.ndim and all(n < 0 or n == m for n, m in zip(shape, array.shape))
        if not fits:
            wanted = ["any" if size < 0 else size for size in shape]
            raise ValueError(f"input {name} has the shape {list(array.shape)}, not {wanted}")
        return numpy.require(array, requirements=["C", "A"])

    def _read_symbols(self, arrays):
        values = [1] * self._n_symbols
        seen = {}
        for (name, _, shape), array in zip(self.inputs, arrays):
            for size, found in zip(shape, array.shape):
                if size < 0 and seen.setdefault(size, found) != found:
                    raise ValueError(
                        f"input {name} has the size {found} where another has {seen[size]}"
                    )
        for size, found in seen.items():
            values[-1 - size] = found
        return values


def _addresses(arrays):
    return [x.__array_interface__["data"][0] for x in arrays]


def _port(name, dtype, shape):
    return name, numpy.dtype(DTYPES[dtype]), shape

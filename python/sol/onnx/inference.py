"""``InferenceSession``: a network from an ONNX file with the interface of ONNX Runtime's Python package.

    import sol.onnx as ort
    session = ort.InferenceSession("model.onnx")
    (y,) = session.run(["y"], {"x": x})

It is a ``Network`` (network.py) that checks the inputs of a call against what the file declares. Names, types and shapes are those
of the file (_core.read_info), and errors are exceptions of ONNX Runtime's kinds (capi/onnxruntime_pybind11_state.py).
"""

import contextlib
import copy
import os
import threading
import time
from typing import NamedTuple

from sol import _core
from sol.onnx import measure, options
from sol.onnx.capi import onnxruntime_pybind11_state as errors
from sol.onnx.feed import Port, check_feed
from sol.onnx.network import load
from sol.onnx.ortvalue import IOBinding, OrtValue
from sol.onnx.override import remove_initializers
from sol.onnx.source import read_source


class NodeArg(NamedTuple):
    """An input or output. In ``shape``, an open size is its name in the file, or None; [] also stands for an unknown shape.

    ``type``: such as "tensor(float)", "seq(tensor(int64))", "optional(tensor(string))".
    """

    name: str
    type: str
    shape: list


def _node_arg(port):
    """Returns a NodeArg of its own list, which a program may change."""
    return NodeArg(port.name, port.type, list(port.dims or ()))


class ModelMetadata(NamedTuple):
    """What a file says about itself. A text that it does not have is "".

    ``version`` is the model's, a number; 2**63 - 1 if it has none.
    """

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict


class InferenceSession:
    """A network with the interface of ``onnxruntime.InferenceSession``.

    path_or_bytes     a path, or the bytes of an ONNX file
    sess_options      SessionOptions; few of them have an effect, see there
    providers         SOL always runs on the processor. Each other provider, such as "CUDAExecutionProvider", is a warning
    provider_options  without effect, as all other keyword arguments

    Raises NoSuchFile, InvalidProtobuf (no ONNX file), InvalidGraph, or NotImplemented for what SOL cannot run; TypeError
    for arguments of other types. ``network`` is the Network, for sol.profile and sol.memory. Several threads may
    call ``run`` at the same time.
    """

    def __init__(
        self, path_or_bytes, sess_options=None, providers=None, provider_options=None, **kwargs
    ):
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes)):
            raise TypeError(f"expected a path or bytes, got {type(path_or_bytes).__name__}")
        if not isinstance(sess_options, options.SessionOptions | None):
            raise TypeError(f"sess_options is no SessionOptions but {sess_options!r}")
        self._options = copy.deepcopy(sess_options) or options.SessionOptions()
        options.check_providers(providers)
        self._options.check()
        with _translate(errors.InvalidProtobuf):
            source = read_source(path_or_bytes, self._options.folder())
            info = _core.read_info(source.value)
        self.network = self._load(source.value, source.folder)
        self._source = source
        self._others = {}  # {names of replaced initializers: the network in which they are inputs}
        self._profiled = None  # the network and the values of the last call
        self._describe(info)

    def _load(self, data, folder):
        with _translate(errors.InvalidGraph):
            deterministic = self._options.use_deterministic_compute or None
            return load(data, folder=folder, deterministic=deterministic)

    def _describe(self, info):
        """Sets what the file declares. From version 4 of the format on, an input with an initializer has a default value."""
        has_defaults = info["ir_version"] >= 4
        shown = [port for port in info["inputs"] if has_defaults or not port[3]]
        self._inputs = [self._port(*port) for port in shown]
        if not self.get_overridable_initializers():
            self._source = None  # its bytes are not needed again
        names = {dim for port in shown for dim in port[2] or () if isinstance(dim, str)}
        self._outputs = [
            self._port(name, kind, self._find_dims(at, names) if dims is None else dims)
            for at, (name, kind, dims, _) in enumerate(info["outputs"])
        ]
        self._output_at = {port.name: i for i, port in enumerate(self._outputs)}
        texts = ("producer", "graph_name", "domain", "description", "graph_description", "version")
        self._meta = ModelMetadata(*(info[key] for key in texts), info["properties"])

    def _port(self, name, kind, dims, has_default=False):
        sizes = None if dims is None else [self._options.size(dim) for dim in dims]
        return Port(name, kind, sizes, has_default)

    def _find_dims(self, at, names):
        """Returns the dims of output ``at`` that SOL has found, with the ``names`` of open sizes; or None."""
        dims = self.network.outputs[at][2]
        if dims is None or self.network.session:
            return None
        if self._source:  # a call that replaces an initializer may change the sizes
            return [None] * len(dims)
        found = [self.network.size_name(x) if x is not None and x < 0 else x for x in dims]
        return [x if x in names or isinstance(x, int) else None for x in found]

    # ---- What it is ----

    def get_inputs(self):
        """Returns the list of inputs (NodeArg), without those of ``get_overridable_initializers``."""
        return [_node_arg(port) for port in self._inputs if not port.has_default]

    def get_outputs(self):
        """Returns the list of outputs (NodeArg), with the shapes that the file declares."""
        return [_node_arg(port) for port in self._outputs]

    def get_overridable_initializers(self):
        """Returns the list of inputs that have a value in the file, which a call may replace."""
        return [_node_arg(port) for port in self._inputs if port.has_default]

    def get_modelmeta(self):
        """Returns the ModelMetadata."""
        return self._meta

    def get_session_options(self):
        """Returns the SessionOptions, a copy of the argument."""
        return self._options

    def get_providers(self):
        """Returns ["CPUExecutionProvider"]."""
        return [options.PROVIDER]

    def get_provider_options(self):
        """Returns {"CPUExecutionProvider": {}}."""
        return {options.PROVIDER: {}}

    def set_providers(self, providers=None, provider_options=None):
        """Without effect. Warns as ``InferenceSession`` does."""
        options.check_providers(providers)

    def disable_fallback(self):
        """Without effect: there is one provider."""

    enable_fallback = disable_fallback

    # ---- Calls ----

    def run(self, output_names, input_feed, run_options=None):
        """Computes the outputs of the names, in their order; None or [] stands for all. Returns a list of arrays.

        input_feed   {name: value}. A tensor is a NumPy array of the input's type, or nested lists of numbers; texts are arrays
                     or lists of str. A sequence is a list of arrays. An optional may be missing or None
        run_options  RunOptions

        A value for an initializer (``get_overridable_initializers``) replaces it. The first such call compiles another network.

        A result is an array, a list of them for a sequence, or None. It is new memory.

        Raises ValueError for a missing input; InvalidArgument for an unknown one, for another type or shape, and for an unknown
        output; RuntimeError for a value that is no array or list; NotImplemented, Fail.
        """
        positions = self._find_outputs(output_names)
        values = check_feed(self._inputs, input_feed)
        if run_options is not None and not isinstance(run_options, options.RunOptions):
            raise TypeError(f"run_options is no RunOptions but {run_options!r}")
        if run_options is not None and run_options.terminate:
            raise errors.Fail("the call does not begin, because run_options.terminate is set")
        network = self._find_network(values)
        arrays = [values[name] for name, _, _ in network.inputs]
        with _translate(errors.InvalidArgument):
            results = network(*arrays)
        if self._options.enable_profiling:
            self._profiled = network, arrays
        # A network with one output returns the value itself, which may be a list; with several, it returns a tuple.
        results = results if len(self._outputs) > 1 else (results,)
        return [results[i] for i in positions]

    def end_profiling(self):
        """With the option enable_profiling, measures the last call's inputs and returns the name of a file with the times.

        The file is a trace in Chrome's format, of SOL's steps. Without the option, or without a call, returns "".
        """
        if self._profiled is None:
            return ""
        path = f"{self._options.profile_file_prefix}{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        network, arrays = self._profiled
        measure.profile(network, *arrays, runs=1).save_trace(path)
        self._profiled = None
        return path

    def run_with_ort_values(self, output_names, input_dict_ort_values, run_options=None):
        """As ``run``, with OrtValues instead of arrays."""
        feed = {name: value._value for name, value in input_dict_ort_values.items()}
        return [OrtValue(x) for x in self.run(output_names, feed, run_options)]

    def io_binding(self):
        """Returns a new IOBinding."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding, run_options=None):
        """Computes the bound outputs from the bound inputs."""
        iobinding.call(self.run, run_options)

    def run_async(self, output_names, input_feed, callback, user_data, run_options=None):
        """Calls ``run`` on a new thread, and then callback(results, user_data, error): the message of an exception, or ""."""

        def work():
            results, error = [], ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as exception:
                error = str(exception)
            callback(results, user_data, error)

        threading.Thread(target=work, daemon=True).start()

    def get_tuning_results(self):
        """Returns []: SOL keeps the results of its tuning in its cache."""
        return []

    def set_tuning_results(self, results, *, error_on_invalid=False):
        """Without effect."""

    def _find_network(self, values):
        """Returns the network for a call. Where the call replaces initializers, these are inputs of another network."""
        names = frozenset(values.keys() & {x.name for x in self._inputs if x.has_default})
        if names and names not in self._others:
            self._others[names] = self._load(*self._without(names))
        return self._others[names] if names else self.network

    def _without(self, names):
        """Returns (bytes of the file without the initializers, folder of its external data)."""
        data, folder, _ = self._source
        if isinstance(data, str):
            folder = os.path.dirname(data) or "."
            with open(data, "rb") as file:
                data = file.read()
        return remove_initializers(data, names), folder

    def _find_outputs(self, names):
        if isinstance(names, (str, bytes)):
            raise TypeError(f"output_names is a list of names, not {names!r}")
        if not names:
            return range(len(self._outputs))
        for name in names:
            if name not in self._output_at:
                known = list(self._output_at)
                raise errors.InvalidArgument(
                    f"there is no output {name!r}; the outputs are {known}"
                )
        return [self._output_at[name] for name in names]


@contextlib.contextmanager
def _translate(bad):
    """Raises an exception of SOL as one of ONNX Runtime's kinds; a ValueError becomes one of the class ``bad``."""
    try:
        yield
    except FileNotFoundError as error:
        raise errors.NoSuchFile(*error.args[:2], error.filename) from error
    except ValueError as error:
        raise bad(str(error)) from error
    except NotImplementedError as error:
        raise errors.NotImplemented(str(error)) from error
    except RuntimeError as error:
        raise errors.Fail(str(error)) from error

"""Options of ``InferenceSession`` and of its calls, with the names that they have in ONNX Runtime.

SOL uses few of them. Those that only tell ONNX Runtime how to run (threads, memory, optimizations, logs, providers) can be set and
have no effect. An option that would change results, write files, or replace operators is an error if SOL cannot do as it says.
"""

import collections.abc
import enum
import operator
import warnings

from sol import __version__, log
from sol.onnx.capi import onnxruntime_pybind11_state as errors
from sol.onnx.replace import VERSION

PROVIDER = "CPUExecutionProvider"  # the only one: SOL runs on the processor


class GraphOptimizationLevel(enum.IntEnum):
    """Without effect: SOL always optimizes."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Without effect: SOL divides each step between all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Without effect."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class _Options:
    """Attributes with fixed names and types, those of FIELDS (name: default), and entries, which are pairs of texts.

    Another name is an AttributeError, a value of another type a TypeError.
    """

    FIELDS = {}

    def __init__(self):
        self.__dict__.update(self.FIELDS, _entries={})

    def __setattr__(self, name, value):
        if name not in self.FIELDS:
            raise AttributeError(f"{type(self).__name__} has no option {name!r}")
        kind = type(self.FIELDS[name])
        accepted = (bool, int) if kind is bool else kind
        if not isinstance(value, accepted) or (kind is int and isinstance(value, bool)):
            raise TypeError(
                f"{type(self).__name__}.{name} is of type {kind.__name__}, not {value!r}"
            )
        self.__dict__[name] = kind(value)

    def _add_entry(self, key, value):
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"an entry is two texts, not {key!r} and {value!r}")
        self._entries[key] = value

    def _get_entry(self, key):
        if key not in self._entries:
            raise RuntimeError(f"{type(self).__name__} has no entry {key!r}")
        return self._entries[key]


class SessionOptions(_Options):
    """Options of a session. These have an effect; all others, and all other entries, have none:

    use_deterministic_compute            True: the same bits at every run (``sol.config["compiler::winograd"] = False``)
    enable_profiling                     see ``InferenceSession.end_profiling``, which adds the time to profile_file_prefix
    add_free_dimension_override_by_name  an open size of the inputs has this value
    entry "session.model_external_initializers_file_folder_path"   the folder of external data, for a model of bytes

    ``$SOL_NUM_THREADS`` sets the number of threads, for all sessions of the process. NotImplemented is raised by
    ``InferenceSession`` for optimized_model_filepath and files in ONNX Runtime's own format, and here for other operators
    and initializers than those of the file.
    """

    FIELDS = {
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }

    def __init__(self):
        super().__init__()
        self.__dict__["_sizes"] = {}  # {name of an open size: its value}

    add_session_config_entry = _Options._add_entry
    get_session_config_entry = _Options._get_entry

    def add_free_dimension_override_by_name(self, name, value):
        """Gives the open size ``name`` of all inputs a value."""
        self._sizes[name] = operator.index(value)

    def has_providers(self):
        """False: there is nothing to choose from."""
        return False

    def add_provider(self, name, options):
        """Without effect."""

    def add_free_dimension_override_by_denotation(self, denotation, value):
        """Raises NotImplemented."""
        raise errors.NotImplemented(
            "SOL does not read denotations of sizes; name the size in the file"
        )

    def add_initializer(self, name, value):
        """Raises NotImplemented."""
        raise errors.NotImplemented("SOL takes the values of initializers from the file only")

    def add_external_initializers(self, names, values):
        """Raises NotImplemented."""
        self.add_initializer(names, values)

    def add_external_initializers_from_files_in_memory(self, names, files, sizes):
        """Raises NotImplemented."""
        self.add_initializer(names, files)

    def register_custom_ops_library(self, path):
        """Raises NotImplemented."""
        raise errors.NotImplemented("SOL cannot load libraries with operators for ONNX Runtime")

    def check(self):
        """Raises NotImplemented for an option that SOL cannot obey."""
        if self.optimized_model_filepath:
            raise errors.NotImplemented("optimized_model_filepath: SOL does not write ONNX files")
        if self._entries.get("session.load_model_format", "ONNX") != "ONNX":
            raise errors.NotImplemented("session.load_model_format: SOL reads ONNX files only")

    def size(self, dim):
        """Returns a dim of an input or output, with the value that the program has given to a named open size."""
        return self._sizes.get(dim, dim) if isinstance(dim, str) else dim

    def folder(self):
        """Returns the folder of external data for a model of bytes, or None."""
        return self._entries.get("session.model_external_initializers_file_folder_path")


class RunOptions(_Options):
    """Options of a call. With ``terminate``, a call that begins raises Fail; all others, and all entries, have no effect."""

    FIELDS = {
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }
    add_run_config_entry = _Options._add_entry
    get_run_config_entry = _Options._get_entry

    def add_active_adapter(self, adapter):
        """Raises NotImplemented."""
        raise errors.NotImplemented("SOL does not have adapters, which would change the weights")


def get_available_providers():
    """Returns the list of providers: the processor's, since SOL's kernels run there."""
    return [PROVIDER]


def get_device():
    """Returns "CPU"."""
    return "CPU"


def get_all_providers():
    """Returns the same list as ``get_available_providers``."""
    return [PROVIDER]


def get_version_string():
    """Returns the version of ONNX Runtime whose interface this is."""
    return VERSION


def get_build_info():
    """Returns a text that says that this is SOL."""
    return f"SOL {__version__}, with the interface of ONNX Runtime {VERSION}"


def has_collective_ops():
    """False: SOL has no operators that several processes compute."""
    return False


def set_seed(seed):
    """Without effect: SOL has no operators with random results."""


def set_default_logger_verbosity(verbosity):
    """Without effect: SOL's log has no levels below ``sol.log.info``."""


def disable_telemetry_events():
    """Without effect: SOL sends nothing."""


def enable_telemetry_events():
    """Without effect: SOL sends nothing."""


def preload_dlls(cuda=True, cudnn=True, msvc=True, directory=None):
    """Without effect: SOL opens the libraries that it uses."""


def set_default_logger_severity(severity):
    """Sets SOL's log level, of the process: 0 and 1 stand for ``sol.log.info``, 2 for warnings, 3 and 4 for errors only."""
    if severity not in range(5):
        raise ValueError(f"the severity is a number from 0 to 4, not {severity!r}")
    log.set_level((log.info, log.info, log.warn, log.error, log.error)[severity])


def check_providers(providers):
    """Warns of each provider that SOL does not have, as ONNX Runtime does for one that is not installed."""
    if providers is not None and (
        isinstance(providers, str) or not isinstance(providers, collections.abc.Sequence)
    ):
        warnings.warn(f"providers is a list of names, not {providers!r}", stacklevel=4)
        return
    for provider in providers or ():
        name = provider[0] if isinstance(provider, tuple) and provider else provider
        if name != PROVIDER:
            warnings.warn(f"there is no provider {name!r}; {PROVIDER} runs", stacklevel=4)

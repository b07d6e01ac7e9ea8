"""Networks from ONNX files, called with NumPy arrays.

    import sol.onnx as sol
    net = sol.load("model.onnx")
    y = net(x)

libsol reads the file itself: it needs neither the onnx package nor a framework. A program that was written for ONNX Runtime may
``import sol.onnx as ort`` instead of ``onnxruntime``: InferenceSession has the same interface (inference.py). All other names of the package ``sol``,
such as ``sol.optimize``, are available here, too.
"""

from sol import (
    __version__,
    _names,
    cache,
    config,
    deployment,
    device,
    devices,
    log,
    memory,
    profile,
    report,
    versions,
)
from sol.onnx import capi
from sol.onnx.deploy import deploy
from sol.onnx.inference import InferenceSession, ModelMetadata, NodeArg
from sol.onnx.network import Network, load
from sol.onnx.options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_seed,
)
from sol.onnx.ortvalue import IOBinding, OrtDevice, OrtValue
from sol.onnx.replace import replace_onnxruntime

__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata", "NodeArg",
    "OrtDevice", "OrtValue", "RunOptions", "SessionOptions", "__version__", "capi", "disable_telemetry_events",
    "enable_telemetry_events", "get_all_providers", "get_available_providers", "get_build_info", "get_device",
    "get_version_string", "has_collective_ops", "preload_dlls", "replace_onnxruntime", "set_default_logger_severity",
    "set_default_logger_verbosity", "set_seed",
    "Network", "cache", "config", "deploy", "deployment", "device", "devices", "load", "log", "memory", "profile", "report",
    "versions",
]  # fmt: skip


def __getattr__(name):
    return _names.find(__name__, name)


def __dir__():
    return _names.list_names(globals())

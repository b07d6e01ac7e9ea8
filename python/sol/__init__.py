"""SOL: an AI compiler and runtime.

    import sol
    fast = sol.optimize(model.eval(), sol.input([0, 3, 224, 224]))      # PyTorch modules: sol.pytorch
    net = sol.load("model.onnx")                                        # ONNX files: sol.onnx

``sol``, ``sol.pytorch`` and ``sol.onnx`` offer the same names: a program may import any of them as ``sol``, and may use
all three. ``import sol`` imports no framework. A frontend and its framework are imported when one of the frontend's names
is used for the first time.

An error in libsol becomes a Python exception with libsol's message:

    ValueError            a bad argument or model
    NotImplementedError   valid, but SOL does not implement it
    MemoryError           out of memory
    RuntimeError          the device, the C compiler, or SOL itself failed
"""

from typing import TYPE_CHECKING

from sol import _core, _names, cache, deployment, device, log
from sol.config import config
from sol.deployment import deploy
from sol.measure import memory, profile, report

if TYPE_CHECKING:  # for editors and type checkers; at run time __getattr__ imports these names
    from sol import bench, onnx, pytorch
    from sol.onnx import Network, load
    from sol.pytorch import (
        custom_layer,
        fallback_count,
        fallbacks,
        graphs,
        host_nodes,
        include_folder,
        input,
        optimize,
        recompile_reasons,
        recompiles,
        refresh,
    )

__all__ = [
    "Network", "bench", "cache", "config", "custom_layer", "deploy", "deployment", "device", "devices", "fallback_count", "fallbacks", "graphs", "host_nodes", "include_folder", "input", "load", "log",
    "memory", "onnx", "optimize", "profile", "pytorch", "recompile_reasons", "recompiles", "refresh", "report", "versions",
]  # fmt: skip
__version__ = "0.1.0"


def __getattr__(name):
    return _names.find(__name__, name)


def __dir__():
    return _names.list_names(globals())


def versions():
    """Returns {name: version} of SOL, libsol, PyTorch, vendors' libraries and compilers; None if one is not installed."""
    found = {"sol": __version__, "libsol": _core.version()}
    for package in ("torch",):
        found[package] = _package_version(package)
    for kind, name, available, detail in _core.query():
        if kind in ("library", "compiler"):
            found[name] = detail if available else None
    return found


def _package_version(package):
    """Returns the version of a package without importing it, or None if it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def devices():
    """Returns {name: (available, detail)} of all devices of libsol.

    ``detail`` is what programs are compiled for, such as an instruction set, or the reason why the device is unavailable.
    """
    rows = _core.query()
    return {name: (ok, detail) for kind, name, ok, detail in rows if kind == "device"}

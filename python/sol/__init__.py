"""SOL: an AI compiler and runtime.

    import sol
    fast = sol.optimize(model.eval(), sol.input([0, 3, 224, 224]))      # PyTorch modules: sol.pytorch
    net = sol.load("model.onnx")                                        # ONNX files: sol.onnx

``sol.pytorch`` and ``sol.onnx`` offer the same names, so any of the three may be called ``sol``, and all of them side by side. A frontend,
with the framework that it needs, is imported when one of its names is first used; ``import sol`` needs none.

Whatever goes wrong in libsol arrives as a Python exception with libsol's message:

    ValueError            a bad argument or model
    NotImplementedError   legal, but nobody implements it
    MemoryError           out of memory
    RuntimeError          the device, the C compiler, or SOL itself failed
"""

from typing import TYPE_CHECKING

from sol import _core, _names, cache, deployment, device, log
from sol.config import config
from sol.deployment import deploy
from sol.measure import memory, profile, report

if TYPE_CHECKING:  # for editors; at run time __getattr__ finds them
    from sol import bench, onnx, pytorch
    from sol.onnx import Network, load
    from sol.pytorch import fallbacks, input, optimize, recompiles, refresh

__all__ = [
    "Network", "bench", "cache", "config", "deploy", "deployment", "device", "devices", "fallbacks", "input", "load", "log",
    "memory", "onnx", "optimize", "profile", "pytorch", "recompiles", "refresh", "report", "versions",
]  # fmt: skip
__version__ = "0.1.0"


def __getattr__(name):
    return _names.find(__name__, name)


def __dir__():
    return _names.list_names(globals())


def versions():
    """Versions of SOL and of what it works with, by name; None for what is not installed."""
    found = {"sol": __version__, "libsol": _core.version()}
    for package in ("torch",):
        found[package] = _package_version(package)
    for kind, name, available, detail in _core.query():
        if kind in ("library", "compiler"):
            found[name] = detail if available else None
    return found


def _package_version(package):
    """The version of an installed package without importing it, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def devices():
    """Devices that libsol knows: {name: (available, version or the reason why not)}."""
    rows = _core.query()
    return {name: (ok, detail) for kind, name, ok, detail in rows if kind == "device"}

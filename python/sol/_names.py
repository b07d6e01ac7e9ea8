"""Names that ``sol``, ``sol.pytorch`` and ``sol.onnx`` all offer, each meaning the same in all of them, and where they come from.

What needs a framework is imported when it is first asked for.
"""

import importlib
import importlib.util

# What a frontend needs, and the names that only it has.
FRONTENDS = {"pytorch": "torch", "onnx": "numpy"}
OWNERS = dict.fromkeys(("fallbacks", "input", "optimize", "recompiles", "refresh"), "pytorch")
OWNERS |= dict.fromkeys(("Network", "load"), "onnx")
MODULES = {"pytorch", "onnx", "bench"}
# Of the packages `sol` itself, without a framework.
SHARED = (
    "cache", "config", "deploy", "deployment", "device", "devices", "log", "memory", "profile", "report", "versions",
)  # fmt: skip


def find(package, name):
    """What ``package`` offers under a name that it has not itself. Raises AttributeError, or the framework's own ImportError."""
    if name in MODULES:
        return importlib.import_module(f"sol.{name}")
    if name in OWNERS and package != f"sol.{OWNERS[name]}":
        return getattr(importlib.import_module(f"sol.{OWNERS[name]}"), name)
    hint = "" if name.startswith("_") else "; SOL's frontends are sol.pytorch and sol.onnx"
    raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")


def list_names(own):
    """For dir(): what is there, and what can be imported on this machine."""
    missing = {name for name, needs in FRONTENDS.items() if not is_installed(needs)}
    offered = {name for name, owner in OWNERS.items() if owner not in missing}
    return sorted({*own, *SHARED, *offered, *(MODULES - missing)})


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False

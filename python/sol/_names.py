"""The public names, which ``sol``, ``sol.pytorch`` and ``sol.onnx`` all offer with the same meaning.

Each of the three packages calls ``find`` from its ``__getattr__``: a name that needs a framework is imported when it is
used for the first time.
"""

import importlib
import importlib.util

# The framework that each frontend needs, and the frontend that owns each name.
FRONTENDS = {"pytorch": "torch", "onnx": "numpy"}
OWNERS = dict.fromkeys(
    (
        "custom_layer",
        "fallback_count",
        "fallbacks",
        "graphs",
        "host_nodes",
        "include_folder",
        "input",
        "optimize",
        "recompile_reasons",
        "recompiles",
        "refresh",
    ),
    "pytorch",
)
OWNERS |= dict.fromkeys(("Network", "load"), "onnx")
MODULES = {"pytorch", "onnx", "bench"}
# Names of the package `sol` itself, which need no framework.
SHARED = (
    "cache", "config", "deploy", "deployment", "device", "devices", "log", "memory", "profile", "report", "versions",
)  # fmt: skip


def find(package, name):
    """Returns the attribute ``name`` that ``package`` takes from another package.

    Raises AttributeError, or ImportError if the framework cannot be imported.
    """
    if name in MODULES:
        return importlib.import_module(f"sol.{name}")
    if name in OWNERS and package != f"sol.{OWNERS[name]}":
        return getattr(importlib.import_module(f"sol.{OWNERS[name]}"), name)
    hint = "" if name.startswith("_") else "; SOL's frontends are sol.pytorch and sol.onnx"
    raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")


def list_names(own):
    """Returns the names for dir(): ``own``, and the names whose framework is installed."""
    missing = {name for name, needs in FRONTENDS.items() if not is_installed(needs)}
    offered = {name for name, owner in OWNERS.items() if owner not in missing}
    return sorted({*own, *SHARED, *offered, *(MODULES - missing)})


def is_installed(package):
    """Whether a package is installed, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False

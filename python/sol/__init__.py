"""SOL: an AI compiler and runtime. Frontends: ``sol.pytorch``. This package needs no framework.

Whatever goes wrong in libsol arrives as a Python exception with libsol's message:

    ValueError            a bad argument or model
    NotImplementedError   legal, but nobody implements it
    MemoryError           out of memory
    RuntimeError          the device, the C compiler, or SOL itself failed
"""

from sol import _core, cache, log
from sol.config import config

__all__ = ["cache", "config", "devices", "log", "versions"]
__version__ = "0.1.0"


def versions():
    """Versions of SOL and of what it works with, by name; None for what is not installed."""
    found = {"sol": __version__, "libsol": _core.version()}
    for package in ("torch",):
        found[package] = _package_version(package)
    for kind, name, available, detail in _core.list():
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
    rows = _core.list()
    return {name: (ok, detail) for kind, name, ok, detail in rows if kind == "device"}

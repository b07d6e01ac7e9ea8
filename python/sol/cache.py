"""The cache of compiled kernels in the user's cache directory."""

from sol import _core


def clear():
    """Deletes all compiled kernels of this user; programs that are loaded keep working.

    Raises ValueError or RuntimeError, saying why, when the directory is not safe to touch.
    """
    _core.cache_clear()


def path():
    """(usable, directory or the reason why it is not usable)."""
    for kind, _, available, detail in _core.list():
        if kind == "cache":
            return available, detail
    return False, "libsol lists no cache"

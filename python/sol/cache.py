"""The cache of compiled kernels in the user's cache directory."""

from typing import NamedTuple

from sol import _core


class Amount(NamedTuple):
    """How much is, or was, in the cache."""

    files: int
    bytes: int

    def __str__(self):
        return f"{self.files} files, {self.bytes / 2**20:.1f} MiB"


def clear():
    """Deletes all compiled kernels of this user -> the Amount that was removed. Programs that are loaded keep working.

    Raises ValueError or RuntimeError, saying why, when the directory is not safe to touch.
    """
    return Amount(*_core.cache_clear())


def usage():
    """The Amount in the cache. Raises as ``clear`` does."""
    return Amount(*_core.cache_usage())


def path():
    """(usable, directory or the reason why it is not usable)."""
    for kind, _, available, detail in _core.query():
        if kind == "cache":
            return available, detail
    return False, "libsol lists no cache"

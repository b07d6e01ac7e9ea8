"""The cache of compiled kernels: a directory of this user, ``$SOL_CACHE_DIR`` if that is set."""

from typing import NamedTuple

from sol import _core


class Amount(NamedTuple):
    """A number of files of the cache, and their size in bytes."""

    files: int
    bytes: int

    def __str__(self):
        return f"{self.files} files, {self.bytes / 2**20:.1f} MiB"


def clear():
    """Deletes all compiled kernels of this user. Returns the Amount that was deleted. Loaded programs keep working.

    Raises ValueError or RuntimeError with the reason when the directory is not safe to use.
    """
    return Amount(*_core.cache_clear())


def usage():
    """Returns the Amount in the cache. Raises the same exceptions as ``clear``."""
    return Amount(*_core.cache_usage())


def path():
    """Returns (True, the directory), or (False, the reason why the cache is not usable)."""
    for kind, _, available, detail in _core.query():
        if kind == "cache":
            return available, detail
    return False, "libsol lists no cache"

"""A progress bar on a terminal, for compiles that take longer than PATIENCE_S seconds."""

import sys
import time

from sol import _core

PATIENCE_S = 1.0
WIDTH = 30


class Bar:
    """A callback for libsol's progress, and a context manager that erases its line at the end.

    It shows nothing unless stderr is a terminal and PATIENCE_S seconds have passed.
    """

    def __init__(self, title):
        self._title = _core.clean(title)
        self._stream = sys.stderr
        self._start = time.monotonic()
        self._visible = False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._visible:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __call__(self, done, total, what):
        if not self._stream.isatty() or time.monotonic() - self._start < PATIENCE_S:
            return
        self._visible = True
        filled = WIDTH * done // max(total, 1)
        bar = "#" * filled + "." * (WIDTH - filled)
        self._stream.write(f"\r\x1b[K{self._title} [{bar}] {done}/{total} {_core.clean(what)[:30]}")
        self._stream.flush()

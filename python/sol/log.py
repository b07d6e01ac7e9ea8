"""The log: levels, and messages of the Python code, which are written to stderr in libsol's format.

The level is set by ``$SOL_LOG`` (a name of ``Level``, or its number), ``sol.config["log::level"]`` or
``sol.log.set_level``. It applies to libsol, too.
"""

import enum
import os
import sys

from sol import _core


class Level(enum.IntEnum):
    """Log levels. A message is written if its level is not above the current one."""

    error = 0
    warn = 1
    info = 2
    debug = 3
    trace = 4


error, warn, info, debug, trace = Level

PREFIXES = {error: "error: ", warn: "warning: ", info: "", debug: "debug: ", trace: "trace: "}
_said = set()


def _level_from_environment():
    """Returns the level in $SOL_LOG, or ``warn`` if that is unset or invalid. libsol itself warns of an invalid value."""
    value = os.environ.get("SOL_LOG", "").lower()
    if value in Level.__members__:
        return Level[value]
    return Level(int(value)) if value in ("0", "1", "2", "3", "4") else Level.warn


_level = _level_from_environment()


def level():
    """Returns the current Level."""
    return _level


def set_level(value):
    """Sets the level of the process: a Level, or its number. Raises ValueError for any other value."""
    global _level
    _level = Level(value)
    _core.set_log_level(int(_level))


def say(at, text):
    """Writes ``text`` if the level ``at`` is on. Control characters are escaped: names in files must not control a terminal."""
    if at <= _level:
        print(f"sol: {PREFIXES[at]}{_core.clean(text, True)}", file=sys.stderr)


def say_once(at, key, text):
    """As ``say``, but only once per ``key``, so that a loop of calls does not repeat the message."""
    if key not in _said:
        _said.add(key)
        say(at, text)

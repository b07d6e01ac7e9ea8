"""The log: levels, and messages of the Python side, in libsol's format on stderr.

The level is ``$SOL_LOG`` (a name of ``Level``, or its number), ``sol.config["log::level"]``, or ``sol.log.set_level``; it holds for libsol, too.
"""

import enum
import os
import sys

from sol import _core


class Level(enum.IntEnum):
    """How much is said; a level includes those before it."""

    error = 0
    warn = 1
    info = 2
    debug = 3
    trace = 4


error, warn, info, debug, trace = Level

PREFIXES = {error: "error: ", warn: "warning: ", info: "", debug: "debug: ", trace: "trace: "}
_said = set()


def _level_from_environment():
    """libsol warns of a value that means nothing."""
    value = os.environ.get("SOL_LOG", "").lower()
    if value in Level.__members__:
        return Level[value]
    return Level(int(value)) if value in ("0", "1", "2", "3", "4") else Level.warn


_level = _level_from_environment()


def level():
    """The level in force."""
    return _level


def set_level(value):
    """Sets the level of the whole process. Raises ValueError when there is no such level."""
    global _level
    _level = Level(value)
    _core.set_log_level(int(_level))


def say(at, text):
    """Writes ``text`` if level ``at`` is on. Names in it may come from anybody's file: they cannot control a terminal."""
    if at <= _level:
        print(f"sol: {PREFIXES[at]}{_core.clean(text, True)}", file=sys.stderr)


def say_once(at, key, text):
    """As ``say``, but only the first time for this ``key``, so that a loop of calls stays quiet."""
    if key not in _said:
        _said.add(key)
        say(at, text)

"""The log: levels, and messages of the Python side, in libsol's format on stderr.

The level is ``$SOL_LOG`` (a name of ``Level``), or ``sol.config["log::level"]``.
"""

import enum
import os
import sys


class Level(enum.IntEnum):
    """How much is said; a level includes those before it."""

    error = 0
    warn = 1
    info = 2
    debug = 3
    trace = 4


error, warn, info, debug, trace = Level

_said = set()


def _level_from_environment():
    name = os.environ.get("SOL_LOG", "").lower()
    return Level[name] if name in Level.__members__ else Level.warn


_level = _level_from_environment()


def level():
    """The level in force."""
    return _level


def set_level(value):
    """Sets the level of the Python side; ``config`` also tells libsol."""
    global _level
    _level = Level(value)


def say(at, text):
    """Writes ``text`` if level ``at`` is on."""
    if at <= _level:
        print(f"[SOL][{at.name.upper():5}] {text}", file=sys.stderr)


def say_once(at, key, text):
    """As ``say``, but only the first time for this ``key``, so that a loop of calls stays quiet."""
    if key not in _said:
        _said.add(key)
        say(at, text)

"""The options of SOL in one table: ``sol.config["compiler::debug"] = True``."""

import difflib
from typing import Any, NamedTuple

from sol import log


class Key(NamedTuple):
    """One option: its type, its default value, and its description for ``Config.print``."""

    type: type
    default: Any
    doc: str


KEYS = {
    "compiler::name": Key(str, "", "name of the network in logs and debug output; '' = its class"),
    "compiler::device": Key(str, "", "device to compile for, see sol.devices(); '' = the best one"),
    "compiler::device_number": Key(
        int, 0, "which of several such devices, from 0; sol.device.set sets both"
    ),
    "compiler::debug": Key(bool, False, "write generated sources, graphs and times into ./.sol"),
    "compiler::debug_memory_consumption": Key(
        bool, False, "write a chart of memory over time into ./.sol"
    ),
    "compiler::profile": Key(bool, False, "log the time of every step at each call"),
    "compiler::autotune": Key(
        bool, True, "time near ties; False = results do not depend on timing"
    ),
    "compiler::never_slower": Key(
        bool,
        True,
        "now and then time PyTorch's own forward too; leave to it what it does faster; at once",
    ),
    "compiler::winograd": Key(
        bool,
        True,
        "allow algorithms that round more; False = deterministic: the same bits at every run",
    ),
    "training::memory": Key(
        float,
        None,
        "what a forward call saves for its backward call: None = no results of cheap layers, which are computed again; or a"
        " share, from 1, all that takes time to compute, to 0, as little as is sensible",
    ),
    "log::level": Key(int, log.level(), "sol.log.error, warn, info, debug or trace"),
}


class Config:
    """A mapping with the fixed keys of ``KEYS``.

    Raises KeyError for an unknown key, with the most similar key; TypeError for a value of another type; ValueError for a
    log level that does not exist, and for a number outside of its range. A ``compiler::`` or ``training::`` option applies to
    networks that are compiled after it was set, except ``compiler::never_slower``, which applies to all calls at once.
    """

    def __init__(self):
        self._values = {name: key.default for name, key in KEYS.items()}

    def __getitem__(self, name):
        _find(name)
        return log.level() if name == "log::level" else self._values[name]

    def entry(self, name):
        """Returns (dict, key, current value). A shortcut compares the dict's entry with the value at each call."""
        return self._values, name, self[name]

    def __setitem__(self, name, value):
        _check_type(name, value)
        if name == "log::level":
            value = log.Level(value)
            log.set_level(value)
        elif name == "training::memory" and value is not None:
            value = _check_share(name, value)
        self._values[name] = value

    def __contains__(self, name):
        return name in KEYS

    def __iter__(self):
        return iter(KEYS)

    def __len__(self):
        return len(KEYS)

    def print(self):
        """Prints every key with its value and meaning."""
        width = max(map(len, KEYS))
        for name, key in KEYS.items():
            print(f"{name:{width}}  {self[name]!s:8}  {key.doc}")

    def __repr__(self):
        return f"sol.config({self._values})"


def _find(name):
    """Returns the Key of the option ``name``. Raises KeyError."""
    if name in KEYS:
        return KEYS[name]
    near = difflib.get_close_matches(str(name), KEYS, n=1, cutoff=0.0)
    raise KeyError(f"sol.config has no key {name!r}; did you mean {near[0]!r}?")


def _check_type(name, value):
    """Raises TypeError unless ``value`` has the option's type or is its default. A float may be an int; a bool is no number."""
    expected = _find(name).type
    if value is None and _find(name).default is None:
        return
    allowed = (int, float) if expected is float else expected
    if not isinstance(value, allowed) or (expected is not bool and isinstance(value, bool)):
        raise TypeError(
            f"sol.config[{name!r}] takes {expected.__name__}, not {type(value).__name__} {value!r}"
        )


def _check_share(name, value):
    """Returns a float. Raises ValueError unless it is 0 to 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"sol.config[{name!r}] is a number from 0 to 1, not {value}")
    return float(value)


config = Config()

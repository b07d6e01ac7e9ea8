"""Devices: which one networks are compiled for, and names for ``sol.deploy``.

sol.device.set(sol.device.far, 1)    from now on, networks are compiled for the second far device
sol.device.set(None)                 for the best device of this machine again
sol.device.get()                     Target(name="far", number=1)

A far device has memory of its own. Models and data stay in the host's memory: a network's parameters are copied to the device once,
and again only after they have changed; each call copies its inputs to the device, and its results back.

``sol.deploy`` takes a name, such as ``sol.device.x86``, or a pair with an instruction set, ``(sol.device.x86, "avx2")``.
"""

from typing import NamedTuple

from sol import _core
from sol.config import config

x86 = "x86"  # avx512, avx2
arm64 = "arm64"  # neon; sol.deploy only
c = "c"  # any processor: portable C
ve = "ve"  # NEC SX-Aurora TSUBASA
far = "far"  # a stand-in for an accelerator, for tests: another process of this machine, slow


class Target(NamedTuple):
    """A device that networks are compiled for. ``name``: of ``sol.devices()``, or "" for the best one. ``number``: from 0, of
    devices of which there may be several."""

    name: str = ""
    number: int = 0

    @property
    def options(self):
        """The keyword arguments of _core.Model.compile."""
        return {"device": self.name or None, "device_number": self.number}

    def __str__(self):
        return f"{self.name} {self.number}"


def set(device, number=0):
    """Chooses the device for networks that are compiled from now on: sets ``sol.config["compiler::device"]`` and ``"compiler::device_number"``.

    device  a name of ``sol.devices()``, such as ``sol.device.far``; None or "": the best one whose memory is the host's
    number  which of several such devices, from 0

    What ``sol.optimize`` and ``sol.load`` have returned stays on its device, also if it is compiled again for other inputs. A user
    who has chosen a device gets it: PyTorch is not timed against it (``compiler::never_slower``).

    Raises ValueError if there is no device of this name, RuntimeError if it cannot be used here or there is none of this number,
    TypeError for other arguments.
    """
    target = Target(device or "", number)
    check(target)
    if target.name:
        _core.open_device(*target)
    config["compiler::device"], config["compiler::device_number"] = target


def get():
    """Returns the Target for networks that are compiled now."""
    return Target(config["compiler::device"], config["compiler::device_number"])


def check(target):
    """Raises TypeError or ValueError unless a Target has the name of a device, and a number that may exist."""
    name, number = target
    names = [row[1] for row in _core.query() if row[0] == "device"]
    if not isinstance(name, str) or type(number) is not int:
        raise TypeError(f"a device has a name and a number, not {name!r} and {number!r}")
    if name and name not in names:
        raise ValueError(
            f"sol.config['compiler::device'] is \"{name}\": it can be {', '.join(names)}"
        )
    if number and not name:
        raise ValueError(f"device number {number} needs the name of a device")
    if number < 0:
        raise ValueError(f"the number of a device is 0 or more, not {number}")

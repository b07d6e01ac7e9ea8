"""Measures the load of the machine by other processes during a measurement, as such a load makes times unreliable.

load = Load(); ...; load.share()    part of the cores' time that other processes used, between 0 and 1; None: unknown
"""

import os
import time
from pathlib import Path

BUSY = 0.1  # shares from here on cause a warning
LOOK_S = 0.5  # seconds of the measurement before the first timing


class Load:
    """Measures the load since its creation, on the cores that this process may use."""

    def __init__(self, stat="/proc/stat"):
        self._stat = Path(stat)
        self._before = self._read()

    def _read(self):
        """Returns (time, busy seconds of the cores, processor seconds of this process and its children), or None."""
        try:
            busy = busy_seconds(self._stat.read_text(), os.sched_getaffinity(0))
        except (OSError, ValueError):
            return None
        return time.perf_counter(), busy, sum(os.times()[:4])

    def share(self):
        """Returns the part of the cores' time since the creation that other processes used, or None if it is unknown."""
        now = self._read()
        if now is None or self._before is None:
            return None
        elapsed, busy, own = (a - b for a, b in zip(now, self._before))
        available = elapsed * len(os.sched_getaffinity(0))
        return min(1.0, max(0.0, busy - own) / max(available, 1e-9))


def busy_seconds(stat, cores):
    """Returns the busy seconds of ``cores`` from the text of /proc/stat: user, nice, system, interrupts, and stolen time."""
    ticks = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def look():
    """Returns the current share of other processes, measured for LOOK_S seconds; None if it is unknown."""
    load = Load()
    time.sleep(LOOK_S)
    return load.share()


def warning(share):
    """Returns a warning as text for a share of BUSY or more; else ""."""
    if share is None or share < BUSY:
        return ""
    return f"other work took {100 * share:.0f}% of the cores"

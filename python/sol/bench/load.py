"""How much of the machine other processes take while engines are timed: figures from a busy machine say little.

load = Load(); ...; load.share()    of the time of the cores that this process may use, between 0 and 1; None: nobody knows
"""

import os
import time
from pathlib import Path

BUSY = 0.1  # from here on a warning is due
LOOK_S = 0.5  # how long the machine is watched before anything is timed


class Load:
    """Watches from the moment when it is made."""

    def __init__(self, stat="/proc/stat"):
        self._stat = Path(stat)
        self._before = self._read()

    def _read(self):
        """(time, seconds that the cores were busy, seconds that this process and its children were), or None."""
        try:
            busy = busy_seconds(self._stat.read_text(), os.sched_getaffinity(0))
        except (OSError, ValueError):
            return None
        return time.perf_counter(), busy, sum(os.times()[:4])

    def share(self):
        """Of the cores' time since the beginning, what others had."""
        now = self._read()
        if now is None or self._before is None:
            return None
        elapsed, busy, own = (a - b for a, b in zip(now, self._before))
        available = elapsed * len(os.sched_getaffinity(0))
        return min(1.0, max(0.0, busy - own) / max(available, 1e-9))


def busy_seconds(stat, cores):
    """Of these cores, by the text of /proc/stat: user, nice, system, interrupts, and what the host's other machines took."""
    ticks = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def look():
    """The share that others have just now."""
    load = Load()
    time.sleep(LOOK_S)
    return load.share()


def warning(share):
    """A sentence for people; "" for an idle machine."""
    if share is None or share < BUSY:
        return ""
    return f"other work took {100 * share:.0f}% of the cores"

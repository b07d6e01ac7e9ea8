"""Chooses between SOL and PyTorch's own forward, for each batch size, by timing both within calls.

    undecided      SOL runs; now and then a call also runs PyTorch's forward, and both times are kept
    SOL's          SOL runs
    PyTorch's      falls back to eager, with the times as the reason

PyTorch is chosen only if it is clearly faster; when undecided, SOL runs. A verdict holds for one number
of threads, and as long as the captured graph does.

Invariant: what timing has cost is at most SHARE of the time that the calls of this plan took so far. It
is known only afterwards, so one run that takes longer than expected, as the first one may, comes on top.
A forward that SOL runs has no effects (audit.py) and no random numbers, so nobody notices a run for timing.
"""

import contextlib
import os
import threading
import weakref
from time import perf_counter

from sol import log
from sol.config import config

SHARE = 0.1
FACTOR = 2.0  # PyTorch's time over SOL's, as long as nothing is known about it
# A pair is a time of SOL's and one of PyTorch's. Runs shorter than this are made twice: the second finds
# caches and threads warm, as they are if one of the two runs all the time.
SHORT_S = 1e-3
MIN_PAIRS = 3
MAX_PAIRS = 8
MARGIN = 1.05
CLEAR = 1.5  # who is ahead by that in two pairs is faster
MIN_LOSS_S = 10e-6  # falling back costs a call some microseconds of its own
# If SOL's best two times differ by more, somebody else was using the machine.
SPREAD = 1.2
# After a run of PyTorch the threads of OpenMP spin, for 5 to 12 ms where that was measured, on cores that
# SOL needs. A call that takes no longer than this times its best was not disturbed.
SPIN_S = 0.02
CALM = 1.1
# That much more memory than SOL takes for a call must be free: PyTorch keeps more values alive.
MEMORY_FACTOR = 4
# Of a plan; others are SOL's. A model that sees a new size at each call would be timed for ever.
MAX_BATCHES = 32

FAILED = float("inf")  # seconds
SOL = True  # a verdict; the other one is the reason for PyTorch as text

_selectors = weakref.WeakSet()
_is_forked = False
# Of several threads one times; nobody waits for it.
_timing = threading.Lock()


def _note_fork():
    global _is_forked
    _is_forked = True


# OpenMP's threads do not survive a fork: PyTorch's forward may wait for them for ever. SOL's do.
os.register_at_fork(after_in_child=_note_fork)


def make_selector(options):
    """A Selector for a plan that is compiled now, by an engine's options. None where results must not
    depend on time, where the user chose the device or looks at what it does, and with ``fullgraph``, which
    is about what SOL can run."""
    for name in "device", "debug", "debug_memory_consumption", "profile":
        if config[f"compiler::{name}"]:
            return None
    if options.fullgraph or not config["compiler::autotune"] or not config["compiler::winograd"]:
        return None
    return Selector(options.name)


def forget_times():
    """The number of threads changed: all is undecided again."""
    for selector in list(_selectors):
        selector.forget()


def is_on():
    """Whether selectors count; if not, SOL runs all that it can."""
    return config["compiler::never_slower"] and not _is_forked


@contextlib.contextmanager
def without_selectors():
    """SOL runs all that it can in here, as for somebody who looks at its times."""
    before = config["compiler::never_slower"]
    config["compiler::never_slower"] = False
    try:
        yield
    finally:
        config["compiler::never_slower"] = before


class Trial:
    """What is known of an undecided batch size: ``seconds`` of SOL's last call that nothing disturbed, pairs
    of times, and what the last pair cost."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.ours, self.theirs = [], []
        self.cost = 0.0


class Selector:
    """The verdicts of one plan, by ``batch_key``; shortcuts read them, too."""

    def __init__(self, name):
        self.verdicts = {}
        self._name = name
        self._trials = {}
        self._spent = 0.0  # seconds of SOL's calls, without the first one of each batch size
        self._cost = 0.0  # seconds that timing took or made other calls slower
        self._quiet_at = 0.0  # when OpenMP's threads sleep again
        self._has_failed = False  # PyTorch's forward
        _selectors.add(self)

    def forget(self):
        self.verdicts.clear()
        self._trials = {}

    def has_won(self, batch):
        return self.verdicts.get(batch_key(batch)) is SOL

    def find_reason(self, batch):
        """Why PyTorch is to run this batch size, or None."""
        verdict = self.verdicts.get(batch_key(batch))
        return None if verdict is SOL else verdict

    def call(self, batch, size, run_sol, run_torch, shortcut=None):
        """SOL's result, for an undecided batch size.

        ``size``: a function, bytes of memory that a call of SOL needs. ``shortcut``: what makes calls
        that do not come here, or None.
        """
        if shortcut is not None:
            self._spent += shortcut.grant(0)
        start = perf_counter()
        result = run_sol()
        seconds = perf_counter() - start
        trial = self._trials.get(batch_key(batch))
        if trial is None or self._has_failed:
            self._begin(batch, seconds)
            return result
        self._count(trial, start, seconds)
        is_quiet = start >= self._quiet_at
        if is_quiet and self._wait(trial) <= 0 and _timing.acquire(blocking=False):
            try:
                self._time(trial, batch, size, run_sol, run_torch)
            finally:
                _timing.release()
        elif is_quiet and shortcut is not None:
            shortcut.grant(self._wait(trial))
        return result

    def _begin(self, batch, seconds):
        """The first call of a batch size is never timed: for many it stays the only one."""
        if self._has_failed or len(self._trials) >= MAX_BATCHES:
            self.verdicts[batch_key(batch)] = SOL
        else:
            self._trials[batch_key(batch)] = Trial(seconds)

    def _count(self, trial, start, seconds):
        """Adds a call of SOL's to the time so far. What it takes longer after a run of PyTorch is a cost."""
        extra = 0.0
        if start >= self._quiet_at:
            trial.seconds = seconds
        else:
            extra = max(0.0, seconds - trial.seconds)
            trial.cost += extra
            if seconds <= CALM * trial.seconds:
                self._quiet_at = start
        self._cost += extra
        self._spent += seconds - extra

    def _wait(self, trial):
        """Seconds of calls until one more pair is expected to stay within its share."""
        expected = trial.cost if trial.theirs else FACTOR * trial.seconds
        return (self._cost + expected) / SHARE - self._spent

    # ---- Timing ----

    def _time(self, trial, batch, size, run_sol, run_torch):
        """One more pair of times, and the verdict if it is clear by now."""
        start = perf_counter()
        if not trial.theirs and not _is_free(MEMORY_FACTOR * size()):
            self._settle(trial, batch, SOL, "too little memory is free to time PyTorch")
        elif self._add_pair(trial, run_sol, run_torch):
            self._judge(trial, batch)
        else:
            self._settle(trial, batch, SOL, "PyTorch's forward failed when it was timed")
        end = perf_counter()
        trial.cost = end - start
        self._cost += trial.cost
        self._quiet_at = end + SPIN_S

    def _add_pair(self, trial, run_sol, run_torch):
        """Whether PyTorch could be timed. If it fails once, it never runs again here."""
        ours, theirs = [trial.seconds], [_measure(run_torch)]
        if theirs[0] < SHORT_S:
            theirs.append(_measure(run_torch))
            ours.append(_measure(run_sol))
        self._has_failed = max(theirs) == FAILED
        if not self._has_failed:
            trial.ours.append(min(ours))
            trial.theirs.append(min(theirs))
        return not self._has_failed

    def _judge(self, trial, batch):
        ours, theirs = min(trial.ours), min(trial.theirs)
        if is_lost(trial.ours, trial.theirs):
            text = describe("PyTorch is faster", ours, theirs, batch)
            self._settle(trial, batch, text)
        elif is_won(trial.ours, trial.theirs):
            text = "SOL is faster" if ours <= theirs else "PyTorch is not clearly faster"
            self._settle(trial, batch, SOL, describe(text, ours, theirs, batch))

    def _settle(self, trial, batch, verdict, text=None):
        """The engine says that PyTorch runs; that SOL does is said here."""
        if self._trials.get(batch_key(batch)) is not trial:
            return  # forgotten meanwhile
        self.verdicts[batch_key(batch)] = verdict
        if text:
            log.say(log.info, f"{self._name} runs in SOL: {text}")


def batch_key(batch):
    """A batch size as a key that shortcuts know; -1: the model has none."""
    return -1 if batch is None else batch


def is_lost(ours, theirs):
    """PyTorch is faster, and not by chance: its second best is, too."""
    if len(theirs) < 2 or is_noisy(ours):
        return False
    margin, second = MARGIN if len(theirs) >= MIN_PAIRS else CLEAR, sorted(theirs)[1]
    return min(ours) > max(margin * second, second + MIN_LOSS_S)


def is_won(ours, theirs):
    """SOL is faster, or no clear difference will be found. PyTorch's first run may have been a slow one."""
    if len(theirs) < 2:
        return False
    margin = 1 if len(theirs) >= MIN_PAIRS else CLEAR
    return margin * min(ours) <= min(theirs) or len(theirs) >= MAX_PAIRS


def is_noisy(times):
    return len(times) > 1 and sorted(times)[1] > SPREAD * min(times)


def describe(text, ours, theirs, batch):
    size = "" if batch is None else f" for batch {batch}"
    return f"{text}: {ours * 1e3:.3g} ms against {theirs * 1e3:.3g} ms{size}"


def _measure(run):
    """Seconds, or FAILED: no reason for the call beside which it is run to fail."""
    start = perf_counter()
    try:
        run()
    except Exception as error:
        log.say(log.debug, f"cannot be timed: {error}")
        return FAILED
    return perf_counter() - start


def _is_free(size):
    """Whether the machine has that much memory for new work, as far as it tells."""
    try:
        with open("/proc/meminfo") as file:
            facts = dict(line.split(":") for line in file)
        return size <= 1024 * int(facts["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return False

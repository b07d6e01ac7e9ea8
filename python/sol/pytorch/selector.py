"""The selector: chooses between SOL and PyTorch's forward for each batch size, by timing both during calls.

    verdict       a call of this batch size
    none          runs in SOL; some calls also run PyTorch's forward, and both times are kept
    SOL           runs in SOL
    a reason      falls back to eager; the reason contains the times

PyTorch is chosen only if it is clearly faster. A verdict is valid for one number of threads, and for one captured graph.

Invariant: the time spent on timing is at most SHARE of the time of all calls of this plan so far. As it is known only
afterwards, one run that takes longer than expected may exceed the limit. A forward that SOL runs has no side effects
(audit.py), so a run for timing changes no results. Plans whose calls write, or draw random numbers, have no selector.
"""

import contextlib
import os
import threading
import weakref
from time import perf_counter

from sol import device, log
from sol.config import config

SHARE = 0.1
FACTOR = 2.0  # PyTorch's time over SOL's, as an estimate before the first timing
# A pair is a time of SOL and a time of PyTorch. Both run twice if PyTorch takes less than SHORT_S: in the second run caches
# and threads are warm, as they are when only one of the two runs.
SHORT_S = 1e-3
MIN_PAIRS = 3
MAX_PAIRS = 8
MARGIN = 1.05
CLEAR = 1.5  # after two pairs, a verdict needs this ratio of the times
MIN_LOSS_S = 10e-6  # a fallback itself takes some microseconds, so a smaller gain is ignored
# If the two smallest times of SOL differ by a larger factor, other work disturbed the machine.
SPREAD = 1.2
# After a run of PyTorch, OpenMP's threads spin on cores that SOL needs, for 5 to 12 ms where that was measured. A call that
# takes at most CALM times SOL's undisturbed time shows that they have stopped.
SPIN_S = 0.02
CALM = 1.1
# PyTorch is timed only if this many times the memory of a SOL call is free, as PyTorch keeps more values alive.
MEMORY_FACTOR = 4
# The number of batch sizes of a plan that are timed; SOL runs all others. Without a limit, a model that gets a new batch
# size at each call would be timed forever.
MAX_BATCHES = 32

FAILED = float("inf")  # seconds
SOL = True  # the verdict for SOL; a verdict for PyTorch is the reason as text

_selectors = weakref.WeakSet()
_is_forked = False
# Held by the thread that times; the others do not wait, but run in SOL.
_timing = threading.Lock()


def _note_fork():
    global _is_forked
    _is_forked = True


# After a fork, OpenMP's threads do not exist in the child, and PyTorch's forward may wait for them forever. SOL builds a
# new pool.
os.register_at_fork(after_in_child=_note_fork)


def make_selector(options):
    """Returns a Selector for a newly compiled plan, or None if SOL must run all its calls.

    That is so if results must not depend on timing (``compiler::autotune`` or ``compiler::winograd`` off), if the user has
    chosen a device, with debug output or profiles, and with ``fullgraph``.
    """
    if (options.target or device.get()).name:
        return None
    for name in "debug", "debug_memory_consumption", "profile":
        if config[f"compiler::{name}"]:
            return None
    if options.fullgraph or not config["compiler::autotune"] or not config["compiler::winograd"]:
        return None
    return Selector(options.name)


def forget_times():
    """Deletes all verdicts and times, after the number of threads has changed."""
    for selector in list(_selectors):
        selector.forget()


def is_on():
    """Whether selectors are in use. If not, SOL runs all calls that it can run."""
    return config["compiler::never_slower"] and not _is_forked


@contextlib.contextmanager
def without_selectors():
    """Returns a context in which selectors are not in use: SOL runs all calls that it can run, for profiles."""
    before = config["compiler::never_slower"]
    config["compiler::never_slower"] = False
    try:
        yield
    finally:
        config["compiler::never_slower"] = before


class Trial:
    """The times of a batch size without a verdict, in seconds.

    ``seconds``: SOL's last undisturbed call. ``ours``, ``theirs``: SOL's and PyTorch's times, in pairs. ``cost``: time spent
    on the last pair.
    """

    def __init__(self, seconds):
        self.seconds = seconds
        self.ours, self.theirs = [], []
        self.cost = 0.0


class Selector:
    """Chooses for one plan. ``verdicts``: {batch_key: SOL, or the reason for PyTorch}; shortcuts read it, too."""

    def __init__(self, name):
        self.verdicts = {}
        self._name = name
        self._trials = {}
        self._spent = 0.0  # seconds of SOL's calls, without the first call of each batch size
        self._cost = 0.0  # seconds that timing took, directly and by slowing down later calls
        self._quiet_at = 0.0  # time at which OpenMP's threads have stopped spinning
        self._has_failed = False  # PyTorch's forward raised an exception
        _selectors.add(self)

    def forget(self):
        """Deletes all verdicts and times."""
        self.verdicts.clear()
        self._trials = {}

    def has_won(self, batch):
        """Whether the verdict for this batch size is SOL."""
        return self.verdicts.get(batch_key(batch)) is SOL

    def find_reason(self, batch):
        """Returns the reason why PyTorch must run this batch size, or None."""
        verdict = self.verdicts.get(batch_key(batch))
        return None if verdict is SOL else verdict

    def call(self, batch, size, run_sol, run_torch, shortcut=None):
        """Runs a call of a batch size without a verdict in SOL, perhaps times PyTorch, and returns SOL's result.

        ``size()``: bytes of memory that a call of SOL needs. ``run_sol()``, ``run_torch()``: run the call in SOL and in
        PyTorch. ``shortcut``: the _core.Shortcut for this plan, or None. Its calls bypass the selector, so it gets a budget
        of seconds (``grant``) and reports the seconds that it has used.
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
        """Notes the first call of a batch size, which never times PyTorch: for many batch sizes there is only one call."""
        if self._has_failed or len(self._trials) >= MAX_BATCHES:
            self.verdicts[batch_key(batch)] = SOL
        else:
            self._trials[batch_key(batch)] = Trial(seconds)

    def _count(self, trial, start, seconds):
        """Adds the time of a call in SOL. If the call is slower while OpenMP's threads spin, the difference is a cost."""
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
        """Returns the seconds of further calls after which one more pair is expected to keep the invariant; <= 0: now."""
        expected = trial.cost if trial.theirs else FACTOR * trial.seconds
        return (self._cost + expected) / SHARE - self._spent

    # ---- Timing ----

    def _time(self, trial, batch, size, run_sol, run_torch):
        """Measures one more pair of times, and sets the verdict if it is clear."""
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
        """Adds a pair of times. Returns whether PyTorch's forward ran; after a failure it is never timed again."""
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
        """Sets a verdict. ``text``: logged for a verdict for SOL; the engine logs a fallback to PyTorch itself."""
        if self._trials.get(batch_key(batch)) is not trial:
            return  # another thread called `forget` during the timing
        self.verdicts[batch_key(batch)] = verdict
        if text:
            log.say(log.info, f"{self._name} runs in SOL: {text}")


def batch_key(batch):
    """Returns a batch size as a key of ``verdicts``; None (the model has no batch) becomes -1, as in _core.Shortcut."""
    return -1 if batch is None else batch


def is_lost(ours, theirs):
    """Whether PyTorch is clearly faster: SOL's best time is above PyTorch's second best time with a margin."""
    if len(theirs) < 2 or is_noisy(ours):
        return False
    margin, second = MARGIN if len(theirs) >= MIN_PAIRS else CLEAR, sorted(theirs)[1]
    return min(ours) > max(margin * second, second + MIN_LOSS_S)


def is_won(ours, theirs):
    """Whether SOL is faster, or the difference is still not clear after MAX_PAIRS.

    It needs two pairs, as PyTorch's first run may be slow.
    """
    if len(theirs) < 2:
        return False
    margin = 1 if len(theirs) >= MIN_PAIRS else CLEAR
    return margin * min(ours) <= min(theirs) or len(theirs) >= MAX_PAIRS


def is_noisy(times):
    """Whether the two smallest times differ by more than SPREAD."""
    return len(times) > 1 and sorted(times)[1] > SPREAD * min(times)


def describe(text, ours, theirs, batch):
    size = (
        "" if batch is None else f" for {'sizes' if isinstance(batch, tuple) else 'batch'} {batch}"
    )
    return f"{text}: {ours * 1e3:.3g} ms against {theirs * 1e3:.3g} ms{size}"


def _measure(run):
    """Returns the seconds that ``run()`` takes, or FAILED after an exception, which must not fail the user's call."""
    start = perf_counter()
    try:
        run()
    except Exception as error:
        log.say(log.debug, f"cannot be timed: {error}")
        return FAILED
    return perf_counter() - start


def _is_free(size):
    """Whether ``size`` bytes of memory are available by /proc/meminfo; False without that file."""
    try:
        with open("/proc/meminfo") as file:
            facts = dict(line.split(":") for line in file)
        return size <= 1024 * int(facts["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return False

"""Whether SOL is faster than PyTorch's own forward, for each batch size: found out at its second call.

    a call -> won, or not known: SOL runs; at the second call both are timed in turns
           -> lost: PyTorch runs, as a fallback with the times as its reason

SOL steps aside only when the loss is clear; whatever is in doubt is SOL's, and so are the results of all
calls until then. Runs for timing leave nothing behind: a forward that changes its module is undone and
never timed again. What is known holds for one number of threads, and as long as the captured graph does.
"""

import collections
import contextlib
import threading
import time
import weakref

import torch

from sol import log
from sol.config import config

# A turn is two runs of each, where the second finds caches and threads warm; slow ones need no second.
TURNS = 4
MIN_TURNS = 3
SLOW_S = 0.02
MAX_SECONDS = 1.0  # for all turns of a batch size
MARGIN = 1.05
CLEAR = 1.5  # who is ahead by that after one turn has won
MIN_LOSS_S = 10e-6  # stepping aside costs a call some microseconds of its own
# If SOL's best two turns differ by more, somebody else was using the machine: a later call tries again.
SPREAD = 1.2
MAX_TRIES = 3
# OpenMP's threads spin for some milliseconds after their work, on cores that SOL's need.
PAUSE_S = 0.02
# That much more memory than SOL takes for a call must be free: PyTorch keeps more values alive.
MEMORY_FACTOR = 4
# A model that sees a new size at each call would be timed for ever.
MAX_BATCHES = 32

_races = weakref.WeakSet()


def make_race(strict):
    """A Race for a plan that is compiled now. None where results must not depend on time, where the user
    chose the device or looks at what it does, and with ``strict``, which is about what SOL can run."""
    for name in "device", "debug", "debug_memory_consumption", "profile":
        if config[f"compiler::{name}"]:
            return None
    if strict or not config["compiler::autotune"] or not config["compiler::winograd"]:
        return None
    return Race()


def forget_times():
    """The number of threads changed: all is in doubt again."""
    for race in list(_races):
        race.forget()


@contextlib.contextmanager
def without_races():
    """SOL runs all that it can in here, as for somebody who looks at its times."""
    before = config["compiler::never_slower"]
    config["compiler::never_slower"] = False
    try:
        yield
    finally:
        config["compiler::never_slower"] = before


class Race:
    """The races of one plan. ``won`` holds batch sizes that need no further thought."""

    def __init__(self):
        self.won = set()
        self._lost = {}
        self._tries = {}
        self._has_effects = False
        self._lock = threading.Lock()
        _races.add(self)

    def forget(self):
        self.won, self._lost, self._tries = set(), {}, {}

    @staticmethod
    def is_on():
        return config["compiler::never_slower"]

    def find_reason(self, batch):
        """Why PyTorch is to run this batch size, or None."""
        return self._lost.get(batch)

    def call(self, batch, size, run_sol, run_torch, module):
        """SOL's result. ``size``: a function, bytes of memory that a call of SOL needs."""
        start = time.perf_counter()
        result = run_sol()
        seconds = time.perf_counter() - start
        # Of several threads one times; a time beside others would mean nothing.
        if self._lock.acquire(blocking=False):
            try:
                if self._is_due(batch, seconds, size):
                    self._settle(batch, *self._time(seconds, run_sol, run_torch, module))
            finally:
                self._lock.release()
        return result

    def _is_due(self, batch, seconds, size):
        """The first call of a batch size is never timed: for many it stays the only one."""
        tries = self._tries.get(batch)
        if tries is None:
            if len(self._tries) < MAX_BATCHES:
                self._tries[batch] = 0
            return False
        if self._has_effects or batch in self._lost:
            return False
        if (2 * MIN_TURNS + 1) * seconds > MAX_SECONDS or not _is_free(MEMORY_FACTOR * size()):
            self.won.add(batch)
            return False
        self._tries[batch] = tries + 1
        return True

    def _settle(self, batch, ours, theirs):
        if is_lost(ours, theirs):
            self._lost[batch] = describe(min(ours), min(theirs), batch)
        elif not is_noisy(ours) or self._tries.get(batch, 0) >= MAX_TRIES:
            self.won.add(batch)

    def _time(self, seconds, run_sol, run_torch, module):
        """([SOL's times], [PyTorch's]), one of each per turn."""
        ours, theirs, end = [], [], time.perf_counter() + MAX_SECONDS
        longest = self._warm_up(run_torch, module) + seconds
        runs = 1 if longest > SLOW_S else 2
        pause = PAUSE_S if torch.get_num_threads() > 1 else 0
        while len(ours) < TURNS and not _is_decided(ours, theirs):
            if time.perf_counter() + runs * longest + 2 * pause > end:
                break
            ours.append(_time_best(run_sol, runs, pause))
            theirs.append(_time_best(run_torch, runs, pause))
        return ours, theirs

    def _warm_up(self, run_torch, module):
        """The seconds of PyTorch's first run; infinite when it must not run again."""
        attributes, start = Attributes(module), time.perf_counter()
        try:
            run_torch()
        except Exception as error:
            log.say(log.debug, f"PyTorch cannot be timed: {error}")
            self._has_effects = True
        seconds = time.perf_counter() - start
        self._has_effects |= attributes.restore()
        return float("inf") if self._has_effects else seconds


class Attributes:
    """The attributes of a module and its submodules now, and what lists and the like among them hold."""

    def __init__(self, module):
        self._saved = []
        for child in module.modules():
            own = vars(child)
            held = [x for x in own.values() if isinstance(x, (list, dict, set, collections.deque))]
            self._saved += [(x, x.copy()) for x in (own, *held)]

    def restore(self):
        """Puts back what changed; whether anything did."""
        changed = [pair for pair in self._saved if not _holds_the_same(*pair)]
        for now, before in changed:
            _put_back(now, before)
        return bool(changed)


def _holds_the_same(now, before):
    """By identity: values may be tensors, which have no truth."""
    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return all(key in now and now[key] is value for key, value in before.items())
    return now == before if isinstance(now, set) else all(a is b for a, b in zip(now, before))


def _put_back(now, before):
    """Another thread may be using a module's dict: what did not change stays in place."""
    if isinstance(now, dict):
        for key in now.keys() - before.keys():
            del now[key]
        now.update({key: x for key, x in before.items() if key not in now or now[key] is not x})
    else:
        now.clear()
        (now.update if isinstance(now, set) else now.extend)(before)


def is_lost(ours, theirs):
    """PyTorch is faster, and not by chance: its second best is, too."""
    if len(theirs) < 2 or is_noisy(ours):
        return False
    margin, second = MARGIN if len(theirs) >= MIN_TURNS else CLEAR, sorted(theirs)[1]
    return min(ours) > max(margin * second, second + MIN_LOSS_S)


def is_noisy(times):
    return len(times) > 1 and sorted(times)[1] > SPREAD * min(times)


def describe(ours, theirs, batch):
    size = "" if batch is None else f" for batch {batch}"
    return f"PyTorch is faster: {ours * 1e3:.3g} ms against {theirs * 1e3:.3g} ms{size}"


def _is_decided(ours, theirs):
    """SOL is ahead. That it is behind takes all turns to tell."""
    if not ours:
        return False
    return CLEAR * min(ours) < min(theirs) or (len(ours) >= MIN_TURNS and min(ours) <= min(theirs))


def _time_best(run, runs, pause):
    time.sleep(pause)
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _is_free(size):
    """Whether the machine has that much memory for new work, as far as it tells."""
    try:
        with open("/proc/meminfo") as file:
            facts = dict(line.split(":") for line in file)
        return size <= 1024 * int(facts["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return False

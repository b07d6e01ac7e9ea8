"""A selector alone: the cost of timing PyTorch, and the verdict. All times are simulated."""

import random

import pytest
from conftest import Clock, run_calls

from sol.pytorch import selector
from sol.pytorch.selector import Selector


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(selector, "perf_counter", clock)
    return clock


# ---- The budget ----


class Machine:
    """Simulates calls of a plan on a Clock; a shortcut makes them while it has granted time.

    ``spent``: seconds that the calls take with SOL alone; ``lost``: additional seconds. For 8 ms after a run of PyTorch,
    SOL takes ``spin`` times as long. PyTorch's first run of a batch size takes ``cold`` times as long.
    """

    def __init__(self, clock, sol_s, torch_s, cold, spin):
        self.clock, self.sol_s, self.torch_s, self.cold, self.spin = (
            clock,
            sol_s,
            torch_s,
            cold,
            spin,
        )
        self.selector = Selector("net")
        self.left = self.granted = self.spent = self.lost = self.longest = 0.0
        self.noisy_until = -1.0
        self.warm = set()

    def grant(self, seconds):
        used, self.left, self.granted = self.granted - self.left, seconds, seconds
        return used

    def run_sol(self, batch):
        slow = self.spin if self.clock.now < self.noisy_until else 1
        self.clock.tick(self.sol_s * batch * slow)

    def run_torch(self, batch):
        self.clock.tick(self.torch_s * batch * (1 if batch in self.warm else self.cold))
        self.warm.add(batch)
        self.noisy_until = self.clock.now + 0.008

    def call(self, batch):
        start, key = self.clock.now, batch
        if self.left > 0 and key not in self.selector.verdicts:
            self.run_sol(batch)
            self.left -= self.clock.now - start
        else:
            run = lambda: self.run_sol(batch), lambda: self.run_torch(batch)
            run_calls(self.selector, *run, 1, batch, self)
        extra = self.clock.now - start - self.sol_s * batch
        self.spent += self.sol_s * batch
        self.lost += extra
        self.longest = max(self.longest, extra)

    def is_lost(self, batch):
        ours, theirs = self.sol_s * batch, self.torch_s * batch
        return ours > max(selector.MARGIN * theirs, theirs + selector.MIN_LOSS_S)


@pytest.mark.parametrize("sol_s", [50e-6, 2e-3, 0.5])
@pytest.mark.parametrize("ratio", [0.2, 0.7, 0.9, 0.97, 1, 1.1, 1.6, 4, 30])
@pytest.mark.parametrize("cold", [1, 3, 40])
@pytest.mark.parametrize("spin", [1, 1.5])
def test_cost_and_verdict(clock, sol_s, ratio, cold, spin):
    """At any time, at most a tenth of the calls' time is lost, plus one first run. The verdict is the faster engine."""
    machine = Machine(clock, sol_s, ratio * sol_s, cold, spin)
    while 1 not in machine.selector.verdicts:
        machine.call(1)
        first_run = machine.longest + 0.008 * (spin - 1) + sol_s
        assert machine.lost <= max(first_run, 0.1 * machine.spent) * (1 + 1e-9)
        needed = (2 * cold + selector.MAX_PAIRS) * (machine.torch_s + sol_s + 0.008)
        assert machine.spent <= 10 * needed + 25 * sol_s
    assert machine.selector.has_won(1) != machine.is_lost(1)


@pytest.mark.parametrize("seed", range(8))
def test_cost_of_many_batch_sizes(clock, seed):
    """All batch sizes share one budget. Only a first run that takes longer than expected exceeds it."""
    dice = random.Random(seed)
    sizes = dice.sample(range(1, 65), 8)
    machine = Machine(clock, 1e-3, 1e-3 * dice.choice([0.3, 0.8, 2, 6]), dice.choice([1, 5]), 1.5)
    for _ in range(40000):
        batch = dice.choice(sizes)
        machine.call(batch)
        assert machine.lost <= 0.1 * machine.spent + machine.longest + 0.008 + machine.sol_s * 64
    for batch in sizes:
        assert machine.selector.has_won(batch) != machine.is_lost(batch)


def test_no_more_batch_sizes_than_pay(clock):
    machine = Machine(clock, 1e-3, 1e-3, 1, 1)
    for batch in range(1, 2 * selector.MAX_BATCHES):
        machine.call(batch)
    assert len(machine.selector._trials) == selector.MAX_BATCHES
    assert machine.selector.has_won(2 * selector.MAX_BATCHES - 1)


# ---- The verdict ----


@pytest.mark.parametrize(
    "ours, theirs, lost",
    [
        ([1.10, 1.10, 1.11], [1.0, 1.0, 1.0], True),
        ([1.04, 1.04, 1.04], [1.0, 1.0, 1.0], False),
        ([1.10, 1.10, 1.11], [1.0, 1.08, 1.2], False),  # one exceptionally short time
        ([1.10, 1.50, 1.90], [1.0, 1.0, 1.0], False),  # another program used the machine
        ([1.10, 1.10], [1.0, 1.0], False),  # too few to tell
        ([1.60, 1.60], [1.0, 1.0], True),
        ([9e-6, 9e-6, 9e-6], [2e-6, 2e-6, 2e-6], False),  # the fallback itself takes as long
        ([1.60], [1.0], False),
        ([], [], False),
    ],
)
def test_only_a_clear_loss_counts(ours, theirs, lost):
    assert selector.is_lost(ours, theirs) == lost


@pytest.mark.parametrize(
    "ours, theirs, won",
    [
        ([1.0], [9.0], False),  # a first run may be slow
        ([1.0, 1.0], [9.0, 1.6], True),
        ([1.0, 1.0], [9.0, 1.4], False),
        ([1.0, 1.0, 1.0], [1.4, 1.4, 1.4], True),
        ([1.1, 1.1, 1.1], [1.0, 1.0, 1.0], False),
        ([1.1] * selector.MAX_PAIRS, [1.0] * selector.MAX_PAIRS, True),  # most pairs
    ],
)
def test_when_sol_has_won(ours, theirs, won):
    assert selector.is_won(ours, theirs) == won


def test_noise_is_tried_again(clock, monkeypatch):
    """If SOL's times differ too much, more pairs are timed."""
    monkeypatch.setattr(selector, "SHARE", float("inf"))
    one = Selector("net")
    times = iter([9, 2, 3, 3.5])
    for _ in range(4):
        run_calls(one, lambda: clock.tick(next(times)), lambda: clock.tick(1), 1)
        clock.tick(1)
    assert one.verdicts == {}
    run_calls(one, lambda: clock.tick(2), lambda: clock.tick(1), 1)
    assert "2e+03 ms against 1e+03 ms for batch 1" in one.find_reason(1) and not one.has_won(1)

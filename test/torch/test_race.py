"""Stepping aside for PyTorch where it is faster: only then, for certain, and without a trace."""

import copy
import time

import pytest
import torch
from conftest import Function, assert_equal, assert_falls_back, assert_runs_in_sol

import sol.pytorch as sol
from sol.pytorch import race
from sol.pytorch.plan import Plan

LOST = "PyTorch is faster"


@pytest.fixture(autouse=True)
def never_slower():
    sol.config["compiler::never_slower"] = True
    yield
    sol.config["compiler::never_slower"] = False


@pytest.fixture
def slow_sol(monkeypatch):
    """SOL is certain to lose, and other work on the machine does not count: threads would wait for it."""
    run, threads = Plan.run, torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(race, "SPREAD", float("inf"))

    def slow(*args):
        time.sleep(0.015)
        return run(*args)

    monkeypatch.setattr(Plan, "run", slow)
    yield
    torch.set_num_threads(threads)


def slow_forward(x):
    """Where PyTorch takes some milliseconds more: capturing leaves the pause out."""
    time.sleep(0.005)
    return x * 2


def call(fast, *inputs, times=3):
    """Calls until a race has settled; the results."""
    with torch.no_grad():
        return [fast(*inputs) for _ in range(times)]


def count_lost(fast):
    return sum(n for reason, n in sol.fallbacks(fast).items() if LOST in reason)


# ---- Who runs ----


def test_steps_aside(fast, x, slow_sol, capfd):
    first, second, third = call(fast, x)
    assert torch.equal(first, second) and count_lost(fast) == 1
    assert_equal(third, first)
    assert_falls_back(fast, "for batch 2", x)
    assert capfd.readouterr().err.count(LOST) == 1


def test_sol_stays_where_it_is_faster():
    fast = sol.optimize(Function(slow_forward).eval(), sol.input([0, 4]))
    call(fast, torch.ones(2, 4), times=5)
    assert not sol.fallbacks(fast)


def test_a_single_call_costs_nothing():
    calls = []
    fast = sol.optimize(Function(lambda x: calls.append(1) or x * 2).eval(), sol.input([0, 4]))
    calls.clear()
    call(fast, torch.ones(2, 4), times=1)
    assert not calls


def test_each_batch_size_by_itself(fast, x, slow_sol):
    call(fast, x)
    other = torch.randn(3, 3, 9, 7)
    call(fast, other, times=1)
    assert count_lost(fast) == 1
    call(fast, other, times=2)
    assert len(sol.fallbacks(fast)) == 2


def test_a_fixed_size(net, x, slow_sol):
    fast = sol.optimize(net, x)
    call(fast, x)
    (reason,) = sol.fallbacks(fast)
    assert LOST in reason and "batch" not in reason


def test_number_of_calls(fast, x, monkeypatch, slow_sol):
    counts = {"eager": 0}
    forward = type(fast._original).forward

    def counted(self, x):
        counts["eager"] += 1
        return forward(self, x)

    monkeypatch.setattr(type(fast._original), "forward", counted)
    start = time.perf_counter()
    call(fast, x, times=2)
    assert 0 < counts["eager"] <= 10
    assert time.perf_counter() - start < 1.5


# ---- Switches ----


def test_key_counts_at_once(fast, x, slow_sol):
    call(fast, x)
    sol.config["compiler::never_slower"] = False
    assert_runs_in_sol(fast, x)
    sol.config["compiler::never_slower"] = True
    assert_falls_back(fast, LOST, x)


def without_races(key, value, net, x):
    before = sol.config[key]
    sol.config[key] = value
    try:
        fast = sol.optimize(net, sol.input([0, 3, 9, 7]))
    finally:
        sol.config[key] = before
    call(fast, x, times=5)
    return sol.fallbacks(fast)


@pytest.mark.parametrize(
    "key, value",
    [("compiler::autotune", False), ("compiler::winograd", False), ("compiler::device", "ref")],
)
def test_results_without_timing(net, x, slow_sol, key, value):
    assert not without_races(key, value, net, x)


def test_strict(net, x, slow_sol):
    fast = sol.optimize(net, sol.input([0, 3, 9, 7]), strict=True)
    call(fast, x, times=5)
    assert not sol.fallbacks(fast)


# ---- What is known, and how long ----


def test_new_values_change_nothing(fast, x, slow_sol):
    call(fast, x)
    with torch.no_grad():
        fast.conv.weight.mul_(2)
    assert_falls_back(fast, LOST, x)
    assert count_lost(fast) == 2


def test_new_structure_is_timed_again(fast, x, slow_sol):
    call(fast, x)
    fast.fc = torch.nn.Linear(8, 4).eval()
    assert_runs_in_sol(fast, x)
    call(fast, x, times=1)
    assert count_lost(fast) == 1
    assert_falls_back(fast, LOST, x)


def test_copy_knows_it_too(fast, x, slow_sol):
    call(fast, x)
    assert_falls_back(copy.deepcopy(fast), LOST, x)


def test_threads_change(fast, x, slow_sol):
    threads = torch.get_num_threads()
    call(fast, x)
    try:
        torch.set_num_threads(threads + 1)
        call(fast, x, times=2)  # the first finds the number changed only after it has looked
        assert count_lost(fast) <= 2
    finally:
        torch.set_num_threads(threads)


def test_profile_is_of_sol(fast, x, slow_sol):
    call(fast, x)
    assert sol.profile(fast, x, runs=2).steps
    assert count_lost(fast) == 1


# ---- No trace ----


class Stateful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seen, self.count, self.last, self.names = [], 0, None, {}

    def forward(self, x):
        self.seen.append(1)
        self.count += 1
        self.last = x
        self.names[self.count] = x
        return x * 2


def test_a_forward_with_effects_is_undone(slow_sol):
    model = Stateful().eval()
    fast = sol.optimize(model, sol.input([0, 4]))
    call(fast, torch.ones(2, 4), times=5)
    assert (model.seen, model.count, model.last, model.names) == ([], 0, None, {})
    assert not sol.fallbacks(fast) and sol.recompiles(fast) == 0


def test_a_forward_that_fails_is_not_wanted(net, x, slow_sol, monkeypatch):
    fast = sol.optimize(net, sol.input([0, 3, 9, 7]))

    def fail(self, x):
        raise RuntimeError("no")

    monkeypatch.setattr(type(net), "forward", fail)
    call(fast, x, times=5)
    assert not sol.fallbacks(fast)


def test_random_numbers(fast, x):
    before = torch.get_rng_state()
    call(fast, x)
    assert torch.equal(torch.get_rng_state(), before)


def test_nan(fast, x, slow_sol):
    x[0, 0, 0, 0] = float("nan")
    for y in call(fast, x):
        assert y[0].isnan().all() and not y[1].isnan().any()


def test_little_memory(fast, x, slow_sol, monkeypatch):
    monkeypatch.setattr(race, "_is_free", lambda size: False)
    call(fast, x, times=5)
    assert not sol.fallbacks(fast)


def test_slow_calls_are_not_timed(fast, x, slow_sol, monkeypatch):
    monkeypatch.setattr(race, "MAX_SECONDS", 0.01)
    call(fast, x, times=5)
    assert not sol.fallbacks(fast)


# ---- The verdict ----


@pytest.mark.parametrize(
    "ours, theirs, lost",
    [
        ([1.10, 1.10, 1.11], [1.0, 1.0, 1.0], True),
        ([1.04, 1.04, 1.04], [1.0, 1.0, 1.0], False),
        ([1.10, 1.10, 1.11], [1.0, 1.08, 1.2], False),  # one lucky time
        ([1.10, 1.50, 1.90], [1.0, 1.0, 1.0], False),  # somebody else was there
        ([1.10, 1.10], [1.0, 1.0], False),  # too few to tell
        ([1.60, 1.60], [1.0, 1.0], True),
        ([9e-6, 9e-6, 9e-6], [2e-6, 2e-6, 2e-6], False),  # PyTorch in SOL's place takes as long
        ([1.60], [1.0], False),
        ([], [], False),
    ],
)
def test_only_a_clear_loss_counts(ours, theirs, lost):
    assert race.is_lost(ours, theirs) == lost


def test_noise_is_tried_again(monkeypatch):
    answers = iter([([2.0, 3.0], [1.0, 1.0]), ([2.0, 2.0], [1.0, 1.0])])
    one = race.Race()
    monkeypatch.setattr(one, "_time", lambda *args: next(answers))
    for _ in range(3):
        assert one.find_reason(1) is None
        one.call(1, lambda: 0, lambda: 0, None, None)
    assert "2e+03 ms against 1e+03 ms for batch 1" in one.find_reason(1) and 1 not in one.won

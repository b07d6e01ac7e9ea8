"""Choosing between SOL and PyTorch: PyTorch only if it is clearly faster; timing costs little and has no side effects."""

import copy
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from conftest import Clock, assert_equal, assert_falls_back, assert_runs_in_sol, run_calls

import sol.pytorch as sol
from sol.pytorch import selector
from sol.pytorch.engine import Engine
from sol.pytorch.plan import Plan
from sol.pytorch.selector import Selector

LOST = "PyTorch is faster"


@pytest.fixture(autouse=True)
def never_slower():
    sol.config["compiler::never_slower"] = True
    yield
    sol.config["compiler::never_slower"] = False


@pytest.fixture
def clock(monkeypatch):
    """A Clock on which a run of SOL takes 15 ms. PyTorch takes no time, unless its forward advances the clock."""
    run, clock = Plan.run, Clock()
    monkeypatch.setattr(selector, "perf_counter", clock)

    def slow(*args):
        clock.tick(0.015)
        return run(*args)

    monkeypatch.setattr(Plan, "run", slow)
    return clock


@pytest.fixture
def slow_sol(clock, monkeypatch):
    """SOL is slower, which two timings show; the budget for timing is infinite."""
    monkeypatch.setattr(selector, "SHARE", float("inf"))
    return clock


def call(fast, *inputs, times=4):
    """Makes ``times`` calls, usually enough for a verdict. Returns the results."""
    with torch.no_grad():
        return [fast(*inputs) for _ in range(times)]


def count_lost(fast):
    return sum(n for reason, n in sol.fallbacks(fast).items() if LOST in reason)


def on_eager(monkeypatch, effect):
    """Calls ``effect`` whenever PyTorch's own forward is about to run."""
    run = Engine._run_eager
    monkeypatch.setattr(Engine, "_run_eager", lambda *args: (effect(), run(*args))[1])


@pytest.fixture
def forwards(monkeypatch):
    """A list that gets one element for each run of PyTorch's own forward."""
    runs = []
    on_eager(monkeypatch, lambda: runs.append(1))
    return runs


# ---- SOL or PyTorch ----


def test_falls_back_to_eager(fast, x, slow_sol, capfd):
    first, *_, last = call(fast, x)
    assert count_lost(fast) == 1
    assert_equal(last, first)
    assert_falls_back(fast, "for batch 2", x)
    assert capfd.readouterr().err.count(LOST) == 1


def test_sol_stays_where_it_is_faster(fast, x, slow_sol, monkeypatch, capfd):
    on_eager(monkeypatch, lambda: slow_sol.tick(0.1))
    level = sol.config["log::level"]
    sol.config["log::level"] = sol.log.info
    try:
        call(fast, x, times=9)
    finally:
        sol.config["log::level"] = level
    assert not sol.fallbacks(fast)
    said = [line for line in capfd.readouterr().err.splitlines() if "faster" in line]
    assert len(said) == 1 and "sol: Net runs in SOL: SOL is faster: " in said[0]
    assert "15 ms against 100 ms for batch 2" in said[0]


def test_few_calls_cost_nothing(fast, x, clock, forwards):
    """A run of PyTorch is due when the calls so far took at least ten times its expected time. Calls with a keyword
    take no shortcut, so the clock counts them."""
    with torch.no_grad():
        for _ in range(10):
            fast(x=x)
        assert not forwards
        for _ in range(30):
            fast(x=x)
    assert forwards


def test_a_single_call_costs_nothing(fast, slow_sol, forwards):
    for n in range(1, 40):
        call(fast, torch.ones(n, 3, 9, 7), times=1)
    assert not forwards


def test_each_batch_size_by_itself(fast, x, slow_sol):
    call(fast, x)
    other = torch.randn(3, 3, 9, 7)
    call(fast, other, times=1)
    assert count_lost(fast) == 1
    call(fast, other, times=3)
    assert len(sol.fallbacks(fast)) == 2


def test_a_fixed_size(net, x, slow_sol):
    fast = sol.optimize(net, x)
    call(fast, x)
    (reason,) = sol.fallbacks(fast)
    assert LOST in reason and "batch" not in reason


def test_a_call_runs_pytorch_twice_at_most(fast, x, slow_sol, forwards):
    for n in range(3):
        call(fast, x, times=1)
        assert len(forwards) <= 2 * n


# ---- Switches ----


def test_key_counts_at_once(fast, x, slow_sol):
    call(fast, x)
    sol.config["compiler::never_slower"] = False
    assert_runs_in_sol(fast, x)
    sol.config["compiler::never_slower"] = True
    assert_falls_back(fast, LOST, x)


def without_selectors(key, value, net, x):
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
    assert not without_selectors(key, value, net, x)


def test_fullgraph(net, x, slow_sol):
    fast = sol.optimize(net, sol.input([0, 3, 9, 7]), fullgraph=True)
    call(fast, x, times=5)
    assert not sol.fallbacks(fast)


# ---- Verdicts and their lifetime ----


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
    call(fast, x, times=2)
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
        call(fast, x, times=2)  # the first call notices the change too late
        assert count_lost(fast) <= 2
    finally:
        torch.set_num_threads(threads)


def test_profile_is_of_sol(fast, x, slow_sol):
    call(fast, x)
    assert sol.profile(fast, x, runs=2).steps
    assert count_lost(fast) == 1


# ---- No side effects ----


def test_a_forward_that_fails_is_not_wanted(fast, x, slow_sol, monkeypatch):
    def fail():
        raise RuntimeError("no")

    on_eager(monkeypatch, fail)
    call(fast, x, times=5)
    assert not sol.fallbacks(fast)


def test_random_numbers(fast, x, slow_sol):
    before = torch.get_rng_state()
    call(fast, x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", enabled=False),
    ],
)
def test_the_same_mode(fast, x, slow_sol, monkeypatch, mode):
    """PyTorch is timed in the mode of the call."""
    seen = []

    def look():
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    on_eager(monkeypatch, look)
    fast.requires_grad_(False)
    with mode():
        look()
        for _ in range(3):
            fast(x)
    assert len(seen) > 1 and len(set(seen)) == 1


def test_nan(fast, x, slow_sol):
    x[0, 0, 0, 0] = float("nan")
    for y in call(fast, x):
        assert y[0].isnan().all() and not y[1].isnan().any()


def test_little_memory(fast, x, slow_sol, monkeypatch, forwards):
    monkeypatch.setattr(selector, "_is_free", lambda size: False)
    call(fast, x, times=5)
    assert not sol.fallbacks(fast) and not forwards


# ---- Processes and threads ----

FORKED = """
    import os, signal, torch, sol.pytorch as sol
    from sol.pytorch import selector

    selector.SHARE = float("inf")
    selector.is_lost = lambda ours, theirs: {is_lost} and len(theirs) > 1
    net = torch.nn.Sequential(*[torch.nn.Conv2d(32, 32, 3) for _ in range(3)]).eval()
    x = torch.randn(2, 32, 64, 64)
    torch.set_num_threads(2)
    fast = sol.optimize(net, sol.input([0, 32, 64, 64]))
    with torch.no_grad():
        expected = net(x).numpy()
        for _ in range({calls}):  # on a busy machine some times do not count
            if not sol.fallbacks(fast):
                fast(x)
        assert bool(sol.fallbacks(fast)) == {is_lost}
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            before = sum(sol.fallbacks(fast).values())
            ys = [fast(x).numpy() for _ in range(5)]
            equal = all(abs(y - expected).max() < 1e-3 for y in ys)
            os._exit(0 if equal and sum(sol.fallbacks(fast).values()) == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("is_lost, calls", [(False, 1), (True, 100)])
def test_a_forked_child_never_runs_pytorch(is_lost, calls):
    """PyTorch's threads do not exist in the child, and its forward would wait for them."""
    script = textwrap.dedent(FORKED).format(is_lost=is_lost, calls=calls)
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_one_thread_times_and_nobody_waits(slow_sol):
    """Only one thread times PyTorch at a time, also for different plans. The other threads do not wait."""
    begun, go_on, runs = threading.Event(), threading.Event(), []

    def run_torch():
        runs.append(1)
        begun.set()
        assert go_on.wait(60)

    first, second = Selector("first"), Selector("second")
    args = lambda: slow_sol.tick(1), run_torch
    timer = threading.Thread(target=run_calls, args=(first, *args, 2))
    timer.start()
    assert begun.wait(60)
    for one in first, second:
        run_calls(one, *args, 5)
    assert runs == [1]
    go_on.set()
    timer.join()


def test_a_later_run_may_fail(slow_sol):
    runs = []

    def run_torch():
        slow_sol.tick(1)
        runs.append(1)
        if len(runs) == 2:
            raise RuntimeError("no")

    one = Selector("net")
    run_calls(one, lambda: slow_sol.tick(1), run_torch, 9)
    assert one.has_won(1) and len(runs) == 2


def test_a_verdict_of_before_is_none(slow_sol):
    """If the number of threads changes while PyTorch is timed, that timing gives no verdict."""
    one = Selector("net")

    def run_torch():
        if one._trials[1].theirs:
            one.forget()

    run_calls(one, lambda: slow_sol.tick(1), run_torch, 3)
    assert one.verdicts == {}

"""Calls of several threads, and forks while another thread is busy."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch
from conftest import Net, assert_runs_in_sol

import sol.pytorch as sol


def run_together(count, function):
    """Runs function(i) in ``count`` threads that start at the same time. Returns the exceptions."""
    barrier, errors = threading.Barrier(count), []

    def run(i):
        barrier.wait()
        try:
            function(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_optimize_on_several_threads(x):
    nets, fast = [Net(classes=3 + i).eval() for i in range(6)], {}

    def optimize(i):
        fast[i] = sol.optimize(nets[i], sol.input([0, 3, 9, 7]))

    assert not run_together(len(nets), optimize)
    for i in range(len(nets)):
        assert_runs_in_sol(fast[i], x)


def test_capture_beside_calls_of_pytorch(x):
    """torch.export changes nn.Module for the whole process while it runs; calls in other threads must not be affected."""
    net, other = Net().eval(), Net().eval()
    expected, stop, wrong = other(x), threading.Event(), []

    def call(_):
        while not stop.is_set():
            wrong.extend([] if torch.allclose(other(x), expected) else [1])

    def capture(_):
        try:
            for _ in range(3):
                assert_runs_in_sol(sol.optimize(net, sol.input([0, 3, 9, 7])), x)
        finally:
            stop.set()

    assert not run_together(2, lambda i: (call, capture)[i](i))
    assert not wrong


# A thread calls {busy} in an endless loop. Meanwhile the process forks, and each child must finish a call in time.
FORKS = """
    import os, random, signal, sys, threading, time, torch, sol.pytorch as sol
    sol.config["compiler::never_slower"] = False
    torch.set_num_threads(2)

    def make(n):
        return torch.nn.Sequential(torch.nn.Conv2d(3, n, 3), torch.nn.ReLU(), torch.nn.Conv2d(n, n, 3)).eval()

    x, net = torch.randn(2, 3, 16, 16), make(8)
    fast = sol.optimize(net, sol.input([0, 3, 16, 16]))

    def call():
        with torch.no_grad():
            return fast(x)

    def new_weights():
        with torch.no_grad():
            net[0].weight.mul_(1.0)
        call()

    def new_graph():
        sol.refresh(fast)  # or there are too many
        net[1] = random.choice([torch.nn.ReLU(), torch.nn.Tanh(), torch.nn.Sigmoid()]).eval()
        call()

    def optimize():
        sol.optimize(make(random.randint(1, 9)), sol.input([0, 3, 16, 16]))

    def loop(busy):
        while True:
            busy()

    expected = net(x).detach().numpy()
    threading.Thread(target=loop, args=({busy},), daemon=True).start()
    for i in range({times}):
        time.sleep(random.random() / 100)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            y = call()
            if "{busy}" != "new_graph":
                assert abs(y.numpy() - expected).max() < 1e-4
            if i % 8 == 0:
                optimize()
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            os.write(2, b"child %d: status %d" % (i, status))
            os._exit(1)
    os._exit(0)
"""


@pytest.mark.parametrize("busy", ["call", "new_weights", "optimize", "new_graph"])
def test_fork_while_a_thread_is_busy(busy):
    script = textwrap.dedent(FORKS).format(busy=busy, times=16)
    subprocess.run([sys.executable, "-c", script], timeout=300, check=True, env=dict(os.environ))

"""Shared by the PyTorch tests. Models are small; every test checks whether SOL or PyTorch runs its calls."""

import sys
import threading

import pytest
import torch

import sol.pytorch as sol
from sol.pytorch import importer

torch.manual_seed(0)
# SOL runs everything that it can, although PyTorch may be faster for models as small as these.
sol.config["compiler::never_slower"] = False


NETS = """
import torch
NAMES = ["tiny"]

class Net:
    model = torch.nn.Linear(4, 2)
    def inputs(self, batch):
        return torch.ones(batch, 4)

def build(name):
    return {"tiny": Net}[name]()

def two(batch):
    class Add(torch.nn.Module):
        def forward(self, a, b):
            return a + b
    return Add(), (torch.ones(batch, 3), torch.ones(batch, 3))

def alone():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())

def text(batch):
    return "text", torch.ones(batch)

number = 3
"""


@pytest.fixture
def few_layers(monkeypatch):
    """SOL computes networks of few layers, too."""
    monkeypatch.setattr(importer, "LAYERS_PER_HOST", 0)


def give_module(path, text):
    """For a fixture: writes a file that tests import as a module, and removes the module afterwards."""
    path.write_text(text)
    yield path
    sys.modules.pop(path.stem, None)


@pytest.fixture
def nets(tmp_path):
    yield from give_module(tmp_path / "nets.py", NETS)


class Net(torch.nn.Module):
    """A small CNN with all kinds of layers that have weights: conv, batch norm, linear."""

    def __init__(self, classes=5):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.drop = torch.nn.Dropout(0.5)
        self.fc = torch.nn.Linear(8, classes)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        return self.fc(self.drop(y).mean((2, 3)))


@pytest.fixture
def net():
    """A Net in eval mode whose batch norm is not the identity."""
    model = Net()
    with torch.no_grad():
        model.norm.running_mean.uniform_(-0.5, 0.5)
        model.norm.running_var.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture
def fast(net):
    return sol.optimize(net, sol.input([0, 3, 9, 7]))


@pytest.fixture
def x():
    return torch.randn(2, 3, 9, 7)


class Function(torch.nn.Module):
    """A model without weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Optional(torch.nn.Module):
    """A model with optional arguments of all kinds."""

    def forward(self, x, y=None, scale=1.0, *, bias=None):
        x = x if y is None else x + y
        return x * scale if bias is None else x * scale + bias


def assert_equal(got, expected, tolerance=1e-5):
    """Asserts that values are equal up to ``tolerance``, and that NaN and Inf are at the same places."""
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_runs_in_sol(fast, *inputs, **keywords):
    """Asserts that SOL runs this call, with the right result."""
    before = sum(sol.fallbacks(fast).values())
    with torch.no_grad():
        got, expected = fast(*inputs, **keywords), vars(fast)["_original"](*inputs, **keywords)
    assert sum(sol.fallbacks(fast).values()) == before, sol.fallbacks(fast)
    assert_equal(got, expected)
    return got


def assert_as_eager(fast, *args, **kwargs):
    """Asserts that a call for which the model was not optimized gives the result or the exception of PyTorch's own forward."""
    before = sum(sol.fallbacks(fast).values())
    with torch.no_grad():
        got, expected = (outcome(f, args, kwargs) for f in (fast, vars(fast)["_original"]))
    assert type(got) is type(expected), (got, expected)
    if isinstance(expected, Exception):
        assert str(got) == str(expected)
    else:
        assert_equal(got, expected)
    assert sum(sol.fallbacks(fast).values()) == before + 1


def outcome(function, args, kwargs):
    """The result, or the exception."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


def assert_falls_back(fast, reason, *inputs):
    """Asserts that PyTorch runs this call, with the right result, and that the reason is counted."""
    with torch.no_grad():
        got, expected = fast(*inputs), vars(fast)["_original"](*inputs)
    assert_equal(got, expected)
    counted = {text: n for text, n in sol.fallbacks(fast).items() if n and reason in text}
    assert counted, sol.fallbacks(fast)


class Clock:
    """Replaces time.perf_counter: time passes only when a test advances it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def tick(self, seconds):
        self.now += seconds


def run_calls(one, run_sol, run_torch, times, batch=1, shortcut=None):
    """Makes calls with a batch size as the engine does, until there is a verdict."""
    for _ in range(times):
        if batch in one.verdicts:
            return
        one.call(batch, lambda: 0, run_sol, run_torch, shortcut)


def run_in_threads(function, n=4):
    """Calls ``function()`` on ``n`` threads at the same time."""
    threads = [threading.Thread(target=function) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

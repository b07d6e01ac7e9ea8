"""Deterministic mode, `compiler::winograd` off: the same bits at every run, and errors within the limit."""

import copy

import pytest
import torch
from conftest import Function
from torch import nn

import sol.pytorch as sol
from sol.pytorch.plan import follow_threads

DETERMINISTIC = {"compiler::winograd": False}


class Block(nn.Module):
    """A residual block with a squeeze: conv, batch norm, sum, mean over pixels, product."""

    def __init__(self, channels, **options):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding="same", **options)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.gate = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        y = self.norm(self.second(torch.relu(self.first(x))))
        y = y * torch.sigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        return torch.relu(x + y)


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Conv2d(16, 11, k, padding=k // 2) for k in (1, 3, 5))

    def forward(self, x):
        return torch.cat([part(x) for part in self.parts], 1)


def statistics(x):
    """Reductions of several kinds, over rows, columns and all."""
    y = x - x.mean((2, 3), keepdim=True)
    y = y / (y * y).mean((1, 2, 3), keepdim=True).add(1e-5).sqrt()
    return torch.softmax(y, 1).amax(2) + torch.sigmoid(y).sum(2)


def images(*layers):
    stem = nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(37), nn.Softmax(1)
    return nn.Sequential(*stem, *layers, *head), (3, 61, 47)


def mlp(*widths):
    pairs = [(nn.Linear(a, b), nn.GELU()) for a, b in zip(widths, widths[1:])]
    return nn.Sequential(*[layer for pair in pairs for layer in pair], nn.Softmax(1)), widths[:1]


def depthwise():
    conv = nn.Conv2d(16, 16, 3, 2, 1, groups=16), nn.ReLU6(), nn.Conv2d(16, 48, 1), nn.SiLU()
    return images(*conv)


NETS = {
    "residual": lambda: images(Block(16), Block(16)),
    "dilated": lambda: images(Block(16, dilation=2)),
    "grouped": lambda: images(Block(16, groups=4)),
    "depthwise": depthwise,
    "depthwise of an input": lambda: (nn.Conv2d(3, 3, 7, 2, 3, groups=3), (3, 61, 47)),
    "plain output": lambda: (nn.Conv2d(3, 17, 5), (3, 61, 47)),
    "joined": lambda: images(Joined(), nn.AvgPool2d(3, 2), nn.Conv2d(33, 70, 3)),
    "wide": lambda: images(nn.Conv2d(16, 256, 3), nn.Conv2d(256, 64, 3)),
    "mlp": lambda: mlp(301, 1000, 513, 10),
    "deep sums": lambda: mlp(9000, 7),
    "statistics": lambda: (Function(statistics), (5, 33, 47)),
    "softmax": lambda: (Function(lambda x: torch.softmax(x * 3, -1)), (7, 1001)),
}


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    set_threads(before)


def set_threads(n):
    torch.set_num_threads(n)
    follow_threads()


def make_net(name):
    torch.manual_seed(3)
    model, shape = NETS[name]()
    model(torch.randn(2, *shape))  # batch norms learn statistics, lazy layers their sizes
    return model.eval(), torch.randn(5, *shape)


def optimize(model, x, options, batch_size=None):
    before = {key: sol.config[key] for key in options}
    for key, value in options.items():
        sol.config[key] = value
    try:
        spec = sol.input([0, *x.shape[1:]])
        return sol.optimize(model, spec, batch_size=batch_size, fullgraph=True)
    finally:
        for key, value in before.items():
            sol.config[key] = value


def error(got, exact):
    return ((got.double() - exact).abs().max() / exact.abs().max()).item()


@pytest.mark.parametrize("name", NETS)
def test_same_bits(name, monkeypatch):
    """The bits do not depend on the run, the number of threads, the division of work, the compile, or `compiler::autotune`."""
    model, x = make_net(name)
    with torch.no_grad():
        set_threads(2)
        fast = optimize(model, x, DETERMINISTIC)
        expected = fast(x)
        assert all(torch.equal(fast(x), expected) for _ in range(10))
        for n in (1, 2, 3, 4, 7):
            set_threads(n)
            assert torch.equal(fast(x), expected), f"{n} threads"
            again = optimize(model, x, DETERMINISTIC, batch_size=n)
            assert torch.equal(again(x), expected), f"compiled for {n} threads and batch {n}"
        monkeypatch.setenv("SOL_DISABLE", "onednn,openblas,winograd4,winograd2")
        untimed = optimize(model, x, DETERMINISTIC | {"compiler::autotune": False})
        assert torch.equal(untimed(x), expected)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("factor, floor, options", [(2, 1e-6, DETERMINISTIC), (4, 1e-5, {})])
def test_error(name, factor, floor, options):
    """The error against float64, relative to the largest output, is at most ``factor`` times PyTorch's own plus ``floor``."""
    model, x = make_net(name)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        found = error(optimize(model, x, options)(x), exact)
        assert found <= factor * error(model(x), exact) + floor


def test_libraries_are_refused():
    model, x = make_net("residual")
    report = sol.profile(optimize(model, x, DETERMINISTIC), x, runs=1).refusals()
    refused = {name for name, reason in report if reason == "deterministic numerics"}
    assert {"winograd4", "winograd2", "onednn", "openblas"} <= refused

"""Training of models that end gradients: detach, and operators inside of torch.no_grad, beside PyTorch."""

import copy

import pytest
import torch
from test_training import assert_buffers, assert_close, gradients
from torch import nn
from torch.nn import functional as F

import sol


class Net(nn.Module):
    """Two linear layers, a buffer, and a function of the module and its input."""

    def __init__(self, function, norm=None):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.register_buffer("scale", torch.ones(6))
        self.function = function

    def forward(self, x):
        return self.function(self, self.norm(x))


def scaled(m, x):
    y = m.a(x)
    with torch.no_grad():
        scale = 1 / (y.abs().amax(dim=1, keepdim=True) + 1)
    return y * scale


def target(m, x):
    with torch.no_grad():
        goal = F.relu(m.b(x), inplace=True)
    return F.mse_loss(m.a(x), goal, reduction="none")


def nested(m, x):
    y = m.a(x)
    with torch.no_grad():
        low = y.sin()
        with torch.enable_grad():
            y = y * low
        low = m.b(low) + y
    return y * low


@torch.no_grad()
def halve(x):
    return x / 2


def kept_argument(m, x):
    """Inside of no_grad, these return their argument, whose gradient flows on."""
    y = m.a(x)
    with torch.no_grad():
        y = y.contiguous().to(torch.float32)
    return y * 2


def average(m, x):
    y = m.a(x)
    with torch.no_grad():
        m.scale.mul_(0.75).add_(y.mean(0), alpha=0.25)
    return y * m.scale


def parts(m, x):
    low, high = m.a(x).chunk(2, 1)
    return low * high.detach() + low.detach()[:, :1]


def activated(m, x):
    y = F.relu(m.a(x), inplace=True)
    return y * y.detach().mean() + m.b(y)


def without_batch(m, x):
    with torch.no_grad():
        y = m.a(x).t()[0:2].sum()
    return m.b(x) * y + x.detach()


def normed(m, x):
    """The statistics are written inside of no_grad."""
    with torch.no_grad():
        y = m.norm(m.b(x))
    return m.a(x) * y


RUNS = {
    "activation": lambda m, x: (lambda y: y * y.detach() + y)(m.a(x)),
    "straight_through": lambda m, x: (lambda y: y + (torch.round(y) - y).detach())(m.a(x) * 3),
    "scaled": scaled,
    "target": target,
    "nested": nested,
    "decorated": lambda m, x: m.a(x) + halve(m.b(x)) * x,
    "input": lambda m, x: m.a(x.detach()) * m.b(x),
    "input_only": lambda m, x: m.a(x.detach()),
    "parameter": lambda m, x: F.linear(x, m.a.weight.detach(), m.a.bias) + m.b(x),
    "tied": lambda m, x: F.linear(m.a(x), m.a.weight.detach()),
    "results": lambda m, x: (m.a(x), m.b(x).detach()),
    "kept_argument": kept_argument,
    "average": average,
    "parts": parts,
    "activated": activated,
    "without_batch": without_batch,
    "like": lambda m, x: m.a(x) * (x[:, :1].detach().expand_as(x)),
    "normed": normed,
}


def run(model, x):
    """Returns the results and the gradients of a call."""
    mine = x.clone().requires_grad_()
    found = model(mine)
    results = found if isinstance(found, tuple) else (found,)
    loss = sum((y * torch.linspace(-1, 2, y.numel()).reshape(y.shape)).sum() for y in results)
    loss.backward()
    return results, [mine.grad, *gradients(model)]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_stops(name, norm):
    """SOL runs it, also where a norm's statistics are written, and tells a gradient of zeros from none as PyTorch does."""
    torch.manual_seed(3)
    eager = Net(RUNS[name], norm)
    optimized = sol.optimize(copy.deepcopy(eager), sol.input([0, 6]))
    for batch in (4, 3):
        x = torch.randn(batch, 6)
        (ys, found), (theirs, expected) = run(optimized, x), run(eager, x)
        assert not any(sol.fallbacks(optimized).values())
        assert [y.requires_grad for y in ys] == [y.requires_grad for y in theirs]
        assert_close(ys, theirs)
        assert_close(found, expected)
        assert_buffers(eager, optimized)


def write_behind(m, x):
    y = m.a(x)
    y.detach().clamp_(min=0)
    return y * 2


def write_inside(m, x):
    y = m.a(x)
    with torch.no_grad():
        y.mul_(2)
    return y


def gradient_into(m, x):
    y = m.a(x).detach()
    y.mul_(m.b(x))
    return y


def flat(m, x):
    with torch.no_grad():
        y = m.a.bias.flatten()
    return m.a(x) * y


def left_off(m, x):
    y = m.a(x)
    torch.set_grad_enabled(False)
    return y


def inference(m, x):
    y = m.a(x)
    with torch.inference_mode():
        torch.ones(3).sum()
    return y


REFUSED = {
    write_behind: "",
    write_inside: "writes what wants a gradient",
    gradient_into: "in the memory of a tensor without a gradient",
    flat: "may return its argument",
    inference: "turns inference mode on or off",
    lambda m, x: m.a(x) * m.a.bias.data: "",
    lambda m, x: m.a(x).detach_() * m.b(x): "",
    lambda m, x: (lambda y: (y, y.detach()))(m.a(x)): "shares memory",
}


@pytest.mark.parametrize("function", REFUSED)
def test_refused(function):
    """PyTorch runs it, with the reason."""
    eager = Net(function)
    optimized = sol.optimize(copy.deepcopy(eager), sol.input([0, 6]))
    x = torch.randn(4, 6)
    (ys, found), (theirs, expected) = run(optimized, x), run(eager, x)
    assert any(REFUSED[function] in reason for reason in sol.fallbacks(optimized))
    assert_close(ys, theirs)
    assert_close(found, expected)


def test_left_off():
    """A forward that leaves gradients off runs in PyTorch, which leaves them off."""
    optimized = sol.optimize(Net(left_off), sol.input([0, 6]))
    try:
        optimized(torch.randn(4, 6))
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    assert any("leaves gradients off" in reason for reason in sol.fallbacks(optimized))


def test_dropped_gradient():
    """Where all gradients are stopped, there is nothing to train."""
    eager = Net(lambda m, x: m.a(x).detach())
    y = sol.optimize(eager, sol.input([0, 6]))(torch.randn(4, 6))
    assert not y.requires_grad

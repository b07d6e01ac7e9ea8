"""Gradients where a function has a kink, a tie or a NaN: SOL makes PyTorch's choice."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import sol.pytorch as sol

# Inputs of whole and half numbers from -4 to 7, so that limits and ties occur often.
FUNCTIONS = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "hardtanh": lambda x: functional.hardtanh(x, -2.0, 3.0),
    "clamp": lambda x: x.clamp(-2, 3),
    "clamp below": lambda x: x.clamp(min=0),
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.1),
    "elu": functional.elu,
    "selu": functional.selu,
    "celu": lambda x: functional.celu(x, 1.5),
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "hardshrink": lambda x: functional.hardshrink(x, 1.0),
    "softshrink": lambda x: functional.softshrink(x, 1.0),
    "softsign": functional.softsign,
    "threshold": lambda x: functional.threshold(x, 1.0, 0.5),
    "abs": torch.abs,
    "sign": torch.sign,
    "round": torch.round,
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "minimum": lambda x: torch.minimum(x, x.flip(0)),
    "maximum of a number": lambda x: torch.maximum(x, torch.ones(())),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin((1, 2), keepdim=True),
    "max of all": lambda x: x.max(),
    "max of a dim": lambda x: x.max(-1).values,
    "min of a dim": lambda x: x.min(2).values,
    "norm": lambda x: x.norm(dim=-1),
    "norm 1": lambda x: x.norm(p=1, dim=-1),
    "norm of zeros": lambda x: (x * 0).norm(dim=-1),
    "prod": lambda x: x.prod(-1),
    "where": lambda x: torch.where(x > 1, x * 2, x * 3),
    "pow": lambda x: x**2 + x**3,
    "cumsum": lambda x: x.cumsum(-1),
    "max_pool": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max_pool overlaps": lambda x: functional.max_pool2d(x, 2, 1),
    "max_pool dilation": lambda x: functional.max_pool2d(x, 2, 2, 0, 2),
    "max_pool ceil": lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "avg_pool": lambda x: functional.avg_pool2d(x, 3, 2, 1),
    "avg_pool inside": lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "adaptive_avg_pool": lambda x: functional.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive_max_pool": lambda x: functional.adaptive_max_pool2d(x, (2, 2)),
    "interpolate": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "nearest": lambda x: functional.interpolate(x, scale_factor=2),
}


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.function(x) * self.scale


def make_input(special=False):
    x = torch.randint(-8, 15, (3, 4, 7, 6), generator=torch.Generator().manual_seed(1)) / 2
    if special:
        x[0, 0, 2, 2] = x[1, 2, 3, 4] = x[1, 2, 3, 5] = float("nan")
    return x.requires_grad_()


def gradient(module, x):
    x = x.detach().clone().requires_grad_()
    y = module(x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    (y * weights).sum().backward()
    return x.grad


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kinks(name):
    net, x = Net(FUNCTIONS[name]), make_input()
    fast = sol.optimize(net, sol.input([0, 4, 7, 6], requires_grad=True))
    expected, found = gradient(net, x), gradient(fast, x)
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert not sol.fallbacks(fast)


@pytest.mark.parametrize("name", ["relu", "relu6", "clamp", "leaky_relu", "max_pool"])
def test_nan(name):
    net, x = Net(FUNCTIONS[name]), make_input(special=True)
    fast = sol.optimize(net, sol.input([0, 4, 7, 6], requires_grad=True))
    expected, found = gradient(net, x), gradient(fast, x)
    assert torch.equal(found.nan_to_num(99), expected.nan_to_num(99))


class Words(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(20, 8, **options)

    def forward(self, words):
        return self.table(words).tanh()


def step(module, net, words):
    net.zero_grad()
    y = module(words)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(2)))
    return net.table.weight.grad


@pytest.mark.parametrize("options", [{}, {"padding_idx": 0}, {"padding_idx": -3}])
def test_embedding(options):
    words = torch.randint(0, 20, (5, 7), generator=torch.Generator().manual_seed(1))
    net = Words(**options)
    fast = sol.optimize(net, words)
    expected = step(net, net, words).clone()
    assert torch.allclose(step(fast, net, words), expected, atol=1e-6)
    assert not sol.fallbacks(fast)


@pytest.mark.parametrize("option", ["sparse", "scale_grad_by_freq"])
def test_embedding_with_other_gradients_trains_in_pytorch(option):
    words = torch.tensor([[1, 2, 2]])
    net = Words(**{option: True})
    fast = sol.optimize(net, words)
    expected = step(net, net, words).to_dense().clone()
    assert torch.allclose(step(fast, net, words).to_dense(), expected)
    assert any("sparse or scaled" in reason for reason in sol.fallbacks(fast))

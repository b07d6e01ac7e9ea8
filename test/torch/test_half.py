"""Modules in float16, bfloat16 and float64, and of mixed types: errors within the type's accuracy, and calls in other types."""

import copy

import pytest
import torch
from conftest import Net, assert_as_eager
from torch import nn

import sol.pytorch as sol

# The largest error, as a part of the largest value: some units in the last place.
ERRORS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float64: 1e-14}


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 20)

    def forward(self, ids):
        return self.head(self.norm(self.layer(self.embed(ids)))).softmax(-1)


class Volume(nn.Module):
    """Convolutions of several kinds, pooling and activations."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.silu(self.depthwise(x)) + x
        x = nn.functional.max_pool2d(nn.functional.gelu(self.up(x)), 2)
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


NETS = {
    "cnn": (Net, lambda: torch.randn(2, 3, 9, 7)),
    "volume": (Volume, lambda: torch.randn(2, 3, 16, 16)),
    "words": (Words, lambda: torch.randint(20, (2, 6))),
}


def make(kind, dtype):
    """Returns (module, input) in a type, both rounded to it."""
    torch.manual_seed(0)
    make_module, make_input = NETS[kind]
    x = make_input()
    return make_module().eval().to(dtype), x.to(dtype) if x.is_floating_point() else x


def declare(x):
    return sol.input([0, *x.shape[1:]], dtype=x.dtype)


def run_in_float64(module, x):
    return copy.deepcopy(module).double()(x.double() if x.is_floating_point() else x)


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("kind", NETS)
def test_accuracy(kind, dtype):
    module, x = make(kind, dtype)
    fast = sol.optimize(module, declare(x))
    with torch.no_grad():
        got, exact = fast(x), run_in_float64(module, x)
    assert got.dtype is dtype
    assert (got.double() - exact).abs().max() <= ERRORS[dtype] * exact.abs().max()
    assert not sol.fallbacks(fast) and not sol.host_nodes(fast)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8).bfloat16()
        self.b = nn.Linear(8, 8)
        self.c = nn.Linear(8, 8).half()
        self.d = nn.Linear(8, 4).double()

    def forward(self, x):
        y = self.b(self.a(x.bfloat16()).float())
        z = self.c(y.half())
        return self.d((y + z).double()), z


def test_mixed_types():
    module, x = Mixed().eval(), torch.randn(5, 8)
    fast = sol.optimize(module, sol.input([0, 8]))
    with torch.no_grad():
        for got, expected in zip(fast(x), module(x)):
            assert got.dtype is expected.dtype
            error = (got - expected).abs().max()
            assert error <= ERRORS[torch.bfloat16] * expected.abs().max()
    assert not sol.fallbacks(fast)


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
def test_calls_in_another_type(dtype):
    module, x = make("cnn", dtype)
    fast = sol.optimize(module, declare(x))
    assert_as_eager(fast, x.float())
    module.float()
    assert_as_eager(fast, x.float())


def test_a_module_that_changes_its_type():
    module, x = make("cnn", torch.float32)
    fast = sol.optimize(module, declare(x))
    for dtype in (torch.bfloat16, torch.float64):
        module.to(dtype)
        assert_as_eager(fast, x.to(dtype))
    module.float()
    with torch.no_grad():
        assert torch.allclose(fast(x), module(x), atol=1e-2)

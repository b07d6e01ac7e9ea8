"""torch.autocast: around a call, around sol.optimize, inside of a forward, and by torch.compile."""

import copy

import pytest
import torch
from test_half import ERRORS, NETS, declare, make
from torch import nn

import sol.pytorch as sol

HALVES = [torch.bfloat16, torch.float16]


def cast(dtype):
    return torch.autocast("cpu", dtype)


def assert_close(got, expected, dtype):
    assert got.dtype is expected.dtype
    error = (got.double() - expected.double()).abs().max()
    # Both results have rounding errors.
    assert error <= 2 * ERRORS[dtype] * expected.double().abs().max()


def assert_same(fast, module, x, dtype, times=3):
    """Compares several calls in SOL, of which the later ones may use the shortcut."""
    before = sum(sol.fallbacks(fast).values())
    for _ in range(times):
        assert_close(fast(x), module(x), dtype)
    assert sum(sol.fallbacks(fast).values()) == before, sol.fallbacks(fast)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", NETS)
def test_around_a_call(kind, dtype):
    module, x = make(kind, torch.float32)
    fast = sol.optimize(module, declare(x))
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(fast(x), module(x), atol=1e-5)
            with cast(dtype):
                assert_same(fast, module, x, dtype)
    assert not sol.fallbacks(fast) and not sol.host_nodes(fast)


@pytest.mark.parametrize("kind", NETS)
def test_around_optimize(kind):
    """A graph that was captured in an autocast is not used outside of it."""
    module, x = make(kind, torch.float32)
    with torch.no_grad(), cast(torch.bfloat16):
        fast = sol.optimize(module, declare(x))
        assert_same(fast, module, x, torch.bfloat16)
    with torch.no_grad():
        assert torch.allclose(fast(x), module(x), atol=1e-5)
        again = copy.deepcopy(fast)
        with cast(torch.bfloat16):
            assert_same(again, module, x, torch.bfloat16)
    assert not sol.fallbacks(fast)


def test_a_module_in_bfloat16():
    module, x = make("cnn", torch.bfloat16)
    fast = sol.optimize(module, declare(x))
    with torch.no_grad(), cast(torch.bfloat16):
        assert_same(fast, module, x, torch.bfloat16)


def test_the_types_alternate():
    module, x = make("cnn", torch.float32)
    fast = sol.optimize(module, declare(x))
    with torch.no_grad():
        for _ in range(3):
            for dtype in HALVES:
                with cast(dtype):
                    assert_same(fast, module, x, dtype, times=1)
                with torch.autocast("cpu", dtype, enabled=False):
                    assert fast(x).dtype is torch.float32


class Inside(nn.Module):
    """Parts in an autocast, with another one and a part without it inside."""

    def __init__(self, dtype):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(8, 8) for _ in range(4))
        self.dtype = dtype

    def forward(self, x):
        y = self.a(x)
        with torch.autocast("cpu", self.dtype):
            z = torch.relu(self.b(y))
            with torch.autocast("cpu", enabled=False):
                w = self.c(z.float())
            z = self.c(torch.stack([z, w.to(z.dtype)]))
        return self.d(y + w).softmax(-1), z


@pytest.mark.parametrize("outside", [None, *HALVES], ids=str)
@pytest.mark.parametrize("compiles", [False, True])
def test_inside_of_a_forward(compiles, outside):
    torch.manual_seed(0)
    module, x = Inside(torch.bfloat16).eval(), torch.randn(5, 8)
    fast = torch.compile(module, backend="sol") if compiles else sol.optimize(module, declare(x))
    with torch.no_grad(), torch.autocast("cpu", outside, enabled=outside is not None):
        for _ in range(3):
            for got, expected in zip(fast(x), module(x)):
                assert_close(got, expected, torch.bfloat16)
    assert not sol.fallbacks(fast)


class Unknown(nn.Module):
    """An operator that SOL does not have, on a product; inside of an autocast or not."""

    def __init__(self, inside):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.inside = inside

    def forward(self, x):
        if not self.inside:
            return torch.special.bessel_j1(self.a(x).float())
        with torch.autocast("cpu", torch.bfloat16):
            return torch.special.bessel_j1(self.a(x).float())


@pytest.mark.parametrize("inside", [False, True])
def test_host_nodes(inside):
    """PyTorch computes an operator in the autocast of the call, so SOL refuses those inside of another one."""
    torch.manual_seed(0)
    module, x = Unknown(inside).eval(), torch.randn(2, 4, 4)
    fast = sol.optimize(module, declare(x))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        assert_close(fast(x), module(x), torch.bfloat16)
    assert bool(sol.fallbacks(fast)) is inside
    assert bool(sol.host_nodes(fast)) is not inside


@pytest.mark.parametrize("kind", ["cnn", "volume"])
def test_compile(kind):
    module, x = make(kind, torch.float32)
    fast = torch.compile(module, backend="sol")
    with torch.no_grad():
        for _ in range(2):
            assert torch.allclose(fast(x), module(x), atol=1e-5)
            with cast(torch.bfloat16):
                assert_same(fast, module, x, torch.bfloat16)
    assert not sol.fallbacks(fast)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16)
        self.mask = nn.Buffer(torch.randn(6, 6))

    def forward(self, x):
        q, k = (f(x).unflatten(-1, (2, 8)).transpose(1, 2) for f in (self.q, self.k))
        return nn.functional.scaled_dot_product_attention(q, k, q, self.mask)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 8, batch_first=True), nn.GRU(8, 4)

    def forward(self, x):
        return self.gru(self.lstm(x)[0])[0]


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.rnn = nn.LSTMCell(6, 8), nn.GRUCell(8, 4), nn.RNNCell(4, 4)

    def forward(self, x):
        return self.rnn(self.gru(self.lstm(x)[0]))


class Sums(nn.Module):
    """Layers that autocast computes in float32, and sums of both types."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Conv1d(6, 6, 1)
        self.index = nn.Buffer(torch.tensor([2, 0]))

    def forward(self, x):
        y = self.a(x)
        z = torch.cat([y, x]).cumsum(1).prod(1) + nn.functional.mse_loss(y, x)
        return (
            self.b(y.mT)[:, self.index],
            z + torch.einsum("abc,abc->a", y, y).sum(),
            torch.bmm(y, x.mT),
        )


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(
    "kind, shape",
    [(Attention, (3, 6, 16)), (Recurrent, (3, 5, 6)), (Cells, (3, 6)), (Sums, (3, 6, 6))],
)
def test_other_layers(kind, shape, compiles):
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(shape)
    fast = (
        torch.compile(module, backend="sol") if compiles else sol.optimize(module, sol.input(shape))
    )
    without_onednn = torch.backends.mkldnn.flags(enabled=False)  # it has no such LSTM for AVX2
    with torch.no_grad(), cast(torch.bfloat16), without_onednn:
        got, expected = fast(x), module(x)
        for a, b in zip(got, expected) if kind is Sums else [(got, expected)]:
            assert_close(a, b, torch.bfloat16)


def test_weights_change():
    module, x = make("cnn", torch.float32)
    fast = sol.optimize(module, declare(x))
    with torch.no_grad():
        for _ in range(3):
            with cast(torch.bfloat16):  # PyTorch keeps cast weights until its end
                assert_same(fast, module, x, torch.bfloat16)
            for p in module.parameters():
                p.mul_(1.5)

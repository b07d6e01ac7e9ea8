"""Gradients of whole networks in training: equal bits with any number of threads, and at every run with the same seed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sol.pytorch as sol
from sol.pytorch.plan import follow_threads

THREADS = 1, 2, 7
SIZES = 5, 3  # of the batch


class Residual(nn.Module):
    """A residual network with batch norm, and dropout between its blocks."""

    def __init__(self, channels=24):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        self.convs = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, groups=g) for g in (1, channels)
        )
        self.head = nn.Linear(channels, 11)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 3, 2, 1)
        for conv, norm in zip(self.convs, self.norms[1:]):
            x = F.dropout(F.relu(x + norm(conv(x))), 0.2, self.training)
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """A block of a transformer, with dropout of attention's weights and of both sums."""

    def __init__(self, width=48, heads=4):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.heads = heads

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (
            t.view(n, length, self.heads, width // self.heads).transpose(1, 2)
            for t in self.qkv(self.first(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, None, 0.2 if self.training else 0.0)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(x.shape)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), 0.1, self.training)


class Recurrent(nn.Module):
    """Two recurrent layers in both directions, with dropout between them."""

    def __init__(self, kind):
        super().__init__()
        self.layers = getattr(nn, kind)(
            13, 24, 2, dropout=0.2, batch_first=True, bidirectional=True
        )
        self.head = nn.Linear(48, 5)

    def forward(self, x):
        return self.head(self.layers(x)[0][:, -1])


class Words(nn.Module):
    """An embedding, of which most words occur several times, and a tied output."""

    def __init__(self, words=50, width=32):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        y = F.dropout(self.norm(self.table(x)), 0.1, self.training).cumsum(1)
        return F.linear(y, self.table.weight)


NETS = {
    "residual": (Residual, lambda n: torch.randn(n, 3, 37, 29)),
    "transformer": (Transformer, lambda n: torch.randn(n, 37, 48)),
    "lstm": (lambda: Recurrent("LSTM"), lambda n: torch.randn(n, 9, 13)),
    "gru": (lambda: Recurrent("GRU"), lambda n: torch.randn(n, 9, 13)),
    "embedding": (Words, lambda n: torch.randint(50, (n, 40))),
    "wide sums": (
        lambda: nn.Sequential(nn.Linear(3000, 64), nn.BatchNorm1d(64), nn.Linear(64, 3)),
        lambda n: torch.randn(150 * n, 3000),
    ),
}


@pytest.fixture(autouse=True)
def settings():
    threads = torch.get_num_threads()
    before = {key: sol.config[key] for key in ("compiler::winograd", "compiler::never_slower")}
    sol.config["compiler::never_slower"] = False
    yield
    set_threads(threads)
    for key, value in before.items():
        sol.config[key] = value
    for kind, index in list(sol.seeds()):
        sol.set_seed(None, kind, index)


def set_threads(n):
    torch.set_num_threads(n)
    follow_threads()


def make_net(name, batch=SIZES[0]):
    torch.manual_seed(3)
    make, draw = NETS[name]
    return make().train(), draw(batch)


def optimize(net, x, **options):
    spec = sol.input(list(x.shape), dtype=x.dtype, requires_grad=x.is_floating_point())
    return sol.optimize(net, spec, **options)


def train(fast, x, seed=7, set_seed=torch.manual_seed):
    """Returns the result, the gradients of the input and of all parameters, and the buffers, after one call from the same state."""
    state = {key: value.clone() for key, value in fast.state_dict().items()}
    given = x.detach().clone().requires_grad_(x.is_floating_point())
    fast.zero_grad()
    set_seed(seed)
    y = fast(given)
    y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape))
    assert not any(sol.fallbacks(fast).values()), sol.fallbacks(fast)
    buffers = {key: value.clone() for key, value in fast.named_buffers()}
    fast.load_state_dict(state)
    found = {"y": y.detach(), **{k: p.grad.clone() for k, p in fast.named_parameters()}, **buffers}
    return found | ({"x": given.grad} if given.grad is not None else {})


def assert_equal_bits(found, expected, what):
    differ = [key for key in expected if not torch.equal(found[key], expected[key])]
    assert found.keys() == expected.keys() and not differ, f"{what}: {differ}"


@pytest.mark.parametrize("winograd", [False, True], ids=["deterministic", "default"])
@pytest.mark.parametrize("name", NETS)
def test_same_bits_for_any_number_of_threads(name, winograd):
    net, x = make_net(name)
    sol.config["compiler::winograd"] = winograd
    set_threads(2)
    fast = optimize(net, x)
    expected = train(fast, x)
    assert all(value.isfinite().all() for value in expected.values())
    for n in THREADS:
        set_threads(n)
        for _ in range(3):
            assert_equal_bits(train(fast, x), expected, f"{n} threads")


@pytest.mark.parametrize("name", NETS)
def test_same_bits_of_another_compile(name, monkeypatch):
    """In deterministic mode the bits depend neither on the threads nor on the libraries and measurements of the compile."""
    net, x = make_net(name)
    sol.config["compiler::winograd"] = False
    expected = train(optimize(net, x), x)
    monkeypatch.setenv("SOL_DISABLE", "onednn,openblas,winograd4,winograd2")
    for n in THREADS:
        set_threads(n)
        net.load_state_dict(make_net(name)[0].state_dict())
        assert_equal_bits(train(optimize(net, x), x), expected, f"compiled for {n} threads")


@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_same_bits_of_a_seed_of_sol(name):
    net, x = make_net(name)
    sol.config["compiler::winograd"] = False
    fast = optimize(net, x)
    expected = train(fast, x, 5, sol.set_seed)
    assert_equal_bits(train(fast, x, 5, sol.set_seed), expected, "the same seed")
    assert not torch.equal(train(fast, x, 6, sol.set_seed)["y"], expected["y"])

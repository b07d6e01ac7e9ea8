"""Random numbers in calls without gradients: modules in train mode inside of no_grad, and dropout that is on in eval mode."""

import pytest
import torch
from conftest import run_in_threads
from torch import nn
from torch.nn import functional as F

import sol.pytorch as sol
from sol.pytorch import plan

WIDTH, P = 64, 0.25


def same():
    """A linear layer that changes nothing."""
    linear = nn.Linear(WIDTH, WIDTH)
    nn.init.eye_(linear.weight), nn.init.zeros_(linear.bias)
    return linear


class Net(nn.Module):
    """Dropout of normalized values, by the flag ``training``."""

    def __init__(self):
        super().__init__()
        self.one, self.norm, self.drop = same(), nn.BatchNorm1d(WIDTH), nn.Dropout(P)

    def forward(self, x):
        return self.drop(self.norm(self.one(x)))


class Always(nn.Module):
    """Dropout that is on in eval mode, too."""

    def __init__(self):
        super().__init__()
        self.one = same()

    def forward(self, x):
        return F.dropout(self.one(x), P, training=True)


class Broken(nn.Module):
    """Two graphs, of which each draws."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(P)

    def forward(self, x):
        y = self.drop(self.one(x))
        if y.mean() > 10:
            y = y + 1
        return self.drop(self.two(y))


NETS = {"train": lambda: Net().train(), "eval": lambda: Always().eval()}


@pytest.fixture(autouse=True)
def no_seeds():
    yield
    sol.set_seed(None)


def optimize(module):
    return sol.optimize(module, sol.input([0, WIDTH]))


@pytest.fixture(params=NETS)
def fast(request):
    return optimize(NETS[request.param]())


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(500, WIDTH)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_masks(fast, x, context):
    """What is kept is scaled, what is dropped is 0."""
    original = vars(fast)["_original"]
    is_net = isinstance(original, Net)
    whole = F.batch_norm(x, None, None, training=True) if is_net else x
    with context():
        y = fast(x)
    kept = y != 0
    assert abs(kept.float().mean() - (1 - P)) < 0.01
    assert abs(kept.float().mean(0) - (1 - P)).max() < 0.1
    assert torch.allclose(y[kept], whole[kept] / (1 - P), atol=1e-5)
    assert not y.requires_grad and not sol.fallbacks(fast) and not sol.host_nodes(fast)


@torch.no_grad
def test_each_call_draws_one_seed(fast, x):
    """The generator's state advances once a call: by the same as in each other one."""
    torch.manual_seed(1)
    first, second = fast(x), fast(x)
    after = torch.get_rng_state()
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(fast(x), first) and torch.equal(fast(x), second)
    assert torch.equal(torch.get_rng_state(), after)
    with torch.random.fork_rng():
        inside = fast(x)
    assert torch.equal(fast(x), inside)
    assert not sol.fallbacks(fast)


@torch.no_grad
def test_seeds_of_sol(fast, x):
    before = torch.get_rng_state()
    sol.set_seed(3)
    first, second = fast(x), fast(x)
    sol.set_seed(3)
    assert torch.equal(fast(x), first) and not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@torch.no_grad
def test_numbers_of_threads(fast, x):
    threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 2, 7):
            torch.set_num_threads(n)
            torch.manual_seed(7)
            found.append(fast(x) != 0)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_calls_on_threads(x):
    """Each call has a seed of its own: together they have those that calls one after the other would have."""
    fast, found = optimize(Always().eval()), []

    def call():
        with torch.no_grad():
            found.extend(fast(x) for _ in range(5))

    call()
    found.clear()
    torch.manual_seed(5)
    run_in_threads(call)
    torch.manual_seed(5)
    with torch.no_grad():
        expected = [fast(x) for _ in found]
    key = lambda y: (y != 0).flatten()[:62].tolist()  # noqa: E731
    assert sorted(map(key, found)) == sorted(map(key, expected))
    assert len({str(key(y)) for y in found}) == 20


def test_no_call_is_timed(fast, x, monkeypatch):
    """PyTorch's forward never runs beside SOL's, nor a shortcut: each call draws a seed, and changes buffers once."""
    engine, counts, draw = vars(fast)["_engine"], [], plan.draw
    monkeypatch.setattr(plan, "draw", lambda: counts.append(1) or draw())
    monkeypatch.setattr(engine, "_run_eager", lambda *args: pytest.fail("PyTorch runs"))
    sol.config["compiler::never_slower"] = True
    try:
        with torch.no_grad():
            for _ in range(30):
                fast(x)
    finally:
        sol.config["compiler::never_slower"] = False
    assert len(counts) == 30 and all(n == 30 for n in fast.buffers() if n.dtype is torch.int64)
    assert engine.shortcut is None and not sol.fallbacks(fast)


@torch.no_grad
def test_buffers(x):
    net = Net().train()
    fast, eager = optimize(net), Net().train()
    for i in range(3):
        fast(x + i), eager(x + i)
    for a, b in zip(fast.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert not sol.fallbacks(fast)


@torch.no_grad
def test_modes_alternate(x):
    net = Net().train()
    fast = optimize(net)
    for _ in range(2):
        assert not torch.equal(fast.train()(x), fast(x))
        assert torch.allclose(fast.eval()(x), net(x), atol=1e-5)
    with torch.enable_grad():
        y = fast.train()(x)
    assert y.requires_grad and abs((y == 0).float().mean() - P) < 0.01
    assert not sol.fallbacks(fast)


def test_a_call_without_gradients_has_the_masks_of_training(x):
    fast = optimize(Always().train())
    torch.manual_seed(1)
    expected = fast(x)
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(fast(x), expected)


@pytest.mark.parametrize("kind", [*NETS, "broken"])
@torch.no_grad
def test_compile(kind, x):
    fast = torch.compile(NETS.get(kind, lambda: Broken().train())(), backend="sol")
    torch.manual_seed(1)
    first, second = fast(x), fast(x)
    torch.manual_seed(1)
    assert torch.equal(fast(x) == 0, first == 0) and not torch.equal(first, second)
    assert not sol.fallbacks(fast)


@torch.no_grad
def test_several_graphs(x):
    fast = optimize(Broken().train())
    torch.manual_seed(1)
    first, second = fast(x), fast(x)
    torch.manual_seed(1)
    assert torch.equal(fast(x), first) and not torch.equal(first, second)
    assert len(sol.graphs(fast)) == 2 and not sol.fallbacks(fast)
    fast.eval()
    assert torch.allclose(fast(x), vars(fast)["_original"](x), atol=1e-5)


def test_compiled_checkpoint(x):
    """torch.compile runs calls with gradients in PyTorch, so the call before it must not run in SOL."""
    from torch.utils.checkpoint import checkpoint

    fast = torch.compile(Always().train(), backend="sol")
    with torch.no_grad():
        fast(x)
    given = torch.ones_like(x).requires_grad_()
    y = checkpoint(fast, given, use_reentrant=True)
    y.sum().backward()
    assert torch.equal(given.grad, y.detach())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=P, batch_first=True)
        self.lstm = nn.LSTM(WIDTH, 8, 2, dropout=P, batch_first=True)

    def forward(self, x):
        return self.lstm(self.layer(x))[0]


@torch.no_grad
def test_attention_and_recurrent_layers():
    fast = sol.optimize(Encoder().train(), sol.input([0, 5, WIDTH]))
    x = torch.randn(3, 5, WIDTH)
    torch.manual_seed(1)
    first, second = fast(x), fast(x)
    torch.manual_seed(1)
    assert torch.equal(fast(x), first) and not torch.equal(first, second)
    assert not sol.fallbacks(fast) and not sol.host_nodes(fast)


class Attend(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, dropout_p=P)


class Deep(nn.Module):
    """A network whose submodule draws."""

    def __init__(self, kind):
        super().__init__()
        self.part = kind()

    def forward(self, x):
        return self.part(x)


@pytest.mark.parametrize("kind, shape", [(Always, [0, WIDTH]), (Attend, [2, 4, 8, WIDTH])])
def test_libraries_have_no_seed(kind, shape, tmp_path):
    with pytest.raises(
        NotImplementedError, match=r": part \(test_random.py:\d+\) draws random numbers.* library"
    ):
        sol.deploy(Deep(kind).eval(), [sol.input(shape)], path=tmp_path)
    assert not list(tmp_path.iterdir())


class InPlace(nn.Module):
    """A dropout in place, in a graph whose functional form is needed."""

    def __init__(self, function):
        super().__init__()
        self.norm, self.function = nn.BatchNorm1d(WIDTH), function

    def forward(self, x):
        return self.function(self.norm(x) * 0 + 2, P, True, True)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "function", [F.dropout, F.dropout1d, F.alpha_dropout, F.feature_alpha_dropout]
)
def test_in_place(function, gradients):
    """Values, and how often each one occurs, are PyTorch's."""
    fast = sol.optimize(InPlace(function).train(), sol.input([0, WIDTH, 3]))
    x = torch.randn(200, WIDTH, 3)
    with torch.set_grad_enabled(gradients):
        y, theirs = fast(x), vars(fast)["_original"](x)
    assert not sol.fallbacks(fast) and y.requires_grad is gradients
    assert torch.allclose(y.unique(), theirs.unique(), atol=1e-6)
    assert abs((y == y.max()).float().mean() - (1 - P)) < 0.02
    if function in (F.dropout1d, F.feature_alpha_dropout):
        assert torch.equal(y, y[..., :1].expand_as(y))

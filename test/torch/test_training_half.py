"""Training under torch.autocast, and of modules in bfloat16 and float16: errors against float64 are about those of PyTorch."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import sol.pytorch as sol

HALVES = [torch.bfloat16, torch.float16]
# Errors up to some units in the last place are allowed at any rate.
FLOOR = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3, torch.float32: 1e-5}
TIMES = 3  # the largest error is at most this many times PyTorch's
WIDTH = 8


def cast(dtype):
    return torch.autocast("cpu", dtype, enabled=dtype is not None)


class Cnn(nn.Module):
    """Batch norms by the batch's statistics, by fixed ones, without parameters, and without running statistics."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1)
        self.norm, self.plain = nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)
        self.untracked = nn.BatchNorm2d(8, track_running_stats=False)
        self.fixed = nn.BatchNorm2d(8).eval()
        self.fixed.running_mean.uniform_(-1, 1), self.fixed.running_var.uniform_(0.5, 2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        y = F.silu(self.norm(self.a(x)))
        y = F.silu(self.untracked(self.plain(self.b(y))))
        return self.head(F.gelu(self.fixed(self.c(y))).mean((2, 3)))


class Words(nn.Module):
    """A transformer layer whose loss is a part of the module."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
        self.head = nn.Linear(16, 20)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, ids):
        y = self.head(self.norm(self.layer(self.embed(ids))))
        return y, F.cross_entropy(y.flatten(0, 1), ids.flatten(), label_smoothing=0.1)


class Regions(nn.Module):
    """An autocast inside, another one inside of that, and a batch norm, whose update makes the functional form necessary."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.dtype = nn.BatchNorm1d(WIDTH), dtype

    def forward(self, x):
        y = self.a(x)
        with cast(None if x.dtype is torch.float64 else self.dtype):
            z = torch.tanh(self.b(y))
            with torch.autocast("cpu", enabled=False):
                w = self.c(z.to(x.dtype))
            z = self.norm(self.c(z))
        return self.d(y.to(x.dtype) + w + z.to(x.dtype))


class Exact(nn.Module):
    """Nothing but a part without autocast."""

    def __init__(self):
        super().__init__()
        self.a, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.norm(self.a(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def mlp():
    return nn.Sequential(
        nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3)
    )


NETS = {
    "mlp": (mlp, lambda: torch.randn(6, WIDTH)),
    "cnn": (Cnn, lambda: torch.randn(4, 3, 9, 7)),
    "words": (Words, lambda: torch.randint(20, (3, 7))),
    "regions": (Regions, lambda: torch.randn(9, WIDTH)),
}


def make(kind, dtype=torch.float32):
    """Returns (module, input), both rounded to a type."""
    torch.manual_seed(1)
    make_module, make_input = NETS.get(kind, (kind, lambda: torch.randn(9, WIDTH)))
    x = make_input()
    return make_module().to(dtype), x.to(dtype) if x.is_floating_point() else x


def optimize(module, x):
    return sol.optimize(copy.deepcopy(module), sol.input([0, *x.shape[1:]], dtype=x.dtype))


def step(module, x, dtype=None, run=lambda module, x: module(x), inside=False):
    """A call in autocast to ``dtype`` and its backward call, inside of it or not. Returns (results, gradients, buffers)."""
    x = x.detach().clone()
    wanted = list(module.parameters())
    if x.is_floating_point():
        wanted.append(x.requires_grad_())
    with cast(dtype):
        results = run(module, x)
        results = results if isinstance(results, tuple) else (results,)
        weights = [
            torch.linspace(-1, 2, y.numel()).reshape(y.shape) if y.dim() else 1.0 for y in results
        ]
        if inside:
            sum((y * w).sum() for y, w in zip(results, weights)).backward()
    if not inside:
        sum((y * w).sum() for y, w in zip(results, weights)).backward()
    gradients = [t.grad for t in wanted]
    module.zero_grad()
    buffers = [b.clone() for b in module.buffers() if b.is_floating_point()]
    return [y.detach() for y in results], gradients, buffers


def error(got, exact):
    """The largest error, as a part of the largest value of a tensor; small tensors get a floor."""
    largest = max([x.abs().max().item() for x in exact if x is not None] + [1e-9])
    pairs = [(x.double(), y) for x, y in zip(got, exact, strict=True) if y is not None]
    return max(
        [((x - y).abs().max() / max(y.abs().max(), largest / 10)).item() for x, y in pairs] + [0]
    )


def in_float64(module, x):
    return copy.deepcopy(module).double(), x.double() if x.is_floating_point() else x


def assert_step(fast, module, x, dtype, error_type=None, **options):
    """Compares a step in SOL with PyTorch's: types, and errors against float64."""
    exact = step(*in_float64(module, x))
    got, theirs = step(fast, x, dtype, **options), step(module, x, dtype, **options)
    for a, b, c in zip(got, theirs, exact):
        assert [getattr(t, "dtype", None) for t in a] == [getattr(t, "dtype", None) for t in b]
        assert error(a, c) <= max(TIMES * error(b, c), FLOOR[error_type or dtype])
    assert not sol.fallbacks(fast), sol.fallbacks(fast)


# ---- Autocast ----


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", NETS)
def test_gradients(kind, dtype):
    """Parameters and their gradients stay float32; so do running statistics. Each type has a graph, which the others do not use."""
    module, x = make(kind)
    fast = optimize(module, x)
    for i in range(2):
        assert_step(fast, module, x, dtype, inside=i > 0)
    assert all(b.dtype is torch.float32 for b in module.buffers() if b.is_floating_point())
    if kind != "regions":
        fast.load_state_dict(module.state_dict())
        assert_step(fast, module, x, None, torch.float32)


def test_a_part_without_autocast():
    """It is computed in float32, also in a functional form, and PyTorch's own state is as before."""
    module, x = make(Exact)
    fast = optimize(module, x)
    assert_step(fast, module, x, torch.bfloat16, torch.float32)
    assert not torch.is_autocast_enabled("cpu")
    with cast(torch.bfloat16):
        fast(x)
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")


def test_autocast_inside_only():
    module, x = make("regions")
    assert_step(optimize(module, x), module, x, None, torch.bfloat16)


def context(kind):
    if kind == "no_grad":
        return torch.no_grad()
    if kind is None:
        return contextlib.nullcontext()
    return torch.autocast("cpu", torch.bfloat16, enabled=kind == "bf16")


class Stopped(nn.Module):
    """A part without gradients, in up to three contexts."""

    def __init__(self, contexts):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.contexts = (*contexts.split(), None, None)

    def forward(self, x):
        y = self.a(x)
        one, two, three, *_ = self.contexts
        with context(one), context(two), context(three):
            z = self.b(torch.tanh(y).float())
        return self.c(y) * z


@pytest.mark.parametrize("outside", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "contexts, runs",
    [
        ("no_grad", True),
        ("no_grad bf16", True),
        ("no_grad f32 bf16", True),
        ("bf16 no_grad", False),
        ("f32 no_grad", False),
        ("bf16 f32 no_grad", False),
        ("bf16 no_grad f32", False),
    ],
)
def test_no_grad(contexts, runs, outside):
    """torch.export forgets a no_grad inside of an autocast, so PyTorch runs it."""
    module, x = make(lambda: Stopped(contexts))
    fast = optimize(module, x)
    got, expected = step(fast, x, outside), step(module, x, outside)
    assert [g is None for g in got[1]] == [g is None for g in expected[1]]
    present = [[g for g in gradients if g is not None] for gradients in (got[1], expected[1])]
    assert error(present[0], [g.double() for g in present[1]]) <= FLOOR[torch.bfloat16]
    reason = {} if runs else {"its forward turns gradients off inside of torch.autocast": 1}
    assert sol.fallbacks(fast) == reason


def test_adjacent_regions():
    """Layers whose forwards are in an autocast each are no single region that is in parts."""

    class Decorated(nn.Linear):
        @torch.autocast("cpu", torch.bfloat16)
        def forward(self, x):
            return super().forward(x)

    net = nn.Sequential(*[Decorated(WIDTH, WIDTH) for _ in range(3)])
    fast = sol.optimize(net, sol.input([0, WIDTH]))
    fast(torch.randn(3, WIDTH)).sum().backward()
    assert not sol.fallbacks(fast)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    module, x = make("mlp")
    fast = optimize(module, x)
    run = lambda f, x: checkpoint(f, x, use_reentrant=reentrant)  # noqa: E731
    assert_step(fast, module, x, torch.bfloat16, run=run)


def test_dropout():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            return F.dropout(self.linear(x), 0.25)

    fast = sol.optimize(Dropped().train(), sol.input([0, 64]))
    x = torch.randn(500, 64)
    with cast(torch.bfloat16):
        y = fast(x)
        whole = fast.linear(x)
    kept = y != 0
    assert y.dtype is torch.bfloat16 and abs(kept.float().mean() - 0.75) < 0.01
    assert torch.allclose(y[kept].float(), whole[kept].float() / 0.75, rtol=2e-2, atol=1e-2)
    y.sum().backward()
    assert torch.allclose(fast.linear.bias.grad, kept.sum(0) / 0.75, rtol=2e-2)
    assert not sol.fallbacks(fast)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@torch.no_grad
def test_without_gradients(dtype):
    """A batch norm in train mode inside of no_grad."""
    module, x = make("cnn")
    fast, exact = optimize(module, x), in_float64(module, x)[0]
    for _ in range(3):
        with cast(dtype):
            y, theirs = fast(x), module(x)
        whole = exact(x.double())
    assert y.dtype is theirs.dtype
    assert error([y], [whole]) <= max(TIMES * error([theirs], [whole]), FLOOR[dtype])
    pairs = list(zip(fast.buffers(), module.buffers(), exact.buffers()))
    assert all(a.dtype is b.dtype for a, b, _ in pairs)
    assert error([a for a, _, _ in pairs], [c.double() for _, _, c in pairs]) <= FLOOR[dtype]
    assert not sol.fallbacks(fast)


def test_optimizer():
    """Some steps of an optimizer end where PyTorch's do."""
    module, x = make("cnn")
    fast, target = optimize(module, x), torch.arange(4)
    losses = []
    for net in (fast, module):
        optimizer = torch.optim.Adam(net.parameters(), 0.05)
        for _ in range(10):
            optimizer.zero_grad()
            with cast(torch.bfloat16):
                loss = F.cross_entropy(net(x), target)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 0.7 and abs(losses[0] - losses[1]) < 0.1
    assert not sol.fallbacks(fast)


LOSSES = {
    "cross_entropy": F.cross_entropy,
    "probabilities": lambda y, t: F.cross_entropy(y, F.one_hot(t, WIDTH).to(y.dtype)),
    "weighted": lambda y, t: F.cross_entropy(y, t, torch.linspace(0.5, 2, WIDTH).to(y.dtype)),
    "nll": lambda y, t: F.nll_loss(y.log_softmax(1), t, reduction="sum"),
    "multi_margin": lambda y, t: F.multi_margin_loss(y, t),
    "mse": lambda y, t: F.mse_loss(y, torch.ones_like(y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    """Autocast computes them in float32."""

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.target = nn.Linear(WIDTH, WIDTH), nn.Buffer(torch.arange(9) % WIDTH)

        def forward(self, x):
            return LOSSES[name](self.linear(x), self.target)

    module, x = make(Loss)
    fast = sol.optimize(copy.deepcopy(module), sol.input(x.shape))
    assert_step(fast, module, x, torch.bfloat16)
    with cast(torch.bfloat16):
        assert fast(x).dtype is torch.float32


def test_recurrent_layers():
    """PyTorch trains them, and the reason says so. Its oneDNN has no LSTM in bfloat16 for AVX2."""
    torch.manual_seed(0)
    module, x = Recurrent(), torch.randn(3, 5, WIDTH)
    fast = optimize(module, x)
    with torch.backends.mkldnn.flags(enabled=False):
        got, expected = (step(f, x, torch.bfloat16) for f in (fast, module))
    assert all(torch.equal(a, b) for a, b in zip(got[1], expected[1]))
    assert sol.fallbacks(fast) == {"lstm under torch.autocast": 1}
    step(fast, x)
    assert sol.fallbacks(fast) == {"lstm under torch.autocast": 1}


# ---- Modules in bfloat16 and float16 ----


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", ["mlp", "cnn", "words"])
def test_modules(kind, dtype):
    """Parameters, gradients, and running statistics have the module's type."""
    module, x = make(kind, dtype)
    fast = optimize(module, x)
    for _ in range(2):
        assert_step(fast, module, x, None, dtype)
    assert all(p.dtype is dtype for p in fast.parameters())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_recurrent_modules(dtype):
    torch.manual_seed(0)
    module, x = Recurrent().to(dtype), torch.randn(3, 5, WIDTH).to(dtype)
    assert_step(optimize(module, x), module, x, None, dtype)

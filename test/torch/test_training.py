"""Training: forward and backward run in SOL. Gradients, buffers and errors are compared with eager."""

import copy
import gc
import re

import pytest
import torch
from conftest import Function, Net, run_in_threads
from torch import nn
from torch.utils.checkpoint import checkpoint

import sol.pytorch as sol
from sol.pytorch.module import engine_of


class Block(nn.Module):
    """A residual block with batch norms."""

    def __init__(self, c):
        super().__init__()
        self.one, self.two = (nn.Conv2d(c, c, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(c), nn.BatchNorm2d(c)

    def forward(self, x):
        y = nn.functional.silu(self.norm1(self.one(x)))
        return nn.functional.silu(self.norm2(self.two(y)) + x)


class Tied(nn.Module):
    """Two linear layers with one weight, and one that nothing reads."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def mlp():
    return nn.Sequential(
        nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.LazyLinear(4),
    )  # fmt: skip


def volume():
    return nn.Sequential(
        nn.Conv3d(2, 4, (3, 2, 3), (2, 1, 1), (1, 0, 1), (1, 2, 1)), nn.ReLU(),
        nn.Conv3d(4, 6, 2, padding=1, groups=2, bias=False), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


def residual():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), Block(8), nn.MaxPool2d(2), Block(8), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


NETS = {
    "mlp": (mlp, [6]),
    "cnn": (cnn, [3, 9, 11]),
    "residual": (residual, [3, 10, 7]),
    "volume": (volume, [2, 5, 6, 7]),
}


def optimized_for(model, sizes):
    return sol.optimize(model, sol.input([0, *sizes]))


def make_pair(name, make_fast=optimized_for):
    """Returns (eager model in training mode, copy of it that ``make_fast`` has made fast, sizes of a sample)."""
    torch.manual_seed(1)
    kind, sizes = NETS[name]
    eager = kind()
    eager(torch.randn(2, *sizes))  # creates lazy layers
    return eager, make_fast(copy.deepcopy(eager), sizes), sizes


@pytest.fixture
def pair():
    return make_pair("mlp")[:2]


def assert_close(got, expected, tolerance=1e-4):
    """The largest error, relative to the largest value. A gradient that is 0 but for rounding errors gets a floor."""
    got, expected = list(got), list(expected)
    largest = max([b.abs().max().item() for b in expected if b is not None and b.numel()] + [1e-3])
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None and b.numel():
            assert a.shape == b.shape and a.dtype is b.dtype
            scale = max(b.abs().max().item(), 0.1 * largest)
            assert (a - b).abs().max().item() <= tolerance * scale


def gradients(model):
    return [p.grad for p in model.parameters()]


def step(model, x, w=None):
    """One call with a loss that is no symmetric function of the result. Returns the result."""
    y = model(x)
    w = torch.linspace(-1, 2, y.numel()).reshape(y.shape) if w is None else w
    (y * w).sum().backward()
    return y.detach()


def assert_step(eager, optimized, x, tolerance=1e-4):
    """Compares a call and its backward call, gradients of the input included. SOL runs the optimized one."""
    before = sum(sol.fallbacks(optimized).values())
    mine = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad)
    assert_close([step(optimized, mine)], [step(eager, x)], tolerance)
    assert sum(sol.fallbacks(optimized).values()) == before, sol.fallbacks(optimized)
    assert_close(gradients(optimized), gradients(eager), tolerance)
    assert_close([mine.grad], [x.grad], tolerance)
    assert_buffers(eager, optimized)


def assert_buffers(eager, optimized):
    for a, b in zip(optimized.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# ---- Gradients ----


@pytest.mark.parametrize("batch", [2, 5, 1])
@pytest.mark.parametrize("name", NETS)
def test_gradients(name, batch):
    eager, optimized, sizes = make_pair(name)
    for i in range(3):
        eager.zero_grad(), optimized.zero_grad()
        assert_step(eager, optimized, torch.randn(batch + 3 * i, *sizes, requires_grad=i > 0))
    assert not sol.fallbacks(optimized)


def test_layouts():
    """Inputs and parameters that are not contiguous, and a gradient that is not."""
    eager, optimized, sizes = make_pair("cnn")
    x = torch.randn(2, *sizes).contiguous(memory_format=torch.channels_last).requires_grad_()
    assert_step(eager, optimized, x)
    assert_step(eager, optimized, torch.randn(2, 3, 11, 9).transpose(2, 3).requires_grad_())
    for model in eager, optimized:
        model.zero_grad()
        model.to(memory_format=torch.channels_last)
    assert_step(eager, optimized, torch.randn(2, *sizes))
    for model in eager, optimized:
        model.zero_grad()
    x = torch.randn(2, *sizes)
    for model in eager, optimized:
        model(x).t().sum(0).sum().backward()
    assert_close(gradients(optimized), gradients(eager))
    assert not sol.fallbacks(optimized)


def test_eval_mode():
    """Gradients in eval mode, as of a batch norm that is frozen."""
    eager, optimized, sizes = make_pair("residual")
    eager.eval(), optimized.eval()
    assert_step(eager, optimized, torch.randn(2, *sizes, requires_grad=True))
    eager.train(), optimized.train()
    for model in eager, vars(optimized)["_original"]:
        model[1].norm1.eval()
    eager.zero_grad(), optimized.zero_grad()
    assert_step(eager, optimized, torch.randn(2, *sizes))
    assert not sol.fallbacks(optimized)


def test_several_results():
    """Results with and without gradients; a gradient of one of them only."""

    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            y = self.a(x)
            return {"y": y, "index": y.argmax(1), "z": [self.b(torch.sigmoid(y)), x * 2]}

    eager = Several()
    optimized = sol.optimize(copy.deepcopy(eager), sol.input([0, 4]))
    x = torch.randn(3, 4)
    got, expected = optimized(x), eager(x)
    assert torch.equal(got["index"], expected["index"]) and not got["index"].requires_grad
    assert got["z"][0].requires_grad and not got["z"][1].requires_grad
    for result in got, expected:
        result["y"].square().sum().backward(retain_graph=True)
    assert_close(optimized.a.parameters(), eager.a.parameters())
    assert_close([p.grad for p in optimized.a.parameters()], [p.grad for p in eager.a.parameters()])
    for result in got, expected:
        (result["y"].sum() + result["z"][0].square().sum()).backward()
    assert_close(gradients(optimized), gradients(eager))
    assert not sol.fallbacks(optimized)


def test_unused_and_tied():
    eager = Tied()
    optimized = sol.optimize(copy.deepcopy(eager), sol.input([0, 4]))
    assert optimized.a.weight is optimized.b.weight
    assert_step(eager, optimized, torch.randn(3, 4))
    assert optimized.unused.weight.grad is None
    assert not sol.fallbacks(optimized)


def test_frozen(pair):
    """Parameters that want no gradient, also from the middle of a training on; only the input wants one."""
    eager, optimized = pair
    for i in range(4):
        eager.zero_grad(), optimized.zero_grad()
        for model in eager, optimized:
            for k, p in enumerate(model.parameters()):
                p.requires_grad_(k >= 2 * i)
        assert_step(eager, optimized, torch.randn(3, 6, requires_grad=True))
    x = torch.randn(3, 6)
    assert not optimized(x).requires_grad
    assert torch.allclose(optimized(x), eager(x), atol=1e-6)
    assert not sol.fallbacks(optimized)


# ---- The user's loop ----


def test_accumulation(pair):
    eager, optimized = pair
    for batch in 2, 3, 2:
        assert_step(eager, optimized, torch.randn(batch, 6))
    assert not sol.fallbacks(optimized)


def test_two_forwards(pair):
    eager, optimized = pair
    one, two = torch.randn(2, 6), torch.randn(4, 6)
    for model in eager, optimized:
        a, b = model(one), model(two)
        (a.sum() * 2 + b.square().sum()).backward()
    assert_close(gradients(optimized), gradients(eager))
    for model in eager, optimized:  # in the other order
        a, b = model(one).exp().sum(), model(two).square().sum()
        a.backward(), b.backward()
    assert_close(gradients(optimized), gradients(eager))


def test_second_backward(pair):
    _, optimized = pair
    y = optimized(torch.randn(2, 6)).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()
    y = optimized(torch.randn(2, 6)).sum()
    optimized.zero_grad()
    y.backward(retain_graph=True)
    first = [p.grad.clone() for p in optimized.parameters()]
    optimized.zero_grad()
    y.backward()
    assert all(map(torch.equal, first, gradients(optimized)))


def test_change_in_place(pair):
    """A parameter that changes between forward and backward, as by a step of an optimizer."""
    _, optimized = pair
    y = optimized(torch.randn(2, 6)).sum()
    with torch.no_grad():
        next(optimized.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_uncounted_change(pair):
    """Writes that PyTorch does not count are used by the next call."""
    eager, optimized = pair
    for _ in range(3):
        eager.zero_grad(), optimized.zero_grad()
        assert_step(eager, optimized, torch.randn(2, 6))
        for model in eager, optimized:
            for p in model.parameters():
                p.data.add_(p.grad.data, alpha=-0.1)
    for model in eager, optimized:
        for p in model.parameters():
            p.data = p.data * 2
    eager.zero_grad(), optimized.zero_grad()
    assert_step(eager, optimized, torch.randn(2, 6))
    eager.eval(), optimized.eval()
    with torch.no_grad():
        x = torch.randn(2, 6)
        assert_close([optimized(x)], [eager(x)])


def test_data_between(pair):
    """The memory of a parameter is replaced between forward and backward: the gradient is that of the forward's values."""
    eager, optimized = pair
    x = torch.randn(2, 6)
    loss = optimized(x).sum()
    for p in optimized.parameters():
        p.data = torch.zeros_like(p)
    gc.collect()
    loss.backward()
    eager(x).sum().backward()
    assert_close(gradients(optimized), gradients(eager))


def test_state_dict_between():
    eager, optimized, sizes = make_pair("cnn")
    x = torch.randn(2, *sizes)
    y = optimized(x).sum()
    state = {name: value.clone() for name, value in optimized.state_dict().items()}
    y.backward()
    eager(x).sum().backward()
    assert_close(gradients(optimized), gradients(eager))
    eager.load_state_dict(state)
    assert_buffers(eager, optimized)


def test_hooks_on_parameters(pair):
    eager, optimized = pair
    seen = []
    for model in eager, optimized:
        p = next(model.parameters())
        p.register_hook(lambda g: g * 2)
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    assert_step(eager, optimized, torch.randn(2, 6))
    assert len(seen) == 2
    assert not sol.fallbacks(optimized)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(pair, reentrant):
    eager, optimized = pair
    x = torch.randn(2, 6, requires_grad=True)
    for model in eager, optimized:
        y = checkpoint(model, x, use_reentrant=reentrant)
        y.square().sum().backward()
    assert_close(gradients(optimized), gradients(eager))
    assert not sol.fallbacks(optimized)


def test_saved_on_other_memory(pair):
    """Hooks of autograd may store what is saved elsewhere, and keep views of it."""
    eager, optimized = pair
    x, kept = torch.randn(2, 6), []

    def pack(t):
        kept.append(t.detach())
        return t.clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = optimized(x).square().sum()
    before = [t.clone() for t in kept]
    for _ in range(3):
        step(optimized, torch.randn(2, 6))
    assert all(map(torch.equal, kept, before))
    optimized.zero_grad()
    y.backward()
    eager(x).square().sum().backward()
    assert_close(gradients(optimized), gradients(eager))


def test_train_and_eval_in_turns():
    """After each epoch, eval mode computes what PyTorch computes: new weights, new statistics."""
    eager, optimized, sizes = make_pair("cnn")
    optimizers = [
        torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (eager, optimized)
    ]
    for _ in range(5):
        for model in eager, optimized:
            model.train()
        for _ in range(2):
            x = torch.randn(4, *sizes)
            for model, optimizer in zip((eager, optimized), optimizers):
                optimizer.zero_grad()
                step(model, x)
                optimizer.step()
        for model in eager, optimized:
            model.eval()
        with torch.no_grad():
            x = torch.randn(3, *sizes)
            assert_close([optimized(x)], [eager(x)], 2e-3)
            assert_close([optimized(x)], [vars(optimized)["_original"](x)], 1e-5)
        for a, b in zip(optimized.buffers(), eager.buffers()):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
    assert not sol.fallbacks(optimized)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizers(kind):
    """20 steps: the losses are those of eager."""
    eager, optimized, sizes = make_pair("residual")
    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    data = [(torch.randn(4, *sizes), torch.randint(4, (4,))) for _ in range(5)]
    losses = []
    for model in eager, optimized:
        optimizer = kind(model.parameters(), lr=0.01, **more)
        found = []
        for i in range(20):
            x, t = data[i % 5]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), t)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(torch.tensor(found))
    torch.testing.assert_close(losses[1], losses[0], rtol=5e-3, atol=1e-3)
    assert not sol.fallbacks(optimized)


def test_training_without_gradients():
    """Training mode inside of no_grad: statistics of the batch, and new running ones."""
    eager, optimized, sizes = make_pair("cnn")
    for batch in 3, 4:
        x = torch.randn(batch, *sizes)
        with torch.no_grad():
            assert_close([optimized(x)], [eager(x)])
        assert_buffers(eager, optimized)
    eager.eval(), optimized.eval()
    with torch.no_grad():
        x = torch.randn(2, *sizes)
        assert_close([optimized(x)], [eager(x)])
    assert not sol.fallbacks(optimized)


def test_statistics_of_large_values():
    eager = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))
    optimized = sol.optimize(copy.deepcopy(eager), sol.input([0, 4, 6, 5]))
    assert_step(eager, optimized, torch.randn(5, 4, 6, 5) + 100, 1e-3)
    assert not sol.fallbacks(optimized)


def test_mean_of_large_images():
    """The sum of many large numbers: one after the other, their rounding errors would grow to 3e-6."""
    conv, norm = nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16, momentum=1.0)
    nn.init.constant_(conv.weight, 0.25)
    x = torch.randn(2, 3, 150, 170) + 100
    exact = conv.double()(x.double()).detach()
    sol.optimize(nn.Sequential(conv.float(), norm), sol.input([0, 3, 150, 170]))(x)
    mean, variance = exact.mean((0, 2, 3)), exact.var((0, 2, 3))
    assert ((norm.running_mean - mean) / mean).abs().max() <= 6e-7
    assert ((norm.running_var - variance) / variance).abs().max() <= 1e-6


def test_memory_is_used_again(pair):
    """Losses that are kept do not keep what was saved."""
    _, optimized = pair
    losses, addresses = [], set()
    for _ in range(20):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: addresses.add(t.data_ptr()) or t if t.dtype is torch.uint8 else t, lambda t: t
        ):
            losses.append(optimized(torch.randn(8, 6)).sum())
        losses[-1].backward()
    assert len(addresses) <= 2


def test_memory_of_large_gradients():
    """It is used again, also by a profile, but not while a tensor has it."""
    eager = nn.Linear(600, 600)
    optimized = sol.optimize(copy.deepcopy(eager), sol.input([0, 600]))
    kept, addresses = None, set()
    for i in range(6):
        eager.zero_grad(), optimized.zero_grad()
        assert_step(eager, optimized, torch.randn(3 + i, 600))
        gradient = optimized.weight.grad
        addresses.add(gradient.data_ptr())
        kept = (gradient, gradient.clone()) if i == 2 else kept
        del gradient
    assert len(addresses) == 2 and torch.equal(*kept)
    optimized.zero_grad()
    plan, _, _, batch = engine_of(optimized).find_run((torch.randn(8, 600),), {})
    assert addresses & {y.data_ptr() for y in plan._make_outputs(plan.symbols(batch))}


def test_threads_of_torch(pair):
    eager, optimized = pair
    n = torch.get_num_threads()
    try:
        for k in 1, 2:
            torch.set_num_threads(k)
            eager.zero_grad(), optimized.zero_grad()
            assert_step(eager, optimized, torch.randn(3, 6))
    finally:
        torch.set_num_threads(n)


# ---- What PyTorch runs, and errors ----


def assert_trains_in_eager(model, x, reason):
    """PyTorch runs the call, with gradients, and the reason is counted."""
    optimized = sol.optimize(copy.deepcopy(model), sol.input([0, *x.shape[1:]]))
    torch.manual_seed(3)
    expected = step(model, x)
    torch.manual_seed(3)
    assert torch.equal(step(optimized, x), expected)
    assert any(reason in text for text in sol.fallbacks(optimized)), sol.fallbacks(optimized)
    assert all(map(torch.equal, gradients(optimized), gradients(model)))
    return optimized


def test_random_slopes():
    net = nn.Sequential(nn.Linear(6, 6), nn.RReLU())
    assert_trains_in_eager(net, torch.randn(4, 6), "rrelu in training mode")


def test_a_new_probability_is_seen():
    net = nn.Sequential(nn.Linear(6, 6), nn.AlphaDropout(0.5))
    optimized = sol.optimize(copy.deepcopy(net), sol.input([0, 6]))
    step(optimized, torch.randn(4, 6))
    vars(optimized)["_original"][1].p = 0.0
    net[1].p = 0.0
    optimized.zero_grad()
    assert_step(net, optimized, torch.randn(4, 6))


class Wrapped(nn.Module):
    """A linear layer with a function behind it."""

    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


class Square(torch.autograd.Function):
    """A function with a gradient of its own, which is not that of its operators."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return g * 7


def squared(x):
    return Square.apply(x)


def checkpointed(function, is_reentrant):
    return lambda x: checkpoint(function, x, use_reentrant=is_reentrant) * x


def hook(x):
    if torch.is_grad_enabled():
        x.register_hook(lambda g: g * 3)
    return x * 2


@pytest.mark.parametrize(
    "function, reason",
    [
        (Square.apply, "has a torch.autograd.Function"),
        (checkpointed(Square.apply, False), "has a torch.autograd.Function"),
        (checkpointed(torch.sin, True), "has a checkpoint that is reentrant"),
        (torch.compiler.allow_in_graph(Square.apply), ""),
        (torch.compiler.allow_in_graph(squared), "calls squared, which may have"),
        (hook, ""),
        (lambda x: x * torch.rand_like(x), ""),
    ],
)
def test_other_gradients(function, reason):
    assert_trains_in_eager(Wrapped(function), torch.randn(3, 6), reason)


def test_backward_hook(pair):
    eager, optimized = pair
    seen = []
    first = vars(optimized)["_original"][0]
    handle = first.register_full_backward_hook(lambda *args: seen.append(1))
    step(optimized, torch.randn(2, 6))
    assert seen and any("has a backward hook" in x for x in sol.fallbacks(optimized))
    handle.remove()
    eager.zero_grad(), optimized.zero_grad()
    assert_step(eager, optimized, torch.randn(2, 6))


def test_hook_on_the_result_itself(pair):
    eager, optimized = pair
    seen = []
    optimized.register_full_backward_hook(lambda *args: seen.append(1))
    assert_step(eager, optimized, torch.randn(2, 6))
    assert len(seen) == 1


def test_second_derivative(pair):
    _, optimized = pair
    x = torch.randn(2, 6, requires_grad=True)
    y = optimized(x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (y + g.square().sum()).backward()


def test_transforms(pair):
    eager, optimized = pair
    x = torch.randn(2, 6)
    for transform in torch.func.jacrev, torch.func.jacfwd:
        torch.testing.assert_close(transform(optimized)(x), transform(eager)(x))
    parameters = dict(eager.named_parameters())
    got = torch.func.grad(lambda p: torch.func.functional_call(optimized, p, (x,)).sum())(
        parameters
    )
    expected = torch.func.grad(lambda p: torch.func.functional_call(eager, p, (x,)).sum())(
        parameters
    )
    assert_close(got.values(), expected.values())


def test_functional_call(pair):
    """Parameters that are replaced for a call, by tensors that are computed."""
    eager, optimized = pair
    x, factors = torch.randn(2, 6), []
    for model in eager, optimized:
        w = torch.tensor(2.0, requires_grad=True)
        scaled = {name: p.detach() * w for name, p in model.named_parameters()}
        torch.func.functional_call(model, scaled, (x,)).square().sum().backward()
        factors.append(w.grad)
    assert_close(factors[1:], factors[:1])
    assert any("functional_call" in reason for reason in sol.fallbacks(optimized))
    assert_step(eager, optimized, x)


def test_words():
    """A transformer over words."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(50, 16), nn.Linear(16, 50)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

        def forward(self, x):
            return self.out(self.layer(self.table(x)))

    eager = Words()
    optimized = sol.optimize(copy.deepcopy(eager), sol.input([0, 7], dtype=torch.int64))
    x, t = torch.randint(50, (3, 7)), torch.randint(50, (21,))
    for model in eager, optimized:
        nn.functional.cross_entropy(model(x).flatten(0, 1), t).backward()
    assert_close(gradients(optimized), gradients(eager))
    assert not sol.fallbacks(optimized)


def test_threads(pair):
    """Calls on several threads at the same time."""
    eager, optimized = pair
    xs = [torch.randn(4, 6) for _ in range(4)]
    parameters = [list(model.parameters()) for model in (eager, optimized)]
    expected = [torch.autograd.grad(eager(x).square().sum(), parameters[0]) for x in xs]
    right = []

    def work():
        for _ in range(20):
            for x, e in zip(xs, expected):
                got = torch.autograd.grad(optimized(x).square().sum(), parameters[1])
                right.append(all(torch.allclose(a, b, atol=1e-4) for a, b in zip(got, e)))

    run_in_threads(work)
    assert len(right) == 4 * 20 * 4 and all(right) and not sol.fallbacks(optimized)


def test_weights_while_another_thread_packs(pair):
    """A call has the weights without the lock, so they are there while another call packs them again."""
    _, packed, _, _ = engine_of(pair[1]).find_run((torch.randn(4, 6),), {})
    weights, seen = packed.weights, []

    class Weights:
        def refresh(self, tensors):
            seen.append(packed.weights)
            return weights.refresh(tensors)

    packed.weights = Weights()
    packed.update()
    assert seen == [packed.weights]


def test_result_changed_in_place(pair):
    eager, optimized = pair
    x = torch.randn(2, 6)
    for model in eager, optimized:
        model(x).mul_(3).square().sum().backward()
    assert_close(gradients(optimized), gradients(eager))


def test_batched_gradients(pair):
    _, optimized = pair
    x = torch.randn(2, 6, requires_grad=True)
    y = optimized(x)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(y, x, torch.ones(4, *y.shape), is_grads_batched=True)


def test_one_value_per_channel():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimized = sol.optimize(copy.deepcopy(net), sol.input([0, 4]))
    assert_step(net, optimized, torch.randn(3, 4))
    for model in net, optimized:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            model(torch.randn(1, 4))
    assert_buffers(net, optimized)
    net.zero_grad(), optimized.zero_grad()
    assert_step(net, optimized, torch.randn(2, 4))


def test_cumulative_average():
    """momentum=None: the factor depends on the counter's value."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    optimized = sol.optimize(copy.deepcopy(net), sol.input([0, 4]))
    for _ in range(3):
        x = torch.randn(3, 4)
        assert_close([step(optimized, x)], [step(net, x)])
        assert_buffers(net, optimized)
    assert sum(sol.fallbacks(optimized).values()) == 3


def test_bad_index():
    """A call that fails changes no buffer, and raises PyTorch's exception."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(10, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.table(x))

    net = Words()
    optimized = sol.optimize(copy.deepcopy(net), sol.input([0], dtype=torch.int64))
    with pytest.raises(IndexError):
        optimized(torch.tensor([1, 2, 99]))
    assert_buffers(net, optimized)


def test_empty_batch(pair):
    eager, optimized = pair
    assert step(optimized, torch.randn(0, 6)).shape == (0, 3)
    step(eager, torch.randn(0, 6))
    assert_close(gradients(optimized), gradients(eager))


def test_parameter_as_buffer():
    """A buffer that wants a gradient is no parameter, so the optimizer does not know it."""
    net = nn.Sequential(nn.Linear(6, 6))
    net.register_buffer("scale", torch.ones(6, requires_grad=True))
    net.forward = lambda x: net[0](x) * net.scale
    optimized = sol.optimize(net, sol.input([0, 6]))
    step(optimized, torch.randn(2, 6))
    assert net.scale.grad is not None


def test_copy_trains():
    _, optimized, sizes = make_pair("cnn")
    step(optimized, torch.randn(2, *sizes))
    other = copy.deepcopy(optimized)
    eager = copy.deepcopy(vars(other)["_original"])
    eager.zero_grad(), other.zero_grad()
    assert_step(eager, other, torch.randn(2, *sizes))


def test_net_with_dropout_in_eval(net, x):
    """The Net of all tests, whose dropout is off."""
    assert isinstance(net, Net)
    optimized = sol.optimize(copy.deepcopy(net), sol.input([0, 3, 9, 7]))
    assert_step(net, optimized, x)
    optimized = sol.optimize(Function(torch.relu), sol.input([0, 4]))
    x = torch.tensor([[-1.0, 0.0, 2.0, torch.nan]], requires_grad=True)
    optimized(x).sum().backward()
    assert torch.equal(x.grad, torch.tensor([[0.0, 0.0, 1.0, 1.0]])) or x.grad[0, 3].isnan()


@pytest.mark.parametrize("shape", [(0, 64, 9, 9), (16, 64, 9, 9)])
def test_kernels_are_chosen_for_the_batch_of_the_first_call(shape):
    """Also where the batch is constant."""
    times = []
    for batch in (16, 1):
        fast = sol.optimize(nn.Conv2d(64, 64, 3), sol.input([shape[0] and batch, *shape[1:]]))
        fast(torch.randn(batch, *shape[1:])).sum().backward()
        report = engine_of(fast).find_plan().program.report()
        times.append(float(re.search(r"direct: estimated ([\d.]+)", report)[1]))
    assert times[0] > 4 * times[1]

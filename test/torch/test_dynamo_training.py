"""Training by torch.compile(backend="sol"): results, gradients, buffers and errors beside eager."""

import copy
import gc
import weakref

import pytest
import torch
from test_training import (
    NETS,
    Block,
    Tied,
    assert_buffers,
    assert_close,
    assert_step,
    gradients,
    make_pair,
    step,
)
from test_training_stops import REFUSED, RUNS, Net, run
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import sol.pytorch as sol
from sol.pytorch import dynamo_piece
from sol.pytorch.dynamo_report import find_report


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Dynamo knows no code, and a graph may be as small as that of a test."""
    torch._dynamo.reset()
    monkeypatch.setattr(dynamo_piece, "MIN_LAYERS", 0)


def compiled(model, **options):
    return torch.compile(model, backend="sol", **options)


def pair_of(name):
    """Returns (eager model in training mode, compiled copy of it, sizes of a sample)."""
    return make_pair(name, lambda model, _: compiled(model))


@pytest.fixture
def pair():
    return pair_of("mlp")[:2]


def entries_of(fast):
    return [entry for piece in find_report(fast).pieces for entry in piece._entries]


# ---- Gradients ----


@pytest.mark.parametrize("name", NETS)
def test_steps(name):
    """Steps of an optimizer, with other batch sizes, in train and in eval mode; without gradients between them."""
    eager, fast, sizes = pair_of(name)
    models = eager, fast
    optimizers = [torch.optim.SGD(m.parameters(), 0.01, momentum=0.9) for m in models]
    for batch in 2, 5, 3, 4:
        x = torch.randn(batch, *sizes, requires_grad=batch > 2)
        for optimizer in optimizers:
            optimizer.zero_grad()
        assert_step(eager, fast, x)
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            assert_close([m.eval()(x) for m in models[1:]], [eager.eval()(x)])
        for model in models:
            model.train(batch != 3)
    assert all(entry.plan for entry in entries_of(fast))


@pytest.mark.parametrize("name", RUNS)
def test_stops(name):
    """detach and no_grad. Where a graph cannot be run, PyTorch runs it with the reason, and is right."""
    torch.manual_seed(3)
    eager = Net(RUNS[name], norm=True)
    fast = compiled(copy.deepcopy(eager))
    for batch in 4, 3:
        x = torch.randn(batch, 6)
        (ys, found), (theirs, expected) = run(fast, x), run(eager, x)
        assert [y.requires_grad for y in ys] == [y.requires_grad for y in theirs]
        assert_close(ys, theirs)
        assert_close(found, expected)
        assert_buffers(eager, fast)
    assert not any(sol.fallbacks(fast).values())


@pytest.mark.parametrize("function", REFUSED)
def test_refused_stops(function):
    eager = Net(function)
    fast = compiled(copy.deepcopy(eager))
    x = torch.randn(4, 6)
    (ys, found), (theirs, expected) = run(fast, x), run(eager, x)
    assert_close(ys, theirs)
    assert_close(found, expected)


def test_frozen_and_tied():
    """Which parameters want gradients may change at any time."""
    torch.manual_seed(2)
    eager = Tied()
    fast = compiled(copy.deepcopy(eager))
    for frozen in (), ("a.bias",), ("a.weight", "b.bias"), ():
        for model in eager, fast:
            model.zero_grad()
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name.removeprefix("_orig_mod.") not in frozen)
        assert_step(eager, fast, torch.randn(3, 4))


def test_values_that_no_version_counts(pair):
    eager, fast = pair
    for i in range(3):
        for model in pair:
            model.zero_grad()
            with torch.no_grad():
                next(model.parameters()).data.add_(i)
        assert_step(eager, fast, torch.randn(4, 6))


def test_moved_parameters(pair):
    """New memory, and other objects, as load_state_dict(assign=True) gives."""
    eager, fast = pair
    assert_step(eager, fast, torch.randn(4, 6))
    for model in pair:
        model.zero_grad()
        for parameter in model.parameters():
            parameter.data = parameter.data * 2
    assert_step(eager, fast, torch.randn(4, 6))
    state = {name: x * -1 for name, x in eager.state_dict().items()}
    eager.load_state_dict(state, assign=True)
    fast.load_state_dict({f"_orig_mod.{n}": x.clone() for n, x in state.items()}, assign=True)
    assert_step(eager, fast, torch.randn(4, 6))


def test_graph_breaks():
    """Each graph has a backward call of its own."""

    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Block(4), Block(4)

        def forward(self, x):
            y = self.one(x)
            return self.two(y if y.mean() > 100 else -y)

    torch.manual_seed(4)
    eager = Broken()
    for fast in (
        compiled(copy.deepcopy(eager)),
        sol.optimize(copy.deepcopy(eager), sol.input([0, 4, 6, 6])),
    ):
        model = copy.deepcopy(eager)
        for _ in range(3):
            for m in model, fast:
                m.zero_grad()
            assert_step(model, fast, torch.randn(2, 4, 6, 6, requires_grad=True))
        assert len(sol.graphs(fast)) == 2


def test_sizes_and_views():
    """Results that are sizes, views of other results and of inputs."""

    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x):
            y = torch.tanh(self.a(x))
            return y, y[:, 1:3], x.t(), y.shape[0], y.detach()

    eager = Views()
    fast = compiled(copy.deepcopy(eager))
    for batch in 4, 3:
        found = []
        for model in eager, fast:
            x = torch.linspace(-1, 1, batch * 6).reshape(batch, 6).requires_grad_()
            y, part, turned, n, stopped = model(x)
            assert n == batch and not stopped.requires_grad
            assert part._base is not None and stopped.data_ptr() == y.data_ptr()
            (y.sin().sum() + part.square().sum() * 3 + turned.exp().sum()).backward()
            found.append([x.grad, *gradients(model)])
        assert_close(found[1], found[0])
    assert not any(sol.fallbacks(fast).values())


class Double(torch.autograd.Function):
    """Its gradient is that of no operator in it."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 5


def inside_checkpoint(m, x):
    return checkpoint(lambda y: torch.tanh(m.a(y)), m.b(x), use_reentrant=False)


def autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = m.a(x)
    return m.b(y.float())


OTHERS = {
    "own gradient": lambda m, x: m.b(Double.apply(m.a(x))),
    "checkpoint": inside_checkpoint,
    "autocast": autocast,
    "loss": lambda m, x: F.cross_entropy(m.a(x), x.argmax(1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    """In SOL or in PyTorch: the gradients are PyTorch's."""
    torch.manual_seed(5)
    eager = Net(OTHERS[name])
    fast = compiled(copy.deepcopy(eager))
    x = torch.randn(4, 6)
    (ys, found), (theirs, expected) = run(fast, x), run(eager, x)
    tolerance = 1e-2 if name == "autocast" else 1e-4
    assert_close(ys, theirs, tolerance)
    assert_close(found, expected, tolerance)


def test_compiled_step(pair):
    """A loss and its optimizer in one function that torch.compile divides."""
    eager, _ = pair
    model = copy.deepcopy(eager)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (eager, model)]

    def train(m, optimizer, x):
        optimizer.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    fast = compiled(train)
    for _ in range(3):
        x = torch.randn(4, 6)
        assert_close([fast(model, optimizers[1], x)], [train(eager, optimizers[0], x)])
        assert_close(model.parameters(), eager.parameters())


def test_random_numbers():
    """A seed of torch's generator gives the same dropouts, and each call has its own."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 64))
    fast, x = compiled(model), torch.randn(16, 8)
    found = []
    for seed in 1, 1, 2:
        torch.manual_seed(seed)
        model.zero_grad()
        found.append([step(fast, x), *gradients(model)])
    assert all(map(torch.equal, found[0], found[1]))
    assert not torch.equal(found[0][0], found[2][0])
    assert not any(sol.fallbacks(fast).values())


# ---- Errors ----


def test_second_backward(pair):
    for model in pair:
        y = model(torch.randn(4, 6)).sum()
        y.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()


def test_change_in_place(pair):
    for model in pair:
        y = model(torch.randn(4, 6))
        with torch.no_grad():
            list(model.parameters())[2].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_second_derivative(pair):
    _, fast = pair
    x = torch.randn(4, 6, requires_grad=True)
    (dx,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.sum().backward()


def test_bad_index():
    """PyTorch raises its error, and the next call runs in SOL."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3))
    fast = compiled(model)
    fast(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(IndexError):
        fast(torch.tensor([1, 10]))
    eager = copy.deepcopy(model)
    eager.zero_grad(), model.zero_grad()
    x = torch.tensor([3, 3])
    assert_close([step(fast, x)], [step(eager, x)])
    assert_close(gradients(model), gradients(eager))
    assert sol.fallbacks(fast) == {"an index in the data is out of range": 1}


def test_unknown_operator_in_strict_mode():
    """A graph that SOL cannot train is no error: fullgraph is about inference, as in sol.optimize."""
    eager = Net(lambda m, x: torch.special.bessel_j0(m.a(x).detach()) + m.b(x))
    fast = compiled(copy.deepcopy(eager), fullgraph=True)
    x = torch.randn(4, 6)
    (ys, found), (theirs, expected) = run(fast, x), run(eager, x)
    assert_close(ys, theirs)
    assert_close(found, expected)
    assert sum(sol.fallbacks(fast).values()) == 1


# ---- Memory ----


def test_dead_weights_are_freed():
    """Dynamo keeps graphs for ever; they must not keep a module's parameters, nor what was packed."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    fast = compiled(model)
    fast(torch.randn(4, 6)).sum().backward()
    known = entries_of(fast)
    assert [len(entry.packed) for entry in known] == [1]
    alive = weakref.ref(model[0].weight)
    del fast, model
    gc.collect()
    assert alive() is None
    assert [len(entry.packed) for entry in known] == [0]


def test_saved_memory_is_used_again(pair):
    """After backward, the block of a call is that of the next."""
    _, fast = pair
    for _ in range(3):
        step(fast, torch.randn(4, 6))
    (entry,) = [e for e in entries_of(fast) if e.plan]
    symbols = entry.plan.symbols(4)
    block = entry.plan.take_saved(symbols)
    address = block.data_ptr()
    del block
    assert entry.plan.take_saved(symbols).data_ptr() == address

"""Usual calls of a graph of torch.compile take a shortcut. All other calls give the same results without it."""

import gc
import weakref

import pytest
import torch
from conftest import assert_equal
from torch import nn

import sol.pytorch as sol
from sol.pytorch.dynamo_piece import Piece


class Net(nn.Module):
    """Weights and inputs alternate among the arguments of its graph."""

    def __init__(self, features=6):
        super().__init__()
        self.a, self.norm = nn.Linear(4, features), nn.BatchNorm1d(features)
        self.b = nn.Linear(features, 3)

    def forward(self, x, y):
        return self.b(torch.relu(self.norm(self.a(x))) + y)


@pytest.fixture
def net():
    torch._dynamo.reset()
    return Net().eval()


@pytest.fixture
def inputs():
    return torch.rand(2, 4), torch.rand(2, 6)


@pytest.fixture
def slow(monkeypatch):
    """A list that grows by an item for each call that takes no shortcut."""
    calls, run = [], Piece._run_in_sol
    monkeypatch.setattr(Piece, "_run_in_sol", lambda self, args: calls.append(0) or run(self, args))
    return calls


@pytest.fixture
def never_slower():
    sol.config["compiler::never_slower"] = True
    yield
    sol.config["compiler::never_slower"] = False


def compiled(model, **options):
    return torch.compile(model, backend="sol", **options)


def assert_same(fast, model, *inputs):
    with torch.no_grad():
        assert_equal(fast(*inputs), model(*inputs))


def assert_takes_it(fast, model, slow, *inputs):
    assert_same(fast, model, *inputs)
    n = len(slow)
    assert_same(fast, model, *inputs)
    assert len(slow) == n


def assert_does_not_take_it(fast, model, slow, *inputs):
    n = len(slow)
    assert_same(fast, model, *inputs)
    assert len(slow) == n + 1


def test_usual_calls(net, inputs, slow):
    fast = compiled(net)
    assert_takes_it(fast, net, slow, *inputs)
    assert len(slow) == 1
    with torch.inference_mode():  # Dynamo makes a graph of its own
        assert fast(*inputs).is_inference() and fast(*inputs).is_inference()
    assert len(slow) == 2
    assert sol.fallbacks(fast) == {}


def test_results_are_new_tensors(net, inputs, slow):
    fast = compiled(net)
    assert_takes_it(fast, net, slow, *inputs)
    with torch.no_grad():
        one, two = fast(*inputs), fast(*inputs)
    assert one.data_ptr() != two.data_ptr() and not one.requires_grad


def set_memory(net):
    net.a.weight.data = net.a.weight.data.clone() * -1


CHANGES = {
    "value": lambda net: net.a.weight.mul_(-1),
    "value of a buffer": lambda net: net.norm.running_mean.add_(1),
    "memory": set_memory,
    "object": lambda net: setattr(net.b, "weight", nn.Parameter(net.b.weight.detach() * -1)),
    "object over the same memory": lambda net: setattr(
        net.b, "bias", nn.Parameter(net.b.bias.data)
    ),
    "all values": lambda net: net.a.weight.data.mul_(-1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_weights(name, net, inputs, slow):
    fast = compiled(net)
    assert_takes_it(fast, net, slow, *inputs)
    with torch.no_grad():
        CHANGES[name](net)
    assert_does_not_take_it(fast, net, slow, *inputs)
    assert_takes_it(fast, net, slow, *inputs)


def test_a_write_that_is_counted_elsewhere(net, inputs, slow):
    """Another parameter over the same memory has its own version counter: the shortcut must not accept it as the old one."""
    fast = compiled(net)
    assert_takes_it(fast, net, slow, *inputs)
    net.b.bias = nn.Parameter(net.b.bias.data)
    assert_takes_it(fast, net, slow, *inputs)
    with torch.no_grad():
        net.b.bias[0] += 1  # one element, which samples may miss
    assert_does_not_take_it(fast, net, slow, *inputs)


def test_refresh(net, inputs, slow):
    fast = compiled(net)
    assert_takes_it(fast, net, slow, *inputs)
    net.a.weight.data[0, 1] += 1  # no sample
    sol.refresh(fast)
    assert_does_not_take_it(fast, net, slow, *inputs)


def test_two_modules_of_one_class(net, inputs, slow):
    """They share a graph, whose shortcut is for the weights of one of them."""
    other = Net().eval()
    one, two = compiled(net), compiled(other)
    for _ in range(3):
        assert_takes_it(one, net, slow, *inputs)
        assert_takes_it(two, other, slow, *inputs)
    for _ in range(3):
        assert_same(one, net, *inputs)
        assert_same(two, other, *inputs)


def test_dead_weights(inputs, slow):
    """A shortcut frees weights with their tensors; new tensors at the same places are not mistaken for them."""
    torch._dynamo.reset()
    net = Net().eval()
    fast = compiled(net)
    assert_takes_it(fast, net, slow, *inputs)
    (piece,) = sol_pieces(fast)
    packed = weakref.ref(next(iter(piece._entries[0].packed.values())))
    alive = weakref.ref(net.a.weight)
    del fast, net
    gc.collect()
    assert alive() is None and packed() is None and piece._shortcut is None
    for _ in range(20):
        again = Net().eval()
        assert_same(compiled(again), again, *inputs)


def sol_pieces(fast):
    from sol.pytorch.dynamo_report import find_report

    return find_report(fast).pieces


def test_an_open_batch(net, inputs, slow):
    """The batch size is an argument of the graph, too."""
    fast = compiled(net, dynamic=True)
    assert_takes_it(fast, net, slow, *inputs)
    assert_does_not_take_it(fast, net, slow, torch.rand(5, 4), torch.rand(5, 6))
    assert_takes_it(fast, net, slow, torch.rand(5, 4), torch.rand(5, 6))
    n = len(slow)
    for size in 2, 5, 2, 5:
        assert_same(fast, net, torch.rand(size, 4), torch.rand(size, 6))
    assert len(slow) == n and sol.recompiles(fast) == 0


def test_two_open_sizes():
    """Such a graph has no shortcut."""

    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)

        def forward(self, x):
            return self.b(self.a(x).relu())

    torch._dynamo.reset()
    model = Conv().eval()
    fast = compiled(model, dynamic=True)
    for h, w in (8, 8), (9, 7), (8, 8), (8, 8), (12, 9):
        assert_same(fast, model, torch.rand(2, 3, h, w))


def test_modes(net, inputs, slow):
    fast = compiled(net)
    assert_takes_it(fast, net, slow, *inputs)
    assert fast(*inputs).requires_grad
    assert not sol.fallbacks(fast)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert fast(*inputs).dtype is net(*inputs).dtype
    assert_takes_it(fast, net, slow, *inputs)


def test_number_of_threads(net, inputs, slow):
    fast, n = compiled(net), torch.get_num_threads()
    assert_takes_it(fast, net, slow, *inputs)
    try:
        torch.set_num_threads(n + 1)
        assert_takes_it(fast, net, slow, *inputs)
    finally:
        torch.set_num_threads(n)
    assert_takes_it(fast, net, slow, *inputs)


def test_views(net, slow):
    """An input with gaps is copied; results that are views of others are made by PyTorch, after the shortcut."""

    class Views(Net):
        def forward(self, x, y):
            z = super().forward(x, y)
            return z, z[:, 1:], x.T, z.shape[0]

    torch._dynamo.reset()
    model = Views().eval()
    fast = compiled(model)
    inputs = torch.rand(2, 4), torch.rand(2, 6)
    with torch.no_grad():
        for _ in range(3):
            got, expected = fast(*inputs), model(*inputs)
            assert_equal(got[:3], expected[:3])
            assert got[1].data_ptr() == got[0].data_ptr() + 4 and got[3] == 2
            assert got[2].data_ptr() == inputs[0].data_ptr()
    assert len(slow) == 1
    gaps = torch.rand(4, 2).T, torch.rand(2, 12)[:, ::2]
    assert_same(fast, model, *gaps)


def test_an_index_out_of_range():
    """PyTorch raises its own exception, also after usual calls."""

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.a = nn.Embedding(10, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.a(self.words(x)).relu()

    torch._dynamo.reset()
    model = Words().eval()
    fast = compiled(model)
    for _ in range(3):
        assert_same(fast, model, torch.tensor([1, 2]))
    with torch.no_grad(), pytest.raises(IndexError, match="index out of range in self"):
        fast(torch.tensor([1, 10]))
    ((reason, n),) = sol.fallbacks(fast).items()
    assert reason.endswith("an index in the data is out of range") and n == 1
    assert_same(fast, model, torch.tensor([1, 2]))


def test_writes(slow):
    """A graph that writes its input, or a buffer, has no shortcut."""

    class Writing(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x, y):
            z = super().forward(x, y)
            self.seen.add_(z.sum(0))
            y.mul_(2)
            return z + self.seen

    torch._dynamo.reset()
    model, twin = Writing().eval(), Writing().eval()
    twin.load_state_dict(model.state_dict())
    fast = compiled(model)
    x, y = torch.rand(2, 4), torch.rand(2, 6)
    own = y.clone()
    with torch.no_grad():
        for _ in range(3):
            assert_equal(fast(x, y), twin(x, own))
            assert_equal(y, own)
            assert_equal(model.seen, twin.seen)
    assert len(slow) == 3 and sol.fallbacks(fast) == {}


class Returning(Net):
    """Writes an input, and returns the tensor itself, or views of it, made before and after the write."""

    def forward(self, x, y):
        z = super().forward(x, y)
        before = y.to("cpu").transpose(0, 1)
        y.mul_(2)
        return z, before, y.to("cpu"), y.view(-1)[2:], y.detach().reshape(3, 4)


class ReturningWrite(Net):
    """The result is that of the operator that writes: it must not run again."""

    def forward(self, x, y):
        return super().forward(x, y), y.mul_(2)


@pytest.mark.parametrize("kind, is_native", [(Returning, True), (ReturningWrite, False)])
def test_results_that_share_memory_with_a_written_input(kind, is_native):
    torch._dynamo.reset()
    model = kind().eval()
    fast = compiled(model)
    x, y = torch.rand(2, 4), torch.rand(2, 6)
    own = y.clone()
    with torch.no_grad():
        for _ in range(3):
            got, expected = fast(x, y), model(x, own)
            assert_equal(got, expected)
            assert_equal(y, own)
            assert got[-1].data_ptr() == y.data_ptr()
    assert (sol.fallbacks(fast) == {}) is is_native


def test_selector(net, inputs, slow, never_slower):
    """With the selector on, the shortcut follows its verdicts."""
    fast = compiled(net)
    for _ in range(50):
        assert_same(fast, net, *inputs)
    (piece,) = sol_pieces(fast)
    entry = piece._entries[0]
    entry.selector.forget()
    entry.selector.verdicts[-1] = True
    assert_same(fast, net, *inputs)
    n = len(slow)
    assert_same(fast, net, *inputs)
    assert len(slow) == n
    entry.selector.forget()
    piece._shortcut = None  # it keeps a verdict that it has read
    entry.selector.verdicts[-1] = "PyTorch is faster: a test"
    assert_does_not_take_it(fast, net, slow, *inputs)
    assert list(sol.fallbacks(fast).values()) == [1]


class Scaled(nn.Module):
    """A graph with a number among its arguments, once it has varied, or with dynamic=True."""

    def __init__(self):
        super().__init__()
        self.a, self.k = nn.Linear(4, 3), 1.5

    def forward(self, x):
        return torch.relu(self.a(x) * self.k)


@pytest.mark.parametrize("dynamic", [True, None])
def test_numbers(dynamic, slow):
    """A float that varies is an argument: each value has a program, up to a limit, and a shortcut."""
    torch._dynamo.reset()
    model = Scaled().eval()
    fast, x = compiled(model, dynamic=dynamic), torch.rand(2, 4)
    for k in 3.0, 2.25, 2.25 + 1e-15:
        model.k = k
        assert_takes_it(fast, model, slow, x)
    assert sol.fallbacks(fast) == {}
    for k in range(5, 10):
        model.k = k / 3
        assert_same(fast, model, x)
    (reason,) = sol.fallbacks(fast)
    assert reason.endswith("a number among its inputs varies")

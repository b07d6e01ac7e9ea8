"""LSTM, GRU, RNN and their cells: all options, open numbers of steps with one compile, states, types, new weights."""

import pytest
import torch
from conftest import assert_equal, assert_runs_in_sol
from torch import nn

import sol.pytorch as sol

KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
OPTIONS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "without biases": {"bias": False, "num_layers": 2},
    "both directions": {"bidirectional": True, "num_layers": 2, "batch_first": True},
    "both directions, steps first": {"bidirectional": True, "bias": False},
    "dropout": {"num_layers": 3, "dropout": 0.5},
}
CELLS = {
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
    "tanh": nn.RNNCell,
    "relu": lambda *sizes, **options: nn.RNNCell(*sizes, nonlinearity="relu", **options),
}


class Stateful(nn.Module):
    """The states before the first step are inputs, and all results are outputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, *states):
        y, last = self.layer(x, states if len(states) > 1 else states[0])
        return (y, *last) if len(states) > 1 else (y, last)


def make_states(kind, layer, n):
    directions = 1 + layer.bidirectional
    count = 2 if kind == "lstm" else 1
    return [torch.randn(layer.num_layers * directions, n, layer.hidden_size) for _ in range(count)]


def assert_native(fast, *inputs):
    got = assert_runs_in_sol(fast, *inputs)
    assert not sol.host_nodes(fast)
    return got


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_options(kind, options):
    layer = KINDS[kind](9, 17, **OPTIONS[options]).eval()
    fast = sol.optimize(layer, sol.input([3, 5, 9]))
    x = torch.randn(3, 5, 9)
    assert_native(fast, x)
    states = make_states(kind, layer, 3 if OPTIONS[options].get("batch_first") else 5)
    stateful = Stateful(layer).eval()
    assert_native(sol.optimize(stateful, [x, *states]), x, *states)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_open_sizes(kind, batch_first, monkeypatch):
    """One program for all numbers of steps and all batches."""
    calls, export = [], torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: calls.append(1) or export(*a, **k))
    layer = KINDS[kind](8, 33, 2, batch_first=batch_first, bidirectional=True).eval()
    fast = sol.optimize(layer, sol.input([0, 0, 8]))
    for shape in (1, 7), (4, 7), (4, 64), (3, 2), (9, 9), (1, 1):
        assert_native(fast, torch.randn(*shape, 8))
    assert len(calls) == 1


def test_without_batch():
    layer = nn.LSTM(8, 16, bidirectional=True).eval()
    assert_native(sol.optimize(layer, sol.input([0, 8])), torch.randn(6, 8))


def test_large():
    """Several threads compute each step: enough units, and more samples than one task has."""
    layer = nn.LSTM(40, 200, batch_first=True).eval()
    fast = sol.optimize(layer, sol.input([0, 0, 40]))
    for shape in (1, 20), (70, 3):
        assert_native(fast, torch.randn(*shape, 40))


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_not_finite(kind):
    """NaN stays NaN, whatever its bits are; infinite and large gates are 0, 1 or -1."""
    nan = torch.tensor([0x7FC00001, 0x7FC00101], dtype=torch.int32).view(torch.float32)
    x = torch.cat([nan, torch.tensor([torch.inf, -torch.inf, 1e4, -1e4, 90.0, 1e-40])])
    x = x.view(1, 8, 1)  # one step of eight samples
    layer = KINDS[kind](1, 17, bias=False).eval()
    assert_native(sol.optimize(layer, x), x)


@pytest.mark.parametrize("kind", KINDS)
def test_cells(kind):
    """Each call of a cell is a layer. They share the packed weight."""

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = CELLS[kind](5, 16), nn.Linear(16, 3)

        def forward(self, x):
            state = None
            for i in range(x.shape[1]):
                state = self.cell(x[:, i], state)
            return self.head(state[0] if kind == "lstm" else state)

    assert_native(sol.optimize(Loop().eval(), sol.input([0, 4, 5])), torch.randn(3, 4, 5))
    cell, x = CELLS[kind](5, 16, bias=False).eval(), torch.randn(5)
    assert_native(sol.optimize(cell, [x]), x)


def test_types():
    for dtype, tolerance in (torch.float64, 1e-12), (torch.bfloat16, 2e-2), (torch.float16, 3e-3):
        for kind in "lstm", "gru":
            layer = KINDS[kind](8, 20, bidirectional=True).eval().to(dtype)
            fast, x = sol.optimize(layer, sol.input([0, 0, 8], dtype=dtype)), torch.randn(5, 3, 8)
            with torch.no_grad():
                assert_equal(fast(x.to(dtype)), layer(x.to(dtype)), tolerance)
            assert not sol.fallbacks(fast) and not sol.host_nodes(fast)


def test_new_weights():
    layer = nn.GRU(8, 24, batch_first=True).eval()
    fast, x = sol.optimize(layer, sol.input([0, 0, 8])), torch.randn(2, 5, 8)
    before = assert_native(fast, x)[0]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(-0.5)
    assert (assert_native(fast, x)[0] - before).abs().max() > 1e-3


def test_inside_of_a_network():
    """A convolution before, a linear layer for each step and the last state behind, in one program."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(3, 12, 3, padding=1)
            self.rnn = nn.GRU(12, 16, bidirectional=True, batch_first=True)
            self.head, self.last = nn.Linear(32, 5), nn.Linear(32, 2)

        def forward(self, x):
            y, h = self.rnn(torch.relu(self.conv(x)).transpose(1, 2))
            return self.head(y).softmax(-1), self.last(torch.cat([h[0], h[1]], -1)), y[:, -1]

    fast = sol.optimize(Net().eval(), sol.input([0, 3, 0]))
    for n, steps in (2, 9), (1, 31):
        assert_native(fast, torch.randn(n, 3, steps))


def test_projection_stays_with_pytorch(few_layers):
    """States of another size than the cells are computed by PyTorch inside of the program."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(8, 16, proj_size=4), nn.Linear(4, 2)

        def forward(self, x):
            return torch.relu(self.head(self.rnn(x)[0]))

    fast = sol.optimize(Net().eval(), sol.input([3, 2, 8]))
    assert_runs_in_sol(fast, torch.randn(3, 2, 8))
    assert "proj_size" in sol.host_nodes(fast)[0].reason


def test_capture_leaves_the_operators():
    """Other users of torch.export see all steps of an LSTM, as before."""
    layer, x = nn.LSTM(4, 5).eval(), torch.randn(3, 2, 4)
    sol.optimize(layer, [x])
    exported = torch.export.export(layer, (x,)).run_decompositions()
    names = [str(node.target) for node in exported.graph.nodes]
    assert "aten.lstm.input" not in names and names.count("aten.sigmoid.default") >= 3


def test_writes():
    """A buffer that the forward writes: the graph is brought into its functional form."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(4, 8)
            self.register_buffer("calls", torch.zeros(8))

        def forward(self, x):
            y = self.rnn(x)[0]
            self.calls.add_(y[-1, 0])
            return torch.relu(y)

    net = Net().eval()
    fast, x = sol.optimize(net, sol.input([3, 2, 4])), torch.randn(3, 2, 4)
    with torch.no_grad():
        assert_equal(fast(x), torch.relu(net.rnn(x)[0]))
        assert_equal(net.calls, net.rnn(x)[0][-1, 0])


def test_torch_compile():
    layer = nn.LSTM(8, 16, 2, batch_first=True).eval()
    fast = torch.compile(layer, backend="sol")
    with torch.no_grad():
        for shape in (2, 5), (2, 7), (3, 9):
            x = torch.randn(*shape, 8)
            assert_equal(fast(x), layer(x))

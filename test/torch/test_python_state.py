"""A forward may read and write any Python object. Its writes must happen at every call, and it must read the present values:
either the guard detects a change, or PyTorch runs the call."""

import collections
import contextlib
import copy
import io
import os
import random
import sys
import warnings

import numpy
import pytest
import python_state
import torch
from conftest import assert_runs_in_sol
from python_state import READS, WRITES, State
from torch import nn

import sol.pytorch as sol
from sol.pytorch import reads

# Cases of READS that PyTorch may run; SOL runs all others.
NOT_GUARDED = {
    *("array", "numpy scalar", "deque", "context variable", "thread's local", "requires_grad"),
    "version",
}
CHANGES_MODE = {"default dtype", "deterministic"}


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """Restores everything that the cases change outside of their models."""
    names = "SCALE", "TENSOR", "helper"
    kept = {name: getattr(python_state, name) for name in names}
    defaults, value = python_state.helper.__defaults__, python_state.TENSOR.item()
    classes = [(cls, dict(vars(cls))) for cls in (State, python_state.Base)]
    relu, forward = nn.functional.relu, nn.Conv2d.forward
    monkeypatch.setenv("SOL_TEST_STATE", "2")
    monkeypatch.delenv("SOL_TEST_MISSING", raising=False)
    yield
    for name, old in kept.items():
        setattr(python_state, name, old)
    python_state.helper.__defaults__ = defaults
    defaults[0][:] = [2.0]
    python_state.TENSOR.fill_(value)
    for cls, old in classes:
        for name in vars(cls).keys() - old.keys():
            delattr(cls, name)
        for name in ("of_class", "of_base", "hidden", "times"):
            if name in old:
                setattr(cls, name, old[name])
    nn.functional.relu, nn.Conv2d.forward = relu, forward
    python_state.TABLE.clear()
    python_state.TABLE.update(k=2.0)
    python_state.VALUES[:] = [2.0]
    vars(python_state.OBJECT).clear()
    python_state.OBJECT.k = python_state.LOCAL.k = 2.0
    python_state.put_cell(2.0)
    python_state.Meta.k = python_state.helper.k = 2.0
    python_state.Derived.__bases__ = (python_state.Two,)
    python_state.CONTEXT.set(2.0)
    sys.modules.pop("sol_test_missing", None)
    for name in "SOL_TEST_MISSING", "SOL_TEST_WRITTEN":
        os.environ.pop(name, None)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


def assert_same(fast, x):
    """Asserts that SOL's and PyTorch's results are equal, for a forward that writes nothing."""
    with torch.no_grad():
        got, expected = fast(x), fast._original(x)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", READS)
def test_what_a_forward_reads(name, x):
    forward_of, change = READS[name]
    fast = sol.optimize(State(forward_of).eval(), sol.input([0, 3, 9, 7]))
    for _ in range(3):
        assert_same(fast, x)
    if name not in NOT_GUARDED:
        assert not sol.fallbacks(fast)
    with torch.no_grad():
        before = fast(x)
    change(fast._original)
    for _ in range(3):
        assert_same(fast, x)
    assert not torch.equal(before, fast._original(x)), "nothing has changed"
    if name not in NOT_GUARDED | CHANGES_MODE:
        assert_runs_in_sol(fast, x)


@pytest.mark.parametrize("name", ["entry", "item", "namespace", "class", "global", "nested"])
def test_what_is_equal_is_not_captured_again(name, x):
    """Equal values, and changes of objects that the forward does not read, cause no new capture."""
    fast = sol.optimize(State(READS[name][0]).eval(), sol.input([0, 3, 9, 7]))
    entries = fast._engine._state.entries
    for i in range(5):
        fast._original.ns.k = fast._original.cfg["k"] = fast._original.items[0] = float("2.0")
        State.of_class = fast._original.nested["a"][0]["k"] = float("2.0")
        python_state.SCALE = float("2.0")
        python_state.UNREAD = i
        assert_runs_in_sol(fast, x)
    assert all(fast._engine._state.entries[key][0].plan is entries[key][0].plan for key in entries)
    assert fast._engine._n_checks == 0 and fast._engine._n_captures == 1


def test_an_equal_list_is_watched_from_then_on(x):
    fast = sol.optimize(State(READS["item"][0]).eval(), sol.input([0, 3, 9, 7]))
    assert_runs_in_sol(fast, x)
    fast._original.items = [2.0]
    assert_runs_in_sol(fast, x)
    fast._original.items[0] = 5.0
    assert_runs_in_sol(fast, x)


def test_values_that_come_back(x):
    fast = sol.optimize(State(READS["entry"][0]).eval(), sol.input([0, 3, 9, 7]))
    for k in (2.0, 3.0, 2.0, 0.0, float("nan")):
        fast.cfg["k"] = k
        with torch.no_grad():
            torch.testing.assert_close(fast(x), fast._original(x), equal_nan=True)
    assert not sol.fallbacks(fast)


def test_a_copy_reads_its_own_objects(x):
    fast = sol.optimize(State(READS["entry"][0]).eval(), sol.input([0, 3, 9, 7]))
    assert_runs_in_sol(fast, x)
    other = copy.deepcopy(fast)
    other.cfg["k"] = 7.0
    assert_runs_in_sol(other, x)
    assert_runs_in_sol(fast, x)
    with torch.no_grad():
        assert not torch.equal(other(x), fast(x))


def run_twice(model, call, x):
    """Makes two calls, starting from the same random state. Returns the results, the printed text and the warnings."""
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    said = io.StringIO()
    with (
        torch.no_grad(),
        contextlib.redirect_stdout(said),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        results = [call(x).clone() for _ in range(2)]
    return results, said.getvalue(), [str(w.message) for w in told if "told" in str(w.message)]


def state_of(model):
    """Everything that a forward may have written to its model, for a comparison, without the counters of hooks."""
    own = {key: value for key, value in vars(model).items() if not key.startswith("_")}
    for name in "forward_of", "loose", "ticks", "random", "slots", "of_two", "of_derived":
        own.pop(name)
    return repr(
        (own, list(model.state_dict().items()), sorted(vars(model.conv)["_forward_hooks"]) != [])
    )


@pytest.mark.parametrize("name", WRITES)
def test_what_a_forward_writes(name, x, put_back):
    torch.manual_seed(0)
    model = State(WRITES[name]).eval()
    expected = copy.deepcopy(model)
    with contextlib.redirect_stdout(said := io.StringIO()):
        fast = sol.optimize(model, sol.input([0, 3, 9, 7]))
    assert said.getvalue() == "" and state_of(model) == state_of(expected)
    outside = {key: copy.copy(getattr(python_state, key)) for key in ("SCALE", "TABLE", "OBJECT")}
    outside["TENSOR"], outside["cell"] = python_state.TENSOR.clone(), python_state.get_cell()
    outside["class"] = State.of_class
    got = run_twice(model, fast, x)
    for key in "SCALE", "TABLE", "OBJECT":
        setattr(python_state, key, outside[key])
    python_state.TENSOR.copy_(outside["TENSOR"])
    python_state.put_cell(outside["cell"])
    State.of_class = outside["class"]
    wanted = run_twice(expected, expected, x)
    for y, z in zip(got[0], wanted[0]):
        torch.testing.assert_close(y, z)
    assert got[1:] == wanted[1:]
    assert state_of(model) == state_of(expected)
    if name == "buffer":  # an update: SOL writes it
        assert not sol.fallbacks(fast)
    elif name == "new attribute":  # the second call sets it to the value that it has
        assert sum(sol.fallbacks(fast).values()) == 1
    elif name != "written and undone":  # PyTorch runs both calls, or there are several graphs
        assert sum(sol.fallbacks(fast).values()) == 2 or sol.graphs(fast)


class Table(nn.Module):
    """Stores a table at its first call, as many models do for positions."""

    def __init__(self):
        super().__init__()
        self.tables = {}
        self.bias = nn.Parameter(torch.randn(7))

    def forward(self, x):
        if x.shape[1] not in self.tables:
            self.tables[x.shape[1]] = torch.arange(x.shape[1]).float()
        return x * self.bias + self.tables[x.shape[1]]


def test_state_that_only_a_first_call_writes():
    fast, x = sol.optimize(Table().eval(), sol.input([0, 7])), torch.randn(2, 7)
    with torch.no_grad():
        assert torch.equal(fast(x), fast._original(x))
    assert "writes to model.tables" in str(sol.fallbacks(fast)) and list(fast.tables) == [7]
    for n in (2, 5, 1):
        assert_runs_in_sol(fast, torch.randn(n, 7))
    fast.tables[7] += 1
    assert_runs_in_sol(fast, x)
    fast.tables.clear()
    assert_same(fast, x)
    assert list(fast.tables) == [7]


def test_state_that_only_a_first_call_writes_after_new_values():
    fast, x = sol.optimize(Table().eval(), sol.input([0, 7])), torch.randn(2, 7)
    fast.load_state_dict({"bias": torch.ones(7)})
    with torch.no_grad():
        assert torch.equal(fast(x), fast._original(x))
    assert_runs_in_sol(fast, x)


def test_state_that_every_call_writes_is_not_captured_for_ever(x):
    fast = sol.optimize(State(WRITES["counter"]).eval(), sol.input([0, 3, 9, 7]))
    with torch.no_grad():
        for _ in range(9):
            fast(x)
    assert fast._original.n == 9
    assert fast._engine._n_captures + fast._engine._n_checks <= 5


def test_the_reason_names_what_is_written():
    """The reason names the object that is written, and the line."""
    fast = sol.optimize(State(WRITES["counter"]).eval(), sol.input([0, 3, 9, 7]))
    (reason,) = sol.fallbacks(fast)
    assert "writes to model.n (python_state.py:" in reason


def test_fullgraph(x):
    with pytest.raises(NotImplementedError, match="writes to model.log"):
        sol.optimize(State(WRITES["log"]).eval(), sol.input([0, 3, 9, 7]), fullgraph=True)


def test_capture_leaves_the_model_s_objects():
    """torch.export replaces lists and dicts of modules by copies; the capture must restore the originals."""
    model = nn.Sequential(State(READS["entry"][0]), nn.LSTM(7, 4)).eval()
    before = [dict(vars(module)) for module in model.modules()]
    sol.optimize(model[0], sol.input([0, 3, 9, 7]))
    sol.optimize(model[1], sol.input([0, 3, 7]))
    for module, own in zip(model.modules(), before):
        assert vars(module).keys() == own.keys()
        assert all(vars(module)[key] is value for key, value in own.items())


def test_capture_says_nothing(capfd):
    """Only SOL's one line is printed, also where PyTorch would print graphs."""

    class Branch(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    level = sol.config["log::level"]
    sol.config["log::level"] = sol.log.error
    sol.optimize(Branch().eval(), sol.input([0, 3]))
    assert capfd.readouterr() == ("", "")
    sol.config["log::level"] = level
    sol.optimize(Branch().eval(), sol.input([0, 3]), name="again")
    said = capfd.readouterr().err.splitlines()
    assert (
        len(said) == 1
        and "again runs in several graphs" in said[0]
        and "(test_python_state.py:" in said[0]
    )


class Inputs(nn.Module):
    """``forward_of(x, y)`` of two inputs."""

    def __init__(self, forward_of):
        super().__init__()
        self.forward_of = forward_of

    def forward(self, x, y):
        return self.forward_of(x, y)


# Forwards whose result depends on a property of an input: SOL may run calls with ordinary inputs, but not the others.
QUESTIONS = {
    "contiguous": lambda x, y: x * 2 if x.is_contiguous() else x * 3,
    "stride": lambda x, y: x * x.stride(0),
    "offset": lambda x, y: x * (1 + x.storage_offset()),
    "the same": lambda x, y: x * 2 if x is y else x * 3,
    "the same memory": lambda x, y: x * 2 if x.data_ptr() == y.data_ptr() else x * 3,
    "parameter": lambda x, y: x * 2 if isinstance(x, nn.Parameter) else x * 3,
    "class": lambda x, y: x * 2 if type(x) is torch.Tensor else x * 3,
    "class's name": lambda x, y: x * 2 if x.__class__.__name__ == "Tensor" else x * 3,
    "attribute": lambda x, y: x * getattr(x, "factor", 3.0),
    "gradient": lambda x, y: x * 2 if x.grad is None else x * 3,
    "view": lambda x, y: x * 2 if x._base is None else x * 3,
    "inference": lambda x, y: x * 2 if x.is_inference() else x * 3,
    "none": lambda x, y: x * 2 if y is None else x * 3,
}


def odd_inputs():
    x = torch.randn(2, 3, 4, 5)
    with_factor, with_gradient = x + 1, x + 2
    with_factor.factor, with_gradient.grad = 7.0, x
    with torch.inference_mode():
        of_inference = x * 2
    yield x, x + 1
    yield x, x
    yield torch.randn(2, 5, 4, 3).transpose(1, 3), x
    yield x.to(memory_format=torch.channels_last), x
    yield torch.randn(3, 3, 4, 5)[1:], x
    yield nn.Parameter(x), x
    yield with_factor, x
    yield with_gradient, x
    yield of_inference, x
    yield x[:1].expand(2, 3, 4, 5), x
    yield x, x + 1


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_a_forward_asks_of_its_inputs(name):
    spec = sol.input([0, 3, 4, 5])
    fast = sol.optimize(Inputs(QUESTIONS[name]).eval(), spec, spec)
    with torch.no_grad():
        for x, y in odd_inputs():
            for _ in range(2):
                torch.testing.assert_close(fast(x, y), fast._original(x, y))


def test_names_that_are_no_questions(x):
    """An attribute `stride`, type(self), and comparisons with None do not test properties of inputs."""
    model = State(lambda s, y: y * s.conv.stride[0] * (type(s).of_class if s is not None else 1))
    fast = sol.optimize(model.eval(), sol.input([0, 3, 9, 7]))
    assert_runs_in_sol(fast, x)
    assert_runs_in_sol(fast, x.to(memory_format=torch.channels_last))


class Factories(collections.OrderedDict):
    """Makes a new object at each access, from the class that it stores."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


FACTORIES = Factories(relu=nn.ReLU, tanh=nn.Tanh)


class Made(nn.Module):
    def forward(self, x):
        return FACTORIES["relu"](x * 2) + x.exp()


def test_a_dict_that_makes_its_values():
    fast = sol.optimize(Made().eval(), sol.input([0, 4]))
    assert_runs_in_sol(fast, torch.randn(3, 4))
    assert sol.recompiles(fast) == 0
    FACTORIES["relu"] = nn.Tanh
    try:
        assert_runs_in_sol(fast, torch.randn(3, 4))
    finally:
        FACTORIES["relu"] = nn.ReLU


def test_reads_that_never_stay(monkeypatch):
    """If what the forward reads differs after each capture, PyTorch runs the model after a few attempts."""
    monkeypatch.setattr(reads.Reads, "has_changed", lambda self: True)
    fast = sol.optimize(Made().eval(), sol.input([0, 4]))
    with torch.no_grad():
        for _ in range(4):
            fast(x=torch.randn(3, 4))  # a keyword: no shortcut
    assert ["changes while it is captured" in reason for reason in sol.fallbacks(fast)] == [True]

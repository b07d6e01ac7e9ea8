"""The shortcut makes ordinary calls without the engine; the engine gets all other calls."""

import contextlib
import copy
import gc
import weakref

import pytest
import torch
from conftest import Function, assert_as_eager, assert_equal, assert_runs_in_sol
from torch.autograd import forward_ad

import sol.pytorch as sol
from sol.pytorch import selector
from sol.pytorch.watch import N_SAMPLES


def engine(fast):
    return vars(fast)["_engine"]


@contextlib.contextmanager
def count_engine_calls(fast):
    """A list with one element, the number of calls that reach the engine."""
    count, cls = [0], type(engine(fast))
    call = cls.__call__

    def counted(self, args, kwargs):
        count[0] += self is engine(fast)
        return call(self, args, kwargs)

    cls.__call__ = counted
    try:
        yield count
    finally:
        cls.__call__ = call


def assert_takes_it(fast, *inputs):
    """Asserts that the shortcut makes the second of two equal calls."""
    with torch.no_grad():
        fast(*inputs)
        with count_engine_calls(fast) as count:
            got = fast(*inputs)
    assert count == [0] and not engine(fast).shortcut.is_refused
    assert_equal(got, vars(fast)["_original"](*inputs))


def assert_does_not_take_it(fast, *inputs):
    with torch.no_grad(), count_engine_calls(fast) as count:
        got = fast(*inputs)
    assert count == [1]
    assert_equal(got, vars(fast)["_original"](*inputs))


def test_usual_calls(fast, x):
    assert_takes_it(fast, x)
    assert_takes_it(fast, torch.randn(3, 3, 9, 7))
    with count_engine_calls(fast) as count, torch.inference_mode():
        y, z = fast(x), fast(torch.randn(3, 3, 9, 7))
        assert y.is_inference() and y.resize_(4, 5).shape == (4, 5)
    assert count == [0] and z.shape == (3, 5)


def test_first_size_is_learned(fast, x):
    assert_takes_it(fast, x)
    larger = torch.randn(5, 3, 9, 7)
    assert_does_not_take_it(fast, larger)
    assert_takes_it(fast, larger)
    assert_does_not_take_it(fast, x[:0])


def test_several_inputs_and_outputs():
    model = Function(lambda a, b, c: {"sum": a + b, "c": (c + 1, 2 * c)})
    fast = sol.optimize(model.eval(), sol.input([0, 3]), sol.input([0, 3]), sol.input([4]))
    inputs = torch.randn(2, 3), torch.randn(2, 3), torch.randn(4)
    assert_takes_it(fast, *inputs)
    assert_as_eager(fast, torch.randn(2, 3), torch.randn(3, 3), torch.randn(4))


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.conv.weight.data.add_(1),
        lambda net: net.conv.weight.add_(1),
        lambda net: setattr(net.conv.weight, "data", torch.randn(8, 3, 3, 3)),
        lambda net: setattr(net.fc, "weight", torch.nn.Parameter(torch.randn(5, 8))),
        lambda net: net.norm.running_mean.add_(1),
        lambda net: setattr(net.conv, "padding", (1, 1)),
        lambda net: setattr(net.norm, "eps", 0.5),
        lambda net: net.register_buffer("other", torch.ones(1)),
        lambda net: setattr(net, "fc", torch.nn.Linear(8, 5).eval()),
    ],
)
def test_change_of_the_model(fast, net, x, change):
    assert_takes_it(fast, x)
    with torch.no_grad():
        change(net)
    assert_does_not_take_it(fast, x)
    assert_takes_it(fast, x)


@pytest.mark.parametrize("place", range(N_SAMPLES))
def test_value_written_behind_torchs_back(fast, net, x, place):
    """The shortcut's guard finds the change. The engine accepts this, although it samples another value."""
    assert_takes_it(fast, x)
    values = net.conv.weight.detach().numpy().reshape(-1)
    values[(2 * place + 1) * values.size // (2 * N_SAMPLES)] += 1
    with torch.no_grad():
        for _ in range(N_SAMPLES):
            y = fast(x)
        assert_equal(y, net(x))


@pytest.mark.parametrize(
    "register",
    ["register_forward_hook", "register_forward_pre_hook"],
)
@pytest.mark.parametrize("where", [lambda fast: fast, lambda fast: fast.fc])
def test_hooks(fast, x, register, where):
    assert_takes_it(fast, x)
    called = []
    handle = getattr(where(fast), register)(lambda *args: called.append(1))
    assert_does_not_take_it(fast, x)
    assert called
    handle.remove()
    assert_takes_it(fast, x)


@pytest.mark.parametrize("name", ["full_backward_hook", "full_backward_pre_hook"])
def test_backward_hooks(fast, x, name):
    assert_takes_it(fast, x)
    handle = getattr(fast, f"register_{name}")(lambda *args: None)
    assert_does_not_take_it(fast, x)
    handle.remove()
    handle = getattr(torch.nn.modules.module, f"register_module_{name}")(lambda *args: None)
    assert_does_not_take_it(fast, x)
    handle.remove()


def test_global_hook(fast, x):
    assert_takes_it(fast, x)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    assert_does_not_take_it(fast, x)
    handle.remove()
    assert_takes_it(fast, x)


def test_forward_of_the_instance(fast, x):
    assert_takes_it(fast, x)
    fast.forward = lambda x: "mine"
    assert fast(x) == "mine"
    del fast.forward
    assert_takes_it(fast, x)


def test_modes(fast, net, x):
    assert_takes_it(fast, x)
    assert fast(x).grad_fn is not None
    assert_takes_it(fast, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert fast(x).dtype == torch.bfloat16
        with count_engine_calls(fast) as count:
            assert fast(x).dtype == torch.bfloat16
        assert count == [0]
    with torch.no_grad():
        assert fast(x).dtype == torch.float32
    assert_takes_it(fast, x)
    with torch.no_grad(), forward_ad.dual_level():
        assert_equal(fast(x), net(x))
    assert_takes_it(fast, x)
    fast.train()
    assert_runs_nothing_early(fast, x)
    fast.eval()
    assert_takes_it(fast, x)
    assert sol.fallbacks(fast) == {"a forward-mode gradient is wanted": 1}


def assert_runs_nothing_early(fast, x):
    with torch.no_grad(), count_engine_calls(fast) as count:
        fast(x)
    assert count == [1] and engine(fast).shortcut.is_refused


def test_tracing(fast, net, x):
    assert_takes_it(fast, x)
    with torch.no_grad():
        traced = torch.jit.trace(fast, x)
        assert "conv" in str(traced.graph)
        assert_equal(traced(2 * x), net(2 * x))
        exported = torch.export.export(fast, (x,))
        assert "conv" in str(exported.graph)
        compiled = torch.compile(fast, backend="eager", fullgraph=True)
        assert_equal(compiled(x), net(x))
    assert_takes_it(fast, x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: torch.complex(x, -x).conj().imag,
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.expand(2, -1, -1, -1)[1:].flip(0),
    ],
)
def test_unusual_memory(fast, x, view):
    assert_takes_it(fast, x)
    with torch.no_grad():
        assert_equal(fast(view(x[:1])), vars(fast)["_original"](view(x[:1])))
    assert_takes_it(fast, x)


def test_row_major_though_strides_differ(fast, x):
    assert_takes_it(fast, x[:1])
    odd = torch.as_strided(x, (1, 3, 9, 7), (5, 63, 7, 1))
    assert odd.is_contiguous()
    assert_takes_it(fast, odd)


@pytest.mark.parametrize(
    "bad",
    [torch.zeros(2, 3, 9, 8), torch.zeros(2, 3, 9), torch.zeros(2, 3, 9, 7).double(), None, 3],
)
def test_bad_inputs(fast, x, bad):
    assert_takes_it(fast, x)
    assert_as_eager(fast, bad)
    assert_as_eager(fast, x, x)
    assert_takes_it(fast, x)


def test_subclass_and_keywords(fast, x):
    class Special(torch.Tensor):
        pass

    assert_takes_it(fast, x)
    assert_does_not_take_it(fast, x.as_subclass(Special))
    with torch.no_grad():
        assert_equal(fast(x=x), fast(x))
    assert_takes_it(fast, torch.nn.Parameter(x))


def test_threads(fast, x):
    before = torch.get_num_threads()
    for n in 1, 2, 3:
        torch.set_num_threads(n)
        assert_takes_it(fast, x)
    torch.set_num_threads(before)
    assert_does_not_take_it(fast, x)


def test_refresh_and_copies(fast, x):
    assert_takes_it(fast, x)
    sol.refresh(fast)
    assert engine(fast).shortcut is None
    assert_takes_it(fast, x)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        other.fc.weight.zero_()
    assert_takes_it(other, x)
    assert_takes_it(fast, x)
    assert_runs_in_sol(fast, x)


def test_module_is_freed_at_once(fast, x):
    fast = sol.optimize(copy.deepcopy(vars(fast)["_original"]), sol.input([0, 3, 9, 7]))
    assert_takes_it(fast, x)
    gc.collect()
    gc.disable()
    try:
        gone = weakref.ref(fast)
        del fast
        assert gone() is None
    finally:
        gc.enable()


# ---- Undecided batch sizes ----


@pytest.fixture
def undecided(monkeypatch):
    """The batch size stays undecided: PyTorch is never run, and the granted time does not end."""
    monkeypatch.setattr(selector, "SHARE", 1e-12)
    sol.config["compiler::never_slower"] = True
    yield
    sol.config["compiler::never_slower"] = False


def find_selector(fast):
    (entry,) = engine(fast)._state.entries.values()
    return entry[0].selector


def assert_takes_it_at_last(fast, *inputs):
    """Asserts that the shortcut makes calls of an undecided batch size after the first ones, which the engine makes."""
    with torch.no_grad():
        for _ in range(3):
            fast(*inputs)
    assert_takes_it(fast, *inputs)


def test_time_is_granted(fast, x, undecided):
    assert_takes_it_at_last(fast, x)
    assert_takes_it_at_last(fast, torch.randn(3, 3, 9, 7))
    shortcut = engine(fast).shortcut
    assert shortcut.grant(0) > 0 == shortcut.grant(0)
    assert_does_not_take_it(fast, x)  # the engine grants time again
    assert_takes_it(fast, x)


def test_granted_time_ends(fast, x, undecided):
    assert_takes_it_at_last(fast, x)
    engine(fast).shortcut.grant(1e-9)
    with torch.no_grad(), count_engine_calls(fast) as count:
        fast(x)
        assert count == [0]
        fast(x)
        assert count == [1]


def test_a_verdict_counts_at_once(fast, x, undecided):
    assert_takes_it_at_last(fast, x)
    find_selector(fast).verdicts[2] = "PyTorch is faster"
    assert_does_not_take_it(fast, x)
    assert sum(sol.fallbacks(fast).values()) == 1
    find_selector(fast).verdicts[2] = selector.SOL
    engine(fast).shortcut.grant(0)
    assert_takes_it(fast, x)


def test_a_fixed_size_has_a_verdict_too(net, x, undecided):
    fast = sol.optimize(net, x)
    assert_takes_it_at_last(fast, x)
    assert_takes_it(fast, x)
    find_selector(fast).verdicts[-1] = "PyTorch is faster"
    assert_does_not_take_it(fast, x)


def test_selectors_are_switched_off(fast, x, undecided):
    assert_takes_it_at_last(fast, x)
    find_selector(fast).verdicts[2] = "PyTorch is faster"
    sol.config["compiler::never_slower"] = False
    assert_takes_it(fast, x)
    sol.config["compiler::never_slower"] = True
    assert_does_not_take_it(fast, x)


def test_selectors_do_not_count_in_a_forked_process(fast, x, undecided, monkeypatch):
    assert_takes_it_at_last(fast, x)
    monkeypatch.setattr(selector, "_is_forked", True)
    engine(fast).shortcut.grant(0)
    assert_takes_it(fast, x)
    find_selector(fast).verdicts[2] = "PyTorch is faster"
    assert_takes_it(fast, x)


def test_bad_grant(fast, x):
    assert_takes_it(fast, x)
    with pytest.raises(TypeError):
        engine(fast).shortcut.grant("long")
    assert_takes_it(fast, x)

"""SOL runs calls for inference, and calls with gradients (test_training.py). PyTorch runs those that need a hook, or another mode."""

import copy
import gc
import io
import pickle
import threading

import pytest
import torch
from conftest import Function, Net, assert_equal, assert_falls_back, assert_runs_in_sol

import sol.pytorch as sol
from sol.pytorch import plan


def test_training_mode(fast, x):
    fast.train()
    assert fast.training and fast.norm.training
    before = fast.norm.num_batches_tracked.item()
    fast(x).sum().backward()
    assert fast.conv.weight.grad is not None
    assert fast.norm.num_batches_tracked.item() == before + 1
    assert not sol.fallbacks(fast)
    fast.eval()
    assert_runs_in_sol(fast, x)


def test_model_in_training_mode_at_optimize(x):
    net = Net()
    fast = sol.optimize(net, sol.input([0, 3, 9, 7]))
    assert net.training and net.drop.training
    assert_runs_in_sol(fast.eval(), x)


def test_submodule_in_training_mode(fast, x):
    fast.drop.train()
    with torch.no_grad():
        assert not torch.equal(fast(x), fast(x))
    assert not sol.fallbacks(fast)


def test_gradients(fast, net, x):
    y = fast(x)
    assert y.grad_fn is not None
    x.requires_grad_()
    fast(x).sum().backward()
    assert x.grad is not None
    assert not sol.fallbacks(fast)
    assert_runs_in_sol(fast, x)


def test_gradient_of_the_input_only(fast, x):
    for parameter in fast.parameters():
        parameter.requires_grad_(False)
    assert fast(x).grad_fn is None
    assert not sol.fallbacks(fast)
    assert fast(x.requires_grad_()).grad_fn is not None
    assert not sol.fallbacks(fast)


def test_forward_mode_gradient(fast, net, x):
    tangent = torch.randn_like(x)
    got = torch.func.jvp(fast, (x,), (tangent,))
    assert_equal(got, torch.func.jvp(net, (x,), (tangent,)))


def test_autocast(fast, net, x):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert fast(x).dtype == net(x).dtype == torch.bfloat16


def test_logged_once(fast, x, capfd):
    level = sol.config["log::level"]
    sol.config["log::level"] = sol.log.info
    fast.conv.register_forward_hook(lambda *args: None)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
    sol.config["log::level"] = level
    assert capfd.readouterr().err.count("conv has a forward hook") == 1


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_hook_on_submodule(fast, x, kind):
    seen = []
    handle = getattr(fast.conv, kind)(lambda *args: seen.append(1))
    assert_falls_back(fast, "conv has a forward hook", x)
    assert seen
    handle.remove()
    assert_runs_in_sol(fast, x)


def test_hook_at_optimize(net, x):
    net.fc.register_forward_hook(lambda module, args, y: 2 * y)
    assert_falls_back(sol.optimize(net, sol.input([0, 3, 9, 7])), "fc has a forward hook", x)
    with pytest.raises(NotImplementedError, match="hook"):
        sol.optimize(net, sol.input([0, 3, 9, 7]), fullgraph=True)


def test_global_hook_is_called_as_without_sol(fast, net, x):
    """A global hook is called once for each module of the user, and not for the module that sol.optimize returns."""
    seen = []
    register = torch.nn.modules.module.register_module_forward_hook
    handle = register(lambda module, args, y: seen.append(type(module)))
    try:
        with torch.no_grad():
            net(x)
            expected, seen = seen, []
            fast(x)
    finally:
        handle.remove()
    assert seen == expected


def test_hook_on_the_result_itself(fast, net, x):
    fast.register_forward_hook(lambda module, args, y: 2 * y)
    with torch.no_grad():
        assert_equal(fast(x), 2 * net(x))
    assert not sol.fallbacks(fast)


def test_global_hook(fast, x):
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert_falls_back(fast, "global forward hook", x)
    finally:
        handle.remove()
    assert_runs_in_sol(fast, x)


def test_forward_replaced(fast, x):
    fast.conv.forward = lambda x: torch.zeros(x.shape[0], 8, 9, 7)
    assert_runs_in_sol(fast, x)


def test_deepcopy(fast, x):
    assert_runs_in_sol(fast, x)
    other = copy.deepcopy(fast)
    assert other.conv.weight is not fast.conv.weight
    with torch.no_grad():
        other.conv.weight.zero_()
        fast.fc.bias.add_(1)
    assert_runs_in_sol(other, x)
    assert_runs_in_sol(fast, x)
    assert sol.recompiles(other) == 0


@pytest.mark.parametrize("save", [pickle.dump, torch.save])
def test_pickle(fast, x, save):
    file = io.BytesIO()
    save(fast, file)
    file.seek(0)
    other = pickle.load(file) if save is pickle.dump else torch.load(file, weights_only=False)
    assert_equal(assert_runs_in_sol(other, x), assert_runs_in_sol(fast, x))
    assert other.state_dict().keys() == fast.state_dict().keys()


def test_inside_another_module(fast, net, x):
    outer = torch.nn.Sequential(fast, torch.nn.ReLU()).eval()
    assert "0.conv.weight" in outer.state_dict()
    outer.load_state_dict(outer.state_dict())
    with torch.no_grad():
        assert_equal(outer(x), net(x).relu())
    outer.train()
    assert net.training


def test_other_dtype(fast, x):
    assert_runs_in_sol(fast, x)
    fast.double()
    assert_falls_back(fast, "f64", x.double())
    assert_runs_in_sol(fast.float(), x)


def test_threads(fast, net):
    inputs = [torch.randn(n % 4 + 1, 3, 9, 7) for n in range(8)]
    failures = []

    def work(x):
        with torch.no_grad():
            expected = net(x)
            for _ in range(50):
                if not torch.allclose(fast(x), expected, atol=1e-5):
                    failures.append(x.shape)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and not sol.fallbacks(fast)


def test_change_while_other_threads_run(fast, x):
    stop = threading.Event()

    def work():
        with torch.no_grad():
            while not stop.is_set():
                fast(x)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        fast.fc.weight = torch.nn.Parameter(torch.randn(5, 8))
        with torch.no_grad():
            fast.conv.weight.mul_(0.9)
    stop.set()
    for thread in threads:
        thread.join()
    assert_runs_in_sol(fast, x)


# ---- Models that PyTorch runs ----


LEFT_TO_PYTORCH = {
    "unknown operation": (lambda x: torch.special.i0(x), "aten.special_i0.default(f32[*,3,4])"),
    "input as result": (lambda x: x, "computes nothing"),
    "view of input": (lambda x: x.transpose(1, 2), "computes nothing"),
    "results with gaps": (lambda x: (lambda y: (y, y[1:]))(x.mT.exp()), "share memory"),
}


@pytest.mark.parametrize("function, reason", LEFT_TO_PYTORCH.values(), ids=LEFT_TO_PYTORCH.keys())
def test_left_to_pytorch(function, reason):
    model = Function(function).eval()
    fast = sol.optimize(model, sol.input([0, 3, 4]))
    assert list(sol.fallbacks(fast).values()) == [0]
    for _ in range(2):
        assert_falls_back(fast, "", torch.randn(2, 3, 4))
    assert list(sol.fallbacks(fast).values()) == [2]
    assert reason in next(iter(sol.fallbacks(fast)))
    with pytest.raises(NotImplementedError):
        sol.optimize(model, sol.input([0, 3, 4]), fullgraph=True)


def test_recurrent_layer_is_captured_once(monkeypatch):
    """torch.export replaces objects in an LSTM's attributes. The guard does not take this for a change of the model."""
    calls, export = [], torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **k: calls.append(1) or export(*a, **k))
    fast = sol.optimize(torch.nn.LSTM(3, 4, batch_first=True).eval(), sol.input([0, 5, 3]))
    for _ in range(3):
        with torch.no_grad():
            fast(torch.randn(2, 5, 3))
    assert len(calls) == 1 and not sol.fallbacks(fast)


def test_integer_input():
    fast = sol.optimize(torch.nn.Embedding(10, 4).eval(), sol.input([0, 3], dtype=torch.int64))
    assert_runs_in_sol(fast, torch.randint(0, 10, (2, 3)))


def _by_groups(x):
    """Another graph for each batch size."""
    return torch.stack([x[i] * i for i in range(x.shape[0])])


# name: (function, how many of the batch sizes 0 to 7 run in PyTorch)
BATCH_DEPENDENT = {
    "more than 2": (lambda x: x * 2 if x.shape[0] > 2 else x + 1, 0),
    "more than 3": (lambda x: x * 2 if x.shape[0] > 3 else x + 1, 0),
    "more than 1": (lambda x: x * 2 if x.shape[0] > 1 else x + 1, 1),
    "even": (lambda x: x * 2 if x.shape[0] % 2 == 0 else x + 1, 0),
    "squeezed": (lambda x: x.mul(2).squeeze(), 0),
    "turned": (lambda x: x.reshape(-1, 1, 3).permute(0, 2, 1).reshape(-1, 3) * 2, 0),
    "sum of an empty batch": (lambda x: x.sum(0), 1),
    "one graph each": (_by_groups, 4),
}


@pytest.mark.parametrize("function, n_left", BATCH_DEPENDENT.values(), ids=BATCH_DEPENDENT.keys())
def test_each_range_of_batches_has_its_graph(function, n_left):
    """Each range of batch sizes that torch.export's guards allow has one graph, up to a limit."""
    fast = sol.optimize(Function(function).eval(), sol.input([0, 3]))
    for _ in range(2):
        before = sum(sol.fallbacks(fast).values())
        for n in range(8):
            x = torch.randn(n, 3)
            with torch.no_grad():
                try:
                    expected = function(x)
                except RuntimeError:
                    continue  # of an empty batch
                assert_equal(fast(x), expected)
        assert sum(sol.fallbacks(fast).values()) - before <= n_left


def test_compile_and_trace_see_the_original(fast, net, x):
    with torch.no_grad():
        traced = torch.jit.trace(fast, x)
        assert_equal(traced(2 * x), net(2 * x))
        exported = torch.export.export(fast, (x,))
        assert_equal(exported.module()(x), net(x))


def test_names_of_the_user(fast):
    fast.devices = 3
    assert fast.devices == 3 and vars(fast)["_original"].devices == 3
    assert "sol.optimize(Net(" in repr(fast)


class Listed(torch.nn.Linear):
    """A module with a list, which torch.export replaces by an equal copy."""

    def __init__(self):
        super().__init__(3, 3)
        self.sizes = [[3], [3]]

    def forward(self, x):
        return super().forward(x) * len(self.sizes)


def test_two_optimized_modules_of_one_model_do_not_disturb_each_other():
    model, x = Listed().eval(), torch.randn(2, 3)
    both = [sol.optimize(model, sol.input([0, 3])) for _ in range(2)]
    with torch.no_grad():
        for fast in both * 3:
            torch.testing.assert_close(fast(x), model(x))
        model.sizes = [[3]]
        for fast in both * 2:
            torch.testing.assert_close(fast(x), model(x))
    assert [sol.recompiles(fast) for fast in both] == [1, 1]
    assert not any(map(sol.fallbacks, both))


def test_garbage_is_collected_as_before(net):
    class Refused(torch.nn.Module):
        def forward(self, x):
            raise ValueError("no")

    for is_on in True, False:
        (gc.enable if is_on else gc.disable)()
        try:
            sol.optimize(net, sol.input([0, 3, 9, 7]))
            assert gc.isenabled() == is_on
            with pytest.raises(ValueError):
                sol.optimize(Refused(), sol.input([0, 3]))
            assert gc.isenabled() == is_on
        finally:
            gc.enable()


# ---- TorchScript and functional transforms ----


def test_torchscript(net, x):
    """A TorchScript module has no forward in Python to capture: PyTorch runs all calls."""
    script = torch.jit.trace(net, x)
    fast = sol.optimize(script, sol.input([0, 3, 9, 7]))
    assert_falls_back(fast, "TorchScript", x)
    assert_equal(copy.deepcopy(fast)(x), net(x))
    assert list(fast.state_dict()) == list(script.state_dict())
    assert len(list(fast.parameters())) == len(list(net.parameters()))
    with pytest.raises(NotImplementedError, match="TorchScript"):
        sol.optimize(script, sol.input([0, 3, 9, 7]), fullgraph=True)


@pytest.mark.parametrize("grad", [torch.no_grad, torch.enable_grad])
def test_vmap(fast, net, grad):
    many = torch.randn(4, 2, 3, 9, 7)
    with grad():
        assert_equal(torch.vmap(fast)(many), torch.stack([net(x) for x in many]))


def test_jacobian(net):
    fast, x = sol.optimize(net.fc, sol.input([0, 8])), torch.randn(2, 8)
    assert_equal(torch.func.jacrev(fast)(x), torch.func.jacrev(net.fc)(x))
    assert_equal(torch.func.jacfwd(fast)(x), torch.func.jacfwd(net.fc)(x))


def test_mode_that_counts_operations(fast, x):
    """A mode that counts operations must see PyTorch's own operators, so PyTorch runs the call."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        fast(x)
    assert counter.get_total_flops() > 0
    assert_runs_in_sol(fast, x)


def test_mode_of_functions(fast, net, x):
    class Seen(torch.overrides.TorchFunctionMode):
        n = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Seen.n += 1
            return function(*args, **(kwargs or {}))

    assert_runs_in_sol(fast, x)
    with torch.no_grad(), Seen():
        assert_equal(fast(x), net(x))
    assert Seen.n > 3


def test_call_for_inference_with_gradients_is_explained(fast, x, capfd):
    """A call outside of torch.no_grad() is logged once, at the default level, with the remedy."""
    for _ in range(3):
        fast(x)
    said = [line for line in capfd.readouterr().err.splitlines() if "gradient" in line]
    assert len(said) == 1 and said[0].startswith("sol: warning: ") and "torch.no_grad()" in said[0]


# ---- Every failure is a reason to fall back ----


@pytest.mark.parametrize("where", ["capture", "describe_graph", "import_graph"])
@pytest.mark.parametrize(
    "error", [KeyError("x"), TypeError("no"), RecursionError("deep"), MemoryError()]
)
def test_any_exception_is_a_reason(net, x, monkeypatch, where, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(plan, where, fail)
    fast = sol.optimize(net, sol.input([0, 3, 9, 7]))
    assert_falls_back(fast, type(error).__name__, x)
    with pytest.raises(NotImplementedError, match=type(error).__name__):
        sol.optimize(net, sol.input([0, 3, 9, 7]), fullgraph=True)


def test_compile_that_fails_is_a_reason(net, x, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("the compiler is gone")

    monkeypatch.setattr(plan, "Bar", fail)
    assert_falls_back(sol.optimize(net, sol.input([0, 3, 9, 7])), "compiler is gone", x)


@pytest.mark.parametrize("shape", [(2, 3, 9, 7), [2, 3, 9, 7]])
def test_shape_without_sol_input(net, shape):
    with pytest.raises(TypeError, match=r"sol\.input\(\[2, 3, 9, 7\]\)"):
        sol.optimize(net, shape)
    with pytest.raises(TypeError, match=r"sol\.input\(\[2, 3, 9, 7\]\)"):
        sol.optimize(net, *shape)

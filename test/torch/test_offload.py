"""Far devices: models and data are the host's, SOL computes on the device. The device ``far`` is another process of this machine."""

import copy
import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import sol.pytorch as sol
from sol.pytorch import importer
from sol.pytorch.module import engine_of

pytestmark = pytest.mark.skipif(
    not sol.devices().get("far", (False,))[0], reason="kernels of far devices are compiled"
)


@pytest.fixture(autouse=True)
def far():
    sol.device.set(sol.device.far)
    yield
    sol.device.set(None)


@pytest.fixture
def no_worker():
    """No device is open at the beginning of the test."""
    torch.compiler.reset()
    gc.collect()
    assert not workers()


class Net(nn.Module):
    """Convolution, BatchNorm, ReLU, mean, linear."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def make_mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def program_of(fast, *inputs):
    return engine_of(fast).find_run(inputs, {})[0].program


def moved(program, call):
    """Returns what ``call()`` adds to the program's transfers."""
    before = program.transfers
    call()
    return {name: n - before[name] for name, n in program.transfers.items()}


def check(fast, model, *inputs):
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    assert not sol.fallbacks(fast)


# ---- Inference ----


def test_call_moves_inputs_and_outputs_only():
    model = Net().eval()
    fast = sol.optimize(model, sol.input([0, 3, 16, 16]))
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        first = fast(x)
        program = program_of(fast, x)
        for _ in range(4):  # the first of them in Python, the others by a shortcut
            found = moved(program, lambda: check(fast, model, x))
            launches = found.pop("launches")
            assert found == {"to_device": x.nbytes, "to_host": first.nbytes, "weights": 0}
            assert launches >= 2
    assert engine_of(fast).shortcut is not None


def test_new_parameters_are_copied_once():
    model = make_mlp().eval()
    fast = sol.optimize(model, sol.input([0, 16]))
    x = torch.randn(3, 16)
    check(fast, model, x)
    program, size = program_of(fast, x), sum(p.nbytes for p in model.parameters())
    model.load_state_dict(make_mlp().state_dict())
    assert moved(program, lambda: check(fast, model, x))["weights"] == size
    assert moved(program, lambda: check(fast, model, x))["weights"] == 0
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert moved(program, lambda: check(fast, model, x))["weights"] == size


def test_memory_formats_and_batches():
    model = Net().eval()
    fast = sol.optimize(model, sol.input([0, 3, 16, 16]))
    x = torch.randn(4, 3, 16, 16)
    for y in x, x[:1], x.contiguous(memory_format=torch.channels_last), x[:, :, :, ::1][::2]:
        check(fast, model, y)
    check(fast, model, torch.randn(2, 3, 16, 32)[..., ::2])
    check(fast, model, x[:0])


def test_autocast():
    model = make_mlp().eval()
    fast = sol.optimize(model, sol.input([0, 16]))
    x = torch.randn(3, 16)
    with torch.no_grad(), torch.autocast("cpu"):
        y = fast(x)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y, model(x), rtol=2e-2, atol=2e-2)
    assert not sol.fallbacks(fast)


class WithHost(nn.Module):
    """PyTorch computes bessel_j0 inside of the program."""

    def forward(self, x):
        return torch.relu(torch.special.bessel_j0(x * 2)) + 1


def test_host_nodes(monkeypatch):
    monkeypatch.setattr(importer, "LAYERS_PER_HOST", 0)
    model = WithHost()
    fast = sol.optimize(model, sol.input([0, 16]))
    x = torch.randn(3, 16)
    check(fast, model, x)
    assert len(sol.host_nodes(fast)) == 1
    found = moved(program_of(fast, x), lambda: check(fast, model, x))
    assert found["to_device"] == found["to_host"] == 2 * x.nbytes


def test_torch_compile():
    model = make_mlp().eval()
    fast = torch.compile(model, backend="sol")
    x = torch.randn(3, 16)
    for _ in range(3):
        check(fast, model, x)


def test_bad_data():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)).eval()
    fast = sol.optimize(model, sol.input([0, 3], dtype=torch.int64))
    check(fast, model, torch.tensor([[1, 2, 9]]))
    with torch.no_grad(), pytest.raises(IndexError):
        fast(torch.tensor([[1, 2, 10]]))
    with torch.no_grad():
        fast(torch.tensor([[1, 2, 3]]))


def test_two_devices_and_threads():
    nets = []
    for number in 0, 1:
        sol.device.set("far", number)
        model = make_mlp().eval()
        nets.append((sol.optimize(model, sol.input([0, 16])), model))

    def run(i):
        for batch in range(1, 20):
            check(*nets[i % 2], torch.randn(batch, 16))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))


def test_copy_runs_on_the_device():
    model = make_mlp().eval()
    fast = sol.optimize(model, sol.input([0, 16]))
    sol.device.set(None)
    other = copy.deepcopy(fast)
    x = torch.randn(2, 16)
    check(other, model, x)
    assert program_of(other, x).transfers["launches"]


def test_resnet():
    models = pytest.importorskip("torchvision.models")
    model = models.resnet18().eval()
    fast = sol.optimize(model, sol.input([0, 3, 64, 64]))
    for batch in 1, 2:
        check(fast, model, torch.randn(batch, 3, 64, 64))


def test_fallbacks_have_reasons():
    model = make_mlp().eval()
    fast = sol.optimize(model, sol.input([0, 16]))
    x = torch.randn(3, 4, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    ((reason, n),) = sol.fallbacks(fast).items()
    assert "f32[3,4,16]" in reason and n == 1


# ---- The choice of a device ----


def test_set_is_the_option():
    sol.device.set(sol.device.far, 1)
    assert sol.device.get() == ("far", 1)
    assert (sol.config["compiler::device"], sol.config["compiler::device_number"]) == ("far", 1)
    sol.device.set("")
    assert sol.device.get() == ("", 0)


@pytest.mark.parametrize(
    "args, error, text",
    [
        (("far", 2), RuntimeError, "there is no far 2, but 2 of them"),
        (("far", -1), ValueError, "0 or more, not -1"),
        (("gpu",), ValueError, "it can be x86, "),
        (("far", 0.5), TypeError, "a name and a number"),
        (("x86", 1), ValueError, "there is no device x86 1: it is the only one"),
        ((None, 1), ValueError, "needs the name of a device"),
        ((7,), TypeError, "a name and a number"),
    ],
)
def test_wrong_devices(args, error, text):
    with pytest.raises(error, match=text):
        sol.device.set(*args)
    assert sol.device.get() == ("far", 0)


def test_number_is_checked_before_the_first_call():
    sol.config["compiler::device_number"] = 9
    with pytest.raises(RuntimeError, match="there is no far 9, but 2 of them"):
        sol.optimize(make_mlp().eval(), sol.input([0, 16]))


def test_pytorch_is_not_timed(monkeypatch):
    """Who chooses a device gets it."""
    monkeypatch.setitem(sol.config._values, "compiler::never_slower", True)
    fast = sol.optimize(make_mlp().eval(), sol.input([0, 16]))
    x = torch.randn(3, 16)
    with torch.no_grad():
        for _ in range(50):
            fast(x)
    assert not sol.fallbacks(fast)
    (entry,) = engine_of(fast)._entries()
    assert entry.selector is None


# ---- Training ----


def gradients(module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    module(x).square().sum().backward()
    return [x.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize("make, shape", [(make_mlp, (16,)), (Net, (3, 8, 8))])
def test_gradients(make, shape):
    model = make().train()
    fast = sol.optimize(model, sol.input([0, *shape]))
    other = copy.deepcopy(model)
    for batch in 4, 4, 7:
        x = torch.randn(batch, *shape)
        torch.testing.assert_close(gradients(fast, x), gradients(other, x), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-5)
    assert not sol.fallbacks(fast)


def train(module, model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()


def test_steps_of_an_optimizer():
    model = Net().train()
    other = copy.deepcopy(model)
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    batches = [(torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))) for _ in range(5)]
    train(fast, model, batches)
    train(other, other, batches)
    torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-3, atol=1e-4)
    check(fast.eval(), other.eval(), batches[0][0])


def test_saved_values_stay_on_the_device():
    """A step moves inputs, outputs, and gradients; of what it saves, a name is on the host."""
    model = make_mlp().train()
    fast = sol.optimize(model, sol.input([0, 16]))
    x = torch.randn(1000, 16)
    gradients(fast, x)
    plan = engine_of(fast).find_run((x,), {})[0]
    assert plan.program.memory([1000])["saved"] > 1000 * 32 * 3
    assert plan.take_saved((1000,)).nbytes == 64


def test_saved_memory_is_used_again():
    model = make_mlp().train()
    fast = sol.optimize(model, sol.input([0, 16]))
    x = torch.randn(5, 16)
    graphs = [fast(x * i).sum() for i in range(3)]  # three blocks at the same time
    found = []
    for y in graphs[::-1]:
        model.zero_grad()
        y.backward()
        found.append(model[0].weight.grad.clone())
    for i, grad in zip((2, 1, 0), found):
        model.zero_grad()
        copy.deepcopy(model)
        (expected,) = torch.autograd.grad(model(x * i).sum(), [model[0].weight])
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)


def test_hooks_may_not_move_what_is_saved():
    fast = sol.optimize(make_mlp().train(), sol.input([0, 16]))
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
        y = fast(torch.randn(5, 16)).sum()
    with pytest.raises(ValueError, match="may not be moved"):
        y.backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    model = make_mlp().train()
    other = copy.deepcopy(model)
    fast = sol.optimize(model, sol.input([0, 16]))
    x = torch.randn(5, 16, requires_grad=True)
    checkpoint(fast, x, use_reentrant=reentrant).square().sum().backward()
    other(x).square().sum().backward()
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


def test_torch_compile_trains():
    model = make_mlp().train()
    other = copy.deepcopy(model)
    fast = torch.compile(model, backend="sol")
    for _ in range(2):
        x = torch.randn(5, 16)
        for a, b in zip(gradients(fast, x), gradients(other, x)):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert not sol.fallbacks(fast)


# ---- Devices that fail ----


def workers():
    """Returns the ids of the processes that are far devices of this process."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file, open(f"/proc/{name}/cmdline") as line:
                parent, is_far = file.read().rsplit(")")[1].split()[1], line.read() == "sol-far\0"
        except OSError:
            continue
        if is_far and int(parent) == os.getpid():
            found.add(int(name))
    return found


def test_dead_device(no_worker):
    """Its calls raise, those of another device go on; `refresh` opens it again."""
    model, x = make_mlp().eval(), torch.randn(3, 16)
    fast = sol.optimize(model, sol.input([0, 16]))
    (pid,) = workers()
    sol.device.set("far", 1)
    other = sol.optimize(model, sol.input([0, 16]))
    for _ in range(3):
        check(fast, model, x)
    check(other, model, x)
    os.kill(pid, signal.SIGKILL)
    with torch.no_grad():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="far 0: .*signal 9"):
                while True:
                    fast(x)
    check(other, model, x)
    assert not sol.fallbacks(fast)
    sol.refresh(fast)
    check(fast, model, x)


def test_dead_device_of_torch_compile(no_worker):
    model, x = make_mlp().eval(), torch.randn(3, 16)
    fast = torch.compile(model, backend="sol")
    check(fast, model, x)
    (pid,) = workers()
    os.kill(pid, signal.SIGKILL)
    with torch.no_grad(), pytest.raises(RuntimeError, match="far 0: .*signal 9"):
        for _ in range(100):
            fast(x)
    sol.refresh(fast)
    gc.collect()
    check(fast, model, x)
    assert workers()


def test_device_dies_in_the_middle_of_a_step(no_worker, monkeypatch):
    monkeypatch.setenv("SOL_FAR", "die=4")
    model = Net().eval()
    fast = sol.optimize(model, sol.input([0, 3, 8, 8]))
    with torch.no_grad(), pytest.raises(RuntimeError, match="far 0: .*: the device's process"):
        for _ in range(5):
            fast(torch.randn(1, 3, 8, 8))


def test_dead_device_in_training(no_worker):
    model = make_mlp().train()
    fast = sol.optimize(model, sol.input([0, 16]))
    (pid,) = workers()
    y = fast(torch.randn(3, 16)).sum()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="far 0: .*signal 9"):
        y.backward()
    del y


def test_too_little_memory(no_worker, monkeypatch):
    monkeypatch.setenv("SOL_FAR", "memory=1")
    fast = sol.optimize(nn.Linear(1024, 1024).eval(), sol.input([0, 1024]))
    with torch.no_grad(), pytest.raises(MemoryError, match="far 0: no memory for"):
        fast(torch.randn(2, 1024))


def test_worker_ends_with_its_last_network(no_worker):
    fast = sol.optimize(make_mlp().eval(), sol.input([0, 16]))
    check(fast, vars(fast)["_original"], torch.randn(2, 16))
    assert len(workers()) == 1
    del fast
    gc.collect()
    assert not workers()


# ---- Reports ----


def test_profile_has_transfers(tmp_path):
    fast = sol.optimize(make_mlp().eval(), sol.input([0, 16]))
    x = torch.randn(1000, 16)
    profile = sol.profile(fast, x, runs=2)
    assert profile.transfers["to_device"] == x.nbytes
    assert "a call copies 62.5 KiB to the device, 15.6 KiB to the host" in str(profile)
    path = tmp_path / "report.html"
    sol.report(fast, x, path=path, runs=2)
    assert "to the device" in path.read_text()


# ---- Last, as Dynamo frees no graph: the device stays open ----


class WithBreak(nn.Module):
    """Reads a value of a tensor: two graphs."""

    def __init__(self):
        super().__init__()
        self.a, self.b = make_mlp(), make_mlp()

    def forward(self, x):
        y = self.a(x)
        return self.b(x) * 2 if y.sum() > 1e9 else self.b(x + 1)


def test_graph_breaks():
    model = WithBreak().eval()
    fast = sol.optimize(model, sol.input([3, 16]))
    x = torch.randn(3, 16)
    sol.device.set(None)  # the network stays on its device
    check(fast, model, x)
    check(fast, model, x)
    graphs = sol.graphs(fast)
    assert len(graphs) == 2 and not any(graph.reason for graph in graphs)
    for pid in workers():
        os.kill(pid, signal.SIGKILL)
    with torch.no_grad(), pytest.raises(RuntimeError, match="far 0: .*signal 9"):
        for _ in range(100):
            fast(x)
    sol.refresh(fast)
    gc.collect()
    check(fast, model, x)

"""Buffers that a forward writes: counters, running statistics, caches. Results and buffers are compared with eager after each call."""

import copy
import threading

import pytest
import torch
from torch import nn

import sol


class Counter(nn.Module):
    """Counts calls in an i64 buffer, and returns a value that depends on the count."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.n += 1
        return torch.relu(self.linear(x)) + self.n


class Mean(nn.Module):
    """A running mean by hand, which is read before and after the write."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        y = self.linear(x) - self.mean
        self.mean.mul_(0.75).add_(y.mean(0), alpha=0.25)
        return y * self.mean


class Cache(nn.Module):
    """A cache that is written by slices, beside the last input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(2, 6, 4))
        self.register_buffer("last", torch.zeros(2, 4), persistent=False)

    def forward(self, x):
        y = self.linear(x)
        self.cache[:, 1:] = self.cache[:, :-1].clone()
        self.cache[:, 0] = y
        self.cache[1, 5].fill_(2.0)
        before = self.last.clone()
        self.last.copy_(y)
        return self.cache.sum(1) + before


class Weight(nn.Module):
    """Writes the weight of a convolution, its bias, and a scale, which would be folded if they were constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.randn(8, 8, 3, 3))
        self.register_buffer("b", torch.randn(8))
        self.register_buffer("s", torch.randn(8, 1, 1))

    def forward(self, x):
        y = nn.functional.conv2d(x, self.w, self.b, padding=1) * self.s
        self.w.mul_(0.5)
        self.b.add_(1)
        self.s.sub_(0.125)
        return y


class Attention(nn.Module):
    """Keys and values of one position per call, at an index that is a buffer, too. PyTorch writes them, inside of the program."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(2, 32, 4))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        query = self.linear(x)
        self.keys.index_copy_(1, self.at % 32, query)
        self.at += 1
        return torch.softmax(query @ self.keys.transpose(1, 2), -1) @ self.keys


class Types(nn.Module):
    """Buffers of several element types; a maximum of all calls; a history; buffers that are only overwritten."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("best", torch.tensor(-1e9))
        self.register_buffer("history", torch.zeros(3, 4))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))
        self.register_buffer("small", torch.zeros(2, dtype=torch.uint8))
        self.register_buffer("middle", torch.zeros(2, dtype=torch.int32))

    def forward(self, x):
        y = torch.relu(self.linear(x))
        self.best.copy_(torch.maximum(self.best, y.max()))
        self.history.copy_(torch.roll(self.history, 1, 0))
        self.history[0] = y.mean(0)
        self.seen.fill_(True)
        self.small.add_(1)
        self.middle.zero_()
        self.middle[1] = 7
        return y - self.best


NETWORKS = [
    (Counter, (3, 4)),
    (Mean, (3, 4)),
    (Cache, (2, 4)),
    (Weight, (2, 8, 5, 5)),
    (Attention, (2, 1, 4)),
    (Types, (3, 4)),
]
PARTIAL = Weight, Attention


def make_pair(kind, shape):
    """PyTorch computes parts of the networks in PARTIAL, such as a convolution whose weight is written."""
    torch.manual_seed(0)
    eager = kind().eval()
    example = sol.input([0, *shape[1:]]) if kind in (Counter, Mean) else torch.randn(shape)
    optimized = sol.optimize(copy.deepcopy(eager), example, fullgraph=kind not in PARTIAL)
    return eager, optimized


def check_equal(eager, optimized, x):
    with torch.no_grad():
        expected, y = eager(x), optimized(x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    check_state(eager, optimized)


def check_state(eager, optimized):
    ours = dict(optimized.named_buffers())
    for name, buffer in eager.named_buffers():
        mine = next(x for path, x in ours.items() if path.endswith(name))
        torch.testing.assert_close(mine, buffer, rtol=1e-4, atol=1e-5)


def find_buffer(optimized, name):
    return next(x for path, x in optimized.named_buffers() if path.split(".")[-1] == name)


@pytest.mark.parametrize("kind, shape", NETWORKS)
def test_calls(kind, shape):
    eager, optimized = make_pair(kind, shape)
    check_state(eager, optimized)  # the capture writes nothing
    for i in range(10):
        check_equal(eager, optimized, torch.randn(shape))
        if i == 4:  # the user writes
            with torch.no_grad():
                for name, buffer in eager.named_buffers():
                    buffer.copy_(buffer + 3)
                    find_buffer(optimized, name).copy_(buffer)
        if i == 7:  # so does load_state_dict
            state = {key: x * 2 for key, x in eager.state_dict().items()}
            eager.load_state_dict(state)
            keys = optimized.state_dict().keys()
            optimized.load_state_dict({key: state[_match(key, state)] for key in keys})
    assert not sol.fallbacks(optimized)


def _match(key, state):
    return next(name for name in state if key.endswith(name))


@pytest.mark.parametrize("kind, shape", NETWORKS)
def test_moved(kind, shape):
    """Buffers that the user replaces, also by `.data`."""
    eager, optimized = make_pair(kind, shape)
    for i in range(4):
        check_equal(eager, optimized, torch.randn(shape))
        for name, buffer in list(eager.named_buffers()):
            mine = find_buffer(optimized, name)
            if i % 2:
                mine.data = (buffer + 1).to(buffer.dtype)
            else:
                owner = next(m for m in optimized.modules() if m._buffers.get(name) is mine)
                setattr(owner, name, (buffer + 1).to(buffer.dtype))
            setattr(eager, name, (buffer + 1).to(buffer.dtype))
    assert not sol.fallbacks(optimized)


def test_no_new_weights(monkeypatch):
    """The network's own writes need no prepack; a write to another tensor does. Versions are counted up."""
    from sol.pytorch.plan import Plan

    made = []
    make = Plan.make_weights
    monkeypatch.setattr(Plan, "make_weights", lambda *args: made.append(1) or make(*args))
    eager, optimized = make_pair(Mean, (3, 4))
    mean = find_buffer(optimized, "mean")
    for _ in range(5):
        version = mean._version
        check_equal(eager, optimized, torch.randn(3, 4))
        assert mean._version > version
    assert len(made) == 1
    with torch.no_grad():
        for network in eager, optimized:
            next(network.parameters()).add_(1)
    check_equal(eager, optimized, torch.randn(3, 4))
    assert len(made) == 2


def test_selector():
    """A network that writes never runs in SOL and PyTorch for one call: it has no selector."""
    torch.manual_seed(0)
    optimized = sol.optimize(Counter().eval(), torch.randn(3, 4))
    n = find_buffer(optimized, "n")
    with torch.no_grad():
        for i in range(40):
            optimized(torch.randn(3, 4))
            assert n.item() == i + 1


def test_batches():
    eager, optimized = make_pair(Mean, (3, 4))
    for n in 3, 1, 7, 2:
        check_equal(eager, optimized, torch.randn(n, 4))


def test_gradient_and_training():
    """Calls that PyTorch runs write the same buffers."""
    eager, optimized = make_pair(Counter, (3, 4))
    check_equal(eager, optimized, torch.randn(3, 4))
    x = torch.randn(3, 4)
    torch.testing.assert_close(optimized(x), eager(x))
    check_equal(eager, optimized, x)
    eager.train(), optimized.train()
    check_equal(eager, optimized, x)
    eager.eval(), optimized.eval()
    check_equal(eager, optimized, x)


def test_inference_mode():
    with torch.inference_mode():
        eager = Mean().eval()
        optimized = sol.optimize(copy.deepcopy(eager), torch.randn(3, 4), fullgraph=True)
        for _ in range(3):
            check_equal(eager, optimized, torch.randn(3, 4))


def test_autograd_notices():
    """A tensor that autograd has saved is known to be overwritten."""
    _, optimized = make_pair(Mean, (3, 4))
    w = torch.ones(4, requires_grad=True)
    y = (w * find_buffer(optimized, "mean")).sum()
    with torch.no_grad():
        optimized(torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_other_plan():
    """A network that only reads a buffer which another one writes computes with the new values."""

    class Reader(nn.Module):
        def __init__(self, w):
            super().__init__()
            self.register_buffer("w", w)

        def forward(self, x):
            return nn.functional.linear(x, self.w)

    class Writer(nn.Module):
        def __init__(self, w):
            super().__init__()
            self.register_buffer("w", w)

        def forward(self, x):
            self.w.add_(1)
            return nn.functional.relu(x) @ self.w.clone()

    w, x = torch.zeros(4, 4), torch.ones(2, 4)
    reader, writer = (sol.optimize(kind(w).eval(), x) for kind in (Reader, Writer))
    with torch.no_grad():
        for i in range(3):
            assert reader(x).eq(4 * i).all()
            assert writer(x).eq(4 * i + 4).all()
    assert not sol.fallbacks(reader) and not sol.fallbacks(writer)


def test_flag():
    """With one constant the forward writes, with the other one it only reads."""

    class Switch(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", torch.eye(4))

        def forward(self, x, writes):
            if writes:
                self.w.add_(1)
            return nn.functional.linear(x, self.w)

    eager = Switch().eval()
    optimized = sol.optimize(copy.deepcopy(eager), torch.randn(2, 4), True)
    for writes in (True, False, True, True, False, False, True, False):
        x = torch.randn(2, 4)
        with torch.no_grad():
            torch.testing.assert_close(optimized(x, writes), eager(x, writes))
        check_state(eager, optimized)


def test_deepcopy():
    eager, optimized = make_pair(Counter, (3, 4))
    check_equal(eager, optimized, torch.randn(3, 4))
    eager2, copied = copy.deepcopy(eager), copy.deepcopy(optimized)
    for _ in range(3):
        check_equal(eager2, copied, torch.randn(3, 4))
    check_equal(eager, optimized, torch.randn(3, 4))
    check_equal(eager2, copied, torch.randn(3, 4))


def test_threads():
    """Several threads, with the user's lock."""
    _, optimized = make_pair(Counter, (3, 4))
    lock, x = threading.Lock(), torch.randn(3, 4)

    def work():
        with torch.no_grad():
            for _ in range(50):
                with lock:
                    optimized(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert find_buffer(optimized, "n").item() == 200


def test_input_is_buffer():
    """An input in the memory of a buffer that is written: eager reads it after the write."""
    eager, optimized = make_pair(Mean, (3, 4))
    check_equal(eager, optimized, torch.randn(3, 4))
    with torch.no_grad():
        mine = find_buffer(optimized, "mean")
        y = optimized(mine.expand(3, 4))
        torch.testing.assert_close(y, eager(eager.mean.expand(3, 4)))
    assert any("shares memory with mean" in reason for reason in sol.fallbacks(optimized))


class WritesAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return x * 2


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(2, 4))
        self.b = self.a[0]

    def forward(self, x):
        self.a.add_(1)
        return x + self.a


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(4, 2).t())

    def forward(self, x):
        self.a.add_(1)
        return x + self.a[0]


@pytest.mark.parametrize(
    "kind, reason",
    [
        (WritesAttribute, "writes to"),
        (Shared, "another tensor of the model shares memory with"),
        (Sparse, "not dense"),
    ],
)
def test_refused(kind, reason):
    eager = kind().eval()
    optimized = sol.optimize(copy.deepcopy(eager), torch.randn(2, 4))
    for _ in range(3):
        x = torch.randn(2, 4)
        with torch.no_grad():
            torch.testing.assert_close(optimized(x.clone()), eager(x.clone()))
        check_state(eager, optimized)
    assert any(reason in text for text in sol.fallbacks(optimized))


class ReturnsBuffer(Counter):
    def forward(self, x):
        super().forward(x)
        return self.n


class ReturnsView(Cache):
    def forward(self, x):
        super().forward(x)
        return self.cache[:, 0]


@pytest.mark.parametrize("kind", [ReturnsBuffer, ReturnsView])
def test_written_buffer_is_result(kind):
    """The result is the buffer itself, or lies in its memory, as in PyTorch."""
    eager, optimized = make_pair(kind, (2, 4))
    for _ in range(3):
        x = torch.randn(2, 4)
        with torch.no_grad():
            got, expected = optimized(x), eager(x)
            torch.testing.assert_close(got, expected)
            got.add_(3), expected.add_(3)
        check_state(eager, optimized)
        assert (got is getattr(optimized, "n", None)) == (expected is getattr(eager, "n", None))
    assert not sol.fallbacks(optimized)


def test_profile():
    """A profile writes nothing."""
    eager, optimized = make_pair(Mean, (3, 4))
    check_equal(eager, optimized, torch.randn(3, 4))
    sol.profile(optimized, torch.randn(3, 4))
    check_state(eager, optimized)
    check_equal(eager, optimized, torch.randn(3, 4))


def test_deploy(tmp_path):
    with pytest.raises(Exception, match="a library has no state.*mean"):
        sol.deploy(Mean().eval(), torch.randn(3, 4), path=str(tmp_path))

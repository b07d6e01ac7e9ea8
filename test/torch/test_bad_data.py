"""Data and sizes that a network refuses: indices out of range, empty tensors, masks. Each call gives PyTorch's result, or an exception
of PyTorch's type, and a good call afterwards runs as before."""

import pytest
import torch
from conftest import assert_equal, assert_runs_in_sol, outcome
from torch import nn
from torch.nn import functional as F

import sol.pytorch as sol

IDS, SMALL_IDS, MASK = torch.int64, torch.int32, torch.bool


pytestmark = pytest.mark.usefixtures("few_layers")


class Model(nn.Module):
    """``function(self, *inputs)``, with a linear layer ``fc`` and a table ``w`` of 5 rows."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.fc = function, nn.Linear(4, 4)
        self.w = nn.Parameter(torch.randn(5, 4))

    def forward(self, *args):
        return self.function(self, *args)


def check(function, specs, good, bad):
    """Compares calls with PyTorch. ``bad``: lists of inputs; each is tried before and after the shortcut was made."""
    fast = sol.optimize(Model(function).eval(), *specs)
    assert not sol.fallbacks(fast)
    for inputs in [*bad, *bad]:
        with torch.no_grad():
            expected, got = (
                outcome(f, [x.clone() for x in inputs], {}) for f in (vars(fast)["_original"], fast)
            )
        assert type(got) is type(expected), (inputs, got, expected)
        if isinstance(expected, Exception):
            assert str(got) == str(expected)
        else:
            assert_equal(got, expected)
        assert_runs_in_sol(fast, *good)
    return fast


# ---- Indices ----


def with_last(shape, value, dtype=IDS):
    """Indices of 0, the last one of which is ``value``."""
    x = torch.zeros(shape, dtype=dtype)
    x.view(-1)[-1] = value
    return x


def bad_indices(shape, n, dtype=IDS):
    """Indices for ``n`` values: each case has a wrong one, or is empty, or of another type."""
    far = 2**40 if dtype is IDS else 2**31 - 1
    yield from (with_last(shape, i, dtype) for i in (n, far, -1, -n, -n - 1, -(2**31)))
    yield torch.zeros((0, *shape[1:]), dtype=dtype)
    yield torch.zeros(shape, dtype=SMALL_IDS if dtype is IDS else IDS)
    yield torch.zeros(shape)
    yield torch.zeros(shape, dtype=torch.uint8)


def _assign(y, i):
    y[:, i] = 0
    return y


# name: (function of a tensor f32[*,5,4] and indices, shape of the indices, number of values)
INDEXED = {
    "table": (lambda s, x, i: s.fc(s.w[i]), (3,), 5),
    "index_select": (lambda s, x, i: s.fc(x).index_select(1, i), (3,), 5),
    "index": (lambda s, x, i: s.fc(x)[:, i], (3,), 5),
    "two indices": (lambda s, x, i: s.fc(x)[i, i], (3,), 2),
    "assigned": (lambda s, x, i: _assign(s.fc(x), i), (3,), 5),
    "gather": (lambda s, x, i: s.fc(x).gather(1, i), (2, 3, 4), 5),
    "take_along_dim": (lambda s, x, i: torch.take_along_dim(s.fc(x), i, 1), (2, 3, 4), 5),
    "scatter": (lambda s, x, i: s.fc(x).scatter(1, i, 2.0), (2, 3, 4), 5),
    "scatter_add": (lambda s, x, i: s.fc(x).scatter_add(1, i, x), (2, 3, 4), 5),
    "index_add": (lambda s, x, i: s.fc(x).index_add(1, i, x[:, :3]), (3,), 5),
    "one_hot": (lambda s, x, i: s.fc(x).sum(1) + F.one_hot(i, 4), (2,), 4),
    "cross_entropy": (lambda s, x, i: F.cross_entropy(s.fc(x).sum(1), i), (2,), 4),
    "ignored class": (
        lambda s, x, i: F.cross_entropy(s.fc(x).sum(1), i, ignore_index=-1),
        (2,),
        4,
    ),
    "nll_loss": (lambda s, x, i: F.nll_loss(s.fc(x).sum(1).log_softmax(1), i), (2,), 4),
}


@pytest.mark.parametrize("function, shape, n", INDEXED.values(), ids=INDEXED.keys())
def test_index(function, shape, n):
    specs = sol.input([0, 5, 4]), sol.input([0, *shape[1:]] if shape[0] == 2 else shape, dtype=IDS)
    x = torch.randn(2, 5, 4)
    check(
        function,
        specs,
        (x, torch.zeros(shape, dtype=IDS)),
        [(x, i) for i in bad_indices(shape, n)],
    )


@pytest.mark.parametrize("dtype", [IDS, SMALL_IDS], ids=str)
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed length", "open length"])
def test_tokens(dtype, is_open):
    spec = sol.input([0, 0 if is_open else 3], dtype=dtype)
    good = torch.tensor([[0, 1, 4], [2, 3, 0]], dtype=dtype)
    bad = [[x] for x in bad_indices((2, 3), 5, dtype)]
    bad += [[good[:, :0]], [good[:0, :0]], [good[:1, :1] + 5]]
    fast = check(lambda s, i: s.fc(F.embedding(i, s.w)).relu(), [spec], [good], bad)
    assert "an index in the data is out of range" in sol.fallbacks(fast)


def test_reasons_of_bad_data_do_not_grow():
    fast = sol.optimize(nn.Embedding(5, 4).eval(), sol.input([0, 3], dtype=IDS))
    for i in range(5, 30):
        with torch.no_grad(), pytest.raises(IndexError, match="index out of range in self"):
            fast(torch.full((2, 3), i))
    assert sol.fallbacks(fast) == {"an index in the data is out of range": 25}


def test_fullgraph():
    fast = sol.optimize(nn.Embedding(5, 4).eval(), sol.input([0, 3], dtype=IDS), fullgraph=True)
    for _ in range(3):
        assert_runs_in_sol(fast, torch.zeros(2, 3, dtype=IDS))
        with torch.no_grad(), pytest.raises(IndexError, match="number 5, but there are 5 rows"):
            fast(torch.full((2, 3), 5))


def test_failed_call_writes_nothing():
    """PyTorch runs a call again that SOL refused: the buffer counts it once or, if the index is wrong there, too, as PyTorch does."""

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.register_buffer("n", torch.zeros((), dtype=IDS))

        def forward(self, i):
            y = self.table(i)
            self.n += 1
            return y + self.n

    fast, ids = sol.optimize(Counter().eval(), sol.input([0, 3], dtype=IDS)), torch.ones(2, 3)
    with torch.no_grad():
        for _ in range(3):
            fast(ids.long())
            with pytest.raises(IndexError):
                fast(ids.long() * 9)
    assert fast.n == 3


# ---- Empty tensors ----

EMPTY = {
    "linear": lambda s, x: s.fc(x),
    "argmax": lambda s, x: s.fc(x).argmax(1),
    "argmax of all": lambda s, x: s.fc(x).argmax(),
    "max": lambda s, x: tuple(s.fc(x).max(1)),
    "amax": lambda s, x: s.fc(x).amax(1),
    "amax of the batch": lambda s, x: s.fc(x).amax(0),
    "max of all": lambda s, x: s.fc(x).max(),
    "mean": lambda s, x: s.fc(x).mean(1),
    "mean of all": lambda s, x: s.fc(x).mean(),
    "sum of the batch": lambda s, x: s.fc(x).sum(0),
    "norm": lambda s, x: torch.linalg.vector_norm(s.fc(x), float("inf"), dim=1),
    "softmax": lambda s, x: s.fc(x).softmax(1),
    "median": lambda s, x: s.fc(x).median(1).values,
    "first": lambda s, x: s.fc(x)[:, 0],
    "last": lambda s, x: s.fc(x)[:, -1],
    "rows": lambda s, x: s.fc(x).reshape(x.shape[0], -1),
    "batches": lambda s, x: s.fc(x).reshape(-1, x.shape[1], 4),
    "differences": lambda s, x: s.fc(x).diff(dim=1),
    "all but the first": lambda s, x: s.fc(x)[:, 1:],
    "convolution": lambda s, x: F.conv1d(s.fc(x).transpose(1, 2), s.w[:3].reshape(3, 4, 1)),
    "pool": lambda s, x: F.max_pool1d(s.fc(x).transpose(1, 2), 2),
    "attention": lambda s, x: F.scaled_dot_product_attention(s.fc(x), x, x),
    "causal attention": lambda s, x: F.scaled_dot_product_attention(s.fc(x), x, x, is_causal=True),
    "positions": lambda s, x: s.fc(x) + s.w[torch.arange(x.shape[1])],
}


@pytest.mark.parametrize("function", EMPTY.values(), ids=EMPTY.keys())
def test_empty(function):
    shapes = (2, 0, 4), (0, 3, 4), (0, 0, 4), (1, 0, 4), (2, 1, 4), (2, 6, 4)
    bad = [[torch.randn(shape)] for shape in shapes]
    check(function, [sol.input([0, 0, 4])], [torch.randn(2, 3, 4)], bad)


# ---- Masks ----


def _attend(s, x, mask):
    return F.scaled_dot_product_attention(s.fc(x), x, x, attn_mask=mask)


def _masked_softmax(s, x, mask):
    return torch.softmax(
        (s.fc(x) @ x.transpose(1, 2)).masked_fill(mask.logical_not(), -torch.inf), -1
    )


@pytest.mark.parametrize("function", [_attend, _masked_softmax])
@pytest.mark.parametrize("dtype", [MASK, torch.float32], ids=str)
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
def test_mask(function, dtype, is_open):
    """Rows of which all values are masked give NaN or 0, as in PyTorch. Masks of other shapes and types are PyTorch's matter."""
    shape = [0, 0, 0] if is_open else [0, 5, 5]
    specs = sol.input([0, *shape[1:2], 4]), sol.input(shape, dtype=dtype)
    x, good = torch.randn(2, 5, 4), torch.ones(2, 5, 5, dtype=dtype)
    none = torch.zeros(2, 5, 5, dtype=MASK) if dtype is MASK else torch.full((2, 5, 5), -torch.inf)
    row = good.clone()
    row[1, 2] = none[1, 2]
    others = (
        none, row, good[:, :4, :4], good[:, :1], good[:, :, :1], good[:, :, :4], good[0], good[:1], good[:, 0], good.long(),
        good.double(), good[:0], good[:, :0], torch.full((2, 5, 5), torch.nan), good.to(torch.uint8),
    )  # fmt: skip
    bad = [(x, mask) for mask in others]
    bad += [(x[:0], good[:0]), (x[:, :0], good[:, :0, :0]), (x[:, :1], good[:, :1, :1])]
    check(function, specs, (x, good), bad)


# ---- Other values ----


def test_division_by_zero():
    """PyTorch raises an exception for integers, and gives NaN for floats."""

    def function(s, x, a, b):
        return s.fc(x) + a // b + a % b + x % b

    ones = torch.ones(2, 4, dtype=IDS)
    specs = sol.input([0, 4]), sol.input([0, 4], dtype=IDS), sol.input([0, 4], dtype=IDS)
    x = torch.randn(2, 4)
    check(function, specs, (x, ones, ones), [(x, ones, ones * 0), (x, ones, with_last((2, 4), 0))])


def test_losses():
    x = torch.randn(2, 4)
    bad = [(x, x + 2), (x, x * torch.nan), (x, x[:1]), (x, x[:, :3]), (x, x[0]), (x, x.long())]
    bad += [(x[:0], x[:0])]
    for loss in F.binary_cross_entropy, F.kl_div:
        check(
            lambda s, x, y, loss=loss: loss(s.fc(x).sigmoid(), y),
            [sol.input([0, 4])] * 2,
            (x, x.sigmoid()),
            bad,
        )

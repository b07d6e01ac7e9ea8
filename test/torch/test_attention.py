"""Attention with masks: rows of -inf, NaN and infinities give the same results as in PyTorch."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_equal, assert_runs_in_sol

import sol.pytorch as sol

torch.manual_seed(0)
INF = math.inf


class Attention(torch.nn.Module):
    def forward(self, x, mask):
        return F.scaled_dot_product_attention(x, x * 0.5, x + 1, attn_mask=mask)


class Sequence(torch.nn.Module):
    """Self-attention of [batch, length, 8] in which a mask of [batch, length] hides positions."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, mask):
        return self.inner(x, x, x, key_padding_mask=mask, need_weights=False)[0]


def masks(rows, columns):
    """Masks that hide some rows, one row, all rows, single elements; and masks with other special values."""
    some = torch.zeros(rows, columns)
    some[0] = -INF
    some[rows // 2 :, columns // 2] = -INF
    finite = torch.full((rows, columns), -3.4e38)
    odd = torch.zeros(rows, columns)
    odd[-1, 0] = math.nan
    upper = torch.full((rows, columns), -INF).triu(1)
    return {
        "some": some,
        "all": torch.full((rows, columns), -INF),
        "none": torch.zeros(rows, columns),
        "largest": finite,
        "nan": odd,
        "causal": upper,
        "future": torch.full((rows, columns), -INF).tril(),
    }


@pytest.mark.parametrize("shape", [(1, 1, 4, 8), (2, 3, 7, 5), (2, 17, 8), (1, 1, 1, 1)])
@pytest.mark.parametrize("name", masks(1, 1))
def test_masked_rows(shape, name):
    """The output of a row that is all -inf is 0; NaN stays NaN."""
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(shape)
    mask = masks(shape[-2], shape[-2])[name]
    with torch.no_grad():
        fast = sol.optimize(model, sol.input(shape), sol.input(mask.shape))
        assert_runs_in_sol(fast, x, mask)
        assert_runs_in_sol(fast, x * 3, mask)


def bool_masks(rows, columns):
    """True: seen. Masks whose keys are dense, alike for all keys or for all rows, and with other strides."""
    some = torch.rand(rows, columns) > 0.3
    return {
        "some": some,
        "all": torch.ones(rows, columns, dtype=torch.bool),
        "last": torch.arange(rows * columns).view(rows, columns) < rows * columns - 1,
        "rows": some[:, :1].expand(rows, columns),
        "keys": some[:1].expand(rows, columns),
        "turned": (torch.rand(columns, rows) > 0.3).T,
    }


class Bools(torch.nn.Module):
    """Attention with a mask that the network computes from a vector per row or key, or gets as it is."""

    def forward(self, q, k, mask):
        return F.scaled_dot_product_attention(
            q, k, k + 1, attn_mask=mask.expand(q.shape[-2], k.shape[-2])
        )


@pytest.mark.parametrize("rows, keys", [(5, 1), (17, 33), (64, 128), (70, 259), (1, 130)])
@pytest.mark.parametrize("name", bool_masks(1, 1))
def test_bools(rows, keys, name):
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, rows, 8), torch.randn(2, 3, keys, 8)
    mask = bool_masks(rows, keys)[name]
    for given in {"rows": [mask, mask[:, :1]], "keys": [mask, mask[:1]]}.get(name, [mask]):
        with torch.no_grad():
            fast = sol.optimize(Bools().eval(), q, k, given)
            assert_runs_in_sol(fast, q, k, given)


def test_sample_masked_wholly():
    """A sample that is hidden completely gives no NaN, neither in itself nor in other samples."""
    model, x = Sequence().eval(), torch.randn(3, 5, 8)
    mask = torch.zeros(3, 5)
    mask[1] = -INF
    mask[2, 3:] = -INF
    with torch.no_grad():
        want = model(x, mask)
        assert want.isfinite().all()
        fast = sol.optimize(model, sol.input([3, 5, 8]), sol.input([3, 5]))
        assert_equal(assert_runs_in_sol(fast, x, mask), want)


def test_softmax_itself_gives_nan():
    """Only attention gives 0 for such rows; the softmax of a row of -inf is NaN."""
    model, x = torch.nn.Softmax(-1).eval(), torch.full((2, 3), -INF)
    with torch.no_grad():
        assert sol.optimize(model, sol.input([2, 3]))(x).isnan().all()


def scaled(q, k, v):
    return ((q * 0.3) @ (k * 0.5).transpose(-2, -1) / 2).softmax(-1) @ v


def capped(q, k, v):
    return F.softmax(torch.tanh(q @ k.transpose(2, 3) / 5) * 5, -1, dtype=torch.float32) @ v


def masked_by_least(q, k, v):
    low = torch.finfo(torch.float32).min
    seen = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    return torch.where(seen, q @ k.transpose(-2, -1), low).softmax(-1) @ v


def masked_row(q, k, v):
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu()
    return (q @ k.transpose(-2, -1)).masked_fill(hidden, -INF).softmax(-1) @ v


def masked_twice(q, k, v):
    """The first row is hidden by two masks, of which the second one replaces the first one's values."""
    low = torch.finfo(torch.float32).min
    n = q.shape[2]
    some, row = torch.arange(n).expand(n, n) % 2 == 0, torch.arange(n)[:, None].expand(n, n) == 0
    scores = (q @ k.transpose(-2, -1)).masked_fill(some, low)
    return scores.masked_fill(row, low).softmax(-1) @ v


def windows(q, k, v):
    b, h, n, _ = q.shape
    scores = q @ k.transpose(-2, -1) + torch.linspace(-1, 1, h * n * n).view(1, h, n, n)
    scores = scores.view(-1, 2, h, n, n) + torch.linspace(0, 3, 2 * n * n).view(2, 1, n, n)
    return scores.view(b, h, n, n).softmax(-1) @ v


class Written(torch.nn.Module):
    """Attention of 4 heads that is written as products and a softmax."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, x):
        q, k, v = x.unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.attend(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    "attend", [scaled, capped, masked_by_least, masked_row, masked_twice, windows]
)
def test_written_attention(attend):
    """One layer computes it, which reads q, k and v in place. A row of a softmax that is masked as a whole is NaN."""
    torch.manual_seed(0)
    model, x = Written(attend).eval(), torch.randn(4, 9, 48)
    with torch.no_grad():
        fast = sol.optimize(model, sol.input([4, 9, 48]))
        y, expected = fast(x), model(x)
    assert torch.allclose(y, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert not sol.fallbacks(fast)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "rows, keys, d, e", [(128, 128, 64, 64), (77, 77, 33, 31), (5, 131, 1, 17), (70, 70, 96, 2)]
)
def test_bfloat16(rows, keys, d, e, causal):
    """The products round what they multiply to bfloat16, nothing else: the error is about that of the rounded weights."""

    class Net(torch.nn.Module):
        def forward(self, q, k, v, mask):
            q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
            if causal:
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3).float()
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3).float()

    q, k = torch.randn(2, 3, rows, d), torch.randn(2, 3, keys, d)
    inputs = q, k, torch.randn(2, 3, keys, e), torch.rand(rows, keys) > 0.2
    fast, rounded = sol.optimize(Net().eval(), *inputs), [x.bfloat16().double() for x in inputs[:3]]
    with torch.no_grad():
        y = fast(*inputs)
        options = {"is_causal": True} if causal else {"attn_mask": inputs[3]}
        expected = F.scaled_dot_product_attention(*rounded, scale=0.3, **options)
    assert not sol.fallbacks(fast)
    assert (y - expected).abs().max() < 0.01 * expected.abs().max()

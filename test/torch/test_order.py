"""Sorted values and scans (ops_order.py), and writes at computed positions (ops_scatter.py), against PyTorch."""

import math

import pytest
import torch
from conftest import Function, assert_equal

import sol.pytorch as sol

torch.manual_seed(0)
NAN, INF = math.nan, math.inf
SPECIAL = torch.tensor(
    [
        [1.0, NAN, -INF, 3.0, INF, -0.0, 1.0],
        [0.0, -0.0, 0.0, -1.0, -1.0, 5.0, -INF],
        [NAN, 2.0, NAN, 2.0, NAN, 2.0, 1.0],
        [INF, INF, -INF, -INF, 1.0, 1.0, 1.0],
    ]
)


def _optimized(function, *inputs):
    return sol.optimize(Function(function).eval(), *inputs, fullgraph=True)


def _check(function, *inputs, tolerance=1e-5):
    def run(*args):
        y = function(*args)
        return y if isinstance(y, torch.Tensor) else tuple(y)

    fast = _optimized(run, *inputs)
    with torch.no_grad():
        got, expected = fast(*inputs), run(*inputs)
    assert_equal(got, expected, tolerance)


# ---- Order ----

# Operators of which PyTorch promises the order of equal values.
STABLE = {
    "sort": lambda x: x.sort(stable=True, dim=-1),
    "sort down": lambda x: x.sort(stable=True, dim=-1, descending=True),
    "sort columns": lambda x: x.sort(stable=True, dim=0),
    "argsort": lambda x: x.argsort(stable=True, dim=-1, descending=True),
    "msort": lambda x: x.msort(),
}
SCANS = {
    "cumprod": lambda x: x.cumprod(1),
    "cumprod columns": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
}
VALUES = {
    "topk": lambda x: x.topk(3).values,
    "topk smallest": lambda x: x.topk(2, dim=0, largest=False).values,
    "kthvalue": lambda x: x.kthvalue(3).values,
    "median": lambda x: x.median(1).values,
    "median of all": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(1, keepdim=True).values,
}


@pytest.mark.parametrize("name", [*STABLE, *SCANS, *VALUES])
def test_special_values(name):
    """NaN, infinities, zeros of both signs, equal values."""
    _check({**STABLE, **SCANS, **VALUES}[name], SPECIAL)


@pytest.mark.parametrize("name", [*STABLE, *VALUES])
def test_integers(name):
    _check({**STABLE, **VALUES}[name], torch.randint(-3, 3, (5, 9)))


@pytest.mark.parametrize(
    "function",
    [lambda x: x.topk(3, dim=1), lambda x: x.kthvalue(2, dim=2), lambda x: x.median(1)],
    ids=["topk", "kthvalue", "median"],
)
def test_positions(function):
    """Of values that are all different."""
    _check(function, torch.randperm(2 * 9 * 5).reshape(2, 9, 5).float())


def test_open_batch():
    model = Function(lambda x: x.sort(dim=-1).values + x.cumprod(-1)).eval()
    fast = sol.optimize(model, sol.input([0, 33]), fullgraph=True)
    for n in 3, 1, 7:
        x = torch.randn(n, 33)
        assert_equal(fast(x), model(x))


def test_long_lines_stay_with_pytorch():
    """It sorts them in fewer steps."""
    model = Function(lambda x: (x * 2).sort(dim=-1).values.relu().sqrt() + 1).eval()
    x = torch.randn(2, 300)
    fast = sol.optimize(model, x)
    assert_equal(fast(x), model(x))
    assert ["an order of 300 values"] == [node.reason for node in sol.host_nodes(fast)]


# ---- Writes ----

X = torch.randn(5, 6)
REPEATED = torch.tensor([[0, 2, 2, 4], [0, 2, 0, 1], [3, 2, 0, 4]])
SOURCE = torch.randn(4, 5)
ROWS, ROW_SOURCE = torch.tensor([4, 0, 4, 1]), torch.randn(4, 6)
WRITES = {
    "scatter": lambda x, i, s: x.scatter(0, i, s),
    "scatter along rows": lambda x, i, s: x.scatter(1, i, s),
    "scatter of a number": lambda x, i, s: x.scatter(0, i, 3.0),
    "scatter_add": lambda x, i, s: x.scatter_add(1, i, s),
    "products": lambda x, i, s: x.scatter(0, i, s, reduce="multiply"),
    "added number": lambda x, i, s: x.scatter(0, i, 2.0, reduce="add"),
    **{
        f"{kind} {own}": lambda x, i, s, kind=kind, own=own: x.scatter_reduce(
            0, i, s, kind, include_self=own
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    },
}
ROW_WRITES = {
    "index_add": lambda x, i, s: x.index_add(0, i, s, alpha=2),
    "index_add of columns": lambda x, i, s: x.index_add(1, i, s.mT[:5, :4]),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "index_reduce": lambda x, i, s: x.index_reduce(0, i, s, "amax", include_self=False),
    "index_put": lambda x, i, s: x.index_put((i,), s),
    "index_put from the end": lambda x, i, s: x.index_put((i - 5,), s),
    "index_put of columns": lambda x, i, s: torch.ops.aten.index_put(x, [None, i], s[:, 0]),
    "index_put of values": lambda x, i, s: x.index_put((i, i + 1), s[:, 0], accumulate=True),
    "index_put with a mask": lambda x, i, s: x.index_put((x > 0,), s[0, 0]),
    "index_put of rows with a mask": lambda x, i, s: x.index_put((x[:, 0] > 0,), s[0, 0]),
    "assigned": lambda x, i, s: _assigned(x * 1, i, s),
    "put": lambda x, i, s: x.put(i - 7, s[:, 1]),
    "put and add": lambda x, i, s: x.put(i, s[:, 1], accumulate=True),
    "masked_scatter": lambda x, i, s: s.masked_scatter(s > 0, x),
}


def _assigned(x, i, s):
    x[i] = s
    x[1:, i] = 7.0
    return x


@pytest.mark.parametrize("name", WRITES)
def test_scatter(name):
    """Positions that occur several times; an index that is smaller than both tensors."""
    _check(WRITES[name], X, REPEATED, SOURCE)


@pytest.mark.parametrize("name", ROW_WRITES)
def test_write_rows(name):
    _check(ROW_WRITES[name], X, ROWS, ROW_SOURCE)


@pytest.mark.parametrize(
    "name", ["scatter", "sum True", "index_add", "index_copy", "index_put", "put"]
)
def test_out_of_range(name):
    """A position that is out of range is an error, as in PyTorch."""
    rows = name in ROW_WRITES
    inputs = (X, ROWS, ROW_SOURCE) if rows else (X, REPEATED, SOURCE)
    function = (ROW_WRITES if rows else WRITES)[name]
    fast = _optimized(function, *inputs)
    bad = inputs[1].clone()
    bad.view(-1)[1] = 99
    for run in function, fast:
        with torch.no_grad(), pytest.raises((IndexError, RuntimeError)):
            run(X, bad, inputs[2])


def test_key_value_cache():
    """A buffer that is written at one position of a sequence, for an open batch."""

    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 3, 8, 4))

        def forward(self, x, at):
            self.keys[:, :, at] = x
            return self.keys.sum(2)

    model, other = Cache().eval(), Cache().eval()
    x, at = torch.randn(2, 3, 1, 4), torch.tensor([5])
    fast = sol.optimize(model, x, at, fullgraph=True)
    with torch.no_grad():
        for position in 5, 0, 7:
            at = torch.tensor([position])
            assert_equal(fast(x, at), other(x, at))
            assert_equal(model.keys, other.keys)


# ---- Other operators that compare, or move values to computed positions ----

IMAGE, VOLUME = torch.randn(2, 4, 7, 6), torch.randn(2, 4, 5, 6, 4)
GRID, GRID3 = torch.rand(2, 3, 5, 2) * 4 - 2, torch.rand(2, 3, 2, 5, 3) * 4 - 2
F = torch.nn.functional
COMPUTED = {
    "conv": (lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], (2, 1), (1, 2), (1, 2), 2), IMAGE, torch.randn(6, 2, 3, 2)),
    "conv same": (lambda x, w: F.conv2d(x, w, padding="same"), IMAGE, torch.randn(6, 4, 4, 3)),
    "conv1d": (lambda x, w: F.conv1d(x, w, stride=2), IMAGE[0], torch.randn(3, 7, 2)),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1, groups=2), VOLUME, torch.randn(6, 2, 3, 3, 2)),
    "transposed": (
        lambda x, w: F.conv_transpose2d(x, w, w[0, 0, 0], (2, 3), 1, (1, 2), 2, (2, 1)),
        IMAGE, torch.randn(4, 3, 3, 6),
    ),
    "transposed 3d": (lambda x, w: F.conv_transpose3d(x, w, stride=2), VOLUME, torch.randn(4, 3, 2, 1, 3)),
    "slices with steps": (lambda x, y: x.slice_scatter(y, 2, 1, 7, 3), IMAGE, torch.randn(2, 4, 2, 6)),
    **{
        f"grid {mode} {padding} {corners}": (
            lambda x, g, mode=mode, padding=padding, corners=corners: F.grid_sample(
                x, g, mode, padding, corners
            ), IMAGE, GRID,
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (False, True)
    },
    "grid of volumes": (lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=False), VOLUME, GRID3),
    "nearest of volumes": (lambda x, g: F.grid_sample(x, g, "nearest", align_corners=True), VOLUME, GRID3),
    "quantile": (lambda x, q: x.quantile(q, 1), X, torch.tensor([0.0, 0.3, 0.5, 1.0])),
    "nanquantile": (lambda x, q: torch.nanquantile(x, q[0], 1, True, interpolation="nearest"), SPECIAL, torch.tensor([0.3])),
    "quantile with NaN": (lambda x, q: torch.quantile(x, q[0], 0), SPECIAL, torch.tensor([0.6])),
}  # fmt: skip
BAGS = {
    "rows": lambda w, i, o: F.embedding_bag(i.reshape(3, 4), w, mode="mean"),
    "largest of rows": lambda w, i, o: F.embedding_bag(
        i.reshape(3, 4), w, mode="max", padding_idx=-1
    ),
    "bags": lambda w, i, o: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=w[i, 0]),
    "means": lambda w, i, o: F.embedding_bag(i, w, o, mode="mean", padding_idx=2),
    "largest": lambda w, i, o: F.embedding_bag(i, w, o, mode="max", include_last_offset=True),
}
POOLS = {
    "volumes": lambda x: F.max_pool3d(x, (3, 2, 2), 2, 1, return_indices=True, ceil_mode=True),
    "sums of volumes": lambda x: F.avg_pool3d(x, 2, divisor_override=3),
    "sums": lambda x: F.avg_pool2d(x[0], 2, 3, 1, True, divisor_override=5),
    "unpooled": lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2),
    "native layer norm": lambda x: torch.native_layer_norm(x, [6, 4], None, None, 1e-5),
    "native group norm": lambda x: torch.native_group_norm(x, None, None, 2, 4, 120, 2, 1e-5),
    "softmax of a number": lambda x: (x.mean().softmax(0), x.mean().log_softmax(0)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_operands(name):
    _check(*COMPUTED[name], tolerance=2e-5)


@pytest.mark.parametrize("name", BAGS)
def test_embedding_bag(name):
    """Bags of other sizes, of which one is empty; a row that does not count."""
    indices = torch.tensor([4, 0, 2, 4, 4, 1, 2, 2, 4, 4, 4, 4])
    _check(BAGS[name], X, indices, torch.tensor([0, 3, 3, 8]))


@pytest.mark.parametrize("name", POOLS)
def test_pools_of_volumes(name):
    _check(POOLS[name], VOLUME)


@pytest.mark.parametrize("name", ["erfc", "erfcx", "ndtr", "log_ndtr"])
def test_error_functions(name):
    """Results keep their digits far from 0, where they are small."""
    function = getattr(torch.special, name)
    x = torch.cat([torch.linspace(-5, 5, 401), torch.tensor([NAN, INF, -INF])])
    fast = _optimized(function, x)
    with torch.no_grad():
        got, exact = fast(x), function(x.double()).float()
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-30, equal_nan=True)

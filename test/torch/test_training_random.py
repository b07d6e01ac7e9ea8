"""Random numbers in training: dropout, its seeds, and what its gradients have of them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sol.pytorch as sol

WIDTH = 64


class Mask(nn.Module):
    """Dropout alone, with a weight that wants a gradient."""

    def __init__(self, p):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        return self.dropout(x * self.weight)


def optimize(p=0.25):
    sol.config["compiler::never_slower"] = False
    return sol.optimize(Mask(p).train(), sol.input([0, WIDTH], requires_grad=True))


@pytest.fixture(autouse=True)
def no_seeds():
    yield
    for kind, index in list(sol.seeds()):
        sol.set_seed(None, kind, index)


def test_masks_are_those_of_the_gradient():
    fast, x = optimize(), torch.ones(2000, WIDTH, requires_grad=True)
    y = fast(x)
    y.sum().backward()
    kept = y.detach() != 0
    assert torch.equal(x.grad, y.detach())
    assert abs(kept.float().mean() - 0.75) < 0.01
    assert torch.allclose(y.detach()[kept], torch.tensor(1 / 0.75))
    assert not sol.fallbacks(fast)


def test_seeds_are_of_torch():
    fast, x = optimize(), torch.ones(5, WIDTH)
    torch.manual_seed(1)
    first, second = fast(x), fast(x)
    torch.manual_seed(1)
    assert torch.equal(fast(x), first) and not torch.equal(first, second)
    with torch.random.fork_rng():
        inside = fast(x)
    assert torch.equal(fast(x), inside)


def test_seeds_of_sol():
    fast, x = optimize(), torch.ones(5, WIDTH)
    assert sol.seed() is None
    sol.set_seed(3)
    first, second = fast(x), fast(x)
    sol.set_seed(3)
    assert torch.equal(fast(x), first) and not torch.equal(first, second)
    sol.set_seed(4, "cpu", 0)
    assert (sol.seed(), sol.seed("cpu"), sol.seed("cpu", 0), sol.seed("cpu", 1)) == (3, 3, 4, 3)
    assert sol.seeds() == {(None, None): 3, ("cpu", 0): 4}
    assert not torch.equal(fast(x), first)


@pytest.mark.parametrize("seed, error", [("1", TypeError), (True, TypeError), (2**63, ValueError)])
def test_bad_seeds(seed, error):
    with pytest.raises(error, match="seed|64 bits"):
        sol.set_seed(seed)


def test_a_number_needs_a_type():
    with pytest.raises(ValueError, match="needs its type"):
        sol.set_seed(1, None, 0)


def test_masks_are_equal_for_any_number_of_threads():
    fast, x, found = optimize(), torch.ones(300, WIDTH, requires_grad=True), []
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 7):
            torch.set_num_threads(n)
            torch.manual_seed(7)
            x.grad = None
            fast(x).sum().backward()
            found.append(x.grad)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_checkpoint_computes_the_same_masks():
    from torch.utils.checkpoint import checkpoint

    fast, x = optimize(), torch.ones(40, WIDTH, requires_grad=True)
    y = checkpoint(fast, x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_checkpoint_with_seeds_of_sol():
    """A checkpoint does not restore these seeds, so the gradients would be those of another mask."""
    from torch.utils.checkpoint import checkpoint

    fast, x = optimize(), torch.ones(40, WIDTH, requires_grad=True)
    sol.set_seed(3)
    y = checkpoint(fast, x, use_reentrant=False)
    with pytest.raises(RuntimeError, match="set_seed"):
        y.sum().backward()


def test_reentrant_checkpoint():
    """Its first call has no gradients and its second one has, but both need the same mask."""
    from torch.utils.checkpoint import checkpoint

    fast, x = optimize(), torch.ones(40, WIDTH, requires_grad=True)
    for n in 2, 4:
        x.grad = None
        y = checkpoint(fast, x, use_reentrant=True)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())
        assert sum(sol.fallbacks(fast).values()) == n
    assert all("use_reentrant=True" in reason for reason in sol.fallbacks(fast))
    fast(x)
    with torch.no_grad():
        fast(x)
    assert sum(sol.fallbacks(fast).values()) == 4


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_all_or_nothing(p):
    fast, x = optimize(p), torch.ones(3, WIDTH, requires_grad=True)
    y = fast(x)
    y.sum().backward()
    assert torch.equal(y.detach(), torch.full_like(x, 1 - p))
    assert torch.equal(x.grad, torch.full_like(x, 1 - p))
    assert not sol.fallbacks(fast)


# ---- Other dropouts ----


class Call(nn.Module):
    """A function of one tensor and a weight of 1."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, x):
        return self.function(x * self.weight)


def run_call(function, x):
    sol.config["compiler::never_slower"] = False
    fast = sol.optimize(Call(function).train(), sol.input(list(x.shape), requires_grad=True))
    y = fast(x)
    assert not any(sol.fallbacks(fast).values())
    return y


DROPOUTS = {
    "functional": lambda x, p: F.dropout(x, p, True),
    "inplace": lambda x, p: F.dropout(x, p, True, True),
    "feature": lambda x, p: F.dropout2d(x, p, True),
    "alpha": lambda x, p: F.alpha_dropout(x, p, True),
    "feature_alpha": lambda x, p: F.feature_alpha_dropout(x, p, True),
}


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("name", DROPOUTS)
def test_dropouts(name, p):
    """What is kept is PyTorch's function of the value, what is dropped is its constant; and so are the gradients."""
    x = torch.full((64, 64, 2, 4), 2.0, requires_grad=True)
    theirs = DROPOUTS[name](x * 1, p)
    (expected,) = torch.autograd.grad(theirs.sum(), x)
    found = run_call(lambda t: DROPOUTS[name](t, p), x)
    found.sum().backward()
    pairs = torch.stack([found, x.grad], -1).reshape(-1, 2).detach()
    known = torch.stack([theirs, expected], -1).reshape(-1, 2).detach().unique(dim=0)
    assert torch.allclose(pairs.unique(dim=0), known, atol=1e-6)
    assert (
        abs((found == theirs.max()).float().mean() - (theirs == theirs.max()).float().mean()) < 0.03
    )
    if "feature" in name:
        assert torch.equal(found, found[..., :1, :1].expand_as(found))


class Attention(nn.Module):
    def __init__(self, p, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.p, self.options = p, options

    def forward(self, q, k, v, mask=None):
        p = self.p if self.training else 0.0
        return F.scaled_dot_product_attention(q * self.weight, k, v, mask, p, **self.options)


def attend(q, k, v, mask, is_causal=False, scale=None, drop=None, enable_gqa=False):
    """Attention of PyTorch's simple operators, whose weights are multiplied by ``drop``."""
    n = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(n, -3) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    scores = scores if mask is None else scores + mask
    hidden = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0)
    return (weights * drop) @ v


def make_qkv(heads=4, groups=4, width=16, n=24):
    torch.manual_seed(0)
    shapes = (3, heads, n, width), (3, groups, n, width), (3, groups, n, width)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def make_mask(kind, n=24):
    mask = torch.ones(3, 1, n, n, dtype=torch.bool)
    mask[1, :, :, n // 2 :] = False
    mask[2, :, 5] = False  # a row that is hidden as a whole
    floats = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) + torch.linspace(0, 1, n)
    return {"none": None, "bool": mask, "float": floats.requires_grad_()}[kind]


def optimize_attention(p, given, **options):
    sol.config["compiler::never_slower"] = False
    return sol.optimize(Attention(p, **options).train(), *given)


@pytest.mark.parametrize(
    "kind, options",
    [
        ("none", {}),
        ("bool", {}),
        ("float", {"scale": 0.3}),
        ("none", {"is_causal": True}),
        ("bool", {"enable_gqa": True}),
    ],
)
def test_attention_with_dropout(kind, options):
    p, q_k_v = 0.25, make_qkv(groups=2 if "enable_gqa" in options else 4)
    mask = make_mask(kind)
    given = q_k_v if mask is None else [*q_k_v, mask]
    fast = optimize_attention(p, given, **options)
    # With equal weights and the unit matrix as v, the result has the factors of the weights.
    flat = [torch.zeros_like(q_k_v[0])] * 2
    unit = torch.eye(24).expand(3, 4, -1, -1).contiguous()
    probe = optimize_attention(p, [*flat, unit])
    torch.manual_seed(3)
    drop = probe(*flat, unit).detach() * 24
    torch.manual_seed(3)
    y = fast(*given)
    assert not sol.fallbacks(fast)
    expected = attend(*q_k_v, mask, drop=drop, **options)
    assert torch.allclose(y, expected, atol=1e-5)
    seed, wanted = torch.randn_like(y), [x for x in given if x.requires_grad]
    found, known = (torch.autograd.grad((t * seed).sum(), wanted) for t in (y, expected))
    for a, b in zip(found, known):
        assert torch.allclose(a, b, atol=1e-4)


def test_masks_of_attention():
    n = 128
    q, v = (
        torch.zeros(8, 2, n, 16, requires_grad=True),
        torch.eye(n).expand(8, 2, n, n).contiguous(),
    )
    fast = optimize_attention(0.25, [q, q, v])
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            torch.manual_seed(7)
            found.append(fast(q, q, v).detach() * n)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    kept = found[0] != 0
    assert abs(kept.float().mean() - 0.75) < 0.01 and abs(found[0].mean() - 1) < 0.01
    assert torch.allclose(found[0][kept], torch.tensor(1 / 0.75))


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_attention_without_random_numbers(p):
    given = make_qkv()
    fast = optimize_attention(p, given)
    y = fast(*given)
    assert not sol.fallbacks(fast)
    expected = attend(*given, None, drop=1 - p)
    assert torch.allclose(y, expected, atol=1e-5)
    seed = torch.randn_like(y)
    found, known = (torch.autograd.grad((t * seed).sum(), given) for t in (y, expected))
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, known))


@pytest.mark.parametrize("weights", [False, True])
def test_multihead_attention_with_dropout(weights):
    sol.config["compiler::never_slower"] = False
    net = nn.MultiheadAttention(32, 4, dropout=0.2, batch_first=True).train()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x, x, x, need_weights=weights)[0]

    x = torch.randn(5, 7, 32)
    fast = sol.optimize(Net().train(), x)
    torch.manual_seed(1)
    first = fast(x)
    first.square().mean().backward()
    torch.manual_seed(1)
    assert torch.equal(fast(x), first) and not torch.equal(fast(x), first)
    assert not sol.fallbacks(fast) and net.in_proj_weight.grad.isfinite().all()
    fast.eval()
    assert torch.allclose(fast(x), net(x, x, x)[0], atol=1e-5)


class Recurrent(nn.Module):
    """Two layers in both directions, with dropout between them."""

    def __init__(self, kind, p):
        super().__init__()
        self.rnn = getattr(nn, kind)(3, 8, 2, dropout=p, batch_first=True, bidirectional=True)

    def forward(self, x):
        return self.rnn(x)[0]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_dropout_between_recurrent_layers(kind):
    """With p = 1 the second layer gets zeros, as in PyTorch; with less, each seed has results of its own."""
    torch.manual_seed(0)
    x = torch.randn(5, 7, 3)
    for p in (0.5, 1.0):
        net = Recurrent(kind, p).train()
        fast = sol.optimize(copy.deepcopy(net), x)
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            runs.append(fast(x))
        assert not any(sol.fallbacks(fast).values())
        assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2]) == (p == 1)
    runs[0].square().sum().backward()
    expected = net(x)
    expected.square().sum().backward()
    assert torch.allclose(runs[0], expected, atol=1e-5)
    for a, b in zip(fast.parameters(), net.parameters()):
        assert torch.allclose(a.grad, b.grad, atol=1e-4)


def test_masks_are_computed_once():
    """A product reads them from memory, also if the batch size is unknown: computed for each of its columns, they took most of a step."""
    model = nn.Sequential(nn.Linear(64, 48), nn.Dropout(), nn.ReLU(), nn.Linear(48, 32))
    fast = sol.optimize(model, sol.input([0, 64]))
    steps = sol.profile(fast, torch.randn(8, 64), runs=1).steps
    products = [step for step in steps if "matmul" in step.layers]
    assert len(products) == 5 and {step.module for step in products} == {"DNN"}

"""Random numbers in training: dropout, its seeds, and what its gradients have of them."""

import pytest
import torch
from torch import nn

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
    sol.config["compiler::never_slower"] = True


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


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_all_or_nothing(p):
    fast, x = optimize(p), torch.ones(3, WIDTH, requires_grad=True)
    y = fast(x)
    y.sum().backward()
    assert torch.equal(y.detach(), torch.full_like(x, 1 - p))
    assert torch.equal(x.grad, torch.full_like(x, 1 - p))
    assert not sol.fallbacks(fast)

"""Running sums (cumsum) over inner, outer and several dims, alone and fused, against PyTorch in float64."""

import pytest
import torch
import torch.nn.functional as F

import sol

SUMS = {
    "inner": lambda x: x.cumsum(-1),
    "outer": lambda x: x.cumsum(0) * 2,
    "both dims": lambda x: x.cumsum(0).cumsum(1),
    "two sums": lambda x: x.cumsum(1) + x.cumsum(0),
    "fused": lambda x: (F.relu(x).cumsum(1) * 0.01).exp(),
    "softmax behind": lambda x: F.softmax(x.cumsum(-1) * 0.1, -1),
    "softmax before": lambda x: F.softmax(x, -1).cumsum(-1),
    "norm before": lambda x: F.layer_norm(x, (x.shape[-1],)).cumsum(0),
    "flipped": lambda x: x.flip(1).cumsum(1).flip(1),
    "reduced": lambda x: x.cumsum(-1).sum(0),
    "two outputs": lambda x: torch.stack([x.cumsum(-1), x.sum(-1, True).expand_as(x)]),
    "integers": lambda x: (x > 0).long().cumsum(-1),
    "doubles": lambda x: x.double().cumsum(-1),
}


class Sum(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("shape", [(5, 7, 19), (3, 1, 33), (1, 4, 16), (64, 3, 1), (2, 50, 70)])
def test_cumsum(name, shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    module = Sum(SUMS[name]).eval()
    fast = sol.optimize(module, x)
    result = fast(x)
    assert not sol.fallbacks(fast)
    expected = module(x.double())
    torch.testing.assert_close(result.double(), expected.double(), rtol=2e-6, atol=2e-5)

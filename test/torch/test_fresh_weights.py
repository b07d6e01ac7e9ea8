"""After any change of the model the next call uses the new values."""

import copy

import pytest
import torch
from conftest import Net, assert_runs_in_sol

import sol.pytorch as sol

N_SAMPLES = 8


def _other_net():
    torch.manual_seed(1)
    return Net().eval()


def _load(fast):
    fast.load_state_dict(_other_net().state_dict())


def _in_place(fast):
    with torch.no_grad():
        fast.conv.weight.mul_(2)


def _one_element(fast):
    with torch.no_grad():
        fast.fc.bias[3] += 1


def _optimizer(fast):
    step = torch.optim.SGD(fast.parameters(), lr=0.1)
    fast(torch.randn(2, 3, 9, 7)).sum().backward()
    step.step()


def _statistics(fast):
    fast.train()
    fast(torch.randn(4, 3, 9, 7))
    fast.eval()


def _replace(fast):
    fast.fc.weight = torch.nn.Parameter(torch.randn(5, 8))


def _replace_buffer(fast):
    fast.norm.running_mean = torch.randn(8)


def _replace_data(fast):
    fast.fc.weight.data = torch.randn(5, 8)


def _write_data(fast):
    fast.fc.weight.data.mul_(3)


def _write_numpy(fast):
    fast.fc.weight.detach().numpy()[:] = 1


def _replace_layer(fast):
    fast.fc = torch.nn.Linear(8, 5)


def _replace_layer_by_larger(fast):
    fast.fc = torch.nn.Linear(8, 6).eval()


def _swap(fast):
    fast.fc.weight, fast.fc.bias = (torch.nn.Parameter(p.clone()) for p in fast.fc.parameters())


def _double_and_back(fast):
    fast.double()
    fast.conv.weight.data.mul_(2)
    fast.float()


def _attribute(fast):
    fast.conv.padding = (0, 0)


CHANGES = [
    _load, _in_place, _one_element, _optimizer, _statistics, _replace, _replace_buffer,
    _replace_data, _write_data, _write_numpy, _replace_layer, _replace_layer_by_larger, _swap,
    _double_and_back, _attribute,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_next_call_sees(fast, x, change):
    old = assert_runs_in_sol(fast, x)
    change(fast)
    # A new layer is in training mode.
    fast.eval()
    new = assert_runs_in_sol(fast, x)
    assert change is _swap or new.shape != old.shape or not torch.equal(old, new)


def test_change_through_the_original(fast, net, x):
    assert_runs_in_sol(fast, x)
    with torch.no_grad():
        net.conv.weight.mul_(2)
    net.fc = torch.nn.Linear(8, 5).eval()
    assert_runs_in_sol(fast, x)


def test_freed_and_new_parameter(fast, x):
    """A new Parameter often gets the address and the version of one just freed."""
    for _ in range(20):
        fast.fc.weight = torch.nn.Parameter(torch.randn(5, 8))
        assert_runs_in_sol(fast, x)


def test_sample_through_data_pointer(fast, x):
    """A write that changes no version counter is found if it changes one of the sampled values."""
    assert_runs_in_sol(fast, x)
    numpy = fast.conv.weight.detach().numpy()
    numpy.reshape(-1)[numpy.size // (2 * N_SAMPLES)] += 1
    with torch.no_grad():
        for _ in range(N_SAMPLES):
            fast(x)
    assert_runs_in_sol(fast, x)


def test_refresh(fast, x):
    assert_runs_in_sol(fast, x)
    fast.fc.bias.detach().numpy()[1] += 1e3
    sol.refresh(fast)
    assert_runs_in_sol(fast, x)


def test_plain_tensor_attribute(x):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.rand(3, 1, 1)

        def forward(self, x):
            return x * self.scale

    fast = sol.optimize(Scaled().eval(), sol.input([0, 3, 9, 7]))
    assert_runs_in_sol(fast, x)
    fast.scale.mul_(2)
    assert_runs_in_sol(fast, x)
    fast.scale = torch.rand(3, 1, 1)
    assert_runs_in_sol(fast, x)
    other = copy.deepcopy(fast)
    other.scale.mul_(2)
    assert_runs_in_sol(other, x)
    assert_runs_in_sol(fast, x)


def test_attribute_that_nobody_reads_does_not_compile_again(fast, x):
    fast.calls = None
    assert_runs_in_sol(fast, x)
    plan, before = fast._engine.find_plan(), fast._engine._n_checks
    for i in range(20):
        fast.calls = [1000 * i]
        assert_runs_in_sol(fast, x)
    assert fast._engine.find_plan() is plan and fast._engine._n_checks == before


def test_names_and_objects_are_the_originals(fast, net):
    assert fast.state_dict().keys() == net.state_dict().keys()
    ours, theirs = dict(fast.named_parameters()), dict(net.named_parameters())
    assert ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)
    assert all(a is b for a, b in zip(fast.buffers(), net.buffers()))
    fast.load_state_dict(net.state_dict())
    assert fast.fc is net.fc

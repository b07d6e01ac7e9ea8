"""Times and memory of optimized modules."""

import html
import json
import subprocess
import sys

import pytest
import torch
from conftest import Function, Net

import sol.pytorch as sol
from sol import _core
from sol.times import Profile, Step, draw_times


def test_every_step_is_timed(fast, x):
    found = sol.profile(fast, x, runs=3)
    text = str(found)
    assert found.steps and all(step.seconds >= 0 for step in found.steps)
    conv = next(step for step in found.steps if "conv" in step.layers)
    assert conv.module == "DNN" and conv.implementation in text
    assert conv.flops == 2 * 2 * 9 * 7 * 8 * 27  # batch, pixels, channels out, 3x3 of 3 channels in
    assert conv.refused and all(conv.refused.values())
    assert "openblas" in str(found.refusals())
    assert found.call_s > 0 and found.peak > 1e8 and found.threads == torch.get_num_threads()


def test_clusters_are_those_of_the_picture(fast, x):
    found = sol.profile(fast, x, runs=1)
    for step in found.steps:
        assert f"subgraph cluster_{step.cluster} " in found.dot
    assert found.dot.count(" ms ") == len(found.steps)


def test_profile_does_not_touch_results(fast, x):
    with torch.no_grad():
        before = fast(x)
        sol.profile(fast, x, runs=2)
        assert torch.equal(fast(x), before)
    assert not sol.fallbacks(fast)


def test_trace(fast, x, tmp_path):
    found = sol.profile(fast, x, runs=1)
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == [step.name for step in found.steps]
    for event, following in zip(events, events[1:]):
        assert event["ph"] == "X" and event["ts"] + event["dur"] <= following["ts"] * (1 + 1e-9)


def test_report(fast, x, tmp_path):
    sol.report(fast, x, path=tmp_path / "page.html", runs=2)
    page = (tmp_path / "page.html").read_text()
    assert page.count("class=bar") == len(sol.profile(fast, x, runs=1).steps)
    assert "Memory over time" in page and "conv" in page and "refuses" in page


def test_what_pytorch_runs_has_no_profile():
    fast = sol.optimize(Function(torch.linalg.inv).eval(), sol.input([0, 3, 3]))
    with pytest.raises(RuntimeError, match="linalg_inv"):
        sol.profile(fast, torch.eye(3).expand(2, 3, 3))
    with pytest.raises(RuntimeError, match="linalg_inv"):
        sol.memory(fast)


# ---- Training ----


def make_training(p=0.0):
    sol.config["compiler::never_slower"] = False
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
    net = torch.nn.Sequential(*layers, torch.nn.Dropout(p)).train()
    return sol.optimize(net, sol.input([0, 3, 9, 7], requires_grad=True))


@pytest.fixture
def always_sol():
    yield
    sol.config["compiler::never_slower"] = False


def test_training_has_a_profile_of_both_calls(x, always_sol, tmp_path):
    fast = make_training(0.5)
    x.requires_grad_()
    before = {key: value.clone() for key, value in fast.state_dict().items()}
    found = sol.profile(fast, x, runs=2)
    calls = [step.is_backward for step in found.steps]
    assert calls == sorted(calls) and set(calls) == {False, True}
    # The weight's gradient takes as many operations as the result, and the input's as well.
    products = [x.flops for x in found.steps if x.module == "DNN" and x.is_backward and x.flops]
    result = next(step.flops for step in found.steps if step.module == "DNN" and step.flops)
    assert len(products) == 2 and all(0.9 * result < flops < 2 * result for flops in products)
    assert "in the backward call" in str(found) and "  DNN    " in str(found)
    assert all(f"subgraph cluster_{x.cluster} " in found.dot for x in found.steps if x.cluster >= 0)
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["args"].get("backward", False) for event in events] == calls
    assert all(torch.equal(value, before[key]) for key, value in fast.state_dict().items())
    assert x.grad is None and all(p.grad is None for p in fast.parameters())
    assert not sol.fallbacks(fast)


def test_training_has_no_report(x, always_sol):
    with pytest.raises(RuntimeError, match="inference only"):
        sol.report(make_training(), x)


def test_training_without_gradients(x, always_sol):
    """It has the forward call only, and no profile changes buffers."""
    fast = make_training(0.5)
    before = {key: value.clone() for key, value in fast.state_dict().items()}
    with torch.no_grad():
        found = sol.profile(fast, x, runs=2)
    assert found.steps and not any(step.is_backward for step in found.steps)
    assert all(torch.equal(value, before[key]) for key, value in fast.state_dict().items())
    with torch.autocast("cpu"):
        assert any(step.is_backward for step in sol.profile(fast, x, runs=2).steps)
    assert not sol.fallbacks(fast)


def test_memory_of_training(x, always_sol):
    """Both calls have an arena each, and what the first one leaves for the second counts as well."""
    fast = make_training(0.5)
    small, large = sol.memory(fast, 2), sol.memory(fast, 64)
    inference = sol.memory(fast.eval(), 64)
    assert inference.saved == inference.backward_arena == 0 and "backward" not in str(inference)
    assert 0 < small.saved < large.saved and large.saved >= 64 * 4 * 8 * 7 * 5
    assert 0 < large.backward_live <= large.backward_arena and small.backward_arena > 0
    assert large.own == sum(
        (large.weights, large.constants, large.arena, large.scratch, large.saved)
    ) + (large.backward_arena + large.backward_scratch)
    assert "backward_arena" in str(large)


def test_wrong_arguments(net, fast, x):
    with pytest.raises(TypeError, match="optimize"):
        sol.profile(net, x)
    with pytest.raises(ValueError, match="inputs"):
        sol.profile(fast)


def test_report_says_what_was_chosen(fast, x, tmp_path):
    sol.report(fast, x, path=tmp_path / "page.html", runs=1)
    page = html.unescape((tmp_path / "page.html").read_text())
    for step in sol.profile(fast, x, runs=1).steps:
        if step.module == "DNN":
            assert step.refused and f"-> {step.implementation} " in page
            assert all(f"{name} refuses: {why}\n" in page for name, why in step.refused.items())
        else:
            assert not step.refused and step.implementation == step.name


def test_share_of_own_kernels(monkeypatch):
    rows = [("library", "blas", True, "1.2"), ("library", "direct", True, "own kernel")]
    monkeypatch.setattr("sol.times._core", FakeCore(rows))
    steps = [
        Step("a", "DNN", "conv", 3e-3, 1.0, 1.0, 0, "direct", {}),
        Step("b", "DNN", "linear", 1e-3, 1.0, 1.0, 1, "blas", {}),
    ]
    found = Profile("net", steps, 5e-3, 1e-3, "digraph model {}\n")
    assert found.own_share == pytest.approx(0.75)
    assert "75% in own kernels" in str(found)


class FakeCore:
    def __init__(self, rows):
        self.rows = rows

    def query(self):
        return self.rows

    def threads(self):
        return 1

    def measure_flops(self):
        return 1e9


def test_picture_with_times():
    picture = 'subgraph cluster_7 {\n    label="DNN"; style=filled\n subgraph cluster_8 {\n    label="view";'
    steps = [Step("conv", "DNN", "conv", 2e-3, 1.0, 1.0, 7, "direct", {})]
    drawn = draw_times(picture, steps)
    assert 'label="DNN direct 2.000 ms 100%"' in drawn and 'label="view"' in drawn


# ---- Limits of the machine ----


def test_rates():
    peak, near, far = (
        _core.measure_flops(),
        _core.measure_bandwidth(1 << 18),
        _core.measure_bandwidth(1 << 29),
    )
    assert 1e8 < peak < 1e15
    # Reading from a cache is at least as fast as from memory; the factor allows for other work on the machine.
    assert 1e8 < far < 4 * near < 1e14


def test_no_matrix_product_beats_the_peak():
    fast = sol.optimize(torch.nn.Linear(512, 512).eval(), sol.input([0, 512]))
    found = sol.profile(fast, torch.randn(512, 512))
    assert (
        max(step.flops / step.seconds for step in found.steps) < 3 * found.peak
    )  # other work may have halved the peak


# ---- Memory ----


def test_folded_weights_are_not_kept():
    """A batch norm's factor is folded into the convolution's weight; only the packed result is kept."""
    channels = 64
    conv = torch.nn.Conv2d(channels, channels, 1, bias=False)
    net = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(channels)).eval()
    fast = sol.optimize(net, sol.input([0, channels, 5, 7], requires_grad=False))
    with torch.no_grad():
        fast(torch.ones(1, channels, 5, 7))
    assert sol.memory(fast).weights < 1.25 * conv.weight.numel() * 4


def test_memory_of_a_small_net(net, fast):
    small, large = sol.memory(fast, 1), sol.memory(fast, 64)
    parameters = sum(p.numel() * p.element_size() for p in [*net.parameters(), *net.buffers()])
    assert small.parameters == large.parameters == parameters
    assert small.weights == large.weights and small.constants == large.constants > 0
    assert 0 < small.live <= small.arena <= large.arena
    assert large.arena >= 64 * 4 * 8 * 9 * 7  # the convolution's result
    assert small.own == small.weights + small.constants + small.arena + small.scratch
    assert "MiB" in str(small) and sol.memory(fast) == small


def test_shared_parameters_count_once():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model[1].weight = model[0].weight
    fast = sol.optimize(model.eval(), sol.input([0, 64]))
    assert sol.memory(fast).parameters == 4 * (64 * 64 + 2 * 64)


RESIDENT = """
import torch, sol.pytorch as sol
from sol.debug import resident_size
from sol.pytorch.measure import parameter_bytes

def build(channels, depth):
    convs = [torch.nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth)]
    return torch.nn.Sequential(*convs).eval()

def call(model, shape):
    fast = sol.optimize(model, sol.input([0, *shape]), batch_size=16)
    x = torch.randn(16, *shape)
    compiled = resident_size()
    with torch.no_grad():
        y = fast(x)
    assert not sol.fallbacks(fast)
    return resident_size() - compiled - y.numel() * 4, sol.memory(fast)

call(build(16, 1), (16, 8, 8))  # threads, the first kernels
grown, memory = call(build(160, 8), (160, 40, 40))
print(grown, memory.weights + memory.arena + memory.scratch)
"""


def test_memory_is_what_the_process_gets():
    """The first call increases the resident size by weights, arena and scratch, and little more."""
    text = subprocess.check_output([sys.executable, "-c", RESIDENT], text=True)
    grown, said = map(int, text.split())
    assert said > 30 << 20
    assert abs(grown - said) < (8 << 20) + said // 10


def test_net_is_what_the_reference_counts():
    """On a device without clusters, steps still have names and times."""
    sol.config["compiler::device"] = "ref"
    try:
        fast = sol.optimize(Net().eval(), sol.input([0, 3, 9, 7]))
    finally:
        sol.config["compiler::device"] = ""
    found = sol.profile(fast, torch.randn(2, 3, 9, 7), runs=1)
    assert found.steps and {step.cluster for step in found.steps} == {-1}
    assert str(found)

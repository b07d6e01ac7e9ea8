"""`python -m sol.bench`: the protocol, what to run, the peers, the limit, and what is written."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree

import pytest
import torch

from sol.bench import (
    chart,
    limit,
    machine,
    network,
    peers,
    process,
    restrict,
    table,
    target,
    timing,
)

# ---- Protocol ----


def test_engines_take_turns(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE_S", 0)
    calls = []
    engines = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = timing.interleave(engines, seconds=0)
    turns = "".join(a for a, b in zip(calls, [*calls[1:], ""]) if a != b)
    assert turns == "ab" * (1 + timing.BLOCKS)  # once to warm up, then block by block
    assert calls.count("a") == 2 + timing.BLOCKS * (2 + 5)
    assert all(0 <= least <= median for median, least in times.values())


def test_slow_engines_are_called_less(monkeypatch):
    clock = iter(range(0, 10000))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    assert len(timing.time_block(lambda: None, 0)) == 2


# ---- Targets ----

NETS = """
import torch
NAMES = ["tiny"]

class Net:
    model = torch.nn.Linear(4, 2)
    def inputs(self, batch):
        return torch.ones(batch, 4)

def build(name):
    return {"tiny": Net}[name]()

def two(batch):
    class Add(torch.nn.Module):
        def forward(self, a, b):
            return a + b
    return Add(), (torch.ones(batch, 3), torch.ones(batch, 3))

def alone():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU())

def text(batch):
    return "text", torch.ones(batch)

number = 3
"""


@pytest.fixture
def nets(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(NETS)
    yield path
    sys.modules.pop("nets", None)


def test_target_of_a_function(nets):
    found = target.load(f"{nets}:two", 5)
    assert [tuple(x.shape) for x in found.inputs] == [(5, 3), (5, 3)]
    assert found.batch == 5 and not found.is_image and not found.model.training


def test_target_of_a_module_with_a_shape(nets):
    found = target.load(f"{nets}:alone", 2, shape=(3, 8, 8))
    assert tuple(found.inputs[0].shape) == (2, 3, 8, 8) and found.is_image
    with pytest.raises(target.BadTarget, match="--shape"):
        target.load(f"{nets}:alone", 2)


def test_target_on_a_list(nets):
    assert target.list_names(nets) == ["tiny"]
    assert tuple(target.load("tiny", 3, nets).inputs[0].shape) == (3, 4)


@pytest.mark.parametrize(
    "spec, reason",
    [
        ("{}:three", "no function three"),
        ("{}:number", "no function number"),
        ("{}:text", "str instead of"),
        ("nowhere.py:net", "no file nowhere.py"),
        ("no_such_module:net", "no_such_module"),
        ("large", "not on the list"),
    ],
)
def test_bad_targets(nets, spec, reason):
    with pytest.raises(target.BadTarget, match=reason):
        target.load(spec.format(nets), 1, nets)


def test_name_without_a_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(target.BadTarget, match="module:function"):
        target.load("resnet50", 1)
    assert target.list_names(None) == []


# ---- Peers ----


@pytest.fixture
def job(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    found = target.Target("net", model, (torch.randn(2, 3, 8, 8),))
    return peers.Job(found, 1, str(tmp_path))


def prepare(names, job):
    with torch.no_grad():
        return peers.prepare_all(names, job, peers.values(job.model(*job.inputs)))


def test_peers_that_are_always_there(job):
    engines, seconds, left_out = prepare(["eager", "eager_cl"], job)
    assert list(engines) == list(seconds) == ["eager", "eager_cl"] and not left_out


@pytest.mark.parametrize(
    "name", [name for name in peers.PEERS if name not in ("eager", "eager_cl", "inductor")]
)
def test_peers_that_may_be_missing(job, name):
    """Each either runs, right, or is named with the packages that it lacks."""
    if name == "ncnn":
        job.inputs, job.batch = (job.inputs[0][:1],), 1
    engines, _, left_out = prepare([name], job)
    assert (name in engines) != (name in left_out)
    if peers.missing_packages(name):
        assert "not installed" in left_out[name]


def test_peers_that_fail_are_named(job, monkeypatch):
    def fail(job):
        raise RuntimeError("no such operator\nand more")

    monkeypatch.setitem(
        peers.PEERS, "wrong", peers.Peer("", (), lambda job: lambda: torch.ones(2, 8, 6, 6))
    )
    monkeypatch.setitem(peers.PEERS, "failing", peers.Peer("", (), fail))
    monkeypatch.setitem(peers.PEERS, "missing", peers.Peer("", ("no_such_package",), fail))
    engines, _, left_out = prepare(["wrong", "failing", "missing", "eager"], job)
    assert list(engines) == ["eager"]
    assert "wrong result" in left_out["wrong"] and "more" not in left_out["failing"]
    assert left_out["missing"] == "no_such_package not installed"


def test_relative_error():
    x = torch.tensor([1.0, -4.0])
    assert peers.relative_error([x + 0.4], [x]) == pytest.approx(0.1)
    assert peers.relative_error([x.reshape(2, 1)], [x]) == 0
    for wrong in ([], [x[:1]], [x * float("nan")], [x, x]):
        assert peers.relative_error(wrong, [x]) == float("inf")


# ---- Limit ----


def conv(*args, **kwargs):
    return torch.nn.Conv2d(*args, bias=False, **kwargs), torch.zeros(2, 8, 10, 10)


@pytest.mark.parametrize(
    "case, flops, gain",
    [
        (conv(8, 16, 3, padding=1), 2 * 2 * 100 * 16 * 72, 4),
        (conv(8, 16, 3, padding=1, stride=2), 2 * 2 * 25 * 16 * 72, 1),
        (conv(8, 16, 3, padding=2, dilation=2), 2 * 2 * 100 * 16 * 72, 1),
        (conv(8, 8, 3, padding=1, groups=8), 2 * 2 * 100 * 8 * 9, 1),
        (conv(8, 16, 1), 2 * 2 * 100 * 16 * 8, 1),
        ((torch.nn.Linear(32, 10), torch.zeros(3, 32)), 2 * 3 * 32 * 10, 1),
        ((torch.nn.ReLU(), torch.zeros(3, 32)), None, 1),
    ],
)
def test_limit_counts(case, flops, gain):
    model, x = case
    layers = limit.count_layers(model.eval(), (x,))
    if flops is None:
        assert layers == []
        return
    ((_, direct, least, size),) = layers
    assert (direct, least) == (flops, flops / gain)
    with torch.no_grad():
        tensors = [x, *model.parameters(), model(x)]
    assert size == 4 * sum(t.numel() for t in tensors)


def test_limit_sees_recurrent_and_attention_layers():
    lstm = torch.nn.LSTM(16, 32, batch_first=True).eval()
    total = sum(layer[1] for layer in limit.count_layers(lstm, (torch.zeros(2, 5, 16),)))
    assert total == 2 * 2 * 5 * 4 * 32 * (16 + 32)
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.zeros(1, 7, 16)
    assert len(limit.count_layers(attention, (x, x, x))) >= 2


def test_limit_is_a_time():
    found = limit.measure(torch.nn.Linear(256, 256).eval(), (torch.zeros(1, 256),))
    assert found["ms"] > 0 and found["gflop"] == found["least_gflop"] == 2 * 256 * 256e-9
    assert found["memory_bound"] == 1  # two operations per weight


# ---- What is written ----


def make_results():
    sides = {"own": 0.5, "export": 1.0, "first": 0.1, "optimize": 1.5}
    good = {
        "network": "<net>", "batch": 1, "threads": 2, "error": 1e-6, "fallbacks": {}, "left_out": {},
        "ms": {"eager": [3.0, 2.9], "openvino": [2.0, 1.9], "sol": [1.0, 0.9]}, "best": "openvino",
        "ratio": 2.0, "of_limit": 0.4, "own": 1.0, "overhead_us": 12.0, "cold": sides, "warm": sides,
    }  # fmt: skip
    slower = good | {
        "network": "b",
        "ratio": 0.5,
        "ms": {"eager": [3.0, 2.9], "sol": [6.0, 5.0]},
        "best": "eager",
    }
    fallen = good | {
        "network": "c",
        "fallbacks": {"aten.lstm": 1},
        "left_out": {"openvino": "not installed"},
    }
    failed = {"network": "d", "failed": "exit code -9", "output": "last words"}
    facts = machine.describe(2)
    return {
        "machine": facts,
        "about": machine.as_text(facts),
        "rows": [good, slower, fallen, failed],
    }


def test_table():
    names, results = ["eager", "openvino"], make_results()
    lines = [table.line(row, names) for row in results["rows"]]
    assert "2.00" in lines[0] and "last words" in lines[3] and "aten.lstm" in lines[2]
    assert lines[1].split()[2] == "-"  # OpenVINO did not run it
    summary = table.summary(results)
    assert "openvino (not installed): c" in summary and "geometric mean of 2 ratios 1.00" in summary


def test_readme_block():
    results = make_results()
    block = table.markdown(results, ["eager", "openvino"], "docs/bench.svg")
    assert "| <net> | 3.00 | **2.00** | 1.00 | 2.00 | 40% |" in block
    assert "| in PyTorch |" in block and "exit code" not in block and "docs/bench.svg" in block
    assert results["machine"]["cpu"] in block and "torch" in block
    before = f"a\n{table.BEGIN}\nold\n{table.END}\nz"
    after = table.replace_block(before, block)
    assert after == f"a\n{table.BEGIN}\n{block}\n{table.END}\nz"
    assert table.replace_block(after, block) == after
    with pytest.raises(ValueError, match="bench: begin"):
        table.replace_block("no marks", block)


def test_picture():
    svg = "{http://www.w3.org/2000/svg}"
    root = xml.etree.ElementTree.fromstring(chart.draw(make_results(), table.SHORT))
    bars = [bar for bar in root.findall(svg + "rect") if bar.get("x")]
    assert [float(bar.get("width")) for bar in bars] == pytest.approx(
        [chart.WIDTH, chart.WIDTH / 4]
    )
    words = " ".join(text.text for text in root.findall(svg + "text"))
    assert "<net>" in words and "2.00  OpenVINO" in words
    assert chart.draw({**make_results(), "rows": []}, {}).endswith("</svg>\n")


def test_machine_tells_its_best_rates():
    facts = {}
    for size, peak in ((100, 7.0), (10, 9.0)):
        rates = {"bytes": size, "peak_gflops": peak, "bandwidth_gbs": size}
        machine.add_rates(facts, {"limit": rates})
    machine.add_rates(facts, {"failed": "x"})
    assert facts["peak_gflops"] == 9.0 and facts["bandwidth_gbs"] == 100


# ---- All of it ----


def run_bench(folder, *args):
    command = [sys.executable, "-m", "sol.bench", *args, "--seconds", "0.05", "--threads", "1"]
    env = {**os.environ, "SOL_DISABLE": "onednn,openblas"}  # all is done by own kernels
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)


def test_bench(nets, tmp_path):
    (tmp_path / "README.md").write_text(f"{table.BEGIN}\n{table.END}\n")
    files = ["--json", "out/r.json", "--svg", "out/r.svg", "--readme", "README.md"]
    done = run_bench(
        tmp_path,
        "nets.py:alone",
        "--shape",
        "3,16,16",
        "--batch",
        "2",
        "--peers",
        "eager,ncnn",
        *files,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "out/r.json").read_text())["rows"]
    assert row["batch"] == 2 and row["error"] < 1e-5 and not row["fallbacks"]
    assert set(row["ms"]) == {"eager", "sol"} and "ncnn" in row["left_out"]
    assert row["ratio"] == pytest.approx(row["ms"]["eager"][0] / row["ms"]["sol"][0])
    assert row["steps"] and row["own"] == 1 and row["limit"]["ms"] > 0 and row["cold"]["own"] > 0
    assert "left out: ncnn" in done.stdout and "nets.py:alone" in done.stdout
    assert "nets.py:alone" in (tmp_path / "README.md").read_text()
    assert "nets.py:alone" in (tmp_path / "out/r.svg").read_text()


def test_bench_says_what_is_wrong(nets, tmp_path):
    done = run_bench(tmp_path, "nets.py:nothing", "--peers", "eager")
    assert done.returncode == 1 and "FAILED: nets.py has no function nothing" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert run_bench(tmp_path).returncode == 2
    assert "none of eager" in run_bench(tmp_path, "x", "--peers", "rumour").stderr


def test_a_crash_costs_one_row(tmp_path):
    row = process.run_child(["-c", "import os; print('last words', flush=True); os.abort()"], 60)
    assert row["error"] == "exit code -6" and "last words" in row["output"]
    row = process.run_child(["-c", "import time; time.sleep(9)"], 0.5)
    assert "not done" in row["error"]


def test_the_median_run_counts():
    rows = [{"ratio": ratio, "ms": ratio} for ratio in (1.2, 0.9, 1.1)]
    assert network.choose_median(rows) == {"ratio": 1.1, "ms": 1.1, "ratios": [1.2, 0.9, 1.1]}
    assert network.choose_median([{"ms": 1}]) == {"ms": 1}


def test_restricted_peers(job, monkeypatch):
    monkeypatch.delenv("SOL_CPU", raising=False)
    assert not restrict.environment() and not restrict.as_text()
    monkeypatch.setenv("SOL_CPU", "avx2")
    assert set(restrict.AVX2) == set(peers.PEERS)
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in restrict.as_text()
    assert "AVX-512" in prepare(["ncnn"], job)[2]["ncnn"]


def test_wrong_results_are_no_success(monkeypatch):
    found = target.Target("net", torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),))
    monkeypatch.setattr(network, "optimize", lambda target: (lambda x: torch.ones(1, 4), {}))
    with torch.no_grad(), pytest.raises(network.WrongResult):
        network.compare(found, ["eager"], 1, 0)

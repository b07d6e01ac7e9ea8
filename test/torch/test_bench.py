"""`python -m sol.bench`: the order of turns, the networks to run, the peers, the limit, and the output."""

import contextlib
import functools
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
    load,
    machine,
    network,
    peers,
    process,
    restrict,
    table,
    target,
    timing,
)

# ---- Turns ----


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


def test_turns_are_told_and_summarized(monkeypatch):
    monkeypatch.setattr(timing, "PAUSE_S", 0)
    told = []
    engines = {"eager": lambda: None, "sol": lambda: None}
    blocks = timing.take_turns(engines, 0, lambda *turn: told.append(turn))
    assert told == [(name, i) for i in range(timing.BLOCKS) for name in engines]
    assert all(len(times) == timing.BLOCKS for times in blocks.values())


def test_spread():
    blocks = {"eager": [[3.0, 2.0, 4.0], [6.0, 6.0, 6.0]], "sol": [[1.0, 1.0], [2.0, 8.0]]}
    assert timing.summarize(blocks) == {"eager": [5000, 2000], "sol": [1500, 1000]}
    assert timing.spread(blocks) == {"eager": [2000, 6000], "sol": [1000, 2000]}
    assert timing.ratio_spread(blocks, "eager") == [pytest.approx(1.2), 3.0]


# ---- Other work on the machine ----

STAT = """cpu  999 9 9 999 9 9 9 9 0 0
cpu0 {} 0 100 5000 70 0 0 {} 0 0
cpu1 300 0 0 5000 0 0 0 0 0 0
cpu2 999999 0 0 0 0 0 0 0 0 0
intr 12 0 1
"""


def test_busy_seconds():
    ticks = os.sysconf("SC_CLK_TCK")
    assert load.busy_seconds(STAT.format(200, 50), {0, 1}) == (200 + 100 + 50 + 300) / ticks
    assert load.busy_seconds(STAT.format(200, 50), {0}) == 350 / ticks


def test_other_work_is_noticed(tmp_path, monkeypatch):
    """Other processes use half of both cores; the time of this process does not count."""
    ticks, clock = os.sysconf("SC_CLK_TCK"), iter([100.0, 110.0])
    monkeypatch.setattr(load.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(load.time, "perf_counter", lambda: next(clock))
    own = iter([(0.0, 0.0, 0.0, 0.0, 0.0), (4.0, 0.0, 1.0, 0.0, 0.0)])
    monkeypatch.setattr(load.os, "times", lambda: next(own))
    stat = tmp_path / "stat"
    stat.write_text(STAT.format(0, 0))
    watch = load.Load(stat)
    stat.write_text(STAT.format(15 * ticks, 0))
    assert watch.share() == pytest.approx(10 / 20)
    assert load.warning(0.5) == "other work took 50% of the cores"
    assert load.warning(0.02) == "" == load.warning(None)
    assert load.Load(tmp_path / "nothing").share() is None


def test_warnings_are_in_the_table():
    results = make_results()
    assert "busy" not in table.summary(results) and "unreliable" not in table.line(
        results["rows"][0], []
    )
    row = results["rows"][0]
    row |= {"busy": 0.43, "ratio_spread": [0.9, 47.8]}
    shown = table.line(row, ["eager"])
    assert "0.90-47.80" in shown and "unreliable: other work took 43% of the cores" in shown
    summary = table.summary(results)
    assert (
        "(0.90-47.80), smallest" in summary and "busy with other work; unreliable: <net>" in summary
    )


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
    """Each peer either gives the right result, or is reported with the packages that are missing."""
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
    q, k, v = torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 7, 8), torch.zeros(2, 3, 7, 8)
    for is_causal, scores in ((False, 5 * 7), (True, 1 + 2 + 3 + 4 + 5)):
        attend = functools.partial(
            torch.nn.functional.scaled_dot_product_attention, is_causal=is_causal
        )
        counted = limit.count_layers(attend, (q, k, v))
        assert sum(layer[1] for layer in counted) == 2 * 2 * 3 * scores * (8 + 8)


def test_limit_is_a_time():
    found = limit.measure(torch.nn.Linear(256, 256).eval(), (torch.zeros(1, 256),))
    assert found["ms"] > 0 and found["gflop"] == found["least_gflop"] == 2 * 256 * 256e-9
    assert found["memory_bound"] == 1  # two operations per weight


# ---- Output ----


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
    begin, end = table.MARKS
    before = f"a\n{begin}\nold\n{end}\nz"
    after = table.replace_block(before, block)
    assert after == f"a\n{begin}\n{block}\n{end}\nz"
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


# ---- The command ----


def run_bench(folder, *args):
    command = [sys.executable, "-m", "sol.bench", *args, "--seconds", "0.05", "--threads", "1"]
    env = {**os.environ, "SOL_DISABLE": "onednn,openblas"}  # own kernels compute all layers
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)


def test_bench(nets, tmp_path):
    (tmp_path / "README.md").write_text("\n".join([*table.MARKS, ""]))
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
    assert row["ratio_spread"][0] <= row["ratio_spread"][1] and 0 <= row["busy"] <= 1
    assert row["spread"]["sol"][0] <= row["ms"]["sol"][0] <= row["spread"]["sol"][1]
    least, most = row["ratio_spread"]
    assert f"{least:.2f}-{most:.2f}" in done.stdout and "\r" not in done.stdout + done.stderr
    assert row["steps"] and row["own"] == 1 and row["limit"]["ms"] > 0 and row["cold"]["own"] > 0
    assert "left out: ncnn" in done.stdout and "nets.py:alone" in done.stdout
    assert "nets.py:alone" in (tmp_path / "README.md").read_text()
    assert "nets.py:alone" in (tmp_path / "out/r.svg").read_text()


def test_help_explains_the_columns(tmp_path):
    shown = run_bench(tmp_path, "--help").stdout
    for title in table.COLUMNS:
        assert title in table.header([], 1) and f"\n  {title}  " in shown, title


def test_progress_on_a_terminal(nets, tmp_path):
    """Progress shows the network, the engine and the turn, and is erased at the end."""
    terminal, other = os.openpty()
    command = [sys.executable, "-m", "sol.bench", "nets.py:two", "--peers", "eager"]
    child = subprocess.Popen(
        [*command, "--seconds", "0.05", "--threads", "1"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=other
    )  # fmt: skip
    os.close(other)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while part := os.read(terminal, 4096):
            shown += part
    lines = child.communicate()[0].decode()
    os.close(terminal)
    shown = shown.decode()
    assert child.returncode == 0 and "nets.py:two: compiling, with an empty kernel cache" in shown
    for turn in range(1, timing.BLOCKS + 1):
        for name in "eager", "sol":
            assert f"nets.py:two: {name}, turn {turn} of {timing.BLOCKS}" in shown
    assert shown.endswith("\r\x1b[K") and "turn" not in lines


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

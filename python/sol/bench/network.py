"""Everything about one network: compile times, results, times beside the peers.

    parent   measure(): a process with an empty kernel cache, and one per run with what the first left there
    child    compile_cold(), compare(): return what becomes the row

A row of the results, times in milliseconds and seconds as their names say:

    ms          {engine: [median, minimum]}, `sol` among them;  spread: {engine: [10th, 90th percentile]}
    ratio       the best peer's median over SOL's;  best: that peer;  ratios: of all runs, where there are several
    ratio_spread [smallest, largest] of the rounds of turns;  busy: share of the cores that other processes had meanwhile
    error       of SOL, relative to the largest output
    fallbacks   {reason: calls} where PyTorch ran the network in SOL's place
    cold, warm  {"own", "export", "first", "optimize"}: SOL's own part of sol.optimize, torch.export's part,
                the first call, which packs the weights; all before the first result is optimize + first
    prepare_s   {peer: s} until its first result
    left_out    {peer: reason}
    steps       SOL's steps: see sol.times.Step
    overhead_us a call's time over the sum of its steps' times
    own         share of the steps' time that is spent in SOL's own kernels
    limit       see `limit`;  of_limit: its time over SOL's
"""

import statistics
import tempfile
import time
from pathlib import Path

from sol.bench import load, process, timing


class WrongResult(Exception):
    """SOL's result differs from PyTorch's."""


# ---- In the parent ----


def measure(name, child_args, runs, timeout):
    """One row: cold compile in one process, then times in others with the kernel cache filled.

    Of several runs it is the one with the median ratio."""
    jobs = ["cold", *["compare"] * runs]
    with tempfile.TemporaryDirectory(prefix="sol-") as folder:
        children = [
            run_job(name, child_args, job, f", run {i} of {runs}" if i and runs > 1 else "", timeout, folder)
            for i, job in enumerate(jobs)
        ]  # fmt: skip
    for child in children:
        if "error" in child:
            output = "" if child.get("is_told") else child.get("output", "")
            return {"network": name, "failed": child["error"], "output": output}
    cold, *compared = (child["row"] for child in children)
    row = choose_median(compared)
    return {"network": name} | row | {"cold": cold["compile"], "warm": row["compile"]}


def run_job(name, child_args, job, which, timeout, folder):
    """What one process reports; on a terminal it is shown what it does."""
    line = process.Line()
    env = {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor")}
    show = (lambda step: line.show(f"{name}{which}: {step}")) if line.is_visible else None
    command = ["-m", "sol.bench", *child_args, "--child", job]
    try:
        return process.run_child(command, timeout, str(Path(folder) / "cache"), env, show)
    finally:
        line.clear()


def choose_median(rows):
    """The row with the median ratio, and all ratios in the order of the runs."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if len(ratios) < len(rows) or len(rows) == 1:
        return rows[0]
    median = statistics.median_low(ratios)
    return rows[ratios.index(median)] | {"ratios": ratios}


# ---- In the child ----


def count_time(module, name):
    """Replaces a function by one that adds up its own time; returns the list with the sum."""
    original, total, running = getattr(module, name), [0.0], []

    def timed(*args, **kwargs):
        if running:  # called by itself: counted already
            return original(*args, **kwargs)
        running.append(name)
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            total[0] += time.perf_counter() - start
            running.pop()

    setattr(module, name, timed)
    return total


def warm_up_export():
    """The first export of a process imports half of PyTorch; that is nobody's compile time."""
    import torch

    torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.zeros(2, 2),))


def optimize(target):
    """Returns (fast, {seconds}), the first call included: it packs the weights."""
    import torch

    warm_up_export()
    export = count_time(torch.export, "export")
    import sol.pytorch as sol

    # The row shall say what SOL's own time is, also where PyTorch's is better.
    sol.config["compiler::never_slower"] = False
    specs = [sol.input([0, *x.shape[1:]], dtype=x.dtype) for x in target.inputs]
    start = time.perf_counter()
    fast = sol.optimize(target.model, *specs, batch_size=target.batch)
    optimized = time.perf_counter()
    fast(*target.inputs)
    first = time.perf_counter() - optimized
    total = optimized - start
    return fast, {"optimize": total, "own": total - export[0], "export": export[0], "first": first}


def compile_cold(target):
    process.tell("compiling, with an empty kernel cache")
    return {"compile": optimize(target)[1]}


def compare(target, peer_names, threads, seconds):
    """The row of one network: SOL and the peers in turns."""
    import sol.pytorch as sol
    from sol.bench import peers

    process.tell("compiling")
    expected = peers.values(target.model(*target.inputs))
    fast, compiled = optimize(target)
    error = peers.relative_error(peers.values(fast(*target.inputs)), expected)
    if not error <= peers.TOLERANCE:
        raise WrongResult(f"SOL's result is wrong: relative error {error:.1e}")
    with tempfile.TemporaryDirectory(prefix="sol-") as folder:
        job = peers.Job(target, threads, folder)
        engines, prepare_s, left_out = peers.prepare_all(peer_names, job, expected)
        engines["sol"] = lambda: fast(*target.inputs)
        row = time_engines(engines, seconds)
    process.tell("measuring the machine's limit")
    row |= {"batch": target.batch, "threads": threads, "error": error, "compile": compiled}
    row |= {"prepare_s": prepare_s, "left_out": left_out, "fallbacks": dict(sol.fallbacks(fast))}
    row |= profile_steps(fast, target.inputs)
    return row | compare_limit(target, row["ms"]["sol"][0])


def time_engines(engines, seconds):
    """The part of the row that comes from timing."""

    def tell(name, turn):
        process.tell(f"{name}, turn {turn + 1} of {timing.BLOCKS}")

    watch = load.Load()
    blocks = timing.take_turns(engines, seconds, tell)
    row = {"busy": watch.share(), "ms": timing.summarize(blocks), "spread": timing.spread(blocks)}
    row |= rank(row["ms"])
    if "best" in row:
        row["ratio_spread"] = timing.ratio_spread(blocks, row["best"])
    return row


def compare_limit(target, sol_ms):
    from sol.bench import limit

    found = limit.measure(target.model, target.inputs)
    return {"limit": found, "of_limit": found["ms"] / sol_ms}


def rank(ms):
    """The best peer, and what SOL makes of it."""
    peers = {name: times[0] for name, times in ms.items() if name != "sol"}
    if not peers:
        return {}
    best = min(peers, key=peers.get)
    return {"best": best, "ratio": peers[best] / ms["sol"][0]}


def profile_steps(fast, inputs):
    """{"steps", "overhead_us", "own"}; {} where SOL fell back."""
    import sol.pytorch as sol

    if sol.fallbacks(fast):
        return {}
    found = sol.profile(fast, *inputs, runs=30)
    return {
        "steps": [step._asdict() for step in found.steps],
        "overhead_us": found.overhead_s * 1e6,
        "own": found.own_share,
    }

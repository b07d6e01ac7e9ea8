"""All measurements of one network: compile times, results, and times of SOL and the peers.

    parent   measure(): runs a child with an empty kernel cache, then one child per run with the cache that the first filled
    child    compile_cold(), compare(): return the parts of the row

A row of the results, with these keys:

    ms           {engine: [median, minimum]} in ms, with SOL as "sol";  spread: {engine: [10th, 90th percentile]} in ms
    ratio        the best peer's median / SOL's median;  best: that peer;  ratios: of all runs, if there are several
    ratio_spread [smallest, largest] ratio of one round of turns;  busy: see load.py
    error        largest difference from PyTorch's result, relative to the largest value of the output
    fallbacks    {reason: number of calls that PyTorch ran instead of SOL}
    cold, warm   seconds with an empty and a filled kernel cache: {"optimize": sol.optimize, "export": torch.export in it,
                 "own": the rest of it, "first": the first call, with the prepack}
    prepare_s    {peer: seconds until its first result}
    left_out     {peer: reason}
    steps        SOL's steps: see sol.times.Step
    overhead_us  microseconds of a call minus the sum of its steps
    own          part of the steps' time in SOL's own kernels, between 0 and 1
    limit        see limit.py;  of_limit: its time / SOL's median
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
    """Returns one row: cold compile in one process, then times in others with a filled kernel cache.

    Of several runs it is the row with the median ratio. After an error it is {"network", "failed": reason, "output"}.
    ``timeout``: seconds for one process.
    """
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
    """Runs one child process and returns its report. On a terminal, a line shows the child's current step."""
    line = process.Line()
    env = {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor")}
    show = (lambda step: line.show(f"{name}{which}: {step}")) if line.is_visible else None
    command = ["-m", "sol.bench", *child_args, "--child", job]
    try:
        return process.run_child(command, timeout, str(Path(folder) / "cache"), env, show)
    finally:
        line.clear()


def choose_median(rows):
    """Returns the row with the median ratio, with all ratios in the order of the runs added."""
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    if len(ratios) < len(rows) or len(rows) == 1:
        return rows[0]
    median = statistics.median_low(ratios)
    return rows[ratios.index(median)] | {"ratios": ratios}


# ---- In the child ----


def count_time(module, name):
    """Replaces a module's function by one that measures its time. Returns a list of one item, the sum in seconds."""
    original, total, running = getattr(module, name), [0.0], []

    def timed(*args, **kwargs):
        if running:  # a recursive call: the outer call measures it
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
    """Makes a first export, which imports many modules of PyTorch, so that this time does not count as compile time."""
    import torch

    torch.export.export(torch.nn.Linear(2, 2).eval(), (torch.zeros(2, 2),))


def optimize(target):
    """Returns (optimized module, {"optimize", "own", "export", "first"} in seconds), after the first call, which prepacks."""
    import torch

    warm_up_export()
    export = count_time(torch.export, "export")
    import sol.pytorch as sol

    # SOL's own time is measured, also if PyTorch is faster.
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
    """Returns {"compile": seconds, see ``optimize``} of a compile with an empty kernel cache."""
    process.tell("compiling, with an empty kernel cache")
    return {"compile": optimize(target)[1]}


def compare(target, peer_names, threads, seconds):
    """Returns the row of one network: SOL and the peers, timed in turns. Raises WrongResult."""
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
    """Returns the part of the row that comes from timing. ``engines``: {name: function that makes one call}."""

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
    """Returns {"best": the fastest peer, "ratio": its median / SOL's median}; {} without peers."""
    peers = {name: times[0] for name, times in ms.items() if name != "sol"}
    if not peers:
        return {}
    best = min(peers, key=peers.get)
    return {"best": best, "ratio": peers[best] / ms["sol"][0]}


def profile_steps(fast, inputs):
    """Returns {"steps", "overhead_us", "own"}; {} if the network fell back to PyTorch."""
    import sol.pytorch as sol

    if sol.fallbacks(fast):
        return {}
    found = sol.profile(fast, *inputs, runs=30)
    return {
        "steps": [step._asdict() for step in found.steps],
        "overhead_us": found.overhead_s * 1e6,
        "own": found.own_share,
    }

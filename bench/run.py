"""Times SOL and PyTorch in turns: run.py [NETWORK...] [--batch N] [--threads N] [--json FILE]

    eager, eager_cl   PyTorch, contiguous and channels_last
    sol               SOL; the ratio is that of PyTorch's better format to SOL
    overhead us       a call's time over the sum of its steps' times
    cold s, warm s    SOL's own part of the first sol.optimize and call, with an empty and a filled kernel cache
    export s          torch.export's part

Each network has two processes of its own, cold and warm. Only ratios from one run can be compared.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import process  # noqa: E402


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


def optimize(net, batch):
    """Returns (fast, {seconds}), the first call included: it packs the weights."""
    import torch

    warm_up_export()
    export = count_time(torch.export, "export")
    import sol.pytorch as sol

    dtype = torch.int64 if net.n_words else torch.float32
    x = net.inputs(batch)
    start = time.perf_counter()
    fast = sol.optimize(
        net.model, sol.input([0, *net.shape], requires_grad=False, dtype=dtype), batch_size=batch
    )
    optimized = time.perf_counter()
    fast(x)
    first = time.perf_counter() - optimized
    total = optimized - start
    return fast, {"optimize": total, "own": total - export[0], "export": export[0], "first": first}


def profile_steps(fast, x, runs=30):
    """Returns (rows of SOL's steps, overhead in seconds); (None, None) where it fell back.

    A row is (name, module, layers, median seconds, flops, bytes). Calls and profiled runs take turns; the
    overhead is what a call takes more than the steps of the profiled run next to it, the median of that."""
    entry = next(iter(vars(fast)["_engine"]._state.entries.values()))
    if entry.plan is None:
        return None, None
    program, symbols = entry.plan.program, (len(x),)
    outputs = [x.new_empty(program.output_shape(i, symbols)) for i in range(len(program.outputs))]
    addresses = [x.data_ptr()], [out.data_ptr() for out in outputs]
    every, overheads = [], []
    for _ in range(runs):
        start = time.perf_counter()
        fast(x)
        call = time.perf_counter() - start
        every.append(program.profile(entry.weights, symbols, *addresses))
        overheads.append(call - sum(row[3] for row in every[-1]))
    medians = (statistics.median(run[i][3] for run in every) for i in range(len(every[0])))
    rows = [(*row[:3], seconds, *row[4:]) for row, seconds in zip(every[0], medians)]
    return rows, statistics.median(overheads)


def engines_for(net, fast, x):
    import copy

    import torch

    engines = {"eager": lambda: net.model(x)}
    if net.is_image:
        model = copy.deepcopy(net.model).to(memory_format=torch.channels_last)
        images = x.contiguous(memory_format=torch.channels_last)
        engines["eager_cl"] = lambda: model(images)
    engines["sol"] = lambda: fast(x)
    return engines


def run_network(args, cold):
    import torch

    import networks
    import sol.pytorch as sol
    from timing import interleave

    torch.set_num_threads(args.threads or len(os.sched_getaffinity(0)))
    net = networks.build(args.one)
    x = net.inputs(args.batch)
    with torch.no_grad():
        expected = net.model(x)
        fast, seconds = optimize(net, args.batch)
        if cold:
            return {"seconds": seconds}
        error = ((fast(x) - expected).abs().max() / expected.abs().max()).item()
        row = {"error": error, "ms": interleave(engines_for(net, fast, x), args.seconds)}
        row["fallbacks"] = dict(sol.fallbacks(fast))
        row["steps"], overhead = profile_steps(fast, x)
    if overhead is not None:
        row["overhead_us"] = overhead * 1e6
    return {"result": row, "seconds": seconds}


def measure(name, args):
    """One row: cold compile in one process, then times in another with the cache filled."""
    import tempfile

    flags = [
        "--batch",
        str(args.batch),
        "--threads",
        str(args.threads),
        "--seconds",
        str(args.seconds),
    ]
    with tempfile.TemporaryDirectory(prefix="sol-") as folder:
        cache = os.path.join(folder, "cache")
        children = [
            process.run_child([__file__, "--one", name, *flags, *extra], args.timeout, cache)
            for extra in (["--cold"], [])
        ]
    row = {"network": name, "batch": args.batch}
    for child in children:
        if "error" in child:
            return {**row, "failed": child["error"], "output": child.get("output", "")}
    row |= children[1]["result"]
    times = {engine: ms[0] for engine, ms in row["ms"].items()}
    row["ratio"] = min(ms for engine, ms in times.items() if engine != "sol") / times["sol"]
    row["cold"], row["warm"] = children[0]["compile"], children[1]["compile"]
    return row


def print_row(row):
    if "failed" in row:
        print(f"{row['network']:20s} FAILED: {row['failed']}\n{row['output'].rstrip()}", flush=True)
        return
    ms = {engine: f"{value[0]:.2f}" for engine, value in row["ms"].items()}
    overhead = f"{row['overhead_us']:.0f}" if "overhead_us" in row else "-"
    print(
        f"{row['network']:20s}{ms['eager']:>10s}{ms.get('eager_cl', '-'):>10s}{ms['sol']:>10s}{row['ratio']:8.2f}"
        f"{row['error']:10.1e}{overhead:>12s}{own_seconds(row['cold']):8.2f}{own_seconds(row['warm']):8.2f}"
        f"{row['warm']['export']:9.2f}{'  fell back' if row['fallbacks'] else ''}",
        flush=True,
    )


def own_seconds(seconds):
    return seconds["own"]


def print_summary(rows):
    native = [row["ratio"] for row in rows if "ratio" in row and not row["fallbacks"]]
    if native:
        mean = math.exp(statistics.fmean(map(math.log, native)))
        print(f"geometric mean of {len(native)} ratios {mean:.2f}, smallest {min(native):.2f}")


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--seconds", type=float, default=2.0, help="per engine and network")
    parser.add_argument("--timeout", type=float, default=1200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_child(args):
    try:
        row = run_network(args, args.cold)
        row["compile"] = row.pop("seconds")
        process.report(row)
    except Exception as error:
        traceback.print_exc()
        process.report({"error": f"{type(error).__name__}: {error}"[:300]})
    return 0


def main():
    args = parse()
    if args.one:
        return run_child(args)
    import networks

    print(
        f"{'ms, batch ' + str(args.batch):20s}{'eager':>10s}{'eager_cl':>10s}{'SOL':>10s}{'ratio':>8s}{'error':>10s}"
        f"{'overhead us':>12s}{'cold s':>8s}{'warm s':>8s}{'export s':>9s}"
    )
    rows = []
    for name in args.network or networks.NAMES:
        rows.append(measure(name, args))
        print_row(rows[-1])
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(rows, indent=1))
    print_summary(rows)
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())

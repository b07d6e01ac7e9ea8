"""Times training steps of the networks of bench/networks.py: SOL beside PyTorch's eager mode, in turns.

    train_times.py [NETWORK...] [--batch 4] [--side 128] [--seconds 4] [--threads N] [--inductor] [--json FILE]

A step sets the gradients to None, and runs forward and backward in train mode (dropout in eval mode), for a random gradient of the
output; no optimizer. SOL packs the parameters in each of them, as after an optimizer's step. Columns: milliseconds of a step (median),
then PyTorch's time over SOL's (above 1, SOL is faster) with the smallest and largest ratio of one round of turns, and the seconds
of SOL's first step, which compiles. Each network has a process of its own.
"""

import argparse
import copy
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

from sol.bench import process, timing

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]


def make_step(module, model, x):
    """Returns a function without arguments that runs a step of `module`, which is `model` or an optimized form of it."""
    import torch

    dy = torch.randn(model(x).shape)

    def step():
        model.zero_grad(set_to_none=True)
        module(x).backward(dy)

    return step


def run_network(args, name):
    """In the child: times one network. Returns its row."""
    import torch
    from zoo_train import set_modes

    import networks
    import sol.pytorch as sol

    torch.set_num_threads(args.threads or torch.get_num_threads())
    net = networks.build(name)
    if net.is_image and args.side:
        net.shape = (3, args.side, args.side)
    set_modes(net.model)
    x = net.inputs(args.batch)
    model = copy.deepcopy(net.model)
    fast = sol.optimize(model, x)
    steps = {"sol": make_step(fast, model, x), "eager": make_step(net.model, net.model, x)}
    if args.inductor:
        other = copy.deepcopy(net.model)
        steps["inductor"] = make_step(torch.compile(other), other, x)
    start = time.perf_counter()
    steps["sol"]()
    row = {"network": name, "first_s": time.perf_counter() - start}
    row["fallbacks"] = {reason: n for reason, n in sol.fallbacks(fast).items() if n}
    blocks = timing.take_turns(steps, args.seconds)
    row["ms"] = {key: ms for key, (ms, _) in timing.summarize(blocks).items()}
    row["spread"] = timing.ratio_spread(blocks, "eager")
    return row


def print_row(row, peers):
    if "ms" not in row:
        print(f"{row['network']:20s} FAILED: {row.get('error', '')}", flush=True)
        return
    cells = "".join(f"{row['ms'][peer]:10.1f}" for peer in ["sol", *peers])
    cells += "".join(f"{row['ms'][peer] / row['ms']['sol']:12.2f}" for peer in peers)
    low, high = row["spread"]
    reasons = "; ".join(row["fallbacks"])
    print(
        f"{row['network']:20s}{cells}   [{low:.2f}, {high:.2f}]{row['first_s']:8.1f}  {reasons}",
        flush=True,
    )


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--side", type=int, default=128, help="of images; 0: the network's own")
    parser.add_argument("--seconds", type=float, default=4.0, help="per engine and network")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--inductor", action="store_true", help="torch.compile, too")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one network")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_one(args):
    try:
        process.report(run_network(args, args.one))
    except Exception as error:
        traceback.print_exc()
        process.report({"error": f"{type(error).__name__}: {error}"[:300]})


def main():
    args = parse()
    if args.one:
        run_one(args)
        return
    import networks

    peers = ["eager", *(["inductor"] if args.inductor else [])]
    print(
        f"{f'ms, batch {args.batch}':20s}"
        + "".join(f"{title:>10s}" for title in ["sol", *peers])
        + "".join(f"{title + '/sol':>12s}" for title in peers)
        + "   spread, first step in s"
    )
    options = [f"--{key}={getattr(args, key)}" for key in ("batch", "side", "seconds", "threads")]
    options += ["--inductor"] if args.inductor else []
    rows = []
    for name in args.network or networks.NAMES:
        found = process.run_child([__file__, "--one", name, *options], args.timeout)
        rows.append({"network": name, **found})
        print_row(rows[-1], peers)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(rows, indent=1))
    ratios = [row["ms"]["eager"] / row["ms"]["sol"] for row in rows if "ms" in row]
    if ratios:
        print(
            f"geometric mean of eager/sol over {len(ratios)}: {statistics.geometric_mean(ratios):.2f}"
        )


if __name__ == "__main__":
    main()

"""Peak memory of training steps of the networks of bench/networks.py: SOL beside PyTorch's eager mode.

    train_memory.py [NETWORK...] [--batch 16] [--side 0] [--threads N] [--memory M] [--json FILE]

A step sets the gradients to None, and runs forward and backward in train mode (dropout in eval mode). Each number is that of a process of its
own: the largest resident set (VmHWM) of STEPS steps, less the resident set with the model and its inputs. What is kept between steps
counts, such as SOL's packed weights and idle memory. "step" is the peak of the last step, reset before it; "all" includes the first one,
which in SOL compiles. --memory sets sol.config["training::memory"]. The last lines are geometric means.
"""

import argparse
import json
import statistics
import sys
import traceback
from pathlib import Path

from sol.bench import process

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
STEPS = 3
ENGINES = ("eager", "sol")
MIB = 1 << 20


def read_status(key):
    """Bytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def run_network(args, name, engine):
    """In the child: the bytes of the last step and of all steps of one engine."""
    import torch
    from zoo_train import set_modes

    import networks
    import sol.pytorch as sol

    torch.set_num_threads(args.threads or torch.get_num_threads())
    if args.memory is not None:
        sol.config["training::memory"] = args.memory
    net = networks.build(name)
    if net.is_image and args.side:
        net.shape = (3, args.side, args.side)
    set_modes(net.model)
    x = net.inputs(args.batch)
    before = read_status("VmRSS")
    module = net.model if engine == "eager" else sol.optimize(net.model, x)
    peaks = []
    for _ in range(STEPS):
        reset_peak()
        net.model.zero_grad(set_to_none=True)
        module(x).sum().backward()
        peaks.append(read_status("VmHWM") - before)
    row = {"step": peaks[-1], "all": max(peaks)}
    if engine == "sol":
        row["fallbacks"] = {reason: n for reason, n in sol.fallbacks(module).items() if n}
    return row


def run_one(args):
    try:
        process.report(run_network(args, *args.one.split(",")))
    except Exception as error:
        traceback.print_exc()
        process.report({"error": f"{type(error).__name__}: {error}"[:300]})


def measure(args, name):
    """Returns {engine: row} of one network."""
    options = [f"--{key}={getattr(args, key)}" for key in ("batch", "side", "threads")]
    options += [] if args.memory is None else [f"--memory={args.memory}"]
    return {
        engine: process.run_child([__file__, "--one", f"{name},{engine}", *options], args.timeout)
        for engine in ENGINES
    }


def print_row(name, row):
    eager, own = row["eager"], row["sol"]
    if "step" not in eager or "step" not in own:
        print(f"{name:20s} FAILED: {eager.get('error', '')} {own.get('error', '')}", flush=True)
        return
    cells = "".join(
        f"{eager[key] / MIB:10.0f}{own[key] / MIB:10.0f}{own[key] / eager[key]:8.2f}"
        for key in ("step", "all")
    )
    print(f"{name:20s}{cells}  {'; '.join(own['fallbacks'])}", flush=True)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--side", type=int, default=0, help="of images; 0: the network's own")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--memory", type=float, help="0 to 1; default: SOL's own")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one process")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse()
    if args.one:
        run_one(args)
        return
    import networks

    titles = "".join(
        f"{f'{engine}, {key}':>10s}" if engine != "ratio" else f"{'ratio':>8s}"
        for key in ("step", "all")
        for engine in ("eager", "sol", "ratio")
    )
    print(f"{f'MiB, batch {args.batch}':20s}{titles}")
    rows = {}
    for name in args.network or networks.NAMES:
        rows[name] = measure(args, name)
        print_row(name, rows[name])
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(rows, indent=1))
    for key in ("step", "all"):
        ratios = [
            row["sol"][key] / row["eager"][key]
            for row in rows.values()
            if all("step" in row[engine] for engine in ENGINES)
        ]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            print(f"geometric mean of SOL's over eager's, {key}: {mean:.2f}")


if __name__ == "__main__":
    main()

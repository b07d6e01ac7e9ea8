"""Peak memory of training steps of the networks of bench/networks.py: SOL beside PyTorch's eager mode.

    train_memory.py [NETWORK...] [--batch 16] [--side 0] [--threads N] [--memory M] [--json FILE]

A step sets the gradients to None, and runs forward and backward in train mode (dropout in eval mode). Each number is that of a process of its
own: the largest resident set (VmHWM) of STEPS steps, less the resident set with the model and its inputs. What is kept between steps
counts, such as SOL's packed weights and idle memory. "step" is the peak of the last step, reset before it; "all" includes the first one,
which in SOL compiles. --memory sets sol.config["training::memory"]. The last lines are geometric means.
"""

import statistics
from pathlib import Path

import training

from sol.bench import process

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
    import sol.pytorch as sol

    net, x = training.build(args, name)
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
        row["fallbacks"] = training.count_fallbacks(module)
    return row


def measure(args, name):
    """Returns {engine: row} of one network."""
    options = training.pass_on(args)
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


def main():
    args = training.parse(__doc__, batch=16, side=0)
    if args.one:
        training.report(run_network, args, *args.one.split(","))
        return
    titles = "".join(
        f"{f'{engine}, {key}':>10s}" if engine != "ratio" else f"{'ratio':>8s}"
        for key in ("step", "all")
        for engine in ("eager", "sol", "ratio")
    )
    print(f"{f'MiB, batch {args.batch}':20s}{titles}")
    rows = training.run_networks(args, measure, print_row)
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

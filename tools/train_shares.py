"""Which kernels take the time of a training step, and how near to the machine's limits they are.

    train_shares.py [NETWORK...] [--batch 16] [--side 0] [--threads N] [--memory M] [--json FILE]

The limit of a kernel is the time of its multiplications at the measured peak, plus that of its bytes, each input and output once, at
the measured bandwidth of memory. Winograd's kernels count the multiplications that their algorithm needs. A row per kind of kernel:
its part of the step's time, its part of the step's limit, and limit / time. The row "between" is the time of a call that is
in no kernel: PyTorch's, and allocation. Each network has a process of its own.
"""

import collections

import training

from sol.bench import process
from sol.times import UNSEEN_S

RUNS = 3
FAR = 1 << 28  # bytes: more than caches hold
# Multiplications of direct convolution / those of the algorithm: for F(m, r), (m * r)^2 / (m + r - 1)^2.
GAINS = {"winograd4": 4.0, "winograd2": 2.25, "winograd_weight": 4.0}


def find_limit(step, peak, bandwidth):
    """Seconds of a profile's step at the rates of the machine."""
    flops = step.flops / GAINS.get(step.implementation, 1.0)
    return flops / peak + step.bytes / bandwidth


def run_network(args, name):
    """In the child: profiles one network. Returns its row."""
    import sol.pytorch as sol
    from sol import _core

    net, x = training.build(args, name)
    fast = sol.optimize(net.model, x)
    fast(x).sum().backward()
    found = sol.profile(fast, x, runs=RUNS)
    bandwidth = _core.measure_bandwidth(FAR)
    seconds, limits = collections.Counter(), collections.Counter()
    for step in found.steps:
        key = ("backward " if step.is_backward else "") + step.implementation
        seconds[key] += step.seconds
        limits[key] += find_limit(step, found.peak, bandwidth)
    between = max(0.0, found.call_s - found.seconds)
    kinds = [(key, s, limits[key]) for key, s in seconds.most_common()]
    rates = {"peak_gflops": found.peak * 1e-9, "bandwidth_gbs": bandwidth * 1e-9}
    return {"step_s": found.call_s, "kinds": [*kinds, ("between", between, 0.0)], **rates}


def measure(args, name):
    """Returns the row of one network."""
    return process.run_child([__file__, "--one", name, *training.pass_on(args)], args.timeout)


def print_row(name, row):
    if "kinds" not in row:
        print(f"{name}: FAILED: {row.get('error', '')}", flush=True)
        return
    step, limit = row["step_s"], max(UNSEEN_S, sum(kind[2] for kind in row["kinds"]))
    print(
        f"{name}: {step * 1e3:.1f} ms, limit {limit * 1e3:.1f} ms = {limit / step:.0%}"
        f" ({row['peak_gflops']:.0f} GF/s, {row['bandwidth_gbs']:.1f} GB/s)"
    )
    for key, seconds, least in row["kinds"]:
        rate = least / max(seconds, UNSEEN_S)
        print(f"    {key:32s}{seconds / step:8.1%}{least / limit:8.1%}{rate:8.0%}")
    print(flush=True)


def main():
    args = training.parse(__doc__, batch=16, side=0)
    if args.one:
        training.report(run_network, args, args.one)
        return
    print(f"{f'batch {args.batch}':36s}{'time':>8s}{'limit':>8s}{'rate':>8s}")
    training.run_networks(args, measure, print_row)


if __name__ == "__main__":
    main()

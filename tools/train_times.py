"""Times training steps of the networks of bench/networks.py: SOL beside PyTorch, in turns.

    train_times.py [NETWORK...] [--batch 4] [--side 128] [--seconds 4] [--threads N] [--peers eager] [--sgd] [--memory M] [--json FILE]

A step sets the gradients to None, and runs forward and backward in train mode (dropout in eval mode), for a random gradient of the
output. SOL packs the parameters in each of them, as after an optimizer's step; with --sgd, a step of SGD with momentum follows.
--memory sets sol.config["training::memory"]. Peers are eager, channels_last (eager, with model and images in that memory format)
and inductor (torch.compile), separated by commas.
Columns: milliseconds of a step (median), then each peer's time over SOL's (above 1, SOL is faster; -: it cannot run this network),
the best peer's, its smallest and largest ratio of one round of turns, and the seconds of SOL's first step, which compiles. Each
network has a process of its own.
"""

import argparse
import copy
import statistics
import time

import training

from sol.bench import process, timing

PEERS = ("eager", "channels_last", "inductor")


def make_step(module, model, x, sgd):
    """Returns a function without arguments that runs a step of `module`, which is `model` or an optimized form of it."""
    import torch

    dy = torch.randn(model(x).shape)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6, momentum=0.9)

    def step():
        model.zero_grad(set_to_none=True)
        module(x).backward(dy)
        if sgd:
            optimizer.step()

    return step


def make_peer(args, name, net, x):
    """Returns the step of a peer; None if it has no form of this network."""
    import torch

    model = copy.deepcopy(net.model)
    if name == "channels_last":
        if not net.is_image:
            return None
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    module = torch.compile(model) if name == "inductor" else model
    return make_step(module, model, x, args.sgd)


def run_network(args, name):
    """In the child: times one network. Returns its row."""
    import sol.pytorch as sol

    net, x = training.build(args, name)
    model = copy.deepcopy(net.model)
    fast = sol.optimize(model, x)
    steps = {"sol": make_step(fast, model, x, args.sgd)}
    for peer in args.peers:
        steps[peer] = make_peer(args, peer, net, x)
    steps = {name: step for name, step in steps.items() if step}
    start = time.perf_counter()
    steps["sol"]()
    row = {"network": name, "first_s": time.perf_counter() - start}
    row["fallbacks"] = training.count_fallbacks(fast)
    blocks = timing.take_turns(steps, args.seconds)
    row["ms"] = {key: ms for key, (ms, _) in timing.summarize(blocks).items()}
    row["best"] = min((key for key in row["ms"] if key != "sol"), key=row["ms"].get)
    row["spread"] = timing.ratio_spread(blocks, row["best"])
    return row


def print_row(row, peers):
    if "ms" not in row:
        print(f"{row['network']:20s} FAILED: {row.get('error', '')}", flush=True)
        return
    ms = row["ms"]
    cells = f"{ms['sol']:10.1f}"
    ratios = [f"{ms[peer] / ms['sol']:.2f}" if peer in ms else "-" for peer in peers]
    cells += "".join(f"{ratio:>14s}" for ratio in ratios)
    low, high = row["spread"]
    reasons = "; ".join(row["fallbacks"])
    print(
        f"{row['network']:20s}{cells}{find_ratio(row):8.2f}   [{low:.2f}, {high:.2f}]{row['first_s']:8.1f}  {reasons}",
        flush=True,
    )


def find_ratio(row):
    """The best peer's time over SOL's."""
    return row["ms"][row["best"]] / row["ms"]["sol"]


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    training.add_arguments(parser, batch=4, side=128)
    parser.add_argument("--seconds", type=float, default=4.0, help="per engine and network")
    parser.add_argument("--peers", default="eager", help=", ".join(PEERS))
    parser.add_argument("--sgd", action="store_true", help="a step of the optimizer, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.peers = args.peers.split(",")
    unknown = set(args.peers) - set(PEERS)
    if unknown:
        parser.error(f"unknown peer {min(unknown)!r}; known: {', '.join(PEERS)}")
    return args


def main():
    args = parse()
    if args.one:
        training.report(run_network, args, args.one)
        return
    import networks

    peers = args.peers
    print(
        f"{f'batch {args.batch}':20s}{'sol, ms':>10s}"
        + "".join(f"{title:>14s}" for title in peers)
        + "    best   spread, first step in s"
    )
    options = [*training.pass_on(args), f"--seconds={args.seconds}", f"--peers={','.join(peers)}"]
    options += ["--sgd"] if args.sgd else []
    rows = []
    for name in args.network or networks.NAMES:
        found = process.run_child([__file__, "--one", name, *options], args.timeout)
        rows.append({"network": name, **found})
        print_row(rows[-1], peers)
        process.write_rows(args.json, rows)
    ratios = [find_ratio(row) for row in rows if "ms" in row]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"geometric mean of the best peer over SOL, {len(ratios)} networks: {mean:.2f}")


if __name__ == "__main__":
    main()

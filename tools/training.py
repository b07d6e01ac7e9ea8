"""What the tools that measure training steps share: their options, and the network in the child."""

import argparse
import sys
import traceback
from pathlib import Path

from sol.bench import process

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]


def add_arguments(parser, batch, side):
    """Adds the options of a network, with these defaults, and those of all tools with a process for each network."""
    parser.add_argument("network", nargs="*")
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--side", type=int, default=side, help="of images; 0: the network's own")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--memory", type=float, help="0 to 1; default: SOL's own")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one process")
    parser.add_argument("--json", type=Path)


def parse(doc, batch, side):
    """Returns the arguments of a tool that has no options of its own."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, batch, side)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_networks(args, measure, print_row):
    """Measures and prints one network after the other. Returns {name: row}, which is also written to --json."""
    import networks

    rows = {}
    for name in args.network or networks.NAMES:
        rows[name] = measure(args, name)
        print_row(name, rows[name])
        process.write_rows(args.json, rows)
    return rows


def pass_on(args):
    """Returns the options of a network, for a child."""
    options = [f"--{key}={getattr(args, key)}" for key in ("batch", "side", "threads")]
    return options + ([] if args.memory is None else [f"--memory={args.memory}"])


def build(args, name):
    """In the child: returns a network of bench/networks.py in train mode, and its inputs. Sets threads and training::memory."""
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
    return net, net.inputs(args.batch)


def count_fallbacks(module):
    """Returns {reason: number} of the calls that PyTorch ran."""
    import sol.pytorch as sol

    return {reason: n for reason, n in sol.fallbacks(module).items() if n}


def report(run, *arguments):
    """In the child: reports the row that `run` returns, or its exception."""
    try:
        process.report(run(*arguments))
    except Exception as error:
        traceback.print_exc()
        process.report({"error": f"{type(error).__name__}: {error}"[:300]})

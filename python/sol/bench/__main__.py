"""Compares the times of SOL and other inference engines: python -m sol.bench NETWORK... [options]

A NETWORK is one of
- module:function or file.py:function, where function(batch) returns (torch.nn.Module, inputs)
- the same with a function or class that returns only a module, together with --shape
- a name on a list of networks (--list)
Without a NETWORK, all networks of the list are measured. With --layers, a NETWORK is a row of bench/layers.py: a layer
or a short chain of layers. Each network has its own processes; the engines run in turns
in one of them. Compare only ratios of one run, and only if no other work disturbed it: a warning is printed if so.
"""

import argparse
import json
import os
import sys
import textwrap
import traceback
from pathlib import Path

from sol.bench import (
    chart,
    layer_table,
    layers,
    load,
    machine,
    network,
    process,
    restrict,
    table,
)

PEERS = ("eager", "eager_cl", "inductor", "onnxruntime", "openvino", "ncnn")


def make_parser():
    parser = argparse.ArgumentParser(
        prog="python -m sol.bench",
        description=__doc__,
        epilog=explain_columns(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--threads", type=positive, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", type=peer_list, default=list(PEERS), help=",".join(PEERS))
    parser.add_argument("--shape", type=sizes, help="of one input without the batch: 3,224,224")
    parser.add_argument(
        "--list", type=Path, help="file with NAMES and build(name); default bench/networks.py"
    )
    parser.add_argument("--layers", action="store_true", help="single layers instead of networks")
    parser.add_argument("--seconds", type=float, default=2.0, help="per engine and network")
    parser.add_argument(
        "--runs",
        type=positive,
        default=1,
        help="of each network; the one with the median ratio counts",
    )
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one process")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--svg", type=Path, help="write a chart of the ratios to this file")
    parser.add_argument(
        "--readme", type=Path, help="rewrite the block between bench: begin and end in this file"
    )
    parser.add_argument("--child", choices=("cold", "compare", "layers"), help=argparse.SUPPRESS)
    return parser


def explain_columns():
    """Returns the meaning of the table's columns as text for --help."""
    lines = [
        "columns of the table, behind each engine's median in milliseconds (- where it was left out):"
    ]
    lines += [
        textwrap.fill(text, 100, initial_indent=f"  {title:10}", subsequent_indent=12 * " ")
        for title, text in table.COLUMNS.items()
    ]
    return "\n".join(lines)


def positive(text):
    if (n := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{n} is not positive")
    return n


def sizes(text):
    return tuple(positive(size) for size in text.split(","))


def peer_list(text):
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(PEERS)}")
    return names


# ---- In the child: one network ----


def run_child(args):
    """Measures, and reports {"row": ...} or {"error": reason} to the parent. Returns the exit code."""
    from sol.bench.target import BadTarget

    try:
        if args.child == "layers":
            run_layers(args)
        else:
            process.report({"row": run_network(args)})
    except BadTarget as error:
        process.report({"error": str(error), "is_told": True})
    except Exception as error:
        traceback.print_exc()
        process.report({"error": f"{type(error).__name__}: {error}"[:300]})
    return 0


def run_network(args):
    import torch

    from sol.bench import target

    torch.set_num_threads(args.threads)
    found = target.load(args.network[0], args.batch, args.list, args.shape)
    with torch.no_grad():
        if args.child == "cold":
            return network.compile_cold(found)
        return network.compare(found, args.peers, args.threads, args.seconds)


def run_layers(args):
    import torch

    from sol.bench import target

    torch.set_num_threads(args.threads)
    with torch.no_grad():
        layers.run(
            args.network,
            lambda name: target.find_listed(name, args.list),
            args.peers,
            args.threads,
            args.seconds,
        )


def child_args(args, names):
    """Returns the command line arguments of the child for ``names``."""
    options = [*names, "--peers", ",".join(args.peers)]
    for option in ("batch", "threads", "seconds"):
        options += [f"--{option}", str(getattr(args, option))]
    if args.shape:
        options += ["--shape", ",".join(map(str, args.shape))]
    return options + (["--list", str(args.list)] if args.list else [])


# ---- In the parent ----


def find_names(args, parser):
    if args.network:
        return args.network
    from sol.bench import target

    return target.list_names(args.list) or parser.error("name a network; there is no list of them")


def measure_all(args, names):
    """Measures all networks. Returns the results, and writes them to --json after each network, as a run may be interrupted."""
    results = {"machine": machine.describe(args.threads), "rows": []}
    if words := load.warning(load.look()):
        print(f"warning: {words} before the start: times will be unreliable", file=sys.stderr)
    shown = layer_table if args.layers else table

    def take(row):
        results["rows"].append(row)
        machine.add_rates(results["machine"], row)
        print(shown.line(row, args.peers), flush=True)
        write(args.json, lambda: json.dumps(results, indent=1))

    print(shown.header(args.peers, args.batch))
    if args.layers:
        layers.measure(names, lambda names: child_args(args, names), args.timeout, take)
        return results
    for name in names:
        take(network.measure(name, child_args(args, [name]), args.runs, args.timeout))
    return results


def write_all(args, results):
    """Writes the files of --json, --svg and --readme. The README refers to the chart by a relative path."""
    results["about"] = machine.as_text(results["machine"])
    tables = layer_table if args.layers else table
    write(args.json, lambda: json.dumps(results, indent=1))
    write(args.svg, lambda: chart.draw(results, table.SHORT))
    if args.readme:
        shown = args.svg and Path(os.path.relpath(args.svg, args.readme.parent)).as_posix()
        block = tables.markdown(results, args.peers, shown)
        text = args.readme.read_text("utf-8")
        write(args.readme, lambda: table.replace_block(text, block, tables.MARKS))


def write(path, make_text):
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make_text(), encoding="utf-8")


def main():
    parser = make_parser()
    args = parser.parse_args()
    if args.child:
        return run_child(args)
    os.environ.update(restrict.environment())
    if args.layers:
        args.list = args.list or Path("bench") / "layers.py"
    tables = layer_table if args.layers else table
    # OpenMP reads this variable when it starts its threads; later calls may not change their number.
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    if args.readme and tables.MARKS[0] not in args.readme.read_text("utf-8"):
        parser.error(f"{args.readme} has no line {tables.MARKS[0]}")
    results = measure_all(args, find_names(args, parser))
    write_all(args, results)
    print(tables.summary(results))
    return int(any("failed" in row for row in results["rows"]))


if __name__ == "__main__":
    sys.exit(main())

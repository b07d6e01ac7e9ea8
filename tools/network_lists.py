"""Runs the networks of tools/network_rows.py by SOL and by PyTorch, and says how each runs; --write writes docs/networks.md.

    network_lists.py [GROUP|NETWORK...] [--write] [--seconds N] [--json FILE]

How a network runs:
    whole       SOL computes all of it, as one program
    host nodes  one program, in which PyTorch computes some operations
    graphs      Python runs between several graphs, of which SOL runs at least one; the reasons are listed
    PyTorch     PyTorch runs the whole network
    failed      an exception, more than N seconds, or an error above LIMIT
The error is the largest difference from PyTorch's result, relative to the result's largest value, with batch 2 and with batch 1.
If it is above LIMIT, both results are compared with PyTorch's in float64: a network may enlarge rounding errors so much that
PyTorch's own error is above LIMIT, too.

PyTorch's forward runs before SOL's: some networks fill caches of their own in their first call, which PyTorch then has to run. Each network runs in a process of its own, so a crash or a lack of memory ends one row only. Results are kept in the JSON file,
from which the document is written, so the rows may be run in several parts.
"""

import argparse
import collections
import contextlib
import copy
import importlib.metadata
import io
import json
import os
import re
import sys
import time
import traceback
import warnings
from pathlib import Path

import torch
from network_rows import GROUPS
from torch.utils import _pytree as pytree

import sol.pytorch as sol

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "networks.md"
BATCHES = 2, 1
LIMIT = 1e-4
OUTCOMES = ["whole", "host nodes", "graphs", "PyTorch", "failed"]
MAX_REASONS = 3  # of a row of the document
MAX_REASON = 200  # characters


# ---- One network ----


def declare(value, is_open):
    """Returns the `sol.input` of a tensor, with its first size open if ``is_open``. Other values are constants."""
    if not isinstance(value, torch.Tensor):
        return value
    shape = list(value.shape)
    return sol.input([0, *shape[1:]] if is_open and shape else shape, value.dtype)


def tensors(result):
    return [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def compare(found, expected):
    """Returns the largest difference of two lists of tensors, relative to the largest value of each. NaN equals NaN."""
    if [x.shape for x in found] != [x.shape for x in expected]:
        return float("inf")
    worst = 0.0
    for x, y in zip(found, expected):
        if x.numel():
            x, y = x.double().nan_to_num(1e30), y.double().nan_to_num(1e30)
            worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp_min(1e-30)))
    return worst


def in_double(model, arguments):
    """Returns PyTorch's result in float64, or None if the network cannot compute in it."""
    change = lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x  # noqa: E731
    try:
        return tensors(copy.deepcopy(model).double()(*pytree.tree_map(change, arguments)))
    except Exception:
        return None


def find_errors(model, arguments, expected, found):
    """Returns [the error], or if it is above LIMIT [SOL's error, PyTorch's error], both against float64."""
    error = compare(found, expected)
    exact = in_double(model, arguments) if error > LIMIT else None
    if exact is None:
        return [error]
    return [compare(found, exact), compare(expected, exact)]


def describe(fast):
    """Returns (outcome, reasons) of an optimized module that has been called."""
    graphs = sol.graphs(fast)
    refused = [f"{x.name}: {x.reason}" for x in graphs if x.reason]
    if len(refused) < len(graphs):
        ends = [str(x.end) for x in graphs if x.end]
        of_pytorch = [f"{len(refused)} of {len(graphs)} graphs in PyTorch"] if refused else []
        return "graphs", of_pytorch + ends or [f"{len(graphs)} graphs"]
    if refused or sol.fallbacks(fast):
        return "PyTorch", refused or list(sol.fallbacks(fast))
    hosts = [f"{x.call}: {x.reason}" for x in sol.host_nodes(fast)]
    return ("host nodes", hosts) if hosts else ("whole", [])


def vary(model):
    """Adds noise to parameters whose values are all equal: a weight or scale of 0 would hide the layers before it."""
    for x in model.parameters():
        if x.is_floating_point() and x.numel() > 1 and x.min() == x.max():
            x.add_(torch.randn_like(x), alpha=0.1)


def run_network(network):
    """Returns the row of a network as a dict."""
    torch.manual_seed(0)
    model, fast = network.make().eval(), None
    vary(model)
    row = {"outcome": "whole", "reasons": [], "errors": {}}
    for n in BATCHES:
        arguments = network.inputs(n)
        expected = tensors(model(*arguments))
        if fast is None or not network.is_open:
            specs = pytree.tree_map(lambda x: declare(x, network.is_open), arguments)
            fast = sol.optimize(
                model, specs
            )  # a list of all inputs, since one may be a list itself
        errors = find_errors(model, arguments, expected, tensors(fast(*arguments)))
        outcome, reasons = describe(fast)
        if errors[0] > max(LIMIT, 4 * errors[-1] if len(errors) > 1 else 0):
            outcome, reasons = "failed", [f"the error with batch {n} is {errors[0]:.1e}"]
        if OUTCOMES.index(outcome) > OUTCOMES.index(row["outcome"]):
            row["outcome"], row["reasons"] = outcome, reasons
        row["errors"][n] = errors
    return row


# ---- All networks ----


def run_apart(network, seconds):
    """Returns the row of a network, which a child process computes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
                row = run_network(network)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            row = {"outcome": "failed", "reasons": [text], "errors": {}}
        with os.fdopen(write, "w") as file:
            json.dump(row, file)
        os._exit(0)
    os.close(write)
    return wait_for(child, read, seconds)


def wait_for(child, read, seconds):
    end = time.monotonic() + seconds
    found = 0
    while not found and time.monotonic() < end:
        time.sleep(0.05)
        found, status = os.waitpid(child, os.WNOHANG)
    if not found:
        os.kill(child, 9)
        os.waitpid(child, 0)
    with os.fdopen(read) as file:
        text = file.read()
    if text:
        return json.loads(text)
    reason = f"ended by signal {status & 127}" if found else f"longer than {seconds} s"
    return {"outcome": "failed", "reasons": [reason], "errors": {}}


def select(names):
    """Returns [(group, network)] for names of groups and networks, in their order; all of them without names."""
    rows = [(group, network) for group, make in GROUPS.items() for network in make()]
    if not names:
        return rows
    asked = [r for name in names for r in rows if name in (r[0], r[1].name)]
    unknown = set(names) - {name for group, network in rows for name in (group, network.name)}
    if unknown:
        raise SystemExit(f"no such group or network: {', '.join(sorted(unknown))}")
    return asked


def print_row(name, row):
    errors = " ".join(show_errors(e) for e in row["errors"].values())
    reasons = "; ".join(shorten(r) for r in row["reasons"][:MAX_REASONS])
    print(f"{name:40s} {row['outcome']:10s} {errors:20s} {reasons}", flush=True)


# ---- The document ----

HEAD = """# Networks of other packages

Written by `tools/network_lists.py --write` with {versions}; not to be edited. Its head says what the columns mean.
`make networks` runs all of them. Weights are random.

"""


def shorten(reason):
    """Returns the first lines of a reason as one line, without what would end a cell of a table."""
    text = re.sub(r"\s+", " ", reason).replace("|", "/").replace("`", "'")
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 2] + ".."


def show_errors(errors):
    if not errors:
        return ""
    exact = f" (PyTorch {errors[1]:.1e})" if len(errors) > 1 else ""
    return f"{errors[0]:.1e}{exact}"


def count(reasons):
    """Returns reasons, each once, with the number of times."""
    found = collections.Counter(map(shorten, reasons))
    texts = [f"{n} x {text}" if n > 1 else text for text, n in found.items()]
    more = [f"and {len(texts) - MAX_REASONS} more"] if len(texts) > MAX_REASONS else []
    return "<br>".join(texts[:MAX_REASONS] + more)


def write_document(results):
    packages = ["torch", *GROUPS]
    installed = {d.name: d.version for d in importlib.metadata.distributions()}
    versions = ", ".join(f"{p} {installed[p]}" for p in packages if p in installed)
    text = HEAD.format(versions=versions)
    text += (
        f"| package | networks | {' | '.join(OUTCOMES)} |\n|---|---:{'|---:' * len(OUTCOMES)}|\n"
    )
    for group, rows in results.items():
        counts = collections.Counter(row["outcome"] for row in rows.values())
        cells = [str(counts[x]) for x in OUTCOMES]
        text += f"| {group} | {len(rows)} | {' | '.join(cells)} |\n"
    for group, rows in results.items():
        text += f"\n## {group}\n\n| network | runs | error, batch 2 | batch 1 | reasons |\n|---|---|---:|---:|---|\n"
        for name, row in rows.items():
            errors = [show_errors(row["errors"].get(str(n))) for n in BATCHES]
            text += (
                f"| {name} | {row['outcome']} | {' | '.join(errors)} | {count(row['reasons'])} |\n"
            )
    DOCUMENT.write_text(text)


def merge(results, group, name, row):
    """Puts a row in its place: in the order of GROUPS and of their networks."""
    results.setdefault(group, {})[name] = row
    order = {g: [network.name for network in make()] for g, make in GROUPS.items()}
    return {
        g: {n: results[g][n] for n in names if n in results[g]}
        for g, names in order.items()
        if g in results
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="groups or networks; default: all")
    parser.add_argument("--write", action="store_true", help="write docs/networks.md")
    parser.add_argument("--seconds", type=int, default=300, help="limit for one network")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "networks.json")
    given = parser.parse_args()
    results = json.loads(given.json.read_text()) if given.json.exists() else {}
    for group, network in select(given.names):
        row = json.loads(json.dumps(run_apart(network, given.seconds)))
        print_row(network.name, row)
        results = merge(results, group, network.name, row)
        given.json.write_text(json.dumps(results, indent=1))
    if given.write:
        write_document(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())

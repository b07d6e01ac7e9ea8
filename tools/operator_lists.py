"""Counts which operators and modules of PyTorch's own test lists SOL computes; --write writes docs/operators.md.

    python tools/operator_lists.py [--kinds operators,modules,gradients] [--filter REGEX] [--every N] [--samples N] [--jobs N] [--write]

operator_cases.py runs the samples, and tells what the outcomes mean. It runs in processes of its own: a crash costs one name, and
a name that takes too long is ended. Generated kernels are interpreted, as there are thousands of them.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "operators.md"
KINDS = ["operators", "modules", "gradients"]
SECONDS = 300  # for all samples of a name
START_SECONDS = 300  # for a process to import the lists
SAMPLES = 20  # of a name, evenly spread: some names have more than a thousand
FAILURES = ["wrong", "error", "time limit", "crash"]
OUTCOMES = ["native", "host node", "graph break", "PyTorch", *FAILURES]
GROUPS = {
    "computes": "operators that compute values from values",
    "views": "operators whose results lie in the memory of their inputs",
    "writes": "operators that write into their inputs",
    "factories": "operators that make tensors, but do not read values",
    "facts": "operators without a tensor among their results",
    "linalg": "linear algebra: decompositions, solvers, norms of matrices",
    "fft": "Fourier transforms", "signal": "windows of signals", "sparse": "operators of sparse tensors",
    "complex": "operators of complex numbers", "modules": "modules of torch.nn, in eval mode",
    "gradients": "modules of torch.nn, in train mode: results, gradients, buffers",
}  # fmt: skip


# ---- Processes ----


class Worker:
    """A process of operator_cases.py. ``names``: the names that its list has."""

    def __init__(self, kind, samples):
        env = dict(os.environ, SOL_CC="none")
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "tools" / "operator_cases.py", kind, str(samples)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        self._text = b""
        self.names = json.loads(self._read(START_SECONDS))

    def _read(self, seconds):
        """Returns the next line. Raises TimeoutError, or EOFError if the process has ended."""
        end, out = time.monotonic() + seconds, self._process.stdout
        while b"\n" not in self._text:
            if not select.select([out], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError
            piece = os.read(out.fileno(), 1 << 16)
            if not piece:
                raise EOFError
            self._text += piece
        line, _, self._text = self._text.partition(b"\n")
        return line

    def run(self, name):
        self._process.stdin.write(name.encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._read(SECONDS))

    def end(self):
        """Ends the process. Returns its exit status; below 0: a signal's number."""
        self._process.kill()
        self._process.stdin.close()
        return self._process.wait()


class Runner:
    """Runs names one after the other, in a Worker that is replaced after a crash."""

    def __init__(self, kind, samples):
        self._make = lambda: Worker(kind, samples)
        self._worker = None

    def run(self, name):
        """Returns the row of a name."""
        self._worker = self._worker or self._make()
        try:
            return self._worker.run(name)
        except (EOFError, BrokenPipeError):
            outcome, reason = "crash", "its process ended"
        except TimeoutError:
            outcome, reason = "time limit", f"more than {SECONDS} s"
        self.end()
        return {
            "name": name, "group": "computes", "outcome": outcome, "n": 1, "native": 0, "reason": reason,
        }  # fmt: skip

    def end(self):
        if self._worker:
            self._worker.end()
        self._worker = None


def note(row):
    """Prints a row, so that a long run shows what it does. Returns it."""
    text = f"{row['name']}: {row['outcome'] or row['group']} {row['native']} of {row['n']} {row['reason']}"
    print(text, file=sys.stderr, flush=True)
    return row


def list_names(kind):
    worker = Worker(kind, 1)
    worker.end()
    return worker.names


def run_list(kind, names, samples, jobs):
    """Returns the rows of names, in their order."""
    parts = [names[i::jobs] for i in range(jobs)]

    def run_part(part):
        runner = Runner(kind, samples)
        try:
            return [note(runner.run(name)) for name in part]
        finally:
            runner.end()

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        rows = {row["name"]: row for part in pool.map(run_part, parts) for row in part}
    return [rows[name] for name in names]


# ---- The document ----


def count(rows):
    """Yields the lines of a table with a row per group and a column per outcome."""
    counts = collections.Counter((row["group"], row["outcome"]) for row in rows)
    yield "| group | names | " + " | ".join(OUTCOMES) + " | |"
    yield "|---|" + "---:|" * (len(OUTCOMES) + 1) + "---|"
    for group, text in GROUPS.items():
        numbers = [counts[group, outcome] for outcome in OUTCOMES]
        if any(numbers):
            yield f"| {group} | {sum(numbers)} | " + " | ".join(map(str, numbers)) + f" | {text} |"


def not_native(rows):
    """Yields the lines of a table of the names that are not native, by group and outcome."""
    yield "| name | group | outcome | native samples | reason |"
    yield "|---|---|---|---|---|"
    groups = list(GROUPS)
    found = [x for x in rows if x["group"] in groups and x["outcome"] != "native"]
    for x in sorted(found, key=lambda x: (groups.index(x["group"]), x["name"])):
        reason = x["reason"].replace("|", "/").replace("<", "&lt;")
        share = f"{x['native']} of {x['n']}"
        yield f"| {x['name']} | {x['group']} | {x['outcome']} | {share} | {reason} |"


def native(rows):
    """Yields a line for each group with the names that are native."""
    for group in GROUPS:
        names = [x["name"] for x in rows if x["group"] == group and x["outcome"] == "native"]
        if names:
            yield f"{group}: " + ", ".join(sorted(names)) + "."
            yield ""


def document(rows, version, samples):
    left = collections.Counter(x["group"] for x in rows if x["group"] not in GROUPS)
    return "\n".join(
        [
            "# Operators and modules of PyTorch",
            "",
            f"Written by `make operators` with PyTorch {version}; not to be edited. PyTorch's own tests have a list of its operators",
            f"and one of its modules, with samples of arguments. Here, at most {samples} samples of each, of float32 if the",
            'operator takes it, are run by `torch.compile(backend="sol")` without gradients, and compared with PyTorch.',
            "`tools/operator_cases.py` tells what the outcomes mean. A name is native if all of its samples are. Each operator is compiled",
            "alone; in a network, SOL leaves a graph of a few small operators to PyTorch. Modules in training run by `sol.optimize`, with the",
            "gradients of their arguments and parameters (`tools/gradient_cases.py`).",
            "",
            *count(rows),
            "",
            f"Not counted: {left['random']} names whose results are random or undefined, and {left['not run']} of which no sample",
            "runs in PyTorch without gradients, or which have no element type that SOL has.",
            "",
            "## Not native",
            "",
            *not_native(rows),
            "",
            "## Native",
            "",
            *native(rows),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--filter", default="")
    parser.add_argument("--names", default="", help="a file with a name per line")
    parser.add_argument("--every", type=int, default=1, help="only each N-th name of a list")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of a name; 0: all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", default="", help="writes the rows to this file")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    start, rows = time.monotonic(), []
    for kind in arguments.kinds.split(","):
        names = [x for x in list_names(kind) if re.search(arguments.filter, x)][:: arguments.every]
        if arguments.names:
            known = set(Path(arguments.names).read_text().splitlines())
            names = [x for x in names if x in known]
        rows += run_list(kind, names, arguments.samples, min(arguments.jobs, max(1, len(names))))
    print(*count(rows), "", *not_native(rows), sep="\n")
    print(f"{time.monotonic() - start:.0f} s")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=0))
    if arguments.write:
        import torch

        version = torch.__version__.partition("+")[0]
        DOCUMENT.write_text(document(rows, version, arguments.samples), encoding="utf-8")
    return 1 if any(x["outcome"] in FAILURES for x in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

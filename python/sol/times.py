"""Where time and memory of a compiled program go, for people: tables, a trace, a picture with times.

rows of Program.profile, of several runs -> Profile, with a Step per cluster
Program.memory                           -> Memory
"""

import collections
import json
import re
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from sol import _core
from sol._core import clean

UNSEEN_S = 1e-12  # a step may take no time at all


class Step(NamedTuple):
    """One cluster of layers that one kernel computes, with its median time."""

    name: str
    module: str  # DNN, DFP or copy
    layers: str
    seconds: float
    flops: float  # of direct convolution, also where Winograd's algorithm needs fewer
    bytes: float  # inputs and outputs once
    cluster: int  # its number in the report and the picture
    implementation: str
    refused: dict  # {implementation: reason}


def median_steps(runs):
    """Steps with the median times of several runs, each a list of Program.profile's rows."""
    return [Step(*row[:-1]) for row in median_rows(runs)]  # without the report's lines


def median_rows(runs):
    """Rows of Program.profile with the median times of several runs."""
    return tuple(
        (*rows[0][:3], statistics.median(row[3] for row in rows), *rows[0][4:])
        for rows in zip(*runs)
    )


def make_profile(name, program, call, run, runs):
    """A Profile of ``runs`` calls, made in turns with timed runs. ``call()``: a user's call; ``run()``: rows of Program.profile."""
    calls, every = [], []
    for _ in range(max(1, runs)):
        start = time.perf_counter()
        call()
        calls.append(time.perf_counter() - start)
        every.append(run())
    # A call is compared with the timed run next to it: the machine's speed changes over time.
    overheads = [seconds - sum(row[3] for row in rows) for seconds, rows in zip(calls, every)]
    return Profile(
        name,
        median_steps(every),
        statistics.median(calls),
        statistics.median(overheads),
        program.dot(),
    )


def write_report(path, name, program, symbols, run, runs):
    """A page for a browser about the median of ``runs`` runs. The first one finds nothing in the caches."""
    every = [run() for _ in range(max(1, runs) + 1)]
    Path(path).write_text(
        program.html_report(name, symbols, median_rows(every[1:])), encoding="utf-8"
    )


def vendor_libraries():
    """Names of implementations that are not SOL's own kernels."""
    rows = _core.query()
    return {
        name for kind, name, ok, what in rows if kind == "library" and ok and what != "own kernel"
    }


class Profile:
    """Times of one module, for one batch size. Printing it gives the table.

    ``steps``: a Step per cluster, in order; ``call_s``: median of whole calls, made in turns with timed ones;
    ``overhead_s``: what a call takes beyond its steps; ``peak``: flop/s of this machine, measured;
    ``dot``: Graphviz text of the network with times.
    """

    def __init__(self, name, steps, call_s, overhead_s, dot):
        self.name = name
        self.steps = steps
        self.call_s = call_s
        self.overhead_s = overhead_s
        self.threads = _core.threads()
        self.peak = _core.measure_flops()
        self.dot = draw_times(dot, steps)

    @property
    def seconds(self):
        """Of all steps."""
        return sum(step.seconds for step in self.steps)

    @property
    def own_share(self):
        """The share of the steps' time that is spent in SOL's own kernels, between 0 and 1."""
        vendors = vendor_libraries()
        own = sum(step.seconds for step in self.steps if step.implementation not in vendors)
        return own / max(self.seconds, UNSEEN_S)

    def seconds_by(self):
        """{implementation: seconds}, most first."""
        total = collections.Counter()
        for step in self.steps:
            total[step.implementation] += step.seconds
        return dict(total.most_common())

    def refusals(self):
        """{(implementation, reason): number of steps}, most frequent first."""
        found = collections.Counter(item for step in self.steps for item in step.refused.items())
        return dict(found.most_common())

    def __str__(self):
        lines = [
            f"{'ms':>9} {'%':>5} {'GF/s':>8} {'% peak':>7} {'GB/s':>7}  {'module':6} {'by':10} what"
        ]
        lines += [self._line(step) for step in self.steps]
        lines += [
            f"{self.seconds * 1e3:9.3f} 100.0 {self._rate(self.seconds)}  {self.threads} threads,"
            f" peak {self.peak * 1e-9:.0f} GF/s, {100 * self.own_share:.0f}% in own kernels",
            f"{self.call_s * 1e3:9.3f} a call, {self.overhead_s * 1e6:.0f} us more than its steps",
        ]
        shares = [
            f"{100 * s / max(self.seconds, UNSEEN_S):.1f}% {name}"
            for name, s in self.seconds_by().items()
        ]
        lines.append(f"{'by':>9} {', '.join(shares)}")
        # That a convolution is no linear layer is nothing to ponder.
        refusals = [row for row in self.refusals().items() if not row[0][1].startswith("not a ")]
        lines += [f"{n:9d} x {name} refused: {why}" for (name, why), n in refusals]
        return "\n".join(lines)

    def _line(self, step):
        share = 100 * step.seconds / max(self.seconds, UNSEEN_S)
        seconds = max(step.seconds, UNSEEN_S)
        return (
            f"{step.seconds * 1e3:9.3f} {share:5.1f} {step.flops / seconds * 1e-9:8.1f}"
            f" {100 * step.flops / seconds / self.peak:7.1f} {step.bytes / seconds * 1e-9:7.1f}"
            f"  {step.module:6} {step.implementation:10} {clean(f'{step.name}: {step.layers}')}"
        )

    def _rate(self, seconds):
        rate = sum(step.flops for step in self.steps) / max(seconds, UNSEEN_S)
        return f"{rate * 1e-9:8.1f} {100 * rate / self.peak:7.1f}"

    def save_trace(self, path):
        """Writes the steps, one behind the other, as a trace in Chrome's JSON format."""
        events, start = [], 0.0
        for step in self.steps:
            events.append(trace_event(step, start))
            start += step.seconds
        trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": self.name}}
        Path(path).write_text(json.dumps(trace), encoding="utf-8")


def trace_event(step, start):
    """A complete event; times are microseconds."""
    facts = {"layers": step.layers, "implementation": step.implementation, "refused": step.refused}
    facts |= {"flops": step.flops, "bytes": step.bytes, "cluster": step.cluster}
    times = {"ts": start * 1e6, "dur": step.seconds * 1e6}
    return {
        "name": step.name,
        "cat": step.module,
        "ph": "X",
        "pid": 0,
        "tid": 0,
        **times,
        "args": facts,
    }


def draw_times(dot, steps):
    """The program's Graphviz text with each cluster's time, and its implementation, in its label."""
    total = max(sum(step.seconds for step in steps), UNSEEN_S)
    labels = {
        str(
            step.cluster
        ): f" {step.implementation} {step.seconds * 1e3:.3f} ms {step.seconds / total:.0%}"
        for step in steps
    }
    label = re.compile(r'(subgraph cluster_(\d+) \{\s*label="[^"]*)"')
    return label.sub(lambda m: f'{m.group(1)}{labels.get(m.group(2), "")}"', dot)


# ---- Memory ----


class Memory(NamedTuple):
    """Bytes that an optimized module needs for one batch size. ``own`` is what SOL adds to PyTorch's.

    Parameters that a kernel uses as they are have no packed form. Each call that runs at the same time as another one
    has an arena and scratch of its own; they stay for the next call.
    """

    parameters: int  # PyTorch's: parameters and buffers of the module, shared ones once
    weights: int  # packed forms of parameters
    constants: int  # the program: steps, tables, texts
    arena: int  # intermediate results; those that never live at once share bytes
    live: int  # the most that is alive at once: the least that any arena must have
    scratch: int  # of all threads

    @property
    def own(self):
        return self.weights + self.constants + self.arena + self.scratch

    def __str__(self):
        rows = [*zip(self._fields, self), ("own", self.own)]
        return "\n".join(f"{name:10} {size / 2**20:10.3f} MiB" for name, size in rows)

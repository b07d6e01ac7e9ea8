"""Time and memory of a compiled program as tables, as a trace, and as a graph with times.

rows of Program.profile, of several runs -> Profile, with a Step per step of the program
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

UNSEEN_S = 1e-12  # lower limit of divisors: a step's time may be measured as 0


class Step(NamedTuple):
    """One step of a program: the kernel call that computes a cluster, with its median time."""

    name: str
    module: str  # DNN, DFP or copy
    layers: str
    seconds: float
    flops: float  # floating point operations; for Winograd, too, those of direct convolution
    bytes: float  # of memory traffic, each input and output counted once
    cluster: int  # its number in the report and the graph; -1: none
    implementation: str
    refused: dict  # {implementation: reason}
    is_backward: bool = False  # of the backward call


def median_steps(runs):
    """Returns Steps with the median times of several runs; each run is a list of rows of Program.profile."""
    return [Step(*row[:-1]) for row in median_rows(runs)]  # the last item is text for the report


def median_rows(runs):
    """Returns rows of Program.profile with the median times of several runs."""
    return tuple(
        (*rows[0][:3], statistics.median(row[3] for row in rows), *rows[0][4:])
        for rows in zip(*runs)
    )


def make_profile(name, dot, call, run, runs, program=None):
    """Returns a Profile from ``runs`` calls and as many profiled runs, which alternate.

    ``call()`` calls the network as a user does; ``run()`` returns rows of Program.profile. ``program``: the
    _core.Program, for what a call copies; None: a session.
    """
    calls, every, transfers = [], [], None
    for _ in range(max(1, runs)):
        before = program and program.transfers
        start = time.perf_counter()
        call()
        calls.append(time.perf_counter() - start)
        transfers = program and _difference(program.transfers, before)
        every.append(run())
    # Each call is compared with the profiled run directly after it, as the machine's speed changes over time.
    overheads = [seconds - sum(row[3] for row in rows) for seconds, rows in zip(calls, every)]
    return Profile(
        name,
        median_steps(every),
        statistics.median(calls),
        statistics.median(overheads),
        dot,
        transfers,
    )


def _difference(after, before):
    return {name: after[name] - before[name] for name in after}


def write_report(path, name, program, symbols, run, runs):
    """Writes an HTML report with the median times of ``runs`` runs. One more run before them fills the caches."""
    every = [run() for _ in range(max(1, runs) + 1)]
    Path(path).write_text(
        program.html_report(name, symbols, median_rows(every[1:])), encoding="utf-8"
    )


def vendor_libraries():
    """Returns the names of the available implementations that call a vendor's library."""
    rows = _core.query()
    return {
        name for kind, name, ok, what in rows if kind == "library" and ok and what != "own kernel"
    }


class Profile:
    """Times of one network for inputs of one shape, in seconds. ``print`` shows them as a table.

    ``steps``: a Step per step of the program, in order, those of a backward call last; ``call_s``: median time of whole calls, which alternate with
    profiled runs; ``transfers``: the bytes that a call copies between the host and a far device (``to_device``, ``to_host``, and
    ``weights`` for parameters), and its ``launches`` of kernels, all 0 on the host, None for a session; ``overhead_s``: median difference of a call and the sum of its steps; ``threads``: number of threads;
    ``peak``: the measured peak of this machine in flop/s; ``dot``: Graphviz text of the program with times.
    """

    def __init__(self, name, steps, call_s, overhead_s, dot, transfers=None):
        self.name = name
        self.steps = steps
        self.call_s = call_s
        self.overhead_s = overhead_s
        self.transfers = transfers
        self.threads = _core.threads()
        self.peak = _core.measure_flops()
        self.dot = draw_times(dot, steps)

    @property
    def seconds(self):
        """The sum of the steps' median times."""
        return sum(step.seconds for step in self.steps)

    @property
    def own_share(self):
        """The part of the steps' time that SOL's own kernels take, between 0 and 1."""
        vendors = vendor_libraries()
        own = sum(step.seconds for step in self.steps if step.implementation not in vendors)
        return own / max(self.seconds, UNSEEN_S)

    def seconds_by(self):
        """Returns {implementation: seconds}, in descending order."""
        total = collections.Counter()
        for step in self.steps:
            total[step.implementation] += step.seconds
        return dict(total.most_common())

    def refusals(self):
        """Returns {(implementation, reason): number of steps that it refused}, in descending order."""
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
        lines += self._transfers()
        shares = [
            f"{100 * s / max(self.seconds, UNSEEN_S):.1f}% {name}"
            for name, s in self.seconds_by().items()
        ]
        lines.append(f"{'by':>9} {', '.join(shares)}")
        backward = sum(step.seconds for step in self.steps if step.is_backward)
        if backward:
            lines.append(f"{backward * 1e3:9.3f} of it in the backward call")
        # A reason such as "not a linear layer" tells a user nothing.
        refusals = [row for row in self.refusals().items() if not row[0][1].startswith("not a ")]
        lines += [f"{n:9d} x {name} refused: {why}" for (name, why), n in refusals]
        return "\n".join(lines)

    def _transfers(self):
        """Returns a line for a far device, else none."""
        if not self.transfers or not self.transfers["launches"]:
            return []
        to_device, to_host, weights = (
            f"{self.transfers[name] / 1024:.1f} KiB" for name in ("to_device", "to_host", "weights")
        )
        return [
            f"a call copies {to_device} to the device, {to_host} to the host, {weights} of parameters, and starts"
            f" {self.transfers['launches']} kernels"
        ]

    def _line(self, step):
        share = 100 * step.seconds / max(self.seconds, UNSEEN_S)
        seconds = max(step.seconds, UNSEEN_S)
        return (
            f"{step.seconds * 1e3:9.3f} {share:5.1f} {step.flops / seconds * 1e-9:8.1f}"
            f" {100 * step.flops / seconds / self.peak:7.1f} {step.bytes / seconds * 1e-9:7.1f}"
            f"  {step.module:6} {step.implementation:10} {'backward ' if step.is_backward else ''}"
            + clean(f"{step.name}: {step.layers}")
        )

    def _rate(self, seconds):
        rate = sum(step.flops for step in self.steps) / max(seconds, UNSEEN_S)
        return f"{rate * 1e-9:8.1f} {100 * rate / self.peak:7.1f}"

    def save_trace(self, path):
        """Writes the steps, in sequence, to the file ``path`` as a trace in Chrome's JSON format. Raises OSError."""
        events, start = [], 0.0
        for step in self.steps:
            events.append(trace_event(step, start))
            start += step.seconds
        trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"name": self.name}}
        Path(path).write_text(json.dumps(trace), encoding="utf-8")


def trace_event(step, start):
    """Returns a complete event of Chrome's trace format, with times in microseconds. ``start``: in seconds."""
    facts = {"layers": step.layers, "implementation": step.implementation, "refused": step.refused}
    facts |= {"flops": step.flops, "bytes": step.bytes, "cluster": step.cluster}
    facts |= {"backward": True} if step.is_backward else {}
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
    """Returns the Graphviz text ``dot`` with each cluster's implementation and time in its label."""
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
    """Bytes of memory that a network needs for one batch size. ``own``: what SOL allocates in addition to ``parameters``.

    A parameter that a kernel reads in its original form has no packed form. Calls that overlap have an arena and scratch
    each, which SOL keeps for later calls. A network in training has a backward call with an arena and scratch of its own.
    """

    parameters: int  # parameters and buffers of the module or file; shared memory counts once
    weights: int  # packed parameters
    constants: int  # the program: steps, tables, texts
    arena: int  # intermediate values of one call; values with disjoint lifetimes share bytes
    live: int  # the largest sum of values that are alive at the same time: a lower bound for ``arena``
    scratch: int  # of all threads
    saved: int = 0  # what a forward call leaves for its backward call
    backward_arena: int = 0  # these are of the backward call
    backward_live: int = 0
    backward_scratch: int = 0

    @property
    def own(self):
        """Bytes that SOL allocates: packed parameters, program, arena and scratch of both calls, and saved values."""
        calls = self.arena + self.scratch + self.backward_arena + self.backward_scratch
        return self.weights + self.constants + calls + self.saved

    def __str__(self):
        backward = [row for row in zip(self._fields[6:], self[6:]) if any(self[6:])]
        rows = [*zip(self._fields[:6], self), *backward, ("own", self.own)]
        return "\n".join(f"{name:16} {size / 2**20:10.3f} MiB" for name, size in rows)

"""Reports about the graphs of torch.compile: which ones SOL runs, which calls fell back, and why graphs were made again.

    a graph is made, or falls back -> Backend -> its own report, and the report of each compiled function that is running

Invariant: a report belongs to the module or function that was given to torch.compile, and never keeps it alive. If it was given
twice, both results have one report, as Dynamo gives both the same graphs.
"""

import collections
import weakref
from typing import NamedTuple

from sol.pytorch.dynamo_frame import find_callers, find_skipped, find_subject


class GraphReport(NamedTuple):
    """One of several graphs in which a network runs. ``reason``: why PyTorch runs it; None: SOL runs it, or no call met it yet.
    ``end``: the Break at its end, or None."""

    name: str
    reason: str
    end: object

    def __str__(self):
        runs = f"runs in PyTorch: {self.reason}" if self.reason else "runs in SOL"
        return f"{self.name} {runs}{f'; ends at {self.end}' if self.end else ''}"


class Recompile(NamedTuple):
    """A graph that was made because the guards of earlier graphs did not hold. ``reason``: the guard of the last of these."""

    name: str
    reason: str

    def __str__(self):
        return (
            f"{self.name} was made because of {self.reason or 'a guard that Dynamo does not name'}"
        )


class Report:
    """``subject``: the module or function, or None for those of a process. ``fallbacks``: {reason: number of calls that PyTorch ran}. ``made_again``: a Recompile for each graph that was made again."""

    def __init__(self, subject=None):
        self._subject = weakref.ref(subject) if subject is not None else lambda: None
        self.fallbacks = collections.Counter()
        self.made_again = []
        self._pieces = []  # weak references: Dynamo owns them

    def add(self, piece):
        """Adds a graph, unless it is there."""
        known = self.pieces
        if not any(x is piece for x in known):
            self._pieces = [weakref.ref(x) for x in (*known, piece)]

    @property
    def pieces(self):
        """The graphs that Dynamo still has, in the order in which they were added."""
        return [x for x in (ref() for ref in self._pieces) if x is not None]

    @property
    def recompiles(self):
        return len(self.made_again)

    def host_nodes(self):
        """Returns a list with a HostNode for each node that PyTorch computes inside of programs."""
        return [node for piece in self.pieces for node in piece.hosts()]

    def graphs(self):
        """Returns a list with a GraphReport for each graph."""
        return [GraphReport(x.name, x.reason, x.end) for x in self.pieces]

    def refresh(self):
        """Makes the next calls of all graphs pack their weights again."""
        for piece in self.pieces:
            piece.refresh()

    def reasons(self):
        """Returns {reason: number of calls}, with 0 for a graph that PyTorch will run, which no call met yet. For a function of
        which Dynamo makes no graph: the number of its attempts, as calls do not reach SOL."""
        known = [f"{x.name}: {x.reason}" for x in self.graphs() if x.reason]
        return {**dict.fromkeys(known, 0), **find_skipped(self._subject()), **self.fallbacks}


_reports = weakref.WeakKeyDictionary()


def find_running():
    """Returns the Reports of the compiled functions that are running on this thread."""
    return [_find(x) for x in dict.fromkeys(find_callers())]


def find_report(compiled):
    """Returns the Report of what torch.compile returned. Raises TypeError for anything else."""
    subject = find_subject(compiled)
    if subject is None:
        kind = type(compiled).__name__
        raise TypeError(f"expected what sol.optimize or torch.compile returned, got {kind}")
    return _find(subject)


def _find(subject):
    report = _reports.get(subject)
    return _reports.setdefault(subject, Report(subject)) if report is None else report

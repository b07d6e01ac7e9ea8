"""Runs a module whose forward no single graph can replace: in several graphs, with Python between them.

    engine.py: capture fails -> Breaks -> at a call: torch.compile -> dynamo.py, for each graph

Dynamo divides the forward, and its guards detect changes of what the forward reads. Some changes they do not detect: hooks that are
registered after the first call, keys of a dict in another order, 0.0 that becomes -0.0. The engine's guard detects the hooks; the
others are detected as for a captured forward, by Reads, of the guards' own sources. After such a change there is a new Breaks.

Invariant: each Breaks has a region of Dynamo's code cache of its own, so a graph of an earlier one never runs again.
"""

import inspect
import os
import threading

import torch

from sol import log
from sol.pytorch.audit import find_reads
from sol.pytorch.dynamo import Backend
from sol.pytorch.engine import Options
from sol.pytorch.reads import ABSENT, is_same
from sol.pytorch.watch import INTERNAL

# The number of graphs that Dynamo may make of one Python function, for other sizes and other Python values.
MAX_RECOMPILES = 16

# Held during a first call: its captures change state of PyTorch that first calls of other threads would see.
_first = threading.RLock()


def _renew_lock():
    """Creates a new lock in a child of fork, where the thread that held it does not exist."""
    global _first
    _first = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Breaks:
    """Runs calls of ``module`` in graphs. ``options``: of the engine. ``reason``: why it cannot be captured as a whole. ``backend``: has the reports.

    ``fallbacks``: Counter for the calls of graphs that PyTorch runs. ``pays``: whether SOL runs any graph; None before the first call.
    """

    def __init__(self, module, options, reason, fallbacks):
        self.reason = reason
        kept = Options(options.name, None, False, options.target)
        self.backend = Backend(kept, self._note_reads)
        self._module = module
        self._reads = []
        self._attributes = {}  # (module, name) -> the value that a graph reads
        self._fallbacks = fallbacks
        self.pays = None
        self._name = options.name
        self._run = _compile(module, self.backend)

    def __call__(self, args, kwargs):
        """Runs one call. Python code of the forward runs exactly once."""
        if self.pays is not None:
            return self._call(args, kwargs)
        with _first:
            return self._call(args, kwargs)

    def _call(self, args, kwargs):
        result = self._run(*args, **kwargs)
        # What the forward itself has written, Dynamo's guards check alone.
        self._reads = [x for x in self._reads if not x.has_changed()]
        self._attributes = {x: v for x, v in self._attributes.items() if self._holds(x, v)}
        if self.pays is None:
            self._judge()
        return result

    def has_changed(self):
        """Whether a Python object that the forward reads has changed since the last call."""
        return any(x.has_changed() for x in self._reads) or not all(
            self._holds(*item) for item in self._attributes.items()
        )

    def _holds(self, attribute, value):
        module, name = attribute
        return is_same(vars(module).get(name, ABSENT), value)

    def _note_reads(self):
        """Adds what Dynamo's guards of a new graph check."""
        try:
            reads = find_reads(self._module)
        except Exception as error:
            log.say(log.debug, f"{self._name}: what a graph reads is not watched: {error}")
            return
        self._reads.append(reads)
        for module in self._module.modules():
            for name, value in vars(module).items():
                if (id(module), name) in reads.attributes and name not in INTERNAL:
                    self._attributes[module, name] = value

    def _judge(self):
        """Finds out after the first call whether the graphs pay."""
        pieces = self.backend.pieces
        n = sum(piece.pays for piece in pieces)
        self.pays = n > 0
        if self.pays:
            self._fallbacks.update(self.backend.fallbacks)
            self.backend.fallbacks = self._fallbacks
            text = f"{self._name} runs in {len(pieces)} graphs, {n} of them in SOL"
            log.say(log.info, f"{text}: {self.reason}; sol.graphs lists them")


def _compile(module, backend):
    options = {"recompile_limit": MAX_RECOMPILES, "isolate_recompiles": True}
    known = inspect.signature(torch.compile).parameters  # PyTorch has them from 2.13 on
    options = {name: value for name, value in options.items() if name in known}
    return torch.compile(module, backend=backend, **options)

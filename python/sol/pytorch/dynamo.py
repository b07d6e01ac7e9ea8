"""The backend of torch.compile: ``torch.compile(model, backend="sol")``.

    Dynamo -> compile_graph -> a Piece per graph (dynamo_piece.py), which Dynamo calls instead of the graph

Dynamo divides a forward where Python is needed between operators, for example where a condition depends on the values of a
tensor. It calls the backend once per graph. The graphs of all calls of torch.compile have the Backend PROCESS; a network that
``sol.optimize`` runs in several graphs has its own (breaks.py).
"""

import collections
import weakref
from typing import NamedTuple

from sol import log
from sol.pytorch.dynamo_piece import Break, Piece
from sol.pytorch.engine import Options


class GraphReport(NamedTuple):
    """One of several graphs in which a network runs. ``reason``: why PyTorch runs it; None: SOL runs it, or no call met it yet.
    ``end``: the Break at its end, or None."""

    name: str
    reason: str
    end: Break

    def __str__(self):
        runs = f"runs in PyTorch: {self.reason}" if self.reason else "runs in SOL"
        return f"{self.name} {runs}{f'; ends at {self.end}' if self.end else ''}"


class Backend:
    """A backend function for torch.compile, and the reports about the graphs that it has compiled.

    ``note``: None, or a method that is called whenever Dynamo compiles a graph. ``fallbacks``: {reason: number of calls}. ``recompiles``: the number of graphs that Dynamo made because the guards of earlier
    ones failed.
    """

    def __init__(self, name="torch.compile", note=None):
        self.name = name
        self._note = weakref.WeakMethod(note) if note else lambda: None  # Dynamo keeps this object
        self.options = Options(name, None, False)
        self.fallbacks = collections.Counter()
        self.recompiles = 0
        self._said = set()
        self._pieces = []  # weak references: Dynamo owns them

    def __call__(self, module, inputs):
        """Returns the function that Dynamo calls for a graph. ``inputs``: examples."""
        note = self._note()
        if note is not None:
            note()
        piece = Piece(self, module, inputs)
        self._pieces = [x for x in self._pieces if x() is not None]
        self._pieces.append(weakref.ref(piece))
        identity = module.meta.get("dynamo_compile_id")
        self.recompiles += bool(getattr(identity, "frame_compile_id", 0))
        return piece.run

    @property
    def pieces(self):
        """The graphs that Dynamo still has, in the order of their compilation."""
        return [x for x in (ref() for ref in self._pieces) if x is not None]

    def host_nodes(self):
        """Returns a list with a HostNode for each node that PyTorch computes inside of programs."""
        return [node for piece in self.pieces for node in piece.hosts()]

    def graphs(self):
        """Returns a list with a GraphReport for each graph."""
        return [GraphReport(x.name, x.reason, x.end) for x in self.pieces]

    def note_fallback(self, name, reason, is_mode=False):
        """Counts a call of a graph that PyTorch runs, and logs the reason once."""
        text = reason if is_mode else f"{name}: {reason}"
        self.fallbacks[text] += 1
        if text not in self._said:
            self._said.add(text)
            log.say(log.info, f"{self.name} runs in PyTorch: {text}")


PROCESS = Backend()


def compile_graph(module, inputs, **options):
    """The backend "sol" of torch.compile: returns the function that runs ``module``, a graph of Dynamo. ``inputs``: examples.

    Raises ValueError for ``options`` or a ``mode``, as SOL has none.
    """
    if any(options.values()):
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ValueError(f"torch.compile(backend='sol') takes no {given}")
    return PROCESS(module, inputs)

"""The backend of torch.compile: ``torch.compile(model, backend="sol")``.

    Dynamo -> compile_graph -> Backend -> a Piece per graph (dynamo_piece.py), which Dynamo calls instead of the graph

Dynamo divides a forward where Python is needed between operators, for example where a condition depends on the values of a
tensor. It calls the backend once per graph. The graphs of all calls of torch.compile without options have the Backend PROCESS, those
with equal options share another one; a network that ``sol.optimize`` runs in several graphs has its own (breaks.py).
"""

import weakref

from sol import log
from sol.pytorch.checks import check_batch_size
from sol.pytorch.dynamo_frame import find_recompile_reason, is_fullgraph
from sol.pytorch.dynamo_piece import Piece
from sol.pytorch.dynamo_report import Recompile, Report, find_running
from sol.pytorch.engine import Options
from sol.pytorch.fallback import count_fallback

# The keys of torch.compile's `options`, with what they mean, for messages.
OPTIONS = {
    "batch_size": "the batch size to tune for, where it is open",
    "fullgraph": "an error instead of a fallback or a host node",
    "name": "the name in logs",
}


class Backend(Report):
    """A backend function for torch.compile, and the reports about all graphs that it has compiled.

    ``note``: None, or a method that is called whenever Dynamo compiles a graph. ``options``: engine.Options; its ``fullgraph`` None
    means that of torch.compile. ``is_shared``: it compiles graphs of several modules, each of which has a Report of its own.
    """

    def __init__(self, options, note=None, is_shared=False):
        super().__init__()
        self.options = options
        self.name = options.name
        self._is_shared = is_shared
        self._note = weakref.WeakMethod(note) if note else lambda: None  # Dynamo keeps this object
        self._said = set()

    def __call__(self, module, inputs):
        """Returns the function that Dynamo calls for a graph. ``inputs``: examples."""
        note = self._note()
        if note is not None:
            note()
        is_strict = self.options.fullgraph
        piece = Piece(self, module, inputs, is_fullgraph() if is_strict is None else is_strict)
        self.note_caller(piece)
        identity = module.meta.get("dynamo_compile_id")
        if getattr(identity, "frame_compile_id", 0):
            self._note_recompile(Recompile(piece.name, find_recompile_reason()))
        return piece.run

    def note_caller(self, piece):
        """Adds a graph to the reports of this call."""
        for report in self._find_reports():
            report.add(piece)

    def note_fallback(self, piece, reason, is_mode=False):
        """Counts a call of a graph that PyTorch runs, and logs the reason once."""
        text = reason if is_mode else f"{piece.name}: {reason}"
        count_fallback()
        for report in self._find_reports():
            report.add(piece)
            report.fallbacks[text] += 1
        self._say(f"runs in PyTorch: {text}")

    def _note_recompile(self, recompile):
        for report in self._find_reports():
            report.made_again.append(recompile)
        self._say(f"is compiled again: {recompile}")

    def _find_reports(self):
        return [self, *(find_running() if self._is_shared else ())]

    def _say(self, text):
        if text not in self._said:
            self._said.add(text)
            log.say(log.info, f"{self.name} {text}")


PROCESS = Backend(Options("torch.compile", None, None), is_shared=True)
_backends = {PROCESS.options: PROCESS}


def compile_graph(module, inputs, options=None, **others):
    """The backend "sol" of torch.compile: returns the function that runs ``module``, a graph of Dynamo. ``inputs``: examples.

    ``options``: a dict. With ``batch_size``, the program is tuned for this batch size, where the batch size is open. ``fullgraph``:
    True: a call raises NotImplementedError, with the operator and the shapes, instead of falling back to PyTorch, and SOL computes
    everything; False: it never does; default: as the argument ``fullgraph`` of torch.compile. Calls in a mode that SOL does not run,
    and those whose gradients it cannot compute, always run in PyTorch. ``name``: the name in logs.

    With any other option, or a ``mode``, calls raise ValueError; TypeError or ValueError for values that an option cannot have.
    """
    try:
        return _find_backend(options or {}, others)(module, inputs)
    except (TypeError, ValueError) as error:
        return _Refusing(error)  # Dynamo would wrap what is raised here


class _Refusing:
    """Instead of a graph: a function that raises an exception at each call."""

    def __init__(self, error):
        self._error = error

    def __call__(self, *args):
        raise self._error.with_traceback(None)


def _find_backend(options, others):
    """Returns the Backend for these options. Raises TypeError or ValueError for wrong ones."""
    wrong = {**others, **{key: options[key] for key in options if key not in OPTIONS}}
    if wrong:
        given = ", ".join(f"{key}={value!r}" for key, value in wrong.items())
        known = "; ".join(f"{key}: {text}" for key, text in OPTIONS.items())
        raise ValueError(
            f"torch.compile(backend='sol') takes no {given}. What options={{...}} may have: {known}"
        )
    batch_size, is_strict = options.get("batch_size"), options.get("fullgraph")
    name = options.get("name") or PROCESS.name
    check_batch_size(batch_size, "torch.compile(backend='sol')")
    _check_type("fullgraph", is_strict, bool)
    _check_type("name", name, str)
    key = Options(name, batch_size, is_strict)
    return _backends.get(key) or _backends.setdefault(key, Backend(key, is_shared=True))


def _check_type(key, value, kind):
    if value is not None and not isinstance(value, kind):
        expected = f"options['{key}'] must be a {kind.__name__}, not {value!r}"
        raise TypeError(f"torch.compile(backend='sol'): {expected}")

"""From a PyTorch module to a graph: torch.export, and the sizes for which the graph is proven.

The model is exported inside a wrapper that takes a flat list of tensors and returns one, so that
structures of any kind and constants never reach torch.export.
"""

import contextlib
import re
import warnings
from typing import Any, NamedTuple

import torch

from sol.pytorch.inputs import EXAMPLE_BATCH, ConstantSpec, TensorSpec
from sol.pytorch.structure import flatten

# The wrapper's attribute: every name in the exported program begins with it.
PREFIX = "model."
# How a guard of torch.export names the first size of an input.
FIRST_SIZE = re.compile(r"L(?:\[[^\]]*\]|\.\w+)+\.size\(\)\[0\]")


class CannotCapture(Exception):
    """torch.export cannot see the model as one graph, but the model itself runs."""


class Captured(NamedTuple):
    """An exported model.

    ``output``: Structure of the result. ``constants``: {position: value} of those leaves of the
    result that are no tensors; the others are the graph's outputs in order. ``n_leaves``: all leaves.
    """

    exported: Any
    output: Any
    constants: dict
    n_leaves: int
    batches: Any


class Batches:
    """The batch sizes for which an exported graph is proven to be what the model does."""

    def __init__(self, low, high, guards):
        self._low, self._high = low, high
        self._guards = [compile(guard, "<guard>", "eval") for guard in guards]
        self._known = {}

    def exclude(self, size):
        """An op has another meaning at this size."""
        self._guards.append(compile(f"n != {int(size)}", "<guard>", "eval"))
        self._known.clear()

    @property
    def is_free(self):
        """Whether every batch from 1 on may run."""
        return not self._guards and self._low <= 1 and self._high >= 2**31 - 1

    def admit(self, n):
        """Whether batch ``n`` may run; None (no dynamic input) always may."""
        if n is None:
            return True
        if n not in self._known:
            self._known[n] = self._low <= n <= self._high and all(
                eval(guard, {"__builtins__": {}}, {"n": n}) for guard in self._guards
            )
        return self._known[n]

    def __getstate__(self):
        raise TypeError("batches are not pickled: a model is captured again where it is loaded")


class _Result:
    """How a model's result is built. An object of its own: torch.export puts attributes back."""

    structure = None
    constants = {}
    n_leaves = 0


class _Flat(torch.nn.Module):
    """``model`` with flat tensor arguments and a flat list of tensors as result."""

    def __init__(self, model, specs, structure):
        super().__init__()
        self.model = model
        self.result = _Result()
        self._specs = specs
        self._structure = structure

    def forward(self, *tensors):
        given = iter(tensors)
        leaves = [
            spec.value if isinstance(spec, ConstantSpec) else next(given) for spec in self._specs
        ]
        result = self.model(*self._structure.build(iter(leaves)))
        leaves, self.result.structure = flatten(result)
        self.result.n_leaves = len(leaves)
        self.result.constants = {
            i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)
        }
        return [x for x in leaves if isinstance(x, torch.Tensor)]


def capture(model, specs, structure, batch_hint):
    """Exports ``model`` for inference -> Captured.

    Raises CannotCapture when only torch.export fails, ValueError when the model itself refuses these
    inputs. Modes of the modules are eval during the export and restored after it.
    """
    tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
    batch = max(batch_hint or 0, EXAMPLE_BATCH)
    examples = tuple(spec.example(batch) for spec in tensors)
    flat = _Flat(model, specs, structure)
    with _eval_mode(model), torch.no_grad():
        try:
            exported = _export(flat, examples, tensors)
        except Exception as error:
            _check_runs(flat, examples, tensors)
            raise CannotCapture(f"torch.export: {_first_line(error)}") from error
    result = flat.result
    if any(
        isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool))
        for x in result.constants.values()
    ):
        raise CannotCapture("the result has a number that depends on the batch size")
    return Captured(
        exported, result.structure, result.constants, result.n_leaves, _batches(exported)
    )


def _export(flat, examples, tensors):
    dims = tuple({0: torch.export.Dim.AUTO} if spec.is_dynamic else None for spec in tensors)
    with warnings.catch_warnings(), _oblivious():
        warnings.simplefilter("ignore")
        return torch.export.export(flat, examples, dynamic_shapes=(dims,), strict=False)


def _oblivious():
    """Lets torch.export reason about sizes 0 and 1 as about any other, instead of assuming >= 2.

    Without this option (PyTorch changed it) the proven range begins at 2: smaller batches fall back.
    """
    try:
        from torch.fx.experimental import _config

        return _config.patch(backed_size_oblivious=True)
    except (ImportError, AttributeError):
        return contextlib.nullcontext()


@contextlib.contextmanager
def _eval_mode(model):
    """Sets the flags alone: a model's own train() may do more, such as freezing layers."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        yield
    finally:
        for module, training in modes:
            module.training = training


def _check_runs(flat, examples, tensors):
    """Raises ValueError when the model fails in plain PyTorch too."""
    try:
        flat(*examples)
    except Exception as error:
        shapes = ", ".join(map(str, tensors))
        raise ValueError(f"the model refuses {shapes}: {_first_line(error)}") from error


def _first_line(error):
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def _batches(exported):
    """What torch.export assumed about the batch. Raises CannotCapture if it cannot be checked."""
    low, high = 0, 2**62
    for interval in exported.range_constraints.values():
        low = max(low, int(interval.lower))
        if interval.upper < high:
            high = int(interval.upper)
    guards = []
    for guard in getattr(exported, "_guards_code", None) or []:
        text = FIRST_SIZE.sub("n", guard)
        if "L[" in text:
            raise CannotCapture(f"the model depends on {guard}")
        guards.append(text)
    return Batches(low, high, guards)

"""From a PyTorch module to a graph: what its forward depends on, the graph, and the sizes for which it is proven.

    audit.py        may this forward be replaced by a graph at all? It only interprets: nothing of Python is changed
    torch.export    runs the forward once with tensors that have no memory -> the graph

The model is exported inside a wrapper that takes a flat list of tensors and returns one, so that
structures of any kind and constants never reach torch.export.

Both change state of the whole process while they run, so one thread captures at a time, and nobody forks meanwhile.
"""

import contextlib
import enum
import os
import re
import threading
from typing import Any, NamedTuple

import torch

from sol.pytorch.audit import CannotCapture, MayRefuse, audit, find_user_line, quiet
from sol.pytorch.inputs import EXAMPLE_BATCH, ConstantSpec, TensorSpec
from sol.pytorch.structure import flatten

# The wrapper's attribute: every name in the exported program begins with it.
PREFIX = "model."
# How a guard of torch.export names the first size of an input.
FIRST_SIZE = re.compile(r"L(?:\[[^\]]*\]|\.\w+)+\.size\(\)\[0\]")

# Of what a result may have besides tensors: the same object serves every call.
UNCHANGING = (
    int, float, complex, str, bytes, type(None), type(...), range, type, enum.Enum,
    torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip

# Held during a capture. A child of fork finds it free, and PyTorch as it should be.
LOCK = threading.RLock()
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


class Captured(NamedTuple):
    """An exported model.

    ``reads``: what else its forward depends on. ``output``: Structure of the result. ``constants``:
    {position: value} of those leaves of the result that are no tensors; the others are the graph's
    outputs in order. ``n_leaves``: all leaves.
    """

    exported: Any
    reads: Any
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


class Refused(ValueError):
    """The model itself does not take inputs of these shapes."""


class _ForwardFailed(Exception):
    """The model's own forward raised its cause. torch.export prints graphs for some other types."""


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
        try:
            result = self.model(*_build(self._specs, self._structure, tensors))
        except Exception as error:
            raise _ForwardFailed from error
        leaves, self.result.structure = flatten(result)
        self.result.n_leaves = len(leaves)
        self.result.constants = {
            i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)
        }
        return [x for x in leaves if isinstance(x, torch.Tensor)]


def capture(model, specs, structure, batch):
    """Captures ``model`` for inference with that many samples, and others as far as the graph holds for them -> Captured.
    One sample stands for itself alone: PyTorch takes special ways with sizes of 1.

    Raises CannotCapture when it must run in PyTorch, Refused when the model itself refuses these
    inputs. Modes of the modules are eval meanwhile.
    """
    tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
    examples = tuple(spec.example(batch) for spec in tensors)
    flat = _Flat(model, specs, structure)
    with LOCK, _eval_mode(model), _same_attributes(model), torch.no_grad(), quiet():
        try:
            reads = audit(model, _build(specs, structure, examples))
            exported = _export(flat, examples, [x.is_dynamic and batch > 1 for x in tensors])
        except MayRefuse as error:
            _check_runs(flat, examples, tensors)
            raise CannotCapture(str(error)) from error
    result = flat.result
    _check_result(result)
    batches = _batches(exported) if batch > 1 else Batches(batch, batch, [])
    return Captured(exported, reads, result.structure, result.constants, result.n_leaves, batches)


def _check_result(result):
    """Every call must be able to build a result of its own. Raises CannotCapture."""
    for value in result.constants.values():
        parts = value if isinstance(value, torch.Size) else (value,)
        if any(isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) for x in parts):
            raise CannotCapture("the result has a number that depends on the batch size")
        if not isinstance(value, UNCHANGING):
            raise CannotCapture(f"the result has a {type(value).__name__}")
    try:
        result.structure.build(iter([None] * result.n_leaves))
    except Exception as error:
        raise CannotCapture(f"the result cannot be built again: {_first_line(error)}") from None


def choose_batch(hint):
    """The number of samples in examples."""
    return max(hint or 0, EXAMPLE_BATCH)


def _build(specs, structure, tensors):
    """The arguments of the model's forward."""
    given = iter(tensors)
    leaves = [spec.value if isinstance(spec, ConstantSpec) else next(given) for spec in specs]
    return structure.build(iter(leaves))


def _export(flat, examples, are_open):
    """``are_open``: for each example whether its first size is any."""
    dims = tuple({0: torch.export.Dim.AUTO} if is_open else None for is_open in are_open)
    try:
        with _oblivious():
            return torch.export.export(flat, examples, dynamic_shapes=(dims,), strict=False)
    except _ForwardFailed as error:
        cause = error.__cause__
        raise MayRefuse(f"torch.export: {_first_line(cause)}{find_user_line(cause)}") from error
    except Exception as error:
        raise CannotCapture(f"torch.export: {_first_line(error)}") from error


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


@contextlib.contextmanager
def _same_attributes(model):
    """torch.export leaves equal copies of lists and dicts in a module's attributes, which others may hold, too."""
    saved = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for own, before in saved:
            for name, value in before.items():
                if own.get(name) is not value:
                    own[name] = value


def _check_runs(flat, examples, tensors):
    """Raises Refused when the model fails in plain PyTorch too."""
    try:
        flat(*examples)
    except _ForwardFailed as error:
        shapes = ", ".join(map(str, tensors))
        raise Refused(f"the model refuses {shapes}: {_first_line(error.__cause__)}") from error


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

"""Capture: from a PyTorch module to its graph, the Python state that it reads, and the batch sizes for which it is valid.

    audit.py        decides whether a graph may replace the forward; it interprets the code and changes no Python state
    torch.export    runs the forward once with tensors that have no memory -> the graph

torch.export gets a wrapper that takes and returns flat lists of tensors, so it never sees nested structures or constants.

Both steps change state of the whole process while they run. So LOCK lets one thread capture at a time, and delays forks.
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

# The wrapper's attribute that holds the model: all names in the exported program begin with it.
PREFIX = "model."
# The first size of an input in the text of torch.export's guards.
FIRST_SIZE = re.compile(r"L(?:\[[^\]]*\]|\.\w+)+\.size\(\)\[0\]")

# Types of constants that a result may contain besides tensors. They are immutable, so all calls may return one object.
UNCHANGING = (
    int, float, complex, str, bytes, type(None), type(...), range, type, enum.Enum,
    torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip

# Held during a capture. A fork waits for it, so that PyTorch's state is consistent in the child.
LOCK = threading.RLock()
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


class Captured(NamedTuple):
    """A captured model.

    ``exported``: the ExportedProgram. ``reads``: the Python state that the forward reads (reads.Reads). ``output``:
    Structure of the result. ``constants``: {position: value} of the leaves of the result that are no tensors; the other
    leaves are the graph's outputs, in order. ``n_leaves``: number of all leaves. ``batches``: Batches.
    """

    exported: Any
    reads: Any
    output: Any
    constants: dict
    n_leaves: int
    batches: Any


class Batches:
    """The batch sizes for which an exported graph is valid: a range, and guards of torch.export as Python expressions of n."""

    def __init__(self, low, high, guards):
        self._low, self._high = low, high
        self._guards = [compile(guard, "<guard>", "eval") for guard in guards]
        self._known = {}

    def exclude(self, size):
        """Removes a batch size for which an op of the graph has another meaning."""
        self._guards.append(compile(f"n != {int(size)}", "<guard>", "eval"))
        self._known.clear()

    @property
    def is_free(self):
        """Whether the graph is valid for every batch size from 1 on."""
        return not self._guards and self._low <= 1 and self._high >= 2**31 - 1

    def admit(self, n):
        """Whether the graph is valid for the batch size ``n``; always for None (no dynamic input)."""
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
    """The model itself raises an exception for inputs of these shapes, also in plain PyTorch."""


class _ForwardFailed(Exception):
    """The model's forward raised ``__cause__``. The wrapper raises this type, as torch.export prints graphs for some others."""


class _Result:
    """The structure of a model's result. It is a separate object, as torch.export restores attributes of the module."""

    structure = None
    constants = {}
    n_leaves = 0


class _Flat(torch.nn.Module):
    """A wrapper of ``model`` that takes the tensors as separate arguments and returns a flat list of tensors."""

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
    """Captures ``model`` for inference with ``batch`` samples. Returns a Captured, valid for ``Captured.batches``.

    With ``batch`` 1 the graph is valid for that size only, as PyTorch treats sizes of 1 as a special case. Raises
    CannotCapture when PyTorch must run the model, Refused when the model itself refuses these inputs. All modules are in
    eval mode during the capture.
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
    """Raises CannotCapture unless each call can build a new result: immutable constants in a structure that can be rebuilt."""
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
    """Returns the batch size of the example inputs for a batch size to tune for, or None."""
    return max(hint or 0, EXAMPLE_BATCH)


def _build(specs, structure, tensors):
    """Returns the arguments of the model's forward: ``tensors`` and the constants of ``specs`` in their structure."""
    given = iter(tensors)
    leaves = [spec.value if isinstance(spec, ConstantSpec) else next(given) for spec in specs]
    return structure.build(iter(leaves))


def _export(flat, examples, are_open):
    """Returns the ExportedProgram. ``are_open``: for each example whether its first size is open.

    Raises MayRefuse when the forward raises an exception, else CannotCapture.
    """
    dims = tuple({0: torch.export.Dim.AUTO} if is_open else None for is_open in are_open)
    try:
        with oblivious():
            return torch.export.export(flat, examples, dynamic_shapes=(dims,), strict=False)
    except _ForwardFailed as error:
        cause = error.__cause__
        raise MayRefuse(f"torch.export: {_first_line(cause)}{find_user_line(cause)}") from error
    except Exception as error:
        raise CannotCapture(f"torch.export: {_first_line(error)}") from error


def oblivious():
    """Returns a context in which torch.export treats sizes 0 and 1 like all others, instead of assuming sizes >= 2.

    If PyTorch does not have the option, the graph is valid from 2 on: smaller batches fall back.
    """
    try:
        from torch.fx.experimental import _config

        return _config.patch(backed_size_oblivious=True)
    except (ImportError, AttributeError):
        return contextlib.nullcontext()


@contextlib.contextmanager
def _eval_mode(model):
    """Sets only the flags ``training``: a model may override train(), for example to freeze layers."""
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
    """Restores attributes of the modules: torch.export replaces lists and dicts by equal copies, but others may hold them."""
    saved = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for own, before in saved:
            for name, value in before.items():
                if own.get(name) is not value:
                    own[name] = value


def _check_runs(flat, examples, tensors):
    """Raises Refused when the model fails in plain PyTorch too. Restores buffers that the forward writes."""
    before = [(x, x._version, x.clone()) for x in flat.buffers() if not x.is_inference()]
    try:
        flat(*examples)
    except _ForwardFailed as error:
        shapes = ", ".join(map(str, tensors))
        raise Refused(f"the model refuses {shapes}: {_first_line(error.__cause__)}") from error
    finally:
        for buffer, version, value in before:
            if buffer._version != version:
                buffer.copy_(value)


def _first_line(error):
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def _batches(exported):
    """Returns the Batches for which torch.export's assumptions hold. Raises CannotCapture for one about another input."""
    low, high = 0, 2**62
    for symbol, interval in exported.range_constraints.items():
        if not symbol.is_integer:
            continue  # a number that is computed from values of a tensor
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

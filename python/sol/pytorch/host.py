"""Host nodes: calls of ATen operators that PyTorch computes inside of a program, over the program's memory.

    importer.py -> make_function: a node of the graph -> Function -> Builder.host
    at a call:     sol_program_run -> python/sol/_host.c -> Function.__call__ -> the operator

A Function has the operator and constants of the graph, and nothing else of the module or of Python's state. Its inputs are
tensors over the program's memory. The operator's results are copied into the outputs' memory, so they may be views of inputs.
An operator that writes in place runs on a clone, which is the result.
"""

import os
from typing import Any, NamedTuple

import torch
from torch.utils.dlpack import from_dlpack

from sol.pytorch.builder import DependsOnData, Unsupported
from sol.pytorch.inputs import DTYPE_NAMES
from sol.pytorch.nodes import as_list

# An operator of another namespace must be functional by its schema: PyTorch's compilers, too, take such an operator to have no
# effects besides its results.
NAMESPACES = {"aten", "torchvision"}
# Operators that read or change how a tensor lies in memory, which may be different in a program.
STRIDED = {
    "as_strided", "as_strided_copy", "as_strided_scatter", "_reshape_alias", "resize", "resize_as", "set", "empty_strided",
    "new_empty_strided", "view_as_complex",
}  # fmt: skip

_is_forked = False


def _note_fork():
    global _is_forked
    _is_forked = True


os.register_at_fork(after_in_child=_note_fork)


class HostNode(NamedTuple):
    """A node of a network that PyTorch computes. ``call``: the operator with its arguments. ``origin``: the user's line."""

    call: str
    origin: str
    reason: str

    def __str__(self):
        return f"{self.call}{f' at {self.origin}' if self.origin else ''}: {self.reason}"


class Slot(NamedTuple):
    """Stands for input number ``i`` among the operator's arguments."""

    i: int


class _Formula(NamedTuple):
    """Stands for a size: a formula of the program's symbols, which ``evaluate`` computes."""

    text: str
    evaluate: Any


class Function:
    """Computes one node. ``clones``: the operator writes into its first argument."""

    def __init__(self, target, args, kwargs, clones):
        self._target = target
        self._args, self._kwargs = args, kwargs
        self._clones = clones

    @property
    def key(self):
        """Equal for functions that compute the same."""
        return str(self._target), repr(self._args), repr(self._kwargs)

    def __call__(self, inputs, outputs, symbols):
        inputs = [from_dlpack(x) for x in inputs]
        args = fill(self._args, inputs, symbols)
        kwargs = fill(self._kwargs, inputs, symbols)
        with torch.no_grad():
            if self._clones:
                args[0] = args[0].clone()
            results = (
                _run_forked(self._target, args, kwargs)
                if _is_forked
                else self._target(*args, **kwargs)
            )
            if isinstance(results, torch.Tensor):
                results = (results,)
            for result, capsule in zip(results, outputs, strict=True):
                _copy(self._target, result, from_dlpack(capsule))


def _copy(target, result, output):
    if result.shape != output.shape or result.dtype is not output.dtype:
        # PyTorch's own inference of shapes is wrong for some operators. A ValueError lets PyTorch run the call.
        raise ValueError(
            f"{target} gave {result.dtype}{list(result.shape)} instead of {output.dtype}{list(output.shape)}"
        )
    output.copy_(result)


def _run_forked(target, args, kwargs):
    """Runs an operator in a child of fork, where PyTorch's threads do not exist: it would wait for them forever."""
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return target(*args, **kwargs)
    finally:
        torch.set_num_threads(n)


def fill(x, inputs, symbols):
    """Returns arguments with the tensors and sizes of a call."""
    if isinstance(x, Slot):
        return inputs[x.i]
    if isinstance(x, _Formula):
        return x.evaluate(symbols)
    if isinstance(x, list):
        return [fill(item, inputs, symbols) for item in x]
    if isinstance(x, dict):
        return {name: fill(item, inputs, symbols) for name, item in x.items()}
    return x


def make_function(node, is_written, formula):
    """Returns (Function, nodes that are its inputs). ``formula``: Builder.formula. Raises Unsupported if PyTorch cannot compute ``node`` in a program."""
    _check_operator(node)
    _check_results(node)
    args, kwargs, tensors = read_arguments(node, formula)
    for x in tensors:
        _check_tensor(x)
    name = node.target._schema.name.partition("::")[2].rstrip("_")
    if name in STRIDED and not all(map(_is_dense, tensors)):
        raise Unsupported("it depends on the strides of a tensor")
    return Function(node.target, args, kwargs, is_written), tensors


def read_arguments(node, formula):
    """Returns (args, kwargs, nodes of the tensors among them), for ``fill``. Raises Unsupported."""
    tensors = {}

    def argument(x):
        if isinstance(x, torch.fx.Node):
            if isinstance(x.meta.get("val"), torch.Tensor):
                return Slot(tensors.setdefault(x, len(tensors)))
            return _argument_size(x, formula)
        if isinstance(x, (list, tuple)):
            return [argument(item) for item in x]
        if isinstance(x, slice):
            raise Unsupported("an argument is a slice")
        return x

    args = [argument(x) for x in node.args]
    kwargs = {name: argument(x) for name, x in node.kwargs.items()}
    return args, kwargs, list(tensors)


def _draws_numbers(node):
    """Whether an operator draws random numbers; those with dropout do not if it is off."""
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    names = [x.name for x in node.target._schema.arguments]
    given = dict(zip(names, node.args)) | node.kwargs
    return bool(
        given.get("train", True) and given.get("dropout_p", 0.0 if "dropout_p" in names else 1.0)
    )


def _is_functional(schema):
    """Whether an operator's results lie in memory of their own, and it writes no argument."""
    return not any(x.alias_info for x in (*schema.arguments, *schema.returns))


def _check_operator(node):
    target = node.target
    if target.namespace not in NAMESPACES and not _is_functional(target._schema):
        raise Unsupported("it is no operator of PyTorch itself, and may write into its arguments")
    if _draws_numbers(node):
        raise Unsupported("it draws random numbers")
    name = target._schema.name.partition("::")[2].rstrip("_")
    if name in ("resize", "resize_as", "set"):
        raise Unsupported("it changes the memory of a tensor")


def _check_results(node):
    for value in as_list(node.meta["val"]):
        if torch.Tag.data_dependent_output in node.target.tags or _depends_on_data(value.shape):
            raise DependsOnData("the shape of its result depends on the values of a tensor")
        _check_value(value)


def _check_tensor(node):
    _check_value(node.meta["val"])


def _check_value(value):
    if value.dtype not in DTYPE_NAMES:
        raise Unsupported(f"a tensor of {str(value.dtype).removeprefix('torch.')}")
    if value.layout is not torch.strided or value.device.type != "cpu":
        raise Unsupported("a tensor that is not dense on the CPU")
    if value.dim() > 8:
        raise Unsupported(f"a tensor of {value.dim()} dims")


def _depends_on_data(sizes):
    """Whether a size is known only after values of tensors have been computed."""
    symbols = [
        s
        for size in sizes
        if not isinstance(size, (int, float, bool))
        for s in size.node.expr.free_symbols
    ]
    return any(str(symbol).startswith(("u", "zu")) for symbol in symbols)


def _argument_size(node, formula):
    value = node.meta.get("val")
    if isinstance(value, (int, float, bool)):
        return value
    if value is None:
        raise Unsupported(f"the argument {node.name}")
    if _depends_on_data([value]):
        raise DependsOnData("an argument depends on the values of a tensor")
    if not isinstance(value, torch.SymInt):
        raise Unsupported(f"an argument is {value}")
    return _Formula(*formula(value))


def _is_dense(node):
    value = node.meta["val"]
    return value.is_contiguous() and value.storage_offset() == 0

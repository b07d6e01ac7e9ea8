"""Programs of torch.export as models: ExportedProgram objects, and the files that torch.export.save writes (.pt2).

    find_model(program or path) -> (module, the Call that it is declared with)

The module is that of ``ExportedProgram.module()``. Its parameters are those of the program. Its graph checks its inputs itself.
"""

import os

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree

from sol.pytorch.audit import quiet
from sol.pytorch.inputs import EXAMPLE_BATCH, Input
from sol.pytorch.program import PROGRAM
from sol.pytorch.structure import Call


def is_exported(model):
    """Whether ``model`` is what this file makes a module of: an ExportedProgram, a path or a file."""
    return isinstance(model, (ExportedProgram, str, os.PathLike)) or hasattr(model, "read")


def find_model(caller, model):
    """Returns (module, its Call, the least batch size or None). The Call has a sol.input for each tensor; sizes that the program
    leaves open are 0.

    Raises OSError if a file cannot be read, ValueError if torch.export.save has not written it.
    """
    program = model if isinstance(model, ExportedProgram) else _load(caller, model)
    return _make_module(program), *_make_call(program)


def _load(caller, file):
    if not hasattr(file, "read"):
        with open(file, "rb") as opened:
            return _load(caller, opened)
    try:
        with quiet():
            return torch.export.load(file)
    except Exception as error:
        name, text = getattr(file, "name", "the file"), str(error).strip().partition("\n")[0]
        raise ValueError(f"{caller}: {name} is no file of torch.export.save: {text}") from error


def _make_module(program):
    module = program.module()
    module.meta[PROGRAM] = True
    # The graph has the mode of its export: an operator such as dropout has it as an argument.
    for part in module.modules():
        part.training = False
    if hasattr(module, "_guards_fn"):
        # These hooks check the arguments before the graph does. SOL does not run modules with hooks.
        for hooks in ("_forward_hooks", "_forward_pre_hooks"):
            getattr(module, hooks).clear()
    return module


def _make_call(program):
    nodes = {x.name: x for x in program.graph.nodes if x.op == "placeholder"}
    names = program.graph_signature.user_inputs
    values = [nodes[x].meta["val"] if x in nodes else x for x in names]
    batch = _find_batch(values)
    leaves = [_declare(x, batch) if isinstance(x, torch.Tensor) else x for x in values]
    args, kwargs = _pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return Call(args, kwargs), _least_batch(program, batch)


def _find_batch(values):
    """Returns the expression of the first open first size, or None. An open first size that is another one is no batch size."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim() and _is_open(value.shape[0]):
            return value.shape[0].node.expr
    return None


def _declare(value, batch):
    sizes = [
        0 if _is_open(n) and (d or n.node.expr == batch) else _example_size(n)
        for d, n in enumerate(value.shape)
    ]
    return Input(tuple(sizes), value.dtype, False)


def _is_open(size):
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def _example_size(size):
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _least_batch(program, batch):
    """Returns the least batch size if examples of EXAMPLE_BATCH samples are too small, else None."""
    interval = program.range_constraints.get(batch)
    least = int(interval.lower) if interval else 0
    return least if least > EXAMPLE_BATCH else None

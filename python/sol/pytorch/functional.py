"""The functional form of a graph: without writes, as torch.export makes it (ExportedProgram.run_decompositions).

It takes the place of a graph with writes that several tensors see, or that inputs or buffers get. It may be valid for fewer open
sizes, such as batches from 2 on; then other sizes get graphs of their own.
"""

import torch

from sol.pytorch.audit import quiet
from sol.pytorch.capture import oblivious
from sol.pytorch.regions import with_autocast

# Copies a constant, although its example tensor shares memory with the constant.
COPY = torch.ops.aten.lift_fresh_copy.default


def make_functional(captured):
    """Returns an equal Captured whose graph has no in-place operators, or None if that is not certain to be equal. Narrows
    ``captured.batches`` to the open sizes for which the new graph is valid.

    PyTorch keeps some composite operators whole, and then takes their results for new tensors, also those that share memory with
    an argument. A later write into such a result, or into the argument, would be lost.
    """
    exported = captured.exported
    nodes = [
        node for node in exported.graph.nodes if isinstance(node.target, torch._ops.OpOverload)
    ]
    memory = captured.memory
    hidden = set()
    for node in nodes:
        if not hidden.isdisjoint(_written_storages(node, memory)):
            return None
        hidden |= _hidden_storages(node, memory)
    with torch.no_grad(), oblivious(), quiet(), with_autocast(exported):
        functional = exported.run_decompositions({})
    is_valid = captured.batches.narrow(functional)
    return captured._replace(exported=functional) if is_valid else None


def _hidden_storages(node, memory):
    """Returns the storages that results of ``node`` share with its arguments although the operator's schema does not say so."""
    if any(x.alias_info is not None for x in node.target._schema.returns) or node.target is COPY:
        return set()
    given = {
        storage for x in node.all_input_nodes for storage in _storages(x.meta.get("val"), memory)
    }
    return given.intersection(_storages(node.meta.get("val"), memory))


def _written_storages(node, memory):
    """Returns the storages of the arguments that ``node`` writes into."""
    written = set()
    for argument, value in zip(node.target._schema.arguments, node.args):
        if argument.alias_info is not None and argument.alias_info.is_write:
            nodes = value if isinstance(value, (list, tuple)) else [value]
            for x in nodes:
                written.update(
                    _storages(x.meta.get("val"), memory) if isinstance(x, torch.fx.Node) else ()
                )
    return written


def _storages(value, memory):
    values = value if isinstance(value, (list, tuple)) else [value]
    return [memory.of(x) for x in values if isinstance(x, torch.Tensor)]

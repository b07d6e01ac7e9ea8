"""Results that share memory: with an input, with a parameter or buffer, or with another result.

    importer.py -> find_chains: for such a result the operators that made it -> Alias
    at a call:     Alias.make: the same operators, on the tensor of this call

A program writes its outputs into new memory. So it does not compute such a result. PyTorch makes it after the program has run: a
result that is an input is the caller's own tensor, and a result that is a view of one lies in that tensor's memory. If several
results are views of a tensor that the program computes, that tensor is the program's output. Parts of a tensor that
do not overlap, as chunk gives them, are outputs of their own.

What shares memory follows from the memory of the captured graph's example tensors.
"""

import operator
from typing import Any, NamedTuple

import torch

from sol.pytorch.builder import Unsupported
from sol.pytorch.functional import COPY
from sol.pytorch.host import Slot, fill, read_arguments
from sol.pytorch.nodes import as_list, show_call
from sol.pytorch.watch import find_tensor

# Operators whose results are parts of the argument that do not overlap.
PARTS = {"chunk", "split", "split_with_sizes", "tensor_split", "unbind"}


class Caller(NamedTuple):
    """What a call is made with: the module, and the caller's own tensors with names, in the order of the graph's inputs."""

    module: Any
    names: list
    tensors: list


class Chain(NamedTuple):
    """How a result follows from ``root``, a node whose memory it shares: ``nodes``, in order. Without nodes, it is the root."""

    root: Any
    nodes: list


class Step(NamedTuple):
    """A call of an operator on the tensor, or list of tensors, of the step before."""

    target: Any
    args: Any
    kwargs: Any


class Alias(NamedTuple):
    """A result. ``source``: the position of an input, the name of the module's tensor, or an Output."""

    source: Any
    steps: list

    def make(self, caller, outputs, symbols):
        """Returns the result. ``outputs``: of the program. ``symbols``: values of the program's symbols."""
        value = self._find(caller, outputs)
        for target, args, kwargs in self.steps:
            value = target(*fill(args, [value], symbols), **fill(kwargs, [value], symbols))
        return value

    def _find(self, caller, outputs):
        if isinstance(self.source, Output):
            return outputs[self.source.port]
        if isinstance(self.source, int):
            return caller.tensors[self.source]
        return find_tensor(caller.module, self.source)


class Output(NamedTuple):
    """An output of the program."""

    port: int


def find_chains(captured):
    """Returns {number of a result: Chain} for the results that share memory with other tensors that the caller can see."""
    results = [x for x in _results(captured.exported) if isinstance(x[1], torch.fx.Node)]
    chains = {i: _find_chain(node, captured.memory) for i, node in results}
    groups = {}
    for i, chain in chains.items():
        groups.setdefault(chain.root, []).append(i)
    for root, group in groups.items():
        if root.op != "placeholder" and _are_apart([chains[i] for i in group]):
            for i in group:
                del chains[i]
    return chains


def _results(exported):
    from torch.export.graph_signature import OutputKind

    (node,) = (x for x in exported.graph.nodes if x.op == "output")
    given = zip(exported.graph_signature.output_specs, node.args[0])
    return enumerate(x for spec, x in given if spec.kind == OutputKind.USER_OUTPUT)


def _find_chain(node, memory):
    nodes, storage = [], memory.of(node.meta["val"])
    while True:
        source = _find_source(node, storage, memory)
        if source is None:
            return Chain(node, nodes[::-1])
        if not _returns_argument(node):
            nodes.append(node)
        elif torch.Tag.inplace_view in node.target.tags and _packet(node) != "detach_":
            raise Unsupported(f"{show_call(node)} changes the shape of a result")
        node = source


def _find_source(node, storage, memory):
    """Returns the argument of a node that has the memory ``storage`` of its result, or None. Of an operator with several results
    that are new, each result counts as a tensor without an argument."""
    if node.op == "placeholder" or node.target is COPY:
        return None
    for x in node.all_input_nodes:
        values = as_list(x.meta.get("val"))
        if any(isinstance(v, torch.Tensor) and memory.of(v) == storage for v in values):
            is_new = node.target is operator.getitem and _find_source(x, storage, memory) is None
            return None if is_new else x
    return None


def _returns_argument(node):
    """Whether an operator writes into its first argument, and returns it."""
    schema = getattr(node.target, "_schema", None)
    info = schema.arguments[0].alias_info if schema and schema.arguments else None
    return info is not None and info.is_write


def _packet(node):
    return getattr(getattr(node.target, "overloadpacket", None), "__name__", "")


def _are_apart(chains):
    """Whether no two of these results of one root overlap. Equal results are one tensor, which is an output."""
    different = list({tuple(chain.nodes): chain for chain in chains}.values())
    return all(_is_apart(a, b) for i, a in enumerate(different) for b in different[:i])


def _is_apart(a, b):
    for x, y in zip(a.nodes, b.nodes):
        if x is not y:
            return (
                x.target is y.target is operator.getitem
                and x.args[0] is y.args[0]
                and x.args[1] != y.args[1]
                and _packet(x.args[0]) in PARTS
            )
    return False


def make_steps(chain, formula):
    """Returns the Steps of a Chain. ``formula``: Builder.formula. Raises Unsupported if an operator reads other tensors."""
    return [_make_step(node, formula) for node in chain.nodes]


def _make_step(node, formula):
    if node.target is operator.getitem:
        return Step(node.target, [Slot(0), node.args[1]], {})
    args, kwargs, tensors = read_arguments(node, formula)
    if len(tensors) != 1:
        raise Unsupported(f"a result shares memory with an argument of {show_call(node)}")
    return Step(node.target, args, kwargs)

"""Gradients of a captured graph: which tensors want one, and the layers that compute them.

    Gradients(captured, module, parameters, mode)    finds the results through which gradients flow
    Gradients.add(imported)                          adds the backward part to the model: Model.gradients

A gradient in PyTorch is that of the operators that ran. So is SOL's, of the layers that they became. None flows through ``detach``, nor
through what runs inside of ``no_grad``: there the graph gets stops (stops.py).
"""

import operator
from typing import NamedTuple

import torch
from torch.export.graph_signature import OutputKind

from sol.pytorch.aliases import Alias
from sol.pytorch.builder import Unsupported
from sol.pytorch.capture import PREFIX
from sol.pytorch.nodes import as_list, show_call
from sol.pytorch.stops import STOP, insert_stop
from sol.pytorch.watch import find_tensor

# Operators whose results are new tensors, although they may lie in the memory of an argument. Others may return the argument itself,
# whose gradient is not stopped by no_grad.
VIEWS = {
    "adjoint", "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "expand_as", "mH", "mT", "matrix_H", "narrow", "permute",
    "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "swapaxes", "t", "transpose", "unbind", "unfold", "unsqueeze",
    "view", "view_as",
}  # fmt: skip
# Operators whose result is the argument itself if it lies in the memory of that.
SAME = {"contiguous", "to"}
# Operators that read the shape of the second argument only.
LIKE = {"expand_as", "reshape_as", "view_as"}


class Gradients:
    """The gradients that a training program computes. ``parameters``: the tensors of the module that ``mode.parameters`` is about.

    ``inputs``: whether each input of the graph wants one. After ``add``: ``slots``: for each of the model's inputs, and then of its
    params, the Slot of its gradient, or None; ``outputs``: for each of the forward's outputs whether it has a gradient; ``n_outputs``: of
    the forward call.
    """

    def __init__(self, captured, module, parameters, mode):
        self.inputs, self._parameters = mode.inputs, mode.parameters
        wanting = [p for p, wants in zip(parameters, mode.parameters) if wants]
        self._wanting = {id(p) for p in wanting}
        self._module = module
        # For each tensor of the result the sources of its gradients: positions of inputs, names of parameters.
        self._results = _find_results(captured, self._wants)
        if not any(self._results):
            raise Unsupported("no result depends on what wants a gradient")

    def _wants(self, spec, position):
        """Whether a placeholder wants a gradient. ``spec``: of the graph's signature; ``position``: of an input, or None."""
        if position is not None:
            return self.inputs[position]
        return spec.target is not None and self._wants_owner(spec.target.removeprefix(PREFIX))

    def _wants_owner(self, owner):
        tensor = find_tensor(self._module, owner) if isinstance(owner, str) else owner
        if tensor is not None and tensor.requires_grad and id(tensor) not in self._wanting:
            raise Unsupported(f"{owner} wants a gradient, but is no parameter of the model")
        return id(tensor) in self._wanting

    @property
    def key(self):
        """Equal for gradients that need the same layers, if the graphs are equal."""
        return self.inputs, self._parameters, self._results

    def add(self, imported):
        """Adds the layers. Raises Unsupported if SOL cannot compute a gradient."""
        if any(isinstance(port, Alias) for port in imported.outputs):
            raise Unsupported("a result shares memory with another tensor")
        if imported.copies:
            raise Unsupported("it writes into an input")
        model, ids = imported.builder.model, imported.ids
        self.n_outputs = len(ids.outputs)
        self._reached = [set() for _ in ids.outputs]
        for port, sources in zip(imported.outputs, self._results):
            self._reached[port] |= sources
        self.outputs = [bool(sources) for sources in self._reached]
        given = [(i, y) for i, y in enumerate(ids.outputs) if self.outputs[i]]
        dys = [model.backward_input(f"gradient of output{i}", y) for i, y in given]
        wanted = self._find_wanted(imported)
        found = model.gradients([y for _, y in given], dys, list(wanted.values()))
        try:
            model.check()
        except (NotImplementedError, ValueError) as error:
            raise Unsupported(f"its gradient: {error}") from error
        self.slots = self._add_outputs(model, imported, dict(zip(wanted, found)))

    def _find_wanted(self, imported):
        """Returns {source: the model's tensor} of the sources that want a gradient."""
        ids = imported.ids
        inputs = {x: i for x, i in zip(imported.inputs, ids.inputs) if self.inputs[x]}
        owners = {imported.params[k]: i for k, i in ids.params.items()}
        return inputs | {x: i for x, i in owners.items() if self._wants_owner(x)}

    def _add_outputs(self, model, imported, found):
        slots, n = [], self.n_outputs
        seed = [None] if imported.builder.seed else []
        for source in [*imported.inputs, *seed, *imported.params]:
            tensor = None if source is None else found.get(source)
            if tensor is None:
                slots.append(None)
                continue
            model.backward_output(f"gradient {n} of {source}", tensor)
            slots.append(Slot(n, [source in x for x in self._reached]))
            n += 1
        return slots


class Slot(NamedTuple):
    """Where a gradient is: the index of an output of the program. ``reached``: for each of the forward's outputs whether it depends
    on the source."""

    output: int
    reached: list

    def is_reached(self, given):
        """Whether there is a gradient, if it is known for each of the forward's outputs whether that has one. PyTorch tells None
        from zeros."""
        return any(a and b for a, b in zip(self.reached, given))


def _find_results(captured, wants):
    """Returns for each tensor of the result the set of sources to which gradients flow. Raises Unsupported.

    A write counts for all that shares its memory, so there may be too many sources; their gradients are 0.
    """
    exported, memory = captured.exported, captured.memory
    positions = {name: i for i, name in enumerate(exported.graph_signature.user_inputs)}
    specs = {x.arg.name: x for x in exported.graph_signature.input_specs}
    flow = _Flow(memory)
    for node in list(exported.graph.nodes):
        if node.op == "placeholder":
            spec, position = specs[node.name], positions.get(node.name)
            if wants(spec, position):
                flow.add(node, spec.target.removeprefix(PREFIX) if position is None else position)
            if specs[node.name].kind.name == "BUFFER":
                flow.note_buffer(node)
        elif node.op == "call_function":
            flow.visit(node)
    exported.graph_module.recompile()
    (end,) = (node for node in exported.graph.nodes if node.op == "output")
    results = zip(exported.graph_signature.output_specs, end.args[0])
    return [flow.sources(x) for spec, x in results if spec.kind == OutputKind.USER_OUTPUT]


class _Flow:
    """The nodes through which gradients flow, each with their sources."""

    def __init__(self, memory):
        self._memory = memory
        self._nodes, self._written, self._buffers = {}, {}, set()
        self._stopped = set()  # stops, and what lies in their memory
        self._stops = {}  # node -> its stop

    def add(self, node, source):
        self._nodes[node] = {source}

    def note_buffer(self, node):
        self._buffers |= self._storages(node)

    def sources(self, node):
        if not isinstance(node, torch.fx.Node) or node in self._stopped:
            return set()
        written = [self._written.get(x, ()) for x in self._storages(node)] if self._written else ()
        return set(self._nodes.get(node, ())).union(*written)

    def visit(self, node):
        if node.meta.get("no_grad") and not self._is_same(node):
            self._stop_arguments(node)
        inputs = node.all_input_nodes[: 1 if _packet(node) in LIKE else None]
        sources = set().union(*map(self.sources, inputs))
        self._note_stopped(node, sources)
        if not sources:
            return
        if _packet(node) == "detach_":
            raise Unsupported(f"{show_call(node)} stops a gradient in place")
        if _packet(node) == "detach":
            node.target = STOP
            self._stopped.add(node)
            return
        if _packet(node) == "embedding" and any(node.args[3:]):
            raise Unsupported(f"{show_call(node)} has a gradient that is sparse or scaled")
        if not any(_is_float(x) for x in as_list(node.meta.get("val"))):
            return
        self._nodes[node] = sources
        if _writes_first(node):
            storages = self._storages(node.args[0])
            if not storages.isdisjoint(self._buffers):
                raise Unsupported(f"{show_call(node)} writes what wants a gradient into a buffer")
            for x in storages:
                self._written[x] = self._written.get(x, set()) | sources

    def _is_same(self, node):
        """Whether a node is its argument, or a part of it: its gradient does not depend on no_grad."""
        if _packet(node) in SAME:
            return not self._storages(node).isdisjoint(self._storages(node.args[0]))
        return node.target is operator.getitem

    def _stop_arguments(self, node):
        """Gives an operator inside of no_grad stops for the arguments through which gradients would flow. Raises Unsupported."""
        wanting = [x for x in node.all_input_nodes if self.sources(x)]
        if _writes_first(node) and node.args[0] in wanting:
            raise Unsupported(f"{show_call(node)} inside of no_grad writes what wants a gradient")
        for x in wanting:
            if _packet(node) not in VIEWS and not self._storages(x).isdisjoint(
                self._storages(node)
            ):
                raise Unsupported(f"{show_call(node)} inside of no_grad may return its argument")
            if x not in self._stops:
                self._stops[x] = insert_stop(x, node)
                self._stopped.add(self._stops[x])
            node.replace_input_with(x, self._stops[x])

    def _note_stopped(self, node, sources):
        """Notes a node that lies in the memory of one behind a stop. Raises Unsupported if it brings a gradient into that memory."""
        storages = self._storages(node)
        stopped = [x for x in node.all_input_nodes if x in self._stopped]
        if all(storages.isdisjoint(self._storages(x)) for x in stopped):
            return
        if sources:
            raise Unsupported(
                f"{show_call(node)} lies in the memory of a tensor without a gradient"
            )
        self._stopped.add(node)

    def _storages(self, node):
        values = as_list(node.meta.get("val"))
        return {self._memory.of(x) for x in values if isinstance(x, torch.Tensor)}


def _is_float(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _packet(node):
    return getattr(getattr(node.target, "overloadpacket", None), "__name__", "")


def _writes_first(node):
    schema = getattr(node.target, "_schema", None)
    info = schema.arguments[0].alias_info if schema and schema.arguments else None
    return info is not None and info.is_write

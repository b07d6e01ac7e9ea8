"""Cuts off the first part of a graph of Dynamo, its head: PyTorch runs it before SOL runs the others.

A detector resizes an image to a size that it computes by floats: trunc(w * min(320 / min(h, w), 480 / max(h, w))). Such a size is
no formula of libsol. All later sizes follow from it, those of every layer of a network. The head has the nodes that compute by
such numbers, and all nodes that these need. The sizes of its results are open sizes of the remaining graph.

Invariant: the head has no layer in which SOL would save time, and no other node writes into a tensor that the head reads.
"""

from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, map_arg

from sol.pytorch.dynamo_graph import is_float, storage_of

# A graph whose head would need one of these has no head.
ANCHORS = {
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "linear",
    "matmul",
    "bmm",
    "scaled_dot_product_attention",
}


class Head(NamedTuple):
    """``module``: returns the values that the remaining graph needs, called with the graph's inputs. ``remaining``: the
    remaining graph. ``inputs``: for each input of it the position of the graph's input, or of the value, counted from
    ``n_inputs`` on."""

    module: Any
    remaining: Any
    inputs: list
    n_inputs: int

    def convert(self, args):
        """Returns the inputs of the remaining graph for those of the graph."""
        values = (*args, *self.module(*args))
        return tuple(values[i] for i in self.inputs)


def find_head(module):
    """Returns the Head of Dynamo's GraphModule, or None."""
    nodes = [node for node in module.graph.nodes if node.op not in ("placeholder", "output")]
    floats = [node for node in nodes if _has_float(node)]
    head = _close(floats + (_find_early_writes(nodes) if floats else []))
    if not head or any(_is_anchor(x) for x in head) or _is_written(head, module.graph):
        return None
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    taken = [*inputs, *(x for x in nodes if x in head)]
    used = [x for x in taken if any(user not in head for user in x.users)]
    values = [x for x in used if x in head and not _is_tuple(x)]
    if any(_is_tuple(x) for x in used):
        return None
    given = {node: i for i, node in enumerate([*inputs, *values])}
    places = [given[x] for x in used]
    return Head(
        _copy(module, inputs, [x for x in nodes if x in head], values),
        _copy(module, used, [x for x in nodes if x not in head], module.graph.output_node().args[0]),
        places,
        len(inputs),
    )  # fmt: skip


def _value(node):
    return node.meta.get("example_value", node.meta.get("val"))


def _has_float(node):
    """Whether a node computes, or computes by, a float that depends on open sizes. Floats among the inputs do not."""
    values = [_value(x) for x in (node, *node.all_input_nodes) if not is_float(x)]
    return any(isinstance(x, torch.SymFloat) for x in values)


def _find_early_writes(nodes):
    """Returns the nodes whose memory is written before the first anchor, for example to pad images: PyTorch makes such writes
    in place, SOL would need the functional form of the graph."""
    written = [x for x in nodes if isinstance(_value(x), torch.Tensor) and _value(x)._version]
    late = {storage_of(_value(x)) for x in written if any(map(_is_anchor, _close([x])))}
    return [x for x in written if storage_of(_value(x)) not in late]


def _close(nodes):
    """Returns the set of these nodes and all that they need, without inputs."""
    head, todo = set(nodes), list(nodes)
    while todo:
        for other in todo.pop().all_input_nodes:
            if other not in head and other.op != "placeholder":
                head.add(other)
                todo.append(other)
    return head


def _is_anchor(node):
    return getattr(node.target, "__name__", node.target) in ANCHORS


def _is_tuple(node):
    return not isinstance(_value(node), (torch.Tensor, torch.SymInt, int))


def _is_written(head, graph):
    """Whether a tensor that the head reads lies in memory that is written, and that other nodes use, too."""
    read = {x for node in head for x in (node, *node.all_input_nodes)}
    read = [x for x in read if isinstance(_value(x), torch.Tensor) and _value(x)._version]
    written = {storage_of(_value(x)) for x in read}
    others = [x for x in graph.nodes if x not in head and x.op not in ("placeholder", "output")]
    return any(
        isinstance(_value(x), torch.Tensor) and storage_of(_value(x)) in written for x in others
    )


def _copy(module, inputs, nodes, results):
    """Returns a GraphModule that computes ``results`` by ``nodes``. Its inputs have the facts of ``inputs``."""
    graph, copies = Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda x: copies[x])
    graph.output(map_arg(tuple(results), lambda x: copies[x]))
    copy = GraphModule(module, graph)
    copy.meta.update(module.meta)
    return copy

"""Regions of a captured graph: what the forward runs inside of ``with torch.autocast`` or ``with torch.no_grad``.

torch.export makes each a graph of its own, and a node that calls it. Here its nodes take the place of the call, each with marks:

    meta["autocast"]    the (device type, dtype, enabled) that has chosen its types: PyTorch would compute it in other types outside
    meta["no_grad"]     whether gradients were off (training_graph.py)
"""

import contextlib
import operator

import torch

from sol.pytorch.audit import CannotCapture

MARKS = "autocast", "no_grad"


def inline_regions(exported, has_gradients=False):
    """Inlines all regions. ``has_gradients``: the graph was captured with gradients on. Else raises CannotCapture for one that turns
    them on, as its results want gradients."""
    graph, root = exported.graph, exported.graph_module
    while calls := [x for x in graph.nodes if _find_marks(x, has_gradients) is not None]:
        if has_gradients:
            _check_parts(graph)
        for call in calls:
            _inline(exported, call, _find_marks(call, has_gradients))
    root.recompile()


def _find_marks(node, has_gradients):
    """Returns the marks of the nodes of a region that ``node`` calls, or None if it calls none."""
    wraps = torch.ops.higher_order
    if node.target is wraps.wrap_with_autocast:
        return {"autocast": node.args[:3]}
    if node.target is not wraps.wrap_with_set_grad_enabled:
        return None
    if node.args[0] and not has_gradients:
        raise CannotCapture("its forward turns gradients on")
    return {"no_grad": not node.args[0]}


def _check_parts(graph):
    """Raises CannotCapture for a region of autocast that is in several parts. torch.export divides it so where gradients are switched
    off inside of it, and forgets that."""
    last = None
    for node in graph.nodes:
        if node.target is torch.ops.higher_order.wrap_with_autocast:
            part = node.args[:3], node.meta.get("nn_module_stack")
            if part == last:
                raise CannotCapture("its forward turns gradients off inside of torch.autocast")
            last = part
        elif node.op == "call_function" and node.target is not operator.getitem:
            last = None


def _inline(exported, call, marks):
    """Puts the nodes of a region in place of its call. Those of a region inside of it have its marks, too."""
    graph, root = exported.graph, exported.graph_module
    marks = {x: call.meta[x] for x in MARKS if x in call.meta} | marks
    at = next(i for i, x in enumerate(call.args) if getattr(x, "op", "") == "get_attr")
    part, args = call.args[at], call.args[at + 1 :]
    inner = getattr(root, part.target)
    copies = dict(zip([x for x in inner.graph.nodes if x.op == "placeholder"], args))
    with graph.inserting_before(call):
        for node in inner.graph.nodes:
            if node.op == "get_attr":
                name = f"{part.target}_{node.target}"
                setattr(root, name, getattr(inner, node.target))
                copies[node] = graph.get_attr(name)
            elif node.op == "call_function":
                copies[node] = graph.node_copy(node, copies.__getitem__)
                copies[node].meta.update(marks)
    _replace_results(exported, call, [copies[x] for x in inner.graph.output_node().args[0]])
    graph.erase_node(call)
    graph.erase_node(part)


def _replace_results(exported, call, results):
    for user in list(call.users):
        result = results[user.args[1]]
        user.replace_all_uses_with(result)
        exported.graph_signature.replace_all_uses(user.name, result.name)
        exported.graph.erase_node(user)


@contextlib.contextmanager
def with_autocast(exported):
    """While PyTorch runs a graph, nodes enter and leave each autocast that has been inlined."""
    graph, added, mark, entered = exported.graph, [], None, None
    with contextlib.ExitStack() as stack:  # leaves them after an exception

        def enter(*mark):
            context = contextlib.ExitStack()
            context.enter_context(torch.autocast(*mark))
            return stack.enter_context(context)

        def leave(context):
            context.close()

        for node in [x for x in graph.nodes if x.op != "placeholder"]:
            if node.meta.get("autocast") == mark:
                continue
            mark = node.meta.get("autocast")
            with graph.inserting_before(node):
                if entered:
                    added.append(graph.call_function(leave, (entered,)))
                entered = graph.call_function(enter, mark) if mark else None
                added += [entered] if entered else []
        exported.graph_module.recompile()
        try:
            yield
        finally:
            for node in reversed(added):
                graph.erase_node(node)
            exported.graph_module.recompile()

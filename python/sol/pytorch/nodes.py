"""Facts of a graph's nodes, as text for messages, reports, and comparisons."""

import torch

from sol.pytorch.capture import PREFIX
from sol.pytorch.inputs import describe


def describe_graph(exported):
    """Returns everything that a plan depends on as text: nodes with shapes, literals with values, and the signature."""
    lines = [f"{node.format_node()} {show(node)}" for node in exported.graph.nodes]
    literals = {name: x for name, x in exported.constants.items() if isinstance(x, torch.Tensor)}
    lines += [f"{name} = {x.tolist()}" for name, x in literals.items()]
    return "\n".join([*lines, str(exported.graph_signature)])


def as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def show(node):
    """Returns a node's dtype and shape for messages: f32[*,3,224,224]."""
    parts = []
    for value in as_list(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            sizes = [size if isinstance(size, int) else None for size in value.shape]
            parts.append(describe(value.dtype, sizes))
        else:
            parts.append(str(value))
    return " ".join(parts)


def show_call(node):
    """Returns an op with its arguments for messages: aten.foo.default(f32[*,3], 2)."""
    args = torch.fx.node.map_aggregate(
        list(node.args), lambda x: _Shown(show(x) if isinstance(x, torch.fx.Node) else repr(x))
    )
    return f"{node.target}({', '.join(map(str, args))})"


class _Shown(str):
    """A str that prints without quotes in a list."""

    __repr__ = str.__str__


def find_origin(node):
    """Returns the user's module and line of a node: layer1.0.conv1 (resnet.py:93)."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = modules[-1][0].removeprefix(PREFIX.rstrip(".")).lstrip(".") if modules else ""
    return " ".join(filter(None, [path, find_line(node.meta.get("stack_trace") or "")]))


def find_line(trace):
    """Returns the innermost frame of a stack trace as "(file:line)", or ""."""
    frames = [line for line in trace.splitlines() if line.lstrip().startswith('File "')]
    if not frames:
        return ""
    file, line = frames[-1].split('"')[1], frames[-1].split(" line ")[1].split(",")[0]
    return f"({file.rsplit('/', 1)[-1]}:{line})"

"""Modules that are graphs of operators: torch.export has made them, or PT2E from such a module.

Their forward is the graph alone, so it reads no Python state but the module's tensors. The graph has the mode of its export: the flags
``training`` mean nothing.
"""

import torch

# A key in the ``meta`` of an ExportedProgram's module.
PROGRAM = "sol"


def is_program(model):
    """Whether a module is an ExportedProgram's, as exported.py has marked it, or a module of torch.export, also one that a
    tool such as PT2E has changed."""
    if not isinstance(model, torch.fx.GraphModule):
        return False
    return PROGRAM in model.meta or _is_exported(model)


def _is_exported(model):
    """Such a module has the structure of its arguments, and its graph consists of operators. A submodule that checks the arguments is
    called, too."""
    return hasattr(model, "_in_spec") and all(map(_is_operator, model.graph.nodes))


def _is_operator(node):
    if node.op == "call_function":
        target = node.target
        return isinstance(target, torch._ops.OpOverload) or target.__module__ == "_operator"
    return node.op != "call_method" and (node.op != "call_module" or node.target == "_guards_fn")

"""Finds state of PyTorch that makes a call different from plain inference. SOL runs plain inference only.

A shortcut checks the same conditions (shortcut.py).
"""

# Imported by name: after a network's run the caches are cold, and each lookup in another module's dict is a cache miss.
from torch import (
    Tensor,
    bfloat16,
    float16,
    float32,
    get_autocast_dtype,
    get_default_dtype,
    is_autocast_enabled,
    is_grad_enabled,
)
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from sol.pytorch.inputs import PLAIN_TENSORS

GRADIENT = "a gradient is wanted"


def autocast_type():
    """Returns the type to which torch.autocast casts in this thread, or None if it is off.

    A graph is valid for the autocast under which it was captured: its nodes have the types that autocast has chosen.
    """
    return get_autocast_dtype("cpu") if is_autocast_enabled("cpu") else None


def find_mode(snapshot, leaves):
    """Returns the reason why PyTorch must run this call, or None.

    ``snapshot``: of the module (watch.Snapshot). ``leaves``: the call's inputs, flattened.
    """
    if is_grad_enabled() and (
        any(p.requires_grad for p in snapshot.parameters)
        or any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
    ):
        return GRADIENT
    if autocast_type() not in (None, bfloat16, float16):
        return f"autocast to {autocast_type()} is on"
    if forward_ad._current_level >= 0:
        return "a forward-mode gradient is wanted"
    if peek_interpreter_stack() is not None:
        return "it is called inside of torch.func"
    if _len_torch_dispatch_stack() or _len_torch_function_stack():
        return "a mode of PyTorch looks at each operation"
    if get_default_dtype() is not float32:
        return f"the default dtype is {get_default_dtype()}"
    for leaf in leaves:
        if isinstance(leaf, Tensor) and type(leaf) not in PLAIN_TENSORS:
            return f"an input is a {type(leaf).__name__}"
    return None

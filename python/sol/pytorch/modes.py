"""Finds state of PyTorch that makes a call different from plain inference: training, which has programs of its own, and what only
PyTorch can run.

A shortcut checks the same conditions (shortcut.py).
"""

from typing import NamedTuple

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

IN_FUNC = "it is called inside of torch.func"


class Mode(NamedTuple):
    """What a program must do besides plain inference. Part of its key.

    ``training``: the flags ``training`` of the module's parts (watch.Snapshot.modes), or None if all are off. ``parameters``,
    ``inputs``: for each parameter of the module, and each tensor of the call, whether it wants a gradient; None if gradients are off.
    """

    training: tuple
    parameters: tuple
    inputs: tuple

    @property
    def has_gradients(self):
        return self.parameters is not None


def training_mode(snapshot, leaves):
    """Returns the Mode of a call, or None for plain inference."""
    if is_grad_enabled():
        parameters = tuple([p.requires_grad for p in snapshot.parameters])
        inputs = tuple([x.requires_grad for x in leaves if isinstance(x, Tensor)])
        if True in parameters or True in inputs:
            return Mode(snapshot.modes, parameters, inputs)
    return Mode(snapshot.modes, None, None) if snapshot.modes else None


def is_in_func():
    """Whether a transform of torch.func is active. Its tensors have no memory."""
    return peek_interpreter_stack() is not None


def autocast_type():
    """Returns the type to which torch.autocast casts in this thread, or None if it is off.

    A graph is valid for the autocast under which it was captured: its nodes have the types that autocast has chosen.
    """
    return get_autocast_dtype("cpu") if is_autocast_enabled("cpu") else None


def find_foreign_mode(leaves):
    """Returns the reason why only PyTorch can run a call, also one that trains; or None."""
    if autocast_type() not in (None, bfloat16, float16):
        return f"autocast to {autocast_type()} is on"
    if forward_ad._current_level >= 0:
        return "a forward-mode gradient is wanted"
    if is_in_func():
        return IN_FUNC
    if _len_torch_dispatch_stack() or _len_torch_function_stack():
        return "a mode of PyTorch looks at each operation"
    if get_default_dtype() is not float32:
        return f"the default dtype is {get_default_dtype()}"
    for leaf in leaves:
        if isinstance(leaf, Tensor) and type(leaf) not in PLAIN_TENSORS:
            return f"an input is a {type(leaf).__name__}"
    return None

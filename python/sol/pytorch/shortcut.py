"""Makes the shortcut of a plan: a _core.Shortcut, which runs usual calls without Python code.

A call is a usual one if all conditions here and in python/sol/_shortcut.c hold. They are the conditions that ``Engine``
checks. All other calls go through the engine, which finds the reason.
"""

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.jit import is_tracing

from sol import _core
from sol.config import config
from sol.pytorch.inputs import DTYPE_NAMES, PLAIN_TENSORS
from sol.pytorch.watch import CAN_VIEW, OWN_HOOKS, make_hook_guard

# Attributes of an instance that nn.Module.__call__ would call instead of the class's forward.
OVERRIDES = {"_compiled_call_impl", "forward"}


def make_shortcut(module, guard, specs, entry, weights, selector=None):
    """Returns a _core.Shortcut for usual calls of ``module`` with the plan of ``entry``, or None if it cannot be made.

    ``module``: the Optimized module. ``guard``: the guard of the original module. ``weights``: of the plan. ``selector``:
    decides which batch sizes SOL runs; None: all.
    """
    plan = entry.plan
    hook_guard = make_hook_guard(module) if CAN_VIEW and not plan.debug else None
    if (
        hook_guard is None
        or not OVERRIDES.isdisjoint(vars(module))
        or any(spec.dtype not in DTYPE_NAMES or spec.open_dims for spec in specs)
        or (entry.reads.asks_kinds and len(specs) > 1)
        or entry.reads.asked_attributes
    ):
        return None
    inputs = tuple(
        (DTYPE_NAMES[spec.dtype], tuple(-1 if size is None else size for size in spec.shape))
        for spec in specs
    )
    types = (torch.Tensor,) if entry.reads.asks_kinds else PLAIN_TENSORS
    values, questions = _mode()
    questions += [(function, (), answer) for function, answer in entry.reads.questions]
    verdicts = None if selector is None else selector.verdicts
    # None stands for the module's own dict, which each call passes. The shortcut must not hold the module, which holds it.
    values += [(None, name, vars(module)[name]) for name in OWN_HOOKS]
    values += [(None, name, ...) for name in OVERRIDES]
    try:
        return _core.Shortcut(
            (hook_guard, guard), tuple(values), tuple(questions), types, torch.Tensor.is_neg,
            inputs, tuple(plan.inputs), plan.program, weights,
            torch.empty, plan.kinds, plan.ready, verdicts, None if plan.is_single else plan.build, _core.threads(),
        )  # fmt: skip
    except NotImplementedError:
        return None


def _mode():
    """Returns (values, questions) for _core.Shortcut: the conditions of plain inference, as in modes.py, and that the number
    of threads has not changed. A variable is compared instead of a function where possible: that is faster."""
    values = []
    questions = [
        (torch.is_grad_enabled, (), False),
        (torch.is_autocast_enabled, ("cpu",), False),
        (getattr(torch._C, "_is_tracing", is_tracing), (), False),
        (torch.get_num_threads, (), _core.threads()),
        (torch.get_default_dtype, (), torch.float32),
        (torch._C._len_torch_dispatch_stack, (), 0),
        (torch._C._len_torch_function_stack, (), 0),
    ]
    if "_is_compiling_flag" in is_compiling.__globals__:
        values.append((is_compiling.__globals__, "_is_compiling_flag", False))
    else:
        questions.append((is_compiling, (), False))
    values.append((vars(forward_ad), "_current_level", -1))
    values.append(config.entry("compiler::never_slower"))
    return values, questions

"""When a call is an ordinary one, for ``_core.Shortcut``, which then makes it without Python.

Every condition that ``Engine`` looks at has its counterpart here, or in the shortcut's C text; what is
not ordinary goes through the engine, which knows the reason.
"""

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.jit import is_tracing

from sol import _core
from sol.config import config
from sol.pytorch.inputs import DTYPE_NAMES, PLAIN_TENSORS
from sol.pytorch.watch import CAN_VIEW, OWN_HOOKS, make_hook_guard

# Of an instance: what nn.Module.__call__ would call instead of the class's forward.
OVERRIDES = {"_compiled_call_impl", "forward"}
EMPTY = {"dtype": torch.float32, "device": torch.device("cpu")}


def make_shortcut(module, guard, specs, entry, weights, selector=None):
    """A _core.Shortcut for ordinary calls of ``module`` by an Entry's plan; None where there can be none.

    ``guard``: that of the module that it stands for. ``selector``: which batch sizes SOL runs; None: all.
    """
    plan = entry.plan
    hook_guard = make_hook_guard(module) if CAN_VIEW and not plan.debug else None
    if (
        hook_guard is None
        or not OVERRIDES.isdisjoint(vars(module))
        or any(spec.dtype not in DTYPE_NAMES for spec in specs)
        or (entry.reads.asks_kinds and len(specs) > 1)
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
    # The shortcut does not hold the module, which holds it: the dict in question comes with each call.
    values += [(None, name, vars(module)[name]) for name in OWN_HOOKS]
    values += [(None, name, ...) for name in OVERRIDES]
    try:
        return _core.Shortcut(
            (hook_guard, guard), tuple(values), tuple(questions), types, torch.Tensor.is_neg,
            inputs, tuple(plan.inputs), plan.program, weights,
            torch.empty, EMPTY, plan.ready, verdicts, None if plan.is_single else plan.build, _core.threads(),
        )  # fmt: skip
    except NotImplementedError:
        return None


def _mode():
    """(values, questions): what holds while nobody traces, differentiates or casts, and threads are as
    many as now. A variable is read where there is one, as a function of Python takes long."""
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

"""Makes the shortcut of a plan: a _core.Shortcut, which runs usual calls without Python code.

A call is a usual one if all conditions here and in python/sol/_shortcut.c hold. They are the conditions that ``Engine``, or for a
graph of torch.compile ``Piece``, checks. All other calls go through these, which find the reason.
"""

import torch
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.jit import is_tracing

from sol import _core
from sol.config import config
from sol.pytorch.inputs import DTYPE_NAMES, PLAIN_TENSORS, TensorSpec, has_open_dims
from sol.pytorch.watch import CAN_VIEW, OWN_HOOKS, make_hook_guard

# Attributes of an instance that nn.Module.__call__ would call instead of the class's forward.
OVERRIDES = {"_compiled_call_impl", "forward"}


def make_shortcut(module, guard, specs, entry, weights, selector=None):
    """Returns a _core.Shortcut for usual calls of ``module`` with the plan of ``entry``, or None if it cannot be made.

    ``module``: the Optimized module. ``guard``: the guard of the original module. ``weights``: of the plan. ``selector``:
    decides which batch sizes SOL runs; None: all.
    """
    plan = entry.plan
    if has_open_dims(specs):  # a shortcut knows one open size
        return None
    hook_guard = make_hook_guard(module) if CAN_VIEW and not plan.debug else None
    if (
        hook_guard is None
        or not OVERRIDES.isdisjoint(vars(module))
        or any(spec.dtype not in DTYPE_NAMES for spec in specs)
        or (entry.reads.asks_kinds and len(specs) > 1)
        or entry.reads.asked_attributes
    ):
        return None
    types = (torch.Tensor,) if entry.reads.asks_kinds else PLAIN_TENSORS
    values, questions = _mode(entry.autocast)
    questions += [(function, (), answer) for function, answer in entry.reads.questions]
    # None stands for the module's own dict, which each call passes. The shortcut must not hold the module, which holds it.
    values += [(None, name, vars(module)[name]) for name in OWN_HOOKS]
    values += [(None, name, ...) for name in OVERRIDES]
    build = None if plan.is_single else plan.build
    mode = tuple(values), tuple(questions), types
    return _make((hook_guard, guard), mode, specs, plan, weights, selector, build)


def make_graph_shortcut(guard, args, plan, weights, autocast, selector=None):
    """Returns a _core.Shortcut for usual calls of a graph of torch.compile, or None if it cannot be made. Its result is the tuple
    of the graph's roots.

    ``args``: for each argument its TensorSpec; for a weight (weak reference, address); for a number (number, None); None for the
    batch size as an integer.
    ``guard``: of the weights' values. ``autocast``: that of modes.autocast_type for the plan. The others are as in make_shortcut.
    """
    specs = [x for x in args if isinstance(x, TensorSpec)]
    if not CAN_VIEW or plan.debug or any(spec.dtype not in DTYPE_NAMES for spec in specs):
        return None
    mode = (*map(tuple, _mode(autocast)), PLAIN_TENSORS)
    build = tuple if plan.is_list else plan.build
    return _make((guard,), mode, args, plan, weights, selector, build)


def _make(guards, mode, args, plan, weights, selector, build):
    """Returns a _core.Shortcut, or None. ``mode``: values, questions and types of inputs, as its constructor takes them."""
    verdicts = None if selector is None else selector.verdicts
    try:
        return _core.Shortcut(
            guards, *mode, torch.Tensor.is_neg,
            tuple(map(_describe, args)), tuple(plan.inputs), plan.program, weights,
            torch.empty, plan.kinds, plan.ready, verdicts, build, _core.threads(),
        )  # fmt: skip
    except NotImplementedError:
        return None


def _describe(arg):
    """Returns an argument as _core.Shortcut takes it: a TensorSpec becomes (dtype, shape), all others stay."""
    if not isinstance(arg, TensorSpec):
        return arg
    return DTYPE_NAMES[arg.dtype], tuple(-1 if size is None else size for size in arg.shape)


def _mode(autocast):
    """Returns (values, questions) for _core.Shortcut: the conditions of plain inference, as in modes.py, with this autocast, and
    that the number of threads has not changed. A variable is compared instead of a function where possible: that is faster."""
    values = []
    questions = [
        (torch.is_grad_enabled, (), False),
        (torch.is_autocast_enabled, ("cpu",), autocast is not None),
        (getattr(torch._C, "_is_tracing", is_tracing), (), False),
        (torch.get_num_threads, (), _core.threads()),
        (torch.get_default_dtype, (), torch.float32),
        (torch._C._len_torch_dispatch_stack, (), 0),
        (torch._C._len_torch_function_stack, (), 0),
    ]
    if autocast is not None:
        questions.append((torch.get_autocast_dtype, ("cpu",), autocast))
    if "_is_compiling_flag" in is_compiling.__globals__:
        values.append((is_compiling.__globals__, "_is_compiling_flag", False))
    else:
        questions.append((is_compiling, (), False))
    values.append((vars(forward_ad), "_current_level", -1))
    values.append(config.entry("compiler::never_slower"))
    return values, questions

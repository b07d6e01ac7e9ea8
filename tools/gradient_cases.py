"""Runs modules of PyTorch's own list in train mode through sol.optimize, forward and backward, for operator_cases.py.

A sample is a Training: a function that returns results, gradients and buffers. Its outcomes are those of operator_cases.py, but
there are neither host nodes nor graph breaks: what SOL cannot train runs in PyTorch.
"""

import copy

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten


class Training:
    """One step of a module: returns (results, gradients of arguments and of parameters, buffers).

    ``wanted``: for each leaf of (args, kwargs) whether it wants a gradient. ``state``: at the beginning. ``run``: what is called instead
    of the module; it has the module's parameters and buffers.
    """

    def __init__(self, module, wanted, run=None):
        self.module, self.wanted, self._run = module, wanted, run or module
        self.state = copy.deepcopy(module.state_dict())

    def want(self, args, kwargs):
        """Returns (args, kwargs), of which the wanted tensors want gradients."""
        leaves, tree = tree_flatten((args, kwargs))
        wanting = [x.detach().requires_grad_() if w else x for x, w in zip(leaves, self.wanted)]
        return tree_unflatten(wanting, tree)

    @torch.enable_grad()
    def __call__(self, *args, **kwargs):
        self.module.load_state_dict(self.state)
        self.module.zero_grad(set_to_none=True)
        args, kwargs = self.want(args, kwargs)
        results = self._run(*args, **kwargs)
        weighted = [weigh(y) for y in tree_leaves(results) if is_differentiable(y)]
        if not weighted:
            raise ValueError("no result has a gradient")
        sum(weighted).backward()
        leaves = [x for x in tree_leaves((args, kwargs)) if is_differentiable(x)]
        gradients = [x.grad for x in (*leaves, *self.module.parameters())]
        return tree_map(detach, results), gradients, [b.clone() for b in self.module.buffers()]


def is_differentiable(x):
    return isinstance(x, torch.Tensor) and x.requires_grad


def detach(x):
    return x.detach() if isinstance(x, torch.Tensor) else x


def weigh(y):
    """Returns a loss that is no symmetric function of a result."""
    return (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()


def make_samples(info):
    """Yields (Training, args, kwargs)."""
    inputs = info.module_inputs_func(info, "cpu", torch.float32, requires_grad=True, training=True)
    for x in inputs:
        if x.forward_input is None:
            continue
        made, given = x.constructor_input, x.forward_input
        try:
            module = info.module_cls(*made.args, **made.kwargs).float().train()
            if info.is_lazy:
                module(*given.args, **given.kwargs)
        except Exception:  # a sample of a wrong use
            continue
        yield Training(module, find_wanted(given)), given.args, given.kwargs


def find_wanted(given):
    """For each leaf whether it wants a gradient; the first one does if no tensor of the sample says so, as for some losses."""
    wanted = [is_differentiable(x) for x in tree_leaves((given.args, given.kwargs))]
    return wanted if any(wanted) else [tree_leaves(given.args)[0].is_floating_point(), *wanted[1:]]


def run_sample(training, args, kwargs, expected, is_same):
    """Returns (outcome, reason)."""
    import sol.pytorch as sol

    module = training.module
    module.load_state_dict(training.state)
    inputs, keywords = training.want(args, kwargs)
    try:
        fast = sol.optimize(module, *inputs, kwargs=keywords)
    except (TypeError, ValueError, NotImplementedError) as error:
        return "PyTorch", f"sol.optimize raises {type(error).__name__}: {error}"
    torch.manual_seed(0)
    try:
        got = Training(module, training.wanted, fast)(*args, **kwargs)
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    if not is_same(got, expected):
        return "wrong", find_difference(got, expected)
    reasons = [reason for reason, n in sol.fallbacks(fast).items() if n]
    return ("PyTorch", reasons[0]) if reasons else ("native", "")


def find_difference(got, expected):
    for name, a, b in zip(("results", "gradients", "buffers"), got, expected):
        for x, y in zip(tree_leaves(a), tree_leaves(b)):
            try:
                torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4, equal_nan=True)
            except AssertionError as error:
                return f"{name}: {' '.join(str(error).split())[:140]}"
    return "another structure"

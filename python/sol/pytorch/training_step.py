"""One call of a TrainingPlan as a function of autograd: Step.forward, and Step.backward for its gradients.

What the backward call reads is saved by ``save_for_backward``: inputs, results, parameters, and the block of memory that the
program has filled. So PyTorch frees it after backward, raises its own errors for a second backward and for tensors that have changed
meanwhile, and hooks such as those of torch.utils.checkpoint may store it elsewhere.
"""

import torch

from sol.pytorch.modes import is_in_func
from sol.pytorch.plan import follow_threads
from sol.pytorch.updates import count_up

TWICE = b"trying to differentiate twice a network that SOL trains: gradients of gradients are PyTorch's, without sol.optimize"


class Step(torch.autograd.Function):
    """Inputs: the TrainingPlan, its _core.Weights, the values of the symbols, then the graph's inputs and the params."""

    @staticmethod
    def forward(ctx, plan, weights, symbols, *tensors):
        follow_threads()
        inputs, params = tensors[: plan.n_inputs], tensors[plan.n_inputs :]
        saved = plan.take_saved(symbols)
        outputs = plan.forward(weights, symbols, inputs, saved)
        count_up([params[i] for i in plan.updated])
        ctx.plan, ctx.weights, ctx.symbols = plan, weights, symbols
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[y for y, has in zip(outputs, plan.differentiable) if not has])
        ctx.save_for_backward(
            saved,
            *[inputs[i] for i in plan.saved_inputs],
            *[outputs[i] for i in plan.saved_outputs],
            *plan.kept_params(params),
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *gradients):
        with torch.no_grad():
            found = Step._differentiate(ctx, gradients)
        return None, None, None, *(_refuse_twice(found) if torch.is_grad_enabled() else found)

    @staticmethod
    def _differentiate(ctx, gradients):
        plan = ctx.plan
        if is_in_func():
            raise RuntimeError(
                "SOL computes no gradients inside of torch.func or for is_grads_batched"
            )
        saved, *others = ctx.saved_tensors  # checks that none has changed
        follow_threads()
        tensors = iter(others)
        inputs = {i: next(tensors) for i in plan.saved_inputs}
        outputs = {i: next(tensors) for i in plan.saved_outputs}
        return plan.backward(ctx.weights, ctx.symbols, inputs, outputs, gradients, saved)


def _refuse_twice(gradients):
    """Returns the gradients as tensors of which PyTorch raises an error if they are differentiated again (``create_graph``).

    torch.autograd.function.once_differentiable does so only if the gradients of the results want gradients. But gradients also depend
    on inputs and parameters: a penalty on them would be ignored.
    """
    return [None if x is None else _refuse_one(x.requires_grad_()) for x in gradients]


def _refuse_one(gradient):
    return torch._C._functions.DelayedError(TWICE, 1)(gradient)

"""Training by graphs of Dynamo: calls of a Piece that want gradients.

    Piece.run -> find_mode: a Mode -> Piece._make_plan -> make_plan: an Entry with a TrainingPlan
              -> run: pack the weights, Step.forward -> results, whose backward is Step.backward

As for a module (training.py), each call packs the weights again. The graph's weights are arguments of each call, and what autograd
differentiates. An Entry holds the packed weights only, not the tensors: Dynamo never frees a graph.
"""

import functools

from torch import Tensor, is_grad_enabled

from sol.pytorch.capture import LOCK
from sol.pytorch.modes import Mode
from sol.pytorch.nodes import describe_graph
from sol.pytorch.plan import compile_plan
from sol.pytorch.training import Packed, TrainingPlan
from sol.pytorch.training_graph import Gradients


def find_mode(split, args):
    """Returns the Mode of a call: which of the Split's weights and tensors want a gradient. None if no gradient is wanted."""
    if not is_grad_enabled():
        return None
    weights = tuple([args[i].requires_grad for i in split.weights])
    given = [args[i] for i in split.tensors]
    inputs = tuple([isinstance(x, Tensor) and x.requires_grad for x in given])
    return Mode(None, weights, inputs) if True in weights or True in inputs else None


def find_refusal(split, mode, parameters):
    """Returns the reason why SOL must not run a call with this Mode because of its gradients, or None. ``parameters``: those of the
    graph that are no arguments."""
    if is_grad_enabled() and any(p.requires_grad for p in parameters):
        return "a parameter that is no argument of its graph wants a gradient"
    if mode is None:
        turns_on = True in split.switches and not is_grad_enabled()
        return "it switches gradients on" if turns_on else None
    if split.calls:
        return f"a gradient of {', '.join(sorted(split.calls))}"
    # The rest of the graph, which PyTorch runs, does not know where gradients were off.
    return "it switches gradients off and returns views" if split.switches and split.rest else None


def make_plan(captured, part, weights, mode, options, times, check):
    """Returns the TrainingPlan of a Captured. ``part``: the Part of ``weights``. ``options``: engine.Options. ``check``: as for compile_plan, or None."""
    gradients = Gradients(captured, part, weights, mode)

    def add(imported):
        if check:
            check(imported)
        gradients.add(imported)

    kind = functools.partial(TrainingPlan, gradients)
    graph = describe_graph(captured.exported)
    return compile_plan(captured, graph, part, options, False, times, add, kind)


def find_places(plan, part):
    """Returns for each of the program's params the number of the Part's weight; or the tensor, for a constant of the graph."""
    numbers = {id(tensor): i for i, tensor in enumerate(part.weights())}
    return [numbers.get(id(x), x) for x in plan.find_tensors(part)]


def pack(entry, key, weights):
    """Returns the Packed of a call. ``entry``: with a TrainingPlan. ``key``: of the weights. ``weights``: of the call."""
    tensors = [weights[x] if isinstance(x, int) else x for x in entry.places]
    with LOCK:
        packed = Packed(entry.plan, tensors, entry.packed.pop(key, None))
        packed.update()
        entry.packed[key] = packed.weights
    return packed

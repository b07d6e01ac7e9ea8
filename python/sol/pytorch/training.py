"""Training: plans whose programs have a forward and a backward call.

    engine.py -> make_training_plan: capture, import, Gradients.add, compile -> TrainingPlan
    a call    -> TrainingPlan.run -> training_step.Step.forward: Program.forward -> results
    backward  -> training_step.Step.backward: Program.backward -> gradients

Parameters change at each step of an optimizer, also in ways that PyTorch does not count (``p.data.add_()``). So each forward call
packs them again, into the same memory (Packed).
"""

import functools
from math import prod
from time import perf_counter

import torch
from torch import empty
from torch.utils.dlpack import from_dlpack

from sol.pytorch.capture import capture
from sol.pytorch.nodes import describe_graph
from sol.pytorch.plan import Plan, compile_plan
from sol.pytorch.training_graph import Gradients
from sol.pytorch.training_step import Step
from sol.pytorch.updates import find_fault, find_overlap
from sol.pytorch.watch import CAN_VIEW

LARGE = 1 << 18  # elements


class TrainingPlan(Plan):
    """Runs a program that has a backward call, as one function of autograd.

    ``n_inputs``, ``n_outputs``: of the forward call. ``gradients``: Gradients. ``differentiable``: for each output whether it has a
    gradient. ``saved_inputs``, ``saved_outputs``: indices of those that the backward call reads, too. ``slots``: of Gradients.
    """

    def __init__(self, gradients, captured, imported, program, graph):
        super().__init__(captured, imported, program, graph)
        self.gradients = gradients.key
        self.slots, self.differentiable = gradients.slots, gradients.outputs
        self.n_inputs, self.n_outputs = len(self.inputs) + self.draws, gradients.n_outputs
        self.saved_inputs = _find_saved(program.input_flags)
        self.saved_outputs = _find_saved(program.output_flags)
        self.param_shapes = [torch.Size(shape) for _, _, shape in program.params]
        self._written_at = set(self.updated)
        self._forward_zeros = [0] * (len(program.inputs) - self.n_inputs)
        self._backward_zeros = [0] * (len(program.outputs) - self.n_outputs)

    def find_tensors(self, module):
        """Returns the module's tensors that are the program's params, in their order. Raises ValueError if one is missing."""
        fault = find_fault(module, self.updates)
        if fault:
            raise ValueError(fault)
        return self._find_params(module)

    def kept_params(self, params):
        """Returns the params whose values the forward call does not change."""
        return [x for i, x in enumerate(params) if i not in self._written_at]

    def find_overlap_of(self, packed, leaves):
        """Returns the reason why SOL must not run a call: an input lies in the memory of a buffer that it writes. Or None."""
        written = zip(self.updates, (packed.tensors[i] for i in self.updated))
        return find_overlap(list(written), leaves, "an input")

    def _written(self, packed):
        return [packed.tensors[i] for i in self.updated]

    # ---- A call ----

    def profile(self, packed, tensors, batch):
        """Runs both calls once, with gradients of 1. See Plan.profile."""
        symbols = self.symbols(batch)
        outputs = self._make_outputs(symbols)
        given = [torch.ones_like(y) for y, has in zip(outputs, self.differentiable) if has]
        inputs = [*self._find_inputs(tensors), *given]
        sources = [x.data_ptr() for x in inputs]
        with self.unchanged(packed):
            return self.program.profile(
                packed.weights, symbols, sources, [y.data_ptr() for y in outputs]
            )

    def train(self, packed, tensors, batch):
        """Runs the forward call. Returns the model's result, which autograd can differentiate. ``packed``: Packed, up to date."""
        symbols = self.symbols(batch)
        inputs = self._find_inputs(tensors)
        outputs = Step.apply(self, packed.weights, symbols, *inputs, *packed.tensors)
        return outputs[0] if self.is_single else self.build(outputs, None, symbols)

    def forward(self, weights, symbols, inputs, saved):
        """Runs the forward call. Returns its outputs. ``saved``: of ``take_saved``."""
        outputs = self._make_results(symbols)
        sources = [x.data_ptr() for x in inputs] + self._forward_zeros
        results = [y.data_ptr() for y in outputs] + self._backward_zeros
        self.program.forward(weights, symbols, sources, results, saved.data_ptr())
        return outputs

    def backward(self, weights, symbols, inputs, outputs, given, saved):
        """Runs the backward call. Returns the gradients of inputs and params, None for those that have none.

        ``inputs``, ``outputs``: {index: tensor} of those that the forward call has saved. ``given``: the gradient of each output, or
        None.
        """
        shapes = self._output_shapes(symbols)
        seeds = [
            torch.zeros(shape, **kind) if x is None else x.resolve_neg().contiguous()
            for x, shape, kind, has in zip(given, shapes, self.kinds, self.differentiable)
            if has
        ]
        found = self._take_gradients(symbols)
        sources = [_address(inputs.get(i)) for i in range(self.n_inputs)]
        results = [_address(outputs.get(i)) for i in range(self.n_outputs)]
        self.program.backward(
            weights,
            symbols,
            sources + [x.data_ptr() for x in seeds],
            results + [x.data_ptr() for x in found],
            saved.data_ptr(),
        )
        has_gradient = [x is not None for x in given]
        return [
            found[slot.output - self.n_outputs] if slot and slot.is_reached(has_gradient) else None
            for slot in self.slots
        ]

    def _make_outputs(self, symbols):
        """Those of both calls, in memory as in a step: to fault in new pages would take a large part of the time of a profile's steps."""
        return self._make_results(symbols) + self._take_gradients(symbols)

    def _make_results(self, symbols):
        """Returns tensors for the outputs of the forward call."""
        shapes = self._output_shapes(symbols)[: self.n_outputs]
        return [empty(shape, **kind) for shape, kind in zip(shapes, self.kinds)]

    def _take_gradients(self, symbols):
        shapes = self._output_shapes(symbols)
        return [
            self._take_gradient(i, symbols, shapes[i], self.kinds[i])
            for i in range(self.n_outputs, len(shapes))
        ]

    def _take_gradient(self, output, symbols, shape, kind):
        """Returns a tensor for a gradient. Large ones have memory that is used again after they have died: a step would fault in all
        of its pages, which takes longer than to write them."""
        if prod(shape) < LARGE:
            return empty(shape, **kind)
        return from_dlpack(self.program.take_output(output, symbols))

    def take_saved(self, symbols):
        """Returns a tensor for what the forward call leaves for the backward call. Its memory is used again after it has died."""
        capsule = self.program.take_saved(symbols)
        return empty(0, dtype=torch.uint8) if capsule is None else from_dlpack(capsule)


class Packed:
    """Packed parameters for a TrainingPlan. ``tensors``: the user's own, in the order of the program's params. ``weights``: of
    earlier values, whose memory they take; or None."""

    def __init__(self, plan, tensors, weights=None):
        self.tensors = tuple(tensors)
        self.weights = weights
        self._program, self._updated, self._shapes = plan.program, plan.updated, plan.param_shapes

    def update(self):
        """Packs the current values. Raises ValueError if a tensor has another shape than in the plan. The caller has a lock.

        Calls of other threads have these weights without the lock: they wait until the weights are packed. After an error, the
        caller drops this object.
        """
        if self.weights is None or not (CAN_VIEW and self.weights.refresh(self.tensors)):
            self.weights = self._pack(self.weights)

    def _pack(self, weights):
        """Returns Weights of the current values, in the memory of ``weights`` if that is not None."""
        dense = [x if x.is_contiguous() and not x.is_neg() else _copy(x) for x in self.tensors]
        if any(x.shape != shape for x, shape in zip(dense, self._shapes)):
            raise ValueError("a parameter has another shape now")
        if any(dense[i] is not self.tensors[i] for i in self._updated):
            raise ValueError("a buffer that it writes is not dense")
        addresses = [x.data_ptr() for x in dense]
        # A detached tensor keeps its memory alive, also if the parameter's `.data` is set to other memory.
        keep = [x.detach() for x in dense]
        if weights is None:
            return self._program.weights(addresses, keep)
        weights.update(addresses, keep)
        return weights


def make_training_plan(module, specs, structure, options, batch, mode, old=None, given=None):
    """Captures in a Mode with gradients, imports and compiles. Returns (TrainingPlan, Reads), as make_plan does.

    ``old``: a plan, which is returned if it computes the same. ``given``: the batch size of the first call, which later ones usually have, too: kernels
    are chosen for it, unless ``options`` name one.
    """
    times = [perf_counter()]
    captured = capture(module, specs, structure, batch, options.batch_hint, mode)
    gradients = Gradients(captured, module, module.parameters(), mode)
    graph = describe_graph(captured.exported)
    times.append(perf_counter())
    plan = old if _is_same(old, graph, gradients, captured) else None
    if plan is None:
        kind = functools.partial(TrainingPlan, gradients)
        if not options.batch_hint and isinstance(given, int):
            options = options._replace(batch_hint=given)
        plan = compile_plan(captured, graph, module, options, False, times, gradients.add, kind)
    captured.reads.updates, captured.reads.kept = plan.updates, plan.kept
    return plan, captured.reads


def _is_same(old, graph, gradients, captured):
    return (
        isinstance(old, TrainingPlan)
        and old.graph == graph
        and old.gradients == gradients.key
        and old.returns_as(captured)
    )


def _copy(tensor):
    return tensor.detach().resolve_neg().contiguous()


def _find_saved(flags):
    return [i for i, (is_backward, is_saved) in enumerate(flags) if is_saved and not is_backward]


def _address(tensor):
    return 0 if tensor is None else tensor.data_ptr()

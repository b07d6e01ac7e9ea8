"""sol.profile, sol.report and sol.memory for optimized PyTorch modules."""

import functools

import torch

from sol.pytorch.inputs import TensorSpec
from sol.pytorch.module import engine_of
from sol.pytorch.plan import follow_threads
from sol.pytorch.selector import without_selectors
from sol.pytorch.structure import flatten
from sol.pytorch.training import TrainingPlan
from sol.times import Memory, make_profile, write_report


def profile(module, *inputs, runs=20, **keywords):
    """See sol.profile."""
    engine = engine_of(module)
    plan, weights, tensors, batch = engine.find_run(inputs, keywords)
    follow_threads()
    trains = isinstance(plan, TrainingPlan)
    call = functools.partial(_train, module) if trains else module
    with torch.set_grad_enabled(trains), without_selectors(), plan.unchanged(weights):
        return make_profile(
            engine.options.name,
            plan.program.dot(),
            functools.partial(call, *inputs, **keywords),
            lambda: plan.profile(weights, tensors, batch),
            runs,
            plan.program,
        )


def _train(module, *inputs, **keywords):
    """A call and its backward call, without a change of anybody's ``grad``."""
    given = [x for x in flatten((inputs, keywords))[0] if isinstance(x, torch.Tensor)]
    wanted = [x for x in [*module.parameters(), *given] if x.requires_grad]
    found = flatten(module(*inputs, **keywords))[0]
    results = [x for x in found if isinstance(x, torch.Tensor) and x.requires_grad]
    torch.autograd.grad(results, wanted, [torch.ones_like(y) for y in results], allow_unused=True)


def report(module, *inputs, path="report.html", runs=20, **keywords):
    """See sol.report."""
    engine = engine_of(module)
    plan, weights, tensors, batch = engine.find_run(inputs, keywords)
    if isinstance(plan, TrainingPlan):
        raise RuntimeError(f"{engine.options.name}: sol.report draws inference only: call eval()")
    follow_threads()
    with torch.no_grad(), without_selectors(), plan.unchanged(weights):
        write_report(
            path,
            engine.options.name,
            plan.program,
            plan.symbols(batch),
            lambda: plan.profile(weights, tensors, batch),
            runs,
        )


def memory(module, batch_size=None, inputs=None):
    """See sol.memory."""
    engine = engine_of(module)
    if inputs is not None:
        raise TypeError("sol.memory: a module's only open size is the batch: say batch_size")
    batch = engine.options.batch_hint or 1 if batch_size is None else batch_size
    if batch_size is not None:
        _check_batch(engine, batch_size)
    plan = engine.find_plan(batch)
    _refuse_batch(engine, plan.refusal(batch))
    follow_threads()
    return Memory(parameters=parameter_bytes(engine.module), **plan.memory(batch))


def _check_batch(engine, batch):
    """Raises TypeError or ValueError for a batch size that this module's program cannot have."""
    if isinstance(batch, bool) or not isinstance(batch, int):
        raise TypeError(f"sol.memory: batch_size must be an integer, not {batch!r}")
    specs = [spec for spec in engine.specs if isinstance(spec, TensorSpec)]
    fixed = {spec.shape[0] for spec in specs if spec.shape}
    if not any(spec.is_dynamic for spec in specs) and batch not in fixed:
        shapes = ", ".join(map(str, specs))
        _refuse_batch(
            engine,
            f"compiled for {shapes}, it has no batch of {batch}; a first size of 0 in sol.input leaves the batch open",
        )
    if batch < 0:
        _refuse_batch(engine, f"batch_size={batch}")


def _refuse_batch(engine, reason):
    if reason:
        raise ValueError(f"sol.memory: {engine.options.name}: {reason}")


def parameter_bytes(module):
    """Returns the bytes of all parameters and buffers. Memory that several of them share counts once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in [*module.parameters(), *module.buffers()]
    }
    return sum(storages.values())

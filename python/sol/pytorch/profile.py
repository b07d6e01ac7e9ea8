"""Where time and memory of an optimized module go.

print(sol.profile(fast, x))                 a table, one row per cluster
sol.profile(fast, x).save_trace("t.json")   for chrome://tracing and ui.perfetto.dev
sol.report(fast, x, path="report.html")     all of it, and the network, as a page for a browser
print(sol.memory(fast, batch_size=32))
"""

import pathlib
import statistics
import time

import torch

from sol.profile import Memory, Profile, median_rows, median_steps
from sol.pytorch.optimize import _engine
from sol.pytorch.plan import follow_threads
from sol.pytorch.race import without_races


def profile(module, *inputs, runs=20):
    """Times each cluster of an optimized module for these inputs, as the median of ``runs`` -> Profile.

    Raises RuntimeError with the reason when PyTorch runs the module.
    """
    engine = _engine(module)
    plan, weights, tensors, batch = engine.find_run(inputs)
    follow_threads()
    calls, every = [], []
    with torch.no_grad(), without_races():
        for _ in range(max(1, runs)):
            start = time.perf_counter()
            module(*inputs)
            calls.append(time.perf_counter() - start)
            every.append(plan.profile(weights, tensors, batch))
    # A call is compared with the timed run next to it: the machine's speed changes over time.
    overheads = [call - sum(row[3] for row in rows) for call, rows in zip(calls, every)]
    return Profile(
        engine.options.name,
        median_steps(every),
        statistics.median(calls),
        statistics.median(overheads),
        plan.program.picture(),
    )


def report(module, *inputs, path="report.html", runs=20):
    """Writes a page for a browser: the network with the time of each kernel, memory over time, what was fused and chosen.

    Raises RuntimeError with the reason when PyTorch runs the module.
    """
    engine = _engine(module)
    plan, weights, tensors, batch = engine.find_run(inputs)
    follow_threads()
    with torch.no_grad(), without_races():
        every = [plan.profile(weights, tensors, batch) for _ in range(max(1, runs) + 1)]
    # The first run finds nothing in the caches.
    page = plan.page(engine.options.name, batch, median_rows(every[1:]))
    pathlib.Path(path).write_text(page, encoding="utf-8")


def memory(module, batch_size=None):
    """What an optimized module needs for a batch -> Memory; without a size that of ``sol.optimize``, or 1.

    Raises RuntimeError with the reason when PyTorch runs the module.
    """
    engine = _engine(module)
    plan = engine.find_plan()
    follow_threads()
    found = plan.memory(engine.options.batch_hint or 1 if batch_size is None else batch_size)
    return Memory(parameters=parameter_bytes(engine.module), **found)


def parameter_bytes(module):
    """Of all parameters and buffers; memory that several of them share counts once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in [*module.parameters(), *module.buffers()]
    }
    return sum(storages.values())

"""Runs single operators and modules of PyTorch's own lists by torch.compile(backend="sol"), and tells how each one ran.

    operator_lists.py -> one process per list of names -> run_case: the samples of one name -> a line of JSON

PyTorch's tests describe each operator by an OpInfo (op_db) and each module by a ModuleInfo (module_db), with samples of
arguments. A sample counts if PyTorch computes it in eager mode, twice with the same result. SOL leaves calls with tensors that have
no elements to PyTorch, so such a sample counts only if its result is wrong.

The outcomes of a sample, from the best to the worst:
    native       SOL computes it, or it has only views and sizes, which cost nothing
    host node    PyTorch computes an operator inside of a SOL program
    graph break  Dynamo divides the function in several graphs
    PyTorch      PyTorch computes all of it
    wrong        the results differ from PyTorch's
    error        an exception that PyTorch does not raise
A name's outcome is the worst of its samples. Its process adds two others: time limit, and crash.
"""

import json
import os
import sys
import warnings

import gradient_cases
import torch
from torch.utils._pytree import tree_flatten, tree_map

from sol import config
from sol.pytorch import dynamo_piece, importer
from sol.pytorch.dynamo import Backend
from sol.pytorch.engine import Options

OUTCOMES = [
    "native",
    "host node",
    "graph break",
    "PyTorch",
    "wrong",
    "error",
    "time limit",
    "crash",
]
# Names for which PyTorch promises no values, or not the same ones at the next call.
UNDEFINED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
# Relative to the largest value of a result: kernels sum in another order than PyTorch.
RTOL, ATOL = 1e-3, 1e-4
FAMILIES = ("fft", "linalg", "sparse", "signal")


class Call(torch.nn.Module):
    """A function as a module. ``args``, ``kwargs``: those of a sample."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, args, kwargs):
        return self.function(*args, **kwargs)


# ---- Samples ----


def load_names(kind):
    """Returns {name: OpInfo or ModuleInfo} of a list: "operators", "modules", or "gradients": of modules in train mode."""
    if kind in ("modules", "gradients"):
        from torch.testing._internal.common_modules import module_db

        suffix = " in training" if kind == "gradients" else ""
        return {info.name + suffix: info for info in module_db}
    from torch.testing._internal.common_methods_invocations import op_db

    return {" ".join(filter(None, [x.name, x.variant_test_name])): x for x in op_db}


def find_dtype(info):
    """Returns float32, or another element type if the operator does not take it; None if it takes none that SOL has."""
    known = getattr(info, "dtypes", {torch.float32})
    return next((x for x in (torch.float32, torch.int64, torch.bool) if x in known), None)


def make_samples(kind, info, dtype):
    """Returns [(function, args, kwargs)]."""
    if kind == "modules":
        return list(_make_module_samples(info, dtype))
    if kind == "gradients":
        return list(gradient_cases.make_samples(info))
    samples = info.sample_inputs("cpu", dtype, requires_grad=False)
    return [(info.op, (x.input, *x.args), x.kwargs) for x in samples]


def _make_module_samples(info, dtype):
    inputs = info.module_inputs_func(info, "cpu", dtype, requires_grad=False, training=False)
    for x in inputs:
        if x.forward_input is None:
            continue
        made = x.constructor_input
        try:
            module = info.module_cls(*made.args, **made.kwargs).to(dtype).eval()
        except Exception:  # a sample of a wrong use
            continue
        yield module, x.forward_input.args, x.forward_input.kwargs


def pick(samples, limit):
    """Returns at most ``limit`` samples, evenly spread; 0: all."""
    if not limit or len(samples) <= limit:
        return samples
    return [samples[i * len(samples) // limit] for i in range(limit)]


def copy(values):
    return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, values)


# ---- One sample ----


def draws_numbers(function):
    """Whether a function of the list draws random numbers: it sets the seed first."""
    code = getattr(function, "__code__", None)
    return code is not None and "wrapper_set_seed" in code.co_names


def has_empty(values):
    """Whether one of the tensors has no elements."""
    return any(isinstance(x, torch.Tensor) and not x.numel() for x in tree_flatten(values)[0])


def run_eager(function, args, kwargs):
    """Returns (result, whether it is a result to compare with). An exception: PyTorch refuses the sample."""
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        runs.append(function(*copy(args), **copy(kwargs)))
    return runs[0], is_same(*runs, rtol=0, atol=0)


def is_same(got, expected, rtol=RTOL, atol=ATOL):
    """Whether two results have the same structure, types, shapes, and nearly the same values."""
    a, b = tree_flatten(got), tree_flatten(expected)
    return len(a[0]) == len(b[0]) and all(_is_near(x, y, rtol, atol) for x, y in zip(a[0], b[0]))


def _is_near(x, y, rtol, atol):
    if not isinstance(y, torch.Tensor):
        return type(x) is type(y) and (x == y or x != x)
    if not isinstance(x, torch.Tensor) or x.dtype != y.dtype or x.shape != y.shape:
        return False
    if y.is_sparse or y.layout is not torch.strided:
        x, y = x.to_dense(), y.to_dense()
    if not y.is_floating_point() and not y.is_complex():
        return torch.equal(x, y)
    finite = y[torch.isfinite(y)].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return torch.allclose(x, y, rtol=rtol, atol=atol * scale, equal_nan=True)


def run_sample(function, args, kwargs, expected):
    """Returns (outcome, reason) of one sample."""
    if isinstance(function, gradient_cases.Training):
        outcome, reason = gradient_cases.run_sample(function, args, kwargs, expected, is_same)
        return outcome, first_line(reason)
    backend = Backend(Options("operator", None, False))
    try:
        got = run_compiled(backend, function, args, kwargs)
    except Exception as error:
        if _fails_alone(function, args, kwargs):
            return "PyTorch", f"torch.compile raises {type(error).__name__}: {first_line(error)}"
        return "error", f"{type(error).__name__}: {first_line(error)}"
    outcome = judge(backend)
    # Where Dynamo's own result differs from that without torch.compile, it is the one to compare with.
    if is_same(got, expected) or is_same(got, run_compiled("eager", function, args, kwargs)):
        return outcome
    return "wrong", describe_difference(got, expected)


def run_compiled(backend, function, args, kwargs):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    compiled = torch.compile(Call(function), backend=backend, dynamic=False)
    return compiled(copy(args), copy(kwargs))


def _fails_alone(function, args, kwargs):
    """Whether Dynamo raises an exception also if PyTorch runs its graphs."""
    try:
        run_compiled("eager", function, args, kwargs)
    except Exception:
        return True
    return False


def judge(backend):
    """Returns (outcome, reason) of what a backend has compiled."""
    breaks = torch._dynamo.utils.counters["graph_break"]
    pieces = backend.pieces
    ends = [str(x.end.reason) for x in pieces if x.end]
    refused = [x.reason for x in pieces if x.reason and not x._is_empty] or list(backend.fallbacks)
    hosts = [node for x in pieces for node in x.hosts()]
    if refused:
        return "PyTorch", first_line(refused[0])
    if ends or breaks or not pieces:
        reasons = [*ends, *breaks, "Dynamo makes no graph"]
        return "graph break" if len(pieces) > 1 else "PyTorch", first_line(reasons[0])
    if hosts:
        return "host node", f"{hosts[0].call.partition('(')[0]}: {first_line(hosts[0].reason)}"
    return "native", ""


def first_line(text):
    return " ".join(str(text).strip().partition("\n")[0].split())[:160]


def describe_difference(got, expected):
    try:
        torch.testing.assert_close(got, expected, rtol=RTOL, atol=ATOL, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:160]
    except Exception as error:
        return first_line(error)
    return "another structure"


# ---- Groups ----


def find_group(kind, name, sample, expected):
    """Returns the group in which a name is counted."""
    if kind in ("modules", "gradients"):
        return kind
    _, args, kwargs = sample
    given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    results = [x for x in tree_flatten(expected)[0] if isinstance(x, torch.Tensor)]
    short = name.partition(" ")[0].rpartition(".")[2]
    if any(x.is_complex() for x in (*given, *results)):
        return "complex"
    family = name.partition(".")[0]
    if family in FAMILIES:
        return family
    if not given or short.endswith("_like") or short.startswith("new_"):
        return "factories"
    if not results:
        return "facts"
    memory = {x.untyped_storage().data_ptr() for x in given}
    writes = short.endswith("_") and not short.endswith("__")
    if all(x.untyped_storage().data_ptr() in memory for x in results) and not writes:
        return "views"
    return "writes" if writes else "computes"


def run_case(kind, name, info, limit):
    """Runs the samples of a name. Returns a row: {name, group, outcome, n, native, reason}."""
    row = {"name": name, "group": "not run", "outcome": "", "n": 0, "native": 0, "reason": ""}
    dtype = find_dtype(info)
    if dtype is None:
        return row | {"reason": "no element type that SOL has"}
    worst, is_random = -1, False
    torch.manual_seed(0)  # samples have the same values in each run
    for sample in pick(make_samples(kind, info, dtype), limit):
        try:
            expected, is_fixed = run_eager(*sample)
        except Exception as error:
            if not row["n"]:
                row["reason"] = f"PyTorch refuses the samples: {first_line(error)}"
            continue
        if name.partition(" ")[0] in UNDEFINED or not is_fixed or draws_numbers(sample[0]):
            is_random = True
            continue
        outcome, reason = run_sample(*sample, expected)
        if has_empty((sample[1:], expected)) and OUTCOMES.index(outcome) < OUTCOMES.index("wrong"):
            continue
        if not row["n"]:
            row["group"] = find_group(kind, name, sample, sample[0](*sample[1], **sample[2]))
            row["reason"] = ""
        row["n"] += 1
        row["native"] += outcome == "native"
        if OUTCOMES.index(outcome) > worst:
            worst, row["outcome"], row["reason"] = OUTCOMES.index(outcome), outcome, reason
    if is_random and not row["n"]:
        return row | {"group": "random", "reason": "its results are random or undefined"}
    if not row["n"] and not row["reason"]:
        row["reason"] = "no sample has elements"
    return row


def main():
    """Reads names from stdin, and writes the row of each one."""
    kind, limit = sys.argv[1], int(sys.argv[2])
    config["compiler::never_slower"] = False
    # SOL computes single operators, too.
    dynamo_piece.MIN_LAYERS = importer.LAYERS_PER_HOST = 0
    warnings.simplefilter("ignore")
    rows = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what operators print is no row
    infos = load_names(kind)
    rows.write(json.dumps(list(infos)) + "\n")
    rows.flush()
    with torch.no_grad():
        for line in sys.stdin:
            name = line.strip()
            try:
                row = run_case(kind, name, infos[name], limit)
            except Exception as error:
                row = {"name": name, "group": "not run", "outcome": "", "n": 0, "native": 0}
                row["reason"] = f"{type(error).__name__}: {first_line(error)}"
            rows.write(json.dumps(row) + "\n")
            rows.flush()


if __name__ == "__main__":
    main()

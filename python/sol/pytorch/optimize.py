"""The user's functions: optimize, and what to ask an optimized module."""

import torch

from sol import devices
from sol.config import config
from sol.pytorch.engine import Engine, Options
from sol.pytorch.inputs import ConstantSpec, TensorSpec, make_specs
from sol.pytorch.module import Optimized


def optimize(model, *inputs, batch_size=None, vdims=None, fullgraph=False, name=None):
    """A module that runs ``model`` by SOL in inference, and by PyTorch in any other case.

    inputs      one per argument of ``model.forward``: ``sol.input``, an example tensor, a torch.Size, a
                number, or tuples, lists, dicts, dataclasses of them. One list of all inputs works too.
                A shape's first size 0 is any size, the same for all such inputs.
    batch_size  the size to tune for; any other works
    vdims       None, or [0]: the first size of every input may vary, examples included
    fullgraph   raise where SOL would fall back to PyTorch
    name        in logs and debug output

    Raises TypeError or ValueError for bad inputs, ValueError for shapes that the model refuses, and with
    ``fullgraph`` NotImplementedError naming the operation and shapes that SOL cannot run.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"sol.optimize: expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, Optimized):
        model = model._original
    if len(inputs) == 1 and type(inputs[0]) is list:
        inputs = inputs[0]
    if not inputs:
        raise TypeError(
            "sol.optimize: say what the model takes, such as sol.input([0, 3, 224, 224])"
        )
    _check_batch_size(batch_size)
    _check_device(config["compiler::device"])
    specs, structure = make_specs(inputs, first_is_any=_first_is_any(vdims))
    _check_tensors(specs)
    name = name or config["compiler::name"] or type(model).__name__
    is_script = isinstance(model, torch.jit.ScriptModule)
    refusal = "it is a TorchScript module, which has no forward in Python" if is_script else None
    engine = Engine(model, specs, structure, Options(name, batch_size, bool(fullgraph)), refusal)
    engine.prepare()
    return Optimized(model, engine)


def _check_batch_size(n):
    if n is None:
        return
    if isinstance(n, bool) or not isinstance(n, int):
        raise TypeError(f"sol.optimize: batch_size must be an integer, not {n!r}")
    if not 0 < n < 2**31:
        raise ValueError(f"sol.optimize: batch_size={n}")


def _check_device(name):
    if name and name not in devices():
        raise ValueError(
            f"sol.config['compiler::device'] is \"{name}\": it can be {', '.join(devices())}"
        )


def _check_tensors(specs):
    if not any(isinstance(spec, TensorSpec) for spec in specs):
        shape = [spec.value for spec in specs if isinstance(spec, ConstantSpec)]
        raise TypeError(
            f"sol.optimize: no input is a tensor; a shape is given as sol.input({shape})"
        )


def _first_is_any(vdims):
    if vdims is None:
        return False
    if vdims == 0 or list(vdims) == [0]:
        return True
    raise NotImplementedError(
        f"sol.optimize: vdims={vdims}; only the first dimension, [0], can vary"
    )


def fallbacks(module):
    """{reason: calls} of an optimized module that ran in PyTorch, and the reason to come, with 0."""
    return _engine(module).reasons()


def recompiles(module):
    """How often an optimized module was captured again, for other numbers or changed attributes."""
    return _engine(module).recompiles


def refresh(module):
    """Makes the next call look at everything anew.

    SOL sees new parameters, buffers, attributes and submodules, whatever else of Python the forward reads, and all
    writes that PyTorch counts. This is for what it cannot see for certain: a few values written through ``.data`` or
    NumPy (found within 8 calls if they are among the samples).
    """
    _engine(module).refresh()


def _engine(module):
    if not isinstance(module, Optimized):
        raise TypeError(f"expected what sol.optimize returned, got {type(module).__name__}")
    return vars(module)["_engine"]

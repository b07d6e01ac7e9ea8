"""The public functions ``optimize``, ``fallbacks``, ``host_nodes``, ``graphs``, ``recompiles``, ``recompile_reasons`` and ``refresh``.

The reports take what ``sol.optimize`` returned, whose Engine has them, or what torch.compile returned, which has a Report.
"""

import os

import torch

from sol import _core, device
from sol.config import config
from sol.pytorch.checks import check_batch_size
from sol.pytorch.dynamo_report import find_report
from sol.pytorch.engine import Engine, Options
from sol.pytorch.exported import find_model, is_exported
from sol.pytorch.forms import arrange
from sol.pytorch.generation import Generation
from sol.pytorch.inputs import ConstantSpec, Input, TensorSpec, make_specs
from sol.pytorch.module import Optimized, engine_of
from sol.pytorch.structure import Call


def optimize(
    model,
    *inputs,
    batch_size=None,
    vdims=None,
    fullgraph=False,
    name=None,
    kwargs=None,
    **keywords,
):
    """Returns a torch.nn.Module that computes what ``model`` computes: SOL runs inference, PyTorch runs all other calls.

    The result shares parameters, buffers and submodules with ``model``. ``fallbacks`` tells which calls PyTorch ran and why,
    ``host_nodes`` which operations PyTorch computes inside of SOL's program, as SOL does not have them. A forward that needs
    Python between operators runs in several graphs, from the first call on, which ``graphs`` lists.

    model       a torch.nn.Module; or an ExportedProgram of torch.export, or a file that torch.export.save has written (a path or a
                file object). These need no inputs: the program has them, and its open sizes
    inputs      one per argument of ``model.forward``: ``sol.input``, an example tensor (dense, on the CPU), a torch.Size, a
                number, another constant (bool, str, bytes, None, torch.dtype), or tuples, lists, dicts, dataclasses of
                these. One list of all inputs works, too. A constant's value is compiled in. A first size of 0 in
                ``sol.input`` or torch.Size stays open: it is the batch size, and equal for all such inputs.
    keywords    inputs by the names of ``forward``'s arguments
    kwargs      a dict of such inputs, for names that are also options of this function
    batch_size  the batch size to tune for, from 1 to 2**31 - 1; other batch sizes run, too
    vdims       None, or [0]: the first size of every tensor stays open, also that of example tensors
    fullgraph   raise NotImplementedError instead of falling back to PyTorch, here and in calls; SOL then computes everything
    name        name of the network in logs and debug output; default: ``compiler::name``, or the class of ``model``

    Calls may pass arguments in another way: by position or name, with fewer or more optional ones, with other values of constants,
    with None for a tensor or a tensor for None. SOL then captures ``model`` once more, for calls of this form. Only a tensor that
    was declared keeps its type and sizes: PyTorch runs calls with others.

    The network is compiled for the device that ``sol.device.set`` has chosen, and stays there. If a far device fails, calls raise
    RuntimeError: they do not go on in PyTorch, which would be slow without a word. ``refresh`` opens the device again.

    Raises TypeError or ValueError for bad arguments, ValueError for shapes that ``model`` itself refuses, RuntimeError for a device that
    cannot be used, and NotImplementedError for other ``vdims``. With ``fullgraph``, NotImplementedError names the operation and the shapes that
    SOL cannot run.
    """
    _check_options({"batch_size": batch_size, "vdims": vdims, "fullgraph": fullgraph, "name": name})
    name = name or config["compiler::name"] or None
    exported = None
    if is_exported(model):
        name = name or _name_of(model)
        model, exported, least = find_model("sol.optimize", model)
        batch_size = least if batch_size is None else batch_size
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"sol.optimize: expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, Optimized):
        model = model._original
    if len(inputs) == 1 and type(inputs[0]) is list:
        inputs = inputs[0]
    call = make_call("sol.optimize", model, inputs, keywords, kwargs, exported)
    if not call.args and not call.kwargs:
        raise TypeError(
            "sol.optimize: say what the model takes, such as sol.input([0, 3, 224, 224])"
        )
    check_batch_size(batch_size, "sol.optimize")
    target = device.get()
    device.check(target)
    opened = _core.open_device(*target) if target.name else None
    specs, structure = make_specs(call, first_is_any=_first_is_any(vdims))
    _check_tensors(specs)
    name = name or type(model).__name__
    is_script = isinstance(model, torch.jit.ScriptModule)
    refusal = "it is a TorchScript module, which has no forward in Python" if is_script else None
    options = Options(name, batch_size, bool(fullgraph), target)
    engine = Engine(model, specs, structure, options, refusal)
    engine.device = opened
    engine.prepare()
    return Optimized(model, engine)


def make_call(caller, model, inputs, keywords, kwargs, exported=None):
    """Returns the Call of declared inputs. Raises TypeError if ``model`` has no such arguments.

    ``exported``: the Call of an exported program, for a declaration without inputs; or None.
    """
    call = Call(inputs, _merge_keywords(caller, keywords, kwargs))
    if exported and not call.args and not call.kwargs:
        call = exported
    if not call.kwargs:
        return call
    try:
        return arrange(model, call)
    except TypeError as error:
        raise TypeError(f"{caller}: {type(model).__name__}.forward: {error}") from None


def _merge_keywords(caller, keywords, kwargs):
    if kwargs is None:
        return keywords
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise TypeError(
            f"{caller}: kwargs must be a dict of inputs by their names; if the model has an argument"
            " of the name kwargs, pass kwargs={'kwargs': ...}"
        )
    twice = keywords.keys() & kwargs
    if twice:
        raise TypeError(f"{caller}: the input {min(twice)} is given twice")
    return keywords | kwargs


def _name_of(model):
    """Returns the name of a network that is a file, else None."""
    path = model if isinstance(model, (str, os.PathLike)) else getattr(model, "name", None)
    return (
        os.path.splitext(os.path.basename(path))[0]
        if isinstance(path, (str, os.PathLike))
        else None
    )


def _check_options(options):
    """Raises TypeError if an input has the name of an option: options come first."""
    for name, value in options.items():
        if isinstance(value, (Input, torch.Tensor)):
            raise TypeError(
                f"sol.optimize: {name} is an option; pass an input of this name as kwargs={{'{name}': ...}}"
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
    if vdims in (0, [0], (0,)):
        return True
    raise NotImplementedError(
        f"sol.optimize: vdims={vdims}; only the first dimension, [0], can vary"
    )


def fallbacks(module):
    """Returns {reason: number of calls} for the calls of an optimized or compiled module that fell back to PyTorch.

    ``module``: what ``sol.optimize`` returned, or ``torch.compile(..., backend="sol")``, also for a function. If the next call is
    known to fall back, its reason is included, with 0 if no call met it yet. If it runs in several graphs, or by torch.compile,
    calls of single graphs are counted, with the graph's name before the reason. If Dynamo makes no graph of a function at all, as
    for recurrent layers without its option ``allow_rnn``, its attempts are counted: calls do not reach SOL. Raises TypeError for anything else.
    """
    return _source(module).reasons()


def host_nodes(module):
    """Returns a list of the operations that PyTorch computes inside of the program of an optimized or compiled module.

    ``module``: as for ``fallbacks``. Each item has the fields ``call`` (the operator with its arguments), ``origin`` (the user's
    line) and ``reason`` (why SOL does not compute it). The list is empty if SOL computes everything, and if PyTorch runs the whole
    module: then ``fallbacks`` has the reason. Raises TypeError for anything else.
    """
    return _source(module).host_nodes()


def graphs(module):
    """Returns a list of the graphs in which an optimized or compiled module runs, if it is divided by torch.compile.

    ``module``: as for ``fallbacks``. ``sol.optimize`` divides a forward that needs Python between operators, such as a condition on
    the values of a tensor, from the first call on; the list is empty if SOL runs the forward as one graph, and if PyTorch runs it:
    then ``fallbacks`` has the reason. torch.compile makes at least one graph. Each item has the fields ``name``, ``reason`` (why
    PyTorch runs this graph, or None) and ``end`` (why the graph ends, with the user's line, or None). Raises TypeError for anything
    else.
    """
    return _source(module).graphs()


def recompiles(module):
    """Returns how often an optimized module was captured again with another result than before, or how often torch.compile made a
    graph of a compiled one again.

    ``module``: as for ``fallbacks``. Captures follow other constants, other batch sizes and changes of the module.
    ``recompile_reasons`` explains those of torch.compile. Raises TypeError for anything else.
    """
    return _source(module).recompiles


def recompile_reasons(module):
    """Returns a list with the graphs that torch.compile made again, as the guards of earlier graphs did not hold.

    ``module``: as for ``fallbacks``. Each item has the fields ``name`` (of the new graph) and ``reason`` (the guard that failed, in
    the words of Dynamo). The list is empty for an optimized module that runs as one graph. Raises TypeError for anything else.
    """
    return list(_source(module).made_again)


def refresh(module):
    """Makes the next call of an optimized module capture it and prepack its parameters again. A module of torch.compile is not
    captured again, as Dynamo's guards decide that.

    Call it after writes into parameters through ``.data`` or NumPy: PyTorch does not count these writes. SOL reads 8
    sampled elements of each tensor, one per call, so it detects such a write within 8 calls if it changes a sampled
    element, else never. It detects all other changes without ``refresh``: writes that PyTorch counts, and changes of
    parameters, buffers, attributes, submodules and other Python objects that the forward reads. Raises TypeError for anything
    else.
    """
    _source(module).refresh()


def _source(module):
    """Returns the Engine of an optimized module, or the Report of a compiled one. Raises TypeError for anything else."""
    if isinstance(module, Generation):
        module = module.compiled
    return engine_of(module) if isinstance(module, Optimized) else find_report(module)

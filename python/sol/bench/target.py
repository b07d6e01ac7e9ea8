"""Finds the network to measure, and makes its inputs.

    module:function, file.py:function   function(batch) -> (module, inputs), with any name of its argument; or a
                                        function or class that returns only a module, if --shape is given
    name                                a network on a list: a Python file with NAMES and build(name), such as
                                        bench/networks.py in SOL's sources

`inputs` is a tensor or a tuple of tensors whose first size is the batch.
"""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import NamedTuple

import torch

DEFAULT_LIST = Path("bench") / "networks.py"


class Target(NamedTuple):
    """A network in eval mode, and its inputs for one batch."""

    name: str
    model: torch.nn.Module
    inputs: tuple

    @property
    def is_image(self):
        """Whether the only input has 4 dims, so that channels_last applies."""
        return len(self.inputs) == 1 and self.inputs[0].dim() == 4

    @property
    def batch(self):
        return self.inputs[0].shape[0]


class BadTarget(Exception):
    """The user's name of a network is not valid. The message is the reason."""


def list_names(path):
    """Returns all names on a list of networks; [] if there is no list. ``path``: of the list; None: DEFAULT_LIST."""
    return list(_load_list(path).NAMES) if _find_list(path) else []


def load(spec, batch, list_path=None, shape=None):
    """Returns the Target that ``spec`` names. ``shape``: of one input without the batch, or None.

    Raises BadTarget, and any exception of the user's function.
    """
    if ":" in spec:
        model, inputs = _call_function(spec, batch, shape)
    else:
        model, inputs = _build_listed(spec, batch, list_path)
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    if not isinstance(model, torch.nn.Module):
        raise BadTarget(f"{spec} gives {type(model).__name__} instead of a torch.nn.Module")
    if not inputs or any(not isinstance(x, torch.Tensor) or x.dim() == 0 for x in inputs):
        raise BadTarget(f"{spec} must give tensors as inputs, whose first size is the batch")
    return Target(spec, model.eval(), inputs)


def _call_function(spec, batch, shape):
    where, _, name = spec.rpartition(":")
    function = getattr(_load_module(where), name, None)
    if not callable(function):
        raise BadTarget(f"{where} has no function {name}")
    torch.manual_seed(0)
    result = _call(spec, function, batch)
    if not isinstance(result, torch.nn.Module):
        return result
    if shape is None:
        raise BadTarget(f"{spec} gives no inputs; say the shape of one, such as --shape 3,224,224")
    generator = torch.Generator().manual_seed(1)
    return result, torch.randn((batch, *shape), generator=generator)


def _call(spec, function, batch):
    """Calls the user's function with the batch: as the argument `batch`, else as the only argument without a default.

    A class is called without arguments, unless it has an argument `batch`: its first argument has another meaning.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # raised for some functions that are written in C
        parameters = []
    if any(p.name == "batch" and p.kind != p.POSITIONAL_ONLY for p in parameters):
        return function(batch=batch)
    needed = [
        p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]  # fmt: skip
    if not needed:
        return function()
    if len(needed) > 1 or needed[0].kind == needed[0].KEYWORD_ONLY or inspect.isclass(function):
        names = ", ".join(p.name for p in needed)
        raise BadTarget(f"{spec} needs {names}: write a function(batch) that calls it")
    return function(batch)


def _build_listed(name, batch, path):
    net = find_listed(name, path)
    return net.model, net.inputs(batch)


def find_listed(name, path):
    """Returns what the list's build(name) returns. Raises BadTarget."""
    if not _find_list(path):
        raise BadTarget(
            f"{name}: there is no list of networks at {path or DEFAULT_LIST}; write module:function"
        )
    try:
        return _load_list(path).build(name)
    except (KeyError, AttributeError):
        raise BadTarget(f"{name} is not on the list {path or DEFAULT_LIST}") from None


def _find_list(path):
    return Path(path or DEFAULT_LIST).is_file()


def _load_list(path):
    return _load_module(str(path or DEFAULT_LIST))


def _load_module(where):
    """Imports a module by its name, also from the working directory, or by the path of its file. Raises BadTarget."""
    if not where.endswith(".py"):
        sys.path.insert(0, "")
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise BadTarget(f"{where}: {error}") from None
    path = Path(where)
    if not path.is_file():
        raise BadTarget(f"there is no file {where}")
    name = path.stem
    if name not in sys.modules:
        found = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(found)
        found.loader.exec_module(sys.modules[name])
    return sys.modules[name]

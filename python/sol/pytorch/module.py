"""The module that ``sol.optimize`` returns."""

import copy
import weakref

import torch
from torch.compiler import is_dynamo_compiling

from sol.pytorch.generation import Generation
from sol.pytorch.watch import GLOBAL_HOOKS, OWN_HOOKS

# SHARED: dicts of nn.Module that both modules use. OWN: attributes that each of the two has itself.
SHARED = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")
OWN = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl", "forward"}


class Optimized(torch.nn.Module):
    """A module that computes what ``original`` computes, with the same parameter objects.

    It uses the original's dicts of parameters, buffers and submodules, so a change of one module is a change of both. All
    other attributes and methods, such as ``training``, ``state_dict`` and ``to``, are those of the original.
    """

    def __init__(self, original, engine):
        _attach(self, vars(torch.nn.Module()), original, engine)

    def __call__(self, *args, **kwargs):
        shortcut = self._engine.shortcut
        if shortcut is not None and not kwargs and not is_dynamo_compiling():
            result = shortcut.run(args, self.__dict__)
            if result is not NotImplemented:
                return result
        if any(GLOBAL_HOOKS) and not any(vars(self)[name] for name in OWN_HOOKS):
            return self.forward(*args, **kwargs)  # the original's call runs the global hooks, once
        return super().__call__(*args, **kwargs)

    def forward(self, *args, **kwargs):
        return self._engine(args, kwargs)

    # ---- The original's ----

    @property
    def training(self):
        return self._original.training

    @training.setter
    def training(self, mode):
        self._original.training = mode

    def __getattr__(self, name):
        # During a copy or unpickling `_original` is not set yet.
        original = vars(self).get("_original")
        if original is None:
            raise AttributeError(name)
        value = getattr(original, name)
        return self._generation() if name == "generate" and callable(value) else value

    def _generation(self):
        """Returns the original's method generate, whose calls of the forward run in SOL."""
        if "_generate" not in vars(self):
            vars(self)["_generate"] = Generation(self._original)
        return vars(self)["_generate"]

    def __setattr__(self, name, value):
        if name in OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._original, name, value)

    def __delattr__(self, name):
        if name in vars(self):
            object.__delattr__(self, name)
        else:
            delattr(self._original, name)

    def train(self, mode=True):
        self._original.train(mode)
        return self

    def state_dict(self, *args, **kwargs):
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        return self._original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        return self._original._load_from_state_dict(*args, **kwargs)

    def _apply(self, *args, **kwargs):
        self._original._apply(*args, **kwargs)
        return self

    def apply(self, function):
        self._original.apply(function)
        return self

    def __dir__(self):
        return sorted({*super().__dir__(), *dir(self._original)})

    def __repr__(self):
        return f"sol.optimize({self._original!r})"

    # ---- Copies ----

    def __deepcopy__(self, memo):
        result = type(self).__new__(type(self))
        memo[id(self)] = result
        original = copy.deepcopy(self._original, memo)
        own = copy.deepcopy(_own_state(self), memo)
        _attach(result, own, original, self._engine.clone(original))
        return result

    def __getstate__(self):
        """Compiled code is not pickled: after loading, it is compiled again or taken from the kernel cache."""
        engine = self._engine
        described = engine.specs, engine.structure, engine.options
        return {"own": _own_state(self), "original": self._original, "engine": described}

    def __setstate__(self, state):
        from sol.pytorch.engine import Engine

        original = state["original"]
        _attach(self, state["own"], original, Engine(original, *state["engine"]))


def _own_state(module):
    """Returns the attributes that the optimized module does not share with the original, such as hooks."""
    state = vars(module)
    return {name: state[name] for name in OWN if name in state and name not in SHARED}


def _attach(module, own, original, engine):
    """Fills a module's __dict__ directly: nn.Module.__init__ would create new dicts of parameters and submodules."""
    state = vars(module)
    state.update((name, value) for name, value in own.items() if name != "training")
    # Read with getattr: in TorchScript modules these names are properties, not entries of __dict__.
    state.update((name, getattr(original, name)) for name in SHARED)
    state["_original"] = original
    state["_engine"] = engine
    engine.wrapper = weakref.ref(module)


def engine_of(module):
    """Returns the Engine of an optimized module. Raises TypeError for any other."""
    if not isinstance(module, Optimized):
        raise TypeError(f"expected what sol.optimize returned, got {type(module).__name__}")
    return vars(module)["_engine"]

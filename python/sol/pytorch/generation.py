"""generate() of an optimized module: a sequence that grows by one word per call of the forward, as in transformers.

    optimized.generate -> a twin of the original, whose forward torch.compile runs in SOL -> the original's own generate

The method calls its own module, with a key/value cache that grows. Bound to the original it would run in PyTorch. The calls have
other inputs than those given to sol.optimize, so torch.compile makes a graph for each form: the first words, and one more word.
"""

import copy
import types

import torch


class Generation:
    """The method ``generate`` of an optimized module. ``compiled``: the forward of the twin."""

    def __init__(self, original):
        self._original = original
        self._twin = copy.copy(original)  # with the same parameters and submodules
        forward = vars(original).get("forward")
        if forward is None:
            forward = types.MethodType(type(original).forward, self._twin)
        self.compiled = torch.compile(forward, backend="sol")
        self._twin.forward = self.compiled

    def __call__(self, *args, **kwargs):
        state = {name: x for name, x in vars(self._original).items() if name != "forward"}
        vars(self._twin).update(state)  # also what was set since, such as ``training``
        return self._twin.generate(*args, **kwargs)

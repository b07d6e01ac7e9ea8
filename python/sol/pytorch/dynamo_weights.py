"""The weights of a graph of Dynamo: they are arguments of each call. SOL packs them once per set of tensors.

Piece -> Packed.holds -> the packed weights; or the Shortcut of a Packed, which checks the same and runs the call
"""

import operator
import weakref

import torch

from sol import _core
from sol.pytorch.shortcut import make_graph_shortcut
from sol.pytorch.watch import find_tensor, make_weight_guard


class Packed:
    """Packed weights of a graph, for one set of tensors. It holds no reference to the tensors, as Dynamo never frees a graph.

    The guard watches detached tensors of the same memory, which share the version counters; so an optimizer's step is noticed.
    ``shortcut``: for calls with these weights, or None.
    """

    def __init__(self, weights, tensors, plan, part):
        self.weights = weights
        self.shortcut = None
        self._shortcut_for = None
        self._refs = [weakref.ref(x) for x in tensors]
        self._addresses = [x.data_ptr() for x in tensors]
        self._guard = make_weight_guard([find_tensor(part, name) for name in plan.kept])

    def holds(self, tensors):
        """Whether these are the tensors, in the same memory and with the same values."""
        are_same = all(map(operator.is_, [ref() for ref in self._refs], tensors))
        return (
            are_same
            and list(map(torch.Tensor.data_ptr, tensors)) == self._addresses
            and not self._guard.check()
        )

    def renew_shortcut(self, split, entry, sizes, numbers, selector):
        """Makes the shortcut for calls like one that has just run in SOL, with the key of sizes ``sizes``, or keeps it."""
        entry.plan.note_batch(sizes)
        known = _core.threads(), selector, entry.autocast
        if known == self._shortcut_for and not (self.shortcut and self.shortcut.is_refused):
            return
        self._shortcut_for = known
        args = _describe_args(split, zip(self._refs, self._addresses), numbers)
        self.shortcut = args and make_graph_shortcut(
            self._guard, args, entry.plan, self.weights, entry.autocast, selector
        )


def _describe_args(split, weights, numbers):
    """Returns what _core.Shortcut must know of each argument of a graph; None if calls may differ in more than a batch size."""
    if not set(split.sizes).isdisjoint(split.tensors) or split.names not in ([], ["n"]):
        return None
    known = dict.fromkeys(split.sizes)
    known.update(zip(split.tensors, split.specs))
    known.update(zip(split.weights, weights))
    known.update((i, (x, None)) for i, x in zip(split.numbers, numbers))
    return [known[i] for i in range(len(known))]

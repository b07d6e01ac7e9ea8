"""A piece: one of the graphs of a forward that Dynamo has divided, as the function that Dynamo calls.

    dynamo.py -> Piece -> at its first call: head and split -> capture, import, compile -> an Entry with a Plan

Dynamo's guards decide at each call whether a graph is valid. What they do not check, a Piece checks itself: modes of PyTorch, and
values of weights.

Invariant: a Piece never fails where PyTorch would not. Each call that SOL cannot run runs as Dynamo's graph, in PyTorch, and is
counted with its reason.
"""

import functools
import traceback
import weakref
from time import perf_counter
from typing import NamedTuple

import torch
from torch.jit import is_tracing

from sol import device, log
from sol.pytorch import dynamo_graph, dynamo_training
from sol.pytorch.aliases import Caller
from sol.pytorch.audit import CannotCapture
from sol.pytorch.builder import Unsupported
from sol.pytorch.capture import LOCK, capture_graph
from sol.pytorch.dynamo_frame import find_break, name_graph
from sol.pytorch.dynamo_head import find_head
from sol.pytorch.dynamo_weights import Packed
from sol.pytorch.engine import outside, without_collections
from sol.pytorch.importer import ANCHORS
from sol.pytorch.inputs import check_tensor
from sol.pytorch.modes import autocast_type, find_foreign_mode
from sol.pytorch.nodes import describe_graph
from sol.pytorch.plan import compile_plan, follow_threads
from sol.pytorch.selector import is_on, make_selector

# A graph without ANCHORS is compiled if it has so many layers that compute: Dynamo makes many graphs of a few operators around
# Python, and the call of a program takes as long as some of PyTorch's pointwise operators on small tensors.
MIN_LAYERS = 4
# The number of plans, or reasons, for one set of numbers. Some graphs can only be compiled for each size.
MAX_SIZES = 8
# The number of sets of numbers that a graph is compiled for.
MAX_NUMBERS = 4
# What a shortcut compares of a module: nothing, as Dynamo's guards check it.
NO_MODULE = {}
# Stands for an integer among the inputs of a call: the program reads the integer as a size, and no elements.
UNREAD = torch.empty(1, dtype=torch.bool)


class TooSmall(Unsupported):
    """SOL would compute too little of a graph. ``is_final``: for any sizes; else as it would be compiled for each size."""

    def __init__(self, text, is_final):
        super().__init__(text)
        self.is_final = is_final


class Entry(NamedTuple):
    """A plan, or the reason why there is none.

    ``numbers``: key of the autocast, the Mode and the numbers for which it applies; ``sizes``: the only open sizes for which it applies; None: those that the
    plan admits, or all. ``packed``: {ids of weights: Packed}. With a TrainingPlan: {ids: packed weights}, and ``places``, of
    dynamo_training.find_places.
    """

    plan: object
    reason: str
    numbers: tuple
    sizes: object = None
    selector: object = None
    packed: object = None
    places: object = None

    @property
    def autocast(self):
        """The autocast for which it applies, as modes.autocast_type returns it."""
        return self.numbers[0]

    def admits(self, numbers, sizes):
        """Whether this entry applies to a call."""
        if self.numbers != numbers:
            return False
        if self.sizes is not None or self.plan is None:
            return self.sizes in (None, sizes)
        return self.plan.batches.admit(sizes)

    def key(self, sizes):
        """Returns the key of open sizes for the plan: it has none if it is for ``sizes`` only."""
        return None if self.sizes is not None else sizes


class Fallback(NamedTuple):
    """Instead of results: PyTorch must run the call. ``is_mode``: the reason is a mode of this call."""

    reason: str
    is_mode: bool = False


class Piece:
    """One graph of Dynamo, as the function that Dynamo calls. ``name``: for messages. ``refusal``: why SOL never runs it, or None.
    ``end``: the Break at its end, or None. ``is_strict``: NotImplementedError instead of a fallback; SOL then computes everything.

    SOL captures the graph at its first call, not while Dynamo compiles: a capture needs PyTorch's state to itself.
    """

    def __init__(self, backend, module, inputs, is_strict=False):
        self.name = name_graph(module)
        self.end = find_break(module)
        self.refusal = self._split = self._head = None
        self.parameters = list(module.parameters())
        self._backend = backend
        self._target = backend.options.target or device.get()
        self._is_strict = is_strict
        self._module = module
        self._entries = []
        self._shortcut = None  # of the last call that SOL ran
        self._is_empty = False  # only views and sizes
        self._is_small = False  # it does not pay to compile it for each size
        self._open_refusal = None  # the reason why no plan for open sizes exists
        try:
            are_weights = list(map(_is_weight, inputs))
            self._head = find_head(module)
            if self._head:
                module, n = self._head.remaining, self._head.n_inputs
                are_weights = [i < n and are_weights[i] for i in self._head.inputs]
            self._split = dynamo_graph.split(module, are_weights)
            self._is_empty = not self._split.n_roots
        except Exception as error:
            self.refusal = str(error) if isinstance(error, Unsupported) else _describe(error)

    @property
    def _options(self):
        return self._backend.options._replace(target=self._target)

    @property
    def _remaining(self):
        """The graph without its head."""
        return self._head.remaining if self._head else self._module

    @property
    def pays(self):
        """Whether there is a plan for this graph."""
        return any(x.plan for x in self._entries)

    @property
    def reason(self):
        """Why PyTorch runs the graph, or None."""
        if self._is_empty:
            return "it computes only views and sizes"
        reasons = [x.reason for x in self._entries if x.reason]
        return None if self.pays else self.refusal or next(iter(reasons), None)

    def hosts(self):
        """Returns the HostNodes of the first plan."""
        return next((list(x.plan.hosts) for x in self._entries if x.plan), [])

    def refresh(self):
        """Drops all packed weights. On a device that the user has chosen also the plans: one that has failed is opened again."""
        self._shortcut = None
        for entry in self._entries:
            if entry.plan:
                entry.packed.clear()
        if self._target.name:
            self._entries = []

    # ---- A call ----

    def run(self, *args):
        """Runs one call, in SOL if possible, else as Dynamo's graph."""
        shortcut = self._shortcut
        if shortcut is not None:
            roots = shortcut.run(args, NO_MODULE)
            if roots is not NotImplemented:
                return self._finish(roots, args)
        if self._is_empty:
            return self._module(*args)
        if self.refusal:
            return self._fall_back(self.refusal, False, args)
        if is_tracing():
            return self._module(*args)
        reason = find_foreign_mode(args)
        if reason:
            return self._fall_back(reason, True, args)
        remaining = self._head.convert(args) if self._head else args
        try:
            result = self._run_in_sol(remaining)
        except (IndexError, ValueError) as error:
            if self._is_strict:
                raise
            result = Fallback(_describe_refusal(error))
        return self._fall_back(*result, args) if isinstance(result, Fallback) else result

    def _run_in_sol(self, args):
        """Runs one call of the graph without its head. Returns the results, or a Fallback."""
        split = self._split
        mode = dynamo_training.find_mode(split, args)
        reason = dynamo_training.find_refusal(split, mode, self.parameters)
        if reason:
            return Fallback(reason, mode is not None)
        try:
            tensors = [
                check_tensor(spec, args[i]) if isinstance(args[i], torch.Tensor) else UNREAD
                for spec, i in zip(split.specs, split.tensors)
            ]
        except (TypeError, ValueError) as error:
            return Fallback(str(error))
        sizes = self._find_sizes(args)
        numbers = (autocast_type(), mode, *((type(x), repr(x)) for x in self._numbers(args)))
        entry = self._find_entry(numbers, sizes, args)
        sizes = entry.key(sizes)
        reason = entry.reason or entry.plan.refusal(sizes)
        if reason:
            return Fallback(reason, mode is not None)
        return (self._run if mode is None else self._train)(entry, tensors, sizes, args)

    def _train(self, entry, tensors, sizes, args):
        """Runs one call with gradients by ``entry``. ``tensors``: contiguous. Returns the results, or a Fallback."""
        given = [args[i] for i in self._split.weights]
        key = tuple(map(id, given))
        if key not in entry.packed:
            self._note_weights(entry, key, given)
        try:
            packed = dynamo_training.pack(entry, key, given)
            reason = entry.plan.find_overlap_of(packed, args)
            if not reason:
                return self._finish(entry.plan.train(packed, tensors, sizes), args)
        except (IndexError, ValueError) as error:
            reason = _describe_refusal(error)
        return Fallback(reason, True)

    def _run(self, entry, tensors, sizes, args):
        """Runs one call by ``entry``. ``tensors``: contiguous. Returns the results, or a Fallback."""
        packed, selector = self._find_packed(entry, args), entry.selector
        if isinstance(packed, str):
            return Fallback(packed)
        caller = self._caller(args)
        reason = entry.plan.find_overlap(packed.weights, caller.tensors, caller)
        if reason:
            return Fallback(reason, True)
        follow_threads()

        def run_sol():
            return self._finish(entry.plan.run(packed.weights, tensors, sizes, caller), args)

        selector = selector if is_on() else None
        if selector is None or selector.has_won(sizes):
            result = run_sol()
        elif reason := selector.find_reason(sizes):
            return Fallback(reason)
        else:
            size = functools.partial(entry.plan.memory, sizes)
            result = selector.call(
                sizes,
                lambda: sum(size().values()),
                run_sol,
                lambda: self._remaining(*args),
                packed.shortcut,
            )
        if not (self._head or entry.sizes or entry.plan.writes):
            packed.renew_shortcut(self._split, entry, sizes, self._numbers(args), selector)
            self._shortcut = packed.shortcut
        return result

    def _caller(self, args):
        """Returns the Caller of a call. No result is a tensor of the module: such results are not among the roots."""
        split = self._split
        names = [spec.name for spec in split.specs]
        given = [args[i] for i in split.tensors]
        return Caller(None, names, [x if isinstance(x, torch.Tensor) else UNREAD for x in given])

    def _finish(self, roots, args):
        """Returns all results of the graph."""
        rest = self._split.rest
        return tuple(roots) if rest is None else rest(*args, *roots)

    def _fall_back(self, reason, is_mode, args):
        if self._is_strict and not is_mode:
            raise NotImplementedError(f"{self.name}: {reason}")
        self._backend.note_fallback(self, reason, is_mode)
        return self._module(*args)

    def _find_sizes(self, args):
        """Returns the key of the open sizes: the batch size, if it is the only one. Raises ValueError if sizes with one name differ."""
        split = self._split
        found = dict.fromkeys(split.names)
        for (i, d), name in split.dims.items():
            size = _shape(args[split.tensors[i]])[d]
            if found[name] not in (None, size):
                raise ValueError(
                    f"two of its open sizes are {found[name]} and {size}: they were equal before"
                )
            found[name] = size
        values = tuple(found.values())
        return values[0] if split.names == ["n"] else values or None

    # ---- Plans ----

    def _find_entry(self, numbers, sizes, args):
        for entry in self._entries:
            if entry.admits(numbers, sizes):
                return entry
        with LOCK, without_collections():
            for entry in self._entries:
                if entry.admits(numbers, sizes):
                    return entry
            entry = self._make_entry(numbers, sizes, args)
            self._entries = [*self._entries, entry]
            return entry

    def _make_entry(self, numbers, sizes, args):
        """Returns a new Entry for a call with these arguments. Any exception becomes a reason."""
        before = [x for x in self._entries if x.numbers == numbers]
        if len(before) > MAX_SIZES:
            return Entry(None, outside(sizes), numbers, sizes)
        if not before and len({x.numbers for x in self._entries}) >= MAX_NUMBERS:
            return Entry(None, "a number among its inputs varies", numbers)
        reason = self._open_refusal
        if not reason:
            plan, reason = self._try_plan(sizes, args, numbers[1])
            if plan:
                return self._with_plan(plan, numbers, args)
            if sizes is None:
                return Entry(None, reason, numbers)
            self._open_refusal = reason
            log.say(log.debug, f"{self.name} has no plan for open sizes: {reason}")
        if self.refusal is None and not self._is_small:
            plan, _ = self._try_plan(None, args, numbers[1])
            if plan:
                return self._with_plan(plan, numbers, args, sizes)
        return Entry(None, reason, numbers, sizes)

    def _with_plan(self, plan, numbers, args, sizes=None):
        mode = numbers[1]
        part = self._part(args, mode) if mode else None
        decides = not (plan.writes or self._is_strict or mode)
        selector = make_selector(self._options) if decides else None
        places = dynamo_training.find_places(plan, part) if mode else None
        return Entry(plan, None, numbers, sizes, selector, {}, places)

    def _try_plan(self, sizes, args, mode):
        """Returns (Plan, None), or (None, reason). ``sizes``: None: for the sizes of ``args`` only. Any exception becomes a reason."""
        try:
            return self._make_plan(sizes, args, mode), None
        except TooSmall as error:
            self._is_small = True
            if error.is_final:
                self.refusal = str(error)
            return None, str(error)
        except (CannotCapture, Unsupported) as error:
            return None, str(error)
        except Exception as error:
            log.say(log.debug, traceback.format_exc())
            return None, _describe(error)

    def _make_plan(self, sizes, args, mode):
        split = self._split
        start = perf_counter()
        part = self._part(args, mode)
        shapes = [_shape(args[i]) for i in split.tensors]
        specs, named, is_fixed = split.specs, (split.names, split.dims), sizes is None
        if is_fixed:
            specs = [x._replace(shape=shape) for x, shape in zip(specs, shapes)]
            named = [], {}
        captured = capture_graph(part, specs, shapes, sizes, named, mode)
        times = [start, perf_counter()]
        name = f"{self._backend.name} {self.name}"
        options = self._options._replace(name=name, batch_hint=self._hint(named, sizes))
        needs_anchor = is_fixed and bool(split.names)
        check = functools.partial(_check_worth, needs_anchor=needs_anchor)
        check, partial = (None, False) if self._is_strict else (check, True)
        if mode:
            weights = part.weights()
            return dynamo_training.make_plan(captured, part, weights, mode, options, times, check)
        graph = describe_graph(captured.exported)
        return compile_plan(captured, graph, part, options, partial, times, check)

    def _hint(self, named, sizes):
        """Returns the batch size to tune for: the one that the user gave, or the one of this call; None if it is not open."""
        if named[0][:1] != ["n"]:
            return None
        batch = sizes[0] if isinstance(sizes, tuple) else sizes
        return self._backend.options.batch_hint or batch

    def _part(self, args, mode=None):
        split = self._split
        given = [args[i] for i in split.weights]
        weights = given if mode else [x.detach() for x in given]
        return dynamo_graph.Part(split, weights, self._numbers(args), mode is not None)

    def _numbers(self, args):
        """Returns the numbers of a call. A float may be passed as a tensor."""
        given = [args[i] for i in self._split.numbers]
        return [x.item() if isinstance(x, torch.Tensor) else x for x in given]

    # ---- Weights ----

    def _find_packed(self, entry, args):
        """Returns the Packed of the weights among the arguments; packs them if they are new or have changed. Or the reason why SOL
        must not run the call."""
        given = [args[i] for i in self._split.weights]
        key = tuple(map(id, given))
        packed = entry.packed.get(key)
        if packed is not None and packed.holds(given):
            return packed
        with LOCK:
            part = self._part(args)
            try:
                weights = entry.plan.make_weights(part)
            except ValueError as error:
                return str(error)
            packed = Packed(weights, given, entry.plan, part)
            self._note_weights(entry, key, given)
            entry.packed[key] = packed
        return packed

    def _note_weights(self, entry, key, given):
        """Notes that there are packed weights of the tensors ``given``, which live as long as these."""
        self._backend.note_caller(self)
        if key not in entry.packed and given:
            ref = weakref.ref(self)
            weakref.finalize(given[0], _forget, ref, entry.packed, key).atexit = False


def _forget(ref, all_packed, key):
    """Frees the packed weights of tensors that are dead. ``ref``: weak reference to the Piece. ``all_packed``: of an Entry."""
    packed, piece = all_packed.pop(key, None), ref()
    if piece and piece._shortcut and piece._shortcut is getattr(packed, "shortcut", None):
        piece._shortcut = None


# ---- Facts of graphs ----


def _is_weight(value):
    """Whether Dynamo has marked an input as one that stays: a parameter or buffer of a module."""
    static = getattr(value, "_dynamo_static_input_type", None)
    return isinstance(value, torch.nn.Parameter) or static is not None


def _shape(value):
    """Returns the shape of a tensor. An integer stands for a tensor of that size."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else (value,)


def _check_worth(imported, needs_anchor=False):
    """Raises TooSmall for a graph that is too small. ``needs_anchor``: layers without ANCHORS do not suffice, however many."""
    kinds = {record.kind for record in imported.builder.records}
    if (imported.n_layers < MIN_LAYERS or needs_anchor) and kinds.isdisjoint(ANCHORS):
        is_final = imported.n_layers < MIN_LAYERS
        raise TooSmall(f"SOL would compute only {imported.n_layers} operations", is_final)


def _describe_refusal(error):
    """Returns the reason for a call whose data SOL has refused. The call has changed nothing (struct update in src/ir/ir.h).

    The reason has no values, so that bad data cannot make the table of reasons grow. PyTorch raises its own exception.
    """
    bad_index = isinstance(error, IndexError)
    return "an index in the data is out of range" if bad_index else str(error)


def _describe(error):
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

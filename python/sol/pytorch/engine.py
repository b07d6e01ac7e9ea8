"""Decides at every call who runs a model: SOL or PyTorch, and keeps count of why.

    Entry     a plan with its weights, or the reason why there is none
    State     a module as it was seen last, and its Entry for each set of constants
    Engine    replaces its State when the module's guard reports a change

Ordinary calls after the first do not come here: they take the engine's shortcut.

A call works on the State that it found; another thread may replace it meanwhile. One lock covers
snapshots, captures and packing.
"""

import collections
import contextlib
import gc
import inspect
import threading

# What a call needs has a name of its own here: after a network's run each look into another module's dict waits for memory.
import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.jit import is_tracing

from sol import log
from sol._core import threads
from sol.pytorch.builder import Unsupported
from sol.pytorch.capture import CannotCapture
from sol.pytorch.inputs import (
    PLAIN_TENSORS,
    ConstantSpec,
    TensorSpec,
    check_constant,
    check_tensor,
    find_batch,
)
from sol.pytorch.plan import follow_threads, make_plan
from sol.pytorch.race import make_race
from sol.pytorch.shortcut import make_shortcut
from sol.pytorch.watch import TRAINING, Snapshot

# Captures of one model, for changed attributes or numbers, that gave another graph, and that gave the
# same one. More would cost more than SOL saves.
MAX_CAPTURES = 16
MAX_CHECKS = 100

Options = collections.namedtuple("Options", "name batch_hint strict")


class Entry:
    """A plan, or the reason why there is none. ``weights`` are made at the first call. ``race``: its Race
    against PyTorch; None where SOL runs whatever that costs."""

    def __init__(self, plan, reason=None, race=None):
        self.plan = plan
        self.reason = reason
        self.race = race
        self.weights = None

    def without_weights(self):
        return Entry(self.plan, self.reason, self.race)


class State:
    """A module as it was seen last.

    ``snapshot``: now. ``origin``: the snapshot for which ``entries`` {constants: Entry} were captured;
    the two differ in values and modes only. ``reason``: why SOL must not run.
    """

    def __init__(self, snapshot, origin=None, entries=None):
        self.snapshot = snapshot
        self.guard = snapshot.guard
        self.reason = snapshot.reason or snapshot.foreign_tensor()
        self.origin = origin or snapshot
        self.entries = entries or {}

    def forgive(self, before, after):
        """What changed during a capture: torch.export may leave equal but other objects in a module's
        attributes, as in torch.nn.LSTM's, and must not be taken for a change of the model."""
        if after.differences(before) <= after.attribute_names():
            self.snapshot = self.origin = after
            self.guard = after.guard


class Engine:
    """Runs ``module``, which takes what ``specs`` and ``structure`` describe.

    ``fallbacks`` counts calls that ran in PyTorch by reason, ``recompiles`` captures after the first.
    ``wrapper`` is a weak reference to the module that calls this; ``shortcut`` makes its ordinary calls,
    or is None.
    """

    def __init__(self, module, specs, structure, options):
        self.module = module
        self.specs = specs
        self.structure = structure
        self.options = options
        self.fallbacks = collections.Counter()
        self.recompiles = 0
        self._n_captures = 0
        self._n_checks = 0
        self._previous = Entry(None)  # of the module before it changed: the graph may be the same
        self._lock = threading.RLock()
        self._state = None
        self.wrapper = None
        self.shortcut = None
        self._shortcut_for = None
        self._tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
        self._is_flat = all(child.is_leaf for child in structure.children)
        self._only_tensors = self._is_flat and len(self._tensors) == len(specs)
        self._constants = [spec.value for spec in specs if isinstance(spec, ConstantSpec)]
        self._key = make_key(self._constants)

    def prepare(self):
        """Compiles for the declared inputs. Raises ValueError when the model refuses them, and with
        ``strict`` NotImplementedError when it must run in PyTorch."""
        with self._lock, without_collections():
            self._state = State(Snapshot(self.module))
            entry = self._make_entry(self._state, self._key, self._constants)
        reason = entry.reason or self._state.snapshot.find_hook()
        if reason and self.options.strict:
            raise NotImplementedError(reason)
        if reason:
            self._log(reason)

    def clone(self, module):
        """An engine for a deep copy of the module; the plans are shared, as they hold names only."""
        copy = Engine(module, self.specs, self.structure, self.options)
        state = self._state
        if state is not None:
            entries = {key: entry.without_weights() for key, entry in state.entries.items()}
            copy._state = State(Snapshot(module), entries=entries)
            # The module may have changed since its last call, and then the plans are not its own.
            if copy._state.snapshot.differences_in_facts(state.origin):
                copy._state = None
        return copy

    def refresh(self):
        """Captures and packs everything anew at the next call."""
        with self._lock:
            self._state = self.shortcut = self._shortcut_for = None
            self._previous = Entry(None)
            self._n_captures = self._n_checks = 0

    def reasons(self):
        """{reason: number of calls that ran in PyTorch}; a reason that no call met yet has 0."""
        state = self._state
        entry = state.entries.get(self._key) if state else None
        known = [entry.reason] if entry and entry.reason else []
        return {**dict.fromkeys(known, 0), **self.fallbacks}

    def find_run(self, args):
        """(plan, weights, tensors, batch): what SOL would run in an inference call with these inputs.

        Raises RuntimeError with the reason when PyTorch would run it.
        """
        with torch.no_grad():
            state = self._state
            if state is None or state.guard.check():
                state = self._update(state)
            leaves = self._flatten(args, {})
            tensors, constants = self._check(leaves)
            self._refuse_run(state.reason or _mode_reason(state.snapshot, leaves))
            key = make_key(constants) if constants else self._key
            entry = state.entries.get(key) or self._make_entry(state, key, constants)
            batch = find_batch(self._tensors, tensors)
            self._refuse_run(entry.reason or entry.plan.refusal(batch))
            return entry.plan, entry.weights or self._make_weights(entry), tensors, batch

    def find_plan(self):
        """The plan for the declared inputs. Raises RuntimeError with the reason when there is none."""
        state = self._state
        if state is None or state.guard.check():
            state = self._update(state)
        self._refuse_run(state.reason if state.reason != TRAINING else None)
        entry = state.entries.get(self._key) or self._make_entry(state, self._key, self._constants)
        self._refuse_run(entry.reason)
        return entry.plan

    def _refuse_run(self, reason):
        if reason:
            raise RuntimeError(f"{self.options.name} runs in PyTorch: {reason}")

    # ---- A call ----

    def __call__(self, args, kwargs):
        """One forward, by SOL if it may, else by PyTorch."""
        if is_compiling() or is_tracing():
            return self.module(*args, **kwargs)
        state = self._state
        if state is None or state.guard.check():
            state = self._update(state)
        if state.reason:
            return self._fall_back(state.reason, args, kwargs, state.reason == TRAINING)
        entry = state.entries.get(self._key)
        if entry is not None and entry.reason and self._only_tensors:
            return self._fall_back(entry.reason, args, kwargs)
        leaves = args if self._is_flat and not kwargs else self._flatten(args, kwargs)
        reason = _mode_reason(state.snapshot, leaves)
        if reason:
            return self._fall_back(reason, args, kwargs, is_mode=True)
        return self._run(state, leaves, args, kwargs)

    def _run(self, state, leaves, args, kwargs):
        tensors, constants = self._check(leaves)
        key = make_key(constants) if constants else self._key
        entry = state.entries.get(key) or self._make_entry(state, key, constants)
        if entry.reason:
            return self._fall_back(entry.reason, args, kwargs)
        batch = find_batch(self._tensors, tensors)
        reason = entry.plan.refusal(batch)
        if reason:
            return self._fall_back(reason, args, kwargs)
        weights = entry.weights or self._make_weights(entry)
        follow_threads()
        if entry.race is not None and batch not in entry.race.won and entry.race.is_on():
            return self._race(entry, weights, tensors, batch, args, kwargs)
        result = entry.plan.run(weights, tensors, batch)
        if self._only_tensors and leaves is args:
            self._make_shortcut(state, entry.plan, weights, batch)
        return result

    def _make_shortcut(self, state, plan, weights, batch):
        """Lets the next call like this one, which ran by SOL, do without the engine."""
        known = state.guard, weights, threads()
        plan.note_batch(batch)
        if self._shortcut_for == known and not self.shortcut.is_refused:
            return
        wrapper = self.wrapper and self.wrapper()
        if wrapper is None or not self._lock.acquire(blocking=False):
            return
        # Only with the lock it is certain that nobody has replaced the state meanwhile.
        if self._state is state:
            self.shortcut = make_shortcut(wrapper, state.guard, self.specs, plan, weights)
            self._shortcut_for = known if self.shortcut else None
        self._lock.release()

    def _race(self, entry, weights, tensors, batch, args, kwargs):
        """A call whose batch size is not SOL's yet, or no longer."""
        plan, reason = entry.plan, entry.race.find_reason(batch)
        if reason:
            return self._fall_back(reason, args, kwargs)
        return entry.race.call(
            batch,
            lambda: sum(plan.memory(batch).values()),
            lambda: plan.run(weights, tensors, batch),
            lambda: self.module(*args, **kwargs),
            self.module,
        )

    def _flatten(self, args, kwargs):
        """The call's leaves in the order of ``specs``; keyword arguments by the model's signature."""
        if kwargs:
            bound = inspect.signature(self.module.forward).bind(*args, **kwargs)
            args = bound.args
            if bound.kwargs:
                raise ValueError(f"sol.optimize was not told of the inputs {list(bound.kwargs)}")
        if len(args) != len(self.structure.children):
            self._refuse_number(len(args))
        return self.structure.leaves(tuple(args))

    def _refuse_number(self, n):
        raise ValueError(f"expected {len(self.structure.children)} inputs, got {n}")

    def _check(self, leaves):
        """(contiguous tensors, constants); raises TypeError or ValueError."""
        if len(leaves) != len(self.specs):
            self._refuse_number(len(leaves))
        if self._only_tensors:
            return list(map(check_tensor, self.specs, leaves)), ()
        tensors, constants = [], []
        for spec, leaf in zip(self.specs, leaves):
            if isinstance(spec, TensorSpec):
                tensors.append(check_tensor(spec, leaf))
            else:
                constants.append(check_constant(spec, leaf))
        return tensors, constants

    def _fall_back(self, reason, args, kwargs, is_mode=False):
        """PyTorch's forward, counted. What only SOL cannot do is an error with ``strict``."""
        if self.options.strict and not is_mode:
            raise NotImplementedError(reason)
        self.fallbacks[reason] += 1
        self._log(reason, log.info if is_mode else log.warn)
        return self.module(*args, **kwargs)

    def _log(self, reason, level=log.warn):
        text = f"{self.options.name} runs in PyTorch: {reason}"
        log.say_once(level, (id(self), reason), text)

    # ---- After a change ----

    def _update(self, old):
        """A State for the module as it is now; plans stay if only values and modes changed."""
        with self._lock:
            if self._state is not old:
                return self._state  # another thread was faster
            new = Snapshot(self.module)
            self._state = State(new) if old is None else self._next_state(old, new)
            return self._state

    def _next_state(self, old, new):
        changed = new.differences(old.origin)
        # Moved to another dtype or device, a model may come back as it was: its plans are kept.
        if not changed or new.foreign_tensor():
            entries = {key: entry.without_weights() for key, entry in old.entries.items()}
            return State(new, old.origin, entries)
        log.say(log.debug, f"{self.options.name} changed: {', '.join(sorted(changed)[:8])}")
        self._previous = old.entries.get(self._key) or self._previous
        return State(new)

    def _make_entry(self, state, key, constants):
        """Captures and compiles for these constants, once."""
        with self._lock:
            if key not in state.entries:
                with without_collections():
                    before = Snapshot(self.module, is_guarded=False)
                    state.entries[key] = self._capture(constants)
                    state.forgive(before, Snapshot(self.module))
            return state.entries[key]

    def _capture(self, constants):
        if self._n_captures >= MAX_CAPTURES or self._n_checks >= MAX_CHECKS:
            return Entry(None, f"the model or its numbers changed more than {MAX_CAPTURES} times")
        previous, values = self._previous, iter(constants)
        specs = [
            spec if isinstance(spec, TensorSpec) else spec._replace(value=next(values))
            for spec in self.specs
        ]
        entry = self._try_plan(specs, previous.plan)
        if (entry.plan, entry.reason) == (previous.plan, previous.reason):
            self._n_checks += 1
            return entry
        self.recompiles += self._n_captures > 0
        self._n_captures += 1
        return entry

    def _try_plan(self, specs, old_plan):
        name, batch_hint, _ = self.options
        try:
            plan = make_plan(self.module, specs, self.structure, name, batch_hint, old_plan)
            return Entry(plan, race=make_race(self.options.strict))
        except (CannotCapture, Unsupported, RuntimeError) as error:
            # RuntimeError, and NotImplementedError which is one, are libsol's.
            return Entry(None, str(error))

    def _make_weights(self, entry):
        with self._lock:
            if entry.weights is None:
                entry.weights = entry.plan.make_weights(self.module)
            return entry.weights


@contextlib.contextmanager
def without_collections():
    """Python's cyclic garbage waits meanwhile: a capture makes so many objects that looking through all of them, again and
    again, would take a good part of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def make_key(constants):
    """Constants as a dict key: 1, 1.0 and True are different, so are 0.0 and -0.0."""
    return tuple((type(x), repr(x)) for x in constants)


def _mode_reason(snapshot, leaves):
    """Why PyTorch's own forward is wanted in this call, or None."""
    if is_grad_enabled() and (
        any(p.requires_grad for p in snapshot.parameters)
        or any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
    ):
        return "a gradient is wanted"
    if is_autocast_enabled("cpu"):
        return "autocast is on"
    if forward_ad._current_level >= 0:
        return "a forward-mode gradient is wanted"
    for leaf in leaves:
        if isinstance(leaf, Tensor) and type(leaf) not in PLAIN_TENSORS:
            return f"an input is a {type(leaf).__name__}"
    return None

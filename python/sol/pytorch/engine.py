"""The engine: decides at each call whether SOL or PyTorch runs a model, and counts fallbacks by reason.

    Optimized.__call__ -> shortcut, if the call is a usual one; else -> Engine.__call__ -> Plan.run or PyTorch's forward

An Engine has the State of a module (state.py) and replaces it when the module's guard reports a change. A call for which
there is no Entry makes one. Usual calls after the first one run in the shortcut and never reach the engine.

Invariant: a State is replaced as a whole. A call uses the State that it has read, even if another thread replaces it
during the call. One lock covers snapshots, captures and prepacks.
"""

import collections
import contextlib
import functools
import gc
import os
import threading
import traceback
import weakref

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling
from torch.jit import is_tracing

from sol import log
from sol._core import threads
from sol.pytorch.aliases import Caller
from sol.pytorch.audit import Broken, CannotCapture, Writes
from sol.pytorch.builder import DependsOnData, Unsupported
from sol.pytorch.capture import LOCK, Refused
from sol.pytorch.fallback import count_fallback
from sol.pytorch.forms import Forms
from sol.pytorch.inputs import TensorSpec, is_empty
from sol.pytorch.modes import (
    IN_FUNC,
    autocast_type,
    find_foreign_mode,
    is_in_func,
    training_mode,
)
from sol.pytorch.plan import describe_sizes, follow_threads, make_plan
from sol.pytorch.reads import Reads
from sol.pytorch.selector import is_on, make_selector
from sol.pytorch.shortcut import make_shortcut
from sol.pytorch.state import Entry, State, next_state
from sol.pytorch.training import Packed, make_training_plan
from sol.pytorch.watch import Snapshot

# Limits for the captures of one model, after which PyTorch runs it, as more captures would take longer than SOL saves:
# captures with a new result, and captures with the same result as before.
MAX_CAPTURES = 16
MAX_CHECKS = 100
# The limit for captures one after the other that are out of date when they end.
MAX_LOST = 3
UNSTEADY = "what its forward reads changes while it is captured"
# The limit for entries of one set of constants, besides the first: they are for batch sizes that the first does not admit.
MAX_RANGES = 4

# ``target``: the device.Target to compile for; None: the one that is chosen when a graph is compiled.
Options = collections.namedtuple("Options", "name batch_hint fullgraph target", defaults=[None])


class Engine:
    """Runs the calls of ``module``, whose inputs ``specs`` and ``structure`` (of a Call) describe.

    ``fallbacks``: {reason: number of calls that PyTorch ran}. ``recompiles``: number of captures with a new result, after
    the first. ``wrapper``: weak reference to the Optimized module. ``shortcut``: the _core.Shortcut for its usual calls, or
    None. ``refusal``: the reason why SOL never runs this module, or None.
    """

    def __init__(self, module, specs, structure, options, refusal=None):
        self.module = module
        self.specs = specs
        self.structure = structure
        self.options = options
        self.refusal = refusal
        self.fallbacks = collections.Counter()
        self.recompiles = 0
        self._said = set()
        self._n_captures = 0
        self._n_checks = 0
        self._n_lost = 0  # number of captures in a row that were out of date when they ended
        self._n_writes = 0  # number of calls whose forward wrote Python state
        self._writes = None  # the last reason of such a call
        self._previous = Entry(None)  # before the last change; its plan stays if the graph is equal
        self._lock = threading.RLock()
        self._state = None
        self.wrapper = None
        self.shortcut = None
        self.device = None  # keeps the device open, which _core.open_device has opened
        self._forms = Forms(module, specs, structure)
        self._key = self._forms.declared.key
        _engines.add(self)

    def prepare(self):
        """Compiles for the declared inputs.

        Raises ValueError when the model refuses them, and with ``fullgraph`` NotImplementedError with the reason when
        PyTorch must run the model.
        """
        reason = self.refusal
        if reason is None:
            with self._lock, without_collections():
                self._state = State(Snapshot(self.module))
                form = self._forms.declared
                self._key = _make_key(form, form.constants)
                entry = self._make_entry(self._state, form, form.constants, must_fit=True)
                if self.options.batch_hint and not entry.reason and not form.has_open_dims:
                    self._find_entry(self._state, form, form.constants, self.options.batch_hint)
            reason = entry.reason or self._state.snapshot.find_hook()
        if reason and self.options.fullgraph:
            raise NotImplementedError(reason)
        if reason:
            in_graphs = self.refusal is None and entry.breaks
            self._log(reason, how="in several graphs" if in_graphs else "in PyTorch")

    def clone(self, module):
        """Returns an engine for ``module``, a deep copy of this engine's module. Both share plans, which hold only names."""
        copy = Engine(module, self.specs, self.structure, self.options, self.refusal)
        copy._forms.others, copy._key = self._forms.others, self._key
        copy.device = self.device
        state = self._state
        if state is None:
            return copy
        copy._previous = state.first(self._key) or copy._previous
        # If the forward reads other Python objects, the copy's forward may read copies of these.
        if not any(reads.is_of_objects for reads in state.all_reads()):
            copy._state = State(Snapshot(module, state.all_reads()), entries=state.copy_entries())
            # If the module has changed since its last call, the plans are not valid for the copy.
            if copy._state.snapshot.differences_in_facts(state.origin):
                copy._state = None
        return copy

    def refresh(self):
        """Drops all entries: the next call captures and prepacks again."""
        with self._lock:
            for entry in self._entries():
                if entry.breaks:
                    entry.breaks.backend.refresh()  # Dynamo never frees its pieces
            self._state = self.shortcut = self.device = None
            self._previous = Entry(None)
            self._n_captures = self._n_checks = self._n_writes = self._n_lost = 0

    def reasons(self):
        """Returns {reason: number of calls that PyTorch ran}, with 0 for a known reason that no call met yet."""
        state = self._state
        entry = state.first(self._key) if state else None
        known = self.refusal or (entry.reason if entry and not entry.breaks else None)
        return {**dict.fromkeys([known] if known else [], 0), **self.fallbacks}

    def _entries(self):
        return self._state.all_entries() if self._state else []

    def host_nodes(self):
        """Returns a list with a HostNode for each node that PyTorch computes inside of the program."""
        found = []
        for entry in self._entries():
            if entry.breaks:
                found += entry.breaks.backend.host_nodes()
            elif entry.plan:
                found += entry.plan.hosts
        return list(dict.fromkeys(found))

    def graphs(self):
        """Returns a list with a GraphReport for each graph of a module that runs in several graphs."""
        return [graph for x in self._entries() if x.breaks for graph in x.breaks.backend.graphs()]

    @property
    def made_again(self):
        """A Recompile for each graph that torch.compile made again, if the module runs in several graphs."""
        return [again for x in self._entries() if x.breaks for again in x.breaks.backend.made_again]

    def find_run(self, args, kwargs):
        """Returns (plan, weights, tensors, batch) of a call with these arguments, without running it.

        If the module is in training, the call has gradients where they are on and wanted: then ``weights`` are Packed. Raises
        RuntimeError with the reason when PyTorch would run the call, TypeError or ValueError for inputs that do not fit the declaration.
        """
        state = self._current_state()
        form, leaves, (tensors, constants, batch) = self._forms.find(args, kwargs)
        mode = self._find_training(state, leaves)
        with torch.no_grad():
            self._refuse_run(state.reason or find_foreign_mode(leaves))
            self._refuse_run("an input is empty" if is_empty(batch) else None)
            entry = self._find_entry(state, form, constants, batch, mode)
            self._refuse_breaks(entry)
            self._refuse_run(entry.reason or entry.reads.find_conflict(leaves))
            self._refuse_run(entry.plan.refusal(batch))
            if mode and mode.has_gradients:
                packed = self._pack(entry)
                self._refuse_run(entry.plan.find_overlap_of(packed, leaves))
                return entry.plan, packed, tensors, batch
            weights = self._find_weights(entry)
            self._refuse_run(entry.plan.find_overlap(weights, leaves, self._caller(form, leaves)))
            return entry.plan, weights, tensors, batch

    def find_plan(self, batch=None):
        """Returns the plan for ``batch`` samples, or for the declared batch size. Raises RuntimeError with the reason if PyTorch
        runs them."""
        state = self._current_state()
        self._refuse_run(state.reason)
        form = self._forms.declared
        mode = self._find_training(state, [spec.make_empty() for spec in form.tensors])
        entry = self._make_entry(state, form, form.constants, batch, mode=mode)
        self._refuse_breaks(entry)
        self._refuse_run(entry.reason)
        return entry.plan

    def _find_training(self, state, leaves):
        """Returns the Mode of a call of a module in training, None if it is not. Raises RuntimeError if PyTorch runs such a call."""
        if not state.snapshot.modes:
            return None
        mode = training_mode(state.snapshot, leaves)
        self._refuse_run(state.snapshot.untrainable if mode.has_gradients else None)
        return mode

    def _current_state(self):
        self._refuse_run(self.refusal)
        state = self._state
        return self._update(state) if state is None or state.guard.check() else state

    def _refuse_breaks(self, entry):
        if entry.breaks:
            raise RuntimeError(f"{self.options.name} runs in several graphs: {entry.reason}")

    def _refuse_run(self, reason):
        if reason:
            raise RuntimeError(f"{self.options.name} runs in PyTorch: {reason}")

    # ---- A call ----

    def __call__(self, args, kwargs):
        """Runs one call, in SOL if possible, else in PyTorch."""
        if is_compiling() or is_tracing():
            return self.module(*args, **kwargs)
        if self.refusal:
            return self._fall_back(self.refusal, args, kwargs)
        if is_in_func():
            return self._fall_back(IN_FUNC, args, kwargs, is_mode=True)
        state = self._state
        may_train = is_grad_enabled()
        # A call with gradients packs the parameters itself, so new values do not matter for it.
        if state is None or (state.structure if may_train else state.guard).check():
            state = self._update(state)
        if state.reason:
            return self._fall_back(state.reason, args, kwargs)
        try:
            form, leaves, (tensors, constants, batch) = self._forms.find(args, kwargs)
        except (TypeError, ValueError) as error:
            undeclared = error
        else:
            undeclared = None
        if undeclared is not None:
            return self._run_undeclared(undeclared, args, kwargs)
        reason = find_foreign_mode(leaves)
        if reason:
            return self._fall_back(reason, args, kwargs, is_mode=True)
        mode = training_mode(state.snapshot, leaves)
        if may_train and mode is None and state.guard.check():
            state = self._update(state)
        if is_empty(batch):
            # There is nothing to compute, so this is no fallback. PyTorch knows which operators refuse empty tensors.
            return self._run_eager(args, kwargs)
        if mode is not None and mode.has_gradients:
            return self._train(state, mode, form, constants, tensors, batch, leaves, args, kwargs)
        entry = self._find_entry(state, form, constants, batch, mode)
        if entry.is_refused and form.undeclared:
            return self._run_undeclared(form.undeclared, args, kwargs)
        if entry.is_first:
            return self._run_first(state, entry, args, kwargs)
        entry = self._renew_breaks(entry, state, form, constants, batch, mode)
        if entry.breaks:
            return self._run_breaks(entry, args, kwargs)
        reason = entry.reason or entry.plan.refusal(batch)
        if reason:
            return self._fall_back(reason, args, kwargs)
        reason = entry.reads.find_conflict(leaves)
        if reason:
            return self._fall_back(reason, args, kwargs, is_mode=True)
        try:
            if entry.plan.writes:
                return self._run_writing(form, entry, tensors, batch, leaves, args, kwargs)
            return self._run(state, form, entry, tensors, batch, leaves, args, kwargs)
        except (IndexError, ValueError) as error:
            refused = error
        return self._run_refused(refused, args, kwargs)

    def _train(self, state, mode, form, constants, tensors, batch, leaves, args, kwargs):
        """Runs a call with gradients: always in SOL if that is possible, as it may run once only and the backward call follows it."""
        if state.snapshot.untrainable:
            return self._train_eager(state.snapshot.untrainable, args, kwargs)
        entry = self._find_entry(state, form, constants, batch, mode)
        entry = self._renew_breaks(entry, state, form, constants, batch, mode)
        if entry.breaks:
            return self._run_breaks(entry, args, kwargs)
        reason = entry.reason or entry.plan.refusal(batch) or entry.reads.find_conflict(leaves)
        if entry.is_first:
            with self._lock:
                self._n_writes += 1
                state.forget(entry)
        if reason:
            return self._train_eager(reason, args, kwargs)
        if mode.training is None:
            self._log("for inference call it inside of torch.no_grad()", how="with gradients")
        try:
            packed = self._pack(entry)
            reason = entry.plan.find_overlap_of(packed, leaves)
            if not reason:
                return entry.plan.train(packed, tensors, batch)
        except IndexError:
            reason = "an index in the data is out of range"
        except ValueError as error:
            reason = str(error)
        return self._train_eager(reason, args, kwargs)

    def _pack(self, entry):
        """Returns the Packed of an entry with a TrainingPlan, for the current values of the parameters."""
        with self._lock:
            packed, entry.weights = entry.weights, None
            if packed is None:
                packed = Packed(entry.plan, entry.plan.find_tensors(self.module))
            packed.update()
            entry.weights = packed
            return packed

    def _train_eager(self, reason, args, kwargs):
        """Runs a call with gradients in PyTorch. ``fullgraph`` is about inference, so it raises nothing."""
        self._count(reason)
        return self._run_eager(args, kwargs)

    def _renew_breaks(self, entry, state, form, constants, batch, mode):
        """Returns ``entry``, or a new one if it runs several graphs and what their forward reads has changed."""
        if not entry.breaks or not entry.breaks.has_changed():
            return entry
        with self._lock:
            state.forget(entry)
        return self._find_entry(state, form, constants, batch, mode)

    def _run_breaks(self, entry, args, kwargs):
        """Runs a call in several graphs. If SOL runs none of them, PyTorch runs all later calls as a whole."""
        breaks = entry.breaks
        n = breaks.backend.recompiles
        result = breaks(args, kwargs)
        self.recompiles += breaks.backend.recompiles - n
        if not breaks.pays:
            entry.breaks = None
            self._count(entry.reason)
        return result

    def _run_writing(self, form, entry, tensors, batch, leaves, args, kwargs):
        """Runs a call that writes (Plan.writes). It has neither selector nor shortcut: SOL or PyTorch must run it, once."""
        try:
            weights = self._find_weights(entry)
        except ValueError as error:
            self._state = None  # captures again at the next call, as a buffer is another one now
            return self._fall_back(str(error), args, kwargs)
        caller = self._caller(form, leaves)
        reason = entry.plan.find_overlap(weights, leaves, caller)
        if reason:
            return self._fall_back(reason, args, kwargs, is_mode=True)
        follow_threads()
        return entry.plan.run(weights, tensors, batch, caller)

    def _caller(self, form, leaves):
        tensors = [x for spec, x in zip(form.specs, leaves) if isinstance(spec, TensorSpec)]
        return Caller(self.module, [spec.name for spec in form.tensors], tensors)

    def _run(self, state, form, entry, tensors, batch, leaves, args, kwargs):
        """Runs a call in SOL, unless the selector chooses PyTorch."""
        weights = entry.weights or self._make_weights(entry)
        caller = self._caller(form, leaves) if entry.plan.has_aliases else None
        reason = caller and entry.plan.find_strided(caller)
        if reason:
            return self._fall_back(reason, args, kwargs, is_mode=True)
        follow_threads()
        selector = entry.selector if is_on() else None
        if selector is None or selector.has_won(batch):
            result = entry.plan.run(weights, tensors, batch, caller)
        elif reason := selector.find_reason(batch):
            return self._fall_back(reason, args, kwargs)
        else:
            run = functools.partial(entry.plan.run, weights, tensors, batch, caller)
            result = self._run_undecided(entry, batch, run, args, kwargs)
        if leaves is args and form.only_tensors and caller is None:
            self._make_shortcut(state, entry, weights, batch, selector)
        return result

    def _run_first(self, state, entry, args, kwargs):
        """Runs a call whose forward writes Python state in PyTorch.

        Perhaps only the first call writes, so the entry is dropped and a later call captures again (_capture).
        """
        result = self._fall_back(entry.reason, args, kwargs)
        with self._lock:
            self._n_writes += 1
            state.forget(entry)
        return result

    def _run_undecided(self, entry, batch, run, args, kwargs):
        """Runs a call of a batch size for which the selector has no verdict yet. ``run``: runs it in SOL."""
        return entry.selector.call(
            batch,
            lambda: sum(entry.plan.memory(batch).values()),
            run,
            lambda: self._run_eager(args, kwargs),
            entry.shortcut,
        )

    def _make_shortcut(self, state, entry, weights, batch, selector):
        """Makes the shortcut for later calls like this one, which ran in SOL."""
        known = state.guard, weights, threads(), selector
        entry.plan.note_batch(batch)
        if entry.shortcut_for != known or (entry.shortcut and entry.shortcut.is_refused):
            wrapper = self.wrapper and self.wrapper()
            if wrapper is None:
                return
            entry.shortcut = make_shortcut(
                wrapper, state.guard, self.specs, entry, weights, selector
            )
            entry.shortcut_for = known if entry.shortcut else None
        if self.shortcut is not entry.shortcut and self._lock.acquire(blocking=False):
            # Without the lock, another thread could replace the state between the check and the assignment.
            if self._state is state:
                self.shortcut = entry.shortcut
            self._lock.release()

    # ---- PyTorch's forward ----

    def _fall_back(self, reason, args, kwargs, is_mode=False):
        """Runs a call in PyTorch, and counts and logs its reason. With ``fullgraph``, raises NotImplementedError instead.

        ``is_mode``: the reason is a mode of this call, such as training; then ``fullgraph`` raises nothing.
        """
        if self.options.fullgraph and not is_mode:
            raise NotImplementedError(reason)
        self._count(reason, is_mode)
        return self._run_eager(args, kwargs)

    def _count(self, reason, is_mode=False):
        count_fallback()
        self.fallbacks[reason] += 1
        self._log(reason, log.info if is_mode else log.warn)

    def _run_eager(self, args, kwargs):
        return self.module(*args, **kwargs)

    def _run_undeclared(self, error, args, kwargs):
        """Runs a call whose inputs do not fit the declaration in PyTorch, which accepts them or raises its own error."""
        if self.options.fullgraph:
            raise error.with_traceback(None)
        try:
            return self._fall_back(str(error), args, kwargs)
        except Exception as own:
            if hasattr(own, "add_note"):  # Python 3.11
                own.add_note(f"sol.optimize was called with other inputs: {error}")
            raise

    def _run_refused(self, error, args, kwargs):
        """Runs a call in PyTorch whose data SOL refused, such as an index out of range: PyTorch raises its own exception.

        The failed call has changed nothing (struct update in src/ir/ir.h). The reason has no values, so that bad data cannot
        make the table of reasons grow.
        """
        if self.options.fullgraph:
            raise error
        bad_index = isinstance(error, IndexError)
        reason = "an index in the data is out of range" if bad_index else str(error)
        return self._fall_back(reason, args, kwargs)

    def _log(self, reason, level=log.warn, how="in PyTorch"):
        """Logs a fallback once per reason, so that a loop of calls does not repeat the message."""
        if reason not in self._said:
            self._said.add(reason)
            log.say(level, f"{self.options.name} runs {how}: {reason}")

    # ---- After a change ----

    def _update(self, old):
        """Returns a State for the current module. Plans are kept if only values and modes have changed."""
        with self._lock:
            if self._state is not old:
                return self._state  # another thread has done it already
            if old is None:
                self._state = State(Snapshot(self.module))
            else:
                self._state, changed = next_state(old, self.module)
                self._note(old, changed)
            return self._state

    def _note(self, old, changed):
        if changed:
            text = ", ".join(sorted(changed)[:8])
            log.say(log.debug, f"{self.options.name} changed: {text}")
            self._previous = old.first(self._key) or self._previous

    def _find_entry(self, state, form, constants, batch, mode=None):
        key = _make_key(form, constants, mode)
        return state.find(key, batch) or self._make_entry(state, form, constants, batch, mode=mode)

    def _make_entry(self, state, form, constants, batch=None, must_fit=False, mode=None):
        """Returns the Entry for calls of this Form with these constants and ``batch`` samples (None: the declared batch size); captures if necessary.

        ``must_fit``: raise Refused when the model refuses such inputs. ``mode``: a Mode of training, or None for inference.
        """
        key = _make_key(form, constants, mode)
        with self._lock:
            while True:
                entry = state.find(key, batch) if batch is not None else state.first(key)
                if entry is not None:
                    return entry
                n = len(state.entries.get(key, ()))
                if n > MAX_RANGES or (n and not batch):
                    return Entry(None, outside(batch), only=batch)
                with LOCK, without_collections():
                    before = Snapshot(self.module, is_guarded=False)
                    entry = self._capture(form, constants, batch, n == 0, must_fit, mode)
                    entry.autocast = autocast_type()
                    if n and not entry.admits(batch):
                        entry = Entry(None, outside(batch), only=batch)
                    is_added = state.add(key, entry, self.module, before)
                    self._n_lost = 0 if is_added else self._n_lost + 1
                    if self._n_lost >= MAX_LOST:
                        entry = Entry(None, UNSTEADY)
                        state.add(key, entry, self.module, before)
                if batch is None or entry.admits(batch):
                    return entry

    def _capture(self, form, constants, batch, is_first, must_fit, mode):
        """Returns a new Entry. ``is_first``: the first one for this form and constants is captured for the batch size to tune for."""
        batch, given = None if is_first else batch, batch
        if self._n_captures >= MAX_CAPTURES or self._n_checks >= MAX_CHECKS:
            return Entry(
                None,
                f"the model, its numbers or its arguments changed more than {MAX_CAPTURES} times",
            )
        # After a forward has written Python state, it is captured again after 1, 2, 4, 8, ... calls only.
        if self._n_writes & (self._n_writes - 1):
            return Entry(None, self._writes, only=batch, is_first=True)
        previous, call = self._previous, (form.with_constants(constants), form.structure)
        entry = self._try_plan(call, previous.plan, batch, must_fit, mode, given)
        if entry.is_refused and form.undeclared and is_first:
            # Which sizes are open is a guess, so the model may refuse the example's sizes, but not those of this call.
            entry = self._try_plan(call, previous.plan, given, must_fit, mode, given)
        if (entry.plan, entry.reason) == (previous.plan, previous.reason):
            self._n_checks += 1
            return entry
        self.recompiles += self._n_captures > 0
        self._n_captures += 1
        return entry

    def _try_plan(self, call, old_plan, batch, must_fit, mode, given):
        """Returns an Entry with a plan, or with the reason why PyTorch must run the model. Any exception becomes a reason.

        ``given``: the sizes of the call that needs the plan, or None.
        """
        options = self.options
        try:
            if mode is not None and mode.has_gradients:
                plan, reads = make_training_plan(
                    self.module, *call, options, batch or None, mode, old_plan, given
                )
                return Entry(plan, reads=reads)
            plan, reads = make_plan(
                self.module, *call, options, batch or None, old_plan, not options.fullgraph, mode
            )
            self._n_writes = 0
            # A call that writes may not run twice.
            selector = None if plan.writes else make_selector(options)
            return Entry(plan, reads=reads, selector=selector)
        except Refused as error:
            if must_fit:
                raise
            return Entry(None, str(error), only=batch, is_refused=True)
        except Writes as error:
            self._writes = str(error)
            return Entry(None, self._writes, only=batch, is_first=True)
        except (Broken, DependsOnData) as error:
            return self._make_broken(str(error), batch)
        except (CannotCapture, Unsupported) as error:
            return Entry(None, str(error), only=batch)
        except Exception as error:
            log.say(log.debug, traceback.format_exc())
            return Entry(None, f"{type(error).__name__}: {error}", only=batch)

    def _make_broken(self, reason, batch):
        """Returns an Entry that runs the module in several graphs, for all sizes."""
        if self.options.fullgraph:
            return Entry(None, reason, only=batch)
        from sol.pytorch.breaks import Breaks  # imports this file

        # Dynamo's guards check what the forward reads.
        entry = Entry(None, reason, reads=Reads())
        entry.breaks = Breaks(self.module, self.options, reason, self.fallbacks)
        return entry

    def _find_weights(self, entry):
        """Returns the entry's weights. Makes new ones if a buffer that calls write lies elsewhere now.

        Raises ValueError if SOL cannot write the buffer any more.
        """
        weights = entry.weights
        if weights is not None and entry.plan.has_moved(weights, self.module):
            with self._lock:
                entry.weights = weights = None
        return weights or self._make_weights(entry)

    def _make_weights(self, entry):
        with self._lock:
            if entry.weights is None:
                entry.weights = entry.plan.make_weights(self.module)
            return entry.weights


def _make_key(form, constants, mode=None):
    """Returns the key of the entries for calls of this Form with these constants, in the autocast of this thread and a Mode."""
    key, autocast = form.make_key(constants) if constants else form.key, autocast_type()
    key = key if autocast is None else (autocast, key)
    return key if mode is None else (mode, key)


_engines = weakref.WeakSet()


def _renew_locks():
    """Creates new locks in a child of fork, where the thread that held a lock does not exist.

    This is safe: a State is replaced as a whole, so the child never sees one that is incomplete.
    """
    for engine in list(_engines):
        engine._lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


@contextlib.contextmanager
def without_collections():
    """Turns Python's garbage collector off: a capture creates so many objects that collections would take much of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def outside(batch):
    return f"{describe_sizes(batch)} is outside of what was captured"

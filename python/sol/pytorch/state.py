"""What an engine knows of a module: how it was seen last, and what was captured of it.

Entry    a plan with its weights, or the reason why there is none, for some batch sizes
State    a Snapshot, and the Entries for each set of constants
"""

import copy

from sol.pytorch.watch import Snapshot


class Entry:
    """A plan, or the reason why there is none. ``weights`` are made at the first call. ``reads``: what else the
    forward depends on. ``selector``: chooses between SOL and PyTorch; None where SOL runs whatever that costs. ``only``: the one
    batch size that the reason is for; None: it is for all. ``is_first``: the
    reason may be gone after a call. ``shortcut`` makes its ordinary calls, under the conditions
    ``shortcut_for``."""

    def __init__(self, plan, reason=None, reads=None, selector=None, only=None, is_first=False):
        self.plan = plan
        self.reason = reason
        self.reads = reads
        self.selector = selector
        self.only = only
        self.is_first = is_first
        self.weights = None
        self.shortcut = self.shortcut_for = None

    def admits(self, batch):
        """Whether this entry decides about calls of this batch size."""
        if self.plan is not None:
            return self.plan.batches.admit(batch)
        return self.only is None or self.only == batch

    def without_weights(self):
        fresh = copy.copy(self)
        fresh.weights = fresh.shortcut = fresh.shortcut_for = None
        return fresh


class State:
    """A module as it was seen last.

    ``snapshot``: now. ``origin``: the snapshot for which ``entries`` {constants: [Entry]} were captured;
    the two differ in values and modes only. ``reason``: why SOL must not run.
    """

    def __init__(self, snapshot, origin=None, entries=None):
        self.snapshot = snapshot
        self.guard = snapshot.guard
        self.reason = snapshot.reason or snapshot.foreign_tensor()
        self.origin = origin or snapshot
        self.entries = entries or {}

    def find(self, key, batch):
        """The entry for these constants and that many samples, or None."""
        for entry in self.entries.get(key, ()):
            if entry.admits(batch):
                return entry
        return None

    def first(self, key):
        """The entry for the declared batch size, or None."""
        entries = self.entries.get(key)
        return entries[0] if entries else None

    def all_reads(self):
        return _reads(self.entries)

    def read_attributes(self):
        """{(id of a module, name)} of what forwards read; None: unknown."""
        all_reads = [entry.reads for group in self.entries.values() for entry in group]
        if any(reads is None or reads.attributes is None for reads in all_reads):
            return None
        return set().union(*(reads.attributes for reads in all_reads))

    def forget(self, entry):
        """An entry whose reason may be gone."""
        for entries in self.entries.values():
            if entry in entries:
                entries.remove(entry)

    def copy_entries(self):
        """For another module with the same graph: weights are its own."""
        return {key: [x.without_weights() for x in group] for key, group in self.entries.items()}

    def entries_that_hold(self):
        """Copies of the entries whose forwards would still read the same."""
        kept = {}
        for key, entries in self.entries.items():
            holding = [x for x in entries if x.reads is None or not x.reads.has_changed()]
            # The others were made because the first did not admit their batch sizes.
            if holding and holding[0] is entries[0]:
                kept[key] = [entry.without_weights() for entry in holding]
        return kept

    def add(self, key, entry, module, before):
        """Keeps an entry that was captured just now. ``before``: a snapshot from before the capture. What changed
        meanwhile, by another thread, is found at the next call, as the guard is older than that.
        """
        if entry.reads is not None:
            after = Snapshot(module, [*self.all_reads(), entry.reads])
            if not after.differences(before):
                self.guard = after.guard
            if entry.reads.has_changed():
                return
        self.entries.setdefault(key, []).append(entry)


def _reads(entries):
    return [x.reads for group in entries.values() for x in group if x.reads]


def next_state(old, module):
    """(State for the module as it is now, names of what changed of the model itself). Plans stay if only values and
    modes changed."""
    entries = old.entries_that_hold()
    new = Snapshot(module, _reads(entries))
    changed = new.differences(old.origin, old.read_attributes())
    # Moved to another dtype or device, a model may come back as it was: its plans are kept.
    if changed and not new.foreign_tensor():
        return State(new), changed
    # Looked at again, as the guard has known these dicts only since a moment ago.
    if any(reads.has_changed() for reads in _reads(entries)):
        entries = {}
    changed = {"what its forward reads"} if len(entries) < len(old.entries) else set()
    return State(new, old.origin, entries), changed

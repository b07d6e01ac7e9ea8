"""The state of an engine: the last snapshot of its module, and the plans that were made of it.

Entry    for some batch sizes: a plan with its weights, or the reason why there is none
State    a Snapshot, and the Entries for each set of constants
"""

import copy

from sol.pytorch.watch import Snapshot


class Entry:
    """A plan, or the reason why there is none.

    ``reads``: the Python state that the forward reads (reads.Reads). ``selector``: chooses between SOL and PyTorch; None:
    SOL runs all calls. ``only``: the batch size to which the reason applies; None: all. ``is_first``: the reason may not
    apply after the first call. ``is_refused``: the model itself refuses such inputs. ``weights``: made at the first call. ``shortcut``: for usual calls, or None;
    ``shortcut_for``: the guard, weights, threads and selector that it was made for. ``breaks``: runs the module in several
    graphs, as ``reason`` says why one does not suffice; or None. ``autocast``: that of the calls for which it applies
    (modes.autocast_type).
    """

    def __init__(
        self,
        plan,
        reason=None,
        reads=None,
        selector=None,
        only=None,
        is_first=False,
        is_refused=False,
    ):
        self.breaks = None
        self.plan = plan
        self.reason = reason
        self.reads = reads
        self.selector = selector
        self.only = only
        self.is_first = is_first
        self.is_refused = is_refused
        self.autocast = None
        self.weights = None
        self.shortcut = self.shortcut_for = None

    def admits(self, batch):
        """Whether this entry applies to calls of this batch size."""
        if self.plan is not None:
            return self.plan.batches.admit(batch)
        return self.only is None or self.only == batch

    def without_weights(self):
        """Returns a copy without weights and shortcut."""
        fresh = copy.copy(self)
        fresh.weights = fresh.shortcut = fresh.shortcut_for = None
        return fresh


class State:
    """A module at the time of its last snapshot.

    ``snapshot``: the last one; ``guard`` detects changes since then, ``structure`` all but new values (of a Snapshot). ``entries``: {key of a Form, its constants and autocast: [Entry]}.
    ``origin``: the snapshot for which these were captured; it differs from ``snapshot`` in values and modes only.
    ``reason``: the reason why SOL must not run any call, or None.
    """

    def __init__(self, snapshot, origin=None, entries=None):
        self.snapshot = snapshot
        self.guard, self.structure = snapshot.guard, snapshot.structure
        self.reason = snapshot.reason or snapshot.foreign_tensor()
        self.origin = origin or snapshot
        self.entries = entries or {}

    def find(self, key, batch):
        """Returns the entry for these constants and ``batch`` samples, or None."""
        for entry in self.entries.get(key, ()):
            if entry.admits(batch):
                return entry
        return None

    def first(self, key):
        """Returns the entry for the declared batch size, or None."""
        entries = self.entries.get(key)
        return entries[0] if entries else None

    def all_entries(self):
        """Returns the entries of all forms and constants."""
        return [entry for group in list(self.entries.values()) for entry in group]

    def all_reads(self):
        """Returns the Reads of all entries that have a plan."""
        return _reads(self.entries)

    def read_attributes(self):
        """Returns {(id of a module, name)} of the attributes that the forwards of all entries read; None: unknown."""
        all_reads = [entry.reads for group in self.entries.values() for entry in group]
        if any(reads is None or reads.attributes is None for reads in all_reads):
            return None
        return set().union(*(reads.attributes for reads in all_reads))

    def forget(self, entry):
        """Removes an entry whose reason may not apply any more."""
        for entries in self.entries.values():
            if entry in entries:
                entries.remove(entry)

    def copy_entries(self):
        """Returns copies of the entries for another module with the same graph, without weights and shortcuts.

        ``Breaks`` run the module itself, so an entry that has them is not copied."""
        return {
            key: [x.without_weights() for x in group if x.breaks is None]
            for key, group in self.entries.items()
        }

    def entries_that_hold(self):
        """Returns copies, without weights and shortcuts, of the entries whose Reads have not changed."""
        kept = {}
        for key, entries in self.entries.items():
            holding = [x for x in entries if x.reads is None or not x.reads.has_changed()]
            # The other entries exist only because the first does not admit their batch sizes.
            if holding and holding[0] is entries[0]:
                kept[key] = [entry.without_weights() for entry in holding]
        return kept

    def add(self, key, entry, module, before):
        """Adds a newly captured entry, and extends the guard to its Reads. Returns False if what it reads has changed meanwhile: it
        is not added then.

        ``before``: a snapshot from before the capture. If another thread has changed the module during the capture, the old
        guard stays, which reports the change at the next call.
        """
        if entry.reads is not None:
            after = Snapshot(module, [*self.all_reads(), entry.reads])
            if not after.differences(before):
                self.guard, self.structure = after.guard, after.structure
            if entry.reads.has_changed():
                return False
        self.entries.setdefault(key, []).append(entry)
        return True


def _reads(entries):
    return [x.reads for group in entries.values() for x in group if x.reads]


def next_state(old, module):
    """Returns (State of the current module, names of changes that need a new capture).

    Plans are kept if only values of tensors and modes have changed.
    """
    entries = old.entries_that_hold()
    new = Snapshot(module, _reads(entries))
    changed = new.differences(old.origin, old.read_attributes())
    # Plans are kept for a model that was moved to another dtype or device, as it may be moved back.
    if changed and not new.foreign_tensor():
        return State(new), changed
    # The second check finds changes that another thread made before the new guard was created.
    if any(reads.has_changed() for reads in _reads(entries)):
        entries = {}
    changed = {"what its forward reads"} if len(entries) < len(old.entries) else set()
    return State(new, old.origin, entries), changed

"""Snapshots of a module, and the guard that detects changes since a snapshot.

When the guard reports a change, the engine takes a new Snapshot and compares it with the old one: changed values need a new
prepack, all other changes need a new capture.
"""

import torch
from torch.nn.modules import module as nn_module

from sol import _core
from sol.pytorch.inputs import DTYPE_NAMES
from sol.pytorch.program import is_program

N_SAMPLES = 8
# Attributes that every nn.Module has. A snapshot handles those that matter (tensors, modes, hooks) separately.
INTERNAL = frozenset(vars(torch.nn.Module()))
# Whether guard and shortcuts can read a tensor's address through DLPack's C functions, which is faster than data_ptr().
CAN_VIEW = hasattr(torch.Tensor, "__dlpack_c_exchange_api__") and _core.use_tensors(
    torch.Tensor.__dlpack_c_exchange_api__
)
GLOBAL_HOOKS = (nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks)
BACKWARD_HOOKS = (nn_module._global_backward_hooks, nn_module._global_backward_pre_hooks)
OWN_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
SIMPLE = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)


class Snapshot:
    """A module at one moment: its submodules, their plain attributes, the facts of its tensors, modes and hooks.

    ``reads``: a list of reads.Reads for the guard. ``is_guarded``: False if the snapshot is used only for comparisons; it
    then has no guards. ``guard`` detects all changes, ``structure`` all but new values of tensors; it also detects new backward hooks.
    ``modes``: the flags ``training`` of all parts, or None if all are off. ``reason``: a hook, for which PyTorch must run the
    module; or None. ``untrainable``: a reason why PyTorch must run calls with gradients, or None.
    """

    def __init__(self, root, reads=(), is_guarded=True):
        # The guards are created first, so that they detect changes that are made while the rest is read.
        self.modules = dict(root.named_modules())
        guards = _make_guards(root, self.modules.values(), reads) if is_guarded else (None, None)
        self.guard, self.structure = guards
        self.parameters = list(root.parameters())
        self.attributes = {name: _plain_attributes(m) for name, m in self.modules.items()}
        self.tensors = dict(_named_tensors(self.modules))
        self.modes = self._find_modes()
        self.reason = self.find_hook()
        self.untrainable = self._find_untrainable()

    def find_hook(self):
        """Returns a reason if a forward hook is registered, as SOL would not call it; or None."""
        if any(GLOBAL_HOOKS):
            return "a global forward hook is registered"
        for name, module in self.modules.items():
            if module._forward_hooks or module._forward_pre_hooks:
                return f"{name or 'the model'} has a forward hook"
        return None

    def _find_untrainable(self):
        """Returns a reason if a backward hook is registered, as SOL's gradients would not call it, or if parameters are replaced by
        other tensors for the time of a call, which no graph may have; or None."""
        if not all(isinstance(p, torch.nn.Parameter) for p in self.parameters):
            return "a parameter is no torch.nn.Parameter, as in torch.func.functional_call"
        if any(BACKWARD_HOOKS):
            return "a global backward hook is registered"
        for name, module in self.modules.items():
            if module._backward_hooks or module._backward_pre_hooks:
                return f"{name or 'the model'} has a backward hook"
        return None

    def _find_modes(self):
        modes = tuple([module.training for module in self.modules.values()])
        return modes if any(modes) and not is_program(self.modules[""]) else None

    def foreign_tensor(self):
        """Returns the reason why SOL cannot use a tensor of the module (its dtype, device or layout), or None."""
        for name, (_, dtype, device, layout) in self.tensors.items():
            if device.type != "cpu" or layout is not torch.strided:
                return f"{name} is {layout} on {device}"
            if dtype not in DTYPE_NAMES:
                return f"{name} is {dtype}"
        return None

    def differences(self, other, attributes=None):
        """Returns the names of attributes, submodules and tensors in which two snapshots differ.

        ``attributes``: {(id of a module, name)} of attributes whose values matter; None: all. A new or removed attribute
        always matters. Of tensors, shape, dtype, device and layout are compared, not the values.
        """
        found = {name for name in self.modules if other.modules.get(name) is not self.modules[name]}
        found |= other.modules.keys() - self.modules.keys()
        return found | self.differences_in_facts(other, attributes)

    def differences_in_facts(self, other, attributes=None):
        """As ``differences``, but without the modules' identity, for a snapshot of a copy."""
        found = set()
        for name, facts in {**self.tensors, **other.tensors}.items():
            if self.tensors.get(name) != facts or other.tensors.get(name) != facts:
                found.add(name)
        found |= self.modules.keys() ^ other.modules.keys()
        for name in self.attributes.keys() & other.attributes.keys():
            a, b = self.attributes[name], other.attributes[name]
            for key in a.keys() | b.keys():
                is_read = attributes is None or (id(self.modules[name]), key) in attributes
                is_new = key not in a or key not in b
                if is_new or (is_read and not _is_equal_attribute(a[key], b[key])):
                    found.add(f"{name}.{key}")
        return found


def _is_equal_attribute(a, b):
    """Compares two values of an attribute. Two tensors count as equal, as the guard checks their values."""
    are_tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return are_tensors or _is_equal(a, b)


def _is_equal(a, b, depth=8):
    """Compares by identity; simple objects, and tuples of them, by value.

    An equal list counts as different: the guard checks the old list, so it would not detect changes of the new one.
    ``depth``: limit for tuples in tuples.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return depth > 0 and len(a) == len(b) and all(_is_equal(*x, depth - 1) for x in zip(a, b))
    return isinstance(a, SIMPLE) and repr(a) == repr(b)  # 0.0 is not -0.0


def _plain_attributes(module):
    return {key: value for key, value in vars(module).items() if key not in INTERNAL}


def module_tensors(module):
    """Yields (name, tensor) for all tensors that may be weights: parameters, buffers, attributes."""
    for group in (module._parameters, module._buffers, _plain_attributes(module)):
        for name, value in group.items():
            if isinstance(value, torch.Tensor):
                yield name, value


def find_tensor(module, name):
    """Returns the tensor that a module currently has at ``name`` (conv1.weight), or None."""
    for part in name.split("."):
        module = getattr(module, part, None)
    return module if isinstance(module, torch.Tensor) else None


def _named_tensors(modules):
    for path, module in modules.items():
        for name, tensor in module_tensors(module):
            facts = tuple(tensor.shape), tensor.dtype, tensor.device, tensor.layout
            yield f"{path}.{name}" if path else name, facts


def _find_written(root, reads):
    """Returns the ids of the tensors that calls write and none only reads. Calls read their memory, so a new value needs no new
    weights."""
    names = set().union(*(read.updates for read in reads))
    names -= set().union(*(read.kept for read in reads))
    return {id(find_tensor(root, name)) for name in names}


def _make_guards(root, modules, reads):
    """Returns (guard, structure) of a Snapshot."""
    written = _find_written(root, reads)
    dicts, slots, hooks = list(GLOBAL_HOOKS), [], list(BACKWARD_HOOKS)
    tensors = {}
    for read in reads:
        dicts += read.dicts
        slots += read.slots
        tensors.update((id(tensor), tensor) for tensor in read.tensors)
    for module in modules:
        own = vars(module)
        dicts.append(own)
        names = "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"
        dicts += [own[name] for name in names if isinstance(own.get(name), dict)]
        names = "_backward_hooks", "_backward_pre_hooks"
        hooks += [own[name] for name in names if isinstance(own.get(name), dict)]
        for _, tensor in module_tensors(module):
            tensors[id(tensor)] = tensor
    # Integer tensors are no weights; batch norm changes its counter `num_batches_tracked`.
    kept = [t for t in tensors.values() if t.is_floating_point() and id(t) not in written]
    return make_weight_guard(kept, dicts, slots), _core.Guard(dicts + hooks, [], [], slots)


def make_weight_guard(tensors, dicts=(), slots=()):
    """Returns a guard for the memory, versions and sampled values of tensors, and for ``dicts`` and ``slots`` of _core.Guard."""
    kept = list(filter(_has_memory, tensors))
    places = [(*_sample_places(t), _hints(t)) for t in kept]
    return _core.Guard(list(dicts), kept, places, list(slots))


def make_hook_guard(module):
    """Returns a guard for the hooks that nn.Module.__call__ of ``module`` would call; None if there is any hook."""
    hooks = [*GLOBAL_HOOKS, *BACKWARD_HOOKS, *(vars(module)[name] for name in OWN_HOOKS)]
    return None if any(hooks) else _core.Guard(hooks, [], [], [])


def _has_memory(tensor):
    return (
        tensor.layout is torch.strided and tensor.is_cpu and type(tensor).__name__ != "FakeTensor"
    )


def _sample_places(tensor):
    """Returns (element size, byte offsets of N_SAMPLES evenly distributed elements); no offsets for an empty tensor."""
    n = tensor.numel()
    if n == 0:
        return tensor.element_size(), ()
    offsets = []
    for k in range(N_SAMPLES):
        rest, offset = (2 * k + 1) * n // (2 * N_SAMPLES), 0
        for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
            rest, index = divmod(rest, size)
            offset += index * stride
        offsets.append(offset * tensor.element_size())
    return tensor.element_size(), offsets


def _hints(tensor):
    """Returns addresses of objects that PyTorch reads in data_ptr() and _version. The guard only prefetches them."""
    storage = tensor.untyped_storage()
    return id(tensor), tensor._cdata, storage._cdata

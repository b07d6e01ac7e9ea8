"""What a module looks like, and the guard that tells when it no longer does.

A Snapshot is taken when the guard reports a change; comparing two of them tells whether only values
changed (new weights) or the model itself (a new capture).
"""

import torch
from torch.nn.modules import module as nn_module

from sol import _core

N_SAMPLES = 8
# What every module has; neither is part of what the model computes, or it is looked at by itself.
INTERNAL = frozenset(vars(torch.nn.Module()))
TRAINING = "training mode"
# How the guard and shortcuts read a tensor's address; PyTorch's functions from Python take longer.
CAN_VIEW = hasattr(torch.Tensor, "__dlpack_c_exchange_api__") and _core.use_tensors(
    torch.Tensor.__dlpack_c_exchange_api__
)
GLOBAL_HOOKS = (nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks)
BACKWARD_HOOKS = (nn_module._global_backward_hooks, nn_module._global_backward_pre_hooks)
OWN_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
SIMPLE = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)


class Snapshot:
    """A module now: its submodules with their plain attributes, its tensors, modes and hooks.

    ``reads``: list of what else its forwards depend on (reads.Reads), for the guard. ``is_guarded`` False: only to be
    compared with another one.
    """

    def __init__(self, root, reads=(), is_guarded=True):
        # The guard comes first: a change while the rest is read shows at the next call.
        self.modules = dict(root.named_modules())
        self.guard = _make_guard(self.modules.values(), reads) if is_guarded else None
        self.parameters = list(root.parameters())
        self.attributes = {name: _plain_attributes(m) for name, m in self.modules.items()}
        self.tensors = dict(_named_tensors(self.modules))
        self.reason = self.find_hook() or self._find_training()

    def find_hook(self):
        """A forward hook, which SOL would not call, as a reason; or None."""
        if any(GLOBAL_HOOKS):
            return "a global forward hook is registered"
        for name, module in self.modules.items():
            if module._forward_hooks or module._forward_pre_hooks:
                return f"{name or 'the model'} has a forward hook"
        return None

    def _find_training(self):
        if self.modules[""].training:
            return TRAINING
        for name, module in self.modules.items():
            if module.training:
                return f"{name} is in training mode"
        return None

    def foreign_tensor(self):
        """Why SOL cannot use the tensors as they are (dtype, device), or None."""
        for name, (_, dtype, device, layout) in self.tensors.items():
            if device.type != "cpu" or layout is not torch.strided:
                return f"{name} is {layout} on {device}"
            if dtype.is_floating_point and dtype is not torch.float32:
                return f"{name} is {dtype}"
        return None

    def differences(self, other, attributes=None):
        """Names of attributes, submodules and tensors in which two snapshots differ. ``attributes``: {(id of a module,
        name)}, those whose values matter; None: all do. A new one matters in any case."""
        found = {name for name in self.modules if other.modules.get(name) is not self.modules[name]}
        found |= other.modules.keys() - self.modules.keys()
        return found | self.differences_in_facts(other, attributes)

    def differences_in_facts(self, other, attributes=None):
        """As ``differences``, but of a copy, whose modules are other objects."""
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
    """Of a tensor that is no parameter the name matters; its values are the guard's business."""
    are_tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    return are_tensors or _is_equal(a, b)


def _is_equal(a, b, depth=8):
    """By identity, and by value where that is cheap and certain: another list may be changed later, unseen by whoever
    watches the first. ``depth``: of tuples in tuples."""
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
    """(name, tensor) of everything that may be a weight: parameters, buffers, attributes."""
    for group in (module._parameters, module._buffers, _plain_attributes(module)):
        for name, value in group.items():
            if isinstance(value, torch.Tensor):
                yield name, value


def _named_tensors(modules):
    for path, module in modules.items():
        for name, tensor in module_tensors(module):
            facts = tuple(tensor.shape), tensor.dtype, tensor.device, tensor.layout
            yield f"{path}.{name}" if path else name, facts


def _make_guard(modules, reads):
    dicts, slots = list(GLOBAL_HOOKS), []
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
        for _, tensor in module_tensors(module):
            tensors[id(tensor)] = tensor
    # Statistics that count batches are integers, and no weights.
    kept = [t for t in tensors.values() if t.is_floating_point() and _has_memory(t)]
    return _core.Guard(dicts, kept, [(*_sample_places(t), _hints(t)) for t in kept], slots)


def make_hook_guard(module):
    """A guard of the hooks that nn.Module.__call__ of this very module looks for; None while there
    are any."""
    hooks = [*GLOBAL_HOOKS, *BACKWARD_HOOKS, *(vars(module)[name] for name in OWN_HOOKS)]
    return None if any(hooks) else _core.Guard(hooks, [], [], [])


def _has_memory(tensor):
    return (
        tensor.layout is torch.strided and tensor.is_cpu and type(tensor).__name__ != "FakeTensor"
    )


def _sample_places(tensor):
    """(element size, byte offsets of N_SAMPLES elements spread evenly), whatever the strides."""
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
    """Addresses of what PyTorch reads to answer data_ptr() and _version: hints for the processor only."""
    storage = tensor.untyped_storage()
    return id(tensor), tensor._cdata, storage._cdata

"""Buffers and inputs that a network's forward writes: counters, running statistics, caches.

    importer.py: update of a buffer -> Plan.updates -> each call writes the buffer's memory -> Plan counts its version up
                 new value of an input -> Plan.copies -> an output of the program, which Plan copies into the caller's tensor

SOL writes into the memory of the module's own tensor, at the end of a call that has not failed. So the tensor must be dense, and no
other tensor of the module may lie in its memory, as SOL would read that one before the write. An input of a call may not, either.
"""

import collections

import torch

from sol.pytorch.watch import find_tensor, module_tensors


def find_fault(module, names):
    """Returns the reason why SOL cannot write one of these tensors of ``module``, or None."""
    written = {name: find_tensor(module, name) for name in names}
    if not written:
        return None
    tensors = {id(x): x for part in module.modules() for _, x in module_tensors(part)}
    for name, tensor in written.items():
        if tensor is None:
            return f"there is no buffer {name}"
        if not tensor.is_contiguous() or tensor.is_neg() or tensor.requires_grad:
            return f"it writes into {name}, which is not dense or wants a gradient"
    return find_overlap(list(written.items()), tensors.values(), "another tensor of the model")


def find_overlap(written, tensors, owner):
    """Returns the reason if one of ``tensors``, which belong to ``owner``, shares memory with one of ``written``: (name, tensor)s.
    A tensor of ``written`` may be once among ``tensors``. Or None."""
    if not written:
        return None
    there = collections.defaultdict(list)
    for tensor in filter(has_memory, tensors):
        there[tensor.untyped_storage().data_ptr()].append(tensor)
    for name, tensor in written:
        found = there.get(tensor.untyped_storage().data_ptr(), ())
        if len(found) > 1 or any(x is not tensor for x in found):
            return f"{owner} shares memory with {name}, which the model writes"
    return None


def has_memory(value):
    """Whether a value is a tensor that has elements in a storage."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel() > 0


def has_moved(tensor, before):
    """Whether a tensor lies elsewhere, or in another shape, than ``before``, a detached tensor of the same memory."""
    return (
        tensor is None
        or tensor.data_ptr() != before.data_ptr()
        or tensor.shape != before.shape
        or tensor.stride() != before.stride()
        or tensor.dtype is not before.dtype
    )


def count_up(tensors):
    """Counts the versions of tensors up that SOL has written: autograd, guards and other plans then notice the write."""
    for tensor in tensors:
        if not tensor.is_inference():  # tensors of inference_mode have no version
            torch.autograd.graph.increment_version(tensor)


def restore(tensors, values):
    """Writes ``values`` into tensors, also into those of inference_mode."""
    with torch.inference_mode():
        for tensor, value in zip(tensors, values):
            tensor.copy_(value)

"""The seeds of the calls that draw random numbers: those with dropout that is on.

    sol.set_seed(1)      the calls from now on have the seeds of a sequence that begins with 1
    sol.seed()           1
    sol.set_seed(None)   back to PyTorch: each call draws its seed from torch's default generator

So without a seed of SOL's own, torch.manual_seed, torch.random.fork_rng and torch.utils.checkpoint decide. The numbers of a call depend on
its seed, the layer and the element's position only: not on threads, the device, or how a batch is divided.

A call without gradients has another program than one with gradients. torch.utils.checkpoint with ``use_reentrant=True`` makes one call of each
kind, which need the same numbers, so PyTorch must run both.
"""

import sys
import threading

import torch
from torch.utils.checkpoint import CheckpointFunction

CPU = "cpu"
LEAST, MOST = -(2**63), 2**63 - 1
CHECKPOINT = "it draws random numbers inside of a checkpoint with use_reentrant=True"
REENTRANT = CheckpointFunction.forward.__code__, CheckpointFunction.backward.__code__


class _Sequence:
    """``seed``: what set_seed was given. ``generator``: draws the seed of each call."""

    def __init__(self, seed):
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)


_lock = threading.Lock()
_sequences = {}  # (type of a device, its number) -> _Sequence; None: any


def set_seed(seed, device_type=None, device_index=None):
    """Sets the seed of all devices, of those of a type, or of one device; None removes it.

    Raises TypeError if the seed is no integer, ValueError if it does not fit into 64 bits or a number is given without a type.
    """
    key = _key(device_type, device_index)
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"sol.set_seed: a seed is an integer or None, not {type(seed).__name__}")
    if seed is not None and not LEAST <= seed <= MOST:
        raise ValueError(f"sol.set_seed: {seed} does not fit into 64 bits")
    with _lock:
        if seed is None:
            _sequences.pop(key, None)
        else:
            _sequences[key] = _Sequence(seed)


def seed(device_type=None, device_index=None):
    """Returns the seed that holds for a device, or None: of the device itself, else of its type, else of all."""
    found = _find(device_type, device_index)
    return None if found is None else found.seed


def seeds():
    """Returns {(type of a device, its number): seed} of all that were set; None stands for any."""
    with _lock:
        return {key: found.seed for key, found in _sequences.items()}


def draw(device_type=CPU, device_index=0):
    """Returns the seed of the next call on a device: an i64 tensor of rank 0.

    Raises RuntimeError if torch.utils.checkpoint repeats a call inside of backward: it restores PyTorch's generator only.
    """
    found = _find(device_type, device_index)
    generator = None if found is None else found.generator
    if found is not None and torch._C._current_graph_task_id() != -1:
        raise RuntimeError("sol.set_seed: a checkpoint needs the seeds of PyTorch's generator")
    return torch.randint(LEAST, MOST, (), generator=generator, dtype=torch.int64)


def find_checkpoint():
    """Returns the reason why PyTorch must run a call that draws: it is one of the two calls of a reentrant checkpoint. Or None."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code in REENTRANT:
            return CHECKPOINT
        frame = frame.f_back
    return None


def _key(device_type, device_index):
    if device_type is None and device_index is not None:
        raise ValueError("sol: the number of a device needs its type")
    return device_type, device_index


def _find(device_type, device_index):
    device_type, device_index = _key(device_type, device_index)
    with _lock:
        for key in (device_type, device_index), (device_type, None), (None, None):
            if key in _sequences:
                return _sequences[key]
    return None

"""How fast this machine could run a network: each convolution and matrix product at the larger of

    multiplications / measured peak        and        bytes of input, weight and output / measured bandwidth

A 3x3 convolution of stride 1, undilated and ungrouped, counts a quarter of its multiplications: Winograd's
F(4x4, 3x3) needs no more, and SOL has it. All other layers are taken to be fused into these, for nothing. The
bandwidth is that of reading as many bytes as the network touches, over and over: caches count where they hold it.

The bound is one of layers that run after each other. A kernel that keeps values between two of them in registers
could beat it.
"""

import contextlib
import math
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sol import _core

WINOGRAD_GAIN = 4  # multiplications of direct convolution for one of F(4x4, 3x3): (4*4*9) / (6*6)


class Counter(TorchDispatchMode):
    """Collects (name, flops, flops that are needed at least, bytes) of every layer with multiplications."""

    def __init__(self):
        super().__init__()
        self.layers = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        count = flop_registry.get(function._overloadpacket)
        if count is None:
            with self:
                parts = function.decompose(*args, **kwargs)
            return function(*args, **kwargs) if parts is NotImplemented else parts
        result = function(*args, **kwargs)
        flops = count(*args, **kwargs, out_val=result)
        gain = WINOGRAD_GAIN if is_winograd(function, args) else 1
        self.layers.append(
            (str(function), flops, flops / gain, tensor_bytes((args, kwargs, result)))
        )
        return result


def is_winograd(function, args):
    """Could F(4x4, 3x3) compute this? ``args`` are those of aten.convolution."""
    if function._overloadpacket is not torch.ops.aten.convolution:
        return False
    weight, stride, dilation, transposed, groups = args[1], args[3], args[5], args[6], args[8]
    ones = all(step == 1 for step in (*stride, *dilation, groups))
    return tuple(weight.shape[2:]) == (3, 3) and ones and not transposed


def tensor_bytes(values):
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
    return sum(x.numel() * x.element_size() for x in tensors)


def count_layers(model, inputs):
    """[(operation, flops, least flops, bytes)] of one forward."""
    with Counter() as counter, torch.no_grad(), only_simple_operators():
        model(*inputs)
    return counter.layers


@contextlib.contextmanager
def only_simple_operators():
    """Operators that fuse whole recurrent and attention layers are off: what is inside them would not be seen."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch warns of a setting for other devices when it sets this one
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    torch.backends.mha.set_fastpath_enabled(fast_path)


def touched_bytes(model, layers):
    """All parameters, and the largest layer's tensors."""
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    return parameters + max((layer[3] for layer in layers), default=0)


def measure(model, inputs):
    """{"ms", "peak_gflops", "bandwidth_gbs", "bytes", "gflop", "least_gflop", "memory_bound"}: the last is the share of
    the time in layers that wait for memory."""
    layers = count_layers(model, inputs)
    peak = _core.measure_flops()
    touched = touched_bytes(model, layers)
    bandwidth = _core.measure_bandwidth(max(1, touched))
    times = [(least / peak, size / bandwidth) for _, _, least, size in layers]
    seconds = math.fsum(map(max, times))
    waiting = math.fsum(memory for compute, memory in times if memory > compute)
    return {
        "ms": seconds * 1e3,
        "peak_gflops": peak * 1e-9,
        "bandwidth_gbs": bandwidth * 1e-9,
        "bytes": touched,
        "gflop": sum(layer[1] for layer in layers) * 1e-9,
        "least_gflop": sum(layer[2] for layer in layers) * 1e-9,
        "memory_bound": waiting / seconds if seconds else 0.0,
    }

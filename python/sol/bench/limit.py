"""Estimates the shortest time in which this machine can run a network (a roofline model).

The time is a sum over all convolutions and matrix products, of the larger of

    flops / measured peak        and        bytes of input, weight and output / measured bandwidth

A 3x3 convolution with stride 1, without dilation and groups, counts a quarter of its flops, as Winograd's F(4x4, 3x3) needs
no more multiplications. All other layers count as fused, with no time of their own. The bandwidth is measured by repeated
reads of as many bytes as the network touches, so it is that of a cache if a cache can hold them.

The estimate assumes that layers run one after the other. A kernel that fuses two of these layers could be faster.
"""

import contextlib
import math
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sol import _core

# Multiplications of direct convolution / multiplications of F(4x4, 3x3): (4*4*9) / (6*6).
WINOGRAD_GAIN = 4


def count_attention(query, key, value, dropout=0.0, is_causal=False, **_):
    """Returns the flops of both products. Of causal attention, scores behind a query's own position count nothing."""
    rows, keys = query.shape[-2], key.shape[-2]
    scores = sum(min(i + 1, keys) for i in range(rows)) if is_causal else rows * keys
    return 2 * math.prod(query.shape[:-2]) * scores * (query.shape[-1] + value.shape[-1])


# PyTorch's list of flops has attention of other devices only.
COUNTS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: count_attention}


class Counter(TorchDispatchMode):
    """A mode of PyTorch that collects (operation, flops, least flops, bytes) of each operation with multiplications."""

    def __init__(self):
        super().__init__()
        self.layers = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        packet = function._overloadpacket
        count = COUNTS.get(packet) or flop_registry.get(packet)
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
    """Whether Winograd's F(4x4, 3x3) can compute this operation. ``args``: of aten.convolution."""
    if function._overloadpacket is not torch.ops.aten.convolution:
        return False
    weight, stride, dilation, transposed, groups = args[1], args[3], args[5], args[6], args[8]
    ones = all(step == 1 for step in (*stride, *dilation, groups))
    return tuple(weight.shape[2:]) == (3, 3) and ones and not transposed


def tensor_bytes(values):
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
    return sum(x.numel() * x.element_size() for x in tensors)


def count_layers(model, inputs):
    """Returns [(operation, flops, least flops, bytes)] of one forward."""
    with Counter() as counter, torch.no_grad(), only_simple_operators():
        model(*inputs)
    return counter.layers


@contextlib.contextmanager
def only_simple_operators():
    """Turns off operators that compute whole recurrent or attention layers: the mode would not see their operations."""
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
    """Returns the bytes of all parameters and of the tensors of the largest layer."""
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    return parameters + max((layer[3] for layer in layers), default=0)


def measure_alone(model, inputs, results):
    """Returns the limit of a layer or a chain as a dict, see sol.bench.layers: multiplications and memory overlap.

    Each input, parameter and result is moved once. Of a table only the rows that become results are read.
    """
    layers = count_layers(model, inputs)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    weights = [p for p in model.parameters() if id(p) not in tables]
    moved = tensor_bytes((inputs, weights, results)) + (tensor_bytes(results) if tables else 0)
    peak, bandwidth = _core.measure_flops(), _core.measure_bandwidth(max(1, moved))
    compute, memory = sum(layer[2] for layer in layers) / peak, moved / bandwidth
    return {
        "ms": max(compute, memory) * 1e3,
        "is_memory": memory > compute,
        "bytes": moved,
        "gflop": sum(layer[1] for layer in layers) * 1e-9,
        "peak_gflops": peak * 1e-9,
        "bandwidth_gbs": bandwidth * 1e-9,
    }


def measure(model, inputs):
    """Returns the estimate and its inputs as a dict.

    ms             the shortest time; peak_gflops, bandwidth_gbs: the measured rates
    bytes          that the network touches: see touched_bytes
    gflop          of direct computation; least_gflop: with Winograd's algorithm where possible
    memory_bound   part of the time, between 0 and 1, in layers that are limited by memory
    """
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

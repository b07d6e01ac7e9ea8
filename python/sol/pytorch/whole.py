"""Recurrent operators while a graph is captured: PyTorch's fake implementation of lstm, gru and rnn runs all steps, which fixes their
number. Here they give the shapes of their results only, so that the number of steps stays open.

    capture.py  ->  whole_recurrent  ->  torch.export: one node per operator, with open sizes
"""

import contextlib
import functools
import threading

import torch
from torch._C import DispatchKey

# The kernels in Python that torch.export calls.
KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def _give_shapes(x, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first):
    """Returns results as PyTorch's, with undefined values."""
    states = hx if isinstance(hx, (list, tuple)) else [hx]
    steps, n = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    y = x.new_empty((steps, n, states[0].shape[-1] * (2 if bidirectional else 1)))
    lasts = [x.new_empty(state.shape) for state in states]
    return (y.transpose(0, 1) if batch_first else y, *lasts)


def _run(thread, original, *args, **kwargs):
    """The kernel while a graph is captured. Other threads, real tensors, and tracers that see into an operator get the original."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    is_here = threading.get_ident() == thread and not kwargs and len(args) == 9
    if is_here and isinstance(args[0], FakeTensor) and args[0].dim() == 3:
        if get_proxy_mode() is None:
            return _give_shapes(*args)
    return original(*args, **kwargs)


@contextlib.contextmanager
def whole_recurrent():
    """Within the context, captures of this thread keep the number of steps open. The caller holds capture.LOCK."""
    thread, saved = threading.get_ident(), {}
    packets = (torch.ops.aten.lstm, torch.ops.aten.gru, torch.ops.aten.rnn_tanh)
    try:
        for op in [packet.input for packet in (*packets, torch.ops.aten.rnn_relu)]:
            saved[op] = {key: op.py_kernels[key] for key in KEYS if key in op.py_kernels}
            for key, original in saved[op].items():
                op.py_kernels[key] = functools.partial(_run, thread, original)
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernels in saved.items():
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()

"""Libraries of networks with open rows and columns: one argument per open size, the kernels planned again for each."""

import ctypes

import numpy as np
import pytest
import torch
from deploy_net import Net, build_portable, close, load
from torch import nn

import sol.pytorch as sol

SIZES = (1, 30, 27), (2, 64, 33), (3, 97, 130), (1, 224, 224), (2, 17, 40)


def run(library, context, x, n_outputs=10):
    """Calls Net_run. Returns (its status, the output)."""
    n, _, h, w = x.shape
    sizes, out = (ctypes.c_int64 * 3)(n, h, w), np.zeros((n, n_outputs), "f4")
    inputs = (ctypes.c_void_p * 1)(x.data_ptr())
    outputs = (ctypes.c_void_p * 1)(out.ctypes.data)
    return library.Net_run(context, sizes, inputs, outputs), out


def open_library(library):
    context = ctypes.c_void_p()
    assert library.Net_open(None, ctypes.byref(context)) == 0, library.Net_error()
    return context


@pytest.mark.parametrize("weights", ["embedded", "packed"])
def test_sizes(tmp_path, weights):
    torch.manual_seed(0)
    net = Net().eval()
    sol.deploy(net, sol.input([0, 3, 0, 0]), lib_name="Net", path=tmp_path, weights=weights)
    library = load(tmp_path)
    context = open_library(library)
    for n, h, w in SIZES:
        x = torch.randn(n, 3, h, w)
        status, out = run(library, context, x)
        assert status == 0, library.Net_error()
        close(out, net(x))
    status, _ = run(library, context, torch.zeros(1, 3, 1, 40))
    assert status == 1
    assert b"dim 2 of input[0] must be at least 7, and is [1]" in library.Net_error()
    library.Net_close(context)


class Halves(nn.Module):
    """Its rows must be even."""

    def forward(self, x):
        n, c, h, w = x.shape
        return x + torch.nn.functional.max_pool2d(x, (2, 1)).reshape(n, c, h // 2, 1, w).expand(
            n, c, h // 2, 2, w
        ).reshape(n, c, h, w)


def test_multiples(tmp_path):
    net = Halves()
    sol.deploy(net.eval(), sol.input([1, 2, 0, 5]), lib_name="Net", path=tmp_path)
    library = load(tmp_path)
    context = open_library(library)
    for h, status in (8, 0), (2, 0), (30, 0), (7, 1):
        x, out = torch.randn(1, 2, h, 5), np.zeros((1, 2, h, 5), "f4")
        inputs = (ctypes.c_void_p * 1)(x.data_ptr())
        outputs = (ctypes.c_void_p * 1)(out.ctypes.data)
        assert library.Net_run(context, (ctypes.c_int64 * 1)(h), inputs, outputs) == status
        if not status:
            close(out, net(x))
    assert b"must be a multiple of 2, and is [7]" in library.Net_error()
    library.Net_close(context)


def test_portable(tmp_path):
    """Portable C is for the example's sizes."""
    torch.manual_seed(0)
    net, target = Net().eval(), sol.deployment.c_source
    sol.deploy(net, sol.input([0, 3, 0, 0]), target=target, lib_name="Net", path=tmp_path)
    assert "[1, 3, 256, 320]" in (tmp_path / "Net.h").read_text()
    library = build_portable(tmp_path)
    x, out = torch.randn(1, 3, 256, 320), np.zeros((1, 10), "f4")
    library.predict(None, ctypes.c_void_p(x.data_ptr()), (ctypes.c_void_p * 1)(out.ctypes.data))
    assert library.Net_error() == b""
    close(out, net(x))

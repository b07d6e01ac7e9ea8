"""Runs every own implementation of the DNN module in a library. New implementations are tested automatically."""

import ctypes
import subprocess

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from deploy_net import build_portable, close, load
from torch import nn

import sol.pytorch as sol
from sol import _core

Q = torch.ops.quantized_decomposed
ALL = [name for kind, name, _, _ in _core.query() if kind == "library"]
# No model that is imported has gradients.
GRADIENTS = ["conv_weight", "conv_weight_grouped", "winograd_weight"]
OWN = [
    row[1]
    for row in _core.query()
    if row[0] == "library" and row[3] == "own kernel" and row[1] not in GRADIENTS
]


class Product(nn.Module):
    """A product of two computed tensors, with an operand that is transposed."""

    def forward(self, x):
        return torch.relu(x @ (x + 1).transpose(1, 2)) + 0.5


class Quantized(nn.Module):
    """A linear layer of 8 bits, as PT2E writes it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.randint(-127, 128, (24, 40), dtype=torch.int8))
        self.register_buffer("scale", torch.full((24,), 0.01))

    def forward(self, x):
        x = Q.quantize_per_tensor(x, 0.03, 120, 0, 255, torch.uint8)
        x = Q.dequantize_per_tensor(x, 0.03, 120, 0, 255, torch.uint8)
        return nn.functional.linear(
            x, Q.dequantize_per_channel(self.w, self.scale, None, 0, -128, 127, torch.int8)
        )


# Each implementation accepts at least one of these layers. A new implementation may need a new row.
LAYERS = [
    (Quantized(), (3, 40)),
    (nn.Conv2d(32, 48, 3, padding=1), (1, 32, 12, 12)),
    (nn.Conv2d(32, 32, 3, padding=1, groups=32), (1, 32, 12, 12)),
    (nn.Conv2d(32, 48, 1), (1, 32, 12, 12)),
    (nn.Conv2d(5, 5, 3, padding=1, groups=5), (5, 12, 20)),
    (nn.Linear(40, 24), (3, 40)),
    (nn.Linear(41, 70).bfloat16(), (20, 41)),
    (Product(), (2, 21, 40)),  # last, as DFP computes it, too
]


def deploy(layer, shape, folder):
    """Deploys a layer as sources. Returns the module and an example. The pooling before the layer gives it a blocked input."""
    front = nn.MaxPool2d(2) if len(shape) == 4 else nn.Identity()
    net, x = (
        nn.Sequential(front, layer).eval(),
        torch.randn(shape, dtype=getattr(layer, "weight", torch.ones(1)).dtype),
    )
    sol.deploy(net, [x], lib_name="Net", path=folder, target="c_source", device=sol.device.x86)
    return net, x


def deploy_first(name, folder):
    for layer, shape in LAYERS:
        try:
            return deploy(layer, shape, folder)
        except NotImplementedError as e:
            assert "no kernel takes this" in str(e)
    raise AssertionError(f"LAYERS has none that {name} takes")


@pytest.mark.parametrize("name", OWN)
def test_every_own_kernel(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SOL_DISABLE", ",".join(other for other in ALL if other != name))
    net, x = deploy_first(name, tmp_path)
    assert f"&dnn_{name}," in (tmp_path / "Net" / "network.c").read_text()
    done = subprocess.run(["sh", tmp_path / "Net" / "build.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = net(x)
    y = torch.empty_like(expected)
    address = ctypes.c_void_p(y.data_ptr())
    load(tmp_path / "Net").predict(None, ctypes.c_void_p(x.data_ptr()), ctypes.byref(address))
    close(y.float().numpy(), expected.float(), 1e-4 if x.dtype is torch.float32 else 1e-2)


def build_native(folder):
    done = subprocess.run(["sh", folder / "build.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load(folder)


class Composites(nn.Module):
    """Layers that SOL decomposes, or keeps on some devices, one with weights that belong to no module; copies of several forms."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 16, 3, stride=2, padding=1)

    def forward(self, x):
        y = nn.functional.interpolate(self.norm(x), scale_factor=1.5, mode="bilinear")
        y = nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)
        y = nn.functional.pad(self.up(y), (1, 1, 2, 2), mode="reflect")
        return nn.functional.interpolate(y, scale_factor=2.0).sin().permute(0, 2, 3, 1)


@pytest.mark.parametrize("is_portable", [False, True])
def test_composites(is_portable, tmp_path):
    net, x = Composites().eval(), torch.randn(2, 8, 6, 4)
    device = {} if is_portable else {"device": sol.device.x86}
    sol.deploy(net, [x], lib_name="Net", path=tmp_path, target="c_source", **device)
    library = build_portable(tmp_path) if is_portable else build_native(tmp_path / "Net")
    with torch.no_grad():
        expected = net(x)
    y = np.empty(tuple(expected.shape), np.float32)
    address = ctypes.c_void_p(y.ctypes.data)
    library.predict(None, ctypes.c_void_p(x.data_ptr()), ctypes.byref(address))
    close(y, expected)


class Recurrent(nn.Module):
    """A vector kernel and its packed weight; several threads compute the larger layer."""

    def __init__(self):
        super().__init__()
        self.a = nn.LSTM(6, 150, batch_first=True, bidirectional=True)
        self.b, self.c = nn.GRU(300, 20), nn.RNN(20, 9)

    def forward(self, x):
        y, (h, c) = self.a(x)
        return self.c(self.b(y)[0])[0] + (h + c).mean()


def open_library(net, inputs, weights, folder):
    """Deploys a network, as portable C or with these weights. Returns a function of (input, expected result, open sizes), which
    runs the library and compares."""
    if weights == "portable":
        sol.deploy(net, inputs, lib_name="Net", path=folder, target="c_source")
        library = build_portable(folder)
    else:
        sol.deploy(net, inputs, lib_name="Net", path=folder, weights=weights)
        library = load(folder)
    context = ctypes.c_void_p()
    assert library.Net_open(None, ctypes.byref(context)) == 0, library.Net_error()

    def check(x, expected, sizes):
        y = np.empty(tuple(expected.shape), np.float32)
        given, outputs = (ctypes.c_void_p * 1)(x.data_ptr()), (ctypes.c_void_p * 1)(y.ctypes.data)
        sizes = None if weights == "portable" else (ctypes.c_int64 * len(sizes))(*sizes)
        assert library.Net_run(context, sizes, given, outputs) == 0, library.Net_error()
        close(y, expected)

    return check


@pytest.mark.parametrize("weights", ["portable", "embedded", "packed"])
def test_recurrent(weights, tmp_path):
    torch.manual_seed(0)
    net, is_portable = Recurrent().eval(), weights == "portable"
    inputs = [torch.randn(3, 7, 6)] if is_portable else sol.input([0, 0, 6])
    check = open_library(net, inputs, weights, tmp_path)
    for shape in [(3, 7)] if is_portable else [(3, 7), (1, 40), (30, 2)]:
        x = torch.randn(*shape, 6)
        with torch.no_grad():
            check(x, net(x), shape)


class Attention(nn.Module):
    """Attention over an open number of rows, causal and with a mask."""

    def forward(self, x):
        q, k, v = x.view(x.shape[0], x.shape[1], 3, 2, 12).permute(2, 0, 3, 1, 4)
        mask = x[:, None, None, :, 0]
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = nn.functional.scaled_dot_product_attention(q, y, v, attn_mask=mask)
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("weights", ["portable", "embedded"])
def test_attention(weights, tmp_path):
    net, is_portable = Attention().eval(), weights == "portable"
    inputs = [torch.randn(3, 7, 72)] if is_portable else sol.input([0, 0, 72])
    check = open_library(net, inputs, weights, tmp_path)
    for shape in [(3, 7)] if is_portable else [(3, 7), (1, 40), (2, 150)]:
        x = torch.randn(*shape, 72)
        check(x, net(x), shape)


def test_recurrent_in_double(tmp_path):
    net, x = nn.GRU(4, 5).eval().double(), torch.randn(3, 2, 4, dtype=torch.float64)
    sol.deploy(net, [x], lib_name="Net", path=tmp_path, target="c_source")
    library = build_portable(tmp_path)
    y, h = np.empty((3, 2, 5)), np.empty((1, 2, 5))
    places = [ctypes.byref(ctypes.c_void_p(out.ctypes.data)) for out in (y, h)]
    library.predict(None, ctypes.c_void_p(x.data_ptr()), *places)
    with torch.no_grad():
        for got, expected in zip((y, h), net(x)):
            assert np.abs(got - expected.numpy()).max() < 1e-12

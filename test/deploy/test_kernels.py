"""Runs every own implementation of the DNN module in a library. New implementations are tested automatically."""

import ctypes
import subprocess

import numpy as np
import pytest
import torch
from deploy_net import build_portable, close, load
from torch import nn

import sol.pytorch as sol
from sol import _core

ALL = [name for kind, name, _, _ in _core.query() if kind == "library"]
OWN = [row[1] for row in _core.query() if row[0] == "library" and row[3] == "own kernel"]
# Each implementation accepts at least one of these layers. A new implementation may need a new row.
LAYERS = [
    (nn.Conv2d(32, 48, 3, padding=1), (1, 32, 12, 12)),
    (nn.Conv2d(32, 32, 3, padding=1, groups=32), (1, 32, 12, 12)),
    (nn.Conv2d(32, 48, 1), (1, 32, 12, 12)),
    (nn.Linear(40, 24), (3, 40)),
]


def deploy(layer, shape, folder):
    """Deploys a layer as sources. Returns the module and an example. The pooling before the layer gives it a blocked input."""
    front = nn.MaxPool2d(2) if len(shape) == 4 else nn.Identity()
    net, x = nn.Sequential(front, layer).eval(), torch.randn(shape)
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
    y = np.empty(tuple(expected.shape), np.float32)
    address = ctypes.c_void_p(y.ctypes.data)
    load(tmp_path / "Net").predict(None, ctypes.c_void_p(x.data_ptr()), ctypes.byref(address))
    close(y, expected)


def build_native(folder):
    done = subprocess.run(["sh", folder / "build.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load(folder)


class Composites(nn.Module):
    """Layers that SOL decomposes, one with indices and weights that belong to no module."""

    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)

    def forward(self, x):
        y = nn.functional.interpolate(self.norm(x), scale_factor=1.5, mode="bilinear")
        y = nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)
        return nn.functional.pad(self.up(y), (1, 1, 2, 2), mode="reflect")


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

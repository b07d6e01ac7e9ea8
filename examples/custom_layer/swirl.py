"""A network with a custom layer in C: python examples/custom_layer/swirl.py

It runs the network by sol.optimize and by torch.compile(backend="sol"), as a library without Python, and compares the results with a
network in which PyTorch computes the same layer.
"""

import ctypes
import math
import tempfile
from pathlib import Path

import torch
from torch import nn

import sol.pytorch as sol

swirl = sol.custom_layer(
    "swirl",
    source=Path(__file__).with_name("swirl.c"),
    inputs=["x", "bias"],
    attributes={"angle": 1.0},
    shape=lambda x, bias, angle: x.shape,
)


def swirl_in_pytorch(x, bias, angle):
    h, w = x.shape[2:]
    i0, j0 = (h - 1) / 2, (w - 1) / 2
    di, dj = torch.meshgrid(torch.arange(h) - i0, torch.arange(w) - j0, indexing="ij")
    turn = angle * (1 - (di**2 + dj**2).sqrt() / (math.hypot(i0, j0) + 1e-6))
    i, j = turn.cos() * di + turn.sin() * dj, turn.cos() * dj - turn.sin() * di
    grid = torch.stack([j / j0, i / i0], 2).expand(x.shape[0], -1, -1, -1)
    return nn.functional.grid_sample(x, grid, align_corners=True) + bias[:, None, None]


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.before = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.bias = nn.Parameter(torch.randn(16))
        self.after = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x):
        y = self.before(x)
        return torch.relu(self.after(self.layer(y, self.bias, angle=0.7)) + y)


def difference(y, expected):
    return f"{float((y - expected).abs().max() / expected.abs().max()):.0e}"


def run_library(net, x):
    """Deploys the network for the sizes of ``x``, and calls its function by ctypes. Returns the result."""
    with tempfile.TemporaryDirectory() as folder:
        sol.deploy(
            net, sol.input(list(x.shape)), lib_name="Swirled", func_name="run_net", path=folder
        )
        library = ctypes.CDLL(f"{folder}/libSwirled.so")
        library.run_net_error.restype = ctypes.c_char_p
        y = torch.empty(x.shape[0], 16, *x.shape[2:])
        address = ctypes.c_void_p(y.data_ptr())
        library.run_net(None, ctypes.c_void_p(x.data_ptr()), ctypes.byref(address))
        assert not library.run_net_error(), library.run_net_error()
        return y


def main():
    torch.manual_seed(0)
    net, plain = Net(swirl).eval(), Net(swirl_in_pytorch).eval()
    plain.load_state_dict(net.state_dict())
    fast = sol.optimize(net, sol.input([0, 3, 0, 0]))
    with torch.no_grad():
        for shape in [1, 3, 32, 32], [4, 3, 20, 27]:
            x = torch.randn(shape)
            expected = plain(x)
            print(f"input {shape}, largest difference to PyTorch:")
            print("  custom layer in PyTorch       ", difference(net(x), expected))
            print("  sol.optimize                  ", difference(fast(x), expected))
            compiled = torch.compile(net, backend="sol")
            print('  torch.compile(backend="sol")  ', difference(compiled(x), expected))
        print("  sol.deploy                    ", difference(run_library(net, x), expected))
        print("steps of SOL's program:")
        for step in sol.profile(fast, x, runs=1).steps:
            print(f"  {step.module:7} {step.name}")
    print("nodes that Python computes:", len(sol.host_nodes(fast)))
    print("calls that ran in PyTorch:", sum(sol.fallbacks(fast).values()))


if __name__ == "__main__":
    main()

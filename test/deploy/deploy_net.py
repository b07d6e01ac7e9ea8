"""Shared by the tests of deploying: a network with all kinds of steps, and programs that call its library."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent
COMPILERS = [cc for cc in ("gcc", "clang") if shutil.which(cc)]
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


def has_avx2():
    return " avx2 " in Path("/proc/cpuinfo").read_text()


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a = nn.Conv2d(n, n, 3, padding=1)
        self.norm = nn.BatchNorm2d(n)
        self.b = nn.Conv2d(n, n, 3, padding=1, groups=n, bias=False)

    def forward(self, x):
        return torch.relu(x + self.b(torch.relu(self.norm(self.a(x)))))


class Net(nn.Module):
    """A network with all kinds of steps: own kernels, generated kernels, epilogues, copies, packing."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.block = Block(24)
        self.point = nn.Conv2d(24, 40, 1)
        self.head = nn.Linear(40 * 4, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.sigmoid(self.stem(x)), 2)
        x = self.block(x)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        x = nn.functional.silu(self.point(x))
        x = torch.cat([x, x], 1)[:, :40]
        return self.head(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)).softmax(1)


def example(batch=1):
    return torch.randn(batch, 3, 30, 27, generator=torch.Generator().manual_seed(batch))


def close(result, expected, error=1e-4):
    expected = expected.detach().numpy()
    assert np.abs(result.reshape(expected.shape) - expected).max() <= error * np.abs(expected).max()


def compile_program(folder, sources, compiler="gcc", flags=(), links=()):
    """Compiles test/deploy/program.c with a library in `folder`."""
    argv = [compiler, *WARNINGS, "-I", str(folder), "-DN_IN=2430", "-DN_OUT=10", *flags]
    argv += [str(HERE / "program.c"), *map(str, sources), *links, "-o", str(folder / "program")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "program"


def run_program(program, x, runner=(), env=None):
    """Runs the program in an environment that has only `env`. Returns the values of the output."""
    folder = program.parent
    x.numpy().tofile(folder / "in.raw")
    argv = [*runner, str(program), str(folder / "in.raw"), str(folder / "out.raw")]
    done = subprocess.run(argv, env=env or {}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.fromfile(folder / "out.raw", np.float32)


def load(folder, name="Net"):
    """Loads lib`name`.so by ctypes."""
    library = ctypes.CDLL(str(folder / f"lib{name}.so"))
    getattr(library, f"{name}_error").restype = ctypes.c_char_p
    return library


def build_portable(folder, name="Net", flags=()):
    """Compiles the portable sources in `folder` to a shared library, and loads it."""
    argv = ["gcc", "-std=c99", *WARNINGS, *flags, "-shared", "-fPIC", f"{name}.c", "-lm"]
    done = subprocess.run(
        [*argv, "-o", f"lib{name}.so"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return load(folder, name)

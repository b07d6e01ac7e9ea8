"""Libraries for the device ve, on the stand-in for libveda (test/veda): the host calls them as those for x86."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from deploy_net import Net, close, compile_program, example, load, run_program
from torch import nn

import sol.pytorch as sol

LIBVEDA = Path(__file__).parents[2] / "build/release/libveda.so"
OPEN = sol.input([0, 3, 30, 27])


SWIRL = """
#include <sol/custom.h>
enum sol_status swirl(const struct sol_host_call *call) {
    const int64_t n = sol_host_count(&call->out[0]);
    for (int64_t i = 0; i < n; i++)
        ((float *)call->out[0].data)[i] = ((const float *)call->in[0].data)[n - 1 - i];
    return SOL_OK;
}
"""


class Words(nn.Module):
    """An MLP over words: inputs of integers, several outputs, an index that may be wrong, a custom layer, which runs on the host."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.hidden = nn.Linear(8, 32)
        self.out = nn.Linear(32, 6)
        self.swirl = sol.custom_layer("swirl", source=SWIRL)

    def forward(self, ids):
        hidden = torch.relu(self.hidden(self.embedding(ids)))
        return {"y": self.out(hidden), "sum": self.swirl(hidden.sum(1)) + 1}


def make(kind):
    torch.manual_seed(5)
    return kind().eval()


def write(folder):
    """Deploys all libraries. In a process of its own, as libveda is opened once per process."""
    options = {"lib_name": "Net", "device": sol.device.ve}
    sol.deploy(
        make(Net), [OPEN], path=folder / "static", weights="packed",
        target=sol.deployment.static_lib, **options,
    )  # fmt: skip
    source = sol.deployment.c_source
    sol.deploy(make(Net), [OPEN], path=folder / "source", target=source, **options)
    ids = sol.input([0, 5], dtype=torch.int64)
    sol.deploy(make(Words), [ids], path=folder / "words", weights="file", **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not LIBVEDA.exists() or not shutil.which("gcc"):
        pytest.skip("needs libveda.so (make veda) and gcc")
    path = tmp_path_factory.mktemp("ve")
    env = {**os.environ, "SOL_VEDA": str(LIBVEDA), "SOL_NCC": "gcc"}
    done = subprocess.run([sys.executable, __file__, path], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def veda(monkeypatch):
    """An environment with the stand-in, which itself needs a compiler and a cache."""
    monkeypatch.setenv("SOL_VEDA", str(LIBVEDA))
    return {
        name: os.environ[name]
        for name in ("SOL_VEDA", "PATH", "SOL_CACHE_DIR")
        if name in os.environ
    }


def link_static(folder):
    static = folder / "static"
    return compile_program(static, [static / "libNet.a"], links=["-lm", "-lpthread"])


def test_packed_static_library(folder, veda):
    program = link_static(folder)
    with torch.no_grad():
        close(run_program(program, example(), env=veda), make(Net)(example()))


def test_without_libveda(folder):
    program = link_static(folder)
    with pytest.raises(AssertionError, match="libveda cannot be opened"):
        run_program(program, example())
    with pytest.raises(AssertionError, match="/nowhere/libveda.so"):
        run_program(program, example(), env={"SOL_VEDA": "/nowhere/libveda.so"})


def test_threads_of_a_folder_of_sources(folder, veda):
    from test_calls import run_threads

    source = folder / "source" / "Net"
    done = subprocess.run(["sh", source / "build.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run_threads(make(Net), source, [source / "libNet.so"], links=[f"-Wl,-rpath,{source}"])


def run(library, ids):
    """Calls Net_run with a context of its own. Returns the outputs and the message of an error."""
    context = ctypes.c_void_p()
    assert library.Net_open(None, ctypes.byref(context)) == 0, library.Net_error()
    batch = len(ids)
    outputs = [np.zeros((batch, 5, 6), np.float32), np.zeros((batch, 32), np.float32)]
    code = library.Net_run(
        context,
        (ctypes.c_int64 * 1)(batch),
        (ctypes.c_void_p * 1)(ids.ctypes.data),
        (ctypes.c_void_p * 2)(*[y.ctypes.data for y in outputs]),
    )
    message = library.Net_error()
    library.Net_close(context)
    assert bool(code) == bool(message)
    return outputs, message


def test_words(folder, veda):
    """Several outputs, open sizes, a file of weights; an error of a kernel has the library's message, and ends no later call."""
    library = load(folder / "words")
    model = make(Words)
    library.predict_init(7)
    assert b"there is no ve 7" in library.Net_error()
    library.predict_init(1)
    assert not library.Net_error()
    library.predict_init(0)
    assert b"uses device 1 already" in library.Net_error()
    for batch in (1, 4, 2):
        ids = np.arange(5 * batch).reshape(batch, 5) % 11
        outputs, message = run(library, ids)
        assert not message
        for result, expected in zip(outputs, model(torch.from_numpy(ids)).values()):
            close(result, expected)
        ids[-1, 2] = 11
        assert run(library, ids)[1] == b"gather: number 11, but there are 11 rows"


def test_needs_and_exports(folder):
    from test_deploy import LIBC, exported, needed

    library = folder / "words" / "libNet.so"
    assert {name.split(".so")[0].split("-")[0] for name in needed(library)} <= LIBC
    assert all(s.startswith(("Net_", "predict", "sol_pool_1_")) for s in exported(library))
    assert "Runs on ve" in (folder / "words" / "Net.h").read_text()


def test_refused(net, tmp_path, monkeypatch):
    def deploy(**options):
        sol.deploy(net, [example()], lib_name="Net", path=tmp_path, **options)

    with pytest.raises(ValueError, match='the device "far"'):
        deploy(device="far")
    with pytest.raises(ValueError, match="no instruction sets"):
        deploy(device=("ve", "avx2"))
    monkeypatch.setenv("SOL_DISABLE", "ve")
    with pytest.raises(RuntimeError, match="ve cannot be used: disabled"):
        deploy(device="ve")
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":
    write(Path(sys.argv[1]))

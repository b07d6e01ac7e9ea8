"""Calls of a library that overlap, fail, or follow a fork; and the messages of its error function."""

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from deploy_net import HERE, WARNINGS, build_portable, close, example, has_avx2, load

import sol.pytorch as sol

N_THREADS = 4
C_SOURCE, X86 = sol.deployment.c_source, sol.device.x86


def inputs():
    return [example() + i for i in range(N_THREADS)]


def run_threads(net, folder, sources, flags=(), links=()):
    """Links test/deploy/threads.c with the library, runs it, and checks the result of each thread."""
    argv = [
        "gcc",
        *WARNINGS,
        "-g",
        "-O1",
        "-pthread",
        "-I",
        folder,
        "-DN_IN=2430",
        "-DN_OUT=10",
        *flags,
    ]
    argv += [HERE / "threads.c", *sources, *links, "-lm", "-o", folder / "threads"]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torch.cat(inputs()).numpy().tofile(folder / "in.raw")
    done = subprocess.run(
        ["./threads", "in.raw", "out.raw"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for x, y in zip(inputs(), np.fromfile(folder / "out.raw", np.float32).reshape(N_THREADS, 10)):
        close(y, net(x))


TSAN = ["-fsanitize=thread"]
PORTABLE = {
    "memory": ({}, []),
    "one context": ({}, ["-DIN_CONTEXT"]),
    "file": ({"weights": "file"}, []),
    "static": ({"memory": "static"}, ["-DOWN_MEMORY"]),
}


@pytest.mark.parametrize("flags", [[], TSAN], ids=["plain", "tsan"])
@pytest.mark.parametrize("kind", PORTABLE)
def test_threads_of_portable_c(net, tmp_path, kind, flags):
    options, own = PORTABLE[kind]
    sol.deploy(net, [example()], lib_name="Net", path=tmp_path, target=C_SOURCE, **options)
    for standard in ("-std=c99", "-std=c11"):
        argv = ["gcc", standard, *WARNINGS, "-O1", "-g", *flags, "-c", "Net.c", "-o", "Net.o"]
        assert subprocess.run(argv, cwd=tmp_path).returncode == 0
        run_threads(net, tmp_path, [tmp_path / "Net.o"], [*flags, *own])


NO_BUILTIN = "-U__GCC_ATOMIC_POINTER_LOCK_FREE"
ATOMICS = {
    "C11's": ([NO_BUILTIN], []),
    # Without atomic operations only one thread may open the library; later calls may overlap.
    "none": ([NO_BUILTIN, "-D__STDC_NO_ATOMICS__=1"], ["-DIN_CONTEXT"]),
    "no instruction": ([NO_BUILTIN, "-D__GCC_ATOMIC_POINTER_LOCK_FREE=1"], ["-DIN_CONTEXT"]),
}


@pytest.mark.parametrize("kind", ATOMICS)
def test_threads_with_other_atomics(net, tmp_path, kind):
    flags, own = ATOMICS[kind]
    sol.deploy(net, [example()], lib_name="Net", path=tmp_path, target=C_SOURCE, weights="file")
    argv = ["gcc", "-std=c11", *WARNINGS, *flags, *TSAN, "-g", "-c", "Net.c", "-o", "Net.o"]
    assert subprocess.run(argv, cwd=tmp_path).returncode == 0
    run_threads(net, tmp_path, [tmp_path / "Net.o"], [*TSAN, *own])


@pytest.mark.parametrize("weights", ["embedded", "file"])
def test_threads_of_a_library(net, tmp_path, weights):
    """Includes the first call, which packs the weights. The library's own sources run under ThreadSanitizer, with kernels for
    AVX2: gcc needs minutes to instrument the longer loops of those for AVX-512."""
    for device, flags in (X86, []), ((X86, "avx2") if has_avx2() else X86, TSAN):
        folder = tmp_path / f"with{''.join(flags)}" / "Net"
        sol.deploy(
            net, [example()], lib_name="Net", path=folder.parent, target=C_SOURCE, device=device,
            weights=weights,
        )  # fmt: skip
        environment = {**os.environ, "CC": " ".join([os.environ["CC"], *flags])}
        argv = ["sh", folder / "build.sh"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        links = [folder / "libNet.so", f"-Wl,-rpath,{folder}"]
        run_threads(net, folder, [], flags, links)


def test_static_memory_refuses_a_call_within_a_call(net, tmp_path):
    """The library detects a call that begins before another has ended, and this call writes nothing."""
    sol.deploy(net, [example()], lib_name="Net", path=tmp_path, target=C_SOURCE, memory="static")
    assert "One call at a time" in (tmp_path / "Net.h").read_text()
    text = (tmp_path / "Net.c").read_text()
    begin = text.index("{", text.index("static int sol_steps("))
    hook = "    { extern void within(void); within(); }\n"
    (tmp_path / "Net.c").write_text(text[: begin + 2] + hook + text[begin + 2 :])
    (tmp_path / "main.c").write_text(
        '#include "Net.h"\n#include <string.h>\nstatic float x[2430], y[10], z[10];\n'
        "static int depth, refused;\nvoid within(void);\nvoid within(void) {\n    float *out = z;\n"
        "    z[0] = 7;\n    if (depth++) return;\n    predict(0, x, &out);\n"
        '    refused = strstr(predict_error(), "under way") && z[0] == 7;\n}\n'
        "int main(void) {\n    float *out = y;\n    predict(0, x, &out);\n"
        "    if (!refused || *predict_error()) return 1;\n    refused = 0, depth = 1;\n"
        "    predict(0, x, &out);\n    return *predict_error() != 0;\n}\n"
    )
    argv = ["gcc", "-std=c99", *WARNINGS, "main.c", "Net.c", "-lm", "-o", "main"]
    assert subprocess.run(argv, cwd=tmp_path).returncode == 0
    assert subprocess.run([tmp_path / "main"]).returncode == 0


def make_library(net, folder, kind):
    portable = kind != "shared"
    sol.deploy(
        net, [example()], lib_name="Net", path=folder,
        target=C_SOURCE if portable else sol.deployment.shared_lib,
        memory=kind if portable else "dynamic",
    )  # fmt: skip
    library = build_portable(folder) if portable else load(folder)
    library.predict_error.restype = ctypes.c_char_p
    return library


def predict(library, x, y):
    out = ctypes.c_void_p(y.ctypes.data)
    library.predict(
        None, ctypes.c_void_p(x.data_ptr() if x is not None else None), ctypes.byref(out)
    )


@pytest.mark.parametrize("kind", ["shared", "dynamic", "static"])
def test_errors_are_those_of_the_last_call(net, tmp_path, kind):
    library = make_library(net, tmp_path, kind)
    x, y = example(), np.empty(10, np.float32)
    shape = (ctypes.c_int64 * 8)()
    context = ctypes.c_void_p()

    def fails(call, *words):
        call()
        message = library.predict_error()
        assert message and all(word in message for word in words), message
        assert library.Net_error() == message
        others = []
        thread = threading.Thread(target=lambda: others.append(library.predict_error()))
        thread.start(), thread.join()
        assert others == [b""]

    def succeeds(call):
        fails(lambda: library.Net_output_shape(9, None, shape), b"output")
        call()
        assert library.predict_error() == library.Net_error() == b""

    fails(lambda: predict(library, None, y), b"input")
    fails(lambda: library.predict_init(7), b"device")
    fails(lambda: library.Net_open(None, None), b"context")
    fails(lambda: library.Net_run(None, None, None, None), b"context")
    fails(lambda: library.Net_input_shape(-1, None, shape), b"input")
    succeeds(lambda: library.predict_init(0))
    succeeds(lambda: library.predict_seed(3))
    succeeds(lambda: predict(library, x, y))
    close(y, net(x))
    succeeds(lambda: library.Net_open(None, ctypes.byref(context)))
    fails(lambda: library.Net_run(context, None, None, None), b"NULL")
    pointers = [(ctypes.c_void_p * 1)(address) for address in (x.data_ptr(), y.ctypes.data)]
    succeeds(lambda: library.Net_run(context, None, *pointers))
    succeeds(lambda: library.Net_input_shape(0, None, shape))
    succeeds(lambda: library.Net_output_shape(0, None, shape))
    succeeds(lambda: library.Net_set_threads(1))
    succeeds(lambda: library.Net_close(context))


FORK = """
import ctypes, os, sys, threading, time
library = ctypes.CDLL(sys.argv[1])
opener = threading.Thread(target=lambda: library.predict_init(0))
opener.start()
time.sleep(float(sys.argv[2]))
child = os.fork()
if not child:
    library.predict_init(0)
    library.predict_error.restype = ctypes.c_char_p
    os._exit(library.predict_error() != b"")
opener.join()
end = time.monotonic() + 60
while not (done := os.waitpid(child, os.WNOHANG))[0]:
    if time.monotonic() > end:
        os.kill(child, 9)
        sys.exit("the child hangs")
    time.sleep(0.01)
sys.exit(done[1])
"""


def test_fork_while_another_thread_opens(tmp_path):
    """A lock that another thread holds at the fork must not stay locked in the child."""
    model = torch.nn.Conv2d(1024, 1024, 3).eval()
    sol.deploy(
        model, [torch.zeros(1, 1024, 4, 4)], lib_name="Net", path=tmp_path, weights="file"
    )  # fmt: skip
    for delay in ("0.001", "0.005", "0.02", "0.05"):
        argv = [sys.executable, "-W", "ignore", "-c", FORK, tmp_path / "libNet.so", delay]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

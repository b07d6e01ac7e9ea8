"""Deployed libraries: results compared with PyTorch, dependencies, and errors that leave no files."""

import ctypes
import os
import shutil
import subprocess
import threading

import numpy as np
import pytest
import torch
from deploy_net import (
    COMPILERS,
    WARNINGS,
    Net,
    close,
    compile_program,
    example,
    has_avx2,
    load,
    run_program,
)
from torch import nn

import sol.pytorch as sol

LIBC = {"libc", "libm", "libpthread", "ld"}  # ld: the loader, for thread-local variables


def needed(library):
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    return {line.split("[")[1].split("]")[0] for line in text.splitlines() if "NEEDED" in line}


def exported(library):
    text = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True
    ).stdout
    return {line.split()[-1] for line in text.splitlines()}


@pytest.mark.parametrize("weights", ["embedded", "file", "packed"])
def test_shared_library(net, tmp_path, weights):
    sol.deploy(net, [sol.input([0, 3, 30, 27])], lib_name="Net", path=tmp_path, weights=weights)
    names = {"Net.h", "libNet.so"} | ({"Net.weights"} if weights == "file" else set())
    assert {p.name for p in tmp_path.iterdir()} == names
    library = tmp_path / "libNet.so"
    assert {name.split(".so")[0].split("-")[0] for name in needed(library)} <= LIBC
    assert all(s.startswith(("Net_", "predict", "sol_pool_1_")) for s in exported(library))
    for compiler in COMPILERS:
        program = compile_program(tmp_path, [library], compiler, links=[f"-Wl,-rpath,{tmp_path}"])
        close(run_program(program, example()), net(example()))


def test_static_library(net, tmp_path):
    sol.deploy(net, [example()], lib_name="Net", path=tmp_path, target=sol.deployment.static_lib)
    program = compile_program(
        tmp_path, [tmp_path / "libNet.a"], flags=["-DOWN_MEMORY"], links=["-lm", "-lpthread"]
    )
    close(run_program(program, example()), net(example()))


@pytest.mark.parametrize("memory", ["dynamic", "static"])
def test_portable_source(net, tmp_path, memory):
    sol.deploy(
        net, [sol.input([0, 3, 30, 27])], lib_name="Net", path=tmp_path,
        target=sol.deployment.c_source, memory=memory,
    )  # fmt: skip
    assert {p.name for p in tmp_path.iterdir()} == {"Net.h", "Net.c", "Net_math.h"}
    for compiler in COMPILERS:
        flags = ["-std=c99", "-O2"] + (["-DOWN_MEMORY"] if memory == "static" else [])
        program = compile_program(tmp_path, [tmp_path / "Net.c"], compiler, flags, ["-lm"])
        close(run_program(program, example()), net(example()))
    used = subprocess.run(["nm", "-u", program], capture_output=True, text=True).stdout
    if memory == "static":
        (tmp_path / "empty.c").write_text("")
        assert "calloc" not in used


def test_portable_source_is_small(tmp_path):
    """A network for handwritten digits: size of its code and RAM; results on a 32-bit processor, if there is an emulator."""
    parts = [nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    parts += [nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(64, 10)).eval()
    x = torch.rand(1, 1, 8, 8)
    sol.deploy(
        model, [x], lib_name="Net", path=tmp_path, target=sol.deployment.c_source, memory="static"
    )
    ram = int((tmp_path / "Net.h").read_text().split("RAM: ")[1].split()[0])
    assert 64 * 64 * 4 <= ram <= 64 * 1024
    arm = shutil.which("arm-linux-gnueabihf-gcc") and shutil.which("qemu-arm")
    compiler = "arm-linux-gnueabihf-gcc" if arm else "gcc"
    code = tmp_path / "Net.o"
    argv = [compiler, "-std=c99", "-Os", *WARNINGS, "-c", tmp_path / "Net.c", "-o", code]
    assert subprocess.run(argv).returncode == 0
    sizes = subprocess.run(["size", "-A", code], capture_output=True, text=True).stdout
    assert sum(int(x.split()[1]) for x in sizes.splitlines() if x.startswith(".text")) <= 65536
    flags = ["-static", "-DOWN_MEMORY", "-UN_IN", "-DN_IN=64"]
    program = compile_program(tmp_path, [code], compiler, flags, ["-lm"])
    close(run_program(program, x, [shutil.which("qemu-arm")] if arm else []), model(x))


def test_sources_of_a_library(net, tmp_path):
    """For a device with own kernels: a folder of sources, which can be built in another place."""
    sol.deploy(
        net, [example()], lib_name="Net", path=tmp_path, target=sol.deployment.c_source,
        device=sol.device.x86,
    )  # fmt: skip
    assert {p.name for p in tmp_path.iterdir()} == {"Net"}
    elsewhere = (tmp_path / "Net").rename(tmp_path / "else where")
    done = subprocess.run(["sh", elsewhere / "build.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    program = compile_program(
        elsewhere, [elsewhere / "libNet.so"], links=[f"-Wl,-rpath,{elsewhere}"]
    )
    close(run_program(program, example()), net(example()))


def test_contexts_and_batches(net, tmp_path):
    """Two contexts in two threads, with different batches."""
    sol.deploy(net, [sol.input([0, 3, 30, 27])], lib_name="Net", path=tmp_path)
    library = load(tmp_path)
    errors = []

    def work(batch):
        context = ctypes.c_void_p()
        assert library.Net_open(None, ctypes.byref(context)) == 0
        x = example(batch)
        y = np.empty((batch, 10), np.float32)
        for _ in range(20):
            y[:] = -1
            code = library.Net_run(
                context,
                (ctypes.c_int64 * 1)(batch),
                (ctypes.c_void_p * 1)(x.data_ptr()),
                (ctypes.c_void_p * 1)(y.ctypes.data),
            )
            with torch.no_grad():
                if code or np.abs(y - net(x).numpy()).max() > 1e-5:
                    errors.append((batch, code, library.Net_error()))
        library.Net_close(context)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in (1, 3, 17)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors
    shape = (ctypes.c_int64 * 8)()
    assert library.Net_output_shape(0, (ctypes.c_int64 * 1)(7), shape) == 2
    assert list(shape[:2]) == [7, 10]
    assert library.Net_input_shape(1, None, shape) == -1
    assert library.Net_run(None, None, None, None) == 1


def test_two_libraries_in_one_program(net, tmp_path):
    """Static libraries: symbols do not clash, both compute, and they share one thread pool."""
    other = nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)).eval()
    other(example())
    for name, model in (("Net", net), ("Other", other)):
        sol.deploy(
            model, [example()], lib_name=name, path=tmp_path, func_name=f"run{name}",
            target=sol.deployment.static_lib,
        )  # fmt: skip
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include <stdlib.h>\n#include "Net.h"\n#include "Other.h"\n'
        "static float x[2430];\n"
        "int main(int n, char **arg) {\n    float *y = 0, *z = 0;\n"
        '    FILE *in = fopen(arg[1], "rb"), *out = fopen(arg[2], "wb");\n'
        "    if (n != 3 || !in || !out || fread(x, 4, 2430, in) != 2430) return 2;\n"
        "    runNet(0, x, &y);\n    runOther(0, x, &z);\n"
        "    if (*Net_error() || *Other_error() || *runNet_error()) return 1;\n"
        "    if (!y || !z) return 1;\n    fwrite(y, 4, 10, out);\n    fwrite(z, 4, 4, out);\n"
        "    free(y);\n    free(z);\n    return fclose(out);\n}\n"
    )
    argv = ["gcc", *WARNINGS, "-I.", "main.c", "libNet.a", "libOther.a", "-lm", "-lpthread"]
    done = subprocess.run([*argv, "-o", "program"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    values = run_program(tmp_path / "program", example())
    close(values[:10], net(example()))
    close(values[10:], other(example()))
    symbols = subprocess.run(["nm", tmp_path / "program"], capture_output=True, text=True).stdout
    assert symbols.count(" sol_pool_1_run\n") == 1


def test_the_weights_of_today(net, tmp_path):
    """The library has the present values of the weights, also if they changed after sol.optimize."""
    model = Net().eval()
    fast = sol.optimize(model, sol.input([0, 3, 30, 27]))
    with torch.no_grad():
        model.head.bias += 3 * torch.randn(10)
    sol.deploy(fast, lib_name="Net", path=tmp_path, weights="packed")
    program = compile_program(tmp_path, [tmp_path / "libNet.so"], links=[f"-Wl,-rpath,{tmp_path}"])
    close(run_program(program, example()), model(example()))


def test_a_wrong_file_of_weights(net, tmp_path):
    sol.deploy(net, [example()], lib_name="Net", path=tmp_path, weights="file")
    library = load(tmp_path)
    context = ctypes.c_void_p()
    for content in (b"", b"SOLW001\0" + bytes(5000), (tmp_path / "Net.weights").read_bytes()[:-99]):
        (tmp_path / "bad").write_bytes(content)
        assert library.Net_open(str(tmp_path / "bad").encode(), ctypes.byref(context)) == 1
        assert b"weights" in library.Net_error()
    assert library.Net_open(b"/nowhere/at/all", ctypes.byref(context)) == 1
    assert library.Net_open(None, ctypes.byref(context)) == 0


NAMES = [
    "a-b",
    "1a",
    "",
    "int",
    "../x",
    "a b",
    'a";system("x")//',
    "é",
    "x" * 300,
    "predict",
    "malloc",
    "expf",
    "sol_x",
    "vec",
]


@pytest.mark.parametrize("name", NAMES)
def test_bad_names(net, tmp_path, name):
    with pytest.raises(ValueError, match="name"):
        sol.deploy(net, [example()], lib_name=name, path=tmp_path)
    with pytest.raises(ValueError, match="name"):
        sol.deploy(net, [example()], lib_name="predict", func_name=name, path=tmp_path)
    assert not list(tmp_path.iterdir())


def test_bad_arguments(net, tmp_path):
    def deploy(**arguments):
        sol.deploy(net, [example()], **{"lib_name": "Net", "path": tmp_path, **arguments})

    with pytest.raises(ValueError, match="folder"):
        deploy(path="/dev/null/nowhere")
    with pytest.raises(ValueError, match="target"):
        deploy(target="exe")
    with pytest.raises(ValueError, match="weights"):
        deploy(weights="somewhere")
    with pytest.raises(ValueError, match="memory"):
        deploy(memory="none")
    with pytest.raises(ValueError, match="vax"):
        deploy(device="vax")
    with pytest.raises(ValueError, match="avx3"):
        deploy(device=("x86", "avx3"))
    with pytest.raises(RuntimeError, match="no_such_compiler"):
        deploy(compiler="no_such_compiler")
    with pytest.raises(RuntimeError, match="false"):
        deploy(compiler="false")
    with pytest.raises(NotImplementedError, match="static memory"):
        deploy(memory="static")
    with pytest.raises(NotImplementedError, match="sources"):
        deploy(device="c")
    with pytest.raises(TypeError, match="Module"):
        sol.deploy(3, [example()], path=tmp_path)
    with pytest.raises(TypeError, match="takes"):
        sol.deploy(net, path=tmp_path)
    assert not list(tmp_path.iterdir())


def test_strange_folders_and_failures_leave_nothing(net, tmp_path):
    folder = tmp_path / "-o a;'\"\\ ü\n"
    folder.mkdir()
    sol.deploy(net, [example()], lib_name="Net", path=folder)
    assert {p.name for p in folder.iterdir()} == {"Net.h", "libNet.so"}
    library = load(folder)
    assert library.predict_seed(3) == 0
    before = (folder / "libNet.so").read_bytes()
    with pytest.raises(RuntimeError):
        sol.deploy(net, [example()], lib_name="Net", path=folder, compiler="false")
    assert (folder / "libNet.so").read_bytes() == before
    assert len(os.listdir(folder)) == 2


def test_another_instruction_set(net, tmp_path):
    if not has_avx2():
        pytest.skip("needs AVX2")
    sol.deploy(net, [example()], lib_name="Net", path=tmp_path, device=(sol.device.x86, "avx2"))
    text = subprocess.run(
        ["objdump", "-d", tmp_path / "libNet.so"], capture_output=True, text=True
    ).stdout
    assert "%ymm" in text and "%zmm" not in text
    program = compile_program(tmp_path, [tmp_path / "libNet.so"], links=[f"-Wl,-rpath,{tmp_path}"])
    close(run_program(program, example()), net(example()))


def test_arm64(net, tmp_path):
    """A library that is cross-compiled, and runs under an emulator."""
    if not shutil.which("aarch64-linux-gnu-gcc") or not shutil.which("qemu-aarch64"):
        pytest.skip("needs gcc-aarch64-linux-gnu and qemu-user")
    for weights in ("embedded", "packed"):
        sol.deploy(
            net, [example()], lib_name="Net", path=tmp_path, device=sol.device.arm64,
            target=sol.deployment.static_lib, weights=weights,
        )  # fmt: skip
        program = compile_program(
            tmp_path, [tmp_path / "libNet.a"], "aarch64-linux-gnu-gcc", links=["-lm", "-lpthread"]
        )
        runner = [shutil.which("qemu-aarch64"), "-L", "/usr/aarch64-linux-gnu"]
        close(run_program(program, example(), runner), net(example()))


def words_model(words):
    """An ONNX model: a Gather by an input of integers, and a copy of values in an irregular order."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    nodes = [
        helper.make_node("Gather", ["words", "index"], ["e"]),
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("Gather", ["r", "order"], ["y"], axis=2),
    ]
    constants = {"words": words, "order": np.array([3, 0, 2])}
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("index", onnx.TensorProto.INT64, [2, 5])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 5, 3])],
        [onnx.numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def test_whole_numbers(tmp_path):
    import sol.onnx

    words = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    index = np.array([[0, 8, 3, -1, 2], [5, 5, -9, 1, 4]])
    sol.onnx.deploy(words_model(words), path=tmp_path, lib_name="Words")
    library = ctypes.CDLL(tmp_path / "libWords.so")
    out = np.empty((2, 5, 3), np.float32)
    address = ctypes.c_void_p(out.ctypes.data)
    library.predict(None, index.ctypes.data_as(ctypes.c_void_p), ctypes.byref(address))
    np.testing.assert_array_equal(out, np.maximum(words[index], 0)[..., [3, 0, 2]])
    sol.onnx.deploy(
        words_model(words), path=tmp_path, lib_name="Plain", target=sol.deployment.c_source
    )
    argv = ["gcc", "-std=c99", *WARNINGS, "-shared", "-fPIC", "Plain.c", "-lm", "-o", "libPlain.so"]
    assert subprocess.run(argv, cwd=tmp_path).returncode == 0
    plain = ctypes.CDLL(tmp_path / "libPlain.so")
    out[:] = -1
    plain.predict(None, index.ctypes.data_as(ctypes.c_void_p), ctypes.byref(address))
    np.testing.assert_array_equal(out, np.maximum(words[index], 0)[..., [3, 0, 2]])
    index[0, 0] = 9
    for lib in (library, plain):
        lib.predict_error.restype = ctypes.c_char_p
        lib.predict(None, index.ctypes.data_as(ctypes.c_void_p), ctypes.byref(address))
        assert b"number" in lib.predict_error()


NASTY = [
    '*/ int x = system("x"); /*',
    "a\nb",
    "??/",
    'a";b',
    "int",
    "\u00fc" * 40,
    "%n%s",
    "x" * 9000,
]


@pytest.mark.parametrize("target", [sol.deployment.shared_lib, sol.deployment.c_source])
def test_names_and_numbers_of_any_kind(tmp_path, target):
    """Names of a model cannot inject C code; numbers without a C literal, such as NaN, keep their values."""
    import sol.onnx

    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    odd = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-42, 3.4e38, 1 / 3, -1e-30], np.float32)
    names = iter(NASTY)
    x, w, a, y, z, graph_name, node_name, doc = names
    nodes = [
        helper.make_node("Add", [x, w], [a], name=node_name, doc_string=doc),
        helper.make_node("Clip", [a, "low", "high"], [y]),
        helper.make_node("Exp", [y], [z]),
    ]
    constants = {w: odd, "low": np.float32(-np.inf), "high": np.float32(3e38)}
    graph = helper.make_graph(
        nodes,
        graph_name,
        [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 8]) for n in (z, y)],
        [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    sol.onnx.deploy(model, path=tmp_path, lib_name="Odd", target=target)
    for compiler in COMPILERS:
        if target == sol.deployment.c_source:
            argv = [compiler, "-std=c99", *WARNINGS, "-shared", "-fPIC", "Odd.c", "-lm"]
            assert subprocess.run([*argv, "-o", "libOdd.so"], cwd=tmp_path).returncode == 0
        header = [compiler, *WARNINGS, "-fsyntax-only", "-x", "c", "Odd.h"]
        assert subprocess.run(header, cwd=tmp_path).returncode == 0
    library = ctypes.CDLL(tmp_path / "libOdd.so")
    value = np.array([[0.0] * 8, [1.0] * 8], np.float32)
    out = [np.empty((2, 8), np.float32) for _ in range(2)]
    addresses = [ctypes.byref(ctypes.c_void_p(v.ctypes.data)) for v in out]
    library.predict(None, value.ctypes.data_as(ctypes.c_void_p), *addresses)
    expected = np.minimum(value + odd, np.float32(3e38))
    np.testing.assert_array_equal(out[1], expected)
    np.testing.assert_allclose(out[0], np.exp(expected), rtol=1e-6)

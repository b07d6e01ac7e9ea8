"""Programs of ONNX Runtime run unchanged: OrtValue, IOBinding, and sol.onnx in place of the package onnxruntime."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper

import sol.onnx as ort

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def double():
    """y = 2 * x, n = size of x."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Size", ["x"], ["n"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3]),
        helper.make_tensor_value_info("n", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    imports = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


@pytest.fixture(scope="module")
def net():
    return ort.InferenceSession(double())


# ---- OrtValue ----


def test_tensor_values():
    x = X.copy()
    value = ort.OrtValue.ortvalue_from_numpy(x, "cpu", 0)
    assert value.numpy() is not None and value.data_ptr() == x.ctypes.data
    assert (value.shape(), value.data_type(), value.element_type()) == ([2, 3], "tensor(float)", 1)
    assert value.device_name() == "cpu" and value.tensor_size_in_bytes() == 24
    assert value.has_value() and value.is_tensor() and not value.is_sparse_tensor()
    value.update_inplace(X + 1)
    np.testing.assert_array_equal(x, X + 1)
    np.testing.assert_array_equal(np.asarray(value), X + 1)
    np.testing.assert_array_equal(np.from_dlpack(value), X + 1)
    assert ort.OrtValue.from_dlpack(x).data_ptr() == x.ctypes.data
    with pytest.raises(ValueError, match=r"is float32 \[3\], its memory float32 \[2, 3\]"):
        value.update_inplace(X[0])
    scalar = ort.OrtValue.ortvalue_from_numpy(np.array(3))
    assert scalar.shape() == []


def test_new_values():
    for kind in (np.int64, TensorProto.INT64):
        value = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], kind)
        assert value.data_type() == "tensor(int64)" and not value.numpy().any()
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, np.uint16), 16)
    assert value.data_type() == "tensor(bfloat16)"


def test_values_without_a_tensor():
    value = ort.OrtValue([X, X])
    assert value.is_tensor_sequence() and value.data_type() == "seq(tensor(float))"
    assert ort.OrtValue([{1: 0.5}]).data_type() == "seq(map(int64,tensor(float)))"
    with pytest.raises(RuntimeError, match="no tensor"):
        value.numpy()


@pytest.mark.parametrize(
    "call",
    [
        lambda: ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0),
        lambda: ort.OrtValue.ortvalue_from_shape_and_type([1], np.float32, "cuda"),
        lambda: ort.OrtDevice.make("cuda", 0),
    ],
)
def test_other_devices(call):
    with pytest.raises(RuntimeError, match="there is no device 'cuda'"):
        call()


def test_run_with_values(net):
    y, n = net.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(X)})
    np.testing.assert_array_equal(y.numpy(), 2 * X)
    assert n.numpy() == 6


# ---- IOBinding ----


def test_bound_arrays(net):
    binding = net.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("n")
    binding.bind_output("y")
    net.run_with_iobinding(binding)
    n, y = binding.copy_outputs_to_cpu()
    assert n == 6
    np.testing.assert_array_equal(y, 2 * X)
    binding.clear_binding_outputs()
    assert binding.get_outputs() == []
    binding.clear_binding_inputs()
    binding.bind_output("y")
    with pytest.raises(ValueError, match="missing"):
        net.run_with_iobinding(binding)


def test_bound_values(net):
    x, y = X.copy(), np.zeros_like(X)
    binding = net.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(y))
    for factor in (1, 3):
        x[...] = factor * X
        net.run_with_iobinding(binding)
        np.testing.assert_array_equal(y, 2 * factor * X)
    assert binding.get_outputs()[0].data_ptr() == y.ctypes.data


def test_bound_addresses(net):
    x, y = X.copy(), np.zeros_like(X)
    binding = net.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, TensorProto.FLOAT, y.shape, y.ctypes.data)
    net.run_with_iobinding(binding, ort.RunOptions())
    np.testing.assert_array_equal(y, 2 * X)
    with pytest.raises(ValueError, match="needs element_type and shape"):
        binding.bind_output("y", buffer_ptr=y.ctypes.data)


def test_memory_that_does_not_fit(net):
    binding = net.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32)))
    with pytest.raises(ValueError, match=r"output y is float32 \[2, 3\], its memory float32 \[3\]"):
        net.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="there is no output 'z'"):
        binding.bind_output("z")
    with pytest.raises(ValueError, match="there is no input 'z'"):
        binding.bind_cpu_input("z", X)


def test_calls_on_another_thread(net):
    done, found = threading.Event(), []

    def callback(*arguments):
        found.append(arguments)
        done.set()

    net.run_async(["y"], {"x": X}, callback, "mine")
    assert done.wait(60)
    results, user_data, error = found.pop()
    np.testing.assert_array_equal(results[0], 2 * X)
    assert (user_data, error) == ("mine", "")
    done.clear()
    net.run_async(["y"], {}, callback, None)
    assert done.wait(60)
    assert "missing" in found[0][2] and found[0][0] == []


def test_functions_without_effect():
    ort.set_seed(3)
    ort.set_default_logger_verbosity(0)
    ort.disable_telemetry_events()
    ort.enable_telemetry_events()
    ort.preload_dlls(directory="")
    assert not ort.has_collective_ops() and ort.get_all_providers() == ["CPUExecutionProvider"]
    assert ort.get_build_info().startswith("SOL ")


# ---- In place of the package ----

# A client as they are in packages: it has its own names for the modules, and asks for a version and for exceptions.
CLIENT = """
import sys
import numpy as np
import onnxruntime as rt
from onnxruntime import InferenceSession, SessionOptions
from onnxruntime.capi._pybind_state import set_default_logger_severity
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

set_default_logger_severity(3)
assert tuple(map(int, rt.__version__.split(".")[:2])) >= (1, 17) and rt.get_device() == "CPU"
options = SessionOptions()
options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_ENABLE_ALL
options.execution_mode = rt.ExecutionMode.ORT_SEQUENTIAL
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
session = InferenceSession(sys.argv[1], sess_options=options, providers=rt.get_available_providers())
(y,) = session.run(["y"], {session.get_inputs()[0].name: np.ones((1, 3), np.float32)})
try:
    session.run(None, {"x": np.ones((1, 4), np.float32)})
except InvalidArgument as error:
    print(y.tolist(), type(error).__name__)
try:
    import onnxruntime.quantization
except ModuleNotFoundError:
    print("no quantization")
"""


@pytest.mark.parametrize("way", ["function", "program", "module"])
def test_programs_run_unchanged(tmp_path, way):
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "model.onnx").write_bytes(double())
    call = "import runpy, sol.onnx; sol.onnx.replace_onnxruntime(); runpy.run_path('client.py')"
    arguments = {
        "function": ["-c", call],
        "program": ["-m", "sol.onnx", "client.py"],
        "module": ["-m", "sol.onnx", "-m", "client"],
    }[way]
    command = [sys.executable, *arguments, "model.onnx"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[2.0, 2.0, 2.0]] InvalidArgument\nno quantization\n"


def test_too_late():
    code = "import sys; sys.modules['onnxruntime'] = sys; import sol.onnx; sol.onnx.replace_onnxruntime()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "RuntimeError: onnxruntime has been imported" in done.stderr


def test_usage():
    done = subprocess.run(
        [sys.executable, "-m", "sol.onnx"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode and "usage: python -m sol.onnx program.py" in done.stderr

"""InferenceSession: what a program that was written for ONNX Runtime sees. What it expects here, ONNX Runtime 1.31 returns."""

import copy
import json
import os

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sol
import sol.onnx as ort
from sol.onnx.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    NotImplemented,
)

FLOAT, INT64, BOOL, STRING = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.STRING,
)
TYPES = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32, "int16": np.int16,
    "int8": np.int8, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64, "bool": np.bool_,
}  # fmt: skip
port = helper.make_tensor_value_info
x, z = np.ones((3, 2), np.float32), np.ones((2, 4), np.float32)


def make(nodes, inputs, outputs, values=(), opset=17, ir_version=8, **texts):
    values = [numpy_helper.from_array(np.asarray(v), name) for name, v in dict(values).items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, values)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **texts)


def open_session(*args, options=None, **more):
    return ort.InferenceSession(make(*args, **more).SerializeToString(), options)


def node(op, inputs, outputs="y", **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def described():
    """y = (x + w) z; w has a value that a call may replace."""
    nodes = [node("Add", "x w", "t"), node("MatMul", "t z")]
    inputs = [port("x", FLOAT, ["n", 2]), port("z", FLOAT, [2, None]), port("w", FLOAT, [2])]
    texts = {"producer_name": "me", "domain": "dom", "model_version": 7, "doc_string": "doc"}
    w = np.array([1, 2], np.float32)
    model = make(nodes, inputs, [port("y", FLOAT, ["n", None])], {"w": w}, **texts)
    model.metadata_props.add(key="a", value="b")
    model.graph.doc_string = "graph"
    return model


@pytest.fixture(scope="module")
def net():
    return ort.InferenceSession(described().SerializeToString())


def identity(kind, shape=("n",)):
    return open_session([node("Identity", "x")], [port("x", kind, shape)], [port("y", kind, shape)])


def ports(args):
    return [(arg.name, arg.type, arg.shape) for arg in args]


# ---- What a session says about itself ----


def test_inputs_and_outputs(net):
    expected = [("x", "tensor(float)", ["n", 2]), ("z", "tensor(float)", [2, None])]
    assert ports(net.get_inputs()) == expected
    assert ports(net.get_outputs()) == [("y", "tensor(float)", ["n", None])]
    assert ports(net.get_overridable_initializers()) == [("w", "tensor(float)", [2])]
    assert str(net.get_inputs()[0]) == "NodeArg(name='x', type='tensor(float)', shape=['n', 2])"


def test_a_program_may_change_what_it_is_told(net):
    net.get_inputs()[0].shape[0] = 1
    assert net.get_inputs()[0].shape == ["n", 2]
    options = ort.SessionOptions()
    session = ort.InferenceSession(described().SerializeToString(), options)
    options.logid = "other"
    assert session.get_session_options().logid == ""


def test_severity_is_that_of_the_log():
    before = sol.log.level()
    for severity, level in ((1, sol.log.info), (2, sol.log.warn), (4, sol.log.error)):
        ort.set_default_logger_severity(severity)
        assert sol.log.level() == level
    sol.log.set_level(before)
    with pytest.raises(ValueError, match="from 0 to 4"):
        ort.set_default_logger_severity(9)


def test_metadata(net):
    meta = net.get_modelmeta()
    assert (meta.producer_name, meta.domain, meta.version) == ("me", "dom", 7)
    assert (meta.graph_name, meta.description, meta.graph_description) == ("net", "doc", "graph")
    assert meta.custom_metadata_map == {"a": "b"}
    assert identity(FLOAT).get_modelmeta().version == 2**63 - 1


def test_providers(net):
    assert net.get_providers() == ["CPUExecutionProvider"] == ort.get_available_providers()
    assert net.get_provider_options() == {"CPUExecutionProvider": {}}
    assert ort.get_device() == "CPU"
    model = described().SerializeToString()
    ort.InferenceSession(model, providers=[("CPUExecutionProvider", {"a": 1})])
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        session = ort.InferenceSession(
            model, providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
        )
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="list of names"):
        net.set_providers("CPUExecutionProvider")


@pytest.mark.parametrize("name", TYPES)
def test_element_types(name):
    session = identity(helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[name])))
    assert ports(session.get_inputs()) == [("x", f"tensor({name})", ["n"])]
    value = np.array([1, 0, 1], TYPES[name])
    for given in value, [1, 0, 1]:
        (y,) = session.run(None, {"x": given})
        np.testing.assert_array_equal(y, value, strict=True)


def test_texts():
    session = identity(STRING)
    assert ports(session.get_inputs()) == [("x", "tensor(string)", ["n"])]
    for value in np.array(["a", "é"]), np.array(["a", "é"], object), ["a", "é"]:
        (y,) = session.run(None, {"x": value})
        assert y.dtype == object and list(y) == ["a", "é"]


def test_sequences():
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    split = open_session([node("SplitToSequence", "x", "s")], [port("x", FLOAT, ["n"])], [sequence])
    assert ports(split.get_outputs()) == [("s", "seq(tensor(float))", [])]
    (pieces,) = split.run(None, {"x": np.array([1, 2], np.float32)})
    assert isinstance(pieces, list) and [list(piece) for piece in pieces] == [[1], [2]]
    inputs = [sequence, port("i", INT64, [])]
    pick = open_session([node("SequenceAt", "s i")], inputs, [port("y", FLOAT, None)])
    feed = {"s": [x, 2 * x], "i": np.array(1)}
    np.testing.assert_array_equal(pick.run(["y"], feed)[0], 2 * x, strict=True)
    with pytest.raises(InvalidArgument, match="index"):
        pick.run(None, feed | {"i": np.array(5)})
    for bad in x, (x, x), [x.astype(float)]:
        with pytest.raises(InvalidArgument, match="input s|seq"):
            pick.run(None, feed | {"s": bad})
    with pytest.raises(RuntimeError, match="item of input s"):
        pick.run(None, feed | {"s": [[1.0]]})


def test_optionals():
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    inputs = [helper.make_value_info("o", kind)]
    nodes = [node("OptionalHasElement", "o")]
    session = open_session(nodes, inputs, [port("y", BOOL, [])], opset=18)
    assert ports(session.get_inputs()) == [("o", "optional(tensor(float))", [2])]
    for feed, expected in (({}, False), ({"o": None}, False), ({"o": [1, 2]}, True)):
        assert session.run(None, feed) == [np.array(expected)]


def test_shapes_that_nobody_declares():
    relu = open_session([node("Relu", "x")], [port("x", FLOAT, None)], [port("y", FLOAT, None)])
    assert ports(relu.get_inputs()) == [("x", "tensor(float)", [])]
    for shape in (), (2,), (2, 1, 3):
        value = np.full(shape, -1, np.float32)
        np.testing.assert_array_equal(relu.run(None, {"x": value})[0], 0 * value, strict=True)
    turn = [node("Transpose", "x", "t"), node("Relu", "t")]
    session = open_session(turn, [port("x", FLOAT, ["n", 6])], [port("y", FLOAT, None)])
    assert ports(session.get_outputs()) == [("y", "tensor(float)", [6, "n"])]


# ---- Calls ----


def test_outputs_are_chosen_by_name():
    nodes = [node("Neg", "x", "a"), node("Abs", "x", "b")]
    outputs = [port(name, FLOAT, ["n"]) for name in "ab"]
    session = open_session(nodes, [port("x", FLOAT, ["n"])], outputs)
    feed = {"x": np.array([2], np.float32)}
    for names, expected in (
        (None, [-2, 2]),
        ([], [-2, 2]),
        (["b", "a"], [2, -2]),
        (("b",), [2]),
        (["a", "a"], [-2, -2]),
    ):
        assert [y[0] for y in session.run(names, feed)] == expected
    for names, error in ((["t"], InvalidArgument), (["x"], InvalidArgument), ("a", TypeError)):
        with pytest.raises(error, match="output"):
            session.run(names, feed)


def test_names_of_python_are_names_of_inputs():
    session = open_session(
        [node("Relu", "self")], [port("self", FLOAT, [1])], [port("y", FLOAT, [1])]
    )
    assert session.run(None, {"self": [3]}) == [np.array([3])]


def test_arrays_may_lie_in_memory_in_any_way(net):
    expected = net.run(None, {"x": x, "z": z})[0]
    np.testing.assert_array_equal(expected, np.full((3, 4), 5, np.float32), strict=True)
    for value in (
        np.ones((2, 3), np.float32).T,
        np.ones((6, 4), np.float32)[::2, 1:3],
        x.astype(">f4"),
    ):
        np.testing.assert_array_equal(net.run(None, {"x": value, "z": z})[0], expected)


def test_lists_become_arrays_of_the_type(net):
    (y,) = net.run(None, {"x": [[1, 2]], "z": z})
    np.testing.assert_array_equal(y, np.full((1, 4), 6, np.float32), strict=True)
    (y,) = identity(INT64).run(None, {"x": [1.5, -2]})
    np.testing.assert_array_equal(y, np.array([1, -2]), strict=True)
    with pytest.raises(RuntimeError, match=r"input x is no tensor\(uint8\)"):
        identity(TensorProto.UINT8).run(None, {"x": [-2]})


@pytest.mark.parametrize(
    "feed, error, message",
    [
        ({"x": x}, ValueError, "z.*missing"),
        ({"x": x, "z": z, "q": z}, InvalidArgument, "no input 'q'"),
        ({"x": x.astype(float), "z": z}, InvalidArgument, r"x is a tensor\(double\)"),
        ({"x": x.astype(object), "z": z}, InvalidArgument, r"x is a tensor\(string\)"),
        ({"x": x.astype(complex), "z": z}, InvalidArgument, "x is a tensor.complex128"),
        ({"x": x[0], "z": z}, InvalidArgument, r"x has the shape \[2\], not \[n, 2\]"),
        ({"x": x.T, "z": z}, InvalidArgument, r"x has the shape \[2, 3\]"),
        ({"x": x, "z": z[:1]}, InvalidArgument, r"z has the shape \[1, 4\], not \[2, \?\]"),
        ({"x": x, "z": z, "w": z}, InvalidArgument, "w has the shape"),
        ({"x": x, "z": 1.0}, RuntimeError, "z is a float"),
        ({"x": np.float32(1), "z": z}, RuntimeError, "x is a float32"),
        ({"x": ((1.0, 2.0),), "z": z}, RuntimeError, "x is a tuple"),
        ({"x": [[1], [1, 2]], "z": z}, RuntimeError, "x is no tensor"),
        ({"x": None, "z": z}, Fail, "x is None"),
        ([x, z], TypeError, "dict"),
    ],
)
def test_inputs_that_do_not_fit(net, feed, error, message):
    with pytest.raises(error, match=message):
        net.run(None, feed)


def test_sizes_of_one_name_are_equal():
    inputs = [port("x", FLOAT, ["n"]), port("z", FLOAT, ["n"])]
    session = open_session([node("Add", "x z")], inputs, [port("y", FLOAT, ["n"])])
    with pytest.raises(InvalidArgument, match="input z"):
        session.run(None, {"x": [1, 2], "z": [1, 2, 3]})


# ---- Initializers that a call may replace ----


def test_a_call_may_replace_an_initializer(net, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(described().SerializeToString())
    w = np.array([5, 6], np.float32)
    for session in net, ort.InferenceSession(path):
        for _ in range(2):
            assert session.run(None, {"x": x, "z": z, "w": w})[0][0, 0] == 13
        assert session.run(None, {"x": x, "z": z})[0][0, 0] == 5


def test_shapes_may_depend_on_a_replaced_initializer():
    inputs = [port("x", FLOAT, ["n", 6]), port("s", INT64, [2])]
    values = {"s": np.array([-1, 3])}
    session = open_session([node("Reshape", "x s")], inputs, [port("y", FLOAT, None)], values)
    assert session.get_outputs()[0].shape == [None, None]
    value = np.zeros((3, 6), np.float32)
    assert session.run(None, {"x": value})[0].shape == (6, 3)
    assert session.run(None, {"x": value, "s": [2, -1]})[0].shape == (2, 9)


def test_old_files_list_initializers_as_inputs():
    inputs = [port("x", FLOAT, ["n"]), port("w", FLOAT, [1])]
    values, outputs = {"w": np.ones(1, np.float32)}, [port("y", FLOAT, ["n"])]
    session = open_session([node("Add", "x w")], inputs, outputs, values, ir_version=3, opset=8)
    assert [arg.name for arg in session.get_inputs()] == ["x"]
    assert session.get_overridable_initializers() == []
    with pytest.raises(InvalidArgument, match="no input 'w'"):
        session.run(None, {"x": [1], "w": [2]})


# ---- Files ----


def test_files_that_are_no_models(tmp_path):
    (tmp_path / "text.onnx").write_text("a text")
    for bad in (b"", b"abcdefghijk", tmp_path / "text.onnx"):
        with pytest.raises(InvalidProtobuf):
            ort.InferenceSession(bad)
    with pytest.raises(NoSuchFile, match=r"missing\.onnx") as error:
        ort.InferenceSession(str(tmp_path / "missing.onnx"))
    assert isinstance(error.value, FileNotFoundError)
    for bad in 3, bytearray(b"x"), None:
        with pytest.raises(TypeError, match="path or bytes"):
            ort.InferenceSession(bad)


def test_graphs_that_are_wrong_or_unknown():
    ports_of = [port("x", FLOAT, [2, 3])], [port("y", FLOAT, None)]
    with pytest.raises(InvalidGraph, match="MatMul"):
        open_session([node("MatMul", "x x")], *ports_of)
    with pytest.raises(NotImplemented, match="Foo") as error:
        open_session([node("Foo", "x")], *ports_of)
    assert isinstance(error.value, NotImplementedError)


def test_exceptions_are_found_where_programs_look_for_them():
    assert ort.capi.onnxruntime_pybind11_state.InvalidArgument is InvalidArgument


def test_external_data_of_bytes(tmp_path):
    w = numpy_helper.from_array(np.ones(4, np.float32), "w")
    (tmp_path / "w.bin").write_bytes(w.raw_data)
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="w.bin")
    model = make([node("Add", "x w")], [port("x", FLOAT, [4])], [port("y", FLOAT, [4])])
    model.graph.initializer.append(w)
    options = ort.SessionOptions()
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(tmp_path))
    session = ort.InferenceSession(model.SerializeToString(), options)
    assert session.run(None, {"x": [1, 2, 3, 4]})[0].tolist() == [2, 3, 4, 5]


# ---- Options ----


def test_options_have_fixed_names_and_types():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = 0
    options.log_severity_level = 3
    copied = copy.deepcopy(options)
    assert copied.intra_op_num_threads == 2 and options.enable_cpu_mem_arena is False
    with pytest.raises(AttributeError, match="no option 'threads'"):
        options.threads = 1
    for name, bad in (("intra_op_num_threads", "2"), ("execution_mode", 1), ("logid", 3)):
        with pytest.raises(TypeError, match=name):
            setattr(options, name, bad)
    assert identity(FLOAT).get_session_options().intra_op_num_threads == 0


def test_entries():
    for options in ort.SessionOptions(), ort.RunOptions():
        kind = "session" if isinstance(options, ort.SessionOptions) else "run"
        getattr(options, f"add_{kind}_config_entry")("key", "value")
        get = getattr(options, f"get_{kind}_config_entry")
        assert get("key") == "value"
        with pytest.raises(RuntimeError, match="no entry 'other'"):
            get("other")


def test_options_that_sol_cannot_obey_are_errors():
    options = ort.SessionOptions()
    for call in (
        lambda: options.register_custom_ops_library("ops.so"),
        lambda: options.add_initializer("w", None),
        lambda: options.add_free_dimension_override_by_denotation("BATCH", 1),
        lambda: ort.RunOptions().add_active_adapter(None),
    ):
        with pytest.raises(NotImplemented):
            call()
    options.optimized_model_filepath = "out.onnx"
    with pytest.raises(NotImplemented, match="optimized_model_filepath"):
        ort.InferenceSession(described().SerializeToString(), options)
    with pytest.raises(TypeError, match="SessionOptions"):
        ort.InferenceSession(described().SerializeToString(), 3)


def test_open_sizes_may_be_given(net):
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("n", 3)
    session = ort.InferenceSession(described().SerializeToString(), options)
    assert session.get_inputs()[0].shape == [3, 2]
    assert session.run(None, {"x": x, "z": z})[0].shape == (3, 4)
    with pytest.raises(InvalidArgument, match=r"\[1, 2\], not \[3, 2\]"):
        session.run(None, {"x": x[:1], "z": z})


def test_deterministic_mode():
    w = np.ones((16, 16, 3, 3), np.float32)
    image = [port("x", FLOAT, [1, 16, 32, 32])], [port("y", FLOAT, [1, 16, 32, 32])]
    model = make([node("Conv", "x w", pads=[1] * 4)], *image, {"w": w}).SerializeToString()
    options = ort.SessionOptions()
    options.use_deterministic_compute = True
    data = np.random.default_rng(0).standard_normal((1, 16, 32, 32)).astype(np.float32)
    sessions = [ort.InferenceSession(model, options) for _ in range(2)]
    np.testing.assert_array_equal(*[session.run(None, {"x": data})[0] for session in sessions])
    steps = sessions[0].network.profile(data, runs=1).steps
    assert "winograd" not in {step.implementation for step in steps}


def test_a_call_may_be_terminated(net):
    options = ort.RunOptions()
    net.run(None, {"x": x, "z": z}, options)
    options.terminate = True
    with pytest.raises(Fail, match="terminate"):
        net.run(None, {"x": x, "z": z}, options)
    with pytest.raises(TypeError, match="RunOptions"):
        net.run(None, {"x": x, "z": z}, 3)


def test_profiling_writes_a_trace(net, tmp_path):
    assert net.end_profiling() == ""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace_")
    session = ort.InferenceSession(described().SerializeToString(), options)
    session.run(None, {"x": x, "z": z})
    path = session.end_profiling()
    assert os.path.dirname(path) == str(tmp_path)
    with open(path, encoding="utf-8") as file:
        assert json.load(file)["traceEvents"]

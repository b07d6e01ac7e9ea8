"""Malformed files: each gives an error that names the node and the value, for compiled and for interpreted nodes."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from test_session import load, make_model, real, whole

import sol.onnx as sol

KINDS = ["float32", "float64"]  # the first is compiled, the second is interpreted


def run(op, inputs, opset=20, n_out=1, constants=(), **attributes):
    """Runs one node. ``inputs`` are passed at the call, ``constants`` are initializers."""
    inputs = {f"x{i}": x for i, x in enumerate(inputs)}
    constants = {f"c{i}": x for i, x in enumerate(constants)}
    outputs = [f"y{i}" for i in range(n_out)]
    node = helper.make_node(op, [*inputs, *constants], outputs, **attributes)
    return load([node], inputs, outputs=outputs, opset=opset, constants=constants)(*inputs.values())


# ---- Versions and names ----


def relu_model(*opsets, inputs=("x",), op="Relu"):
    model = make_model([helper.make_node(op, ["x"], ["y"])], {"x": real(2)})
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*x) for x in opsets)
    del model.graph.input[:]
    for name in inputs:
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]))
    return model


@pytest.mark.parametrize("op", ["Relu", "Sin"])
@pytest.mark.parametrize("second", [("", 17), ("ai.onnx", 17), ("other", 3)])
def test_an_opset_may_be_given_twice(op, second):
    model = relu_model(("", 17), second, op=op)
    x = real(2)
    got = sol.load(model.SerializeToString())(x)
    np.testing.assert_allclose(got, ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-6)


@pytest.mark.parametrize(
    "opsets, message",
    [
        ([("", 17), ("", 11)], "two opsets, 17 and 11"),
        ([("", 11), ("ai.onnx", 17)], "two opsets, 11 and 17"),
        ([("", 0)], "opset 0"),
        ([("", 17), ("", 0)], "opset 0"),
        ([("", -3)], "opset -3"),
    ],
)
def test_opsets_that_say_nothing(opsets, message):
    with pytest.raises(ValueError, match=message):
        sol.load(relu_model(*opsets).SerializeToString())


@pytest.mark.parametrize("op", ["Relu", "Sin"])
def test_names_are_given_once(op):
    with pytest.raises(ValueError, match='"x" is made twice'):
        sol.load(relu_model(("", 17), inputs=("x", "x"), op=op).SerializeToString())
    with pytest.raises(ValueError, match='"y" is made twice'):
        sol.load(relu_model(("", 17), inputs=("x", "y"), op=op).SerializeToString())
    model = relu_model(("", 17), op=op)
    tensor = helper.make_tensor("c", TensorProto.FLOAT, [1], [1])
    model.graph.initializer.extend([tensor, tensor])
    with pytest.raises(ValueError, match='"c" is made twice'):
        sol.load(model.SerializeToString())


def test_an_initializer_may_be_the_default_of_an_input():
    model = relu_model(("", 17), inputs=("x", "c"))
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.FLOAT, [2], [1, 2]))
    x = real(2)
    np.testing.assert_array_equal(sol.load(model.SerializeToString())(x), x.clip(0))


# ---- Values of nodes ----


def rnn(length):
    return {
        "op": "RNN",
        "inputs": [real(3, 2, 4), real(1, 5, 4), real(1, 5, 5), real(1, 10)],
        "constants": [np.array([3, length], np.int32)],
        "hidden_size": 5,
    }


UNPOOL = {"op": "MaxUnpool", "kernel_shape": [2], "strides": [2]}
ONE = real(1, 1, 4, 4)
WRONG = {
    "ReduceSum.twice": (
        {"op": "ReduceSum", "inputs": [real(2, 3)], "constants": [whole(1, -1)]},
        "axis (-1|1)",
    ),
    "ReduceMax.twice": (
        {"op": "ReduceMax", "inputs": [real(2, 3)], "opset": 17, "axes": [0, 0]},
        "axis 0",
    ),
    "Squeeze.twice": (
        {"op": "Squeeze", "inputs": [real(1, 3)], "constants": [whole(0, 0)]},
        "axis 0",
    ),
    "Unsqueeze.twice": (
        {"op": "Unsqueeze", "inputs": [real(3)], "constants": [whole(0, -3)]},
        "axis -3",
    ),
    "Slice.twice": (
        {
            "op": "Slice",
            "inputs": [real(4, 3)],
            "constants": [whole(0, 1), whole(3, 3), whole(0, 0)],
        },
        "axis 0",
    ),
    "Pad.twice": (
        {
            "op": "Pad",
            "inputs": [real(4, 3)],
            "constants": [whole(1, 1, 1, 1), np.float32(0).reshape(()), whole(0, 0)],
        },
        "axis 0",
    ),
    "Transpose.twice": ({"op": "Transpose", "inputs": [real(2, 3)], "perm": [0, 0]}, "axis 0"),
    "Transpose.negative": (
        {"op": "Transpose", "inputs": [real(2, 3)], "perm": [-1, 0]},
        "perm has -1",
    ),
    "MaxPool.pad": (
        {"op": "MaxPool", "inputs": [ONE], "kernel_shape": [2, 2], "pads": [0, 2, 0, 0]},
        "pad of 2",
    ),
    "AveragePool.pad": (
        {"op": "AveragePool", "inputs": [ONE], "kernel_shape": [3, 3], "pads": [0, 0, 3, 0]},
        "pad of 3",
    ),
    "LpPool.pad": (
        {"op": "LpPool", "inputs": [ONE], "kernel_shape": [2, 2], "pads": [2, 0, 0, 0]},
        "pad of 2",
    ),
    "LpPool.p": ({"op": "LpPool", "inputs": [ONE], "kernel_shape": [2, 2], "p": 0}, "p is 0"),
    "GlobalLpPool.p": ({"op": "GlobalLpPool", "inputs": [ONE], "p": -1}, "p is -1"),
    "MaxUnpool.negative": (
        {**UNPOOL, "inputs": [real(1, 1, 2), whole(0, -1).reshape(1, 1, 2)]},
        "index -1",
    ),
    "MaxUnpool.large": (
        {**UNPOOL, "inputs": [real(1, 1, 2), whole(0, 4).reshape(1, 1, 2)]},
        "index 4 of 4",
    ),
    "RNN.99": (rnn(99), "99 for 3 steps"),
    "RNN.-99": (rnn(-99), "-99 for 3 steps"),
}


def as_kind(kind, call):
    cast = {
        k: [x.astype(kind) if x.dtype == np.float32 else x for x in call.get(k, ())]
        for k in ("inputs", "constants")
    }
    return {**call, **cast}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WRONG)
def test_values_that_mean_nothing(name, kind):
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=f"node 0, {call['op']}.*{message}"):
        run(**as_kind(kind, call))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "call",
    [
        {"op": "MaxPool", "inputs": [ONE], "kernel_shape": [3, 3], "pads": [2, 2, 2, 2]},
        {
            "op": "MaxPool",
            "inputs": [ONE],
            "kernel_shape": [2, 2],
            "pads": [2, 0, 0, 2],
            "dilations": [2, 2],
        },
        {"op": "AveragePool", "inputs": [ONE], "kernel_shape": [1, 1]},
        {"op": "ReduceSum", "inputs": [real(2, 3)], "constants": [whole(0, -1)]},
        rnn(0),
        rnn(2),
    ],
)
def test_values_at_the_edge(call, kind):
    """Values at the limits of the valid range give the same results as the reference."""
    call = as_kind(kind, call)
    more = {k: v for k, v in call.items() if k not in ("op", "inputs", "constants")}
    named = {f"x{i}": x for i, x in enumerate(call["inputs"])}
    constants = {f"c{i}": x for i, x in enumerate(call["constants"])}
    model = make_model(
        [helper.make_node(call["op"], [*named, *constants], ["y"], **more)],
        named,
        constants=constants,
    )
    got = sol.load(model.SerializeToString())(*named.values())
    if call["op"] == "RNN":  # the reference ignores sequence_lens
        assert not got[call["constants"][0][1] :, :, 1].any()
    else:
        expected = ReferenceEvaluator(model).run(None, {**named, **constants})[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)

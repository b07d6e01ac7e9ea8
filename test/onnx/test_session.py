"""Sessions: invalid values that must not crash, shapes that change between calls, and which nodes are compiled."""

import threading

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import sol.onnx as sol

TOP, BOTTOM = np.iinfo(np.int64).max, np.iinfo(np.int64).min
rng = np.random.default_rng(0)


def real(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def whole(*values):
    return np.array(values, np.int64)


def port(name, x):
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(x.dtype), ["?" for _ in x.shape]
    )


def make_model(nodes, inputs, outputs=("y",), opset=20, constants=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [port(*item) for item in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs],
        [numpy_helper.from_array(x, name) for name, x in dict(constants).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def load(nodes, inputs, **more):
    return sol.load(make_model(nodes, inputs, **more).SerializeToString())


def run(op, *inputs, opset=20, **attributes):
    """Runs one node with inputs that are passed at the call."""
    named = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs)}
    node = helper.make_node(op, list(named), ["y"], **attributes)
    return load([node], named, opset=opset)(*named.values())


def check(op, *inputs, opset=20, **attributes):
    named = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs)}
    model = make_model([helper.make_node(op, list(named), ["y"], **attributes)], named, opset=opset)
    got = sol.load(model.SerializeToString())(*named.values())
    expected = ReferenceEvaluator(model).run(None, named)[0]
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


# ---- Values that must not crash ----


@pytest.mark.parametrize(
    "op, inputs, attributes, message",
    [
        ("Gather", (real(3, 2), whole(3)), {}, "number 3, but there are 3 rows"),
        ("Gather", (real(3, 2), whole(BOTTOM)), {}, "number -9223372036854775808"),
        (
            "GatherElements",
            (real(3, 2), whole(5).reshape(1, 1)),
            {},
            "an index is outside|index [25] of",
        ),
        (
            "GatherND",
            (real(3, 2), whole(0, 2).reshape(1, 2)),
            {},
            "an index is outside|index [25] of",
        ),
        ("ScatterElements", (real(3), whole(-4), real(1)), {}, "index -4"),
        ("ScatterND", (real(3), whole(3).reshape(1, 1), real(1)), {}, "index 3"),
        ("TopK", (real(3), whole(4)), {}, "the first 4 of 3"),
        ("TopK", (real(3), whole(-1)), {}, "the first -1"),
        ("Slice", (real(3), whole(0), whole(2), whole(0), whole(0)), {}, "a step of 0"),
        ("Range", (whole(0)[0], whole(5)[0], whole(0)[0]), {}, "a step of 0"),
        ("Div", (whole(1, 2), whole(1, 0)), {}, "by 0"),
        ("Mod", (whole(1, 2), whole(1, 0)), {}, "by 0"),
        ("Reshape", (real(4), whole(-1, -1)), {}, "two dims are -1"),
        ("Reshape", (real(4), whole(3)), {}, "do not fit"),
        ("Reshape", (real(4), whole(TOP, TOP)), {}, "overflows"),
        ("OneHot", (whole(1), whole(-3)[0], real(2)), {}, "depth below 0"),
        ("Resize", (real(1, 1, 4, 4), real(0), np.float32([1, 1, 0, 1])), {}, "scale"),
        ("Resize", (real(1, 1, 4, 4), real(0), np.float32([1, 1, np.inf, 1])), {}, "scale"),
        ("Transpose", (real(2, 3),), {"perm": [0, 0]}, "twice|permut"),
        ("Einsum", (real(2, 3), real(3, 2)), {"equation": "ij,jk,kl->il"}, "labels"),
        ("Expand", (real(3), whole(2)), {}, "broadcast"),
        ("Pad", (real(3), whole(BOTTOM, 0)), {}, "pad"),
        ("Pad", (real(3), whole(0, TOP)), {"mode": "edge"}, "pad|overflows"),
        ("MaxPool", (real(1, 1, 4, 4),), {"kernel_shape": [9, 9]}, "window|larger|pad"),
    ],
)
def test_bad_values_are_errors(op, inputs, attributes, message):
    with pytest.raises((ValueError, IndexError), match=f"(node 0, {op}.*)?({message})"):
        run(op, *inputs, **attributes)


@pytest.mark.parametrize(
    "op, inputs",
    [
        ("Tile", (real(10), whole(10**11))),
        ("Expand", (real(1), whole(10**6, 10**6))),
        ("ConstantOfShape", (whole(10**6, 10**6),)),
        ("Range", (whole(0)[0], whole(10**12)[0], whole(1)[0])),
        ("Pad", (real(1), whole(10**12, 0))),
        ("OneHot", (whole(1), whole(10**13)[0], real(2))),
    ],
)
def test_too_large_is_an_error(op, inputs):
    with pytest.raises(MemoryError, match=f"node 0, {op}.*more memory"):
        run(op, *inputs)


def test_bounds_of_slices():
    x = np.arange(10, dtype=np.int32)
    for start, end, step in [
        (BOTTOM, TOP, 1),
        (TOP, BOTTOM, -1),
        (TOP, BOTTOM, BOTTOM),
        (0, TOP, TOP),
        (-3, -100, -2),
        (5, 5, 1),
        (100, 2, 1),
    ]:
        got = run("Slice", x, whole(start), whole(end), whole(0), whole(step))
        np.testing.assert_array_equal(got, x[start:end:step])


def test_wholes_wrap_and_saturate():
    low = np.array([np.iinfo(np.int32).min], np.int32)
    assert run("Div", low, np.array([-1], np.int32)) == low
    assert run("Div", whole(BOTTOM), whole(-1)) == BOTTOM
    assert run("Mod", whole(BOTTOM), whole(-1)) == 0
    assert run("BitShift", np.uint32([1]), np.uint32([40]), direction="LEFT") == 0
    check("Add", np.uint8([250]), np.uint8([10]))
    check("Pow", np.int32([2, -3]), np.int32([10, 3]))


def test_endless_loops_end(monkeypatch):
    monkeypatch.setenv("SOL_LOOP_SECONDS", "0.2")
    truth = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [number, truth],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, [])],
    )
    inputs = {"n": np.array(TOP), "t": np.array(True)}
    net = load([helper.make_node("Loop", ["n", "t"], [], body=body)], inputs, outputs=())
    with pytest.raises(ValueError, match="node 0, Loop.*does not end"):
        net(*inputs.values())


def test_unknown_attributes_and_operators_are_refused():
    with pytest.raises(NotImplementedError, match='node 0, Sin.*"shape" is not known'):
        run("Sin", real(3), shape=1)
    with pytest.raises(NotImplementedError, match="node 0, Bernoulli"):
        run("Bernoulli", real(3))
    with pytest.raises(ValueError, match="no output of an earlier node"):
        load([helper.make_node("Sin", ["z"], ["y"])], {"x": real(3)})(real(3))
    with pytest.raises(ValueError, match="made twice"):
        load([helper.make_node("Sin", ["x"], ["y"])] * 2, {"x": real(3)})


# ---- Types ----


@pytest.mark.parametrize(
    "dtype", ["float16", "float64", "int8", "uint16", "uint64", "int64", "bfloat16"]
)
def test_arithmetic_of_all_types(dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    a, b = np.arange(1, 7).reshape(2, 3).astype(dtype), np.array([3, 2, 1]).astype(dtype)
    for op in ("Add", "Mul", "Sub", "Div", "Max"):
        check(op, a, b)
    check("MatMul", a, a.T.copy())
    check("ReduceSum", a)


def test_strings_sequences_and_optionals():
    text = np.array([["a", "grüß"], ["", "c"]], object)
    np.testing.assert_array_equal(run("Transpose", text), text.T)
    nodes = [
        helper.make_node("SequenceConstruct", ["a", "b"], ["s"]),
        helper.make_node("SequenceAt", ["s", "i"], ["y"]),
        helper.make_node("Optional", [], ["o"]),
        helper.make_node("OptionalHasElement", ["o"], ["h"]),
    ]
    inputs = {"a": real(2), "b": real(3), "i": np.array(-1)}
    sequence, item, none, has = load(nodes, inputs, outputs=("s", "y", "o", "h"))(*inputs.values())
    assert [x.shape for x in sequence] == [(2,), (3,)]
    np.testing.assert_array_equal(item, inputs["b"])
    assert none is None and not has


# ---- Partitions ----


def test_programs_are_kept_by_shape_and_numbers():
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Exp", ["b"], ["y"]),
    ]
    net = load(nodes, {"x": real(2, 6), "s": whole(3, 4)})
    for shape, new in [((2, 6), (3, 4)), ((2, 6), (4, 3)), ((4, 5), (2, -1)), ((2, 6), (3, 4))]:
        x = real(*shape)
        np.testing.assert_allclose(net(x, whole(*new)), np.exp(x.clip(0)).reshape(new), rtol=1e-5)
        assert net.counts == (3, 0)


def test_shapes_of_results_decide_shapes():
    """The Shape of a value that a program computes is known before it runs, so all nodes here become one program."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Shape", ["a"], ["n"], start=0, end=1),
        helper.make_node("Concat", ["n", "rest"], ["s"], axis=0),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Neg", ["b"], ["y"]),
    ]
    net = load(nodes, {"x": real(2, 3, 4)}, constants={"rest": whole(-1)})
    for rows in (2, 5, 2):
        x = real(rows, 3, 4)
        np.testing.assert_allclose(net(x), -np.tanh(x).reshape(rows, -1), rtol=1e-5)


def test_interpreted_nodes_between_programs():
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("TopK", ["a", "k"], ["b", ""], axis=0),
        helper.make_node("Sqrt", ["b"], ["y"]),
    ]
    net = load(nodes, {"x": real(3, 4), "k": whole(1)})
    x = real(3, 4)
    for k in (1, 2):
        expected = np.sqrt(-np.sort(-np.exp(x), axis=0)[:k])
        np.testing.assert_allclose(net(x, whole(k)), expected, rtol=1e-3, atol=1e-3)
    assert net.counts == (2, 1)


def test_a_branch_sees_what_is_computed_outside():
    def branch(op):
        out = helper.make_tensor_value_info(op, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["a"], [op])], op, [], [out])

    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("If", ["c"], ["b"], then_branch=branch("Neg"), else_branch=branch("Sqrt")),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    net = load(nodes, {"x": real(3), "c": np.array(True)})
    x = real(3)
    np.testing.assert_allclose(net(x, np.array(True)), np.zeros(3), atol=0)
    np.testing.assert_allclose(net(x, np.array(False)), np.sqrt(np.exp(x)), rtol=1e-5)


def test_calls_may_overlap():
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Sin", ["a"], ["y"]),
    ]
    net = load(nodes, {"x": real(4, 4)})
    failures = []

    def work(rows):
        for _ in range(20):
            x = real(rows, 4)
            if not np.allclose(net(x), np.sin(np.exp(x)), rtol=1e-4, atol=1e-5):
                failures.append(rows)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_inputs_that_do_not_fit():
    net = load([helper.make_node("Unique", ["x"], ["y"])], {"x": np.float64([1])})
    with pytest.raises(TypeError, match="input x is float32, not float64"):
        net(real(1))
    with pytest.raises(ValueError, match=r"input x has the shape \[2, 2\], not \[\?\]"):
        net(np.zeros((2, 2)))
    with pytest.raises(TypeError, match="expected the inputs"):
        net()


def test_graphs_too_deep():
    """Deeply nested graphs: the reader refuses them before the stack overflows. Python's protobuf cannot write such a file."""

    def field(number, data):
        size, length = len(data), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + data

    graph = b""
    for _ in range(200):
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(1, b"c") + field(4, b"If") + field(5, attribute))
    model = b"\x08\x0a" + field(7, graph) + field(8, b"\x10\x14")
    with pytest.raises(ValueError, match="deep"):
        sol.load(model)


# ---- Model-local functions ----


def function(name, nodes, inputs=("p",), outputs=("r",), attributes=()):
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, inputs, outputs, nodes, opsets, attributes)


def load_with(functions, nodes, inputs):
    model = make_model(nodes, inputs)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.extend(functions)
    return sol.load(model.SerializeToString())


def test_functions_are_expanded():
    leaky = helper.make_node("LeakyRelu", ["t"], ["r"])
    leaky.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    )
    inner = function("Inner", [helper.make_node("Neg", ["p"], ["t"]), leaky], attributes=["slope"])
    call = helper.make_node("Inner", ["p"], ["t"], domain="own", slope=0.5)
    outer = function("Outer", [call, helper.make_node("Add", ["t", "p"], ["r"])])
    x = real(3, 4)
    nodes = [
        helper.make_node("Outer", ["x"], ["t"], domain="own"),
        helper.make_node("Outer", ["t"], ["y"], domain="own"),
    ]

    def outer_of(x):
        return np.where(x > 0, -0.5 * x, -x) + x

    net = load_with([outer, inner], nodes, {"x": x})
    np.testing.assert_allclose(net(x), outer_of(outer_of(x)), rtol=1e-5, atol=1e-6)


def test_functions_that_call_each_other():
    def calls(name):
        return helper.make_node(name, ["p"], ["r"], domain="own")

    nodes = [helper.make_node("A", ["x"], ["y"], domain="own")]
    with pytest.raises(ValueError, match="deep"):
        load_with([function("A", [calls("B")]), function("B", [calls("A")])], nodes, {"x": real(1)})
    bombs = [
        function(
            f"F{i}",
            [helper.make_node(f"F{i + 1}", ["p"], [f"r{k}"], domain="own") for k in range(9)],
        )
        for i in range(12)
    ]
    nodes = [helper.make_node("F0", ["x"], ["y"], domain="own")]
    with pytest.raises(ValueError, match="more than .* nodes"):
        load_with(bombs, nodes, {"x": real(1)})

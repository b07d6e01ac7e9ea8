"""Loops and branches: all conditions that end a loop, loops of 0 iterations, and subgraphs that read values of outer graphs."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_session import load, make_model, real

import sol.onnx as sol

N = np.array
FORMS = ["count", "condition", "both", "neither"]


def port(name, kind, shape=()):
    return helper.make_tensor_value_info(name, kind, shape)


def doubling(bound, condition=True, shape=(2,)):
    """A loop body: outputs 2 v and v. It continues while the iteration number is below `bound`, a value of the outer graph."""
    below = [
        helper.make_node("Less", ["i", bound], ["go"]),
        helper.make_node("Identity", ["c"], ["go"]),
    ]
    nodes = [
        below[not condition],
        helper.make_node("Add", ["v", "v"], ["w"]),
        helper.make_node("Identity", ["v"], ["old"]),
    ]
    ins = [
        port("i", TensorProto.INT64),
        port("c", TensorProto.BOOL),
        port("v", TensorProto.FLOAT, shape),
    ]
    outs = [
        port("go", TensorProto.BOOL),
        port("w", TensorProto.FLOAT, shape),
        port("old", TensorProto.FLOAT, shape),
    ]
    return helper.make_graph(nodes, "body", ins, outs)


def loop(form, body):
    names = [
        "n" if form in ("count", "both") else "",
        "t" if form in ("condition", "both") else "",
    ]
    node = helper.make_node("Loop", [*names, "v"], ["y", "all"], body=body)
    inputs = {"n": N(5), "t": N(True), "bound": N(2), "v": real(2)}
    return load([node], inputs, outputs=("y", "all"))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bound", [0, 2, 9])
def test_a_loop_ends_by_its_count_or_its_condition(form, bound):
    net, v = loop(form, doubling("bound")), real(2)
    turns = min(bound + 1, 5) if form in ("count", "both") else bound + 1
    y, old = net(N(5), N(True), N(bound), v)
    np.testing.assert_array_equal(y, v * 2**turns)
    np.testing.assert_array_equal(old, [v * 2**t for t in range(turns)])


@pytest.mark.parametrize("form", FORMS[:3])
def test_a_loop_that_does_not_begin(form):
    """The outputs of 0 iterations have the types and dims that the body declares."""
    net, v = loop(form, doubling("bound")), real(2)
    y, old = net(N(5 if form == "condition" else 0), N(form != "condition"), N(3), v)
    np.testing.assert_array_equal(y, v)
    assert old.shape == (0, 2) and old.dtype == np.float32


def test_a_result_of_no_iterations_is_of_its_type():
    outs = [port("c", TensorProto.BOOL), port("i", TensorProto.INT64)]
    ins = [port("i", TensorProto.INT64), port("c", TensorProto.BOOL)]
    body = helper.make_graph([], "body", ins, outs)
    net = load([helper.make_node("Loop", ["n", ""], ["y"], body=body)], {"n": N(0)})
    for n in (0, 3):
        got = net(N(n))
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, np.arange(n))


def test_a_loop_without_an_end_says_what_bounded_it(monkeypatch):
    monkeypatch.setenv("SOL_LOOP_SECONDS", "0.1")
    net = loop("neither", doubling("bound", condition=False))
    with pytest.raises(ValueError, match="Loop.*iterations until the limit of SOL_LOOP_SECONDS"):
        net(N(5), N(True), N(2), real(2))


# ---- Nested graphs ----


def node(op, ins, outs, **attributes):
    return helper.make_node(op, ins, outs, **attributes)


def nested_loop():
    """y = y + a for the first k iterations, then y * scale + i + a in an inner loop of two iterations, while the sum is below a limit.
    `a` is computed outside, and compiled; `i` is the outer loop's iteration number; the scale is an initializer."""
    number, truth = TensorProto.INT64, TensorProto.BOOL
    inner = helper.make_graph(
        [
            node("Identity", ["ic"], ["jc"]),
            node("Mul", ["u", "scale"], ["u1"]),
            node("Cast", ["i"], ["fi"], to=TensorProto.FLOAT),
            node("Add", ["u1", "fi"], ["u2"]),
            node("Add", ["u2", "a"], ["u3"]),
        ],
        "inner",
        [port("j", number), port("ic", truth), port("u", TensorProto.FLOAT, None)],
        [port("jc", truth), port("u3", TensorProto.FLOAT, None)],
    )
    then = helper.make_graph(
        [node("Add", ["v", "a"], ["t"])], "then", [], [port("t", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph(
        [
            node("Constant", [], ["two"], value_int=2),
            node("Loop", ["two", "", "v"], ["e"], body=inner),
        ],
        "else",
        [],
        [port("e", TensorProto.FLOAT, None)],
    )
    body = helper.make_graph(
        [
            node("Less", ["i", "k"], ["first"]),
            node("If", ["first"], ["w"], then_branch=then, else_branch=other),
            node("ReduceSum", ["w"], ["s"], keepdims=0),
            node("Less", ["s", "limit"], ["go"]),
            node("Identity", ["w"], ["each"]),
        ],
        "body",
        [port("i", number), port("c", truth), port("v", TensorProto.FLOAT, None)],
        [
            port(name, truth if name == "go" else TensorProto.FLOAT, None)
            for name in ("go", "w", "each")
        ],
    )
    return [
        node("Exp", ["x"], ["a"]),
        node("Tanh", ["x"], ["v0"]),
        node("Loop", ["", "", "v0"], ["y", "all"], body=body),
        node("Relu", ["y"], ["r"]),
        node("Mul", ["a", "r"], ["z"]),
    ]


def expect_nested(x, k, limit):
    a, y, all_of = np.exp(x), np.tanh(x), []
    while not all_of or y.sum() < limit:
        if len(all_of) < k:
            y = y + a
        else:
            y = (y * 1.5 + len(all_of) + a) * 1.5 + len(all_of) + a
        all_of.append(y)
    return y, np.array(all_of), a * y.clip(0)


@pytest.mark.parametrize("k", [0, 2, 5])
def test_a_while_loop_around_branches_around_a_loop(k):
    inputs = {"x": real(3), "k": N(2), "limit": np.float32([0]).reshape(())}
    net = load(
        nested_loop(), inputs, outputs=("y", "all", "z"), constants={"scale": np.float32([1.5])}
    )
    for limit in (-1, 10, 1000):
        x = real(3)
        results = net(x, N(k), np.array(limit, np.float32))
        for got, expected in zip(results, expect_nested(x, k, limit), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert (
        net.counts[0] == 4
    )  # those outside of the loop; values of 3 elements are not worth a kernel


ODD = [
    "a b",
    "x/y:0",
    "ü→日本",
    "%s%n",
    "'\"\\",
    "new\nline",
    "\x1b[31m",
    "a" * 300,
    "a" * 299 + "b",
    " ",
    "-",
    "0",
]


@pytest.mark.parametrize("op", ["Neg", "Sin"])
def test_names_are_anything(op):
    """Names may be any text, in compiled and interpreted nodes, and in subgraphs."""
    names = ["in put", *ODD]
    nodes = [node(op, [a], [b], name=b) for a, b in zip(names, ODD, strict=False)]
    last = helper.make_graph(
        [node("Identity", [ODD[-1]], ["out/put:0"])],
        "",
        [],
        [port("out/put:0", TensorProto.FLOAT, None)],
    )
    nodes.append(node("If", ["c?"], ["out/put:0"], then_branch=last, else_branch=last))
    x, y = real(2, 3), None
    net = load(nodes, {"in put": x, "c?": N(True)}, outputs=("out/put:0", ODD[0]))
    y, first = net(**{"in put": x, "c?": N(True)})
    expected = x
    for i in range(len(ODD)):
        expected = -expected if op == "Neg" else np.sin(expected)
        if not i:
            np.testing.assert_allclose(first, expected, rtol=1e-6)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("location", ["weights", "./weights", "sub/./weights"])
def test_external_data_within_a_graph(tmp_path, location):
    w = real(3)
    (tmp_path / "sub").mkdir()
    (tmp_path / location).write_bytes(b"1234" + w.tobytes())
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "4", "length": "12"}.items():
        tensor.external_data.add(key=key, value=value)
    result = [port("t", TensorProto.FLOAT, None)]
    branch = helper.make_graph([node("Add", ["x", "w"], ["t"])], "g", [], result, [tensor])
    nodes = [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    model = make_model(nodes, {"x": real(3), "c": N(True)})
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    x = real(3)
    np.testing.assert_allclose(sol.load(tmp_path / "net.onnx")(x, N(True)), x + w, rtol=1e-6)
    tensor.external_data[0].value = "../" + location
    branch.initializer[0].CopyFrom(tensor)
    nodes[0].attribute[0].g.CopyFrom(branch)
    with pytest.raises(ValueError, match="external data"):
        bad = make_model(nodes, {"x": real(3), "c": N(True)}).SerializeToString()
        sol.load(bad, folder=tmp_path / "sub")(x, N(True))


# ---- Memory ----


def matrix_body(n_before):
    """A body: v = tanh(v w), and the sum of v. ``n_before`` is 2 for a Loop, which has number and condition before v; 1 for a Scan, which
    has a step's value after v."""
    nodes = [
        node("MatMul", ["v", "w"], ["u"]),
        node("Tanh", ["u"], ["v2"]),
        node("ReduceSum", ["v2"], ["s"], keepdims=0),
    ]
    state = port("v", TensorProto.FLOAT, None)
    results = [port(name, TensorProto.FLOAT, None) for name in ("v2", "s")]
    if n_before == 1:
        nodes.append(node("Add", ["s", "step"], ["s2"]))
        results[1] = port("s2", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, "b", [state, port("step", TensorProto.FLOAT)], results)
    ins = [port("i", TensorProto.INT64), port("c", TensorProto.BOOL), state]
    nodes.append(node("Identity", ["c"], ["c2"]))
    return helper.make_graph(nodes, "b", ins, [port("c2", TensorProto.BOOL), *results])


@pytest.mark.parametrize("op", ["Loop", "Scan"])
def test_iterations_leave_nothing_behind(monkeypatch, op):
    """400 iterations allocate 1 MiB each, which is freed after each iteration; states and outputs are kept."""
    monkeypatch.setenv("SOL_CALL_MEMORY", "100")
    turns, size = 400, 256
    v, w = real(1, size), (real(size, size) / 16).astype(np.float32)
    steps = np.zeros(turns, np.float32)
    first = {"Loop": {"n": N(turns), "t": N(True), "v": v}, "Scan": {"v": v, "steps": steps}}[op]
    more = {"num_scan_inputs": 1} if op == "Scan" else {}
    loop = node(op, list(first), ["y", "all"], body=matrix_body(1 if op == "Scan" else 2), **more)
    y, sums = load([loop], first, outputs=("y", "all"), constants={"w": w})(*first.values())
    expected = []
    for _ in range(turns):
        v = np.tanh(v @ w)
        expected.append(v.sum())
    np.testing.assert_allclose(y, v, atol=1e-3)
    np.testing.assert_allclose(sums, expected, atol=1e-2)


def test_states_of_any_type_outlive_iterations(monkeypatch):
    """A string, and a sequence that grows by one string per iteration: both are copied deeply."""
    monkeypatch.setenv("SOL_CALL_MEMORY", "100")
    nodes = [
        node("StringConcat", ["text", "more"], ["text2"]),
        node("SequenceInsert", ["list", "big"], ["list2"]),
        node("SequenceErase", ["list2", "zero"], ["list3"]),
        node("Mul", ["w", "w"], ["waste"]),
        node("Identity", ["c"], ["c2"]),
        node("Identity", ["text"], ["old"]),
        node("StringConcat", ["text2", "none"], ["big"]),
    ]
    nodes = [nodes[0], nodes[6], *nodes[1:6]]
    ins = [port("i", TensorProto.INT64), port("c", TensorProto.BOOL)]
    text = port("text", TensorProto.STRING)
    state = helper.make_tensor_sequence_value_info("list", TensorProto.STRING, None)
    results = [
        port("c2", TensorProto.BOOL),
        port("text2", TensorProto.STRING),
        helper.make_tensor_sequence_value_info("list3", TensorProto.STRING, None),
        port("old", TensorProto.STRING),
    ]
    body = helper.make_graph(nodes, "b", [*ins, text, state], results)
    outer = [
        node("SequenceConstruct", ["text", "text"], ["list"]),
        node("Loop", ["n", "t", "text", "list"], ["y", "last", "all"], body=body),
    ]
    inputs = {"n": N(150), "t": N(True), "text": N("", object), "more": N("ab", object)}
    inputs |= {"none": N("", object), "zero": N(0), "w": np.ones((200, 600))}
    net = load(outer, inputs, outputs=("y", "last", "all"))
    y, last, all_of = net(*inputs.values())
    assert y == "ab" * 150 and [str(x) for x in last] == ["ab" * 149, "ab" * 150]
    assert [str(x) for x in all_of] == ["ab" * i for i in range(150)]

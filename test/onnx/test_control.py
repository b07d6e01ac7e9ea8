"""Loops and branches: all forms of a loop's end, what comes out of none, and what graphs within nodes read of those around them."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_mixed import load, real

N = np.array
FORMS = ["count", "condition", "both", "neither"]


def port(name, kind, shape=()):
    return helper.make_tensor_value_info(name, kind, shape)


def doubling(bound, condition=True, shape=(2,)):
    """A body that doubles v and gives the old one, as long as the number of the iteration is below a bound from outside."""
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
    """What it gives has the type and the dims that its body declares."""
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

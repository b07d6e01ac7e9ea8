"""Branches and bodies of loops are compiled as the graph around them is: values of outer graphs, shapes and values that change,
limits, errors, threads."""

import json
import resource
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from test_cli import run
from test_overlap import check_forks
from test_session import make_model, real, whole

import sol.onnx as sol

N = np.array
FLOAT, INT, TRUTH = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node


def weight(*shape):
    return (real(*shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def port(name, kind=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def graph(nodes, inputs, outputs, constants=()):
    tensors = [numpy_helper.from_array(x, name) for name, x in dict(constants).items()]
    ins, outs = ([x if not isinstance(x, str) else port(x) for x in y] for y in (inputs, outputs))
    return helper.make_graph(nodes, "inner", ins, outs, tensors)


def body(nodes, states, outputs, constants=()):
    """The body of a Loop; `nodes` compute new states and outputs. It goes on for as long as the count says."""
    first = [port("i", INT, []), port("on", TRUTH, [])]
    goes_on = node("Identity", ["on"], ["on2"])
    return graph([*nodes, goes_on], [*first, *states], [port("on2", TRUTH), *outputs], constants)


class Net:
    """A network with SOL and with ONNX's reference. A call compares their results and returns SOL's."""

    def __init__(self, nodes, inputs, outputs=("y",), constants=()):
        model = make_model(nodes, inputs, outputs, 17, dict(constants) | {"always": N(True)})
        self.names, self.outputs = list(inputs), outputs
        self.file = model.SerializeToString()
        self.net = sol.load(self.file)
        self.reference = ReferenceEvaluator(model)

    def __call__(self, *values):
        got = self.net(*values)
        got = got if isinstance(got, tuple) else (got,)
        expected = self.reference.run(None, dict(zip(self.names, values, strict=True)))
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == b.dtype
            # The reference appends outputs of iterations to the first dim, instead of stacking them.
            np.testing.assert_allclose(a, b.reshape(a.shape), rtol=1e-3, atol=1e-4)
        return got

    @property
    def counts(self):
        return self.net.counts


# ---- Branches ----


def conv_or_lstm(c=8):
    """If mean(relu(conv(x))) > limit: convolutions, of which one has weights of the outer graph; else an LSTM over pooled rows."""
    then = graph(
        [
            node("Conv", ["h", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r1"]),
            node("Conv", ["r1", "outer_w"], ["c2"], pads=[1, 1, 1, 1]),
            node("Add", ["c2", "h"], ["s2"]),
            node("GlobalAveragePool", ["s2"], ["g"]),
            node("Flatten", ["g"], ["then_y"]),
        ],
        [],
        ["then_y"],
        {"w1": weight(c, c, 3, 3), "b1": weight(c)},
    )
    other = graph(
        [
            node("MaxPool", ["h"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
            node("Transpose", ["p"], ["t"], perm=[2, 0, 1, 3]),
            node("Reshape", ["t", "shape"], ["steps"]),
            node("LSTM", ["steps", "w", "r", "b"], ["", "last"], hidden_size=c),
            node("Squeeze", ["last", "axis"], ["else_y"]),
        ],
        [],
        ["else_y"],
        {"shape": whole(0, 0, -1), "axis": whole(0), "b": weight(1, 8 * c)}
        | {"w": weight(1, 4 * c, 8 * c), "r": weight(1, 4 * c, c)},
    )
    nodes = [
        node("Conv", ["x", "w0"], ["h0"], pads=[1, 1, 1, 1]),
        node("Relu", ["h0"], ["h"]),
        node("ReduceMean", ["h"], ["m"], keepdims=0),
        node("Greater", ["m", "limit"], ["above"]),
        node("If", ["above"], ["z"], then_branch=then, else_branch=other),
        node("Softmax", ["z"], ["y"]),
    ]
    inputs = {"x": real(1, 3, 16, 16), "limit": N(0, np.float32)}
    return Net(nodes, inputs, ("y",), {"w0": weight(c, 3, 3, 3), "outer_w": weight(c, c, 3, 3)})


def test_branches_are_compiled():
    net = conv_or_lstm()
    for limit, compiled in [(-1, 11), (9, 10), (-1, 11), (9, 10)]:
        net(real(1, 3, 16, 16), N(limit, np.float32))
        assert net.counts == (compiled, 1)


def test_a_branch_is_planned_for_each_shape():
    """The pooled size must be 8, as the LSTM's weights need it; the batch is open."""
    net = conv_or_lstm()
    for batch in (1, 3, 2, 1):
        for limit in (-1, 9):
            net(real(batch, 3, 16, 16), N(limit, np.float32))
            assert net.counts[1] == 1


def test_a_branch_that_never_runs_may_be_wrong():
    """One with values, one with shapes that cannot be."""
    constants = {"zero": whole(0), "one": whole(1), "five": whole(5)}
    bad = [node("Div", ["one", "zero"], ["q"]), node("Reshape", ["one", "five"], ["bad_y"])]
    good = graph([node("Exp", ["x"], ["y1"])], [], ["y1"])
    for wrong in bad:
        branch = graph([wrong, node("Neg", ["x"], ["y2"])], [], ["y2"])
        choice = node("If", ["c"], ["y"], then_branch=good, else_branch=branch, name="choice")
        model = make_model([choice], {"x": real(40), "c": N(True)}, constants=constants)
        net = sol.load(model.SerializeToString())
        x = real(40)
        np.testing.assert_allclose(net(x, N(True)), np.exp(x), rtol=1e-5)
        with pytest.raises(ValueError, match=f'node 0, If "choice": node 0, {wrong.op_type}'):
            net(x, N(False))


def test_errors_name_all_nodes_around_them():
    deep = graph([node("Gather", ["v", "at"], ["g"], name="pick")], [], ["g"])
    good = graph([node("Neg", ["v"], ["n"])], [], ["n"])
    choice = node("If", ["c"], ["v2"], then_branch=deep, else_branch=good, name="choice")
    turns = body([node("Neg", ["v"], ["u"]), choice], ["v"], ["v2"])
    loop = node("Loop", ["turns", "", "x"], ["y"], body=turns, name="turns")
    inputs = {"x": real(50), "at": whole(0), "c": N(True), "turns": N(3)}
    net = sol.load(make_model([node("Exp", ["x"], ["e"]), loop], inputs).SerializeToString())
    path = 'node 1, Loop "turns": node 1, If "choice": node 0, Gather "pick"'
    for _ in range(2):
        with pytest.raises(IndexError, match=path):
            net(real(50), whole(99), N(True), N(3))
        net(real(50), whole(99), N(False), N(3))


# ---- Values of outer graphs ----


def test_outer_values_change_between_calls():
    """The branch reads an input, a value that a program computes, one that is interpreted, and a constant; their shapes change, too."""
    branch = graph(
        [
            node("MatMul", ["a", "w"], ["p"]),
            node("Add", ["p", "x"], ["q"]),
            node("Mul", ["q", "total"], ["r"]),
        ],
        [],
        ["r"],
    )
    other = graph([node("Identity", ["a"], ["same"])], [], ["same"])
    nodes = [
        node("Tanh", ["x"], ["a"]),
        node("CumSum", ["x", "axis"], ["total"]),
        node("If", ["c"], ["b"], then_branch=branch, else_branch=other),
        node("Sub", ["b", "x"], ["y"]),
    ]
    inputs = {"x": real(5, 8), "c": N(True)}
    net = Net(nodes, inputs, ("y",), {"w": weight(8, 8), "axis": N(0)})
    for rows, condition in [(5, True), (5, True), (7, True), (7, False), (5, True), (9, True)]:
        net(real(rows, 8), N(condition))
        assert net.counts[1] <= 3


def test_a_name_that_hides_an_outer_one():
    """ONNX forbids it, but files have it: in the branch, t and w are its own values, the second t comes after a use of the first."""
    branch = helper.make_graph(
        [node("Tanh", ["t"], ["u"]), node("MatMul", ["u", "w"], ["t"]), node("Neg", ["t"], ["z"])],
        "branch",
        [],
        [port("z")],
        [numpy_helper.from_array(2 * np.eye(8, dtype=np.float32), "w")],
    )
    nodes = [
        node("Exp", ["x"], ["t"]),
        node("If", ["c"], ["b"], then_branch=branch, else_branch=branch),
        node("Add", ["b", "t"], ["s"]),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    constants = {"w": np.eye(8, dtype=np.float32)}
    net = sol.load(
        make_model(nodes, {"x": real(8, 8), "c": N(True)}, constants=constants).SerializeToString()
    )
    for _ in range(2):
        x = real(8, 8)
        expected = np.exp(x) - 2 * np.tanh(np.exp(x))
        np.testing.assert_allclose(net(x, N(True)), expected, rtol=1e-4, atol=1e-5)


# ---- Loops ----


def recurrent(pick, size=48):
    """v = tanh(v wh + step i of x), and all v. The nodes `pick` compute "step" of "x" and the number "i"."""
    nodes = [
        node("MatMul", ["v", "wh"], ["a"]),
        *pick,
        node("Add", ["a", "step"], ["s"]),
        node("Tanh", ["s"], ["v2"]),
        node("Neg", ["v2"], ["each"]),
    ]
    own = {"wh": weight(size, size), "zero": whole(0), "one": whole(1)}
    loop = node(
        "Loop", ["n", "always", "v0"], ["y", "all"], body=body(nodes, ["v"], ["v2", "each"], own)
    )
    inputs = {"n": N(5), "v0": real(1, size), "x": real(5, 1, size)}
    return Net([loop], inputs, ("y", "all"))


def test_the_body_of_a_loop_is_compiled():
    net = recurrent([node("Gather", ["x", "i"], ["step"], axis=0)])
    for turns in (50, 50, 20):
        net(N(turns), real(1, 48), real(turns, 1, 48))
        assert net.counts == (5 * turns, turns + 1)


def test_bounds_that_follow_from_the_number_of_the_iteration():
    """A plan cannot depend on them: the Slice alone is interpreted, from the second iteration on."""
    pick = [
        node("Unsqueeze", ["i", "zero"], ["from"]),
        node("Add", ["from", "one"], ["to"]),
        node("Slice", ["x", "from", "to", "zero"], ["slice"]),
        node("Squeeze", ["slice", "zero"], ["step"]),
    ]
    net = recurrent(pick)
    for turns in (50, 30, 50):
        net(N(turns), real(1, 48), real(turns, 1, 48))
        compiled, interpreted = net.counts
        assert compiled >= 4 * turns and interpreted <= 5 * turns + 1


def test_a_scan_with_a_convolution():
    inner = graph(
        [
            node("Conv", ["v", "w"], ["a"], pads=[1, 1, 1, 1]),
            node("Add", ["a", "step"], ["b"]),
            node("Relu", ["b"], ["v2"]),
            node("ReduceMean", ["v2"], ["each"], axes=[2, 3], keepdims=0),
        ],
        ["v", "step"],
        ["v2", "each"],
        {"w": weight(4, 4, 3, 3)},
    )
    scan = node("Scan", ["v0", "x"], ["y", "all"], body=inner, num_scan_inputs=1)
    net = Net([scan], {"v0": real(1, 4, 6, 6), "x": real(9, 1, 4, 6, 6)}, ("y", "all"))
    for turns in (9, 9, 3):
        net(real(1, 4, 6, 6), real(turns, 1, 4, 6, 6))
        assert net.counts == (4 * turns, 1)


def branch_in_loop():
    """v = conv(v) in even iterations, v - bias in odd ones; `bias` is an input."""
    then = graph(
        [node("Conv", ["v", "w"], ["c"], pads=[1, 1, 1, 1]), node("Tanh", ["c"], ["t"])], [], ["t"]
    )
    other = graph([node("Sub", ["v", "bias"], ["d"])], [], ["d"])
    nodes = [
        node("Mod", ["i", "two"], ["odd"]),
        node("Equal", ["odd", "none"], ["is_even"]),
        node("If", ["is_even"], ["v2"], then_branch=then, else_branch=other),
    ]
    own = {"two": N(2), "none": N(0)}
    loop = node("Loop", ["n", "always", "x"], ["y"], body=body(nodes, ["v"], ["v2"], own))
    inputs = {"n": N(5), "x": real(1, 4, 8, 8), "bias": real(4, 1, 1)}
    return Net([loop], inputs, ("y",), {"w": weight(4, 4, 3, 3)})


def test_a_branch_in_a_loop():
    net = branch_in_loop()
    for turns in (1, 6, 7):
        net(N(turns), real(1, 4, 8, 8), real(4, 1, 1))
        assert net.counts == (2 * ((turns + 1) // 2) + turns // 2, 4 * turns + 1)


def growing(size=48):
    """Each iteration appends a row to v, so no shape occurs twice in a call."""
    nodes = [
        node("Concat", ["v", "x"], ["v2"], axis=0),
        node("MatMul", ["v2", "w"], ["a"]),
        node("Softmax", ["a"], ["p"]),
        node("ReduceMax", ["p"], ["each"], keepdims=0),
    ]
    own = {"w": weight(size, size)}
    loop = node(
        "Loop", ["n", "always", "x"], ["y", "all"], body=body(nodes, ["v"], ["v2", "each"], own)
    )
    return Net([loop], {"n": N(5), "x": real(1, size)}, ("y", "all"))


def test_shapes_that_change_in_each_iteration():
    """Iterations 0, 1, 18 and 51 are planned; the others would be, too, if plans were not seen to be wasted."""
    net = growing()
    net(N(60), real(1, 48))
    assert net.counts == (4 * 4, 56 * 5 + 4 + 1)
    planned = net.counts[0]
    for _ in range(3):
        net(N(60), real(1, 48))
        assert planned <= net.counts[0] <= planned + 4 * 4
        planned = net.counts[0]


def test_plans_resume_when_shapes_stay():
    """A loop in which no shape occurs twice, then one where all do."""
    net = growing()
    net(N(5), real(1, 48))
    for _ in range(40):
        net(N(1), real(2, 48))
    assert net.counts == (4, 2)


def test_a_counting_loop_is_interpreted():
    nodes = [node("Add", ["v", "half"], ["u"]), node("Mul", ["u", "half"], ["v2"])]
    own = {"half": np.float32(0.5).reshape(())}
    loop = node("Loop", ["n", "always", "x"], ["y"], body=body(nodes, ["v"], ["v2"], own))
    net = Net([loop], {"n": N(5), "x": real(1)})
    net(N(20), real(1))
    assert net.counts == (0, 3 * 20 + 1)
    net(N(20), real(40))  # no longer small
    assert net.counts == (2 * 20, 20 + 1)


# ---- Element types ----


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.int64])
def test_partitions_compute_with_all_types(dtype):
    """NonZero needs a session; the other nodes are compiled, and at the next call, too, without a new plan."""
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Add", ["a", "x"], ["b"]),
        node("NonZero", ["b"], ["places"]),
        node("Neg", ["b"], ["y"]),
    ]
    x, w = np.arange(64).astype(dtype), N([3]).astype(dtype)
    net = Net(nodes, {"x": x}, ("y", "places"), {"w": w})
    for i in range(3):
        net(x % (7 + i))
        assert net.counts == (3, 1)


# ---- Profiles ----


def test_a_profile_has_steps_and_interpreted_nodes():
    """A row per step and node, also if it runs in many iterations; the nodes around it are named."""
    net, inputs = branch_in_loop(), (N(6), real(1, 4, 8, 8), real(4, 1, 1))
    profile = sol.profile(net.net, *inputs, runs=3)
    nodes = [step for step in profile.steps if step.module == "node"]
    assert [step.name for step in nodes] == ["Mod", "Equal", "If", "Identity", "Loop"]
    assert nodes[0].layers == 'node 0, Loop "": node 0, Mod ""'
    kernels = [step for step in profile.steps if step.module in ("DNN", "DFP")]
    assert [step.layers.split()[0] for step in kernels] == ["conv+tanh", "sub"]
    assert all(step.seconds > 0 for step in nodes + kernels) and "conv" in str(profile)
    assert kernels[0].flops == pytest.approx(3 * 2 * 4 * 4 * 9 * 64, rel=0.3)  # of 3 iterations


def test_the_program_profiles_a_session(tmp_path):
    (tmp_path / "net.onnx").write_bytes(conv_or_lstm().file)
    shape = "--shape=x:1,3,16,16"
    shown = run("profile", tmp_path / "net.onnx", shape, "--runs=2", f"--json={tmp_path / 'p'}")
    assert 'If: node 4, If ""' in shown and "conv+relu" in shown
    steps = json.loads((tmp_path / "p").read_text())["steps"]
    assert {"node", "DNN"} <= {step["module"] for step in steps}


# ---- Many calls ----


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_memory_does_not_grow():
    """1,000 calls with 40 shapes, of which 16 are kept."""
    net = branch_in_loop()

    def call(i):
        net.net(N(3), real(1, 4, 8, 8 + i % 40), real(4, 1, 1))

    for i in range(80):
        call(i)
    before = resident()
    for i in range(1000):
        call(7 + i % 3 if i % 50 else i)
    assert resident() - before < 8 << 20


def test_first_calls_of_many_threads():
    net, failures = conv_or_lstm(), []
    together = threading.Barrier(4)
    calls = [(real(1 + k % 2, 3, 16, 16), N((-1, 9)[k // 2], np.float32)) for k in range(4)]
    other = conv_or_lstm()
    expected = [net.reference.run(None, {"x": x, "limit": limit})[0] for x, limit in calls]

    def work(k):
        together.wait()
        for _ in range(10):
            if not np.allclose(net.net(*calls[k]), expected[k], rtol=1e-3, atol=1e-4):
                failures.append(k)
            other.net(*calls[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_fork_during_a_loop_with_compiled_branches(tmp_path):
    (tmp_path / "net.onnx").write_bytes(branch_in_loop().file)
    ones = "np.ones(({}), np.float32)"
    inputs = f"[np.int64(20), {ones.format('1, 4, 8, 8')}, {ones.format('4, 1, 1')}]"
    check_forks(tmp_path / "net.onnx", inputs)

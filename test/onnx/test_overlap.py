"""Calls of ONNX networks that overlap, and forks during such calls."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
from onnx import TensorProto, helper

import sol.onnx as sol


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def make_loop():
    """y = x + n, by an interpreted Loop of n iterations, so n sets the time of a call."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "one"], ["w"]),
            helper.make_node("Identity", ["go"], ["more"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            value("v", TensorProto.INT64, [1]),
        ],
        [value("more", TensorProto.BOOL, []), value("w", TensorProto.INT64, [1])],
        [helper.make_tensor("one", TensorProto.INT64, [1], [1])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "on", "x"], ["y"], body=body)],
        "g",
        [value("n", TensorProto.INT64, []), value("x", TensorProto.INT64, [1])],
        [value("y", TensorProto.INT64, [1])],
        [helper.make_tensor("on", TensorProto.BOOL, [], [True])],
    )
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()


def test_a_short_call_does_not_wait_for_a_long_one():
    net, x, done = sol.load(make_loop()), np.zeros(1, np.int64), []
    net(np.int64(1), x)

    def call_long():
        assert net(np.int64(1_000_000), x) == 1_000_000
        done.append(True)

    thread = threading.Thread(target=call_long)
    thread.start()
    waited = 0
    while thread.is_alive() and waited < 5:  # until the call has begun
        thread.join(0.01)
        waited += 1
        assert net(np.int64(3), x) == 3
    assert not done, "the long call has ended before 5 short ones"
    thread.join()
    assert done


# Threads make calls in an endless loop. Meanwhile the process forks, and each child must finish a call in time.
FORKS = """
    import os, random, signal, sys, threading, time
    import numpy as np
    import sol.onnx as sol
    net, inputs = sol.load(sys.argv[1]), eval(sys.argv[2])
    expected = net(*inputs)

    def call():
        while True:
            net(*inputs)

    for _ in range(2):
        threading.Thread(target=call, daemon=True).start()
    for i in range(40):
        time.sleep(random.random() / 200)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            right = all(np.array_equal(net(*inputs), expected) for _ in range(2))
            os._exit(not right)
        status = os.waitpid(child, 0)[1]
        if status:
            os.write(2, b"child %d: status %d" % (i, status))
            os._exit(1)
    os._exit(0)
"""


def check_forks(path, inputs):
    argv = [sys.executable, "-c", textwrap.dedent(FORKS), str(path), inputs]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert done.returncode == 0, done.stderr


def test_fork_during_an_interpreted_call(tmp_path):
    (tmp_path / "loop.onnx").write_bytes(make_loop())
    check_forks(tmp_path / "loop.onnx", "[np.int64(300), np.zeros(1, np.int64)]")


def test_fork_during_a_compiled_call(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["n"])],
        [value("y", TensorProto.FLOAT, ["n"])],
    )
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    (tmp_path / "relu.onnx").write_bytes(model.SerializeToString())
    check_forks(tmp_path / "relu.onnx", "[np.ones(4, np.float32)]")

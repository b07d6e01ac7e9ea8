"""Deeply nested files on small stacks give an error and do not end the process. Each test runs in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from test_session import make_model, real

PROGRAM = Path(__file__).resolve().parents[2] / "build/release/sol"


def port(name, kind=TensorProto.FLOAT, shape=()):
    return helper.make_tensor_value_info(name, kind, shape)


def choice(then, name):
    """A node If(c): one branch is the node ``then``, the other is Neg(x)."""
    other = helper.make_graph([helper.make_node("Neg", ["x"], [name])], "else", [], [port(name)])
    branch = helper.make_graph([then], "then", [], [port(then.output[0])])
    return helper.make_node("If", ["c"], [name], then_branch=branch, else_branch=other)


def nested_graphs(depth):
    node = helper.make_node("Sin", ["x"], ["y0"])
    for i in range(depth):
        node = choice(node, f"y{i + 1}")
    ports = [port("c", TensorProto.BOOL), port("x")]
    graph = helper.make_graph([node], "g", ports, [port(node.output[0])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def nested_functions(depth, each):
    """``depth`` functions; each calls the next one inside of ``each`` nested graphs."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    functions = []
    for i in range(depth):
        node = helper.make_node(f"F{i + 1}", ["c", "x"], ["r"], domain="own")
        for k in range(each):
            node = choice(node, f"r{k}")
        last = helper.make_node("Sin", ["x"], ["y"])
        node = last if i + 1 == depth else choice(node, "y")
        functions.append(helper.make_function("own", f"F{i}", ["c", "x"], ["y"], [node], opsets))
    node = helper.make_node("F0", ["c", "x"], ["y"], domain="own")
    ports = [port("c", TensorProto.BOOL), port("x")]
    graph = helper.make_graph([node], "g", ports, [port("y")])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def long_chain(n):
    """A chain of n pointwise layers, which would become one kernel."""
    kinds = ["Neg", "Sigmoid", "Tanh", "Abs"]
    nodes = [
        helper.make_node(kinds[i % 4], [f"t{i}" if i else "x"], [f"t{i + 1}" if i < n - 1 else "y"])
        for i in range(n)
    ]
    model = make_model(nodes, {"x": real(2, 3)})
    model.graph.input[0].CopyFrom(port("x", shape=(2, 3)))
    model.graph.output[0].CopyFrom(port("y", shape=(2, 3)))
    return model


def run_program(path, kib):
    return subprocess.run(
        ["sh", "-c", f'ulimit -s {kib}; exec "$0" run "$1"', PROGRAM, path],
        capture_output=True,
        text=True,
        env={**os.environ, "SOL_CC": "none"},
        timeout=60,
    )


@pytest.mark.parametrize("kib, words", [(32, "limited to 32 KiB"), (256, "0 nodes ran compiled")])
def test_nested_graphs_in_the_program(tmp_path, kib, words):
    path = tmp_path / "net.onnx"
    path.write_bytes(nested_graphs(30).SerializeToString())
    done = run_program(path, kib)
    assert done.returncode == (0 if kib > 32 else 1) and words in done.stdout + done.stderr


@pytest.mark.parametrize("kib, compiled", [(128, 0), (256, 1)])
def test_branches_are_interpreted_where_the_stack_is_too_small_to_compile(tmp_path, kib, compiled):
    """All 30 conditions hold, so the value of the innermost branch is the result."""
    model = nested_graphs(30)
    model.graph.input[1].CopyFrom(port("x", shape=(64, 64)))
    del model.graph.input[0]
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    done = run_program(tmp_path / "net.onnx", kib)
    assert done.returncode == 0, done.stderr
    assert f"{compiled} nodes ran compiled, {31 - compiled} were interpreted" in done.stdout


def test_a_long_chain_is_several_kernels(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(long_chain(150).SerializeToString())
    assert run_program(path, 128).returncode == 0


THREAD = """
import sys, threading
import numpy as np
import sol.onnx as sol
data = open(sys.argv[1], "rb").read()
def work():
    try:
        print(sol.load(data)(np.array(True), np.float32([1]).reshape(())))
    except Exception as error:
        print(type(error).__name__, error)
threading.stack_size(int(sys.argv[2]) << 10)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    "depth, each, kib, words",
    [
        (90, 20, 256, "MemoryError graphs of functions nested too deep"),
        (90, 20, 4096, "ValueError node 0, If"),  # graphs are nested too deep for any stack
        (60, 0, 4096, "0.84147"),
    ],
)
def test_nested_functions_in_a_thread(tmp_path, depth, each, kib, words):
    path = tmp_path / "net.onnx"
    path.write_bytes(nested_functions(depth, each).SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", THREAD, path, str(kib)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.startswith(words)

"""Writes what fuzzing starts from: seeds.py FOLDER. One small ONNX file per operator, ONNX's own tests, the examples of docs/ir.md."""

import re
import sys
import warnings
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = re.compile(r'^OP\((\w+), (\d+), (\d+), \w+, \w+, "\w*",\s*"([\w ]*)"\)', re.M)
INTS = {"axes", "dilations", "ends", "kernel_shape", "pads", "perm", "split", "starts", "strides"}
WORDS = {"auto_pad": "SAME_UPPER", "mode": "DCR", "approximate": "tanh"}
REALS = {"alpha", "beta", "bias", "epsilon", "gamma", "max", "min", "momentum", "ratio"}


def attribute(name, n):
    if name in INTS:
        return [1] * (4 if name == "pads" else n)
    if name in WORDS:
        return WORDS[name]
    return 0.5 if name in REALS else 1


def model(op, n_in, attributes):
    """x of an open batch, then constants; shapes that suit the operator or do not."""
    shapes = [("w", (4, 3, 3, 3)), ("b", (4,)), ("c", (3,)), ("d", ()), ("e", (3, 1))]
    constants = [numpy_helper.from_array(np.ones(shape, np.float32), n) for n, shape in shapes]
    constants.append(numpy_helper.from_array(np.array([0, -1], np.int64), "to"))
    names = ["x", "to" if op in ("Reshape", "Expand") else "w", "b", "c", "d", "e"][:n_in]
    node = helper.make_node(op, names, ["y"], **{k: attribute(k, 2) for k in attributes})
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def suite():
    """ONNX's own tests of nodes, with their inputs as initializers: what they are made of is then computed while loading."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in cases:
        values = case.data_sets[0][0]
        if not all(isinstance(x, (np.ndarray, np.generic)) for x in values):
            continue
        names = [x.name for x in case.model.graph.input]
        del case.model.graph.input[:]
        case.model.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(x), name) for x, name in zip(values, names)
        )
        data = case.model.SerializeToString()
        if len(data) < 8192:
            yield case.name, data


def main():
    folder = Path(sys.argv[1])
    for kind in "onnx", "mixed", "text":
        (folder / kind).mkdir(parents=True, exist_ok=True)
    table = (ROOT / "src/frontend/onnx/op.def").read_text()
    for op, least, most, attributes in OPERATOR.findall(table):
        for n_in in {int(least), min(int(most), 5)}:
            for names in [], attributes.split():
                data = model(op, n_in, names).SerializeToString()
                (folder / f"onnx/{op}-{n_in}-{len(names)}").write_bytes(data)
    for name, data in suite():
        (folder / f"mixed/{name}").write_bytes(data)
    for i, text in enumerate(
        re.findall(r"```sol[^\n]*\n(.*?)```", (ROOT / "docs/ir.md").read_text(), re.S)
    ):
        (folder / f"text/{i}").write_text(text)


if __name__ == "__main__":
    main()

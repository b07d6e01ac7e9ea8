"""Writes the corpora for fuzzing: seeds.py FOLDER. One small ONNX file per operator, ONNX's own tests, the examples of docs/ir.md."""

import re
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = re.compile(r'^OP\((\w+), (\d+), (\d+), \w+, \w+, "\w*",\s*"([\w ]*)"\)', re.M)
OF_DOMAIN = re.compile(r'^OP_OF\("([\w.]+)", (\w+), (\d+), (\d+), \w+, "\w*", "([\w ]*)"\)', re.M)
INTS = {"axes", "dilations", "ends", "kernel_shape", "pads", "perm", "split", "starts", "strides"}
WORDS = {"auto_pad": "SAME_UPPER", "mode": "DCR", "approximate": "tanh"}
REALS = {"alpha", "beta", "bias", "epsilon", "gamma", "max", "min", "momentum", "ratio"}


def attribute(name, n):
    if name in INTS:
        return [1] * (4 if name == "pads" else n)
    if name in WORDS:
        return WORDS[name]
    return 0.5 if name in REALS else 1


def model(op, n_in, attributes, domain=""):
    """A model of one node: x with an open batch, then constants. Their shapes may or may not be valid for the operator."""
    shapes = [("w", (4, 3, 3, 3)), ("b", (4,)), ("c", (3,)), ("d", ()), ("e", (3, 1))]
    constants = [numpy_helper.from_array(np.ones(shape, np.float32), n) for n, shape in shapes]
    constants.append(numpy_helper.from_array(np.array([0, -1], np.int64), "to"))
    names = ["x", "to" if op in ("Reshape", "Expand") else "w", "b", "c", "d", "e"][:n_in]
    node = helper.make_node(
        op, names, ["y"], domain=domain, **{k: attribute(k, 2) for k in attributes}
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def fix(model, values, keeps):
    """The model, serialized. Inputs become initializers, except those for whose value ``keeps`` returns True."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    ports = list(fixed.graph.input)
    del fixed.graph.input[:]
    for port, x in zip(ports, values):
        if keeps(np.asarray(x)):
            fixed.graph.input.append(port)
        else:
            fixed.graph.initializer.append(numpy_helper.from_array(np.asarray(x), port.name))
    return fixed.SerializeToString()


def suite():
    """ONNX's own tests of nodes: (name, first model, second model). In the first, all inputs are initializers, so everything is
    computed while loading. In the second, float32 tensors stay inputs, so the builder imports the node."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in cases:
        values = case.data_sets[0][0]
        if not all(isinstance(x, (np.ndarray, np.generic)) for x in values):
            continue
        pair = [
            fix(case.model, values, keeps)
            for keeps in (lambda x: False, lambda x: x.dtype == np.float32 and x.ndim > 0)
        ]
        if max(map(len, pair)) < 8192:
            yield case.name, *pair


def external(location, **more):
    """A weight in another file."""
    tensor = TensorProto(data_type=TensorProto.FLOAT, name="w", dims=[4], data_location=1)
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(value))
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "xy"]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main():
    folder = Path(sys.argv[1])
    for kind in "onnx", "session", "text":
        (folder / kind).mkdir(parents=True, exist_ok=True)
    table = (ROOT / "src/frontend/onnx/op.def").read_text()
    rows = [("", *row) for row in OPERATOR.findall(table)] + OF_DOMAIN.findall(table)
    for domain, op, least, most, attributes in rows:
        for n_in in {int(least), min(int(most), 5)}:
            for names in [], attributes.split():
                data = model(op, n_in, names, domain).SerializeToString()
                (folder / f"onnx/{domain}{op}-{n_in}-{len(names)}").write_bytes(data)
    for name, known, part in suite():
        (folder / f"session/{name}").write_bytes(known)
        (folder / f"onnx/{name}").write_bytes(part)
    (folder / "external/sub").mkdir(parents=True, exist_ok=True)
    for name in "data", "sub/data":
        (folder / "external" / name).write_bytes(bytes(64))
    for i, (name, more) in enumerate(
        [
            ("data", {}),
            ("data", {"offset": 16, "length": 16}),
            ("sub/data", {"checksum": "0"}),
            ("../x", {}),
        ]
    ):
        (folder / f"onnx/external{i}").write_bytes(external(name, **more).SerializeToString())
    for i, text in enumerate(
        re.findall(r"```sol[^\n]*\n(.*?)```", (ROOT / "docs/ir.md").read_text(), re.S)
    ):
        (folder / f"text/{i}").write_text(text)


if __name__ == "__main__":
    main()

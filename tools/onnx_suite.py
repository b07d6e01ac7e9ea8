"""ONNX's own backend suite: what passes, compiled or interpreted, and why the rest does not. Writes docs/onnx-suite.md.

    python tools/onnx_suite.py [--kinds node,simple,..] [--filter REGEX] [--write]

A test passes whole (compiled before any call), in parts (all nodes compiled, once the shapes are known), mixed (some nodes compiled, the
others interpreted) or interpreted. Nodes that depend on the file alone are computed while loading, and count as neither.
"""

import argparse
import collections
import glob
import os
import re
import sys
import time
import warnings
from pathlib import Path

import numpy
import onnx
import onnx.backend.test.loader as loader
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

import sol.onnx as sol

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "onnx-suite.md"
KINDS = ["node", "simple", "pytorch-converted", "pytorch-operator", "real"]
PASSED = ["whole", "parts", "mixed", "interpreted"]
OUTCOMES = [*PASSED, "refused", "failed"]
# Why a test fails though nothing is wrong in SOL, or not known to be.
EXCUSES = {
    "test_loop16_seq_none": "the suite compares sequences of scalars with len(), which scalars do not have",
    "test_dft_inverse": "expects the rounding errors of a transform in float32; SOL's result is closer to 0",
    "test_dft_inverse_opset19": "as test_dft_inverse",
    "test_attention_4d_causal_fp16_expanded": "expects a softmax that was rounded to float16 at every step",
}


def to_array(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def read_sets(case, model):
    """[(inputs, outputs)] of a test whose data lies in files."""
    if not case.model_dir:
        return [read_light(case, model)]
    sets = []
    for folder in sorted(glob.glob(f"{case.model_dir}/test_data_set_*")):
        pair = [], []
        for kind, values, ports in zip(
            ("input", "output"), pair, (model.graph.input, model.graph.output)
        ):
            for i in range(len(glob.glob(f"{folder}/{kind}_*.pb"))):
                Runner._load_proto(None, f"{folder}/{kind}_{i}.pb", values, ports[i].type)
        sets.append(pair)
    return sets


def light_path(case):
    return Path(loader.DATA_DIR) / "light" / Path(case.url).name


def read_light(case, model):
    """The suite's real networks: constant weights, inputs made up by the suite, outputs beside the file."""
    known = {x.name for x in model.graph.initializer}
    inputs = [Runner.generate_dummy_data(x) for x in model.graph.input if x.name not in known]
    path = light_path(case).with_suffix("")
    outputs = []
    for i in range(len(model.graph.output)):
        tensor = onnx.TensorProto()
        tensor.ParseFromString(Path(f"{path}_output_{i}.pb").read_bytes())
        outputs.append(numpy_helper.to_array(tensor))
    return inputs, outputs


def load_case(case):
    """(model, its sets of data)."""
    if case.model:
        sets = [([to_array(x) for x in a], [to_array(x) for x in b]) for a, b in case.data_sets]
        return case.model, sets
    model = onnx.load(Path(case.model_dir) / "model.onnx" if case.model_dir else light_path(case))
    return model, read_sets(case, model)


def as_input(value):
    return value if value is None or isinstance(value, list) else numpy.asarray(value)


def outcome_of(network):
    if not network.session:
        return "whole"
    compiled, interpreted = network.counts
    return "interpreted" if not compiled else "mixed" if interpreted else "parts"


def reason_of(error):
    """A message without the node's number and name, which differ between tests."""
    text = re.sub(r'node \d+, (\S+) ".*?": ', r"\1: ", str(error))
    return " ".join(text.split())[:160]


def run_case(case):
    """(outcome, reason)."""
    model, sets = load_case(case)
    try:
        network = sol.load(model.SerializeToString(), folder=case.model_dir)
        for inputs, expected in sets:
            got = network(*[as_input(x) for x in inputs])
            got = got if isinstance(got, tuple) else (got,)
            Runner.assert_similar_outputs(expected, got, case.rtol, case.atol)
        return outcome_of(network), ""
    except NotImplementedError as error:
        return "refused", reason_of(error)
    except Exception as error:  # whatever else it is, the test failed
        return "failed", EXCUSES.get(case.name) or f"{type(error).__name__}: {reason_of(error)}"


def run_suite(kinds=KINDS, pattern=""):
    """[(kind, name, outcome, reason)] in the order of names."""
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the suite's own making of data
        for kind in kinds:
            for case in sorted(loader.load_model_tests(kind=kind), key=lambda case: case.name):
                if re.search(pattern, case.name):
                    rows.append((kind, case.name, *run_case(case)))
    return rows


def table(rows):
    """Lines of a table: kinds by outcomes."""
    counts = collections.Counter((kind, outcome) for kind, _, outcome, _ in rows)
    yield "| kind | tests | passed | " + " | ".join(OUTCOMES) + " |"
    yield "|---|" + "---:|" * (len(OUTCOMES) + 2)
    for kind in dict.fromkeys(kind for kind, *_ in rows):
        numbers = [counts[kind, outcome] for outcome in OUTCOMES]
        passed = sum(numbers[: len(PASSED)])
        yield f"| {kind} | {sum(numbers)} | {passed} | " + " | ".join(map(str, numbers)) + " |"


def not_passed(rows):
    """Lines of the list of tests that do not pass."""
    yield "| test | | reason |"
    yield "|---|---|---|"
    for kind, name, outcome, reason in rows:
        if outcome not in PASSED:
            yield f"| {kind}/{name} | {outcome} | {reason.replace('|', '/')} |"


def document(rows):
    return "\n".join(
        [
            "# ONNX's own backend suite",
            "",
            f"Written by `tools/onnx_suite.py --write` with onnx {onnx.__version__}; not to be edited. Its head says",
            "what the columns mean.",
            "",
            *table(rows),
            "",
            "## What does not pass",
            "",
            *not_passed(rows),
            "",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--filter", default="")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    start = time.monotonic()
    rows = run_suite(arguments.kinds.split(","), arguments.filter)
    print(*table(rows), "", *not_passed(rows), sep="\n")
    print(f"{time.monotonic() - start:.0f} s, SOL_CC={os.environ.get('SOL_CC', '')}")
    if arguments.write:
        DOCUMENT.write_text(document(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

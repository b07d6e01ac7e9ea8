"""Runs ONNX's backend test suite and prints which tests pass, and how; --write writes docs/onnx-suite.md.

    python tools/onnx_suite.py [--kinds node,simple,..] [--filter REGEX] [--write]

The outcomes of a test:
    whole         passes; the network is compiled as a whole before the call
    parts         passes; a session, of which all nodes are compiled at the call, when shapes are known
    mixed         passes; a session, of which some nodes are compiled and the others interpreted
    interpreted   passes; a session, of which all nodes are interpreted
    refused       SOL does not support the network
    failed        another error, or a wrong result
Nodes that depend only on the file are computed while it is loaded, and count neither as compiled nor as interpreted.
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
# {test: reason} of tests that fail without a known error in SOL.
EXCUSES = {
    "test_loop16_seq_none": "the suite compares sequences of scalars with len(), which scalars do not have",
    "test_dft_inverse": "expects the rounding errors of a transform in float32; SOL's result is closer to 0",
    "test_dft_inverse_opset19": "as test_dft_inverse",
}


def to_array(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def read_sets(case, model):
    """Returns [(inputs, outputs)] of a test whose data is in files."""
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
    """Returns (inputs, outputs) of a network of the kind "real": the suite generates inputs; outputs are in files."""
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
    """Returns (model, [(inputs, outputs)]) of a test."""
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
    """Returns an error's message without the node's number and name, as these differ between tests."""
    text = re.sub(r'node \d+, (\S+) ".*?": ', r"\1: ", str(error))
    return " ".join(text.split())[:160]


def run_case(case):
    """Runs a test. Returns (outcome, reason); the reason is "" for a test that passes."""
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
    except Exception as error:  # of any other type: the test failed
        return "failed", EXCUSES.get(case.name) or f"{type(error).__name__}: {reason_of(error)}"


def run_suite(kinds=KINDS, pattern=""):
    """Runs the tests whose names match `pattern`. Returns [(kind, name, outcome, reason)], sorted by name in each kind."""
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the suite while it generates data
        for kind in kinds:
            for case in sorted(loader.load_model_tests(kind=kind), key=lambda case: case.name):
                if re.search(pattern, case.name):
                    rows.append((kind, case.name, *run_case(case)))
    return rows


def table(rows):
    """Yields the lines of a table with a row per kind and a column per outcome."""
    counts = collections.Counter((kind, outcome) for kind, _, outcome, _ in rows)
    yield "| kind | tests | passed | " + " | ".join(OUTCOMES) + " |"
    yield "|---|" + "---:|" * (len(OUTCOMES) + 2)
    for kind in dict.fromkeys(kind for kind, *_ in rows):
        numbers = [counts[kind, outcome] for outcome in OUTCOMES]
        passed = sum(numbers[: len(PASSED)])
        yield f"| {kind} | {sum(numbers)} | {passed} | " + " | ".join(map(str, numbers)) + " |"


def not_passed(rows):
    """Yields the lines of a table of the tests that do not pass."""
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

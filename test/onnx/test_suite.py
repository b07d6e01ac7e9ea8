"""ONNX's own backend suite: exactly the tests listed in docs/onnx-suite.md do not pass. tools/onnx_suite.py runs the real networks."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICK = "node,simple,pytorch-converted,pytorch-operator"
KINDS = QUICK.split(",")


def test_suite_is_as_documented():
    # Generated kernels are interpreted here, because there are hundreds. Other tests run compiled kernels.
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "onnx_suite.py", "--kinds", QUICK],
        env=dict(os.environ, SOL_CC="none"),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]

    def tests(text):
        lines = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
        return {(line[1].strip(), line[2].strip()) for line in lines if "/test_" in line[1]}

    def counts(text):
        return {
            line
            for line in text.splitlines()
            if line.split("|")[1:2] and line.split("|")[1].strip() in KINDS
        }

    documented = (ROOT / "docs" / "onnx-suite.md").read_text()
    assert tests(done.stdout) == {
        row for row in tests(documented) if not row[0].startswith("real/")
    }
    assert counts(done.stdout) == counts(documented), "`tools/onnx_suite.py --write` counts again"

"""tools/doc_names.py finds names that do not exist; tools/loc.py finds folders that exceed their limit."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import doc_names


@pytest.fixture(scope="module")
def sources():
    return doc_names.Sources()


# Joined here, so that the word itself occurs in no source.
UNKNOWN = "_".join(("jit", "build", "nothing"))
RIGHT = (
    "`lower` in `src/compile.c`, `struct model`, `struct layer` and `struct tensor` (`src/ir/ir.h`), "
    "`src/jit/jit.c` (`jit_build`), `src/jit/` and NAME.c"
)
WRONG = {
    "`jit_build` in `src/compile.c`": "jit_build",
    "**`struct model`**, `struct sol_program` (`src/ir/ir.h`)": "sol_program",
    "`src/jit/jit_cache.c` (`jit_build`)": "jit_build",
    "a row of `devices` in\n`src/device/device.c`": "device.c",
    f"`{UNKNOWN}`": UNKNOWN,
    "`src/device/cpu/jit.c`": "jit.c",
    "`src/jot/`": "src/jot/",
}


def test_right_sentences(sources):
    assert not list(doc_names.check_document("d", RIGHT, sources))
    assert not list(doc_names.check_document("d", f"```\n`{UNKNOWN}`\n```", sources))


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_sentences(sources, sentence):
    errors = list(doc_names.check_document("d", sentence, sources))
    assert len(errors) == 1 and WRONG[sentence] in errors[0]


@pytest.mark.parametrize(
    "comment", ["/* See lowering.c. */", "/* As exec_fail (run/request.c) does. */"]
)
def test_wrong_comments(sources, comment):
    assert len(list(doc_names.check_comments("f", comment, sources))) == 1
    right = comment.replace("lowering.c", "lower.c").replace("request.c", "exec.c")
    assert not list(doc_names.check_comments("f", right, sources))


def test_sections(sources):
    header = "/* ---- jit_cache.c, jit.c: kernels ---- */\n\nenum sol_status jit_build(int a,\n  int b);\n"
    assert not list(doc_names.check_sections("f", header, sources))
    wrong = header.replace(", jit.c", "")
    assert len(list(doc_names.check_sections("f", wrong, sources))) == 1


def test_loc():
    loc = pytest.importorskip("loc", reason="needs lizard: make loc")
    assert loc.python_lines('"""Text.\n\nMore."""\n\n# comment\nx = """a\nb"""  # two\n') == 2
    assert loc.check_folders({"src": 10}, {"src": 10})[1]
    for sizes, limits in (({"src": 11}, {"src": 10}), ({"src": 1}, {}), ({}, {"src": 1})):
        assert not loc.check_folders(sizes, limits)[1]

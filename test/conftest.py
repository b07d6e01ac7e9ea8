"""Shared by the Python tests of all folders."""

import os
import sys
from pathlib import Path

import pytest

# Only objects are kept: for everything else no Python starts.
KEEPER = """#!/bin/sh
case " $* " in *" -r "*) exec "{python}" "{script}" "$@";; esac
exec cc "$@"
"""


@pytest.fixture(scope="session")
def keeping(tmp_path_factory):
    """Returns the environment in which objects of deployed libraries are compiled once (kept_cc.py)."""
    if os.environ.get("SOL_CC"):
        return {}
    folder = Path(os.environ.get("KEPT_OBJECTS") or tmp_path_factory.mktemp("objects"))
    folder.mkdir(parents=True, exist_ok=True)
    cc = tmp_path_factory.mktemp("compiler") / "cc"
    script = Path(__file__).with_name("kept_cc.py")
    cc.write_text(KEEPER.format(python=sys.executable, script=script))
    cc.chmod(0o755)
    return {"KEPT_OBJECTS": str(folder), "SOL_CC": str(cc), "CC": str(cc)}


@pytest.fixture
def keep_objects(keeping, monkeypatch):
    """For tests that deploy: that takes most of their time."""
    for name, value in keeping.items():
        monkeypatch.setenv(name, value)

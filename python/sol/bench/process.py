"""Runs work on one network in a process of its own, so that a crash or full memory costs one row, not the run.

Needs nothing but Python, so that tools can use the file without an installed SOL."""

import json
import os
import subprocess
import sys
import tempfile
import time

MARK = "@result "


def report(row):
    """In the child: hands the result, a dict, to the parent. Libraries may have left a line unfinished."""
    print("\n" + MARK + json.dumps(row), flush=True)


def run_child(argv, timeout, cache_dir=None, env=None):
    """Runs `python argv...` and returns what it reported; on failure {"error": reason, "output": last lines}.

    Without `cache_dir` the child compiles into an empty kernel cache, which is removed afterwards. `env` adds
    variables to the child's environment."""
    with tempfile.TemporaryDirectory(prefix="sol-") as empty:
        cache = cache_dir or os.path.join(empty, "cache")
        env = {**os.environ, "SOL_CACHE_DIR": cache, **(env or {})}
        command = [sys.executable, "-X", "faulthandler", *argv]
        start = time.monotonic()
        try:
            child = subprocess.run(
                command, env=env, capture_output=True, text=True, errors="replace", timeout=timeout
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {timeout:.0f} s", "seconds": timeout}
    row = {"error": f"exit code {child.returncode}"}
    for line in child.stdout.splitlines():
        if line.startswith(MARK):
            row = json.loads(line[len(MARK) :])
    if "error" in row:
        said = [line for line in child.stdout.splitlines() if not line.startswith(MARK)]
        row["output"] = "\n".join([*said, child.stderr])[-3000:]
    elif os.environ.get("SOL_LOG"):
        sys.stderr.write(child.stderr)
    row["seconds"] = round(time.monotonic() - start, 1)
    return row

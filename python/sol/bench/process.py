"""Runs work on one network in a process of its own, so that a crash or full memory costs one row, not the run.

Needs nothing but Python, so that tools can use the file without an installed SOL."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

MARK = "@result "
STEP = "@step "
WANTS_STEPS = "SOL_BENCH_STEPS"  # set for a child whose parent shows what it does


def report(row):
    """In the child: hands the result, a dict, to the parent. Libraries may have left a line unfinished."""
    print("\n" + MARK + json.dumps(row), flush=True)


def tell(step):
    """In the child: what it does now, for a parent that shows it."""
    if os.environ.get(WANTS_STEPS):
        print("\n" + STEP + step, flush=True)


class Line:
    """A line on a terminal that is overwritten; nothing where stderr is none."""

    def __init__(self, stream=None):
        self._stream = stream or sys.stderr
        self.is_visible = self._stream.isatty()

    def show(self, words):
        if self.is_visible:
            shown = "".join(c if c.isprintable() else "?" for c in words)[:100]
            self._stream.write(f"\r\x1b[K{shown}")
            self._stream.flush()

    def clear(self):
        self.show("")


def run_child(argv, timeout, cache_dir=None, env=None, on_step=None):
    """Runs `python argv...` and returns what it reported; on failure {"error": reason, "output": last lines}.

    Without `cache_dir` the child compiles into an empty kernel cache, which is removed afterwards. `env` adds
    variables to the child's environment. `on_step(text)` is called with what the child tells."""
    with (
        tempfile.TemporaryDirectory(prefix="sol-") as empty,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        cache = cache_dir or os.path.join(empty, "cache")
        env = {**os.environ, "SOL_CACHE_DIR": cache, **(env or {})}
        if on_step:
            env[WANTS_STEPS] = "1"
        command = [sys.executable, "-X", "faulthandler", *argv]
        start = time.monotonic()
        code, lines = run(command, env, timeout, errors, on_step or (lambda step: None))
        errors.seek(0)
        return read_row(code, lines, errors.read(), timeout, time.monotonic() - start)


def run(command, env, timeout, errors, on_step):
    """(exit code, None when it took too long; lines of stdout). The child leads a group, with which its own children end."""
    child = subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    ended = []

    def end():
        ended.append(True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(timeout, end)
    timer.start()
    try:
        lines = []
        for line in child.stdout:
            if line.startswith(STEP):
                on_step(line[len(STEP) :].strip())
            else:
                lines.append(line.rstrip("\n"))
        code = child.wait()
    except BaseException:
        end()
        raise
    finally:
        timer.cancel()
        child.stdout.close()
    return (None if ended else code), lines


def read_row(code, lines, errors, timeout, seconds):
    if code is None:
        return {"error": f"not done after {timeout:.0f} s", "seconds": timeout}
    row = {"error": f"exit code {code}"}
    for line in lines:
        if line.startswith(MARK):
            row = json.loads(line[len(MARK) :])
    if "error" in row:
        said = [line for line in lines if line and not line.startswith(MARK)]
        row["output"] = "\n".join([*said, errors])[-3000:]
    elif os.environ.get("SOL_LOG"):
        sys.stderr.write(errors)
    row["seconds"] = round(seconds, 1)
    return row

"""Runs the measurement of one network in a child process: a crash or a lack of memory loses one row, not the whole run.

    parent: run_child() -> child: tell(), report() -> lines on stdout -> parent: the row

The file needs only Python's standard library, so that tools can use it without an installed SOL.
"""

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
WANTS_STEPS = "SOL_BENCH_STEPS"  # environment variable: the parent displays the child's steps


def report(row):
    """In the child: sends the result, a dict, to the parent. It begins a new line, as a library may not have ended its own."""
    print("\n" + MARK + json.dumps(row), flush=True)


def write_rows(path, rows):
    """In the parent: writes the rows of all children as JSON to the Path `path`, in a new folder if need be. None: nothing."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1))


def tell(step):
    """In the child: sends the text of its current step to the parent, if the parent displays it."""
    if os.environ.get(WANTS_STEPS):
        print("\n" + STEP + step, flush=True)


class Line:
    """A status line on a terminal, which each ``show`` overwrites. Without a terminal it shows nothing."""

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


def run_child(argv, timeout, cache_dir=None, env=None, on_step=None, on_row=None):
    """Runs `python argv...` and returns the dict that it reports; on failure {"error": reason, "output": last lines}.

    The result also has "seconds". `timeout`: in seconds. `cache_dir`: the child's kernel cache; None: an empty one, which is
    deleted afterwards. `env`: variables to add to the child's environment. `on_step(text)`: called for each `tell`.
    `on_row(row)`: called for each `report`; the result is that of the last one.
    """
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
        listen = Listener(on_step, on_row)
        code, lines = run(command, env, timeout, errors, listen)
        errors.seek(0)
        return read_row(code, lines, errors.read(), timeout, time.monotonic() - start)


class Listener:
    """Takes the lines that a child prints. ``lines``: those that are no steps."""

    def __init__(self, on_step=None, on_row=None):
        self.lines = []
        self._on_step, self._on_row = on_step, on_row

    def __call__(self, line):
        if line.startswith(STEP):
            if self._on_step:
                self._on_step(line[len(STEP) :].strip())
            return
        self.lines.append(line.rstrip("\n"))
        if self._on_row and line.startswith(MARK):
            self._on_row(json.loads(line[len(MARK) :]))


def run(command, env, timeout, errors, listen):
    """Returns (exit code, lines of stdout); the exit code is None after a timeout.

    The child leads a process group, so that a timeout also ends the child's own children.
    """
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
        for line in child.stdout:
            listen(line)
        code = child.wait()
    except BaseException:
        end()
        raise
    finally:
        timer.cancel()
        child.stdout.close()
    return (None if ended else code), listen.lines


def read_row(code, lines, errors, timeout, seconds):
    """Returns the child's row, or an error row; ``code``, ``lines``: see ``run``; ``errors``: its stderr."""
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

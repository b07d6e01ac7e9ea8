"""Runs the tests and counts them: run_tests.py --build DIR [--jobs N] [--only-c] [--runner WORDS] [GROUP...]

A group is a folder in test/. make has built its C programs as DIR/test/GROUP/NAME; each prints "N passed, N failed" as its
last line. Its files test_*.py run under pytest, those of a large group in several runs of about equal length. The last line of the
output is the sum "N passed, N failed[, N skipped]", which is also written to DIR/test-summary. The exit code is 1 if any test failed,
or none passed.

With --jobs, so many programs run at a time; the output of each is printed when it ends. By default there are two, as most tests
wait for one C compiler, and no more, as some of them measure.

--runner is a command that executes each C program: an emulator, for programs of another machine. Tests find it in
$TEST_RUNNER and skip what an emulator cannot do.
"""

import argparse
import concurrent.futures
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed)\b")
KINDS = ("passed", "failed", "skipped")
KIND = {"error": "failed", "errors": "failed", "xfailed": "skipped", "xpassed": "passed"}
# They start first: the runs of torch take longer than all others, and under sanitizers the last two do.
LONGEST = ("torch 1 (pytest)", "torch 2 (pytest)", "op/test_op", "op/test_joint")
MOST_FILES = 30  # of one run of pytest
LAST_LINES = 30  # of a program that failed, printed again at the end: a log may be cut to its end


def parse_summary(lines):
    """Returns {"passed", "failed", "skipped": number} of the last line with such counts; None if there is none."""
    for line in reversed(lines):
        found = COUNT.findall(line)
        if found:
            counts = dict.fromkeys(KINDS, 0)
            for number, kind in found:
                counts[KIND.get(kind, kind)] += int(number)
            return counts
    return None


def run_program(argv, env, timeout, say):
    """Runs one program and passes each line of its output to `say`. Returns (its lines, its exit code). A program that has not ended
    after `timeout` seconds is killed, and a last line says so."""
    child = subprocess.Popen(
        argv,
        env=env,
        cwd=ROOT,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    late = threading.Event()

    def kill():
        late.set()
        os.killpg(child.pid, signal.SIGKILL)

    timer = threading.Timer(timeout, kill)
    timer.start()
    lines = []
    for line in child.stdout:
        say(f"    {line.rstrip()}")
        lines.append(line)
    child.wait()
    timer.cancel()
    if late.is_set():
        lines.append(f"\nkilled, as it had not ended after {timeout:.0f} seconds\n")
        say(lines[-1].strip())
    return lines, child.returncode


def run_one(name, argv, env, timeout, say):
    """Runs one program. Returns its counts and its last lines. A crash or a missing summary counts as one failed test."""
    say(f"== {name}")
    start = time.monotonic()
    try:
        lines, code = run_program(argv, env, timeout, say)
    except OSError as error:
        lines, code = [], str(error)
    counts = parse_summary(lines) or dict.fromkeys(KINDS, 0)
    if code and not counts["failed"]:
        say(f"    {name}: exit code {code}")
        counts["failed"] = 1
    elif not code and not any(counts.values()):
        say(f"    {name}: ended without a line 'N passed, N failed'")
        counts["failed"] = 1
    say(f"   ({time.monotonic() - start:.1f} s)")
    return counts, lines[-LAST_LINES:]


def print_now(text):
    print(text, flush=True)


def run_all(work, env, timeout, jobs):
    """Runs all programs of `work`, [(name, command line)]. Returns (the sum of their counts, {name: last lines} of those that
    failed)."""

    def run(item):
        lines = []
        say = print_now if jobs == 1 else lines.append
        if jobs > 1:
            print_now(f"   {item[0]} runs")
        counts, last = run_one(*item, env, timeout, say)
        if lines:
            print_now("\n".join(lines))
        return item[0], counts, last

    total, failed = dict.fromkeys(KINDS, 0), {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, counts, last in pool.map(run, work):
            for kind, number in counts.items():
                total[kind] += number
            if counts["failed"]:
                failed[name] = last
    return total, failed


def pytest_runs(group):
    """Yields (name, command line) of each run of pytest. Of n runs each takes every n-th file, as neighbours take about as long."""
    files = sorted((ROOT / "test" / group).glob("**/test_*.py"))
    n = -(-len(files) // MOST_FILES)
    for i in range(n):
        name = f"{group} {i + 1} (pytest)" if n > 1 else f"{group} (pytest)"
        argv = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider"]
        yield name, [*argv, *(str(file.relative_to(ROOT)) for file in files[i::n])]


def programs(build, groups, only_c, runner):
    """Yields (name, command line) of each program and each pytest run."""
    for group in groups:
        sources = sorted((ROOT / "test" / group).glob("test_*.c"))
        for source in sources:
            program = build / "test" / group / source.stem
            yield f"{group}/{source.stem}", [*shlex.split(runner), str(program)]
        if not only_c:
            yield from pytest_runs(group)


def find_libraries(venv):
    """Yields (environment variable, path) of vendors' libraries in `venv` (tools/requirements/test.txt)."""
    for variable, pattern in (
        ("SOL_ONEDNN", "lib/libdnnl.so.3"),
        ("SOL_OPENBLAS", "lib/python*/site-packages/scipy_openblas32/lib/libscipy_openblas.so"),
    ):
        for path in sorted(venv.glob(pattern))[:1]:
            yield variable, str(path)


def test_environment(build, runner):
    """Returns the environment variables of the tests."""
    env = dict(os.environ)
    if runner:
        env["TEST_RUNNER"] = runner
    for variable, path in [] if runner else find_libraries(ROOT / ".venv"):
        env.setdefault(variable, path)
    env.setdefault("SOL_CACHE_DIR", str(build / "cache"))  # not the user's cache
    env.setdefault("KEPT_OBJECTS", str(build / "objects"))  # test/kept_cc.py
    env.setdefault("ASAN_OPTIONS", "allocator_may_return_null=1:detect_leaks=1")
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    env.setdefault("PYTHONFAULTHANDLER", "1")
    return env


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only-c", action="store_true")
    parser.add_argument("--timeout", type=float, default=2700, help="seconds for one program")
    parser.add_argument("--runner", default="", help="words in front of each C program")
    parser.add_argument("group", nargs="*")
    args = parser.parse_args()
    build = args.build.resolve()
    build.mkdir(parents=True, exist_ok=True)
    groups = args.group or sorted(
        (p.name for p in (ROOT / "test").iterdir() if p.is_dir()),
        key=lambda name: (name != "unit", name),
    )
    work = list(programs(build, groups, args.only_c, args.runner))
    jobs = max(1, min(args.jobs, len(work)))
    if jobs > 1:
        first = {name: i for i, name in enumerate(LONGEST)}
        work.sort(key=lambda item: first.get(item[0], len(first)))
    total, failed = run_all(work, test_environment(build, args.runner), args.timeout, jobs)
    for name, last in failed.items():
        print(f"== the last lines of {name}, which failed")
        print("".join(f"    {line}" for line in last), end="")
    if failed:
        print("failed:", ", ".join(failed))
    summary = f"{total['passed']} passed, {total['failed']} failed"
    summary += f", {total['skipped']} skipped" if total["skipped"] else ""
    (build / "test-summary").write_text(summary + "\n")
    print(summary, flush=True)
    return 1 if failed or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())

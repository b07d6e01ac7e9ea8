"""The program `sol`: its help, the options of its commands, and invalid values."""

import json
import os
import re
import subprocess

import pytest
from test_cli import PROGRAM, TEXT, run

COMMANDS = "compile run bench profile report deploy dump devices cache help".split()


@pytest.fixture
def text(tmp_path):
    (tmp_path / "net.sol").write_text(TEXT)
    return tmp_path / "net.sol"


def test_version():
    shown = run("--version")
    assert re.fullmatch(r"SOL \d+\.\d+\.\d+\n", shown)


def test_help():
    everything = run("help")
    assert everything == run("--help") and all(name in everything for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name):
    shown = run("help", name)
    assert shown == run(name, "--help") and shown.startswith(f"usage: sol {name}")
    assert ("--batch" in shown) == (name not in ("devices", "cache", "help"))
    assert "--lib-name" not in shown or name == "deploy"


def test_help_of_no_command():
    assert "frobnicate" in run("help", "frobnicate", code=2)


def options_of(shown):
    return set(re.findall(r"^  (--[\w-]+)", shown, re.M))


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_a_command_does_not_use(name, text):
    """An option that is not in the command's help is refused, with a list of the valid ones."""
    takes = options_of(run("help", name))
    values = {"--threads": "1", "--batch": "1", "--runs": "1", "--seconds": "0", "--seed": "1"}
    for option in options_of(run("help")) - takes - {"--version"}:
        is_switch = option in ("--deterministic", "--no-autotune", "--static-memory", "--help")
        word = option if is_switch else f"{option}={values.get(option, 'x')}"
        message = run(name, text, word, code=2)
        assert f"`sol {name}` does not use {option}" in message
        assert takes - {"--help"} <= options_of(message)
    assert not list(text.parent.glob("*.html"))


def test_values_that_mean_nothing(text):
    assert re.search(r"x86|arm64|cpu", run("run", text, "--device=abacus", code=2))
    message = run("run", text, "--cpu=z80", code=2)
    assert "generic" in message and "z80" in message
    assert "neon" in run("deploy", text, "--cpu=z80", code=2)
    assert "needs a value" in run("run", text, "--batch", code=2)
    assert "takes no value" in run("run", text, "--deterministic=1", code=2)
    for option in "--seconds=x", "--seconds=-1", "--seconds=nan", "--runs=0", "--seed=-1":
        assert option in run("bench", text, option, code=2)
    for word in "0", "-1", "x", "1.5", "99999999999":
        assert f"--threads={word}" in run("run", text, f"--threads={word}", code=2)
    assert "what is" in run("run", text, "more", code=2)
    assert "what is" in run("devices", "more", code=2)


def test_too_many_threads(text):
    done = subprocess.run(
        [PROGRAM, "bench", text, "--threads=100000", "--runs=1", "--seconds=0"],
        capture_output=True, text=True,
    )  # fmt: skip
    most = max(16, 4 * len(os.sched_getaffinity(0)))
    assert f"{most} are used" in done.stderr and f"{most} threads" in done.stdout
    more = len(os.sched_getaffinity(0)) + 1
    command = [PROGRAM, "bench", text, f"--threads={more}", "--runs=1", "--seconds=0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "slower" in done.stderr and f"{more} threads" in done.stdout


def test_profile_as_json(text, tmp_path):
    path = tmp_path / "p.json"
    run("profile", text, "--runs=2", f"--json={path}", "--batch=3")
    found = json.loads(path.read_text())
    assert found["batch"] == 3 and found["runs"] == 2 and found["peak_gflops"] > 0
    assert any("conv" in step["layers"] for step in found["steps"])
    for step in found["steps"]:
        assert step["ms"] >= 0 and step["module"] and step["name"] and "bytes" in step


def test_cache_tells_how_much(text, tmp_path):
    cache = {"SOL_CACHE_DIR": str(tmp_path / "cache")}
    assert "holds 0 files, 0.0 MiB" in run("cache", **cache)
    run("compile", text, **cache)
    n = len(list((tmp_path / "cache").glob("*.so")))
    assert n > 0 and f"holds {n} files" in run("cache", **cache)
    assert f"removed {n} files" in run("cache", "clear", **cache)
    assert not list((tmp_path / "cache").glob("*.so"))
    assert "removed 0 files" in run("cache", "clear", **cache)


def test_report_says_what_was_measured(text, tmp_path):
    run("report", text, f"--output={tmp_path}/r.html", "--runs=2", "--batch=5", "--threads=1")
    page = (tmp_path / "r.html").read_text()
    facts = dict(re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td></tr>", page))
    assert "net.sol" in facts["network"] and facts["batch"] == "5" and facts["threads"] == "1"
    assert facts["inputs"] == "x f32[5,3,8,8]<br>" and facts["outputs"] == "y f32[5,16]<br>"
    assert run("--version").split()[1] == facts["SOL"]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d [+-]\d{4}$", facts["date"])
    assert facts["processor"] and facts["compiled for"].split(", ")[1] in run("devices")


# ---- The environment ----

BAD = {
    "SOL_LOG": ("FOO", "TRACE"),
    "SOL_DEBUG": ("plan,foo", "kernels"),
    "SOL_DISABLE": ("blah", "openblas"),
    "SOL_CPU": ("z80", "generic"),
    "SOL_NUM_THREADS": ("1000000", "1 to"),
    "SOL_CC_TIMEOUT": ("soon", "above 0"),
    "SOL_CALL_MEMORY": ("0", "above 0"),
    "SOL_LOOP_SECONDS": ("-1", "above 0"),
    "SOL_FAR": ("latency=fast", "bandwidth=GB_PER_S"),
    "SOL_VISIBLE_DEVICES": ("1-3", "numbers of devices"),
}


@pytest.mark.parametrize("name", BAD)
def test_variables_that_mean_nothing(name, text):
    value, valid = BAD[name]
    for command in ["run", text], ["devices"]:
        done = subprocess.run(
            [PROGRAM, *command], capture_output=True, text=True, env={**os.environ, name: value}
        )
        told = [line for line in done.stderr.splitlines() if name in line]
        assert done.returncode == 0 and len(told) == 1, done.stderr
        assert f"{name}={value}" in told[0] and valid in told[0]


def test_good_variables_are_not_told():
    env = {"SOL_LOG": "debug", "SOL_DEBUG": "plan, time", "SOL_DISABLE": "onednn,null"}
    done = subprocess.run(
        [PROGRAM, "devices"], capture_output=True, text=True, env={**os.environ, **env}
    )
    assert not done.stderr


def test_the_log_level_holds_for_warnings_of_the_environment():
    env = {**os.environ, "SOL_LOG": "ERROR", "SOL_DISABLE": "blah"}
    assert not subprocess.run([PROGRAM, "devices"], capture_output=True, env=env).stderr

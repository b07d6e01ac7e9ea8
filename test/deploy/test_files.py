"""The files of deployments: which files they replace, what failures and kills leave, and that other files are not touched."""

import os
import signal
import stat
import subprocess
import sys
import time

import pytest
import torch
from deploy_net import build_portable

import sol.pytorch as sol

C_SOURCE = {"target": sol.deployment.c_source}
SOURCES = {**C_SOURCE, "device": sol.device.x86}
STATIC = {"target": sol.deployment.static_lib}
KINDS = {
    "shared": ({}, {"Net.h", "libNet.so"}),
    "file": ({"weights": "file"}, {"Net.h", "libNet.so", "Net.weights"}),
    "static": (STATIC, {"Net.h", "libNet.a"}),
    "static file": ({**STATIC, "weights": "file"}, {"Net.h", "libNet.a", "Net.weights"}),
    "c": (C_SOURCE, {"Net.h", "Net.c", "Net_math.h"}),
    "c file": (
        {**C_SOURCE, "weights": "file"},
        {"Net.h", "Net.c", "Net_math.h", "Net.weights"},
    ),
    "sources": (SOURCES, {"Net"}),
}

# Replaces the compiler, objcopy and ar. Its output contains the names by which SOL recognizes a deployed library.
TOOL = """#!/bin/sh
case "$1" in -print-prog-name=*) echo "$0"; exit;; esac
if [ "$1" = rcs ]; then out="$2"; fi
while [ $# -gt 1 ]; do if [ "$1" = -o ]; then out="$2"; fi; shift; done
if [ -n "$out" ]; then printf 'x\\000Net_input_shape\\000sol_pool_1_run\\000' > "$out"; fi
"""


def names(folder):
    return {p.name for p in folder.iterdir()}


def contents(folder):
    """{file: its bytes} of all files below, including those of temporary folders."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


def script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def tool(tmp_path_factory):
    return script(tmp_path_factory.mktemp("tool") / "cc", TOOL)


@pytest.fixture(scope="module")
def small():
    return torch.nn.Linear(3, 2).eval()


def deploy_small(model, folder, kind="shared", **options):
    sol.deploy(
        model, [torch.zeros(1, 3)], lib_name="Net", path=folder, **{**KINDS[kind][0], **options}
    )


def test_every_kind_after_every_other(small, tmp_path, tool):
    for first in KINDS:
        for second in KINDS:
            for kind in first, second:
                deploy_small(small, tmp_path, kind, compiler=tool)
                assert names(tmp_path) == KINDS[kind][1], (first, second)


def test_real_libraries_after_each_other(small, tmp_path):
    """SOL recognizes the files of real compilers, too."""
    deploy_small(small, tmp_path, "sources", weights="file")
    assert subprocess.run(["sh", tmp_path / "Net" / "build.sh"]).returncode == 0
    deploy_small(small, tmp_path, "sources")
    assert not (tmp_path / "Net" / "libNet.so").exists()
    for kind in ("static", "shared", "c"):
        deploy_small(small, tmp_path, kind)
        assert names(tmp_path) == KINDS[kind][1]


def test_what_a_user_built_stays(small, tmp_path, tool):
    """A library that the user compiled from portable C is not a deployed file. Only a deployed library of the same name replaces it."""
    deploy_small(small, tmp_path, "c")
    build_portable(tmp_path)
    built = (tmp_path / "libNet.so").read_bytes()
    for kind in ("c", "static"):
        deploy_small(small, tmp_path, kind, compiler=tool)
        assert names(tmp_path) == KINDS[kind][1] | {"libNet.so"}
        assert (tmp_path / "libNet.so").read_bytes() == built
    deploy_small(small, tmp_path, compiler=tool)
    assert names(tmp_path) == KINDS["shared"][1]
    assert (tmp_path / "libNet.so").read_bytes() != built


def test_other_names_stay(small, tmp_path, tool):
    for name in ("Net", "Other", "Net_math", "Ne"):
        if name == "Net_math":  # its header would have the name of Net's Net_math.h
            with pytest.raises(ValueError, match=r"Net_math\.h is there"):
                sol.deploy(small, [torch.zeros(1, 3)], lib_name=name, path=tmp_path, compiler=tool)
        else:
            sol.deploy(small, [torch.zeros(1, 3)], lib_name=name, path=tmp_path, **C_SOURCE)
    before = contents(tmp_path)
    deploy_small(small, tmp_path, "c")
    assert contents(tmp_path) == before
    assert len(before) == 9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("earlier", ["shared", "sources", "c file"])
def test_files_of_others(small, tmp_path, tool, earlier, kind):
    """A user's file with the name of a deployed file is never changed. If deploying needs its name, it fails and changes nothing."""
    deploy_small(small, tmp_path, earlier, compiler=tool)
    mine = {
        "Net.c": b"int main(void) {}",
        "Net.h": b"#pragma once",
        "libNet.so": b"\x7fELF",
        "libNet.a": b"",
    }
    mine |= {"Net.weights": b"ten kilos", "Net_math.h": b"/* mathematics */", "Net": None}
    ours = contents(tmp_path)
    for name in mine.keys() - ours.keys():
        path = tmp_path / name
        path.mkdir() if mine[name] is None else path.write_bytes(mine[name])
        before = contents(tmp_path)
        if name in KINDS[kind][1]:
            with pytest.raises(ValueError, match=f"{name} is there"):
                deploy_small(small, tmp_path, kind, compiler=tool)
            assert contents(tmp_path) == before
            path.rmdir() if mine[name] is None else path.unlink()
    deploy_small(small, tmp_path, kind, compiler=tool)
    kept = (mine.keys() - ours.keys()) - KINDS[kind][1]
    assert names(tmp_path) == KINDS[kind][1] | kept
    for name in kept - {"Net"}:
        assert (tmp_path / name).read_bytes() == mine[name]


@pytest.mark.parametrize("kind", ["sources", "shared", "c"])
@pytest.mark.parametrize(
    "name", ["notes.txt", "src/run/mine.c", "src/mine/x.c", "include/sol/sol.hpp", ".git/config"]
)
def test_files_of_others_among_sources(small, tmp_path, tool, kind, name):
    deploy_small(small, tmp_path, "sources", compiler=tool)
    mine = tmp_path / "Net" / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("years of work")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="was not deployed"):
        deploy_small(small, tmp_path, kind, compiler=tool)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["shared", "sources"])
def test_no_files_but_names(small, tmp_path, tool, kind):
    """Links, folders and pipes with the names of deployed files count as files of others. Deploying does not wait for a pipe."""
    elsewhere = tmp_path / "elsewhere"
    deploy_small(small, elsewhere, kind, compiler=tool)
    before = contents(elsewhere)
    name = "Net" if kind == "sources" else "libNet.so"
    for make in (lambda p: p.symlink_to(elsewhere / name), os.mkfifo, os.mkdir):
        folder = tmp_path / "folder"
        folder.mkdir()
        make(folder / name)
        with pytest.raises(ValueError, match=f"{name} is there"):
            deploy_small(small, folder, kind, compiler=tool)
        assert names(folder) == {name}
        (folder / name).rmdir() if make is os.mkdir else (folder / name).unlink()
        folder.rmdir()
    assert contents(elsewhere) == before


# A process without torch that deploys, once or repeatedly. Its options make renames fail.
DEPLOY = """
import ctypes, sys
from sol import _core, deployment
values = (ctypes.c_float * 3)(1, 2, 3)

def deploy(path, target="shared_lib", device=None, weights="embedded", compiler=None):
    model = _core.Model("m")
    sum = model.layer("add", [model.input("x", "f32", [1, 3]), model.param("p", "f32", [1, 3])])
    model.output("y", sum)
    deployment.write(
        model, [ctypes.addressof(values)], (), target=target, device=device, lib_name="Net", func_name="predict",
        path=path, weights=weights, memory="dynamic", compiler=compiler,
    )

options = eval(sys.argv[2])
n = options.pop("n", 1)
while n:
    deploy(sys.argv[1], **options)
    print("done", flush=True)
    n -= 1
"""


def deploy_process(folder, options, code=DEPLOY, environment=()):
    argv = [sys.executable, "-c", code, str(folder), repr(options)]
    return subprocess.Popen(
        argv, env={**os.environ, **dict(environment)}, stdout=subprocess.PIPE, text=True
    )


# The rename that counts `renames_left` down to 0 fails. With `no_exchange`, exchanging two files is not supported.
RENAME = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
int renames_left, no_exchange;
static int fails(void) { return renames_left && !--renames_left ? errno = EPERM : 0; }
int rename(const char *a, const char *b) {
    int (*next)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    return fails() ? -1 : next(a, b);
}
int renameat2(int c, const char *a, int d, const char *b, unsigned flags) {
    int (*next)(int, const char *, int, const char *, unsigned) = dlsym(RTLD_NEXT, "renameat2");
    if (no_exchange) return errno = EINVAL, -1;
    return fails() ? -1 : next(c, a, d, b, flags);
}
"""
FAIL = """
import pathlib
def contents(): return {p.name: p.read_bytes() for p in pathlib.Path(sys.argv[1]).iterdir()}
number = lambda name: ctypes.c_int.in_dll(ctypes.CDLL(None), name)
number("no_exchange").value = options.pop("no_exchange")
deploy(sys.argv[1], target="c_source", weights="file")
before, n, failed = contents(), 0, True
while failed:
    assert contents() == before, n
    n += 1
    number("renames_left").value = n
    try:
        deploy(sys.argv[1], **options)
        failed = False
    except RuntimeError as error:
        assert "cannot write" in str(error), error
print(n)
"""


@pytest.mark.parametrize("no_exchange", [0, 1])
def test_failures_on_the_last_way(tmp_path, tmp_path_factory, tool, no_exchange):
    """If a file cannot be renamed, all earlier renames are undone."""
    work = tmp_path_factory.mktemp("work")
    (work / "rename.c").write_text(RENAME)
    library = work / "rename.so"
    argv = ["gcc", "-shared", "-fPIC", work / "rename.c", "-o", library, "-ldl"]
    assert subprocess.run(argv).returncode == 0
    code = DEPLOY.replace('n = options.pop("n", 1)', "n = 0") + FAIL
    options = {"weights": "file", "compiler": tool, "no_exchange": no_exchange}
    process = deploy_process(tmp_path, options, code, {"LD_PRELOAD": str(library)})
    out, _ = process.communicate()
    assert process.returncode == 0
    # Two files are exchanged, one is new, two are removed.
    assert int(out) - 1 == (9 if no_exchange else 5)
    assert names(tmp_path) == KINDS["file"][1]


SLOW = """#!/bin/sh
echo $$ > "{0}/pid.tmp"; mv "{0}/pid.tmp" "{0}/pid"
echo "$TMPDIR" > "{0}/tmpdir"; echo x > "$TMPDIR/ccabcdef.s"
while [ ! -e "{0}/go" ]; do sleep 0.05; done
exec {1} "$@"
"""


def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    return path


@pytest.mark.parametrize("next_name", ["Net", "Other"])
def test_killed_while_it_compiles(small, tmp_path, tmp_path_factory, tool, next_name):
    work = tmp_path_factory.mktemp("work")
    deploy_small(small, tmp_path, compiler=tool)
    before = contents(tmp_path)
    slow = script(work / "slow", SLOW.format(work, tool))
    process = deploy_process(tmp_path, {"compiler": slow})
    pid = int(wait_for(work / "pid").read_text())
    wait_for(work / "tmpdir")
    process.kill()
    process.wait()
    left = contents(tmp_path).keys() - before.keys()
    assert left and all(name.startswith(".Net-") for name in left)
    assert (work / "tmpdir").read_text().strip().startswith(str(tmp_path / ".Net-"))
    # The next deployment removes the folder while the compiler of the first one still runs, and also if it has another name.
    sol.deploy(small, [torch.zeros(1, 3)], lib_name=next_name, path=tmp_path, compiler=tool)
    assert names(tmp_path) == before.keys() | {f"{next_name}.h", f"lib{next_name}.so"}
    assert before.items() <= contents(tmp_path).items()
    os.kill(pid, signal.SIGKILL)


def test_kills_at_any_time(small, tmp_path, tool):
    """After a kill at any time, the earlier files are complete, and the next deployment succeeds."""
    deploy_process(tmp_path, {"compiler": tool}).communicate()
    before = contents(tmp_path)
    assert before.keys() == KINDS["shared"][1]
    for i in range(12):
        process = deploy_process(tmp_path, {"compiler": tool, "n": -1})
        assert process.stdout.readline() == "done\n"
        time.sleep(0.01 * i)
        process.kill()
        process.communicate()
        assert before.items() <= contents(tmp_path).items()
    deploy_small(small, tmp_path, compiler=tool)
    assert names(tmp_path) == KINDS["shared"][1]


def test_two_at_once(small, tmp_path, tmp_path_factory, tool):
    """A deployment does not remove the temporary folder of a running one."""
    work = tmp_path_factory.mktemp("work")
    slow = script(work / "slow", SLOW.format(work, tool))
    process = deploy_process(tmp_path, {"compiler": slow})
    wait_for(work / "tmpdir")
    deploy_small(small, tmp_path, "static", compiler=tool)
    assert len(names(tmp_path)) == 3
    (work / "go").touch()
    assert process.wait() == 0
    assert names(tmp_path) == KINDS["shared"][1]


def test_many_at_once(tmp_path, tool):
    """In the end there are the files of the last deployment only."""
    kinds = [KINDS[kind][0] for kind in ("shared", "static file", "c", "file")] * 2
    processes = [deploy_process(tmp_path, {**kind, "compiler": tool}) for kind in kinds]
    assert all(process.communicate() and process.returncode == 0 for process in processes)
    assert names(tmp_path) in [KINDS[kind][1] for kind in ("shared", "static file", "c", "file")]


def test_folders_that_look_like_ours(small, tmp_path, tool):
    """Folders without the lock file of a deployment are files of others."""
    for name in (".Net-backup", ".Net-123456", ".Net-AbCdEf7"):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "network.c").write_text("mine")
    (tmp_path / ".Net-abcdef").write_text("mine")
    (tmp_path / ".Net-empty_").mkdir()
    (tmp_path / ".Other-abcdef").mkdir(mode=0o700)
    before = contents(tmp_path)
    deploy_small(small, tmp_path, compiler=tool)
    assert before.items() <= contents(tmp_path).items()


def test_the_folder_is_made(small, tmp_path, tool, monkeypatch):
    folder = tmp_path / "a b" / "c" / "d"
    deploy_small(small, folder, compiler=tool)
    assert names(folder) == KINDS["shared"][1]
    monkeypatch.chdir(tmp_path)
    deploy_small(small, "e//./f/", compiler=tool)
    assert names(tmp_path / "e" / "f") == KINDS["shared"][1]
    deploy_small(small, os.fsencode(tmp_path) + b"/\xff", compiler=tool)
    assert len(os.listdir(os.fsencode(tmp_path) + b"/\xff")) == 2
    with pytest.raises(RuntimeError, match="false"):
        deploy_small(small, tmp_path / "g" / "h", compiler="false")
    assert not (tmp_path / "g").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot make the folder .*file: Not a directory"):
        deploy_small(small, tmp_path / "file" / "x")
    with pytest.raises(ValueError, match="cannot make the folder .*too long"):
        deploy_small(small, tmp_path / "i" / ("x" * 300))
    assert not (tmp_path / "i").exists()


def test_modes_are_the_users(small, tmp_path, tool):
    """The temporary folder is private, but the deployed files have the permissions of the user's umask."""
    before = os.umask(0o027)
    try:
        deploy_small(small, tmp_path / "new", "sources", compiler=tool)
        deploy_small(small, tmp_path / "new", "sources", compiler=tool)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "new", tmp_path / "new" / "Net")}
    assert modes == {0o750}
    assert stat.S_IMODE((tmp_path / "new" / "Net" / "network.c").stat().st_mode) == 0o640

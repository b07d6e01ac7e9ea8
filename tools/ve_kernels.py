"""Compiles all kernels of the networks of bench/networks.py for vector engines by clang: ve_kernels.py [NETWORK...] [--quick] [--side 64] [--batch 2]

clang's target ve stands in for ncc, which needs a licence. Each network is compiled for the device ve and called, in eval mode and for a
training step, on the stand-in for VEDA (`make veda`). In place of ncc there is a script that keeps each text and makes an object whose
kernel computes nothing, so that the calls are fast and their results are of no use. It "links" NEC's libraries, too, so texts that call
them are compiled where these seem faster. Then clang generates code for each different
text, which includes the entry that libveda calls. Only the kernels that move pieces of copies do what they should, as values that SOL
itself reads are copied by them. Columns: kernels of a call, further ones of a training step, how many of both clang
accepts; below, its first error for each text that it does not accept. $CLANG names the compiler. Texts that clang refuses stay in
build/ve-kernels.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sol.bench import process

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

REFUSED = ROOT / "build" / "ve-kernels"
VEDA = ROOT / "build" / "release" / "libveda.so"
CLANGS = ["clang-14", "/usr/lib/llvm-14/bin/clang", "clang"]
# The C library is this machine's, which knows no such processor.
FLAGS = [
    *("--target=ve-linux", "-std=gnu11", "-O1", "-fopenmp", "-ffreestanding", "-fPIC", "-S"),
    *("-Wall", "-Werror", "-Wno-unused-function", "-o", "/dev/null", "-D__x86_64__"),
    *("-isystem", "/usr/include", "-isystem", "/usr/include/x86_64-linux-gnu"),
]
# Called with FLAGS.. -o OBJECT SOURCE -lm, or --version.
NCC = """#!/bin/sh
[ "$1" = --version ] && echo "not ncc" && exit
for word in "$@"; do
    [ "$last" = -o ] && object=$word
    case $word in *.c) source=$word ;; esac
    last=$word
done
name=$(sed -n 's/^#define SOL_KERNEL //p' "$source" | head -1)
grep -v '^#line' "$source" > "$KERNELS/$name.c"
case $name in sol_scatter | sol_gather) exec cc "$@" ;; esac
echo "long ${name}_ve(const long *launch) { return 0; }" | cc -shared -fPIC -x c - -o "$object"
"""


# ---- In the child ----


def run_network(name, side, batch):
    """Calls one network, and trains it one step. Returns the names of the kernels of each."""
    import torch
    from zoo import choose_side

    import networks
    import sol.pytorch as sol

    sol.config["compiler::never_slower"] = False
    sol.device.set("ve", 0)
    net = networks.build(name)
    if net.is_image:
        net.shape = (3, *[choose_side(name, side)] * 2)
    x = net.inputs(batch)
    fast = sol.optimize(net.model, x)
    with torch.no_grad():
        fast(x)
    forward = list_kernels()
    fast.train()
    fast(x).sum().backward()
    training = list_kernels() - forward
    return {"forward": sorted(forward), "training": sorted(training)}


def list_kernels():
    return {path.stem for path in Path(os.environ["KERNELS"]).glob("*.c")}


# ---- clang ----


def find_clang():
    """Returns the first clang that has the target ve, or None."""
    for name in [os.environ["CLANG"]] if os.environ.get("CLANG") else CLANGS:
        path = shutil.which(name)
        if path is None:
            continue
        run = subprocess.run([path, "--print-targets"], capture_output=True, text=True)
        if any(line.split()[:1] == ["ve"] for line in run.stdout.splitlines()):
            return path
    return None


def compile_text(clang, path):
    """Returns the first error; None: there is none."""
    run = subprocess.run([clang, *FLAGS, str(path)], capture_output=True, text=True)
    if run.returncode == 0:
        return None
    REFUSED.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, REFUSED)
    lines = [line for line in run.stderr.splitlines() if "error" in line] or ["a crash"]
    return lines[0].removeprefix(f"{path}:")


def check_texts(clang, folder, known):
    """Adds the results of the texts in `folder` to `known`, {name of a kernel: error}."""
    paths = [path for path in sorted(folder.glob("*.c")) if path.stem not in known]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = pool.map(lambda path: compile_text(clang, path), paths)
        known.update(zip((path.stem for path in paths), errors))


# ---- All networks ----


def check_network(args, folder, clang, name, known):
    """Prints the network's row. Returns whether all is well."""
    kernels = folder / name
    kernels.mkdir()
    env = {"KERNELS": str(kernels), "SOL_NCC": str(folder / "ncc"), "SOL_VEDA": str(VEDA)}
    env["SOL_FAR"] = "latency=0"
    argv = [__file__, "--one", name, "--side", str(args.side), "--batch", str(args.batch)]
    row = process.run_child(argv, args.timeout, env=env)
    if "error" in row:
        print(f"{name:20s} FAILED: {row['error']}\n{row['output']}", flush=True)
        return False
    check_texts(clang, kernels, known)
    names = row["forward"] + row["training"]
    wrong = {kernel: known[kernel] for kernel in names if known[kernel]}
    print(
        f"{name:20s}{len(row['forward']):9d}{len(row['training']):9d}"
        f"{len(names) - len(wrong):9d}{len(wrong):9d}",
        flush=True,
    )
    for kernel, error in wrong.items():
        print(f"    {kernel}: {error}", flush=True)
    return not wrong


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--quick", action="store_true", help="five small networks")
    parser.add_argument("--side", type=int, default=64, help="of images")
    parser.add_argument("--batch", type=int, default=2, help="large ones use VEDNN")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one network")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_one(args):
    """In the child: reports the row."""
    try:
        process.report(run_network(args.one, args.side, args.batch))
    except Exception as error:
        traceback.print_exc()
        process.report({"error": f"{type(error).__name__}: {error}"[:300]})


def main():
    args = parse()
    if args.one:
        run_one(args)
        return 0
    import networks

    clang = find_clang()
    if clang is None:
        print("there is no clang with the target ve: apt-get install clang-14, or set CLANG")
        return 1
    if not VEDA.exists():
        print(f"there is no {VEDA}: make veda")
        return 1
    shutil.rmtree(REFUSED, ignore_errors=True)
    names = args.network or (networks.QUICK if args.quick else networks.NAMES)
    known = {}
    print(f"{'network':20s}{'forward':>9s}{'training':>9s}{'accepted':>9s}{'errors':>9s}")
    with tempfile.TemporaryDirectory(prefix="sol-") as folder:
        folder = Path(folder)
        (folder / "ncc").write_text(NCC)
        (folder / "ncc").chmod(0o755)
        good = sum(check_network(args, folder, clang, name, known) for name in names)
    wrong = sum(1 for error in known.values() if error)
    print(f"{len(known)} different kernels, {wrong} with errors; {good}/{len(names)} networks")
    return int(good != len(names))


if __name__ == "__main__":
    sys.exit(main())

"""Finds networks whose generated kernels have changed: replay.py [NETWORK...] [--against REV]

Compiles each network and prints a hash of the text of its generated kernels. With --against it does the same with a build
of the commit REV, in build/replay, and prints the differences. A refactoring must not change any kernel.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "replay"
# Imports process.py as a file, not from the package sol: in a child, that may be the package of an older commit.
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python" / "sol" / "bench")]
import process  # noqa: E402


def kernel_texts(cache):
    """Yields the generated sources in a cache folder, without #line lines, which contain paths."""
    for path in Path(cache).glob("*.c"):
        lines = path.read_text(errors="replace").splitlines()
        yield "\n".join(line for line in lines if not line.startswith("#line"))


def run_network(name):
    """In the child: compiles one network with an empty kernel cache and reports the hash of its kernels."""
    import torch

    import networks
    import sol.pytorch as sol

    with tempfile.TemporaryDirectory(prefix="sol-") as folder:
        os.chdir(folder)  # compiler::debug writes to ./.sol
        sol.config["compiler::debug"] = True
        sol.config["compiler::autotune"] = False
        net = networks.build(name)
        dtype = torch.int64 if net.n_words else torch.float32
        with torch.no_grad():
            fast = sol.optimize(
                net.model, sol.input([0, *net.shape], requires_grad=False, dtype=dtype)
            )
            fast(net.inputs(2))
        texts = sorted(kernel_texts(os.environ["SOL_CACHE_DIR"]))
        os.chdir("/")
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    process.report({"kernels": len(texts), "hash": digest})


def build_revision(revision):
    """Installs `revision` into build/replay/COMMIT/site, unless that exists. Returns that folder."""
    commit = git("rev-parse", "--short=12", revision + "^{commit}").strip()
    source, site = WORK / commit / "source", WORK / commit / "site"
    if not site.exists():
        source.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        print(f"building {commit}", flush=True)
        env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        pip += ["--no-build-isolation", "--no-deps", "--target", str(site), str(source)]
        subprocess.run(pip, check=True, env=env)
    return site


def git(*args):
    return subprocess.run(
        ["git", *args], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def run_all(names, site=None):
    """Returns {network: row of its child}. `site`: a folder with another build of SOL; None: the installed package."""
    if site:
        os.environ["PYTHONPATH"] = str(site)
    rows = {name: process.run_child([__file__, "--one", name], 600) for name in names}
    os.environ.pop("PYTHONPATH", None)
    return rows


def show(row):
    return row.get("error") or f"{row['hash']} ({row['kernels']} kernels)"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--against", metavar="REV")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        run_network(args.one)
        return 0
    import networks

    names = args.network or networks.NAMES
    before = run_all(names, build_revision(args.against)) if args.against else None
    now, changed = run_all(names), 0
    for name in names:
        differs = before is not None and show(before[name]) != show(now[name])
        changed += differs
        print(f"{name:20s} {show(now[name])}{'  was ' + show(before[name]) if differs else ''}")
    failed = sum(1 for row in now.values() if "error" in row)
    print(
        f"{len(names)} networks, {failed} failed" + (f", {changed} changed" if args.against else "")
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

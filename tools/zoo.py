"""Runs the networks of bench/networks.py through sol.optimize and compares them with PyTorch in float64.

    zoo.py [NETWORK...] [--quick] [--deterministic] [--batches 1,2,3,7,16] [--json FILE] [--threads N]
                          [--device NAME[:N]] [--side PIXELS] [--onnx]

Each network is optimized once and called with each batch size, a channels_last input (images only) and a non-contiguous
input. Networks for images are optimized once more for images of 192x160. A network passes if
  - in each call, the error relative to the largest output is <= 4 x the error of PyTorch in float32 + 1e-5;
    with --deterministic (compiler::winograd off) <= 2 x + 1e-6, and all runs of the first batch size compute the same
    bits, with one thread and with all threads,
  - no kernel was compiled after the first call,
  - it ran in SOL,
  - on a far device, a call copies its inputs and its outputs, and nothing else.
With --side, images are of this size, or of the smallest that a network accepts, and those of 192x160 are left out: far devices
that are only for tests are slow. With --onnx, each network is exported to ONNX with an open batch, and SOL reads the file; a file that
only a session can run, as the exporter has made operators of values from a module, is shown as a fallback and passes.
SOL_DISABLE and SOL's other environment variables apply. The last line is the number of networks that passed, "N/43".
"""

import argparse
import copy
import functools
import hashlib
import importlib.metadata
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from sol.bench import process

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

EXACT = ROOT / "build" / "exact"
RECTANGLE = (3, 192, 160)
# By prefix of a name: the smallest sides for --side.
SIDES = {"alexnet": 64, "densenet": 64, "inception_v3": 107}
LIMITS = {
    False: (4, 1e-5),
    True: (2, 1e-6),
}  # of the error, by --deterministic: (factor of PyTorch's error, constant)
DETERMINISTIC_RUNS = 10


def relative_error(out, exact):
    scale = exact.abs().max().clamp_min(1e-30)
    difference = (out.double() - exact).abs().max() / scale
    return float("inf") if difference.isnan() else difference.item()


def count_kernels():
    """Returns the number of kernels in the kernel cache, which only this process uses."""
    folder = Path(os.environ["SOL_CACHE_DIR"])
    return sum(1 for _ in folder.glob("*.so")) if folder.exists() else 0


def make_strided(x):
    """Returns a non-contiguous tensor with the same values, with gaps between the elements of the last dim."""
    wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return wide[..., ::2]


def hash_tensors(tensors, more=()):
    digest = hashlib.blake2b(repr(more).encode(), digest_size=16)
    for tensor in tensors:
        digest.update(repr((tensor.shape, tensor.dtype)).encode())
        digest.update(tensor.contiguous().view(-1).numpy())
    return digest.hexdigest()


def versions():
    packages = "torch", "torchvision", "transformers"
    found = [(d.name, d.version) for d in importlib.metadata.distributions() if d.name in packages]
    source = (ROOT / "bench" / "networks.py").read_bytes()
    return [*sorted(found), hashlib.blake2b(source).hexdigest()]


class Check:
    """Compares one network with PyTorch. ``worst``: the errors of the worst call so far.

    PyTorch's results take most of the time. They are cached in build/exact, under a hash of everything that they depend on,
    so that later runs with other kernels read them.
    """

    def __init__(self, net, deterministic):
        self.net, self.deterministic = net, deterministic
        weights = net.model.state_dict().values()
        self.hash = hash_tensors(weights, (repr(net.model), *versions()))
        self.worst = {"error": 0.0, "torch": 0.0, "ratio": 0.0, "where": ""}

    @functools.cached_property
    def in_double(self):
        return copy.deepcopy(self.net.model).double()

    def expect(self, x):
        """Returns (PyTorch's result in float64, the relative error of PyTorch's result in float32)."""
        import torch

        path = EXACT / f"{hash_tensors([x], self.hash)}.pt"
        if path.exists():
            return torch.load(path)
        exact = self.in_double(x.double() if x.is_floating_point() else x)
        found = exact, relative_error(self.net.model(x), exact)
        EXACT.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        torch.save(found, temporary)
        temporary.replace(path)
        return found

    def compare(self, fast, where, x, given=None):
        """Runs `fast` on `x`, or on `given`: the same values in another memory format. Updates ``worst``.

        Raises AssertionError if the result has another shape, is not floating point, or requires a gradient.
        """
        out = fast(x if given is None else given)
        exact, torch_error = self.expect(x)
        if out.shape != exact.shape or not out.is_floating_point() or out.requires_grad:
            raise AssertionError(
                f"{where}: shape {tuple(out.shape)} instead of {tuple(exact.shape)}"
            )
        error = relative_error(out, exact)
        factor, floor = LIMITS[self.deterministic]
        ratio = error / (factor * torch_error + floor)
        if not ratio <= self.worst["ratio"]:
            self.worst = {"error": error, "torch": torch_error, "ratio": ratio, "where": where}


def optimize(net, shape, hint):
    import torch

    import sol.pytorch as sol

    dtype = torch.int64 if net.n_words else torch.float32
    start = time.monotonic()
    fast = sol.optimize(
        net.model, sol.input([0, *shape], requires_grad=False, dtype=dtype), batch_size=hint
    )
    return fast, time.monotonic() - start


class FromOnnx:
    """A network that SOL reads from an ONNX file, called with tensors."""

    def __init__(self, net, hint):
        import torch

        import sol.onnx as sol

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            batch = torch.export.Dim("batch")
            torch.onnx.export(
                *(net.model, net.inputs(2), path),
                **{"dynamo": True, "verbose": False, "dynamic_shapes": ({0: batch},)},
            )
            start = time.monotonic()
            self.network = sol.load(path, batch_size=hint)
            self.seconds = time.monotonic() - start

    def __call__(self, x):
        import torch

        return torch.from_numpy(self.network(x.numpy()))

    def fallbacks(self):
        """Not empty if the file is not compiled as a whole: partitions of a session are compiled for each shape, at a call."""
        return {"a session": 1} if self.network.session else {}


def optimize_onnx(net, _shape, hint):
    fast = FromOnnx(net, hint)
    return fast, fast.seconds


def find_fallbacks(fast):
    import sol.pytorch as sol

    return fast.fallbacks() if isinstance(fast, FromOnnx) else dict(sol.fallbacks(fast))


def check_batches(check, batches, optimize):
    """Optimizes a network once, and checks all batch sizes and memory formats.

    Returns (optimized module, seconds of optimize, number of kernels, number of kernels compiled after the first call).
    """
    import torch

    net = check.net
    fast, seconds = optimize(net, net.shape, batches[0])
    check.compare(fast, f"batch {batches[0]}", net.inputs(batches[0]))
    kernels = count_kernels()
    for batch in batches[1:]:
        check.compare(fast, f"batch {batch}", net.inputs(batch))
    x = net.inputs(2, seed=3)
    if net.is_image:
        check.compare(fast, "channels_last", x, x.contiguous(memory_format=torch.channels_last))
    check.compare(fast, "non-contiguous", x, make_strided(x))
    return fast, seconds, kernels, count_kernels() - kernels


def check_rectangle(check):
    """Checks a network for images that are not square. Returns its fallbacks, or None if PyTorch cannot run such images."""
    import sol.pytorch as sol

    net = check.net
    if not net.is_image:
        return None
    x = net.inputs(2, RECTANGLE)
    try:
        net.model(x)
    except RuntimeError:
        return None
    fast, _ = optimize(net, RECTANGLE, 2)
    check.compare(fast, "192x160", x)
    return dict(sol.fallbacks(fast))


def count_differing(fast, x, threads):
    """Returns the number of runs whose bits differ from those of the first run; half of the runs use one thread."""
    import torch

    expected, differing = fast(x), 0
    for i in range(DETERMINISTIC_RUNS):
        torch.set_num_threads(threads if i % 2 else 1)
        differing += not torch.equal(fast(x), expected)
    torch.set_num_threads(threads)
    return differing


def check_transfers(fast, x):
    """Returns what a call copies to and from a far device besides its inputs and outputs, as a list of texts."""
    import sol.pytorch as sol

    is_onnx = isinstance(fast, FromOnnx)
    if find_fallbacks(fast) or (not is_onnx and sol.graphs(fast)):
        return []
    y = fast(x)
    profile = fast.network.profile(x.numpy(), runs=1) if is_onnx else sol.profile(fast, x, runs=1)
    found = profile.transfers
    expected = {"to_device": x.nbytes, "to_host": y.nbytes, "weights": 0}
    wrong = {name: found[name] for name, n in expected.items() if found[name] != n}
    return [f"copied {wrong} instead of {expected}"] if wrong else []


def choose_side(name, side):
    return max([side, *(n for prefix, n in SIDES.items() if name.startswith(prefix))])


def run_network(name, batches, threads, deterministic, device=None, side=0, onnx=False):
    """In the child: checks one network. Returns its row; ``problems`` is empty if it passes."""
    import torch

    import networks
    import sol.pytorch as sol

    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    sol.config["compiler::never_slower"] = False
    sol.config["compiler::winograd"] = not deterministic
    if device:
        sol.device.set(device.partition(":")[0], int(device.partition(":")[2] or 0))
    net = networks.build(name)
    if side and net.is_image:
        net.shape = (net.shape[0], *[choose_side(name, side)] * 2)
    check = Check(net, deterministic)
    with torch.no_grad():
        fast, seconds, kernels, late = check_batches(
            check, batches, optimize_onnx if onnx else optimize
        )
        fallbacks = find_fallbacks(fast)
        rectangle = None if side or onnx else check_rectangle(check)
        differing = count_differing(fast, net.inputs(batches[0]), threads) if deterministic else 0
        copied = check_transfers(fast, net.inputs(1)) if device else []
    problems = [f"{differing} of {DETERMINISTIC_RUNS} runs differ"] if differing else []
    problems += copied
    if check.worst["ratio"] > 1:
        problems.append(f"error at {check.worst['where']}")
    if late and not (onnx and fallbacks):
        problems.append(f"{late} kernels compiled late")
    if rectangle or (fallbacks and not onnx):
        problems.append("fell back: " + "; ".join({**fallbacks, **(rectangle or {})}))
    return {
        "name": name,
        **check.worst,
        "optimize_s": round(seconds, 2),
        "kernels": kernels,
        "late": late,
        "fallbacks": fallbacks,
        "rectangle": rectangle is not None,
        "problems": problems,
    }


def print_row(row):
    if "name" not in row:
        print(f"{row['network']:20s} FAILED: {row['error']}")
        print("    " + row.get("output", "").strip().replace("\n", "\n    "))
        return
    mode = "fallback" if row["fallbacks"] else "native"
    print(
        f"{row['network']:20s} {mode:8s} {row['error']:9.1e} {row['torch']:9.1e} {row['where']:15s}"
        f"{row['kernels']:5d}{row['late']:5d} {'yes' if row['rectangle'] else '-':>8s}"
        f"{row['optimize_s']:9.1f}{row['seconds']:8.1f}  {'; '.join(row['problems']) or 'ok'}",
        flush=True,
    )


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--quick", action="store_true", help="five small networks, for CI")
    parser.add_argument("--deterministic", action="store_true", help="without Winograd and timing")
    parser.add_argument("--batches", default="1,2,3,7,16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", help="for which it is compiled, such as far or far:1")
    parser.add_argument(
        "--side", type=int, default=0, help="of images, instead of the networks' own"
    )
    parser.add_argument("--onnx", action="store_true", help="export it, and let SOL read the file")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one network")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse()
    if args.one:
        try:
            process.report(
                run_network(
                    args.one,
                    [int(b) for b in args.batches.split(",")],
                    args.threads,
                    args.deterministic,
                    args.device,
                    args.side,
                    args.onnx,
                )
            )
        except Exception as error:
            traceback.print_exc()
            process.report({"error": f"{type(error).__name__}: {error}"[:300]})
        return 0
    import networks

    names = args.network or (networks.QUICK if args.quick else networks.NAMES)
    print(
        f"{'network':20s} {'mode':8s} {'SOL':>9s} {'PyTorch':>9s} {'worst at':15s}"
        f"{'kern.':>5s}{'late':>5s} {'192x160':>8s}{'optimize':>9s}{'seconds':>8s}"
    )
    rows = []
    for name in names:
        argv = [__file__, "--one", name, "--batches", args.batches, "--threads", str(args.threads)]
        argv += ["--deterministic"] if args.deterministic else []
        argv += ["--device", args.device] if args.device else []
        argv += ["--side", str(args.side), *(["--onnx"] if args.onnx else [])]
        rows.append({"network": name, **process.run_child(argv, args.timeout)})
        print_row(rows[-1])
    process.write_rows(args.json, rows)
    good = sum(1 for row in rows if row.get("problems") == [])
    print(f"{good}/{len(rows)}")
    return int(good != len(rows))


if __name__ == "__main__":
    sys.exit(main())

"""Trains the networks of bench/networks.py one step through sol.optimize and compares all gradients with PyTorch in float64.

    zoo_train.py [NETWORK...] [--quick] [--batches 2,5] [--side 64] [--seeds 3] [--json FILE]

Each network is in train mode (dropout in eval mode) and computes the gradients of all parameters and of its input, for a random
gradient of its output. The error of a tensor is the norm of the difference to float64, relative to its norm, or to 1e-6 of the largest
gradient's norm if that is more. Where a function has a kink (ReLU, maxima), a rounding error may choose the other side, so
single tensors differ a lot, also between two runs of PyTorch. So a network has two parts:
  twin      the network with SiLU for ReLU and average pooling for maximum pooling: each tensor's error is at most 1e-4, or at most
            2 x that of PyTorch: the gradient of a bias in front of a BatchNorm is 0, and what float32 has instead is rounding;
  original  the median error over tensors and seeds is at most 2 x the worst of PyTorch's own: eager, with channels_last, with one
            thread, and with noise of 1e-6 on the results of convolutions.
BatchNorm's buffers must be within 1e-5 of their range. A network passes if both hold for each batch size and it ran in SOL. The last
line is the number of networks that passed.
"""

import argparse
import copy
import json
import statistics
import sys
import traceback
from pathlib import Path

from sol.bench import process

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

SMOOTH_LIMIT = 1e-4
FLOOR = 1e-6  # of the largest gradient's norm
FACTOR = 2
BUFFER_LIMIT = 1e-5
NOISE = 1e-6


# ---- Networks without kinks ----


def make_smooth(model):
    """Replaces modules with kinks in place. The functions that modules call are replaced by smooth_functions."""
    from torch import nn

    for name, child in model.named_children():
        if isinstance(child, nn.ReLU | nn.ReLU6 | nn.Hardtanh):
            setattr(model, name, nn.SiLU())
        elif isinstance(child, nn.MaxPool2d):
            pool = child.kernel_size, child.stride, child.padding, child.ceil_mode
            setattr(model, name, nn.AvgPool2d(*pool))
        else:
            make_smooth(child)
    return model


def smooth_functions():
    """Replaces functions with kinks for the whole process: torchvision's networks call them by these names."""
    from torch.nn import functional

    def pool(x, kernel_size, stride=None, padding=0, _dilation=1, ceil_mode=False, **_):
        return functional.avg_pool2d(x, kernel_size, stride, padding, ceil_mode)

    functional.relu = lambda x, inplace=False: functional.silu(x)
    functional.max_pool2d = pool


# ---- Gradients ----


def set_modes(model):
    """Train mode, but without random numbers."""
    from torch import nn

    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def find_gradients(module, model, x, seed):
    """Runs `module`, which is `model` or an optimized form of it, forward and backward. Returns ({name: gradient}, {name: buffer})."""
    import torch

    model.zero_grad(set_to_none=True)
    x = x.clone()
    if x.is_floating_point():
        x.requires_grad_()
    y = module(x)
    generator = torch.Generator().manual_seed(seed)
    dy = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)
    y.backward(dy)
    found = {n: p.grad.double() for n, p in model.named_parameters() if p.grad is not None}
    if x.grad is not None:
        found["input"] = x.grad.double()
    buffers = {n: b.double() for n, b in model.named_buffers() if b.is_floating_point()}
    return found, copy.deepcopy(buffers)


def errors(found, exact):
    """Returns {name: error}. Raises AssertionError if other tensors have gradients."""
    if found.keys() != exact.keys():
        raise AssertionError(f"other gradients: {sorted(found.keys() ^ exact.keys())[:5]}")
    largest = max(g.norm() for g in exact.values())
    return {
        n: ((found[n] - g).norm() / g.norm().clamp_min(FLOOR * largest)).item()
        for n, g in exact.items()
    }


def buffer_error(found, exact):
    """The largest difference, relative to the buffer's range."""
    worst = 0.0
    for name, b in exact.items():
        scale = b.abs().max().clamp_min(1e-30)
        worst = max(worst, ((found[name] - b).abs().max() / scale).item())
    return worst


def add_noise(model):
    """Returns handles of hooks that change convolutions' results by noise."""
    import torch
    from torch import nn

    def hook(_module, _args, y):
        return y * (1 + NOISE * torch.randn_like(y))

    return [
        m.register_forward_hook(hook)
        for m in model.modules()
        if isinstance(m, nn.Conv2d | nn.Linear)
    ]


def eager_errors(net, x, seed, exact):
    """Yields the errors of PyTorch's own variants in float32."""
    import torch

    def run(x):
        model = copy.deepcopy(net.model)
        return errors(find_gradients(model, model, x, seed)[0], exact)

    yield run(x)
    if net.is_image:
        yield run(x.contiguous(memory_format=torch.channels_last))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run(x)
    torch.set_num_threads(threads)
    model = copy.deepcopy(net.model)
    add_noise(model)
    yield errors(find_gradients(model, model, x, seed)[0], exact)


def compare(net, x, seed):
    """Returns ({name: SOL's error}, buffer error, {reason: fallbacks}, {name: float64's gradient})."""
    import sol.pytorch as sol

    exact_model = copy.deepcopy(net.model).double()
    exact, exact_buffers = find_gradients(
        exact_model, exact_model, x.double() if x.is_floating_point() else x, seed
    )
    model = copy.deepcopy(net.model)
    fast = sol.optimize(model, x)
    found, buffers = find_gradients(fast, model, x, seed)
    return errors(found, exact), buffer_error(buffers, exact_buffers), sol.fallbacks(fast), exact


def check_smooth(net, batches, row):
    """The twin: every tensor is right."""
    for batch in batches:
        x = net.inputs(batch)
        found, buffers, fallbacks, exact = compare(net, x, 1)
        model = copy.deepcopy(net.model)
        eager = errors(find_gradients(model, model, x, 1)[0], exact)
        over = {n: e for n, e in found.items() if not e <= FACTOR * eager[n]}
        name, worst = max(over.items(), key=lambda item: item[1], default=("none", 0.0))
        row["smooth"] = max(row.get("smooth", 0), worst)
        row["buffers"] = max(row.get("buffers", 0), buffers)
        if not worst <= SMOOTH_LIMIT:
            row["problems"].append(f"twin, batch {batch}: {name} {worst:.1e}")
        if not buffers <= BUFFER_LIMIT:
            row["problems"].append(f"twin, batch {batch}: buffers {buffers:.1e}")
        row["problems"] += [f"fell back: {reason}" for reason, n in fallbacks.items() if n]


def check_original(net, batches, seeds, row):
    """The original: as near to float64 as PyTorch's own variants."""
    for batch in batches:
        ours, theirs = [], []
        for seed in range(1, seeds + 1):
            x = net.inputs(batch, seed=seed)
            found, _, fallbacks, exact = compare(net, x, seed)
            ours += found.values()
            theirs.append([list(e.values()) for e in eager_errors(net, x, seed, exact)])
            row["problems"] += [f"fell back: {reason}" for reason, n in fallbacks.items() if n]
        medians = [
            statistics.median(x for run in theirs for x in run[i]) for i in range(len(theirs[0]))
        ]
        ratio = statistics.median(ours) / max(max(medians), 1e-7)
        row["ratio"] = max(row.get("ratio", 0), ratio)
        if not ratio <= FACTOR:
            row["problems"].append(f"batch {batch}: median error {ratio:.1f} x PyTorch's worst")


def run_network(args, name):
    """In the child: checks one network or, for NAME:twin, its smooth twin. Returns its row."""
    import torch

    import networks
    import sol.pytorch as sol

    sol.config["compiler::never_slower"] = False
    torch.set_num_threads(args.threads or torch.get_num_threads())
    name, _, twin = name.partition(":")
    if twin:
        smooth_functions()
    net = networks.build(name)
    if net.is_image and args.side:
        side = max(args.side, 75) if name == "inception_v3" else args.side
        net.shape = (3, side, side)
    if twin:
        make_smooth(net.model)
    set_modes(net.model)
    row = {"name": name, "problems": []}
    batches = [int(b) for b in args.batches.split(",")]
    if twin:
        check_smooth(net, batches, row)
    else:
        check_original(net, batches, args.seeds, row)
    row["problems"] = list(dict.fromkeys(row["problems"]))
    return row


# ---- All networks ----


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--quick", action="store_true", help="five small networks")
    parser.add_argument("--batches", default="2,5")
    parser.add_argument("--side", type=int, default=64, help="of images; 0: the network's own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one part")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_part(args, name):
    argv = [__file__, "--one", name, "--batches", args.batches, "--side", str(args.side)]
    argv += ["--seeds", str(args.seeds), "--threads", str(args.threads)]
    return process.run_child(argv, args.timeout)


def join(name, twin, original):
    row = {"network": name, "problems": [], "seconds": 0.0}
    for part in twin, original:
        row["problems"] += part.get("problems", [part.get("error", "failed")])
        row["seconds"] += part.get("seconds", 0)
        row |= {k: part[k] for k in ("smooth", "buffers", "ratio") if k in part}
    return row


def print_row(row):
    print(
        f"{row['network']:20s} {row.get('smooth', float('nan')):9.1e} {row.get('buffers', float('nan')):9.1e} "
        f"{row.get('ratio', float('nan')):8.2f}{row['seconds']:9.1f}  {'; '.join(row['problems']) or 'ok'}",
        flush=True,
    )


def main():
    args = parse()
    if args.one:
        try:
            process.report(run_network(args, args.one))
        except Exception as error:
            traceback.print_exc()
            process.report({"error": f"{type(error).__name__}: {error}"[:300]})
        return 0
    import networks

    names = args.network or (networks.QUICK if args.quick else networks.NAMES)
    print(f"{'network':20s} {'twin':>9s} {'buffers':>9s} {'median x':>8s} {'seconds':>8s}")
    rows = []
    for name in names:
        rows.append(join(name, run_part(args, name + ":twin"), run_part(args, name)))
        print_row(rows[-1])
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(rows, indent=1))
    good = sum(not row["problems"] for row in rows)
    print(f"{good}/{len(rows)}")
    return int(good != len(rows))


if __name__ == "__main__":
    sys.exit(main())

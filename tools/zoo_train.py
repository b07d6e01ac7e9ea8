"""Trains the networks of bench/networks.py one step through sol.optimize and compares all gradients with PyTorch in float64.

    zoo_train.py [NETWORK...] [--quick] [--batches 2,5] [--side 48] [--seeds 3] [--json FILE] [--device NAME[:N]]
    zoo_train.py --losses [NETWORK...]      the losses of 20 steps of SGD with momentum and of AdamW instead

Each network is in train mode (all dropouts are 0) and computes the gradients of all parameters and of its input, for a random
gradient of its output. bert and gpt2 have LAYERS layers. The error of a tensor is the norm of the difference to float64, relative to
its norm, or to 1e-6 of the largest gradient's norm if that is more. Where a function has a kink (ReLU, maxima), a rounding error may
choose the other side, so single tensors differ a lot, also between two runs of PyTorch. So a network has two parts:
  twin      the network with SiLU for ReLU and average pooling for maximum pooling: each tensor's error is at most 1e-4.
            A tensor whose true gradient is 0 (a bias in front of a BatchNorm: in float64 it is below 1e-12 of the largest
            gradient's) has rounding errors only. Its error is at most 2 x PyTorch's worst at such tensors, or 1e-4. "twin" is
            the largest error of the other tensors, "zeros" SOL's largest at such tensors over PyTorch's;
  original  the median error over tensors and seeds is at most 2 x the worst of PyTorch's own: eager, with channels_last, with one
            thread, and with noise of 1e-6 on the results of convolutions. "median x" is the factor.
BatchNorm's buffers must be within 1e-5 of their range, also for inputs of mean 100 ("at 100"). The last layers of deep networks have
the rounding errors of all before: there PyTorch may miss this, too, so its error is printed. A network passes if all hold for each
batch size and it ran in SOL. The last line is the number of networks that passed.

--losses: each network, resnet18 and mobilenet_v2 if none is named, makes 20 steps with batches of 4. At each step the loss is within
1e-3 of PyTorch's, or within 2 x the largest deviation of 8 runs of PyTorch with noise of 1e-6 on the results of convolutions. "of the
limit" is the largest deviation, relative to what is allowed there.
"""

import argparse
import copy
import statistics
import sys
import traceback
from pathlib import Path

from sol.bench import process

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

SMOOTH_LIMIT = 1e-4
FLOOR = 1e-6  # of the largest gradient's norm
ZERO = 1e-12
FACTOR = 2
BUFFER_LIMIT = 1e-5
NOISE = 1e-6
LAYERS = 2
# By prefix of a name: sides that keep several positions in the last layers.
SIDES = {"alexnet": 64, "densenet": 64, "inception_v3": 107}
# Of kernels: a second run, and networks with equal layers, compile less.
CACHE = ROOT / "build" / "zoo-train"
LOSS_NAMES = ["resnet18", "mobilenet_v2"]
LOSS_STEPS, LOSS_BATCH, LOSS_LIMIT, LOSS_RUNS = 20, 4, 1e-3, 8


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


class Runner:
    """Runs a network forward and backward. Each run begins with the same parameters and buffers.

    ``model``: has the parameters; ``run``: what is called, the model or an optimized form of it; ``state``: at the beginning.
    """

    def __init__(self, model, run=None):
        self.model, self.run = model, run or model
        self.state = copy.deepcopy(model.state_dict())

    def forward(self, x):
        """Returns the result. ``x`` has the type of the parameters, or is of integers."""
        self.model.load_state_dict(self.state)
        self.model.zero_grad(set_to_none=True)
        return self.run(x)

    def gradients(self, x, seed):
        """Returns {name: gradient}."""
        import torch

        x = x.detach().clone().requires_grad_(x.is_floating_point())
        y = self.forward(x)
        generator = torch.Generator().manual_seed(seed)
        y.backward(torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype))
        found = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        return found if x.grad is None else {**found, "input": x.grad}

    def buffers(self):
        """Returns {name: buffer} as the last run left them."""
        return {n: b.clone() for n, b in self.model.named_buffers()}


class Runners:
    """A network in float64, in float32, and optimized once for all batch sizes and inputs."""

    def __init__(self, net, hint):
        import torch

        import sol.pytorch as sol

        dtype = torch.int64 if net.n_words else torch.float32
        model = copy.deepcopy(net.model)
        self.fast = sol.optimize(model, sol.input([0, *net.shape], dtype=dtype), batch_size=hint)
        self.sol = Runner(model, self.fast)
        self.eager = Runner(net.model)
        self._exact = Runner(copy.deepcopy(net.model).double())

    def exact(self, x, seed):
        return self._exact.gradients(in_double(x), seed)

    def exact_buffers(self, x=None):
        """The buffers after the last run, or after a run of ``x``."""
        if x is not None:
            self._exact.forward(in_double(x))
        return self._exact.buffers()

    def problems(self):
        import sol.pytorch as sol

        return [f"fell back: {reason}" for reason, n in sol.fallbacks(self.fast).items() if n]


def in_double(x):
    return x.double() if x.is_floating_point() else x


def errors(found, exact):
    """Returns {name: error}. Raises AssertionError if other tensors have gradients."""
    if found.keys() != exact.keys():
        raise AssertionError(f"other gradients: {sorted(found.keys() ^ exact.keys())[:5]}")
    largest = max(g.norm() for g in exact.values())
    return {
        n: ((found[n].double() - g).norm() / g.norm().clamp_min(FLOOR * largest)).item()
        for n, g in exact.items()
    }


def buffer_error(found, exact):
    """The largest difference, relative to the buffer's range. Buffers of integers must be equal."""
    worst = 0.0
    for name, b in exact.items():
        scale = b.abs().max().clamp_min(1e-30) if b.is_floating_point() else 1e-30
        worst = max(worst, float((found[name] - b).abs().max() / scale))
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


def eager_errors(runner, is_image, x, seed, exact):
    """Yields the errors of PyTorch's own variants in float32."""
    import torch

    yield errors(runner.gradients(x, seed), exact)
    if is_image:
        last = x.contiguous(memory_format=torch.channels_last)
        yield errors(runner.gradients(last, seed), exact)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield errors(runner.gradients(x, seed), exact)
    torch.set_num_threads(threads)
    handles = add_noise(runner.model)
    yield errors(runner.gradients(x, seed), exact)
    for handle in handles:
        handle.remove()


def note_worst(row, key, value):
    row[key] = max(row.get(key, 0), value)


def check_buffers(runners, x, row, key):
    """Compares the buffers after the last run. ``key``: of the row."""
    exact = runners.exact_buffers()
    worst = buffer_error(runners.sol.buffers(), exact)
    note_worst(row, key, worst)
    runners.eager.forward(x)
    eager = buffer_error(runners.eager.buffers(), exact)
    if not worst <= BUFFER_LIMIT:
        row["problems"].append(f"batch {len(x)}: {key} {worst:.1e}, eager {eager:.1e}")


def check_smooth(runners, x, row):
    """The twin: every tensor is right."""
    exact = runners.exact(x, 1)
    found = errors(runners.sol.gradients(x, 1), exact)
    check_buffers(runners, x, row, "buffers")
    eager = errors(runners.eager.gradients(x, 1), exact)
    largest = max(g.norm() for g in exact.values())
    zeros = {n for n, g in exact.items() if g.norm() < ZERO * largest}
    worst, name = max((e, n) for n, e in found.items() if n not in zeros)
    note_worst(row, "smooth", worst)
    if not worst <= SMOOTH_LIMIT:
        row["problems"].append(f"twin, batch {len(x)}: {name} {worst:.1e}, eager {eager[name]:.1e}")
    if zeros:
        check_zeros([found[n] for n in zeros], [eager[n] for n in zeros], row)


def check_zeros(found, eager, row):
    """The tensors whose true gradient is 0."""
    ratio = max(found) / max(max(eager), SMOOTH_LIMIT / FACTOR)
    note_worst(row, "zeros", ratio)
    if not ratio <= FACTOR:
        row["problems"].append(f"gradients that are 0: {ratio:.1f} x PyTorch's")


def check_offset(runners, x, row):
    """Buffers after inputs of mean 100."""
    if runners.eager.buffers() and x.is_floating_point():
        runners.exact_buffers(x + 100)
        runners.sol.forward(x + 100)
        check_buffers(runners, x + 100, row, "offset")


def check_original(runners, is_image, inputs, row):
    """The original: as near to float64 as PyTorch's own variants. ``inputs``: {seed: input}."""
    ours, theirs = [], []
    for seed, x in inputs.items():
        exact = runners.exact(x, seed)
        ours += errors(runners.sol.gradients(x, seed), exact).values()
        check_buffers(runners, x, row, "buffers")
        runs = eager_errors(runners.eager, is_image, x, seed, exact)
        theirs.append([list(e.values()) for e in runs])
    medians = [
        statistics.median(x for run in theirs for x in run[i]) for i in range(len(theirs[0]))
    ]
    ratio = statistics.median(ours) / max(max(medians), 1e-7)
    note_worst(row, "ratio", ratio)
    if not ratio <= FACTOR:
        row["problems"].append(f"batch {len(x)}: median error {ratio:.1f} x PyTorch's worst")


def build(args, name):
    """Returns the Network in train mode, small enough for float64."""
    import networks

    net = networks.build(name)
    if net.is_image and args.side:
        side = max(args.side, *(n for prefix, n in SIDES.items() if name.startswith(prefix)), 0)
        net.shape = (3, side, side)
    if name == "bert":
        del net.model.model.encoder.layer[LAYERS:]
    if name == "gpt2":
        del net.model.model.h[LAYERS:]
    set_modes(net.model)
    return net


def run_network(args, name):
    """In the child: checks one network and its smooth twin. Returns the row."""
    row = {"problems": []}
    batches = [int(b) for b in args.batches.split(",")]
    net = build(args, name)
    runners = Runners(net, batches[0])
    for batch in batches:
        inputs = {seed: net.inputs(batch, seed=seed) for seed in range(1, args.seeds + 1)}
        check_original(runners, net.is_image, inputs, row)
        check_offset(runners, net.inputs(batch), row)
    row["problems"] += runners.problems()
    smooth_functions()
    make_smooth(net.model)
    runners = Runners(net, batches[0])
    for batch in batches:
        check_smooth(runners, net.inputs(batch), row)
    row["problems"] += runners.problems()
    row["problems"] = list(dict.fromkeys(row["problems"]))
    return row


# ---- Losses of optimizers ----


def find_losses(runner, kind, data):
    """Returns the loss of each step."""
    import torch

    more = {"lr": 0.01, "momentum": 0.9} if kind is torch.optim.SGD else {"lr": 1e-3}
    runner.model.load_state_dict(runner.state)
    optimizer = kind(runner.model.parameters(), **more)
    losses = []
    for step in range(LOSS_STEPS):
        x, labels = data[step % len(data)]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(runner.run(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def find_deviations(runner, kind, data, expected):
    """Returns for each step the largest deviation of LOSS_RUNS runs of PyTorch with noise."""
    import torch

    handles, runs = add_noise(runner.model), []
    for seed in range(LOSS_RUNS):
        torch.manual_seed(seed)
        runs.append(find_losses(runner, kind, data))
    for handle in handles:
        handle.remove()
    return [max(abs(run[i] - y) for run in runs) for i, y in enumerate(expected)]


def check_losses(runners, kind, data, row):
    expected = find_losses(runners.eager, kind, data)
    found = find_losses(runners.sol, kind, data)
    noise = find_deviations(runners.eager, kind, data, expected)
    differences = [abs(a - b) for a, b in zip(found, expected)]
    limits = [max(LOSS_LIMIT * abs(y), FACTOR * d) for y, d in zip(expected, noise)]
    name = kind.__name__
    row[name] = {
        "difference": max(d / abs(y) for d, y in zip(differences, expected)),
        "noise": max(d / abs(y) for d, y in zip(noise, expected)),
        "of_limit": max(d / limit for d, limit in zip(differences, limits)),
        "losses": [expected[0], expected[-1]],
    }
    if not row[name]["of_limit"] <= 1:
        row["problems"].append(f"{name}: {row[name]['of_limit']:.1f} x the limit")


def run_losses(args, name):
    """In the child. Returns the row."""
    import torch

    net = build(args, name)
    runners = Runners(net, LOSS_BATCH)
    generator = torch.Generator().manual_seed(3)
    data = [
        (net.inputs(LOSS_BATCH, seed=i), torch.randint(1000, (LOSS_BATCH,), generator=generator))
        for i in range(5)
    ]
    row = {"problems": []}
    for kind in torch.optim.SGD, torch.optim.AdamW:
        check_losses(runners, kind, data, row)
    row["problems"] += runners.problems()
    return row


# ---- All networks ----


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="*")
    parser.add_argument("--quick", action="store_true", help="five small networks")
    parser.add_argument("--batches", default="2,5")
    parser.add_argument("--side", type=int, default=48, help="of images; 0: the network's own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device", default="", help="for which it is compiled, such as far:1")
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one network")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_one(args):
    """In the child: reports the row."""
    import torch

    import sol.pytorch as sol

    sol.config["compiler::never_slower"] = False
    device, _, number = args.device.partition(":")
    sol.device.set(device, int(number or 0))
    torch.set_num_threads(args.threads or torch.get_num_threads())
    try:
        process.report((run_losses if args.losses else run_network)(args, args.one))
    except Exception as error:
        traceback.print_exc()
        process.report({"error": f"{type(error).__name__}: {error}"[:300]})


def run_child(args, name):
    argv = [__file__, "--one", name, "--batches", args.batches, "--side", str(args.side)]
    argv += ["--seeds", str(args.seeds), "--threads", str(args.threads)]
    argv += ["--losses"] if args.losses else []
    argv += ["--device", args.device] if args.device else []
    found = process.run_child(argv, args.timeout, cache_dir=str(CACHE))
    return {"network": name, "problems": [found.get("error", "failed")], **found}


NUMBERS = {"twin": "smooth", "buffers": "buffers", "at 100": "offset"}  # heading: key of a row
RATIOS = {"zeros": "zeros", "median x": "ratio"}


def print_head(args):
    if args.losses:
        heads = ["first", "last", "SOL", "noise", "of limit"]
        print(f"{'network':20s} {'optimizer':9s} " + " ".join(f"{h:>8s}" for h in heads))
        return
    print(f"{'network':20s}", *(f"{head:>8s}" for head in (*NUMBERS, *RATIOS, "seconds")))


def print_row(row):
    numbers = [f"{row[key]:8.1e}" if key in row else f"{'-':>8s}" for key in NUMBERS.values()]
    ratios = [f"{row[key]:8.2f}" if key in row else f"{'-':>8s}" for key in RATIOS.values()]
    problems = "; ".join(row["problems"]) or "ok"
    print(
        f"{row['network']:20s}", *numbers, *ratios, f"{row['seconds']:8.1f}  {problems}", flush=True
    )


def print_losses(row):
    for name in "SGD", "AdamW":
        if name in row:
            found = row[name]
            first, last = found["losses"]
            print(
                f"{row['network']:20s} {name:9s} {first:8.4f} {last:8.4f} {found['difference']:8.1e} "
                f"{found['noise']:8.1e} {found['of_limit']:8.2f}"
            )
    print(f"{row['network']:20s} {'; '.join(row['problems']) or 'ok'}", flush=True)


def main():
    args = parse()
    if args.one:
        run_one(args)
        return 0
    import networks

    default = LOSS_NAMES if args.losses else networks.QUICK if args.quick else networks.NAMES
    print_head(args)
    rows = []
    for name in args.network or default:
        rows.append(run_child(args, name))
        (print_losses if args.losses else print_row)(rows[-1])
    process.write_rows(args.json, rows)
    good = sum(not row["problems"] for row in rows)
    print(f"{good}/{len(rows)}")
    return int(good != len(rows))


if __name__ == "__main__":
    sys.exit(main())

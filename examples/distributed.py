"""Data parallel training of handwritten digits in several processes, by PyTorch's own engine.

    torchrun --nproc_per_node 2 examples/distributed.py [--eager] [--svg loss.svg]

Each process computes the gradients of its part of a batch through SOL, DistributedDataParallel averages them over gloo, and all
processes make the same step. Process 0 prints the curve of the loss; with --svg it also draws it. --eager trains in PyTorch instead.
"""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sol.pytorch as sol

STEPS, BATCH = 50, 64  # per process


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def load_part(rank, world):
    """Returns the images and digits of this process: every world-th of 1,400."""
    digits = load_digits()
    x = torch.from_numpy(digits.images).float().div(16)[:1400, None]
    y = torch.from_numpy(digits.target)[:1400]
    return x[rank::world].contiguous(), y[rank::world].contiguous()


def train(model, x, y, rank):
    """Trains for STEPS steps. Returns the mean loss of all processes at each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    order = torch.Generator().manual_seed(1)
    losses = []
    for step in range(STEPS):
        rows = torch.randint(0, len(x), (BATCH,), generator=order)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
        if rank == 0 and step % 5 == 4:
            print(
                f"step {step + 1:3d}: loss {losses[-1]:.3f} {'#' * round(25 * losses[-1])}",
                flush=True,
            )
    return losses


def draw(losses, path):
    """Writes the curve as an SVG image."""
    top, width, height = max(losses), 600, 240
    points = " ".join(
        f"{10 + i * width / (len(losses) - 1):.1f},{10 + height * (1 - v / top):.1f}"
        for i, v in enumerate(losses)
    )
    with open(path, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 20}" height="{height + 40}" font-family="sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="white"/><polyline fill="none" stroke="#0a5" stroke-width="2" points="{points}"/>'
            f'<text x="10" y="{height + 30}">loss over {len(losses)} steps, from {losses[0]:.2f} to {losses[-1]:.2f}</text></svg>\n'
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--svg")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    model = make_model()
    if not args.eager:
        model = sol.optimize(model, sol.input([0, 1, 8, 8], requires_grad=False))
    x, y = load_part(rank, world)
    losses = train(DistributedDataParallel(model), x, y, rank)
    if rank == 0:
        reasons = {} if args.eager else sol.fallbacks(model)
        print(
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}; calls that PyTorch ran: {reasons or 'none'}"
        )
        if args.svg:
            draw(losses, args.svg)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

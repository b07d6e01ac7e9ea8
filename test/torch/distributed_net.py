"""Run by test_distributed.py under torchrun: trains a network in all processes and saves what process 0 has then.

distributed_net.py KIND FILE: KIND is sol, eager or killed; with "-norm" behind it the network has BatchNorm
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sol.pytorch as sol

STEPS, BATCH = 50, 6  # per process


def make_net(has_norm):
    torch.manual_seed(0)
    norm = [nn.BatchNorm2d(8)] if has_norm else []
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *norm, nn.SiLU(), nn.AvgPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2), nn.SiLU(), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip


def make_batch(step, first, n):
    """Samples `first` .. `first` + n - 1 of the joined batch of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, 3, 10, 10, generator=generator)
    y = torch.randn(12, 5, generator=generator)
    return x[first : first + n].contiguous(), y[first : first + n].contiguous()


def train(model, first, n):
    """Trains on samples `first` .. of each batch. Returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = make_batch(step, first, n)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    kind, path = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    net = make_net(kind.endswith("-norm"))
    model = net if kind.startswith("eager") else sol.optimize(net, sol.input([0, 3, 10, 10]))
    if kind == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    losses = train(DistributedDataParallel(model), rank * BATCH, BATCH)
    if rank == 0:
        reasons = {} if model is net else dict(sol.fallbacks(model))
        torch.save({"state": net.state_dict(), "losses": losses, "reasons": reasons}, path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

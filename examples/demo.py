"""A demonstration of SOL with digits and photographs: `make demo`.

(a) optimizes a small network, trains it on 1,400 of 1,797 handwritten digits, and compares all predictions with PyTorch's;
(b) runs four well-known networks on two photographs and compares results and times. Their weights are random, as nothing
    is downloaded. So it shows no class names, only that the results of SOL and PyTorch agree.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
import networks
import sol.pytorch as sol
from sol.bench.timing import interleave

NETWORKS = ["resnet50", "mobilenet_v2", "vgg16", "densenet121"]


def say(text):
    print(text, flush=True)


def digit_network():
    def block(inputs, outputs):
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]

    return nn.Sequential(
        *block(1, 32),
        *block(32, 64),
        nn.MaxPool2d(2),
        *block(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(64, 10),
    )


def train(fast, x, y, epochs=8, batch=64):
    """The usual loop of PyTorch: SOL runs forward and backward. Prints the curve of the loss."""
    optimizer = torch.optim.Adam(fast.parameters(), lr=3e-3)
    fast.train()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(fast(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        mean = total / len(x)
        say(f"    epoch {epoch + 1}/{epochs}: loss {mean:.3f} {'#' * round(40 * mean)}")
    fast.eval()


def show_digits():
    """Part (a). Returns whether SOL trained and ran the network, all predictions are equal, and 98% of the tests are right."""
    say("(a) 1,797 handwritten digits, 8x8 pixels: 1,400 to train, 397 to test")
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.from_numpy(digits.images).float().div(16)[:, None]
    y = torch.from_numpy(digits.target)
    order = torch.randperm(len(x))
    training, test = order[:1400], order[1400:]
    model = digit_network()
    fast = sol.optimize(
        model, sol.input([0, 1, 8, 8], requires_grad=False, dtype=torch.float32), batch_size=len(x)
    )
    train(fast, x[training], y[training])
    with torch.no_grad():
        expected, actual = model(x), fast(x)
    same = (expected.argmax(1) == actual.argmax(1)).sum().item()
    rights = []
    for name, out in ("PyTorch", expected), ("SOL", actual):
        right = (out.argmax(1) == y)[test].float().mean().item()
        rights.append(right)
        say(f"    {name:8s} {100 * right:.2f}% of the {len(test)} test digits are right")
    say(
        f"    {same} of {len(x)} predictions are identical; largest difference {difference(actual, expected):.1e}"
    )
    return same == len(x) and min(rights) >= 0.98 and not show_fallbacks(fast)


def difference(out, expected):
    return ((out - expected).abs().max() / expected.abs().max()).item()


def show_fallbacks(fast):
    for reason, count in sol.fallbacks(fast).items():
        say(f"    not run by SOL ({count} times): {reason}")
    return bool(sol.fallbacks(fast))


def photographs():
    """Returns scikit-learn's two photographs (china.jpg, flower.jpg) as a normalized tensor [2, 3, 224, 224]."""
    images = np.stack(load_sample_images().images)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255)
    x = nn.functional.interpolate(x, size=(224, 224), mode="bilinear", antialias=True)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((x - mean[:, None, None]) / deviation[:, None, None]).contiguous()


def show_network(name, x):
    """Part (b) for one network: prints its row. Returns whether SOL ran it and the results agree."""
    net = networks.build(name)
    start = time.monotonic()
    fast = sol.optimize(
        net.model,
        sol.input([0, 3, 224, 224], requires_grad=False, dtype=torch.float32),
        batch_size=1,
    )
    one = x[:1].contiguous()
    with torch.no_grad():
        error = difference(fast(x), net.model(x))
        seconds = time.monotonic() - start
        ms = interleave({"torch": lambda: net.model(one), "sol": lambda: fast(one)}, seconds=1.5)
    torch_ms, sol_ms = ms["torch"][0], ms["sol"][0]
    say(
        f"    {name:14s}{error:12.1e}{torch_ms:14.1f}{sol_ms:12.1f}{torch_ms / sol_ms:11.2f}x{seconds:12.1f}"
    )
    return error < 1e-3 and not show_fallbacks(fast)


def main():
    started = time.monotonic()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    say(f"SOL and PyTorch {torch.__version__} on {torch.get_num_threads()} cores\n")
    good = show_digits()
    say("\n(b) two photographs through networks with random weights; times for one photograph")
    say(
        f"    {'network':14s}{'difference':>12s}{'PyTorch ms':>14s}{'SOL ms':>12s}{'speed-up':>12s}{'optimize s':>12s}"
    )
    x = photographs()
    for name in NETWORKS:
        good &= show_network(name, x)
    say(
        f"\n{'all results agree' if good else 'SOMETHING IS WRONG, see above'}; {time.monotonic() - started:.0f} s in all"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

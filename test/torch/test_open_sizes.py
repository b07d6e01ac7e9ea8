"""Open sizes besides the batch: one compile for many heights, widths and lengths, guards, multiples, and bad input."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import sol
from sol.pytorch import plan

SIZES = (64, 64), (97, 130), (128, 33), (224, 224), (40, 71)


class Resize(nn.Module):
    """Nearest neighbours, twice as large, by moving values only."""

    def forward(self, x):
        n, c, h, w = x.shape
        x = x.reshape(n, c, h, 1, w, 1).expand(n, c, h, 2, w, 2)
        return x.reshape(n, c, h * 2, w * 2)


def block(c, k):
    return nn.Sequential(nn.Conv2d(c, k, 3, padding=1), nn.BatchNorm2d(k), nn.ReLU())


class Upsampling(nn.Module):
    """A usual way to enlarge ``x`` to the size of ``y``."""

    def __init__(self, how, channels, more):
        super().__init__()
        self.how = how
        if how == "transposed":
            self.up = nn.ConvTranspose2d(channels, more, 2, stride=2)
        elif how == "transposed 3":
            self.up = nn.ConvTranspose2d(channels, more, 3, 2, padding=1, output_padding=1)
        else:
            self.up = nn.Conv2d(channels, more, 1)

    def forward(self, x, y):
        x, how = self.up(x), self.how
        if how == "to size":
            return functional.interpolate(x, y.shape[2:], mode="bilinear")
        if how not in ("bilinear", "corners", "padded"):
            return x
        x = functional.interpolate(x, None, 2, mode="bilinear", align_corners=how == "corners")
        rows, columns = y.shape[2] - x.shape[2], y.shape[3] - x.shape[3]
        return functional.pad(x, [0, columns, 0, rows]) if how == "padded" else x


class Segmenter(nn.Module):
    """A U-Net of 3 levels; ``how``: the way of upsampling."""

    def __init__(self, how):
        super().__init__()
        self.first, self.last = block(3, 8), nn.Conv2d(8, 2, 1)
        self.down = nn.ModuleList([block(8, 16), block(16, 32), block(32, 64)])
        self.up = nn.ModuleList(Upsampling(how, 2 * n, n) for n in (32, 16, 8))
        self.merge = nn.ModuleList(block(2 * n, n) for n in (32, 16, 8))

    def forward(self, x):
        kept = [self.first(x)]
        for down in self.down:
            kept.append(down(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, merge in zip(self.up, self.merge):
            y = kept.pop()
            x = merge(torch.cat([y, up(x, y)], 1))
        return self.last(x)


class UNet(nn.Module):
    """Halves the image ``depth`` times and enlarges it again: sizes must be multiples of 2 ** depth."""

    def __init__(self, depth, joins):
        super().__init__()
        channels = [8 * 2**i for i in range(depth + 1)]
        pairs = list(zip(channels, channels[1:]))
        self.first = block(3, 8)
        self.down = nn.ModuleList(block(a, b) for a, b in pairs)
        self.up = nn.ModuleList(block(b, a) for a, b in reversed(pairs))
        self.merge = nn.ModuleList(block(2 * a if joins else a, a) for a, _ in reversed(pairs))
        self.pool, self.resize, self.joins = nn.MaxPool2d(2), Resize(), joins

    def forward(self, x):
        x, kept = self.first(x), []
        for down in self.down:
            kept.append(x)
            x = down(self.pool(x))
        for up, merge in zip(self.up, self.merge):
            x, y = up(self.resize(x)), kept.pop()
            x = merge(torch.cat([x, y], 1) if self.joins else x + y)
        return x


class Pyramid(nn.Module):
    """The pixels of maps of several sizes as one list, as in a detector: its length is a sum of one product per map."""

    def __init__(self, n_maps):
        super().__init__()
        self.maps = nn.ModuleList(
            nn.Conv2d(8 if i else 3, 8, 3, 2, padding=1) for i in range(n_maps)
        )
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        pixels = []
        for layer in self.maps:
            x = layer(x).relu()
            pixels.append(self.head(x).flatten(2))
        return torch.cat(pixels, 2).mT


class Cropping(nn.Module):
    """Convolutions without padding, so that skip connections are cropped."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 5)

    def forward(self, x):
        y = self.a(x).relu()
        z = self.b(y)
        return z + y[:, :, 2:-2, 2:-2], z[:, :, -1]


class Encoder(nn.Module):
    """A transformer's layer, its last token and its mean token."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.table = nn.Parameter(torch.randn(1, 64, 32))

    def forward(self, x):
        y = self.layer(x + self.table[:, : x.shape[1]])
        return y + 1, y[:, -1] * 2, y[:, 1:].mean(1)


def is_close(a, b):
    a, b = (x if isinstance(x, tuple) else (x,) for x in (a, b))
    return all(
        x.shape == y.shape and (x - y).abs().max() <= 1e-4 * y.abs().max() for x, y in zip(a, b)
    )


def check(module, fast, shapes, recompiles=0):
    for shape in shapes:
        x = torch.randn(shape)
        with torch.no_grad():
            assert is_close(fast(x), module(x)), shape
    assert sol.fallbacks(fast) == {} and sol.recompiles(fast) <= recompiles


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", "mobilenet_v2"])
def test_networks(name):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    module = getattr(torchvision.models, name)(weights=None).eval()
    fast = sol.optimize(module, sol.input([0, 3, 0, 0]))
    check(module, fast, [(1 + i % 2, 3, h, w) for i, (h, w) in enumerate(SIZES)])


@pytest.mark.parametrize(("depth", "joins"), [(2, True), (4, False)])
def test_unet(depth, joins):
    torch.manual_seed(0)
    module, m = UNet(depth, joins).eval(), 2**depth
    fast = sol.optimize(module, sol.input([0, 3, 0, 0]))
    sizes = (4, 4), (2, 6), (3, 5), (7, 2), (6, 6)
    check(module, fast, [(1 + i % 2, 3, h * m, w * m) for i, (h, w) in enumerate(sizes)])


@pytest.mark.parametrize(
    "how", ["bilinear", "corners", "transposed", "transposed 3", "padded", "to size"]
)
def test_segmenter(how, monkeypatch):
    """Bilinear upsampling and transposed convolutions, by one capture and one compile."""
    captures, capture = [], plan.capture
    monkeypatch.setattr(plan, "capture", lambda *args: captures.append(1) or capture(*args))
    torch.manual_seed(0)
    module = Segmenter(how).eval()
    fast = sol.optimize(module, sol.input([0, 3, 0, 0]))
    sizes = (32, 40), (16, 16), (64, 24), (8, 56), (40, 40)
    if how in ("padded", "to size"):
        sizes = (33, 45), (17, 16), (64, 31), (8, 59), (41, 46)
    check(module, fast, [(1 + i % 3, 3, h, w) for i, (h, w) in enumerate(sizes)])
    assert len(captures) == 1
    assert bool(sol.host_nodes(fast)) == (how in ("corners", "padded", "to size"))


# name: (arguments of interpolate, how many of the sizes run in PyTorch)
ENLARGED = {
    "nearest": ({"scale_factor": 2, "mode": "nearest"}, 0),
    "nearest-exact": ({"scale_factor": 3, "mode": "nearest-exact"}, 0),
    "bilinear": ({"scale_factor": 2, "mode": "bilinear"}, 0),
    "unequal": ({"scale_factor": (2, 4), "mode": "bilinear"}, 0),
    "three times": ({"scale_factor": 3, "mode": "bilinear"}, 0),
    "bicubic": ({"scale_factor": 2, "mode": "bicubic"}, 2),  # it needs two values in each dim
}


@pytest.mark.parametrize("arguments, n_left", ENLARGED.values(), ids=ENLARGED.keys())
def test_enlarge(arguments, n_left):
    """Images enlarged by an integer: SOL computes them, with PyTorch's treatment of edges."""

    class Enlarge(nn.Module):
        def forward(self, x):
            return functional.interpolate(x, **arguments).relu()

    module = Enlarge().eval()
    fast = sol.optimize(module, sol.input([0, 3, 0, 0]))
    assert not sol.host_nodes(fast) and not sol.fallbacks(fast)
    for n, h, w in ((2, 5, 7), (1, 1, 1), (3, 2, 3), (1, 40, 33), (2, 1, 9)):
        x = torch.randn(n, 3, h, w)
        with torch.no_grad():
            assert is_close(fast(x), module(x)), (n, h, w)
    assert sum(sol.fallbacks(fast).values()) == n_left


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest(mode):
    """Images of any open size in any other: as in a pyramid, whose maps are enlarged to the next map's size."""

    class Join(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(3, 3, 3, 2, padding=1)

        def forward(self, x):
            y = self.down(x)
            y = x + functional.interpolate(y, size=x.shape[-2:], mode=mode)
            scaled = functional.interpolate(x, scale_factor=(1.5, 0.75), mode=mode)
            return y, scaled, functional.interpolate(x, size=(7, 10), mode=mode) * 2

    module = Join().eval()
    fast = sol.optimize(module, sol.input([0, 3, 0, 0]))
    assert not sol.host_nodes(fast)
    sizes = (5, 7), (64, 3), (33, 129), (200, 41), (10, 14), (97, 211)
    check(module, fast, [(1 + i % 2, 3, h, w) for i, (h, w) in enumerate(sizes)])


def test_scaled_by_a_fraction():
    """PyTorch enlarges by 1.5 inside of the program; the size is a quotient of the open size."""

    class Enlarge(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)

        def forward(self, x):
            x = functional.interpolate(self.a(x), scale_factor=1.5, mode="bilinear")
            return self.b(x).relu()

    module = Enlarge().eval()
    fast = sol.optimize(module, sol.input([0, 3, 0, 0]))
    check(module, fast, [(2, 3, 5, 7), (1, 3, 8, 9), (1, 3, 16, 3)])
    assert len(sol.host_nodes(fast)) == 1


def test_unet_of_other_sizes():
    """Sizes that are no multiples of 4 do not fit; PyTorch raises its own error."""
    module = UNet(2, True).eval()
    fast = sol.optimize(module, sol.input([0, 3, 0, 0]))
    with torch.no_grad(), pytest.raises(RuntimeError, match="[Ss]izes of tensors"):
        fast(torch.zeros(1, 3, 30, 32))
    check_one = torch.zeros(1, 3, 32, 32)
    with torch.no_grad():
        assert is_close(fast(check_one), module(check_one))


def test_pyramid():
    torch.manual_seed(0)
    module = Pyramid(6).eval()
    fast = sol.optimize(module, sol.input([0, 3, 0, 0]))
    check(module, fast, [(2, 3, 64, 64), (1, 3, 70, 96), (3, 3, 33, 130)])


def test_cropping():
    torch.manual_seed(0)
    module = Cropping().eval()
    fast = sol.optimize(module, sol.input([1, 3, 0, 0]))
    check(module, fast, [(1, 3, h, w) for h, w in SIZES])


def test_too_small():
    """PyTorch runs, and refuses, an image that is smaller than the window."""
    fast = sol.optimize(Cropping().eval(), sol.input([1, 3, 0, 0]))
    with torch.no_grad(), pytest.raises(RuntimeError, match="[Kk]ernel size"):
        fast(torch.zeros(1, 3, 4, 20))
    assert list(sol.fallbacks(fast))


def test_sequences():
    torch.manual_seed(0)
    module = Encoder().eval()
    fast = sol.optimize(module, sol.input([0, 0, 32]))
    check(module, fast, [(n, s, 32) for n, s in ((1, 5), (2, 64), (3, 17), (1, 40), (2, 2))], 1)
    with torch.no_grad(), pytest.raises(RuntimeError, match="size"):
        fast(torch.zeros(1, 65, 32))


def test_open_start():
    """Values that begin at an open index are computed at each call, also those of a constant: here the next row of a table."""

    class Next(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(1000, 8))

        def forward(self, x):
            n = x.shape[1]
            return x + self.table.narrow(0, n, 1), x[:, 0] * torch.arange(n, n + 8)

    module = Next().eval()
    fast = sol.optimize(module, sol.input([0, 0, 8]))
    assert not sol.host_nodes(fast)
    check(module, fast, [(1, 5, 8), (2, 64, 8), (3, 17, 8), (1, 6, 8)])
    with torch.no_grad(), pytest.raises(RuntimeError, match="exceeds dimension size"):
        fast(torch.zeros(1, 1000, 8))


def test_two_inputs():
    """Each open size of each input has its own value."""

    class Join(nn.Module):
        def forward(self, x, y):
            return torch.cat([x, y], 1).softmax(1), x.mean(1) - y.amax(1)

    module = Join().eval()
    fast = sol.optimize(module, sol.input([0, 0, 8]), sol.input([0, 0, 8]))
    for n, a, b in ((1, 3, 4), (2, 7, 7), (3, 20, 2), (1, 5, 33), (2, 2, 2)):
        x, y = torch.randn(n, a, 8), torch.randn(n, b, 8)
        with torch.no_grad():
            assert is_close(fast(x, y), module(x, y))
    assert sol.fallbacks(fast) == {}


def test_equal_sizes():
    """A model that needs two equal sizes runs for these in SOL, and raises PyTorch's error for others."""

    class Sum(nn.Module):
        def forward(self, x, y):
            return (x + y).relu()

    fast = sol.optimize(Sum().eval(), sol.input([2, 0]), sol.input([2, 0]))
    with torch.no_grad():
        for n in 3, 8, 40:
            x, y = torch.randn(2, n), torch.randn(2, n)
            assert is_close(fast(x, y), (x + y).relu())
        with pytest.raises(RuntimeError, match="must match the size"):
            fast(torch.zeros(2, 3), torch.zeros(2, 5))


def test_declaration():
    assert "sol.input([2, 0, 3], dtype=torch.float32)" == repr(sol.input([2, 0, 3]))
    fast = sol.optimize(Cropping().eval(), sol.input([1, 3, 0, 0]), fullgraph=True)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"expected f32\[1,3,\*,\*\], got f32\[1,4,"),
    ):
        fast(torch.zeros(1, 4, 20, 20))

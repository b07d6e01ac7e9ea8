"""Single layers and short chains of layers, with the shapes of real networks: the rows of `make bench-layers`.

    row = layers.build("maxpool 3x3/2 64x112")        row.model, row.inputs()

A name says the layer and its input without the batch. Rows whose name begins with "conv1 +" have a 1x1 convolution of a few
channels in front, so that an engine may give the layer its own layout instead of PyTorch's.
"""

import dataclasses
import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Call(nn.Module):
    """A function of tensors as a module. ``weights``: shapes of parameters that follow the tensors as arguments."""

    def __init__(self, function, *weights):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(shape) / max(shape[-1], 1) ** 0.5) for shape in weights]
        )

    def forward(self, *tensors):
        return self.function(*tensors, *self.weights)


@dataclasses.dataclass
class Layers:
    """One row. ``shapes``: of its inputs; the values of an input with ``limit`` are int64 indices below it."""

    name: str
    make: Any
    shapes: tuple
    limit: int = 0

    @property
    def model(self):
        torch.manual_seed(0)
        return self.make().eval()

    def inputs(self, seed=1):
        generator = torch.Generator().manual_seed(seed)
        if self.limit:
            return tuple(torch.randint(0, self.limit, s, generator=generator) for s in self.shapes)
        return tuple(torch.randn(s, generator=generator) for s in self.shapes)


ROWS = {}


def add(name, make, *shapes, limit=0):
    ROWS[name] = Layers(name, make, shapes, limit)


def call(name, function, *shapes, weights=(), **kwargs):
    """Adds the row of a function. ``weights``: shapes of its last arguments, which are parameters."""
    bound = functools.partial(function, **kwargs) if kwargs else function
    add(name, lambda: Call(bound, *weights), *shapes)


def both(name, make, channels, *sizes, batch=1):
    """Adds a layer over images twice: alone, and behind a 1x1 convolution of four channels."""
    add(name, make, (batch, channels, *sizes))
    add(
        f"conv1 + {name}",
        lambda: nn.Sequential(nn.Conv2d(4, channels, 1), make()),
        (batch, 4, *sizes),
    )


def build(name):
    return ROWS[name]


# ---- Windows over images ----

both("maxpool 3x3/2 64x112", lambda: nn.MaxPool2d(3, 2, 1), 64, 112, 112)
both("maxpool 2x2/2 128x56", lambda: nn.MaxPool2d(2), 128, 56, 56)
both("maxpool 5x5/1 256x20", lambda: nn.MaxPool2d(5, 1, 2), 256, 20, 20)
both("avgpool 2x2/2 256x28", lambda: nn.AvgPool2d(2), 256, 28, 28)
both("avgpool 3x3/1 192x35", lambda: nn.AvgPool2d(3, 1, 1), 192, 35, 35)
both("global avgpool 2048x7", lambda: nn.AdaptiveAvgPool2d(1), 2048, 7, 7)
add("adaptive avgpool 7 512x14", lambda: nn.AdaptiveAvgPool2d(7), (1, 512, 14, 14))

both("nearest x2 64x56", lambda: nn.Upsample(scale_factor=2), 64, 56, 56)
both("bilinear x2 64x56", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), 64, 56, 56)
add("nearest x2 256x20", lambda: nn.Upsample(scale_factor=2), (1, 256, 20, 20))
add("bilinear 65 to 513 21", lambda: nn.Upsample((513, 513), mode="bilinear"), (1, 21, 65, 65))
add("bicubic x2 3x112", lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (1, 3, 112, 112))

both("pad reflect 64x112", lambda: nn.ReflectionPad2d(1), 64, 112, 112)
add("pad zero 64x112", lambda: nn.ZeroPad2d(1), (1, 64, 112, 112))
add("pad replicate 32x64", lambda: nn.ReplicationPad2d(2), (1, 32, 64, 64))

# ---- Convolutions beside the usual ones ----

add("convT 2x2/2 64 56", lambda: nn.ConvTranspose2d(64, 64, 2, 2), (1, 64, 56, 56))
add("convT 4x4/2 64 56", lambda: nn.ConvTranspose2d(64, 64, 4, 2, 1), (1, 64, 56, 56))
add("convT 3x3/2 256 28", lambda: nn.ConvTranspose2d(256, 128, 3, 2, 1, 1), (1, 256, 28, 28))
add("conv1d 3 80x3000", lambda: nn.Conv1d(80, 384, 3, padding=1), (1, 80, 3000))
add("conv1d depthwise 31 256x400", lambda: nn.Conv1d(256, 256, 31, padding=15, groups=256), (1, 256, 400))  # fmt: skip
add("conv3d 3x3x3 16x32", lambda: nn.Conv3d(16, 16, 3, padding=1), (1, 16, 16, 32, 32))
add("conv3d 3x7x7/1,2,2 3x16x112", lambda: nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3)), (1, 3, 16, 112, 112))  # fmt: skip
add("conv 3x3 dilated 2 256x28", lambda: nn.Conv2d(256, 256, 3, padding=2, dilation=2), (1, 256, 28, 28))  # fmt: skip
add("conv depthwise 7x7 96x56", lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (1, 96, 56, 56))  # fmt: skip
add("conv 16x16/16 3x224", lambda: nn.Conv2d(3, 768, 16, 16), (1, 3, 224, 224))

# ---- Softmax and norms ----

call("softmax 8x512x512", F.softmax, (8, 512, 512), dim=-1)
call("softmax 12x128x128", F.softmax, (1, 12, 128, 128), dim=-1)
call("softmax 16x1000", F.softmax, (16, 1000), dim=-1)
call("softmax channels 21x129", F.softmax, (1, 21, 129, 129), dim=1)
call("log_softmax 128x30522", F.log_softmax, (128, 30522), dim=-1)
add("layernorm 512x768", lambda: nn.LayerNorm(768), (512, 768))
add("layernorm 128x768", lambda: nn.LayerNorm(768), (1, 128, 768))
add("layernorm 3136x96", lambda: nn.LayerNorm(96), (1, 3136, 96))
add("rmsnorm 512x2048", lambda: nn.RMSNorm(2048), (1, 512, 2048))
both("groupnorm 32 320x32", lambda: nn.GroupNorm(32, 320), 320, 32, 32)
both("instancenorm 64x56", lambda: nn.InstanceNorm2d(64), 64, 56, 56)
both("batchnorm 64x56", lambda: nn.BatchNorm2d(64), 64, 56, 56, batch=8)
call("normalize 1024x512", F.normalize, (1024, 512), dim=-1)

# ---- Pointwise ----

add("gelu 512x3072", nn.GELU, (512, 3072))
add("gelu 3136x384", nn.GELU, (1, 3136, 384))
add("gelu tanh 128x3072", lambda: nn.GELU("tanh"), (1, 128, 3072))
add("silu 512x8192", nn.SiLU, (512, 8192))
add("tanh 512x512", nn.Tanh, (512, 512))
call("exp 1024x1024", torch.exp, (1024, 1024))
call("sigmoid * x 8x256x28", lambda x: torch.sigmoid(x) * x, (8, 256, 28, 28))
both("hardswish 120x28", nn.Hardswish, 120, 28, 28)
both("prelu 64x112", lambda: nn.PReLU(64), 64, 112, 112)
call("add 256x56x56", torch.add, (1, 256, 56, 56), (1, 256, 56, 56))
call("add broadcast 8x256x28", torch.add, (8, 256, 28, 28), (1, 256, 1, 1))
call("mul channels 8x256x28", torch.mul, (8, 256, 28, 28), (8, 256, 1, 1))
call("masked 12x128x128", lambda x, m: torch.where(m > 0, x, -1e9), (1, 12, 128, 128), (1, 1, 128, 128))  # fmt: skip

# ---- Reductions ----

call("mean axis 1 8x256x28", torch.mean, (8, 256, 28, 28), dim=1)
call("mean axes 2,3 8x256x28", torch.mean, (8, 256, 28, 28), dim=(2, 3))
call("sum rows 4096x1024", torch.sum, (4096, 1024), dim=-1)
call("max axis 1 8x64x56", torch.amax, (8, 64, 56, 56), dim=1)
call("argmax 16x30522", torch.argmax, (16, 30522), dim=-1)
call("var 512x768", torch.var, (512, 768), dim=-1)
call("logsumexp 128x30522", torch.logsumexp, (128, 30522), dim=-1)
call("cumsum 64x4096", torch.cumsum, (64, 4096), dim=-1)

# ---- Movement ----

call("nchw to nhwc 64x56", lambda x: x.permute(0, 2, 3, 1) * 1, (1, 64, 56, 56))
call("nhwc to nchw 96x56", lambda x: x.permute(0, 3, 1, 2) * 1, (1, 56, 56, 96))
call("heads 4x128x12x64", lambda x: x.transpose(1, 2) * 1, (4, 128, 12, 64))
call("concat channels 2x64x56", lambda a, b: torch.cat([a, b], 1), (1, 64, 56, 56), (1, 64, 56, 56))  # fmt: skip
call("concat rows 2x128x768", lambda a, b: torch.cat([a, b], 1), (1, 128, 768), (1, 128, 768))
call("pixel shuffle 2 64x112", lambda x: F.pixel_shuffle(x, 2), (1, 64, 112, 112))
call("channel shuffle 116x28", lambda x: F.channel_shuffle(x, 2), (1, 116, 28, 28))
call("window partition 56x96", lambda x: x.reshape(1, 8, 7, 8, 7, 96).transpose(2, 3) * 1, (1, 56, 56, 96))  # fmt: skip
call("roll 56x96", lambda x: torch.roll(x, (-3, -3), (1, 2)), (1, 56, 56, 96))
call("flip 3x224", lambda x: torch.flip(x, (3,)), (4, 3, 224, 224))
call("repeat heads 8x128x64", lambda x: x.repeat_interleave(4, 1), (1, 8, 128, 64))
add("embedding 128 of 30522x768", lambda: nn.Embedding(30522, 768), (1, 128), limit=30522)
add("embedding 512 of 50257x768", lambda: nn.Embedding(50257, 768), (4, 128), limit=50257)

# ---- Products ----

add("linear 128x768x768", lambda: nn.Linear(768, 768), (128, 768))
add("linear 128x768x3072", lambda: nn.Linear(768, 3072), (1, 128, 768))
add("linear 128x3072x768", lambda: nn.Linear(3072, 768), (1, 128, 3072))
add("linear 512x768x3072", lambda: nn.Linear(768, 3072), (512, 768))
add("linear 16x8192x8192", lambda: nn.Linear(8192, 8192), (16, 8192))
add("linear 1x2048x1000", lambda: nn.Linear(2048, 1000), (1, 2048))
add("linear 197x768x2304", lambda: nn.Linear(768, 2304), (1, 197, 768))
add("linear 3136x96x384", lambda: nn.Linear(96, 384), (1, 3136, 96))
call("matmul 512x512x512", torch.matmul, (512, 512), (512, 512))
call("q k 4x12x128x64", lambda q, k: q @ k.transpose(-2, -1), (4, 12, 128, 64), (4, 12, 128, 64))
call("p v 1x12x128x64", torch.matmul, (1, 12, 128, 128), (1, 12, 128, 64))
call("q k windows 64x3x49x32", lambda q, k: q @ k.transpose(-2, -1), (64, 3, 49, 32), (64, 3, 49, 32))  # fmt: skip

# ---- Attention ----

ATTENTION = F.scaled_dot_product_attention
call("attention 12x128x64", ATTENTION, *[(1, 12, 128, 64)] * 3)
call("attention causal 12x1024x64", ATTENTION, *[(1, 12, 1024, 64)] * 3, is_causal=True)
call("attention 12x197x64", ATTENTION, *[(1, 12, 197, 64)] * 3)
call("attention windows 64x3x49x32", ATTENTION, *[(64, 3, 49, 32)] * 3, (1, 3, 49, 49))

# ---- Recurrent: time before the batch ----


class States(nn.Module):
    """A recurrent layer that returns the states of all steps only."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


add("lstm 128 steps 256", lambda: States(nn.LSTM(256, 256)), (128, 1, 256))
add("gru 128 steps 256", lambda: States(nn.GRU(256, 256)), (128, 1, 256))
add("lstm 64 steps 512", lambda: States(nn.LSTM(512, 512)), (64, 1, 512))
add("lstm 64 steps 512, batch 16", lambda: States(nn.LSTM(512, 512)), (64, 16, 512))

# ---- Chains of real networks ----


class Gated(nn.Module):
    """The gated product of Llama's blocks."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Squeeze(nn.Module):
    """Squeeze and excitation: channels weighted by a small network of their means."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.gate = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, hidden, 1), nn.ReLU()),
            *(nn.Conv2d(hidden, channels, 1), nn.Sigmoid()),
        )

    def forward(self, x):
        return x * self.gate(x)


class Residual(nn.Module):
    """x + layers(x), then a layer norm: BERT's order."""

    def __init__(self, width, *layers):
        super().__init__()
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.layers(x))


class Permuted(nn.Module):
    """ConvNeXt's block: a depthwise convolution, then norm and products over channels, which are the last dim."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.inner = nn.Sequential(
            *(nn.LayerNorm(width), nn.Linear(width, 4 * width)),
            *(nn.GELU(), nn.Linear(4 * width, width)),
        )

    def forward(self, x):
        return x + self.inner(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def rotate(x, cos, sin):
    """Rotary position embedding: pairs of the two halves of a head are turned."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def linear_gelu():
    return nn.Sequential(nn.Linear(768, 3072), nn.GELU())


def stem():
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    )


def norm_linear():
    return nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 2304))


def upsample_concat(x, y, w):
    return F.conv2d(torch.cat([F.interpolate(x, scale_factor=2.0), y], 1), w)


add("linear + gelu 128x768", linear_gelu, (1, 128, 768))
add("linear + add + norm 128x768", lambda: Residual(768, nn.Linear(768, 768)), (1, 128, 768))
add("mlp + add + norm 128x768", lambda: Residual(768, *linear_gelu(), nn.Linear(3072, 768)), (1, 128, 768))  # fmt: skip
add("norm + linear 197x768", norm_linear, (1, 197, 768))
add("gated mlp 32x1024x2816", lambda: Gated(1024, 2816), (1, 32, 1024))
add("squeeze 256x28", lambda: Squeeze(256, 16), (1, 256, 28, 28))
add("convnext block 96x56", lambda: Permuted(96), (1, 96, 56, 56))
add("stem 3x224", stem, (1, 3, 224, 224))
call("upsample + concat + conv 256x20", upsample_concat, (1, 256, 20, 20), (1, 128, 40, 40), weights=[(128, 384, 1, 1)])  # fmt: skip
call("rotary 32x128x64", rotate, (1, 32, 128, 64), (1, 1, 128, 64), (1, 1, 128, 64))
call("scale + mask + softmax 12x128x128", lambda x, m: F.softmax(x * 0.125 + m, -1), (1, 12, 128, 128), (1, 1, 1, 128))  # fmt: skip

NAMES = list(ROWS)

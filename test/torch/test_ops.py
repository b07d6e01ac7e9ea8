"""Each op of the table against PyTorch: odd shapes, batches 2, 1 and 0, and strided inputs."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_equal

import sol.pytorch as sol

torch.manual_seed(0)
nn = torch.nn
SHAPE = (3, 7, 5)
RAMP = torch.linspace(-1, 1, 60).reshape(20, 3, 1, 1)  # weight of a convolution


class Model(nn.Module):
    """``function(x * 1)``, so that the result is a new tensor, not a view of the input."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        if isinstance(function, nn.Module):
            self.add_module("inner", function)

    def forward(self, x):
        return self.function(x * 1)


def _norm(cls, *args, **kwargs):
    norm = cls(*args, **kwargs)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm


class Matrix(nn.Module):
    def __init__(self, function, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape))
        self.function = function

    def forward(self, x):
        return self.function(x, self.weight)


class Masked(nn.Module):
    """Attention with a mask that hides some places, and all places of row 0."""

    def __init__(self):
        super().__init__()
        mask = torch.randn(3, 7, 7)
        mask[:, torch.ones(7, 7).triu(3).bool()] = -math.inf
        mask[:, 0] = -math.inf
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.mask)


def _weights(norm):
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    return norm


def _grouped(x):
    """Six heads of the query, two of key and value, with places of another number."""
    key = x[:, :2, 1:] * 2
    return F.scaled_dot_product_attention(x, key, key + 1, is_causal=True, enable_gqa=True)


def _one_head(x):
    return F.scaled_dot_product_attention(x, x[:, :1], x[:, 1:2, :, :3])


# name: (model or function, shape of one sample)
LAYERS = {
    "conv2d": (nn.Conv2d(3, 5, 3), SHAPE),
    "conv2d strided": (nn.Conv2d(3, 5, (3, 2), stride=(2, 3), padding=(1, 2), bias=False), SHAPE),
    "conv2d dilated": (nn.Conv2d(3, 4, 2, dilation=(3, 2)), SHAPE),
    "conv2d grouped": (nn.Conv2d(6, 9, 3, groups=3, padding=1), (6, 7, 5)),
    "conv2d depthwise": (nn.Conv2d(17, 17, 3, groups=17, stride=2), (17, 7, 9)),
    "conv2d depthwise wide": (nn.Conv2d(5, 5, 5, 2, 2, groups=5), (5, 21, 83)),
    "conv2d depthwise dilated": (nn.Conv2d(3, 3, (9, 4), dilation=(2, 3), groups=3), (3, 37, 41)),
    "conv2d patches": (nn.Conv2d(9, 21, 8, 8), (9, 16, 24)),
    "conv2d 1x1": (nn.Conv2d(17, 33, 1), (17, 5, 3)),
    "conv2d same": (nn.Conv2d(3, 4, (4, 3), padding="same", dilation=(1, 2)), SHAPE),
    "conv2d valid": (nn.Conv2d(3, 4, 3, padding="valid"), SHAPE),
    "conv1d": (nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), (3, 17)),
    "conv1d depthwise": (nn.Conv1d(3, 3, 4, padding=3, groups=3), (3, 117)),
    "conv1d same": (nn.Conv1d(3, 4, 4, padding="same"), (3, 17)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3), SHAPE),
    "transposed 2x2": (nn.ConvTranspose2d(3, 4, 2, stride=2), SHAPE),
    "transposed 4x4": (nn.ConvTranspose2d(17, 16, 4, stride=2, padding=1), (17, 7, 5)),
    "transposed strided": (
        nn.ConvTranspose2d(6, 9, (3, 2), (2, 3), (1, 0), (1, 2), groups=3),
        (6, 7, 5),
    ),
    "transposed dilated": (nn.ConvTranspose2d(3, 4, 3, 2, 1, dilation=(1, 2), bias=False), SHAPE),
    "transposed 1d": (nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1), (3, 17)),
    "linear": (nn.Linear(7, 5), (7,)),
    "linear 3d": (nn.Linear(5, 9, bias=False), (3, 5)),
    "linear 4d": (nn.Linear(5, 9), SHAPE),
    "addmm": (Matrix(lambda x, w: torch.addmm(w[0], x, w, beta=0.5, alpha=2), 7, 5), (7,)),
    "mm": (Matrix(lambda x, w: x @ w, 7, 5), (7,)),
    "matmul 3d": (Matrix(torch.matmul, 5, 4), (3, 5)),
    "torch.mm": (Matrix(torch.mm, 7, 5), (7,)),
    "layer_norm": (nn.LayerNorm(5), SHAPE),
    "rms_norm": (nn.RMSNorm(5), SHAPE),
    "rms_norm plain": (nn.RMSNorm((7, 5), eps=0.1, elementwise_affine=False), SHAPE),
    "group_norm": (_weights(nn.GroupNorm(2, 6)), (6, 7, 5)),
    "group_norm plain": (nn.GroupNorm(3, 6, affine=False), (6, 4)),
    "instance_norm": (nn.InstanceNorm2d(3), SHAPE),
    "instance_norm affine": (_weights(nn.InstanceNorm1d(3, affine=True)), (3, 5)),
    "instance_norm tracked": (_norm(nn.InstanceNorm2d, 3, track_running_stats=True), SHAPE),
    "batch statistics": (nn.BatchNorm2d(3, track_running_stats=False), SHAPE),
    "batch statistics 1d": (nn.BatchNorm1d(3, affine=False, track_running_stats=False), (3, 5)),
    "attention with a condition": (
        lambda x: F.scaled_dot_product_attention(
            x, x, x, attn_mask=x[:, :, :, :1] < x[:, :1, :, 1:2].mT
        ),
        SHAPE,
    ),
    "causal attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), SHAPE),
    "masked attention": (Masked(), SHAPE),
    "scaled attention": (lambda x: F.scaled_dot_product_attention(x, x, x * 2, scale=0.3), SHAPE),
    "grouped attention": (_grouped, (6, 7, 5)),
    "attention of many": (_one_head, (6, 7, 5)),
    "baddbmm": (lambda x: torch.baddbmm(x, x, x.mT @ x, beta=0.5, alpha=2), (7, 5)),
    "glu": (nn.GLU(1), (6, 5)),
    "rrelu": (nn.RReLU(), SHAPE),
    "max_pool1d": (nn.MaxPool1d(3, 2, 1), (3, 17)),
    "max_pool1d dilated": (nn.MaxPool1d(2, dilation=2, ceil_mode=True), (3, 17)),
    "avg_pool1d": (nn.AvgPool1d(3, padding=1, count_include_pad=False), (3, 17)),
    "adaptive 1d": (nn.AdaptiveAvgPool1d(4), (3, 17)),
    "pixel_shuffle": (nn.PixelShuffle(2), (12, 3, 5)),
    "channel_shuffle": (nn.ChannelShuffle(3), (6, 3, 5)),
    "softmax2d": (nn.Softmax2d(), SHAPE),
    "layer_norm plain": (nn.LayerNorm((7, 5), eps=0.1, elementwise_affine=False), SHAPE),
    "self attention": (lambda x: F.scaled_dot_product_attention(x, x * 2, x), SHAPE),
    "product": (lambda x: x @ x.transpose(2, 3), SHAPE),
    "bmm": (lambda x: torch.bmm(x, x.transpose(1, 2)), (7, 5)),
    "product on the left": (Matrix(lambda x, w: w @ x, 4, 7), SHAPE),
    "batch_norm2d": (_norm(nn.BatchNorm2d, 3), SHAPE),
    "batch_norm plain": (_norm(nn.BatchNorm2d, 3, affine=False, eps=0.1), SHAPE),
    "batch_norm1d": (_norm(nn.BatchNorm1d, 6), (6,)),
    "batch_norm1d 3d": (_norm(nn.BatchNorm1d, 3), (3, 5)),
    "prelu": (nn.PReLU(3, init=0.3), SHAPE),
    "prelu one": (nn.PReLU(), SHAPE),
    "max_pool": (nn.MaxPool2d(3, 2, 1), SHAPE),
    "max_pool ceil": (nn.MaxPool2d((2, 3), ceil_mode=True), SHAPE),
    "max_pool dilated": (nn.MaxPool2d(2, 1, dilation=2), SHAPE),
    "avg_pool": (nn.AvgPool2d(3, 2, 1), SHAPE),
    "avg_pool ceil": (nn.AvgPool2d(2, 2, ceil_mode=True), SHAPE),
    "avg_pool inner": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), SHAPE),
    "adaptive 1": (nn.AdaptiveAvgPool2d(1), SHAPE),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 4)), SHAPE),
    "adaptive none": (nn.AdaptiveAvgPool2d((None, 2)), SHAPE),
    "adaptive larger": (nn.AdaptiveAvgPool2d((9, 8)), SHAPE),
    "dropout": (nn.Dropout(0.5), SHAPE),
    "dropout in place": (nn.Sequential(nn.ReLU(), nn.Dropout(0.5, inplace=True)), SHAPE),
}

VOLUME = (2, 5, 6, 7)
VOLUMES = {
    "conv3d": nn.Conv3d(2, 4, 3), "conv3d strided": nn.Conv3d(2, 6, (2, 3, 1), (2, 1, 3), (1, 0, 2), (1, 2, 1), 2, bias=False),
    "conv3d same": nn.Conv3d(2, 3, (2, 3, 4), padding="same"), "max_pool3d": nn.MaxPool3d(3, 2, 1),
    "max_pool3d ceil": nn.MaxPool3d((2, 3, 1), 2, dilation=(1, 2, 1), ceil_mode=True), "avg_pool3d": nn.AvgPool3d(3, 2, 1),
    "avg_pool3d inner": nn.AvgPool3d((2, 3, 2), (1, 2, 3), (0, 1, 1), True, False), "adaptive avg 3d": nn.AdaptiveAvgPool3d((2, 4, 3)),
    "transposed 3d": nn.ConvTranspose3d(2, 4, 2, stride=2), "transposed 3d strided": nn.ConvTranspose3d(
    2, 6, (3, 2, 4), (2, 3, 1), (1, 0, 2), (1, 1, 0), 2, dilation=(2, 1, 1)), "adaptive max 3d uneven": nn.AdaptiveMaxPool3d((2, 4, 3), return_indices=True),
    "adaptive max 3d": nn.AdaptiveMaxPool3d((5, 3, 1), return_indices=True), "adaptive max all": nn.AdaptiveMaxPool3d(1),
}  # fmt: skip

POINTWISE = {
    "relu": torch.relu, "relu_": lambda x: x.relu_() + 1, "relu6": F.relu6, "hardtanh": F.hardtanh,
    "hardtanh_": lambda x: F.hardtanh(x, -0.2, 0.7, inplace=True), "clamp": lambda x: x.clamp(-1, 1),
    "clamp low": lambda x: x.clamp(min=0.1), "clamp high": lambda x: x.clamp_max(0.1),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "elu": lambda x: F.elu(x, 0.7), "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.5), "log_sigmoid": F.logsigmoid, "softsign": F.softsign,
    "hardshrink": lambda x: F.hardshrink(x, 0.3), "threshold": lambda x: F.threshold(x, 0.2, 3.0),
    "softshrink": lambda x: F.softshrink(x, 0.3), "tanhshrink": F.tanhshrink, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "silu_": lambda x: F.silu(x, inplace=True), "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid, "softplus": F.softplus, "softplus beta": lambda x: F.softplus(x, 3),
    "mish": F.mish, "exp": torch.exp, "log": lambda x: torch.log(x.abs() + 0.1),
    "sqrt": lambda x: torch.sqrt(x.abs()), "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.1),
    "abs": torch.abs, "neg": lambda x: -x, "square": torch.square, "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3, "pow 0.5": lambda x: x.abs() ** 0.5, "reciprocal": torch.reciprocal,
    "erf": torch.erf, "add": lambda x: x + 2, "add alpha": lambda x: torch.add(x, x, alpha=3),
    "add_": lambda x: x.add_(1) * 2, "sub": lambda x: x - 0.5, "rsub": lambda x: 3 - x,
    "mul": lambda x: x * x, "mul_": lambda x: x.mul_(2), "div": lambda x: x / 3,
    "rdiv": lambda x: 2 / (x.abs() + 1), "maximum": lambda x: torch.maximum(x, -x),
    "minimum": lambda x: torch.minimum(x, x * x), "addcmul": lambda x: torch.addcmul(x, x, x, value=2),
    "log_softmax": lambda x: F.log_softmax(x, 1), "softmax": lambda x: F.softmax(x, -1),
    "exp2": torch.exp2, "log2": lambda x: torch.log2(x.abs() + 0.1), "tan": torch.tan,
    "log10": lambda x: torch.log10(x.abs() + 0.1), "lerp": lambda x: torch.lerp(x, -x, 0.3),
    "softmax 1": lambda x: x.softmax(1), "softmin": lambda x: F.softmin(x, 1),
}  # fmt: skip

REDUCTIONS = {
    "mean": lambda x: x.mean((2, 3)), "mean keep": lambda x: x.mean(-1, keepdim=True),
    "mean rows": lambda x: x.mean([1]), "sum": lambda x: x.sum((1, 3)),
    "sum keep": lambda x: x.sum(2, keepdim=True), "amax": lambda x: x.amax((2, 3)),
    "amin": lambda x: x.amin(1, keepdim=True), "var": lambda x: x.var((1, 2)),
    "std": lambda x: x.std(1, unbiased=False, keepdim=True), "std all": lambda x: x.std(correction=0) + x,
    "var correction": lambda x: x.var(2, correction=3), "var_mean": lambda x: sum(torch.var_mean(x, 1)),
    "std_mean": lambda x: sum(torch.std_mean(x, (1, 2), keepdim=True)),
    "logsumexp": lambda x: x.logsumexp(1), "logsumexp 2": lambda x: x.logsumexp((1, 3), keepdim=True),
    "norm": lambda x: x.norm(dim=1), "norm 1": lambda x: torch.norm(x, 1, (1, 2), keepdim=True),
    "norm inf": lambda x: torch.linalg.vector_norm(x, math.inf, dim=1),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -math.inf, dim=(1, 2)),
    "norm 0": lambda x: torch.linalg.vector_norm(x.relu(), 0, dim=1), "normalize": F.normalize,
    "normalize 1": lambda x: F.normalize(x, 1, 2), "cosine": lambda x: F.cosine_similarity(x, x * x, 1),
    "mse": lambda x: torch.ops.aten.mse_loss(x, x * x) + x, "l1": lambda x: torch.ops.aten.l1_loss(x, x * x, 2) + x,
    "adaptive 3d": lambda x: F.adaptive_avg_pool3d(x.unsqueeze(1), 1), "einsum": lambda x:
    torch.einsum("bchw,bcHw->bhH", x, x * 2), "einsum scores": lambda x: torch.einsum("bchw,bcvw->bchv", x, x),
    "einsum turned": lambda x: torch.einsum("bchw->bwc", x), "einsum outer": lambda x:
    torch.einsum("bc,bhw->bwhc", x.mean((2, 3)), x.mean(1)), "distance": lambda x: F.pairwise_distance(x, x * x), "mse_loss": lambda x: F.mse_loss(x, x * x) + x,
    "l1_loss": lambda x: F.l1_loss(x, x.mean(1, True), reduction="none"), "broadcast_tensors": lambda x:
    sum(torch.broadcast_tensors(x, x.mean(2, True), torch.arange(5))), "var by hand": lambda x: (x - x.mean((2, 3), True)) ** 2,
}  # fmt: skip

SHAPES = {
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1), "cat rows": lambda x: torch.cat([x, x], 2),
    "stack": lambda x: torch.stack([x, -x], 1),
    "chunk": lambda x: sum(c.mean(1) for c in x.chunk(2, 1)),
    "split": lambda x: x.split([2, 5], 2)[1] * 2, "split even": lambda x: x.split(3, 2)[2] * 2,
    "unbind": lambda x: x.unbind(1)[2] + x.unbind(1)[0],
    "slice": lambda x: x[:, 1:, 2:6:2, :-1], "slice all": lambda x: x[:, :, :] + 1,
    "select": lambda x: x[:, -1], "narrow": lambda x: x.narrow(2, 3, 2),
    "flatten": lambda x: x.flatten(1), "view": lambda x: x.view(x.size(0), -1),
    "view 2": lambda x: x.view(x.shape[0], 3, -1), "reshape": lambda x: x.reshape(-1, 35),
    "rows of all": lambda x: x.reshape(-1, 5).relu(), "unflatten": lambda x: x.unflatten(2, (7, 1)),
    "unsqueeze": lambda x: x.unsqueeze(1) * 2, "squeeze": lambda x: x[:, :1].squeeze(1),
    "transpose": lambda x: x.transpose(1, 3), "permute": lambda x: x.permute(0, 2, 3, 1) + 1,
    "nhwc and back": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "shuffle": lambda x: torch.cat([x, -x], 1).view(x.shape[0], 2, 3, 7, 5).transpose(1, 2)
    .contiguous().view(x.shape[0], 6, 7, 5), "expand": lambda x: x[:, :1].expand(-1, 4, 7, 5) + 1,
    "clone": lambda x: x.clone(), "detach": lambda x: x.detach() + 1,
    "pad": lambda x: F.pad(x, (1, 2)), "pad 4": lambda x: F.pad(x, (1, 0, 2, 3), value=0.5),
    "pad 6": lambda x: F.pad(x, (1, 0, 2, 3, 0, 2)), "pad 6 value": lambda x: F.pad(x + 1, (1, 1, 0, 0, 2, 1), value=-2.5),
    "roll": lambda x: x.roll(2, 1), "roll 2": lambda x: x.roll((-1, 8), (2, 3)),
    "roll flat": lambda x: x[:, 0].flatten(1).T.roll(1, 0), "flip": lambda x: x.flip(1, -1),
    "roll windows": lambda x: (F.pad(x, (0, 1, 0, 1)).permute(0, 2, 3, 1).repeat(1, 1, 1, 3) * 2)
    .roll((-1, -2), (1, 2)).view(-1, 2, 4, 2, 3, 9).transpose(2, 3).contiguous() + 1,
    "movedim": lambda x: x.movedim(1, 3) + 1, "movedim 2": lambda x: x.movedim((1, 2), (3, 1)) + 1,
    "repeat": lambda x: x.repeat(1, 2, 1, 3), "repeat more": lambda x: x.mean(1).repeat(2, 1, 1, 1),
    "unfold": lambda x: x.unfold(2, 3, 2), "im2col": lambda x: F.unfold(x, 3, padding=1, stride=2),
    "empty": lambda x: torch.empty(5).fill_(2) * x, "new_empty": lambda x: x.new_empty(7, 1).zero_() + x,
    "empty_like": lambda x: torch.empty_like(x).copy_(x * 2),
    "col2im": lambda x: F.fold(F.unfold(x, 3, padding=1, stride=2), (7, 5), 3, padding=1, stride=2),
    "col2im dilated": lambda x: F.fold(F.unfold(x, (2, 3), (3, 1), 1, (2, 1)), (7, 5), (2, 3), (3, 1), 1, (2, 1)),
    "col2im apart": lambda x: F.fold(F.unfold(x[:, :, :6, :4], 2, stride=2), (6, 4), 2, stride=2),
    "col2im gaps": lambda x: F.fold(F.unfold(x, 2, stride=3), (7, 5), 2, stride=3),
    "col2im one": lambda x: F.fold(F.unfold(x, 2)[0], (7, 5), 2) + x,
    "im2col 2": lambda x: F.unfold(x, (2, 3), dilation=(2, 1)), "tensor_split": lambda x: x.tensor_split(2, 2)[1] + 1,
    "tile": lambda x: x.tile(2, 1), "repeat_interleave": lambda x: x.repeat_interleave(3, 2),
    "tril": lambda x: x.tril(), "triu": lambda x: x.triu(-2), "tril_": lambda x: x.tril_(1) + 1,
    "reflect": lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
    "replicate": lambda x: F.pad(x, (2, 0, 1, 3), mode="replicate"),
    "even and odd": lambda x: x[..., :-1:2] + x[..., 1::2], "neighbors": lambda x: (x[..., 1:] - x[..., :-1]) * x[:, :, 1:, 1:].sum(2, keepdim=True),
    "neighbor samples": lambda x: torch.cat([x[:1], x[1:] - x[:-1].relu()]), "halves gated": lambda x: x[..., :3].sigmoid() * x[..., -3:],
    "squeezed image": lambda x: x * F.conv2d(F.relu(F.conv2d(x.mean((2, 3), True), RAMP)), RAMP.transpose(0, 1)).sigmoid(),
    "squeezed blocks": lambda x: (y := F.conv2d(x, RAMP)) * F.conv2d(F.conv2d(y.mean((2, 3), True), RAMP.transpose(0, 1)), RAMP).sigmoid(),
    "groups of blocks": lambda x: F.conv2d(x, RAMP).flatten(2).reshape(-1, 4, 175).softmax(-1) * 2,
    "slices of slices": lambda x: x[:, :, ::2][..., 1::2] * 2 + x[:, :, ::2][..., :4:2],
    "crop": lambda x: F.pad(x, (-1, 2, -2, -1)),
    "crop and reflect": lambda x: F.pad(x, (-1, 2, 0, 1), mode="reflect"),
    "pad channels": lambda x: F.pad(x, (0, 1, 0, 0, 1, 2), value=0.5),
    "nearest": lambda x: F.interpolate(x, scale_factor=2), "nearest size": lambda x: F.interpolate(x, (9, 3)),
    "nearest odd": lambda x: F.interpolate(x, scale_factor=1.7), "upsample rows": lambda x:
    F.interpolate(x[:, 0], scale_factor=3), "nearest exact": lambda x: F.interpolate(x, (10, 4), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear corners": lambda x: F.interpolate(x, (9, 11), mode="bilinear", align_corners=True),
    "bilinear scale": lambda x: F.interpolate(x, scale_factor=(1.3, 0.6), mode="bilinear"),
    "linear": lambda x: F.interpolate(x[:, 0], 8, mode="linear"),
    "bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "bicubic corners": lambda x: F.interpolate(x, (4, 9), mode="bicubic", align_corners=True),
    "antialias": lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
    "bicubic antialias": lambda x: F.interpolate(x, (3, 11), mode="bicubic", antialias=True),
    "trilinear": lambda x: F.interpolate(x.unsqueeze(1), (4, 9, 7), mode="trilinear"),
    "to": lambda x: x.to(torch.float32) + 1, "contiguous": lambda x: x.contiguous() + 1,
    "broadcast": lambda x: x * x.mean((2, 3), keepdim=True), "constant": lambda x: x + torch.ones(5),
    "rows": lambda x: x + torch.full((7, 1), 2.0),
    "literal": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]),
}  # fmt: skip

FORMULAS = {
    "acos": lambda x: torch.acos(x.tanh() * 0.9), "arcsin": lambda x: torch.arcsin(x.tanh() * 0.9), "atan": torch.atan,
    "acosh": lambda x: torch.acosh(x.abs() + 1.1), "asinh": torch.asinh, "atanh": lambda x: torch.atanh(x.tanh() * 0.9),
    "sinh": torch.sinh, "cosh": torch.cosh, "log1p": lambda x: torch.log1p(x.abs()), "expm1": torch.expm1, "frac": torch.frac,
    "sinc": torch.sinc, "logit": lambda x: torch.logit(x.sigmoid()), "logit eps": lambda x: torch.logit(x, 0.1),
    "expit": torch.special.expit, "entr": torch.special.entr, "deg2rad": torch.deg2rad, "rad2deg": torch.rad2deg,
    "angle": torch.angle, "signbit": lambda x: torch.signbit(x) * 1.0, "isfinite": lambda x: torch.isfinite(x) * 1.0,
    "isposinf": lambda x: torch.isposinf(x) * 1.0, "isneginf": lambda x: torch.isneginf(x) * 1.0,
    "isreal": lambda x: torch.isreal(x) * x, "nan_to_num": torch.nan_to_num, "nan_to_num all": lambda x:
    torch.nan_to_num(x, 1.0, 2.0, -3.0), "round decimals": lambda x: torch.round(x, decimals=2),
    "round tens": lambda x: torch.round(x * 100, decimals=-1), "softplus threshold": lambda x: F.softplus(x, 2, 1),
    "hypot": lambda x: torch.hypot(x, x.flip(-1)), "atan2": lambda x: torch.atan2(x, x.flip(-1)),
    "copysign": lambda x: torch.copysign(x, x.flip(-1)), "copysign scalar": lambda x: torch.copysign(x, -0.0),
    "fmax": lambda x: torch.fmax(x, x.flip(-1)), "fmin": lambda x: torch.fmin(x, x.flip(-1)),
    "heaviside": lambda x: torch.heaviside(x, x.flip(-1)), "logaddexp": lambda x: torch.logaddexp(x, x.flip(-1)),
    "logaddexp2": lambda x: torch.logaddexp2(x, x.flip(-1)), "xlogy": lambda x: torch.xlogy(x, x.flip(-1).abs()),
    "xlogy scalar": lambda x: torch.xlogy(x, 2.0), "xlogy of a number": lambda x: torch.xlogy(2.0, x.abs()),
    "xlog1py": lambda x: torch.special.xlog1py(x, x.flip(-1).abs()), "ldexp": lambda x: torch.ldexp(x, torch.tensor([1, -2, 3, 0, 4]).mean(dtype=torch.float32)),
    "isclose": lambda x: torch.isclose(x, x.flip(-1), atol=0.3) * 1.0,
    "isclose nan": lambda x: torch.isclose(x, x.flip(-1), equal_nan=True) * 1.0,
    "float_power": lambda x: torch.float_power(x, 2).float(), "greater_equal": lambda x: torch.greater_equal(x, 0) * x,
    "less_equal": lambda x: torch.less_equal(x, x.flip(-1)) * x, "greater": lambda x: torch.greater(x, 1) * x,
    "less": lambda x: torch.less(x, x.flip(-1)) * x, "not_equal": lambda x: torch.not_equal(x.round(), 1.0) * x, "positive": lambda x: torch.positive(x) * 2,
    "divide floor": lambda x: torch.divide(x, 0.3, rounding_mode="floor"), "safe_softmax": lambda x: torch.ops.aten._safe_softmax(x, 1),
}  # fmt: skip

PRODUCTS = {
    "dot": lambda x: x * torch.dot(x[0, 0, 0], x[0, 0, 1]), "vdot": lambda x: x * torch.vdot(x[0, 0, 0], x[0, 0, 1]),
    "mv": lambda x: x * torch.mv(x[0, 0], x[0, 1, 0]).unsqueeze(1), "vector on the left": lambda x: x[0, 0, :, 0] @ x,
    "vector on the right": lambda x: x @ x[0, 0, 0], "outer": lambda x: x * torch.outer(x[0, 0, :, 0], x[0, 0, 0]),
    "inner": lambda x: torch.inner(x, x[0, 0]), "tensordot": lambda x: torch.tensordot(x, x[0], ([1, 3], [0, 2])),
    "kron": lambda x: torch.kron(x, x[0, 0, :2, :2]), "addmv": lambda x: x + torch.addmv(x[0, 0, :, 0], x[0, 1], x[0, 2, 3], beta=0.5, alpha=2).unsqueeze(1),
    "addr": lambda x: x + torch.addr(x[0, 0], x[0, 1, :, 2], x[0, 2, 1], beta=0), "addbmm": lambda x:
    x + torch.addbmm(x[0, 0], x[0].tanh(), (x[0].mT @ x[0]).tanh()), "chain": lambda x: torch.linalg.multi_dot([x[0, 0].tanh(), x[0, 1].T.tanh(), x[0, 2].tanh()]) + x,
    "vecdot": lambda x: torch.linalg.vecdot(x, x * x, dim=1), "cross": lambda x: torch.cross(x, x.flip(2) * 2, dim=1),
    "linear of computed": lambda x: F.linear(x, x[0, 0] * 2, x[0, 0, :, 0]), "bilinear": lambda x:
    F.bilinear(x.tanh(), x.flip(1).tanh(), x[0, :, :5].tanh()), "cdist": lambda x: torch.cdist(x, x[:, :, :3] * 2), "cdist 1": lambda x:
    torch.cdist(x, x * 2, p=1), "dist": lambda x: x * torch.dist(x[0], x[0] * 2, 3), "linalg.norm": lambda x:
    torch.linalg.norm(x[0]) + x, "linalg.norm rows": lambda x: torch.linalg.norm(x, 3, dim=1), "matrix_norm": lambda x:
    torch.linalg.matrix_norm(x), "matrix_norm 1": lambda x: torch.linalg.matrix_norm(x[0], 1, keepdim=True) + x,
    "matrix_norm -inf": lambda x: torch.linalg.matrix_norm(x[0], -math.inf, (2, 0)) + x[:, :, :, 0], "diff": lambda x: x.diff(2, 2),
    "diff more": lambda x: x.diff(dim=1, prepend=x[:, :1], append=x * 2), "trapezoid": lambda x: torch.trapezoid(x, dx=0.3, dim=2),
    "trapezoid of points": lambda x: torch.trapezoid(x, x[0, 0, :, 0], dim=2), "cumulative_trapezoid": lambda x:
    torch.cumulative_trapezoid(x), "sum_to_size": lambda x: x.sum_to_size(3, 1, 5) + x, "count_nonzero": lambda x:
    torch.count_nonzero(x.relu(), (1, 2)) * 1.0, "nansum": lambda x: torch.nansum(x.log(), 1), "nanmean": lambda x:
    torch.nanmean(torch.cat([x, x.log()], 1), (1, 2), keepdim=True), "trace": lambda x: x * x[0, 0].trace(),
}  # fmt: skip

LOSSES = {
    "mse_loss": lambda x: F.mse_loss(x, x.flip(1)) + x, "l1_loss": lambda x: F.l1_loss(x, x.flip(1), reduction="sum") + x,
    "huber_loss": lambda x: F.huber_loss(x, x.flip(1), "none", 0.7), "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x.flip(1), beta=0.4) + x,
    "smooth_l1_loss 0": lambda x: F.smooth_l1_loss(x, x.flip(1), reduction="none", beta=0.0), "bce logits": lambda x:
    F.binary_cross_entropy_with_logits(x, x.flip(1), x[0], reduction="sum", pos_weight=x[0, 0]) + x,
    "kl_div": lambda x: F.kl_div(x, x.flip(1).relu(), reduction="none"), "kl_div log": lambda x: F.kl_div(x, x.flip(1), log_target=True, reduction="sum") + x,
    "poisson": lambda x: F.poisson_nll_loss(x, x.flip(1).abs() * 3, full=True, reduction="none"), "poisson plain": lambda x:
    F.poisson_nll_loss(x.abs(), x.flip(1), log_input=False) + x, "soft_margin": lambda x: F.soft_margin_loss(x, x.flip(1)) + x,
    "hinge": lambda x: F.hinge_embedding_loss(x, x.flip(1).sign(), 0.5) + x, "margin_ranking": lambda x:
    F.margin_ranking_loss(x, x.flip(1), x.sign(), 0.5) + x, "cosine_embedding": lambda x:
    F.cosine_embedding_loss(x[0, 0], x[0, 1], x[0, 2, :, 0].sign(), 0.2) + x, "triplet": lambda x:
    F.triplet_margin_loss(x, x.flip(1), x.flip(2), swap=True, reduction="none"), "nll": lambda x: F.nll_loss(x, _classes(x)) + x,
    "nll weights": lambda x: F.nll_loss(x, _classes(x), x[0, :, 0, 0].abs(), reduction="none"), "cross_entropy": lambda x:
    F.cross_entropy(x, _classes(x), reduction="none"), "cross_entropy weights": lambda x:
    F.cross_entropy(x, _classes(x), x[0, :, 0, 0].abs(), ignore_index=1, label_smoothing=0.2) + x,
    "cross_entropy sum": lambda x: F.cross_entropy(x, _classes(x), ignore_index=2, reduction="sum", label_smoothing=0.1) + x,
    "cross_entropy probabilities": lambda x: F.cross_entropy(x, x.flip(1).softmax(1), x[0, :, 0, 0].abs(), label_smoothing=0.1) + x,
    "multi_margin": lambda x: F.multi_margin_loss(x[0, 0], _classes(x[:1, :, 0].transpose(1, 2))[0, :1].expand(7), 2, 0.7) + x,
    "multi_margin weights": lambda x: F.multi_margin_loss(x[:, :, 0, 0], _classes(x)[:, 0, 0], weight=x[0, :, 0, 0], reduction="none"),
}  # fmt: skip

INDICES = {
    "gather": lambda x: x.gather(1, _classes(x).unsqueeze(1).expand(-1, 3, 7, 5)), "gather fewer": lambda x: x.gather(2, _classes(x).unsqueeze(1)[:, :, :4]),
    "take_along_dim": lambda x: x[0].take_along_dim(_classes(x)[:1] - 2, 1) + x, "take": lambda x: x[0].take(_classes(x) - 3),
    "index_fill": lambda x: x.index_fill(2, torch.tensor([1, -2]), 5.0), "isin": lambda x: torch.isin(_classes(x), torch.tensor([0, 2])) * 1.0,
    "isin not": lambda x: torch.isin(_classes(x), 2, invert=True) * 1.0, "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 2.0])),
    "bucketize right": lambda x: torch.bucketize(x.round(), torch.tensor([-1.0, 0.0, 2.0]), right=True, out_int32=True),
    "searchsorted": lambda x: torch.searchsorted(torch.tensor([[-1.0, 0.0, 2.0]] * 7), x[0, 0]) + x[:, :1, :, :],
    "one_hot": lambda x: F.one_hot(_classes(x), 4), "two indices": lambda x: x[:, torch.tensor([0, -1, 1]), torch.tensor([3, 2, -7])],
    "indices apart": lambda x: x[:, torch.tensor([[0], [2]]), :, torch.tensor([3, 2, -5])], "indices in front": lambda x:
    x[0][torch.tensor([0, 2]), torch.tensor([3, 2])] + x[:, :1, :2], "max of a number": lambda x: x + x[0, 0, 0, 0].max(0).values + x[0, 0, 0, 0].max(0).indices,
}  # fmt: skip

STACKS = {
    "atleast": lambda x: x + torch.atleast_1d(x[0, 0, 0, 0]) + torch.atleast_2d(x[0, 0, 0]) + torch.atleast_3d(x[0, 0, 0]).mT,
    "atleast all": lambda x: sum(torch.atleast_2d(x[0, 0, 0], x[0, 0])) + x, "hstack": lambda x: torch.hstack([x, x * 2]),
    "vstack": lambda x: torch.vstack([x[0, 0], x[0, 0, 0]]) + x[:, :, :1], "dstack": lambda x: torch.dstack([x, x * 2]),
    "column_stack": lambda x: torch.column_stack([x[0, 0, :, 0], x[0, 0]]) + x[:, :, :, :1], "block_diag": lambda x:
    torch.block_diag(x[0, 0], x[0, 0, 0], x[0, 0, 0, 0]) + x[:, :1, :1, :1], "meshgrid": lambda x: sum(torch.meshgrid(x[0, 0, :, 0], x[0, 0, 0], indexing="ij")) + x,
    "meshgrid xy": lambda x: sum(torch.meshgrid(x[0, 0, 0], x[0, 0, :, 0], indexing="xy")) + x, "cartesian_prod": lambda x:
    torch.cartesian_prod(x[0, 0, 0, :2], x[0, 0, :, 0]) + x[:, :, :1, :1], "hsplit": lambda x: x.hsplit(3)[1] + 1, "vsplit": lambda x:
    x[0].vsplit([1, 2])[1] + x, "dsplit": lambda x: x.dsplit([2, 5])[1] + 1, "fliplr": lambda x: x.fliplr(), "flipud": lambda x: x[0].flipud() + x,
    "rot90": lambda x: x.rot90(1, (2, 3)), "rot90 twice": lambda x: x.rot90(2, (3, 1)), "rot90 back": lambda x: x.rot90(-1, (1, 3)),
    "fftshift": lambda x: torch.fft.fftshift(x, (1, 2)), "ifftshift": lambda x: torch.fft.ifftshift(x, (2, 3)), "diagonal": lambda x:
    x.diagonal(1, 2, 3) + 1, "diagonal below": lambda x: x.diagonal(-2, 3, 1) + 1, "linalg.diagonal": lambda x: torch.linalg.diagonal(x, offset=-1) + 1,
    "diag": lambda x: x[0, 0].diag(-1) + x, "diag of a vector": lambda x: x[0, 0, 0].diag() + x[:, :, :5], "diag_embed": lambda x: x.diag_embed(1),
    "diag_embed dims": lambda x: x.diag_embed(-2, 1, 3), "diagflat": lambda x: x[0, 0, :2].diagflat() + x[:, :, :1, :1], "mH": lambda x: x.mH + 1,
    "adjoint": lambda x: x.adjoint() * 2, "view_copy": lambda x: torch.view_copy(x, (-1, 35)), "permute_copy": lambda x: torch.permute_copy(x, (0, 2, 1, 3)),
    "expand_copy": lambda x: torch.expand_copy(x[:, :1], (-1, 4, 7, 5)), "unsafe_chunk": lambda x: x.unsafe_chunk(2, 2)[1] * 2,
    "unbind_copy": lambda x: torch.unbind_copy(x, 1)[1] + 1, "split_copy": lambda x: torch.split_copy(x, 3, 2)[1] + 1,
    "eye": lambda x: x @ torch.eye(5, 4), "linspace": lambda x: x * torch.linspace(0, 1, 5), "tril_indices": lambda x: x[:, :, torch.tril_indices(3, 3)[0]],
}  # fmt: skip


def _classes(x):
    """Numbers from 0 to 2, one for each place of x[n, c, ..]."""
    return x[:, 0].abs().mul(1.3).long().remainder(3)


def _points(x):
    """Points for grid_sample, some outside of the image."""
    return x[:, :2, :, :4].permute(0, 2, 3, 1)


SAMPLES = {
    "grid_sample": lambda x: F.grid_sample(x, _points(x), align_corners=False),
    "grid_sample corners": lambda x: F.grid_sample(x, _points(x), padding_mode="border", align_corners=True),
    "grid_sample nearest": lambda x: F.grid_sample(x, _points(x), "nearest", align_corners=False),
    "conv3d whole": lambda x: torch.convolution(x.unsqueeze(1), torch.ones(2, 1, 2, 2, 2), None, [1] * 3, [1] * 3, [1] * 3, False, [0] * 3, 1),
}  # fmt: skip

LARGEST = {
    "adaptive max 1d": lambda x: F.adaptive_max_pool1d(x[:, 0], 1), "adaptive max 2d": lambda x: sum(F.adaptive_max_pool2d(x, (7, 1), True)),
    "adaptive max parts": lambda x: sum(F.adaptive_max_pool2d(x[:, :, :6, :4], (3, 2), True)), "aminmax": lambda x: sum(torch.aminmax(x, dim=1, keepdim=True)),
    "adaptive max uneven": lambda x: sum(F.adaptive_max_pool2d(x.round(), (3, 2), True)), "adaptive max larger": lambda x: sum(F.adaptive_max_pool2d(x, (9, 4), True)),
    "transposed 3d whole": lambda x: torch.convolution(x.unsqueeze(1), torch.ones(1, 2, 2, 2, 2), None, [2] * 3, [0] * 3, [1] * 3, True, [0] * 3, 1),
    "max_pool positions": lambda x: sum(F.max_pool2d(x.round(), 3, 2, 1, return_indices=True)), "max_pool1d positions": lambda x:
    sum(F.max_pool1d(x[:, 0], 2, 2, 1, ceil_mode=True, return_indices=True)), "max_pool of -inf": lambda x: sum(F.max_pool2d(x.round().relu().log(), 3, 1, 1, return_indices=True)),
    "max_pool dilated positions": lambda x: sum(F.max_pool2d(x, 2, 1, dilation=(2, 1), return_indices=True)),
    "max_pool positions of NaN": lambda x: F.max_pool2d(x.round().sqrt(), 3, 2, 1, return_indices=True)[1] * 1.0,
    "max_pool positions of pairs": lambda x: sum(F.max_pool2d(x.round(), 2, return_indices=True)), "max_pool of one": lambda x: sum(F.max_pool2d(x, 1, return_indices=True)),
    "max_pool large positions": lambda x: sum(F.max_pool2d(x.round().relu().log(), 7, 2, 3, return_indices=True)),
    "max_pool large positions of NaN": lambda x: F.max_pool2d(x.round().sqrt(), 7, 2, 3, return_indices=True)[1] * 1.0,
    "aminmax all": lambda x: sum(torch.aminmax(x[0])) + x,
}  # fmt: skip

FUNCTIONS = {
    k: (f, SHAPE)
    for part in (
        POINTWISE,
        REDUCTIONS,
        SHAPES,
        FORMULAS,
        PRODUCTS,
        LOSSES,
        INDICES,
        STACKS,
        SAMPLES,
        LARGEST,
    )
    for k, f in part.items()
}
CASES = {**LAYERS, **{k: (f, VOLUME) for k, f in VOLUMES.items()}, **FUNCTIONS}


def _inputs(shape):
    yield torch.randn(2, *shape)
    yield torch.randn(1, *shape) * 4
    yield torch.randn(0, *shape)
    if len(shape) == 3:
        yield torch.randn(2, *shape).contiguous(memory_format=torch.channels_last)
    yield torch.randn(*reversed(shape), 3).permute(*range(len(shape), -1, -1))


@pytest.mark.parametrize("function, shape", CASES.values(), ids=CASES.keys())
def test_op(function, shape):
    torch.manual_seed(0)  # so that no result depends on the tests before
    model = Model(function).eval()
    fast = sol.optimize(model, sol.input([0, *shape]), fullgraph=True)
    with torch.no_grad():
        for x in _inputs(shape):
            try:
                expected = model(x)
            except (RuntimeError, IndexError):
                # PyTorch refuses some ops on an empty batch, and view() of some strides.
                continue
            assert_equal(fast(x), expected, 3e-5)
    assert not sol.fallbacks(fast)


def test_special_values():
    """NaN and infinities give the same results as in PyTorch."""
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -1e-38]])
    for name, function in {**POINTWISE, **FORMULAS}.items():
        if name.startswith("gelu"):
            continue  # at infinity PyTorch's vector and scalar code differ
        model = Model(function).eval()
        fast = sol.optimize(model, sol.input([0, 7]), fullgraph=True)
        with torch.no_grad():
            got, expected = fast(x), model(x)
        assert torch.equal(got.isnan(), expected.isnan()), (name, got, expected)
        assert torch.equal(got.isinf(), expected.isinf()), (name, got, expected)


@pytest.mark.parametrize(
    "norm",
    [nn.LayerNorm(5), nn.GroupNorm(2, 6), nn.InstanceNorm2d(6), nn.RMSNorm(5)],
    ids=lambda norm: type(norm).__name__,
)
def test_norms_far_from_zero(norm):
    """The mean is much larger than the differences from it, so the sum of squares alone would have no digits."""
    fast = sol.optimize(norm.eval(), sol.input([0, 6, 7, 5]), fullgraph=True)
    x = torch.randn(2, 6, 7, 5) * 4 + 100
    with torch.no_grad():
        got, exact = fast(x), copy.deepcopy(norm).double()(x.double()).float()
    assert_equal(got, exact, 2e-5)


def test_circular():
    """PyTorch does not export this for an empty batch."""
    model = Model(lambda x: F.pad(x, (1, 2, 3, 0), mode="circular")).eval()
    fast = sol.optimize(model, sol.input([0, *SHAPE]), fullgraph=True)
    with torch.no_grad():
        for n in (2, 1, 3):
            x = torch.randn(n, *SHAPE)
            assert_equal(fast(x), model(x), 0)


def test_pixel_unshuffle():
    """PyTorch gives an empty batch another shape."""
    model = Model(nn.PixelUnshuffle(2)).eval()
    fast = sol.optimize(model, sol.input([0, 3, 4, 6]))
    with torch.no_grad():
        for n in (2, 1, 0):
            x = torch.randn(n, 3, 4, 6)
            assert_equal(fast(x), model(x))
    assert not sol.fallbacks(fast)


def test_single_sample_without_batch():
    """Layers also accept inputs without a batch dimension."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2)).eval()
    fast = sol.optimize(model, torch.zeros(3, 9, 8), fullgraph=True)
    x = torch.randn(3, 9, 8)
    with torch.no_grad():
        assert_equal(fast(x), model(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.gather(0, i) + 1, lambda x, i: x.take(i * 4), lambda x, i: x[i, i] + 1, lambda x, i: F.nll_loss(x, i[0]) + x,
        lambda x, i: F.one_hot(i, 3) + x[:1, :1], lambda x, i: x.index_fill(0, i[0], 2.0) + 1,
    ],
    ids=["gather", "take", "index", "nll", "one_hot", "index_fill"],
)  # fmt: skip
def test_index_out_of_range(function):
    """An index that is out of range is an error, also where the sum of positions is a row of the table."""

    class Net(nn.Module):
        def forward(self, x, i):
            return function(x, i)

    model, x = Net().eval(), torch.randn(3, 3)
    good, bad = torch.tensor([[0, 2, 1]]), torch.tensor([[0, 3, 1]])
    fast = sol.optimize(model, x, good, fullgraph=True)
    with torch.no_grad():
        assert_equal(fast(x, good), model(x, good))
        for run in model, fast:
            with pytest.raises((IndexError, RuntimeError)):
                run(x, bad)

"""Quantized networks as PT2E writes them: operators of quantized_decomposed around conv and linear."""

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import nn

import sol.pytorch as sol

Q = torch.ops.quantized_decomposed


class Quantized(nn.Module):
    """A layer whose input, weight and result are quantized. `dynamic`: the input by its own range."""

    def __init__(self, layer, zero=0, dynamic=False, relu=True):
        super().__init__()
        w = layer.weight.detach()
        scale = w.flatten(1).abs().amax(1) / 127
        w = (w / scale.reshape(-1, *[1] * (w.dim() - 1))).round().to(torch.int8)
        self.register_buffer("w", w)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", torch.full(scale.shape, zero))
        self.bias, self.dynamic, self.relu = nn.Parameter(layer.bias.detach()), dynamic, relu
        self.pad = getattr(layer, "padding", None)

    def forward(self, x):
        if self.dynamic:
            range = Q.choose_qparams.tensor(x, 0, 255, 0.001, torch.uint8)
            x = Q.quantize_per_tensor.tensor(x, *range, 0, 255, torch.uint8)
            x = Q.dequantize_per_tensor.tensor(x, *range, 0, 255, torch.uint8)
        else:
            x = Q.quantize_per_tensor(x, 0.03, 120, 0, 255, torch.uint8)
            x = Q.dequantize_per_tensor(x, 0.03, 120, 0, 255, torch.uint8)
        w = Q.dequantize_per_channel(self.w, self.scale, self.zero, 0, -128, 127, torch.int8)
        if self.pad is None:
            y = nn.functional.linear(x, w, self.bias)
        else:
            y = nn.functional.conv2d(x, w, self.bias, padding=self.pad)
        y = y.relu() if self.relu else y
        if not self.dynamic:
            y = Q.quantize_per_tensor(y, 0.02, 3, 0, 255, torch.uint8)
            y = Q.dequantize_per_tensor(y, 0.02, 3, 0, 255, torch.uint8)
        return y


def make(shape, **options):
    torch.manual_seed(0)
    layer = nn.Linear(shape[-1], 21) if len(shape) < 4 else nn.Conv2d(shape[1], 21, 3, padding=1)
    return Quantized(layer, **options).eval(), torch.randn(shape)


def close(y, expected, step):
    """Results are exact up to the last rounding: few values may be one step apart."""
    difference = (y - expected).abs()
    assert difference.max() <= step * 1.01
    assert (difference > step / 2).float().mean() < 0.01


@pytest.mark.parametrize("shape", [(5, 37), (2, 3, 64), (2, 3, 9, 7), (1, 32, 14, 14)])
@pytest.mark.parametrize("options", [{}, {"relu": False}, {"dynamic": True}])
def test_quantized(shape, options):
    net, x = make(shape, **options)
    with torch.no_grad():
        expected = net(x)
        y = torch.compile(net, backend="sol")(x)
    close(y, expected, 1e-4 if options.get("dynamic") else 0.02)


def test_kernel_is_chosen():
    net, x = make((5, 37))
    fast = sol.optimize(net, [x])
    with torch.no_grad():
        close(fast(x), net(x), 0.02)
    assert not sol.host_nodes(fast)


def test_zero_point_of_a_weight():
    """Another zero point than 0 is refused when it is known: PyTorch computes."""
    net, x = make((5, 37), zero=2)
    fast = torch.compile(net, backend="sol")
    with torch.no_grad():
        assert torch.equal(fast(x), net(x)) or torch.allclose(fast(x), net(x), atol=1e-5)


@pytest.mark.parametrize("shape", [(5, 37), (1, 32, 14, 14)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_exported_module(shape, dynamic):
    """PT2E gives such modules: torch.export has made them, and they cannot be put into another mode."""
    net, x = make(shape, dynamic=dynamic)
    module = torch.export.export(net, (x,)).module()
    module.graph.lint()
    changed = torch.fx.GraphModule(module, module.graph)
    for name in ("_in_spec", "_out_spec"):
        setattr(changed, name, getattr(module, name))
    with torch.no_grad():
        for part in (module, changed):
            part.training = True
        fast = sol.optimize(changed, x)
        close(fast(x), net(x), 1e-4 if dynamic else 0.02)
    assert not sol.fallbacks(fast) and not sol.host_nodes(fast)


@pytest.mark.parametrize("dynamic", [False, True])
def test_pt2e(dynamic):
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).eval()
    x = torch.randn(4, 64)
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    prepared = prepare_pt2e(torch.export.export(net, (x,)).module(), quantizer)
    prepared(x)
    converted = convert_pt2e(prepared)
    with torch.no_grad():
        expected = converted(x)
        for fast in (sol.optimize(converted, x), torch.compile(converted, backend="sol")):
            close(fast(x), expected, 0.02)
    assert not sol.fallbacks(sol.optimize(converted, x))

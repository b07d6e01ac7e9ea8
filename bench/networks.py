"""The networks for SOL's tests and measurements, with random weights from a fixed seed.

    net = networks.build("resnet50")            net.model, net.inputs(batch), net.is_image

Most definitions come from torchvision. tools/torchvision_cpu.py, which `make` runs, makes it work with PyTorch's CPU build.
"""

import dataclasses

import torch
from torch import nn

try:
    import torchvision.models
except RuntimeError as error:
    raise ImportError("python tools/torchvision_cpu.py makes torchvision work here") from error

IMAGE_NETS = [
    "alexnet",
    *("squeezenet1_0", "squeezenet1_1"),
    *(f"vgg{depth}{suffix}" for suffix in ("", "_bn") for depth in (11, 13, 16, 19)),
    *(f"resnet{depth}" for depth in (18, 34, 50, 101, 152)),
    *(f"densenet{depth}" for depth in (121, 161, 169, 201)),
    "mobilenet_v2",
    *(f"mnasnet{width}" for width in ("0_5", "0_75", "1_0", "1_3")),
    *(f"shufflenet_v2_x{width}" for width in ("0_5", "1_0", "1_5", "2_0")),
    *("resnext50_32x4d", "resnext101_32x8d", "wide_resnet50_2", "wide_resnet101_2"),
    *("googlenet", "inception_v3"),
]
NAMES = [
    *IMAGE_NETS,
    "mobilenet_v1",
    "mlp8192",
    "linear_regression",
    "logistic_regression",
    "lstm",
    "gru",
    "bert",
    "gpt2",
]
QUICK = ["squeezenet1_1", "resnet18", "shufflenet_v2_x0_5", "mobilenet_v2", "densenet121"]


@dataclasses.dataclass
class Network:
    """A network and the shape of its input."""

    name: str
    model: nn.Module
    shape: tuple  # of one sample
    n_words: int = 0  # > 0: the input has int64 indices of words, below n_words

    @property
    def is_image(self):
        return len(self.shape) == 3

    def inputs(self, batch, shape=None, seed=1):
        """Returns a tensor [batch, *shape]. With the same seed, batches of different sizes have different samples."""
        generator = torch.Generator().manual_seed(seed)
        size = (batch, *(shape or self.shape))
        if self.n_words:
            return torch.randint(0, self.n_words, size, generator=generator)
        return torch.randn(size, generator=generator)


def separable(inputs, outputs, stride):
    """Returns the layers of MobileNetV1's block: a depthwise 3x3 convolution, then a 1x1 convolution."""
    return [
        nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
        *(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        *(nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)),
    ]


def mobilenet_v1():
    layers = [
        nn.Conv2d(3, 32, 3, 2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
    ]
    widths = [32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024]
    shrinking = {2, 4, 6, 12}
    for i in range(1, len(widths)):
        layers += separable(widths[i - 1], widths[i], 2 if i in shrinking else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


def mlp(width):
    hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, width))


class LastStep(nn.Module):
    """A recurrent network with a linear layer on the output of its last step."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(512, 1000)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class FirstOutput(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, words):
        return self.model(words, return_dict=False)[0]


def bert():
    from transformers import BertConfig, BertModel

    return FirstOutput(BertModel(BertConfig()))


def gpt2():
    from transformers import GPT2Config, GPT2Model

    return FirstOutput(GPT2Model(GPT2Config(use_cache=False)))


# name: (constructor, shape of a sample, n_words)
OTHERS = {
    "mobilenet_v1": (mobilenet_v1, (3, 224, 224), 0),
    "mlp8192": (lambda: mlp(8192), (8192,), 0),
    "linear_regression": (lambda: nn.Linear(784, 1), (784,), 0),
    "logistic_regression": (lambda: nn.Sequential(nn.Linear(784, 10), nn.Sigmoid()), (784,), 0),
    "lstm": (lambda: LastStep(nn.LSTM(512, 512, 2, batch_first=True)), (64, 512), 0),
    "gru": (lambda: LastStep(nn.GRU(512, 512, 2, batch_first=True)), (64, 512), 0),
    "bert": (bert, (128,), 30000),
    "gpt2": (gpt2, (128,), 30000),
}


def construct(name):
    """Returns the Network with new weights. Raises KeyError or AttributeError for an unknown name."""
    if name in OTHERS:
        make, shape, n_words = OTHERS[name]
        return Network(name, make(), shape, n_words)
    extra = (
        {"aux_logits": False, "init_weights": False}
        if name in ("googlenet", "inception_v3")
        else {}
    )
    side = 299 if name == "inception_v3" else 224
    return Network(name, getattr(torchvision.models, name)(weights=None, **extra), (3, side, side))


def give_statistics(net):
    """Gives each BatchNorm random scales and shifts, and the mean and variance of actual activations.

    A new BatchNorm is almost the identity, so a test would not detect a compiler that drops it.
    """
    norms = [m for m in net.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    generator = torch.Generator().manual_seed(2)
    momentum = norms[0].momentum
    for norm in norms:
        norm.weight.uniform_(0.5, 1.5, generator=generator)
        norm.bias.uniform_(-0.5, 0.5, generator=generator)
        norm.momentum = None  # the average over all batches: one batch sets the statistics
    net.model.eval()
    for norm in norms:
        norm.train()
    net.model(net.inputs(4))
    for norm in norms:
        norm.momentum = momentum


@torch.no_grad()
def build(name):
    """Returns the Network in eval mode. Raises KeyError or AttributeError for an unknown name."""
    torch.manual_seed(0)
    net = construct(name)
    give_statistics(net)
    net.model.eval()
    return net

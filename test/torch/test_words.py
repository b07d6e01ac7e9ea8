"""What networks of words do: objects as results, masks, sizes as numbers and positions, and nn.Transformer with all its masks."""

import collections
import dataclasses

import pytest
import torch
from torch import nn

import sol.pytorch as sol

E, HEADS = 16, 4


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def assert_native(fast, model, *calls):
    """Compares calls with eager ones. Returns SOL's last result."""
    with torch.no_grad():
        for inputs in calls:
            found, expected = fast(*inputs), model(*inputs)
            torch.testing.assert_close(found, expected, equal_nan=True)
    assert not sol.fallbacks(fast) and not sol.host_nodes(fast) and not sol.graphs(fast)
    return found


# ---- Results ----


class Layer:
    """As a layer of a cache: an object with tensors and constants."""

    def __init__(self, keys, name):
        self.keys, self.name, self.more = keys, name, [keys + 1, {"twice": keys * 2}]
        self.dtype = keys.dtype


class Cache:
    def __init__(self):
        self.layers = []


def make_cache(self, x):
    cache = Cache()
    for _ in range(2):
        x = self.linear(x)
        cache.layers.append(Layer(x, self.name))
    return x, cache


def test_objects_that_a_forward_makes_are_made_by_each_call():
    model = Function(make_cache).eval()
    model.name = "first"
    fast = sol.optimize(model, sol.input([0, 4]))
    x = torch.randn(3, 4)
    with torch.no_grad():
        (_, one), (_, other), (_, expected) = fast(x), fast(x), model(x)
    assert type(one) is Cache and one is not other and one.layers[0] is not other.layers[0]
    for ours, theirs in zip(one.layers, expected.layers, strict=True):
        assert vars(ours).keys() == vars(theirs).keys() and ours.name == "first"
        torch.testing.assert_close(ours.more[1]["twice"], theirs.more[1]["twice"])
    model.name = "second"
    with torch.no_grad():
        assert fast(x)[1].layers[0].name == "second"
    assert not sol.fallbacks(fast)


def test_objects_that_exist_before_the_call_are_returned_themselves():
    model = Function(lambda self, x: (self.linear(x), self.kept)).eval()
    model.kept = Layer(torch.ones(2), "kept")
    fast = sol.optimize(model, sol.input([0, 4]))
    with torch.no_grad():
        assert fast(torch.ones(2, 4))[1] is model.kept


def test_an_object_that_occurs_twice_stays_one_object():
    def make(self, x):
        layer = Layer(self.linear(x), "")
        return layer, [layer]

    fast = sol.optimize(Function(make).eval(), sol.input([0, 4]))
    with torch.no_grad():
        layer, (same,) = fast(torch.ones(2, 4))
    assert layer is same


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """A result that is a dict and a dataclass, and writes its entries when it is made."""

    hidden: torch.Tensor
    pooled: torch.Tensor | None = None

    def __post_init__(self):
        for name in "hidden", "pooled":
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


class Switch:
    flag = False


def make_output(self, x):
    self.switch.flag = True
    output = Output(hidden=self.linear(x))
    output["pooled"] = output.pooled = x.mean(1)
    self.switch.flag = False
    return output


def test_writes_into_a_new_result_beside_state_that_is_restored():
    model = Function(make_output).eval()
    model.switch = Switch()
    fast = sol.optimize(model, sol.input([0, 4]))
    x = torch.randn(2, 4)
    with torch.no_grad():
        found, expected = fast(x), model(x)
    assert type(found) is Output and list(found) == list(expected)
    torch.testing.assert_close(found.pooled, expected["pooled"])
    assert not sol.fallbacks(fast)


def test_sizes_in_results():
    model = Function(lambda self, x: {"y": x * 2, "n": x.shape[0], "sizes": [x.shape[1] + 1]})
    fast = sol.optimize(model.eval(), sol.input([0, 0]))
    for n, k in (3, 4), (1, 5), (2, 9):
        with torch.no_grad():
            found = fast(torch.ones(n, k))
        assert found["n"] == n and found["sizes"] == [k + 1] and type(found["n"]) is int
    assert not sol.fallbacks(fast)


# ---- Sizes ----

OPEN = {
    "number": lambda self, x, i: x * x.shape[0] + x.shape[1],
    "integer": lambda self, x, i: i * x.shape[0],
    "index": lambda self, x, i: x[i, i % 2],
    "gather": lambda self, x, i: torch.gather(x, 1, i[None] % 2),
    "gather rows": lambda self, x, i: torch.gather(x, 0, (i[:, None] % 2).expand(-1, 2)),
    "take": lambda self, x, i: x.take(i),
    "mask": lambda self, x, i: (x > 0)[
        torch.arange(x.shape[0])[:, None, None], torch.arange(x.shape[1])[None, None, :]
    ],
    "row of a table": lambda self, x, i: x[:, :1] + self.table[x.shape[1]],
}


@pytest.mark.parametrize("name", OPEN)
def test_open_sizes_as_numbers_and_positions(name):
    model = Function(OPEN[name]).eval()
    model.register_buffer("table", torch.randn(1024, 1))
    fast = sol.optimize(model, sol.input([0, 0]), sol.input([5], dtype=torch.int64))
    index = torch.tensor([0, 1, -1, 1, -2])
    assert_native(
        fast, model, *[(torch.randn(n, k), index) for n, k in [(4, 7), (3, 9), (2, 4), (9, 2)]]
    )
    assert sol.recompiles(fast) == 0


@pytest.mark.parametrize("bad", [(4, 0), (-5, 0), (0, 7), (0, -8)])
def test_a_position_outside_of_an_open_dim_is_an_error(bad):
    fast = sol.optimize(
        Function(lambda self, x, i, j: x[i, j]).eval(),
        *[sol.input([0, 0]), *[sol.input([2], dtype=torch.int64)] * 2],
    )
    with torch.no_grad(), pytest.raises(IndexError, match="out of bounds"):
        fast(torch.ones(4, 7), *(torch.tensor([0, i]) for i in bad))


# ---- Rest ----


def test_requires_grad_that_is_set_for_training():
    def train(self, x):
        y = self.linear(x)
        if self.training:
            y.requires_grad = True
        return y * 2

    model = Function(train).eval()
    fast = sol.optimize(model, sol.input([0, 4]))
    assert_native(fast, model, (torch.randn(2, 4),))


def test_a_constant_without_elements():
    def join(self, x):
        return torch.cat([torch.tensor([]), self.linear(x)], dim=-2)

    model = Function(join).eval()
    assert_native(sol.optimize(model, sol.input([0, 3, 4])), model, (torch.randn(2, 3, 4),))


@pytest.mark.parametrize("dim", [None, 0, 1, 2, -1])
def test_weight_norms(dim):
    weight_norm = nn.utils.parametrizations.weight_norm
    model = weight_norm(nn.Conv1d(4, 6, 3), dim=dim).eval()
    assert_native(sol.optimize(model, sol.input([0, 4, 9])), model, (torch.randn(2, 4, 9),))


def test_questions_for_an_export_have_the_same_answer_in_both_steps_of_a_capture():
    def ask(self, x):
        return x * (self.scale if torch.compiler.is_exporting() else 1.0) + self.linear(x)

    model = Function(ask).eval()
    model.scale = 1.0
    fast = sol.optimize(model, sol.input([0, 4]))
    x = torch.ones(2, 4)
    with torch.no_grad():
        before = fast(x)
        model.scale = 2.0
        assert torch.equal(fast(x), before + 1)


# ---- nn.Transformer ----

CAUSAL = nn.Transformer.generate_square_subsequent_mask(6)
BOOLS = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
LEFT = torch.zeros(2, 6, dtype=torch.bool)
LEFT[1, 4:] = True
MIXED = LEFT.clone()
MIXED[0, 2] = True
WHOLE = LEFT.clone()
WHOLE[0] = True


class Keywords(nn.Module):
    """Passes the last inputs by keyword."""

    def __init__(self, model, *names, **constants):
        super().__init__()
        self.model, self.names, self.constants = model, names, constants

    def forward(self, *inputs):
        n = len(inputs) - len(self.names)
        named = dict(zip(self.names, inputs[n:]))
        return self.model(*inputs[:n], **named, **self.constants)


def sequences(batch_first, length=6):
    return torch.randn(2, length, E) if batch_first else torch.randn(length, 2, E)


def check(model, *inputs):
    model = model.eval()
    return assert_native(sol.optimize(model, *inputs), model, inputs)


def encoder(batch_first=True, norm_first=False, norm=None, **options):
    layer = nn.TransformerEncoderLayer(E, HEADS, 32, batch_first=batch_first, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, norm, **options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("masks", [("mask",), ("src_key_padding_mask",), ("mask", "both")])
@pytest.mark.parametrize("batch_first, norm_first", [(True, False), (False, True)])
def test_encoders_with_masks(masks, batch_first, norm_first):
    masks = [name.replace("both", "src_key_padding_mask") for name in masks]
    model = encoder(batch_first, norm_first, nn.LayerNorm(E))
    values = {"mask": CAUSAL, "src_key_padding_mask": LEFT}
    check(Keywords(model, *masks), sequences(batch_first), *(values[name] for name in masks))


# A sample that is padding only is NaN in PyTorch's fast kernel and not in the others, so it is compared with nested tensors only.
PADDINGS = [(LEFT, True), (LEFT, False), (MIXED, True), (MIXED, False), (WHOLE, True)]


@pytest.mark.parametrize("padding, nested", PADDINGS)
def test_padding_of_an_encoder_has_the_values_of_eager_calls(padding, nested):
    model = encoder(norm=nn.LayerNorm(E), enable_nested_tensor=nested)
    check(Keywords(model, "src_key_padding_mask"), sequences(True), padding)


def test_an_encoder_of_any_length():
    model = Keywords(encoder(), "src_key_padding_mask").eval()
    fast = sol.optimize(model, sol.input([0, 0, E]), sol.input([0, 0], dtype=torch.bool))

    def call(b, n):
        return torch.randn(b, n, E), torch.arange(n).expand(b, n) > torch.arange(b)[:, None] + 3

    assert_native(fast, model, call(2, 6), call(1, 5), call(4, 9))


def test_a_capture_leaves_the_functions_of_torch_as_they_were():
    before = nn.TransformerEncoder.forward.__code__
    check(encoder(), sequences(True))
    assert nn.TransformerEncoder.forward.__code__ is before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch_first, norm_first", [(True, False), (False, True)])
def test_whole_transformers(batch_first, norm_first):
    model = nn.Transformer(E, HEADS, 1, 1, 32, batch_first=batch_first, norm_first=norm_first)
    names = ("tgt_mask", "src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask")
    source, target = sequences(batch_first, 5), sequences(batch_first)
    check(Keywords(model, *names), source, target, CAUSAL, LEFT[:, 1:], LEFT, LEFT[:, 1:])
    check(Keywords(model, "tgt_mask", tgt_is_causal=True), source, target, CAUSAL)


ATTENTION = [
    {}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 12, "vdim": 10},
    {"batch_first": False},
]  # fmt: skip


@pytest.mark.parametrize("options", ATTENTION, ids=str)
@pytest.mark.parametrize("weights", ["no", "all"])
def test_multi_head_attention(options, weights):
    model = nn.MultiheadAttention(E, HEADS, **{"batch_first": True, **options})
    shape = (2, 5) if model.batch_first else (5, 2)
    wanted = {"need_weights": weights != "no", "average_attn_weights": weights == "mean"}
    inputs = (sequences(model.batch_first), torch.randn(*shape, model.kdim))
    masks = Keywords(model, "key_padding_mask", "attn_mask", **wanted)
    check(masks, *inputs, torch.randn(*shape, model.vdim), LEFT[:, 1:], BOOLS[:, 1:])

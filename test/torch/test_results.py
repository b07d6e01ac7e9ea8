"""Results other than tensors: each call returns a new object that is equal to PyTorch's result."""

import collections
import dataclasses
import enum

import pytest
import torch
from conftest import assert_equal

import sol.pytorch as sol

Pair = collections.namedtuple("Pair", "a b")


class Mode(enum.Enum):
    fast = 1


@dataclasses.dataclass
class Output:
    y: torch.Tensor
    n: int = 3


class Held:
    """An object of a class that SOL does not support."""

    def __init__(self, y):
        self.y = y

    def __eq__(self, other):
        return torch.equal(self.y, other.y)


class Named(dict):
    pass


class Items(list):
    pass


class Model(torch.nn.Module):
    """``result_of(self, x, y)`` with y = relu(x)."""

    def __init__(self, result_of):
        super().__init__()
        self.result_of = result_of
        self.k, self.names, self.held = 2, ["a"], Held(torch.ones(1))

    def forward(self, x):
        return self.result_of(self, x, torch.relu(x))


def more_than_fields(s, x, y):
    output = Output(y)
    output.more = x * 2
    return output


def more_than_items(s, x, y):
    output = Named(y=y)
    output.more = x * 2
    return output


# SOL runs these forwards.
BUILT = {
    "nested": lambda s, x, y: {"a": [y, {"b": (x * 2, None, 3.5)}]},
    "dataclass": lambda s, x, y: Output(y),
    "named tuple": lambda s, x, y: Pair(y, 3),
    "ordered": lambda s, x, y: collections.OrderedDict(b=y, a=x * 2),
    "simple": lambda s, x, y: (y, "text", b"bytes", 1 + 2j, True, Mode.fast, x.dtype, x.device),
    "twice": lambda s, x, y: (y, [y]),
    "known sizes": lambda s, x, y: (y, x.shape[1:]),
    "size": lambda s, x, y: (y, x.shape[0]),
    "class": lambda s, x, y: (y, Held),
    "object": lambda s, x, y: (y, Held(y * 2)),
    "object alone": lambda s, x, y: Held(y),
    "more than fields": more_than_fields,
}

# PyTorch runs these forwards.
OTHERS = {
    "nothing": lambda s, x, y: None,
    "only a number": lambda s, x, y: 3,
    "empty": lambda s, x, y: [],
    "sizes": lambda s, x, y: (y, x.shape),
    "the model's object": lambda s, x, y: (y, s.held),
    "list of its own kind": lambda s, x, y: (y, Items([y])),
    "dict with a default": lambda s, x, y: collections.defaultdict(list, y=y),
    "more than items": more_than_items,
    "set": lambda s, x, y: (y, {1, 2}),
    "deque": lambda s, x, y: (y, collections.deque([1])),
    "generator": lambda s, x, y: (y * i for i in range(2)),
    "values": lambda s, x, y: {"y": y}.values(),
    "function": lambda s, x, y: (y, lambda: x),
}


def same(got, expected):
    """Asserts that two results have equal types and values, also in nested objects."""
    assert type(got) is type(expected)
    if isinstance(got, torch.Tensor):
        assert_equal(got, expected)
    elif isinstance(got, dict):
        assert list(got) == list(expected)
        same(list(got.values()), list(expected.values()))
        same(vars(got), vars(expected)) if hasattr(got, "__dict__") else None
    elif isinstance(got, (list, tuple, collections.deque)):
        assert len(got) == len(expected)
        for a, b in zip(got, expected):
            same(a, b)
    elif isinstance(got, (Held, Output)):
        same(vars(got), vars(expected))
    elif hasattr(got, "__next__") or "dict_values" in type(got).__name__:
        same(list(got), list(expected))
    elif callable(got) and not isinstance(got, type):
        same(got(), expected())
    else:
        assert got == expected


@pytest.mark.parametrize("name", [*BUILT, *OTHERS])
def test_results(name):
    result_of = {**BUILT, **OTHERS}[name]
    fast = sol.optimize(Model(result_of).eval(), sol.input([0, 4]))
    with torch.no_grad():
        for n in (2, 1, 3, 2):
            x = torch.randn(n, 4)
            same(fast(x), fast._original(x))
    assert (sum(sol.fallbacks(fast).values()) > 0) == (name in OTHERS), sol.fallbacks(fast)


@pytest.mark.parametrize("name", BUILT)
def test_results_are_new(name):
    """Each call returns new objects, so a caller may change them."""
    fast, x = sol.optimize(Model(BUILT[name]).eval(), sol.input([0, 4])), torch.randn(2, 4)
    with torch.no_grad():
        a, b = fast(x), fast(x)
    assert a is not b


def test_what_is_passed_on_is_read():
    """A number or a list of the model that a forward only returns is guarded, too."""
    model = Model(lambda s, x, y: (y, s.k, [s.names])).eval()
    fast, x = sol.optimize(model, sol.input([0, 4])), torch.randn(2, 4)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: setattr(model, "k", 5),
            lambda: model.names.append("b"),
        ):
            change()
            same(fast(x), model(x))
    assert not sol.fallbacks(fast)

"""`python -m sol.bench`: the functions, classes and names of networks that it takes."""

import pytest
from conftest import give_module

from sol.bench import target


def test_target_of_a_function(nets):
    found = target.load(f"{nets}:two", 5)
    assert [tuple(x.shape) for x in found.inputs] == [(5, 3), (5, 3)]
    assert found.batch == 5 and not found.is_image and not found.model.training


def test_target_of_a_module_with_a_shape(nets):
    found = target.load(f"{nets}:alone", 2, shape=(3, 8, 8))
    assert tuple(found.inputs[0].shape) == (2, 3, 8, 8) and found.is_image
    with pytest.raises(target.BadTarget, match="--shape"):
        target.load(f"{nets}:alone", 2)


MAKERS = """
import functools, torch

def net(n):
    return torch.nn.Linear(4, 2), torch.ones(n, 4)

def by_position(b):
    return net(b)

def by_either(batch):
    return net(batch)

def positional_only(batch, /):
    return net(batch)

def by_name(*, batch):
    return net(batch)

def with_default(batch=7):
    return net(batch)

def more_with_defaults(n, scale=2.0, *rest, **options):
    assert scale == 2.0 and not rest and not options
    return net(n)

by_partial = functools.partial(lambda scale, n: net(n), 2.0)

class ByCall:
    def __call__(self, size):
        return net(size)

by_call = ByCall()

def alone(width=4):
    return torch.nn.Linear(width, 2)

class Alone(torch.nn.Linear):
    def __init__(self, width):
        super().__init__(width, 2)

def too_many(batch_size, device):
    return net(batch_size)
"""


@pytest.fixture
def makers(tmp_path):
    yield from give_module(tmp_path / "makers.py", MAKERS)


@pytest.mark.parametrize(
    "name",
    "by_position by_either positional_only by_name with_default more_with_defaults by_partial by_call".split(),
)
def test_target_whatever_its_argument_is_called(makers, name):
    assert target.load(f"{makers}:{name}", 5).batch == 5


def test_target_that_is_not_called_with_the_batch(makers):
    assert target.load(f"{makers}:alone", 5, shape=(4,)).model.in_features == 4
    for name, words in (("Alone", "needs width"), ("too_many", "needs batch_size, device")):
        with pytest.raises(target.BadTarget, match=words):
            target.load(f"{makers}:{name}", 5, shape=(4,))


def test_target_on_a_list(nets):
    assert target.list_names(nets) == ["tiny"]
    assert tuple(target.load("tiny", 3, nets).inputs[0].shape) == (3, 4)


@pytest.mark.parametrize(
    "spec, reason",
    [
        ("{}:three", "no function three"),
        ("{}:number", "no function number"),
        ("{}:text", "str instead of"),
        ("nowhere.py:net", "no file nowhere.py"),
        ("no_such_module:net", "no_such_module"),
        ("large", "not on the list"),
    ],
)
def test_bad_targets(nets, spec, reason):
    with pytest.raises(target.BadTarget, match=reason):
        target.load(spec.format(nets), 1, nets)


def test_name_without_a_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(target.BadTarget, match="module:function"):
        target.load("resnet50", 1)
    assert target.list_names(None) == []

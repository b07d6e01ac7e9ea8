"""Forwards that depend on Python state, for test_python_state.py: what each one reads or writes, and how the test changes it."""

import collections
import contextvars
import dataclasses
import enum
import functools
import itertools
import math
import os
import random
import sys
import threading
import time
import types
import warnings

import numpy
import torch
from torch import nn

SCALE = 2.0
TABLE = {"k": 2.0}
VALUES = [2.0]
TENSOR = torch.tensor(2.0)
OBJECT = types.SimpleNamespace(k=2.0)
CONTEXT = contextvars.ContextVar("factor", default=2.0)
LOCAL = threading.local()
LOCAL.k = 2.0


class Mode(enum.Enum):
    two = 2.0
    three = 3.0


class Two:
    k = 2.0


class Five:
    k = 5.0


class Derived(Two):
    pass


class Meta(type):
    k = 2.0


class WithMeta(metaclass=Meta):
    pass


class Slots:
    __slots__ = ("k",)

    def __init__(self):
        self.k = 2.0


@dataclasses.dataclass
class Options:
    k: float = 2.0
    inner: dict = dataclasses.field(default_factory=lambda: {"k": 2.0})


class Base(nn.Module):
    of_base = 2.0


class State(Base):
    """``forward_of(self, y)`` gets the output of a layer. All other attributes are for it to read or write."""

    of_class = 2.0
    hidden = 2.0

    def __init__(self, forward_of):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.forward_of = forward_of
        self.previous, self.n, self.log, self.mode = None, 0.0, [], Mode.two
        self.cfg, self.items, self.ns = {"k": 2.0}, [2.0], types.SimpleNamespace(k=2.0)
        self.nested, self.pair, self.names = {"a": [{"k": 2.0}]}, ([2.0],), {"a"}
        self.queue, self.options, self.slots = collections.deque([1.0]), Options(), Slots()
        self.counts = collections.defaultdict(int)
        self.loose = [nn.Linear(4, 4)]
        self.of_two, self.of_derived = Two(), Derived()
        self.ordered = collections.OrderedDict(a=2.0, b=5.0)
        self.twin = self.items
        self.tensors = (torch.tensor(2.0),)
        self.plain = torch.tensor(2.0)
        self.register_buffer("buffer", torch.tensor(2.0))
        self.partial = functools.partial(torch.mul, other=2.0)
        self.array, self.scalar = numpy.array([2.0]), numpy.float32(2)
        self.random, self.ticks = random.Random(0), itertools.count()

    @property
    def size(self):
        return self.hidden

    def times(self, y):
        return y * self.hidden

    def forward(self, x):
        return self.forward_of(self, self.conv(x))


def helper(y, factor=[2.0]):  # noqa: B006, it is what is tested
    return y * SCALE * factor[0]


helper.k = 2.0


def make_counter():
    n = 2.0

    def get():
        return n

    def put(value):
        nonlocal n
        n = value

    return get, put


get_cell, put_cell = make_counter()


def missing_key(s, y):
    try:
        return y * s.cfg["missing"]
    except KeyError:
        return y


def missing_attribute(s, y):
    try:
        return y * s.missing
    except AttributeError:
        return y


def each(s, y):
    for _, value in sorted(s.cfg.items()):
        y = y * value
    return y


def first_key(s, y):
    return y * (2.0 if next(iter(s.cfg)) == "k" else 3.0)


def put_global(name, value):
    globals()[name] = value


# name: (the forward, applied to the layer's output; a function that changes the state that it reads)
READS = {
    "entry": (lambda s, y: y * s.cfg["k"], lambda s: s.cfg.update(k=5.0)),
    "entry by get": (lambda s, y: y * s.cfg.get("z", 2.0), lambda s: s.cfg.update(z=5.0)),
    "entry by in": (lambda s, y: y * (2 + ("z" in s.cfg)), lambda s: s.cfg.update(z=5.0)),
    "missing entry": (missing_key, lambda s: s.cfg.update(missing=5.0)),
    "all entries": (each, lambda s: s.cfg.update(z=5.0)),
    "order of entries": (first_key, lambda s: (s.cfg.clear(), s.cfg.update(z=1.0, k=2.0))),
    "number of entries": (lambda s, y: y * len(s.cfg), lambda s: s.cfg.update(z=5.0)),
    "item": (lambda s, y: y * s.items[0], lambda s: s.items.__setitem__(0, 5.0)),
    "last item": (lambda s, y: y * s.items[-1], lambda s: s.items.append(5.0)),
    "sum of items": (lambda s, y: y * sum(s.items), lambda s: s.items.append(5.0)),
    "number of items": (lambda s, y: y * len(s.items), lambda s: s.items.append(5.0)),
    "namespace": (lambda s, y: y * s.ns.k, lambda s: setattr(s.ns, "k", 5.0)),
    "namespace's missing": (
        lambda s, y: y * getattr(s.ns, "z", 2.0),
        lambda s: setattr(s.ns, "z", 5.0),
    ),
    "dataclass": (lambda s, y: y * s.options.k, lambda s: setattr(s.options, "k", 5.0)),
    "dict in a dataclass": (
        lambda s, y: y * s.options.inner["k"],
        lambda s: s.options.inner.update(k=5.0),
    ),
    "slot": (lambda s, y: y * s.slots.k, lambda s: setattr(s.slots, "k", 5.0)),
    "class": (lambda s, y: y * s.of_class, lambda s: setattr(State, "of_class", 5.0)),
    "base class": (lambda s, y: y * s.of_base, lambda s: setattr(Base, "of_base", 5.0)),
    "shadowed class": (lambda s, y: y * s.of_base, lambda s: setattr(State, "of_base", 5.0)),
    "by type": (lambda s, y: y * type(s).of_class, lambda s: setattr(State, "of_class", 5.0)),
    "object's class": (
        lambda s, y: y * s.of_two.k,
        lambda s: setattr(s.of_two, "__class__", Five),
    ),
    "class's bases": (
        lambda s, y: y * s.of_derived.k,
        lambda s: setattr(Derived, "__bases__", (Five,)),
    ),
    "class's class": (lambda s, y: y * WithMeta.k, lambda s: setattr(Meta, "k", 5.0)),
    "order in an OrderedDict": (
        lambda s, y: y * next(iter(s.ordered.values())),
        lambda s: s.ordered.move_to_end("a"),
    ),
    "the same object": (
        lambda s, y: y * (2 + (s.items is s.twin)),
        lambda s: setattr(s, "twin", [2.0]),
    ),
    "property": (lambda s, y: y * s.size, lambda s: setattr(State, "hidden", 5.0)),
    "method": (lambda s, y: s.times(y), lambda s: setattr(State, "times", lambda s, y: y * 5)),
    "method's state": (lambda s, y: s.times(y), lambda s: setattr(s, "hidden", 5.0)),
    "missing attribute": (missing_attribute, lambda s: setattr(s, "missing", 5.0)),
    "missing in the class": (missing_attribute, lambda s: setattr(State, "missing", 5.0)),
    "own dict's entry": (lambda s, y: y * vars(s)["n"], lambda s: setattr(s, "n", 5)),
    "own dict": (lambda s, y: y * vars(s).get("z", 2.0), lambda s: setattr(s, "z", 5.0)),
    "nested": (lambda s, y: y * s.nested["a"][0]["k"], lambda s: s.nested["a"][0].update(k=5.0)),
    "list in a tuple": (lambda s, y: y * s.pair[0][0], lambda s: s.pair[0].append(s.pair[0].pop() + 1)),
    "set": (lambda s, y: y * (2 + ("z" in s.names)), lambda s: s.names.add("z")),
    "enum": (lambda s, y: y * (2 + (s.mode is Mode.three)), lambda s: setattr(s, "mode", Mode.three)),
    "global": (lambda s, y: y * SCALE, lambda s: put_global("SCALE", 5.0)),
    "global dict": (lambda s, y: y * TABLE["k"], lambda s: TABLE.update(k=5.0)),
    "global list": (lambda s, y: y * VALUES[0], lambda s: VALUES.__setitem__(0, 5.0)),
    "global object": (lambda s, y: y * OBJECT.k, lambda s: setattr(OBJECT, "k", 5.0)),
    "global tensor": (lambda s, y: y * TENSOR, lambda s: TENSOR.fill_(5.0)),
    "another global tensor": (
        lambda s, y: y * TENSOR,
        lambda s: put_global("TENSOR", torch.tensor(5.0)),
    ),
    "function's global": (lambda s, y: helper(y), lambda s: put_global("SCALE", 5.0)),
    "function": (lambda s, y: helper(y), lambda s: put_global("helper", lambda y: y * 5)),
    "function's default": (lambda s, y: helper(y), lambda s: helper.__defaults__[0].append(helper.__defaults__[0].pop() + 1)),
    "function's defaults": (lambda s, y: helper(y), lambda s: setattr(helper, "__defaults__", ([5.0],))),
    "function's attribute": (lambda s, y: y * helper.k, lambda s: setattr(helper, "k", 5.0)),
    "tensor in a tuple": (
        lambda s, y: y * s.tensors[0],
        lambda s: setattr(s, "tensors", (torch.tensor(5.0),)),
    ),
    "sign of zero": (lambda s, y: y * math.copysign(2, s.n), lambda s: setattr(s, "n", -0.0)),
    "closure": (lambda s, y: y * get_cell(), lambda s: put_cell(5.0)),
    "library's function": (
        lambda s, y: nn.functional.relu(y),
        lambda s: setattr(nn.functional, "relu", lambda y: y * 5),
    ),
    "library's class": (
        lambda s, y: y,
        lambda s: setattr(nn.Conv2d, "forward", lambda s, x: torch.cat([x, x], 1)),
    ),
    "partial": (lambda s, y: s.partial(y), lambda s: s.partial.keywords.update(other=5.0)),
    "module in a list": (
        lambda s, y: s.loose[0](y.permute(0, 2, 3, 1)),
        lambda s: s.loose[0].weight.data.mul_(3),
    ),
    "another module in a list": (
        lambda s, y: s.loose[0](y.permute(0, 2, 3, 1)),
        lambda s: s.loose.__setitem__(0, nn.Linear(4, 4)),
    ),
    "its new weight": (
        lambda s, y: s.loose[0](y.permute(0, 2, 3, 1)),
        lambda s: setattr(s.loose[0], "weight", nn.Parameter(torch.ones(4, 4))),
    ),
    "modules": (
        lambda s, y: functools.reduce(lambda y, m: m(y), list(s.children())[1:], y),
        lambda s: setattr(s, "more", nn.Conv2d(4, 4, 1).eval()),
    ),
    "environment": (
        lambda s, y: y * float(os.environ["SOL_TEST_STATE"]),
        lambda s: os.environ.update(SOL_TEST_STATE="5"),
    ),
    "missing in the environment": (
        lambda s, y: y * float(os.environ.get("SOL_TEST_MISSING", "2")),
        lambda s: os.environ.update(SOL_TEST_MISSING="5"),
    ),
    "missing for getenv": (
        lambda s, y: y * float(os.getenv("SOL_TEST_MISSING", "2")),
        lambda s: os.environ.update(SOL_TEST_MISSING="5"),
    ),
    "sys.modules": (
        lambda s, y: y * (2 + ("sol_test_missing" in sys.modules)),
        lambda s: sys.modules.update(sol_test_missing=types.ModuleType("sol_test_missing")),
    ),
    "array": (lambda s, y: y * torch.from_numpy(s.array).float(), lambda s: s.array.__setitem__(0, 5)),
    "numpy scalar": (lambda s, y: y * s.scalar, lambda s: setattr(s, "scalar", numpy.float32(5))),
    "deque": (lambda s, y: y * s.queue[0], lambda s: s.queue.appendleft(5.0)),
    "context variable": (lambda s, y: y * CONTEXT.get(), lambda s: CONTEXT.set(5.0)),
    "thread's local": (lambda s, y: y * LOCAL.k, lambda s: setattr(LOCAL, "k", 5.0)),
    "default dtype": (
        lambda s, y: y + torch.ones(1),
        lambda s: torch.set_default_dtype(torch.float64),
    ),
    "deterministic": (
        lambda s, y: y * (2 + torch.are_deterministic_algorithms_enabled()),
        lambda s: torch.use_deterministic_algorithms(True),
    ),
    "version": (
        lambda s, y: y * (2 + s.conv.weight._version),
        lambda s: nn.init.ones_(s.conv.weight),
    ),
    "requires_grad": (
        lambda s, y: y * (2 + s.conv.weight.requires_grad),
        lambda s: s.conv.weight.requires_grad_(False),
    ),
}  # fmt: skip


def write_global(s, y):
    global SCALE
    SCALE += 1
    return y


def write_cell(s, y):
    put_cell(get_cell() + 1)
    return y


def write_and_undo(s, y):
    s.n += 1
    s.times(y)
    s.n -= 1
    return y


def store(container, key, value):
    container[key] = value


# name: the forward, applied to the layer's output. Each writes state, or gives another result at each call. SOL runs "buffer".
WRITES = {
    "last output": lambda s, y: (y + s.previous if s.previous is not None else y, setattr(s, "previous", y))[0],
    "counter": lambda s, y: (setattr(s, "n", s.n + 1), y * s.n)[1],
    "attribute": lambda s, y: (setattr(s, "previous", y), y)[1],
    "new attribute": lambda s, y: (setattr(s, "fresh", 1), y)[1],
    "log": lambda s, y: (s.log.append(y), y)[1],
    "list's item": lambda s, y: (store(s.items, 0, s.items[0] + 1), y)[1],
    "dict": lambda s, y: (store(s.cfg, "k", s.cfg["k"] + 1), y)[1],
    "defaultdict": lambda s, y: (store(s.counts, "k", s.counts["k"] + 1), y)[1],
    "set": lambda s, y: (s.names.add(len(s.names)), y)[1],
    "deque": lambda s, y: (s.queue.append(1.0), y)[1],
    "namespace": lambda s, y: (setattr(s.ns, "k", s.ns.k + 1), y)[1],
    "object": lambda s, y: (setattr(s.options, "k", s.options.k + 1), y)[1],
    "class": lambda s, y: (setattr(State, "of_class", State.of_class + 1), y)[1],
    "global": write_global,
    "global dict": lambda s, y: (store(TABLE, "n", 1), y)[1],
    "global object": lambda s, y: (setattr(OBJECT, "n", 1), y)[1],
    "closure": write_cell,
    "environment": lambda s, y: (os.environ.update(SOL_TEST_WRITTEN="1"), y)[1],
    "buffer": lambda s, y: y * s.buffer.add_(1),
    "new buffer": lambda s, y: (setattr(s, "buffer", s.buffer + 1), y * s.buffer)[1],
    "plain tensor": lambda s, y: y * s.plain.add_(1),
    "global tensor": lambda s, y: y * TENSOR.add_(1),
    "weight's data": lambda s, y: (s.conv.weight.data.mul_(0.5), y)[1],
    "array": lambda s, y: (store(s.array, 0, s.array[0] + 1), y)[1],
    "iterator": lambda s, y: y * next(s.ticks),
    "random": lambda s, y: y * random.random(),
    "own random": lambda s, y: y * s.random.random(),
    "random integer": lambda s, y: y * random.randint(1, 9),
    "numpy's random": lambda s, y: y * float(numpy.random.rand()),
    "torch's random": lambda s, y: y * torch.rand(1),
    "seed": lambda s, y: (torch.manual_seed(len(s.log)), y)[1],
    "time": lambda s, y: y * (time.perf_counter() > s.n),
    "print": lambda s, y: (print("printed"), y)[1],
    "stdout": lambda s, y: (sys.stdout.write("printed\n"), y)[1],
    "warning": lambda s, y: (warnings.warn("told", stacklevel=1), y)[1],
    "file": lambda s, y: y * len(open(os.devnull).read()),
    "gradient": lambda s, y: (setattr(s.conv.weight, "grad", None), y)[1],
    "registered buffer": lambda s, y: (s.register_buffer("late", torch.zeros(1)), y)[1],
    "lazy layer": lambda s, y: (setattr(s, "late", nn.Identity()), y)[1],
    "thread's local": lambda s, y: (setattr(LOCAL, "n", 1), y)[1],
    "hook": lambda s, y: (s.conv.register_forward_hook(lambda *args: None), y)[1],
    "written and undone": write_and_undo,
}  # fmt: skip

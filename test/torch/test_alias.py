"""Results that share memory with inputs, with the module, or with each other, and forwards that write into their inputs.

Each call is compared with PyTorch: the values of the results, of the caller's tensors and of the module, which tensors are the same
object, which share memory, and what the caller's later writes into a result change.
"""

import copy

import pytest
import torch
from conftest import assert_equal, outcome
from torch import nn

import sol.pytorch as sol

pytestmark = pytest.mark.usefixtures("few_layers")


class Model(nn.Module):
    """``function(self, *inputs)``, with a linear layer ``fc``, a parameter ``p``, and buffers ``b`` and ``n``."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.fc = function, nn.Linear(4, 4)
        self.p = nn.Parameter(torch.randn(3, 4))
        self.register_buffer("b", torch.randn(3, 4))
        self.register_buffer("n", torch.zeros(()))

    def forward(self, *args):
        return self.function(self, *args)


def find_tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [x for part in parts for x in find_tensors(part)]


def find_relations(tensors):
    """(i, k, whether they are one object) of all tensors that share memory."""
    address = [x.untyped_storage().data_ptr() for x in tensors]
    pairs = [(i, k) for i in range(len(tensors)) for k in range(i)]
    return [(i, k, tensors[i] is tensors[k]) for i, k in pairs if address[i] == address[k]]


def observe(module, owner, inputs):
    """What a caller can see of two calls, and of a write into each result."""
    seen, inputs = [], [x.clone(memory_format=torch.preserve_format) for x in inputs]
    for _ in range(2):
        with torch.no_grad():
            result = find_tensors(module(*inputs))
            tensors = [*inputs, owner.p, owner.b, owner.n, *result]
            seen += [find_relations(tensors), [x.clone() for x in tensors]]
            seen.append([x._version > 0 for x in inputs])
            for x in result:
                if x.is_floating_point() and 0 not in x.stride():
                    x.add_(0.5)
            seen.append([x.clone() for x in tensors])
    return seen


def compare(function, shapes, *specs):
    """Calls with inputs of ``shapes``. Returns the optimized module."""
    eager, optimized = Model(function).eval(), Model(function).eval()
    fast = sol.optimize(optimized, *specs)
    for shape in shapes:
        inputs = [torch.randn(shape) for _ in specs]
        got, expected = observe(fast, optimized, inputs), observe(eager, eager, inputs)
        assert got[0::4] == expected[0::4] and got[2::4] == expected[2::4]
        assert_equal(got, expected)
    return fast


# ---- Results ----


def _of(make):
    """``make(y)`` of a tensor that the program computes."""
    return lambda s, x: make(s.fc(x).exp())


RESULTS = {
    "input": lambda s, x: (s.fc(x), x),
    "views of input": lambda s, x: (x[:, 1:], s.fc(x), x.transpose(1, 2), x.view(x.shape[0], -1)),
    "detached": lambda s, x: (s.fc(x), x.detach()),
    "dict": lambda s, x: {"x": x, "y": s.fc(x), "m": x[:, :, None]},
    "expanded": lambda s, x: (s.fc(x), x[:, :1].expand(-1, 7, 4)),
    "casts": lambda s, x: (s.fc(x), x.float(), x.contiguous(), x.double(), x.mT.contiguous()),
    "dropout": lambda s, x: (s.fc(x), nn.functional.dropout(x, 0.5, False)),
    "einsum": lambda s, x: (s.fc(x), torch.einsum("abc->acb", x)),
    "parameter": lambda s, x: (s.fc(x), s.p),
    "views of parameter": lambda s, x: (s.fc(x), s.p[1:], s.p.t()),
    "buffer": lambda s, x: (s.fc(x), s.b, s.b[:, 1]),
    "view of result": _of(lambda y: (y, y[:, 1:])),
    "two views": _of(lambda y: (y[:, :2], y[:, 1:])),
    "flat and turned": _of(lambda y: (y, y.flatten(1), y.transpose(1, 2))),
    "rows and all": _of(lambda y: (y, *y.unbind(1))),
    "part of a part": _of(lambda y: (y.chunk(2, 2)[0], y.chunk(2, 2)[0][:, 1:])),
    "twice": _of(lambda y: (y, y)),
    "dropout of result": _of(lambda y: (y, nn.functional.dropout(y, 0.5, False)[1:])),
    "several results": _of(lambda y: tuple(y.max(1))),
    "views of several results": _of(
        lambda y: (lambda best: (best[0], best[0][1:], best[1]))(y.topk(2, 1))
    ),
    "one view": _of(lambda y: y[:, 1:]),
}


@pytest.mark.parametrize("function", RESULTS.values(), ids=RESULTS.keys())
def test_result(function):
    fast = compare(function, [(2, 3, 4), (1, 3, 4), (3, 3, 4)], sol.input([0, 3, 4]))
    assert not sol.fallbacks(fast)


def test_parts_that_do_not_overlap():
    """PyTorch gives two parts of one memory. A write into one changes no other, so SOL gives two tensors."""
    fast = sol.optimize(Model(_of(lambda y: y.chunk(2, 2))).eval(), sol.input([0, 3, 4]))
    with torch.no_grad():
        a, b = fast(torch.randn(2, 3, 4))
    assert a.is_contiguous() and b.is_contiguous() and not sol.fallbacks(fast)


def test_open_sizes():
    """Views whose sizes are known at the call."""

    def function(s, x):
        n, rows, _ = x.shape
        return s.fc(x), x.view(n * rows, 4), x[:, 1:], x[:, : rows - 1].unflatten(2, (2, 2))

    shapes = (2, 3, 4), (3, 7, 4), (1, 5, 4), (4, 3, 4)
    assert not sol.fallbacks(compare(function, shapes, sol.input([0, 0, 4])))


# ---- Writes ----


def _write_part(s, x):
    y = s.fc(x)
    x[:, 0] = 0
    return y


def _write_rows(s, x):
    y = s.fc(x)
    x[:, 1:] = y[:, 1:]
    return y.exp()


def _write_through_views(s, x):
    x.transpose(1, 2)[:, 1:].mul_(2)
    return s.fc(x)


def _write_flat(s, x):
    flat = x.view(-1)
    flat.copy_(s.fc(x).view(-1))
    return flat


def _write_and_return(s, x):
    return x.mul_(s.fc(x))


def _write_and_return_views(s, x):
    nn.functional.relu(x, inplace=True)
    return s.fc(x), x[:, 1:], x


def _write_before_and_after(s, x):
    x.zero_()
    y = s.fc(x)
    x.add_(1)
    return y


def _write_only(s, x):
    y = s.fc(x)
    x.fill_(3.0)
    return y


def _write_mask(s, x):
    x[x < 0] = 0
    return s.fc(x)


def _write_result(s, x):
    y = s.fc(x)
    part = y[:, :2]
    part.add_(1)
    return y, part


def _write_dropout(s, x):
    """A dropout that is off gives its argument, not a copy."""
    y = nn.functional.dropout(x, 0.5, False)
    y.add_(1)
    z = s.fc(x)
    part = z[:, 1:]
    nn.functional.alpha_dropout(z, 0.5, False).mul_(2)
    return part * 2


def _write_all(s, x):
    """An input, a buffer, and results that lie in the memory of both."""
    s.n += 1
    s.b.mul_(x.mean())
    x.clamp_(-1, 1)
    return s.fc(x) * s.b, s.b[1:], s.n, x


WRITES = {
    "part": _write_part, "rows": _write_rows, "through views": _write_through_views, "flat": _write_flat,
    "and return": _write_and_return, "and return views": _write_and_return_views, "before and after": _write_before_and_after,
    "only": _write_only, "mask": _write_mask, "result": _write_result, "dropout": _write_dropout, "all": _write_all,
}  # fmt: skip


@pytest.mark.parametrize("function", WRITES.values(), ids=WRITES.keys())
def test_write(function):
    fast = compare(function, [(2, 3, 4), (1, 3, 4), (3, 3, 4)], sol.input([0, 3, 4]))
    assert not sol.fallbacks(fast)


def _write_both(s, x, y):
    x.add_(y)
    y[:, 1] = x[:, 2] * 2
    return s.fc(x), y


def test_two_written_inputs():
    fast = compare(_write_both, [(2, 3, 4), (1, 3, 4)], *[sol.input([0, 3, 4])] * 2)
    assert not sol.fallbacks(fast)


def _shifted(x):
    base = torch.cat([x.flatten(), x.flatten()])
    return base[4:28].view(2, 3, 4), base[:24].view(2, 3, 4)


def _transposed(x):
    return x.mT.contiguous().mT, x


# Inputs that lie in memory in another way than the graph assumes: PyTorch runs these calls.
ODD = {
    "twice": (lambda x, model: (x, x), "input shares memory with input[0]"),
    "overlapping": (lambda x, model: _shifted(x), "input shares memory with input[0]"),
    "a buffer": (lambda x, model: (model.b[None], x[:1]), "the model shares memory with input[0]"),
    "strided": (lambda x, model: _transposed(x), "input[0], which is written or returned, is not"),
    "expanded": (lambda x, model: (torch.zeros(1, 3, 4).expand(2, 3, 4), x), "is not contiguous"),
}


@pytest.mark.parametrize("make, reason", ODD.values(), ids=ODD.keys())
def test_odd_written_input(make, reason):
    def function(s, x, y):
        x.add_(y)
        return s.fc(x) + s.b + y

    eager, optimized = Model(function).eval(), Model(function).eval()
    fast = sol.optimize(optimized, *[sol.input([0, 3, 4])] * 2)
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        for module, owner in (fast, optimized), (eager, eager):
            fast(torch.randn(2, 3, 4), x)
            args = make(x.clone(), owner)
            results = outcome(module, args, {}), [y.clone() for y in args], owner.b.clone()
            if module is fast:
                got = results
    assert type(got[0]) is type(results[0])
    assert_equal(got[1:], results[1:])
    assert any(reason in text for text in sol.fallbacks(fast)), sol.fallbacks(fast)


def test_strided_input_as_result():
    """For such an input, ``contiguous`` makes a copy, so PyTorch runs the call."""
    fast = sol.optimize(Model(lambda s, x: (s.fc(x), x.contiguous())).eval(), sol.input([0, 3, 4]))
    x = torch.randn(2, 4, 3).mT
    with torch.no_grad():
        y = fast(x)[1]
    assert y.is_contiguous() and y is not x and sol.fallbacks(fast)


def test_failed_call_writes_no_input():
    def function(s, x, i):
        y = s.fc(x)[:, i]
        x.add_(1)
        return y

    fast = sol.optimize(Model(function).eval(), sol.input([0, 3, 4]), sol.input([2], torch.int64))
    x = torch.zeros(2, 3, 4)
    with torch.no_grad():
        for _ in range(3):
            with pytest.raises(IndexError):
                fast(x, torch.tensor([0, 3]))
        fast(x, torch.tensor([0, 2]))
    assert_equal(x, torch.ones(2, 3, 4))


def test_inference_mode():
    fast = sol.optimize(Model(_write_and_return_views).eval(), sol.input([0, 3, 4]))
    with torch.inference_mode():
        x, y = torch.randn(2, 3, 4), None
        got, expected = fast(x.clone()), fast._original(x.clone())
        assert_equal(got, expected)
        y = torch.randn(2, 3, 4)
    with torch.no_grad(), pytest.raises(RuntimeError, match="inference tensor"):
        fast(y)
    assert not sol.fallbacks(fast)


def test_copy_returns_its_own_parameter():
    fast = sol.optimize(Model(lambda s, x: (s.fc(x), s.p, s.b)).eval(), sol.input([0, 3, 4]))
    other = copy.deepcopy(fast)
    with torch.no_grad():
        for module in fast, other:
            _, p, b = module(torch.randn(2, 3, 4))
            assert p is module.p and b is module.b
        fast.p = nn.Parameter(torch.ones(3, 4))
        assert fast(torch.randn(2, 3, 4))[1] is fast.p and other.p is not fast.p


def test_tensor_of_no_module():
    loose = torch.ones(2)
    fast = sol.optimize(Model(lambda s, x: (s.fc(x), loose)).eval(), sol.input([0, 3, 4]))
    with torch.no_grad():
        assert fast(torch.randn(2, 3, 4))[1] is loose
    assert any("a tensor of no module" in reason for reason in sol.fallbacks(fast))


def test_nested_input():
    """An input in a dict is written and returned."""

    def function(s, inputs):
        x = inputs["a"]["x"]
        x.mul_(inputs["scale"])
        return {"y": s.fc(x), "inputs": inputs["a"]}

    spec = {"a": {"x": sol.input([0, 3, 4])}, "scale": 2.0}
    fast = sol.optimize(Model(function).eval(), spec)
    for n in 2, 1:
        x = torch.ones(n, 3, 4)
        with torch.no_grad():
            result = fast({"a": {"x": x}, "scale": 2.0})
            assert result["inputs"]["x"] is x
            assert_equal(x, torch.full((n, 3, 4), 2.0))
            assert_equal(result["y"], fast.fc(x))
    assert not sol.fallbacks(fast)


def test_fullgraph():
    for function in RESULTS["input"], RESULTS["buffer"], RESULTS["two views"], _write_and_return:
        fast = sol.optimize(Model(function).eval(), sol.input([0, 3, 4]), fullgraph=True)
        with torch.no_grad():
            fast(torch.randn(2, 3, 4))


def test_library(tmp_path):
    """A library writes into no input, and its outputs are memory of the caller."""
    for function, reason in (
        (RESULTS["input"], "shares memory with"),
        (RESULTS["two views"], "share memory"),
        (_write_part, "it writes into"),
    ):
        with pytest.raises(NotImplementedError, match=reason):
            sol.deploy(Model(function).eval(), sol.input([0, 3, 4]), path=str(tmp_path))


def _write_part_of_root(s, x):
    """The tensor in whose memory both results lie is no result, and only a part of it is written."""
    part = s.fc(x)[:, :2]
    part.add_(1)
    return part, part[:, 1:]


LEFT = {
    "written part": _write_part_of_root,
    "data": lambda s, x: (s.fc(x), x.data.add_(1))[0],
    "only an input": lambda s, x: x,
    "resized": lambda s, x: (s.fc(x).exp(), x.resize_(1, 4))[0],
    "written by out": lambda s, x: torch.add(s.fc(x), 1, out=x),
    "with gaps": lambda s, x: (lambda y: (y, y[:, 1:]))(x.mT.exp()),
}


@pytest.mark.parametrize("function", LEFT.values(), ids=LEFT.keys())
def test_left_to_pytorch(function):
    assert sol.fallbacks(compare(function, [(2, 3, 4)], sol.input([0, 3, 4])))


@pytest.mark.parametrize("turn", ["swapaxes_", "transpose_"])
def test_an_input_that_is_turned_in_place(turn):
    def forward(s, x):
        y = s.fc(x)
        getattr(getattr(x, turn)(1, 2), turn)(1, 2)
        return y

    compare(forward, [(2, 3, 4)], sol.input([0, 3, 4]))

"""Forms of calls: by position or name, optional arguments, None for a tensor and a tensor for None, other constants."""

import copy
import functools
import pickle

import pytest
import torch
from conftest import Function, Optional, assert_as_eager, assert_equal, assert_runs_in_sol

import sol.pytorch as sol

SPEC = sol.input([0, 3])
A, B = torch.randn(2, 3), torch.randn(2, 3)

# Calls of Optional. Each runs in SOL, however its inputs were declared.
CALLS = {
    "x": ((A,), {}),
    "x by name": ((), {"x": A}),
    "y": ((A, B), {}),
    "y by name": ((A,), {"y": B}),
    "both by name": ((), {"y": B, "x": A}),
    "none": ((A, None), {}),
    "defaults": ((A, None, 1.0), {"bias": None}),
    "scale": ((A,), {"scale": 2.0}),
    "scale by position": ((A, None, 2.0), {}),
    "scale as an integer": ((A,), {"scale": 1}),
    "scale as a tensor": ((A,), {"scale": torch.tensor(3.0)}),
    "bias": ((A,), {"bias": B}),
    "bias of another shape": ((A,), {"bias": B[0]}),
    "all": ((A, B, 0.5), {"bias": B[0]}),
    "one sample": ((A[:1],), {"bias": B[:1]}),
    "number": ((A,), {"y": 3}),
}
DECLARED = {
    "x": ((SPEC,), {}),
    "x by name": ((), {"x": SPEC}),
    "y": ((SPEC, SPEC), {}),
    "none": ((SPEC, None), {}),
    "scale": ((SPEC,), {"scale": 1.0}),
    "bias": ((SPEC,), {"bias": SPEC}),
    "all by name": ((), {"bias": SPEC, "scale": 2.0, "y": SPEC, "x": SPEC}),
}


@pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED.keys())
def test_any_call_of_any_declaration(declared):
    fast = sol.optimize(Optional().eval(), *declared[0], **declared[1])
    for _ in range(2):
        for args, kwargs in CALLS.values():
            if "bias" in declared[1] and "bias" in kwargs and kwargs["bias"] is not None:
                args, kwargs = args, {**kwargs, "bias": kwargs["bias"].expand_as(args[0])}
            assert_runs_in_sol(fast, *args, **kwargs)
    assert not sol.fallbacks(fast)


def test_fullgraph_takes_other_forms():
    fast = sol.optimize(Optional().eval(), SPEC, fullgraph=True)
    assert_runs_in_sol(fast, A, bias=B)
    with torch.no_grad(), pytest.raises(ValueError, match=r"expected f32\[\*,3\], got f32\[2,2\]"):
        fast(A[:, :2], bias=B)
    with torch.no_grad(), pytest.raises(TypeError, match="got an unexpected keyword argument"):
        fast(A, shift=B)


def test_calls_that_mean_the_same_are_captured_once():
    fast = sol.optimize(Optional().eval(), SPEC)
    for args, kwargs in [((A, B), {}), ((A,), {"y": B}), ((A, B, 1.0), {"bias": None})]:
        assert_runs_in_sol(fast, *args, **kwargs)
    assert sol.recompiles(fast) == 1


def test_shortcut_stays_that_of_the_declared_form():
    fast = sol.optimize(Optional().eval(), SPEC)
    assert_runs_in_sol(fast, A)
    shortcut = vars(fast)["_engine"].shortcut
    assert shortcut is not None
    assert_runs_in_sol(fast, A, bias=B)
    assert_runs_in_sol(fast, A)
    assert vars(fast)["_engine"].shortcut is shortcut


class Options(torch.nn.Module):
    """Its arguments have the names of options of sol.optimize."""

    def forward(self, name, batch_size, kwargs=None, **others):
        y = name * 2 - batch_size if kwargs is None else name + kwargs
        return sum(others.values(), y)


def test_arguments_with_the_names_of_options():
    inputs = {"name": SPEC, "batch_size": SPEC}
    fast = sol.optimize(Options().eval(), kwargs=inputs, name="options", batch_size=2)
    assert_runs_in_sol(fast, A, B)
    assert_runs_in_sol(fast, name=A, batch_size=B, kwargs=B)
    assert_runs_in_sol(fast, A, B, more=A, most=B)
    assert not sol.fallbacks(fast)


def test_bad_keywords():
    model = Optional().eval()
    with pytest.raises(TypeError, match="Optional.forward: .*unexpected keyword argument 'shift'"):
        sol.optimize(model, SPEC, shift=SPEC)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        sol.optimize(model, SPEC, x=SPEC)
    with pytest.raises(TypeError, match=r"name is an option; .* kwargs=\{'name'"):
        sol.optimize(model, SPEC, name=SPEC)
    with pytest.raises(TypeError, match="kwargs must be a dict"):
        sol.optimize(model, SPEC, kwargs=SPEC)
    with pytest.raises(TypeError, match="the input y is given twice"):
        sol.optimize(model, SPEC, y=SPEC, kwargs={"y": SPEC})


class Mask(torch.nn.Module):
    """Tokens of open length, with an optional mask and optional keys and values of earlier tokens."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, ids, mask=None, past=None):
        x = self.embed(ids)
        y = x if past is None else torch.cat([past[0], x], 1) + past[1].sum(1, keepdim=True)
        scores = self.linear(x) @ y.transpose(1, 2)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -1e9)
        return scores.softmax(-1) @ y


def test_optional_tensors_of_open_sizes():
    fast = sol.optimize(Mask().eval(), ids=sol.input([0, 0], dtype=torch.int64))
    for batch, length in ((2, 7), (3, 9), (1, 4), (2, 12), (5, 5)):
        ids = torch.randint(11, (batch, length))
        assert_runs_in_sol(fast, ids)
        assert_runs_in_sol(fast, ids, mask=torch.randint(2, (batch, length)))
    assert not sol.fallbacks(fast)
    assert sol.recompiles(fast) <= 3  # the mask, and perhaps a batch of one


def test_sizes_that_differ_between_calls_become_open():
    fast = sol.optimize(Mask().eval(), ids=sol.input([0, 0], dtype=torch.int64))
    for length in range(3, 12):
        ids, past = torch.randint(11, (2, 5)), [torch.randn(2, length, 8) for _ in range(2)]
        assert_runs_in_sol(fast, ids, past=past)
    assert not sol.fallbacks(fast)
    assert sol.recompiles(fast) <= 3


def test_too_many_forms():
    fast = sol.optimize(Function(lambda x, y: x + y).eval(), SPEC, SPEC)
    with torch.no_grad():
        for rank in range(25):
            y = torch.randn([1] * (rank % 5) + [2, 3]).to(
                [torch.float32, torch.float64, torch.int32, torch.int64, torch.int16][rank // 5]
            )
            assert_equal(fast(A, [y][0]), A + y)
    assert sol.fallbacks(fast)


def spread(function):
    """A decorator that looks at how the arguments are passed."""

    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        factor = 3.0 if "y" in kwargs else 1.0
        return function(self, *args, **kwargs) * factor

    return wrapper


class Decorated(torch.nn.Module):
    @spread
    def forward(self, x, y=None):
        return x * 2 if y is None else x + y


def test_decorated_forward():
    fast = sol.optimize(Decorated().eval(), SPEC)
    assert_runs_in_sol(fast, A)
    assert_runs_in_sol(fast, A, B)
    assert_runs_in_sol(fast, A, y=B)
    assert_runs_in_sol(fast, x=A, y=None)
    assert_runs_in_sol(fast, A, None)
    assert not sol.fallbacks(fast)


class Several(torch.nn.Module):
    def forward(self, x, *more, **others):
        return sum(more, x) + sum(others.values())


def test_any_number_of_arguments():
    fast = sol.optimize(Several().eval(), SPEC, SPEC, last=SPEC)
    assert_runs_in_sol(fast, A, B, last=B)
    assert_runs_in_sol(fast, A, last=B)
    assert_runs_in_sol(fast, A, B, B, A, first=A, last=B)
    assert not sol.fallbacks(fast)


def test_copies_and_pickles():
    fast = sol.optimize(Optional().eval(), SPEC, bias=SPEC)
    assert_runs_in_sol(fast, A, B, bias=B)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert_runs_in_sol(other, A, bias=B)
        assert_runs_in_sol(other, A, B, bias=B)
        assert_runs_in_sol(other, A)
        assert not sol.fallbacks(other)


def test_dicts_as_arguments():
    model = Function(lambda d: d["x"] * 2 + d.get("y", 0)).eval()
    fast = sol.optimize(model, {"x": SPEC})
    assert_runs_in_sol(fast, {"x": A})
    assert_runs_in_sol(fast, {"x": A, "y": B})
    assert_runs_in_sol(fast, {"x": A, "y": 3})
    assert not sol.fallbacks(fast)
    assert_as_eager(fast, {"y": B})


def test_order_of_dicts():
    """A forward may go through a dict, or through its named arguments."""
    model = Function(lambda d: {k: x * 2 for k, x in d.items()}).eval()
    fast = sol.optimize(model, {"x": SPEC, "y": SPEC})
    with torch.no_grad():
        for given in ({"x": A, "y": B}, {"y": A, "x": B}):
            got = fast(given)
            assert list(got) == list(given)
            assert_equal(got, model(given))
    assert not sol.fallbacks(fast)


def test_host_nodes_of_all_forms(few_layers):
    model = Function(lambda x, y=None: x * 2 if y is None else torch.special.bessel_j0(x) * y)
    fast = sol.optimize(model.eval(), SPEC)
    assert not sol.host_nodes(fast)
    with torch.no_grad():
        assert_equal(fast(A, B), model(A, B))
    assert "bessel_j0" in str(sol.host_nodes(fast)[0])


def test_measures_take_names():
    fast = sol.optimize(Optional().eval(), SPEC, bias=SPEC)
    assert "DFP" in str(sol.profile(fast, A, bias=B, runs=1))


def test_other_batches_of_a_fixed_shape():
    fast = sol.optimize(Optional().eval(), sol.input([2, 3]))
    assert_as_eager(fast, A[:1])
    assert_as_eager(fast, A[:1], bias=B)
    assert_as_eager(fast, torch.randn(2, 4))
    assert_runs_in_sol(fast, A, bias=B)
    assert_as_eager(fast, A[:0])
    free = sol.optimize(Optional().eval(), SPEC)
    assert_runs_in_sol(free, A[:0])
    assert_runs_in_sol(free, A[:0], bias=B[:0])


class Cache:
    """Keys of earlier calls, in an object of the user's own."""

    def __init__(self):
        self.keys = torch.ones(2, 3)

    def __repr__(self):
        return repr(self.keys)


def _replace_item(x, c):
    c[0] = torch.cat([c[0], x])
    return c[0].sum(0)


def _append(x, c):
    c.append(x * 2)
    return sum(c).sum(0)


def _replace_entry(x, c):
    c["k"] = c["k"] + x
    return c["k"] * 2


def _add_entry(x, c):
    c["new"] = c["k"] + x
    return c["k"] * 2


def _write_slice(x, c):
    c[0][1:] += x[0]
    return c[0] * 2


def _write_all(x, c):
    c["k"].copy_(x * 3)
    return x + 1


def _return_new(x, c):
    return x * 2, (torch.cat([c[0], x]), c[1] + 1)


def _write_attribute(x, c):
    c.keys = torch.cat([c.keys, x])
    return c.keys.sum(0)


CACHES = {
    "replaced item": (_replace_item, lambda: [torch.ones(2, 3)]),
    "new item": (_append, lambda: [torch.ones(2, 3)]),
    "replaced entry": (_replace_entry, lambda: {"k": torch.ones(2, 3)}),
    "new entry": (_add_entry, lambda: {"k": torch.ones(2, 3)}),
    "written slice": (_write_slice, lambda: [torch.ones(2, 3)]),
    "written tensor": (_write_all, lambda: {"k": torch.ones(2, 3)}),
    "returned": (_return_new, lambda: (torch.ones(2, 3), torch.ones(2, 3))),
    "object": (_write_attribute, Cache),
}
WRITTEN_BY_SOL = {"written slice", "written tensor", "returned"}


@pytest.mark.parametrize("is_declared", [True, False])
@pytest.mark.parametrize("kind", CACHES)
def test_what_a_forward_writes_into_its_arguments_is_there(kind, is_declared):
    function, make = CACHES[kind]
    model = Function(lambda x, c=None: x * 1 if c is None else function(x, c)).eval()
    declare = is_declared and kind != "object"
    fast = sol.optimize(model, SPEC, make()) if declare else sol.optimize(model, SPEC)
    ours, theirs = make(), make()
    for _ in range(3):
        x = torch.randn(2, 3)
        with torch.no_grad():
            assert repr(fast(x, ours)) == repr(model(x, theirs))
        assert repr(ours) == repr(theirs)
    assert bool(sol.fallbacks(fast)) == (kind not in WRITTEN_BY_SOL), sol.fallbacks(fast)


def test_objects_are_named():
    fast = sol.optimize(Function(lambda x, c=None: x * 2).eval(), SPEC)
    with torch.no_grad():
        assert_equal(fast(A, Cache()), A * 2)
    assert "input[1]: SOL takes no Cache" in sol.fallbacks(fast)

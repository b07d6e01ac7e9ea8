"""Inputs and outputs of any structure, numbers as inputs, and the ways to declare inputs."""

import collections
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.utils.rnn as rnn
from conftest import Function, assert_as_eager, assert_equal, assert_runs_in_sol

import sol.pytorch as sol

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    scale: Any
    name: str = "none"


A, B = torch.randn(2, 3), torch.randn(2, 3)


def _run(function, declared, given):
    """Returns SOL's result; asserts that it equals PyTorch's in values and structure."""
    fast = sol.optimize(Function(function).eval(), *declared)
    with torch.no_grad():
        got, expected = fast(*given), function(*given)
    assert not sol.fallbacks(fast)
    assert type(got) is type(expected)
    return got, expected


SPEC = sol.input([0, 3])
STRUCTURES = {
    "tuple": (lambda p: p[0] + p[1], [(SPEC, SPEC)], [(A, B)]),
    "list": (lambda x, p: x + p[0] * p[1], [SPEC, [SPEC, SPEC]], [A, [A, B]]),
    "dict": (lambda d: d["x"] - d["y"], [{"x": SPEC, "y": SPEC}], [{"y": B, "x": A}]),
    "named tuple": (lambda p: p.a / p.b, [Pair(SPEC, SPEC)], [Pair(A, B)]),
    "nested": (
        lambda d, z: d["p"][0] - d["p"][1]["q"] * z,
        [{"p": (SPEC, {"q": SPEC})}, SPEC],
        [{"p": (A, {"q": B})}, A],
    ),
    "dataclass": (lambda b: b.image * b.scale, [Batch(SPEC, 2.0)], [Batch(A, 2.0)]),
    "number": (lambda x, n: x * n, [SPEC, 3], [A, 3]),
    "unused": (lambda x, y: x * 2, [SPEC, SPEC], [A, B]),
    "none": (lambda x, y: x * 2 if y is None else x, [SPEC, None], [A, None]),
    "size": (lambda x: x * 2, [torch.Size([2, 3])], [A]),
    "example": (lambda x: x * 2, [torch.zeros(2, 3)], [A]),
    "one list of all": (lambda x, y: x - y, [[SPEC, SPEC]], [A, B]),
}


@pytest.mark.parametrize("function, declared, given", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_inputs(function, declared, given):
    got, expected = _run(function, declared, given)
    assert_equal(got, expected)


def test_output_tuple_and_numbers():
    got, expected = _run(lambda x: (x + 1, 7, None, "text", x * 2), [SPEC], [A])
    assert got[1:4] == (7, None, "text")
    assert_equal(got[0], expected[0])
    assert_equal(got[4], expected[4])


def test_output_dict():
    got, expected = _run(lambda x: {"y": [x + 1], "z": Pair(x * 2, x - 1)}, [SPEC], [A])
    assert list(got) == ["y", "z"] and type(got["z"]) is Pair
    assert_equal(got["y"][0], expected["y"][0])
    assert_equal(got["z"].b, expected["z"].b)


def test_output_dataclass():
    got, expected = _run(lambda x: Batch(x + 1, x * 2, "two"), [SPEC], [A])
    assert got.name == "two"
    assert_equal(got.image, expected.image)
    assert_equal(got.scale, expected.scale)


def test_same_tensor_twice():
    got, _ = _run(lambda x: (lambda y: (y, y))(x + 1), [SPEC], [A])
    assert got[0] is got[1]


def test_copy_of_a_result():
    got, _ = _run(lambda x: (lambda y: (y, y.clone()))(x + 1), [SPEC], [A])
    got[0].zero_()
    assert_equal(got[1], A + 1)


def test_copy_of_the_input():
    got, _ = _run(lambda x: x.clone(), [SPEC], [A])
    assert got.data_ptr() != A.data_ptr()
    assert_equal(got, A)


def test_parts_of_one_tensor():
    got, expected = _run(lambda x: tuple((x * 2).chunk(3, 1)), [SPEC], [A])
    for a, b in zip(got, expected):
        assert_equal(a, b)


def test_results_are_fresh():
    fast = sol.optimize(Function(torch.relu).eval(), SPEC)
    with torch.no_grad():
        first = fast(A)
        kept = first.clone()
        fast(B)
    assert_equal(first, kept)


def test_wrong_structure():
    model = Function(lambda d: d["x"] * 2).eval()
    fast = sol.optimize(model, {"x": SPEC})
    fullgraph = sol.optimize(model, {"x": SPEC}, fullgraph=True)
    with torch.no_grad():
        for wrong in ({"y": A}, [A], A, {"x": [A]}):
            assert_as_eager(fast, wrong)
            with pytest.raises((TypeError, ValueError, NotImplementedError), match="input"):
                fullgraph(wrong)


def test_another_number_compiles_again():
    fast = sol.optimize(Function(lambda x, n: x * n).eval(), SPEC, 2)
    with torch.no_grad():
        for n in (2, 3, 2.0, True, 3, 2):
            assert_equal(fast(A, n), A * n)
    assert sol.recompiles(fast) == 3
    assert not sol.fallbacks(fast)
    assert_runs_in_sol(fast, 2, A)
    assert_as_eager(fast, A, "two")


def test_numbers_without_end():
    fast = sol.optimize(Function(lambda x, n: x * n).eval(), SPEC, 0)
    with torch.no_grad():
        for n in range(40):
            assert_equal(fast(A, n), A * n)
    assert sum(sol.fallbacks(fast).values()) == 40 - 16


def test_example_fixes_the_batch():
    fast = sol.optimize(Function(torch.relu).eval(), torch.zeros(2, 3))
    assert_runs_in_sol(fast, A)
    assert_as_eager(fast, A[:1])
    fullgraph = sol.optimize(Function(torch.relu).eval(), torch.zeros(2, 3), fullgraph=True)
    with torch.no_grad(), pytest.raises(ValueError, match=r"f32\[2,3\], got f32\[1,3\]"):
        fullgraph(A[:1])


def test_vdims_frees_the_batch_of_an_example():
    fast = sol.optimize(Function(torch.relu).eval(), torch.zeros(2, 3), vdims=[0])
    assert_runs_in_sol(fast, A)
    assert_runs_in_sol(fast, A[:1])


def test_optimized_again():
    fast = sol.optimize(Function(torch.relu).eval(), SPEC)
    again = sol.optimize(fast, sol.input([0, 4]))
    assert_runs_in_sol(again, torch.randn(3, 4))


def test_output_of_an_operator():
    got, expected = _run(lambda x: (x * 2).max(1), [SPEC], [A])
    assert_equal(got.values, expected.values)
    assert torch.equal(got.indices, expected.indices)


def test_optional_parts_of_outputs():
    got, expected = _run(lambda x: Batch(x + 1, None, {"a": [None, x * 2]}), [SPEC], [A])
    assert got.scale is None and got.name["a"][0] is None
    assert_equal(got.name["a"][1], expected.name["a"][1])


def _pack(lengths):
    x = torch.randn(5, len(lengths), 4)
    return rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)


def _scale(packed):
    return packed._replace(data=torch.relu(packed.data) * 2)


def test_packed_sequence():
    first = _pack([4, 5, 2])
    fast = sol.optimize(Function(_scale).eval(), first)
    for given in (first, _pack([5, 5, 1]), first, _pack([2, 3, 5])):
        with torch.no_grad():
            got, expected = fast(given), _scale(given)
        assert type(got) is rnn.PackedSequence
        assert_equal(list(got), list(expected))
        assert got.batch_sizes is given.batch_sizes


def test_packed_sequence_without_order():
    got, expected = _run(_scale, [_pack([5])._replace(sorted_indices=None, unsorted_indices=None)], [
        _pack([5])._replace(sorted_indices=None, unsorted_indices=None)
    ])  # fmt: skip
    assert got.sorted_indices is None
    assert_equal(got.data, expected.data)

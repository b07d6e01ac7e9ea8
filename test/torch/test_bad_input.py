"""PyTorch runs calls whose inputs differ from those given to sol.optimize; with ``fullgraph`` an exception names the argument
and the shapes. Unusual but valid input works."""

import numpy
import pytest
import torch
from conftest import Function, Net, Optional, assert_as_eager, assert_equal, assert_runs_in_sol

import sol.pytorch as sol

BAD_TENSORS = {
    "rank": (lambda x: x[0], ValueError, r"input\[0\].*f32\[\*,3,9,7\].*f32\[3,9,7\]"),
    "size": (lambda x: x[:, :2], ValueError, r"f32\[2,2,9,7\]"),
    "dtype": (lambda x: x.double(), TypeError, r"f64\[2,3,9,7\]"),
    "integers": (lambda x: x.long(), TypeError, r"i64\[2,3,9,7\]"),
    "meta": (lambda x: x.to("meta"), TypeError, "meta"),
    "complex": (lambda x: torch.complex(x, x), TypeError, "complex"),
    "sparse": (lambda x: x.to_sparse(), TypeError, "sparse"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), TypeError, "quant"),
    "numpy": (lambda x: x.numpy(), TypeError, "numpy.ndarray"),
    "none": (lambda x: None, TypeError, "NoneType"),
    "number": (lambda x: 3.0, TypeError, "float"),
    "list": (lambda x: [x], TypeError, "list"),
}


@pytest.mark.parametrize("make, error, words", BAD_TENSORS.values(), ids=BAD_TENSORS.keys())
def test_bad_tensor(net, x, make, error, words):
    fast = sol.optimize(net, sol.input([0, 3, 9, 7]), fullgraph=True)
    with torch.no_grad(), pytest.raises(error, match=words):
        fast(make(x))
    assert_runs_in_sol(fast, x)


@pytest.mark.parametrize("make, error, words", BAD_TENSORS.values(), ids=BAD_TENSORS.keys())
def test_undeclared_tensor(fast, x, make, error, words):
    assert_as_eager(fast, make(x))
    assert_runs_in_sol(fast, x)


def test_pytorch_s_error_names_what_was_declared(fast, x):
    with torch.no_grad(), pytest.raises(RuntimeError, match="3 channels") as caught:
        fast(x[:, :2])
    assert caught.value.__context__ is None
    notes = getattr(caught.value, "__notes__", ["f32[2,2,9,7]"])  # Python 3.11
    assert len(notes) == 1 and "f32[2,2,9,7]" in notes[0]


def test_number_of_inputs(fast, net, x):
    fullgraph = sol.optimize(net, sol.input([0, 3, 9, 7]), fullgraph=True)
    with torch.no_grad():
        for args in ((), (x, x)):
            assert_as_eager(fast, *args)
            with pytest.raises(ValueError, match=f"expected 1 inputs, got {len(args)}"):
                fullgraph(*args)


def test_keywords(fast, x, net):
    with torch.no_grad():
        assert_equal(fast(x=x), net(x))
    assert not sol.fallbacks(fast)
    assert_as_eager(fast, y=x)


def test_unequal_batches(x):
    model, inputs = Function(torch.add).eval(), [sol.input([0, 3])] * 2
    pair = torch.ones(2, 3), torch.ones(1, 3)
    assert_as_eager(sol.optimize(model, inputs), *pair)
    fullgraph = sol.optimize(model, inputs, fullgraph=True)
    with torch.no_grad(), pytest.raises(ValueError, match=r"input\[0\] has 2, input\[1\] has 1"):
        fullgraph(*pair)


UNDECLARED_CALLS = {
    "fewer": lambda fast, x: assert_as_eager(fast),
    "height": lambda fast, x: assert_as_eager(fast, torch.randn(2, 3, 5, 7)),
    "rank": lambda fast, x: assert_as_eager(fast, torch.randn(2, 3)),
    "type": lambda fast, x: assert_as_eager(fast, torch.ones(2, 3, 9, 7, dtype=torch.int32)),
    "number": lambda fast, x: assert_as_eager(fast, 3),
    "unknown": lambda fast, x: assert_as_eager(fast, x, shift=1),
}


@pytest.mark.parametrize("check", UNDECLARED_CALLS.values(), ids=UNDECLARED_CALLS.keys())
def test_undeclared_call(x, check):
    fast = sol.optimize(Optional().eval(), sol.input([0, 3, 9, 7]))
    check(fast, x)
    assert_runs_in_sol(fast, x)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_another_batch_than_the_fixed_one(net, batch):
    fast = sol.optimize(net, sol.input([2, 3, 9, 7]))
    assert_as_eager(fast, torch.randn(batch, 3, 9, 7))
    assert_runs_in_sol(fast, torch.randn(2, 3, 9, 7))


@pytest.mark.parametrize(
    "shape, error, words",
    [
        ([-1, 3], ValueError, "negative"),
        ([2**40, 2**40], ValueError, "bytes"),
        ([0, 3.0], TypeError, "integers"),
        ([0, True], TypeError, "integers"),
        (3, TypeError, "list of sizes"),
    ],
)
def test_bad_declaration(shape, error, words):
    with pytest.raises(error, match=words):
        sol.input(shape)


def test_bad_dtype():
    with pytest.raises(TypeError, match="torch.dtype"):
        sol.input([0, 3], dtype="float32")


@pytest.mark.parametrize("shape", [[0, 4, 9, 7], [0, 3, 9, 7, 1], [0, 3]])
def test_shape_that_the_model_refuses(net, shape):
    with pytest.raises(ValueError, match="the model refuses f32"):
        sol.optimize(net, sol.input(shape))


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 1.5}, TypeError),
        ({"vdims": [1]}, NotImplementedError),
        ({"vdims": 5}, NotImplementedError),
        ({"vdims": [0, 2]}, NotImplementedError),
    ],
)
def test_bad_options(net, arguments, error):
    with pytest.raises(error):
        sol.optimize(net, sol.input([0, 3, 9, 7]), **arguments)


def test_what_is_no_model(net):
    for wrong in (Net, lambda x: x, None):
        with pytest.raises(TypeError, match="torch.nn.Module"):
            sol.optimize(wrong, sol.input([0, 3]))
    with pytest.raises(TypeError, match="what the model takes"):
        sol.optimize(net)
    with pytest.raises(TypeError, match="numpy"):
        sol.optimize(net, numpy.zeros((1, 3, 9, 7), numpy.float32))


def test_config():
    with pytest.raises(KeyError, match="compiler::debug"):
        sol.config["compiler::debgu"] = True
    with pytest.raises(KeyError, match="log::level"):
        sol.config["log::levels"]
    with pytest.raises(TypeError, match="bool"):
        sol.config["compiler::debug"] = 1
    with pytest.raises(TypeError, match="int"):
        sol.config["log::level"] = True
    with pytest.raises(ValueError):
        sol.config["log::level"] = 9
    for value in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="training::memory.*from 0 to 1"):
            sol.config["training::memory"] = value
    for value in (True, "0.5"):
        with pytest.raises(TypeError, match="takes float"):
            sol.config["training::memory"] = value
    assert sol.config["training::memory"] is None
    before = sol.config["log::level"]
    sol.config["log::level"] = sol.log.error
    assert sol.config["log::level"] == 0
    sol.config["log::level"] = before


def test_config_print(capsys):
    sol.config.print()
    out = capsys.readouterr().out
    assert "compiler::winograd" in out and "log::level" in out


def test_load_state_dict(fast, net, x):
    with pytest.raises(RuntimeError, match="size mismatch"):
        fast.load_state_dict(Net(classes=6).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        fast.load_state_dict({})
    assert_runs_in_sol(fast, x)


def test_attribute_that_is_not_there(fast):
    with pytest.raises(AttributeError, match="nothing_like_it"):
        getattr(fast, "nothing_like_it")  # noqa: B009, ruff would report a plain expression, too


ODD_INPUTS = {
    "one": lambda x: x[:1],
    "empty": lambda x: x[:0],
    "nan": lambda x: torch.where(x > 1, torch.nan, x),
    "infinite": lambda x: torch.where(x > 1, torch.inf, x),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "expanded": lambda x: x[:1, :1].expand(4, 3, 9, 7),
    "every second": lambda x: x.repeat(2, 1, 1, 1)[::2],
    "misaligned": lambda x: torch.cat([torch.zeros(1), x.flatten()])[1:].view(x.shape),
    "negative bit": lambda x: torch.complex(x, x).conj().imag,
    "parameter": lambda x: torch.nn.Parameter(x),
    "inference tensor": lambda x: _inference(x),
}


def _inference(x):
    with torch.inference_mode():
        return x.clone()


@pytest.mark.parametrize("make", ODD_INPUTS.values(), ids=ODD_INPUTS.keys())
def test_odd_input(fast, x, make):
    assert_runs_in_sol(fast, make(x))


def test_inference_mode(fast, net, x):
    with torch.inference_mode():
        y = fast(x)
        assert y.is_inference()
        assert_equal(y, net(x))
    assert not sol.fallbacks(fast)


def test_default_device_and_dtype_do_not_matter(fast, net, x):
    expected = net(x).detach()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), torch.device("meta"):
            assert_equal(fast(x), expected)
    finally:
        torch.set_default_dtype(torch.float32)


@torch.library.custom_op("sol_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_operators_of_others_are_named():
    fast = sol.optimize(Function(lambda x: twice(x) + 1).eval(), sol.input([0, 3]))
    with torch.no_grad():
        assert torch.equal(fast(torch.ones(2, 3)), torch.full((2, 3), 3.0))
    (reason,) = sol.fallbacks(fast)
    assert "sol_test.twice" in reason and "does not support" in reason

"""Programs of torch.export as models: inputs and open sizes come from the program, parameters stay those of the program."""

import copy
import io

import pytest
import torch
from conftest import assert_equal
from torch.export import Dim

import sol as every_frontend
import sol.pytorch as sol


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("offset", torch.randn(3))
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x, y=None, *, scale):
        y = self.drop(torch.relu(self.linear(x))) * scale + self.offset
        return {"a": y, "b": (None, y.sum(-1))}


def export(model=None, least=0, most=None):
    n = Dim("n", min=least, max=most)
    return torch.export.export(
        (model or Net()).eval(),
        (torch.randn(max(least, 3), 4),),
        {"scale": torch.ones(max(least, 3), 1)},
        dynamic_shapes={"x": {0: n}, "scale": {0: n}},
    )


def check(fast, program, *batches):
    for batch in batches:
        x, scale = torch.randn(batch, 4), torch.randn(batch, 1)
        with torch.no_grad():
            got, expected = fast(x, scale=scale), program.module()(x, scale=scale)
        assert_equal(got["a"], expected["a"])
        assert_equal(got["b"], expected["b"])
    assert not sol.fallbacks(fast)


def test_program():
    program = export()
    fast = sol.optimize(program)
    check(fast, program, 3, 1, 8)
    assert sol.recompiles(fast) == 0


def test_parameters_are_those_of_the_program():
    program = export()
    fast = sol.optimize(program)
    check(fast, program, 3)
    with torch.no_grad():
        program.state_dict["linear.weight"].mul_(2)
        fast.offset += 1
    assert torch.equal(program.state_dict["offset"], fast.offset)
    assert dict(fast.named_parameters()).keys() == dict(program.named_parameters()).keys()
    check(fast, program, 3)


@pytest.mark.parametrize("kind", ["path", "other name", "file", "bytes"])
def test_file(tmp_path, kind):
    program, path = export(), tmp_path / ("m.pt2" if kind == "path" else "m.bin")
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getvalue())
    if kind == "file":
        with open(path, "rb") as file:
            fast = sol.optimize(file)
    else:
        fast = sol.optimize(io.BytesIO(buffer.getvalue()) if kind == "bytes" else str(path))
    check(fast, program, 2, 5)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "m.pt2"
    with pytest.raises(FileNotFoundError):
        sol.optimize(path)
    path.write_text("no archive")
    with pytest.raises(ValueError, match=r"sol.optimize: .*m.pt2 is no file of torch.export.save"):
        sol.optimize(path)
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(ValueError, match=r"sol.optimize: .*m.pt2 is no file of torch.export.save"):
        sol.optimize(path)


def test_calls_that_the_program_refuses():
    program = export(least=2, most=6)
    fast = sol.optimize(program)
    check(fast, program, 2, 6)
    for x, scale in ((torch.randn(3, 5), torch.ones(3, 1)), (torch.randn(7, 4), torch.ones(7, 1))):
        with torch.no_grad(), pytest.raises(AssertionError, match="Guard failed"):
            fast(x, scale=scale)


def test_a_least_batch():
    program = export(least=4)
    fast = sol.optimize(program)
    check(fast, program, 4, 9)


def test_fixed_sizes():
    program = torch.export.export(Net().eval(), (torch.ones(2, 4),), {"scale": torch.ones(2, 1)})
    fast = sol.optimize(program)
    check(fast, program, 2)
    with torch.no_grad(), pytest.raises(AssertionError, match="Guard failed"):
        fast(torch.ones(3, 4), scale=torch.ones(3, 1))


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)

    def forward(self, batch):
        x = self.embed(batch["ids"]) * batch["mask"][:, :, None]
        return x.sum(1), batch["pair"][0] + batch["pair"][1]


def test_nested_inputs_and_two_open_sizes():
    n, m = Dim("n"), Dim("m")
    given = {
        "ids": torch.randint(9, (3, 5)),
        "mask": torch.ones(3, 5),
        "pair": (torch.ones(3), torch.ones(3)),
    }
    sizes = {"ids": {0: n, 1: m}, "mask": {0: n, 1: m}, "pair": ({0: n}, {0: n})}
    program = torch.export.export(Tokens().eval(), (given,), dynamic_shapes={"batch": sizes})
    fast = sol.optimize(program)
    with torch.no_grad():
        for a, b in ((2, 7), (4, 3)):
            batch = {
                "ids": torch.randint(9, (a, b)),
                "mask": torch.randn(a, b),
                "pair": (torch.randn(a), torch.randn(a)),
            }
            assert_equal(fast(batch), program.module()(batch))
    assert not sol.fallbacks(fast)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(3))

    def forward(self, x):
        self.n += x.sum(0)
        return x * 2 + self.n


def test_program_that_writes_a_buffer():
    program = torch.export.export(Counter().eval(), (torch.ones(2, 3),))
    fast, model = sol.optimize(program), Counter()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3)
            assert_equal(fast(x), model(x))
    assert_equal(program.state_dict["n"], model.n)
    assert not sol.fallbacks(fast)


def test_copy():
    program = export()
    fast = copy.deepcopy(sol.optimize(program))
    check(fast, program, 3)


def test_deploy(tmp_path):
    program = export()
    torch.export.save(program, tmp_path / "m.pt2")
    for i, model in enumerate((program, tmp_path / "m.pt2", sol.optimize(program))):
        folder = tmp_path / str(i)
        every_frontend.deploy(model, target=sol.deployment.c_source, lib_name="Net", path=folder)
        text = (folder / "Net.h").read_text()
        assert "const float *input0_x, const float *input1_scale" in text
        assert "float **output0_a, float **output1_b_1" in text

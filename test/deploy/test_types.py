"""Libraries of networks with inputs and outputs of all element types: the header's types and names, and a program in C."""

import re
import subprocess

import pytest
import torch
from deploy_net import COMPILERS, HERE, WARNINGS
from torch import nn

import sol.pytorch as sol

BATCH, LENGTH, WIDTH = 2, 5, 8
SHARED, SOURCE = sol.deployment.shared_lib, sol.deployment.c_source


class Types(nn.Module):
    """A network whose arguments and results have all kinds of element types, and names."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)

    def forward(self, ids, mask=None, *, scale, count, pixels, half, small, wide):
        x = self.embed(ids) * scale[:, :, None] + half.float()
        x = x.masked_fill(~mask[:, :, None], 0.0)
        logits = x.sum(2) + pixels.float() + small.float()
        return {
            "scores": {"logits": logits, "best": (ids + count).argmax(1)},
            "any": mask & (ids > 3),
            "wide": wide * 2,
            "values": [half + half, small * 2],
            "count": count + 1,
            "pixels": pixels + 1,
        }


def make_inputs():
    size = BATCH, LENGTH
    return {
        "ids": torch.randint(11, size),
        "mask": torch.rand(size) > 0.3,
        "scale": torch.randn(size),
        "count": torch.randint(-5, 5, size, dtype=torch.int32),
        "pixels": torch.randint(256, size, dtype=torch.uint8),
        "half": torch.randn(*size, WIDTH).half(),
        "small": torch.randn(size).bfloat16(),
        "wide": torch.randn(BATCH, dtype=torch.float64),
    }


def declare(inputs):
    return {name: sol.input(list(x.shape), dtype=x.dtype) for name, x in inputs.items()}


def build(folder, target, compiler):
    """Compiles types.c with the library in ``folder``."""
    argv = [compiler, "-std=c99", *WARNINGS, "-I", str(folder), str(HERE / "types.c")]
    if target == SOURCE:
        argv += [str(folder / "Net.c"), "-lm"]
    else:
        argv += ["-L", str(folder), "-lNet", f"-Wl,-rpath,{folder}"]
    done = subprocess.run([*argv, "-o", str(folder / "types")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(folder, inputs):
    """Runs the program. Returns its output as bytes."""
    given = b"".join(x.contiguous().view(torch.uint8).numpy().tobytes() for x in inputs.values())
    (folder / "in.raw").write_bytes(given)
    argv = [str(folder / "types"), str(folder / "in.raw"), str(folder / "out.raw")]
    done = subprocess.run(argv, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "out.raw").read_bytes()


@pytest.mark.parametrize("target", [SHARED, SOURCE])
def test_a_program_in_c(tmp_path, target):
    torch.manual_seed(0)
    model, inputs = Types().eval(), make_inputs()
    folder = tmp_path / "made" / "here"
    sol.deploy(model, kwargs=declare(inputs), lib_name="Net", path=folder, target=target)
    with torch.no_grad():
        result = model(**inputs)
    scores, values = result["scores"], result["values"]
    expected = [scores["logits"], scores["best"], result["any"], result["wide"]]
    expected += [*values, result["count"], result["pixels"]]
    for compiler in COMPILERS:
        build(folder, target, compiler)
        got = run(folder, inputs)
        for x in expected:
            n = x.numel() * x.element_size()
            part = torch.frombuffer(bytearray(got[:n]), dtype=x.dtype).reshape(x.shape)
            torch.testing.assert_close(part, x)
            got = got[n:]
        assert not got


def test_names_and_types_in_the_header(tmp_path):
    inputs = make_inputs()
    sol.deploy(Types().eval(), kwargs=declare(inputs), lib_name="Net", path=tmp_path, target=SOURCE)
    text = (tmp_path / "Net.h").read_text()
    ports = re.findall(r"^ \*   (?:input|output) +\d+  (\w+) \[.*?\]  (.*)$", text, re.M)
    assert ports == [
        ("int64_t", "ids"),
        ("uint8_t", "mask  (bool: 0 or 1)"),
        ("float", "scale"),
        ("int32_t", "count"),
        ("uint8_t", "pixels"),
        ("uint16_t", "half  (bits of a float16)"),
        ("uint16_t", "small  (bits of a bfloat16: the upper half of a float)"),
        ("double", "wide"),
        ("float", "scores.logits"),
        ("int64_t", "scores.best"),
        ("uint8_t", "any  (bool: 0 or 1)"),
        ("double", "wide"),
        ("uint16_t", "values.0  (bits of a float16)"),
        ("uint16_t", "values.1  (bits of a bfloat16: the upper half of a float)"),
        ("int32_t", "count"),
        ("uint8_t", "pixels"),
    ]
    assert "const int64_t *input0_ids, const uint8_t *input1_mask" in text


def test_inputs_by_position_and_name(tmp_path):
    inputs = declare(make_inputs())
    ids = inputs.pop("ids")
    sol.deploy(Types().eval(), [ids], kwargs=inputs, lib_name="Net", path=tmp_path, target=SOURCE)
    assert (
        "const int64_t *input0_ids, const uint8_t *input1_mask" in (tmp_path / "Net.h").read_text()
    )
    with pytest.raises(TypeError, match="sol.deploy: Types.forward: got an unexpected keyword"):
        sol.deploy(Types().eval(), [ids], kwargs={**inputs, "idx": ids}, path=tmp_path)


def test_an_optimized_module_keeps_its_names(tmp_path):
    fast = sol.optimize(Types().eval(), kwargs=declare(make_inputs()))
    sol.deploy(fast, lib_name="Net", path=tmp_path, target=SOURCE)
    assert (
        "const int64_t *input0_ids, const uint8_t *input1_mask" in (tmp_path / "Net.h").read_text()
    )

"""Custom layers: C functions of the user, in PyTorch, in SOL's programs and in deployed libraries."""

import copy
import ctypes
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import Function, assert_equal, assert_runs_in_sol, run_in_threads
from torch import nn

import sol.pytorch as sol

EXAMPLE = Path(__file__).parents[2] / "examples/custom_layer/swirl.py"
HEAD = "#include <sol/custom.h>\n"
# y = x * factor, and one more for each element of z; a task is a row
SCALE = (
    HEAD
    + """
int64_t scale_tasks(const struct sol_host_call *call) {
    const struct sol_host_tensor *x = &call->in[0];
    return x->rank ? x->dim[0] : 1;
}

enum sol_status scale(const struct sol_host_call *call) {
    const struct sol_host_tensor *x = &call->in[0];
    const int64_t rows = scale_tasks(call), n = rows ? sol_host_count(x) / rows : 0;
    if (x->rank > 3) return sol_host_fail(call, SOL_EUNSUPPORTED, "a rank of %d", x->rank);
    for (int64_t i = call->begin * n; i < call->end * n; i++)
        ((float *)call->out[0].data)[i] =
            ((const float *)x->data)[i] * (float)sol_attribute_float(call, "factor");
    return SOL_OK;
}
"""
)


@pytest.fixture(scope="module")
def scale():
    return sol.custom_layer("scale", source=SCALE, attributes={"factor": 3.0})


class Block(nn.Module):
    """A residual block with a custom layer in the middle."""

    def __init__(self, layer):
        super().__init__()
        self.a, self.b = nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1)
        self.layer = layer

    def forward(self, x):
        y = torch.relu(self.a(x))
        return torch.relu(self.b(self.layer(y, factor=0.5)) + y)


def modules_of(fast, x):
    return [step.module for step in sol.profile(fast, x, runs=1).steps]


# ---- Results ----


def test_example(keep_objects):
    run = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    differences = re.findall(r"^  (\S.*?) +(\d\S*e\S+)$", run.stdout, re.M)
    assert len(differences) == 7 and all(float(x) < 1e-5 for _, x in differences), run.stdout
    assert "  custom  swirl\n" in run.stdout
    assert "nodes that Python computes: 0\ncalls that ran in PyTorch: 0\n" in run.stdout


def test_block(scale):
    model = Block(scale).eval()
    fast = sol.optimize(model, sol.input([0, 4, 0]), fullgraph=True)
    for n, length in (2, 8), (1, 5), (7, 31), (2, 8):
        assert_runs_in_sol(fast, torch.randn(n, 4, length))
    modules = modules_of(fast, torch.randn(2, 4, 8))
    assert modules.count("custom") == 1 and "host" not in modules
    assert not sol.host_nodes(fast)
    with torch.no_grad():
        assert fast(torch.randn(0, 4, 8)).shape == (0, 4, 8)
        x = torch.randn(2, 4, 8)
        compiled = torch.compile(model, backend="sol", fullgraph=True)
        assert_equal(compiled(x), model(x))
        assert_equal(copy.deepcopy(fast)(x), model(x))
        exported = torch.export.export(model, (x,)).module()
        assert_equal(exported(x), model(x))


def test_pickle(scale):
    assert pickle.loads(pickle.dumps(scale)) is scale and copy.deepcopy(scale) is scale
    data = pickle.dumps(scale).replace(b"sol::scale", b"sol::other")
    with pytest.raises(RuntimeError, match="sol::other does not exist in this process"):
        pickle.loads(data)


SEVERAL = (
    HEAD
    + """
/* least[i] = the smallest element of row i, where[i] = its column, plus all attributes */
enum sol_status least(const struct sol_host_call *call) {
    const struct sol_host_tensor *x = &call->in[0];
    const struct sol_attribute *add = sol_attribute_find(call, "add");
    const struct sol_attribute *scales = sol_attribute_find(call, "scales");
    const int64_t n = x->dim[x->rank - 1], rows = n ? sol_host_count(x) / n : 0;
    if (x->dtype != SOL_F64 || call->out[1].dtype != SOL_I64 || call->n_attributes != 6)
        return sol_host_fail(call, SOL_EINVAL, "other types");
    double bias = sol_attribute_int(call, "flag") + sol_attribute_int(call, "count");
    bias += sol_attribute_float(call, "step") + (strcmp(sol_attribute_find(call, "mode")->text, "a\\"b") ? 0 : 100);
    for (int64_t i = 0; i < add->n; i++) bias += add->ints[i];
    for (int64_t i = 0; i < scales->n; i++) bias *= scales->floats[i];
    for (int64_t i = 0; i < rows; i++) {
        const double *row = (const double *)x->data + i * n;
        int64_t best = 0;
        for (int64_t j = 1; j < n; j++)
            if (row[j] < row[best]) best = j;
        ((double *)call->out[0].data)[i] = row[best] + bias;
        ((int64_t *)call->out[1].data)[i] = best;
    }
    return SOL_OK;
}
"""
)


def test_several_results_types_and_attributes():
    least = sol.custom_layer(
        "least",
        source=SEVERAL,
        outputs=2,
        shape=lambda x, **_: [x.shape[:-1], x.shape[:-1]],
        dtype=lambda x, **_: [x.dtype, torch.int64],
        attributes={"flag": True, "count": 7, "step": 0.25, "mode": 'a"b', "add": [1, 2], "scales": [0.5]},
    )  # fmt: skip

    def function(x):
        value, where = least(x * 2, step=0.5, add=[], scales=[2.0, 3.0])
        other, _ = least(x * 2, mode="", flag=False)
        return value + 1, where * 2, other

    def expected(x):
        value, where = (x * 2).min(-1)
        return value + (1 + 7 + 0.5 + 100) * 6 + 1, where * 2, value + (7 + 0.25 + 3) * 0.5

    fast = sol.optimize(Function(function).eval(), sol.input([0, 3, 4], dtype=torch.float64))
    with torch.no_grad():
        for n in 2, 5:
            x = torch.randn(n, 3, 4, dtype=torch.float64)
            assert_equal(function(x), expected(x))
            assert_runs_in_sol(fast, x)


def test_equal_calls(scale):
    """A pure function runs once for equal inputs and attributes."""
    steady = sol.custom_layer("scale", source=SCALE, attributes={"factor": 3.0}, pure=False)
    for layer, n in (scale, 3), (steady, 4):

        def function(x, f=layer):
            y = torch.relu(x)
            return f(y) + f(y, factor=3.0) * f(y, factor=0.0) - f(y, factor=-0.0)

        fast = sol.optimize(Function(function).eval(), sol.input([0, 3, 4]))
        x = torch.randn(2, 3, 4)
        assert_runs_in_sol(fast, x)
        assert modules_of(fast, x).count("custom") == n


def test_same_name(scale):
    """A second layer of the same name does not change the first one."""
    twice = sol.custom_layer(
        "scale", source=SCALE.replace('factor")', 'factor") * 2'), attributes={"factor": 1.0}
    )
    x = torch.randn(3, 4)
    fast = sol.optimize(Function(lambda x: scale(x) + twice(x)).eval(), sol.input([0, 4]))
    with torch.no_grad():
        assert_equal(twice(x), x * 2)
        assert_equal(scale(x), x * 3)
        assert_runs_in_sol(fast, x)


def test_replaced_layer(scale):
    """The guard notices that a module has another layer."""
    model = Block(scale).eval()
    fast = sol.optimize(model, sol.input([0, 4, 8]))
    x = torch.randn(2, 4, 8)
    assert_runs_in_sol(fast, x)
    fast.layer = sol.custom_layer(
        "scale", source=SCALE.replace('factor")', 'factor") + 1'), attributes={"factor": 3.0}
    )
    with torch.no_grad():
        y = torch.relu(model.a(x))
        assert_equal(fast(x), torch.relu(model.b(y * 0.5 + 1) + y))


def test_threads(scale):
    fast = sol.optimize(Block(scale).eval(), sol.input([0, 4, 0]))
    wrong = []

    def call():
        with torch.no_grad():
            for n in range(1, 20):
                x = torch.randn(n, 4, 8)
                if not torch.allclose(fast(x), fast._original(x), atol=1e-5):
                    wrong.append(n)

    run_in_threads(call)
    assert not wrong and not sol.fallbacks(fast)


def test_gradient(scale):
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        scale(x).sum().backward()
    layer = sol.custom_layer("scale", source=SCALE, attributes={"factor": 3.0})

    def remember(ctx, inputs, keyword_only_inputs, output):
        ctx.factor = keyword_only_inputs["factor"]

    layer.register_autograd(lambda ctx, g: layer(g, factor=ctx.factor), remember)
    layer(x, factor=5.0).sum().backward()
    assert_equal(x.grad, torch.full((3, 4), 5.0))


def test_strides_and_no_rank(scale):
    with torch.no_grad():
        x = torch.randn(4, 3)
        assert_equal(scale(x.t()), x.t() * 3)
        assert_equal(scale(x[:, ::2]), x[:, ::2] * 3)
        assert_equal(scale(torch.tensor(2.0)), torch.tensor(6.0))


def test_open_attribute(scale):
    """An attribute that is computed from a size is a constant, so this size is compiled in."""

    def function(x):
        return scale(torch.relu(x), factor=float(x.shape[1])) + 1

    fast = sol.optimize(Function(function).eval(), sol.input([0, 0]))
    with torch.no_grad():
        for n in 4, 5, 4:
            x = torch.randn(3, n)
            assert_equal(fast(x), function(x))


# ---- Libraries ----


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A shared library that has the function scale."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "scale.c").write_text(SCALE)
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    command += ["-std=c99", f"-I{sol.include_folder()}", "-o", folder / "libscale.so"]
    subprocess.run([*command, folder / "scale.c"], check=True)
    return folder / "libscale.so"


def test_library(library, tmp_path):
    layer = sol.custom_layer("scale", library=library, attributes={"factor": 3.0})
    fast = sol.optimize(Block(layer).eval(), sol.input([0, 4, 8]))
    assert_runs_in_sol(fast, torch.randn(3, 4, 8))
    with pytest.raises(NotImplementedError, match=r"scale \(.*test_custom.py.*no C source"):
        sol.deploy(fast, path=tmp_path)
    assert not list(tmp_path.iterdir())


DEPLOYED = {
    "shared": {},
    "packed": {"weights": "packed"},
    "static": {"target": sol.deployment.static_lib},
    "source": {"target": sol.deployment.c_source, "device": sol.device.x86},
}


def load(folder, kind):
    """Returns the deployed library, linked or built where that is the user's part."""
    if kind == "static":
        run = ["cc", "-shared", "-o", "libNet.so", "-Wl,--whole-archive", "libNet.a"]
        subprocess.run([*run, "-Wl,--no-whole-archive", "-lm", "-lpthread"], cwd=folder, check=True)
    if kind == "source":
        folder = folder / "Net"
        assert "/" not in re.sub(
            "/[*/]|[*]/", "", (folder / "custom_0.c").read_text().partition("#include")[0]
        )
        subprocess.run(["sh", folder / "build.sh"], check=True)
    return ctypes.CDLL(str(folder / "libNet.so"))


@pytest.mark.parametrize("kind", DEPLOYED)
def test_deploy(kind, scale, tmp_path, keep_objects):
    """Two layers of the same name, with other code, and one that is called twice."""
    if kind == "source" and not sol.devices().get("x86", (False,))[0]:
        pytest.skip("another processor")
    other = sol.custom_layer(
        "scale", source=SCALE.replace('factor")', 'factor") * 2'), attributes={"factor": 1.0}
    )
    model = nn.Sequential(
        Block(scale), Block(other), Block(scale), Function(lambda x: scale(x, factor=float("inf")))
    ).eval()
    for _ in range(2):  # the second deployment replaces the first
        sol.deploy(
            model,
            sol.input([0, 4, 6]),
            lib_name="Net",
            func_name="scale_net",
            path=tmp_path,
            **DEPLOYED[kind],
        )
    net = load(tmp_path, kind)
    net.Net_error.restype = ctypes.c_char_p
    x, y = torch.randn(3, 4, 6), torch.empty(3, 4, 6)
    context = ctypes.c_void_p()
    assert not net.Net_open(None, ctypes.byref(context)), net.Net_error()
    ports = [(ctypes.c_void_p * 1)(t.data_ptr()) for t in (x, y)]
    assert not net.Net_run(context, (ctypes.c_int64 * 1)(3), *ports), net.Net_error()
    with torch.no_grad():
        assert torch.allclose(y.nan_to_num(7), model(x).nan_to_num(7), atol=1e-5)


def test_deploy_error(tmp_path, keep_objects):
    """A failing function of a library: the message has the layer and its shapes."""
    text = (
        HEAD
        + 'enum sol_status bad(const struct sol_host_call *c) { return sol_host_fail(c, SOL_EINVAL, "never"); }'
    )
    layer = sol.custom_layer("bad", source=text + "\n")
    sol.deploy(
        Function(lambda x: layer(torch.relu(x)) + 1).eval(), sol.input([2, 3]), path=tmp_path
    )
    net = ctypes.CDLL(str(tmp_path / "libMyNetwork.so"))
    net.predict_error.restype = ctypes.c_char_p
    x, y = torch.randn(2, 3), ctypes.c_void_p()
    net.predict(None, ctypes.c_void_p(x.data_ptr()), ctypes.byref(y))
    assert net.predict_error() == b"bad: never; it was called for f32[2,3] -> f32[2,3]" and not y


def test_portable(scale, tmp_path):
    with pytest.raises(
        NotImplementedError, match="portable C cannot contain the custom layer scale"
    ):
        sol.deploy(
            Block(scale).eval(), sol.input([1, 4, 8]), target=sol.deployment.c_source, path=tmp_path
        )
    assert not list(tmp_path.iterdir())


# ---- Sources ----


def test_included_files(tmp_path):
    """Files that a source includes belong to it: a change in one of them is noticed."""
    (tmp_path / "a folder").mkdir()
    (tmp_path / "factor.h").write_text(
        '#pragma once\n#include "a folder/more.h"\n#define FACTOR 2\n'
    )
    more = '#ifndef MORE\n#define MORE 1\n#include "../factor.h"\nstatic float add = 1;\n#endif\n'
    (tmp_path / "a folder/more.h").write_text(more)
    text = '#include "factor.h"\n#include "a folder/more.h"\n' + SCALE.replace(
        'float(call, "factor")', 'float(call, "factor") * FACTOR + add'
    )
    (tmp_path / "scale.c").write_text(text)
    x = torch.ones(1, 3)
    for factor in 2, 5:
        (tmp_path / "factor.h").write_text(
            f'#pragma once\n#include "a folder/more.h"\n#define FACTOR {factor}\n'
        )
        layer = sol.custom_layer("scale", source=tmp_path / "scale.c", attributes={"factor": 3.0})
        assert_equal(layer(x), x * 3 * factor + 1)


def broken(text):
    return pytest.raises(
        RuntimeError, match=f"(?s)custom layer scale: the C compiler failed.*{text}"
    )


def test_bad_sources(tmp_path):
    file = tmp_path / 'odd"name.c'
    file.write_text(SCALE.replace("return SOL_OK;", "return SOL_OKAY;"))
    with broken("odd'name.c:1[0-9]:.*SOL_OKAY"):
        sol.custom_layer("scale", source=file)
    with broken("scale.c:1[0-9]:.*SOL_OKAY"):
        sol.custom_layer("scale", source=file.read_text())
    with broken("the layer's functions.*scal"):
        sol.custom_layer("scale", source=SCALE.replace("scale(", "scal("))
    with broken("it is not of the form: enum sol_status scale"):
        sol.custom_layer("scale", source=HEAD + "int scale(int x) { return x; }\n")
    with broken("does not include <sol/custom.h>"):
        sol.custom_layer("scale", source="int scale(int x) { return x; }\n")
    with broken("missing.h"):
        sol.custom_layer("scale", source='#include "missing.h"\n' + SCALE)
    with pytest.raises(RuntimeError, match="(?s)custom layer scale: .*option"):
        sol.custom_layer("scale", source=SCALE, flags="--no-such-option")
    with pytest.raises(FileNotFoundError):
        sol.custom_layer("scale", source=tmp_path / "missing.c")


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("SOL_CC", "none")
    with pytest.raises(NotImplementedError, match="custom layer scale: there is no C compiler"):
        sol.custom_layer("scale", source=SCALE)


def test_bad_libraries(library):
    with pytest.raises(
        ValueError,
        match=r"custom layer scal: the library .*libscale.so has no function of this name",
    ):
        sol.custom_layer("scal", library=library)
    with pytest.raises(ValueError, match="custom layer malloc: the library .* has no function"):
        sol.custom_layer("malloc", library=library)  # libc has it
    with pytest.raises(
        ValueError, match="custom layer scale: cannot open its library: .*missing.so"
    ):
        sol.custom_layer("scale", library="./missing.so")


BAD_ARGUMENTS = [
    ({"source": None}, "give either source or library"),
    ({"library": "x.so"}, "give either source or library"),
    ({"source": 3}, "not a path or C text"),
    ({"name": "a-b"}, "no name of C"),
    ({"inputs": -1}, "neither a number nor a list"),
    ({"inputs": ["a", "a"]}, "neither a number nor a list"),
    ({"inputs": ["a b"]}, "the input 'a b' is no name of C"),
    ({"inputs": 0}, "needs a shape function"),
    ({"outputs": 0}, "not a number above 0"),
    ({"shape": [1]}, "not a function"),
    ({"attributes": {"a": None}}, "a=None is no number"),
    ({"attributes": {"a": [1, 2.0]}}, "is no number"),
    ({"attributes": {"x": 1}}, "has the name of an input"),
    ({"attributes": {"a": float("nan")}}, "is not finite"),
    ({"attributes": {"a-b": 1}}, "no name of C"),
]  # fmt: skip


@pytest.mark.parametrize("change, message", BAD_ARGUMENTS)
def test_bad_arguments(change, message):
    arguments = {"name": "scale", "source": SCALE} | change
    with pytest.raises((TypeError, ValueError), match=message):
        sol.custom_layer(**arguments)


BAD_SHAPES = [
    (lambda x: 3, r"custom layer scale\(float32\[2, 3\]\): its shape function returned 3"),
    (lambda x: [2.0, 3], "which is no list of at most 8 sizes"),
    (lambda x: [1] * 9, "at most 8 sizes"),
    (lambda x: (-1, 3), r"its shape function returned \[-1, 3\]"),
    (lambda x: x.shape[7:8][0], r"scale\(float32\[2, 3\]\): its shape function failed: IndexError"),
    (lambda: [2], "its shape function failed: TypeError"),
]  # fmt: skip


@pytest.mark.parametrize("shape, message", BAD_SHAPES)
def test_bad_shapes(shape, message):
    layer = sol.custom_layer("scale", source=SCALE, shape=shape)
    with pytest.raises((TypeError, ValueError), match=message):
        layer(torch.ones(2, 3))


def test_bad_results():
    two = sol.custom_layer("scale", source=SCALE, outputs=2, shape=lambda x: [x.shape])
    with pytest.raises(TypeError, match="not a list for 2 outputs"):
        two(torch.ones(2, 3))
    typed = sol.custom_layer("scale", source=SCALE, dtype=torch.complex64)
    with pytest.raises(TypeError, match="no element type torch.complex64"):
        typed(torch.ones(2, 3))
    with pytest.raises(TypeError, match="no element type torch.complex64"):
        typed(torch.ones(2, 3, dtype=torch.complex64))


# ---- Errors of the function ----


def test_failing_function(scale):
    message = r"scale.*: a rank of 4; it was called for f32\[1,2,3,4\] -> f32\[1,2,3,4\]"
    x = torch.ones(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match=message):
        scale(x)
    fast = sol.optimize(
        Function(lambda x: scale(torch.relu(x)) + 1).eval(), sol.input([0, 2, 3, 4])
    )
    compiled = torch.compile(Function(lambda x: scale(torch.relu(x)) + 1).eval(), backend="sol")
    for call in fast, compiled:
        with torch.no_grad(), pytest.raises(NotImplementedError, match=message):
            call(x)


def test_no_tasks():
    text = SCALE.replace("return x->rank ? x->dim[0] : 1;", "return x->dim[0] - 2;")
    layer = sol.custom_layer("scale", source=text, attributes={"factor": 2.0})
    fast = sol.optimize(Function(lambda x: layer(torch.relu(x)) + 1).eval(), sol.input([0, 3]))
    for call in layer, fast:
        with (
            torch.no_grad(),
            pytest.raises(ValueError, match="scale.*: its number of tasks is -1; .*f32.1,3."),
        ):
            call(torch.ones(1, 3))


def test_names():
    assert os.path.exists(os.path.join(sol.include_folder(), "sol/custom.h"))
    import sol as package

    assert package.custom_layer is sol.custom_layer

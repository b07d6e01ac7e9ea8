"""Names of sol, sol.pytorch and sol.onnx: a name means the same in all three, and any of them may be imported as ``sol``."""

import inspect
import subprocess
import sys

import pytest
from conftest import Net


def run(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


NAMES = """
assert all(map(callable, [sol.optimize, sol.input, sol.load, sol.profile, sol.memory, sol.report, sol.deploy]))
assert callable(sol.onnx.load) and callable(sol.pytorch.optimize) and callable(sol.cache.clear)
assert sol.config and sol.bench and sol.deployment.shared_lib and sol.device.x86 and sol.log.warn == 1
"""
PACKAGES = ["sol", "sol.pytorch", "sol.onnx"]


@pytest.mark.parametrize("first", PACKAGES)
def test_imports_side_by_side(first):
    """`import sol.x` binds `sol` to the package again: it must offer the same names."""
    script = f"import {first} as sol\n{NAMES}"
    run(script)
    for second in [*PACKAGES, "sol.bench", "sol.deployment"]:
        exec(f"import {first} as sol\nimport {second}\n{NAMES}", {})
        exec(f"import {second}\nimport {first} as sol\n{NAMES}", {})


def test_import_needs_no_framework():
    script = "import sys, sol; print(sorted({'torch', 'numpy'} & set(sys.modules)));"
    assert run(script + "sol.devices(); sol.versions(); dir(sol); sol.config.print") == "[]\n"
    script = "import sys, sol; sol.load; sol.profile; print('torch' in sys.modules)"
    assert run(script) == "False\n"


def test_each_name_means_one_thing():
    import sol
    import sol.onnx
    import sol.pytorch

    same = set(sol.__all__) - {
        "deploy"
    }  # there it is the one of the frontend, which sol.deploy chooses
    for name in same:
        objects = {id(getattr(package, name)) for package in (sol, sol.pytorch, sol.onnx)}
        assert len(objects) == 1, name
    assert inspect.isfunction(sol.profile) and "sol.profile" not in sys.modules
    for package in sol, sol.pytorch, sol.onnx:
        assert set(sol.__all__) <= set(dir(package))


def test_names_that_there_are_not():
    import sol
    import sol.onnx
    import sol.pytorch

    for package in sol, sol.pytorch, sol.onnx:
        with pytest.raises(AttributeError, match="sol.pytorch and sol.onnx"):
            getattr(package, "num" + "py")
        assert not hasattr(package, "tensorflow") and not hasattr(package, "__wrapped__")


def test_help():
    text = run("import pydoc, sol; print(pydoc.render_doc(sol))")
    assert "optimize" in text and "sol.load" in text


def test_without_a_framework():
    """Without PyTorch, dir() does not list names that need it, and their errors name the missing package."""
    script = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Missing())
import sol, pydoc
assert "optimize" not in dir(sol) and "load" in dir(sol) and pydoc.render_doc(sol)
try:
    sol.optimize
except ModuleNotFoundError as error:
    print(error)
"""
    assert "torch" in run(script)


INTERPRETED = """
import os
os.environ["SOL_CC"] = "none"
import sol, torch
sol.log.set_level(sol.log.{level})
assert sol.config["log::level"] == sol.log.{level}
sol.log.say(sol.log.warn, "a word of Python's side")
sol.optimize(torch.nn.ReLU().eval(), torch.ones(1, 2))
"""


@pytest.mark.parametrize("level, expected", [("error", False), ("warn", True)])
def test_one_log_level_for_the_process(level, expected):
    script = INTERPRETED.format(level=level)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ("sol: warning: a word of Python's side" in done.stderr) == expected
    assert ("sol: warning: generated kernels are interpreted" in done.stderr) == expected


def test_levels():
    import sol

    with pytest.raises(ValueError):
        sol.log.set_level(9)


def test_the_level_of_the_environment():
    script = "import sol; sol.log.say(sol.log.info, 'hello'); print(sol.log.level().name)"
    for value, level in (("INFO", "info"), ("error", "error"), ("4", "trace"), ("FOO", "warn")):
        found = run(f"import os; os.environ['SOL_LOG'] = {value!r}\n{script}")
        assert found == f"{level}\n"


def test_variables_that_mean_nothing_are_told_once():
    script = "import os; os.environ.update(SOL_DEBUG='foo', SOL_LOG='loud')\nimport sol, sol.pytorch, torch\n"
    script += "sol.optimize(torch.nn.Linear(2, 2).eval(), torch.ones(1, 2))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.count("SOL_DEBUG=foo") == 1 and done.stderr.count("SOL_LOG=loud") == 1
    assert "kernels" in done.stderr and "TRACE" in done.stderr


def test_cache_tells_how_much(tmp_path):
    script = f"""
import os; os.environ["SOL_CACHE_DIR"] = {str(tmp_path / "cache")!r}
import sol, torch
print(sol.cache.usage())
sol.optimize(torch.nn.ReLU().eval(), torch.ones(1, 2))
used = sol.cache.usage()
assert used.files > 0 and used.bytes > 1000 and sol.cache.clear() == used
print(sol.cache.usage())
"""
    assert run(script) == "0 files, 0.0 MiB\n" * 2


def test_memory_of_another_batch():
    import sol

    fixed = sol.optimize(Net().eval(), sol.input([2, 3, 9, 7]), name="net")
    assert sol.memory(fixed, 2) == sol.memory(fixed)
    for batch in 32, 0, -1:
        with pytest.raises(ValueError, match=rf"net: compiled for .*2,3,9,7.*no batch of {batch}"):
            sol.memory(fixed, batch)
    with pytest.raises(TypeError, match="integer"):
        sol.memory(fixed, "2")
    with pytest.raises(ValueError, match="batch_size=-1"):
        sol.memory(sol.optimize(Net().eval(), sol.input([0, 3, 9, 7])), -1)

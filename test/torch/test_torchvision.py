"""tools/torchvision_cpu.py: torchvision can be imported beside PyTorch's CPU build."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/torchvision_cpu.py"
USE = """
import torch, torchvision, sol
net = torchvision.models.squeezenet1_1().eval()
fast = sol.optimize(net, sol.input([0, 3, 64, 64]))
with torch.no_grad():
    print(sol.fallbacks(fast), tuple(fast(torch.ones(1, 3, 64, 64)).shape))
try:
    torchvision.ops.nms(torch.ones(1, 4), torch.ones(1), 0.5)
except RuntimeError as error:
    print("nms:", str(error).split(".")[0])
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with torchvision as pip installs it, which is imported instead of the environment's own. Its files are links, except the
    one that the tool may change."""
    found = importlib.util.find_spec("torchvision")
    if found is None:
        pytest.skip("torchvision is not installed")
    own = Path(found.origin).parent
    (tmp_path / "torchvision").mkdir()
    for path in own.iterdir():
        if path.name not in ("extension.py", "__pycache__"):
            (tmp_path / "torchvision" / path.name).symlink_to(path)
    text = (own / "extension.py").read_text().split("\n# ---- Appended by")[0]
    (tmp_path / "torchvision/extension.py").write_text(text.rstrip() + "\n")
    return tmp_path


def run(folder, *args):
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=env)


def test_import(folder):
    for _ in range(2):
        done = run(folder, TOOL)
        assert done.returncode == 0, done.stdout + done.stderr
    text = (folder / "torchvision/extension.py").read_text()
    assert text.count("Appended by") <= 1  # none if the wheel's own operators load
    done = run(folder, "-c", USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{} (1, 1000)")
    assert "Appended by" not in text or "nms: Couldn't load custom C++ ops" in done.stdout

"""SOL for PyTorch: ``import sol.pytorch as sol``.

fast = sol.optimize(model.eval(), sol.input([0, 3, 224, 224]))
with torch.no_grad():
    y = fast(x)
"""

from sol import cache, config, deployment, device, devices, log, versions
from sol.pytorch.deploy import deploy
from sol.pytorch.inputs import input
from sol.pytorch.optimize import fallbacks, optimize, recompiles, refresh
from sol.pytorch.profile import memory, profile, report

__all__ = [
    "cache", "config", "deploy", "deployment", "device", "devices", "fallbacks", "input", "log", "memory", "optimize", "profile",
    "recompiles", "refresh", "report", "versions",
]  # fmt: skip

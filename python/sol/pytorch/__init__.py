"""SOL for PyTorch: ``import sol.pytorch as sol``.

fast = sol.optimize(model.eval(), sol.input([0, 3, 224, 224]))
with torch.no_grad():
    y = fast(x)

All other names of the package ``sol``, such as ``sol.onnx`` and ``sol.load``, are available here, too.
"""

from sol import (
    _names,
    cache,
    config,
    deployment,
    device,
    devices,
    log,
    memory,
    profile,
    report,
    versions,
)
from sol.pytorch.custom import custom_layer, include_folder
from sol.pytorch.deploy import deploy
from sol.pytorch.fallback import fallback_count
from sol.pytorch.inputs import input
from sol.pytorch.optimize import (
    fallbacks,
    graphs,
    host_nodes,
    optimize,
    recompile_reasons,
    recompiles,
    refresh,
)
from sol.pytorch.seeds import seed, seeds, set_seed

__all__ = [
    "cache", "config", "custom_layer", "deploy", "deployment", "device", "devices", "fallback_count", "fallbacks", "graphs", "host_nodes", "include_folder", "input", "log", "memory", "optimize", "profile",
    "recompile_reasons", "recompiles", "refresh", "report", "seed", "seeds", "set_seed", "versions",
]  # fmt: skip


def __getattr__(name):
    return _names.find(__name__, name)


def __dir__():
    return _names.list_names(globals())

"""Networks from ONNX files, called with NumPy arrays.

    import sol.onnx as sol
    net = sol.load("model.onnx")
    y = net(x)

The file is read by libsol itself; neither the onnx package nor a framework is needed. What the package ``sol`` offers besides, such as
``sol.optimize``, is here, too.
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
from sol.onnx.deploy import deploy
from sol.onnx.network import Network, load

__all__ = [
    "Network", "cache", "config", "deploy", "deployment", "device", "devices", "load", "log", "memory", "profile", "report",
    "versions",
]  # fmt: skip


def __getattr__(name):
    return _names.find(__name__, name)


def __dir__():
    return _names.list_names(globals())

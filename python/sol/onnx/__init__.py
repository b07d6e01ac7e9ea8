"""Networks from ONNX files, called with NumPy arrays.

    import sol.onnx as sol
    net = sol.load("model.onnx")
    y = net(x)

libsol reads the file itself: it needs neither the onnx package nor a framework. All other names of the package ``sol``,
such as ``sol.optimize``, are available here, too.
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

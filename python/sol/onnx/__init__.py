"""Networks from ONNX files, called with NumPy arrays.

    import sol.onnx as sol
    net = sol.load("model.onnx")
    y = net(x)

The file is read by libsol itself; neither the onnx package nor a framework is needed.
"""

from sol import cache, config, deployment, device, devices, log, versions
from sol.onnx.deploy import deploy
from sol.onnx.network import Network, load

__all__ = [
    "Network", "cache", "config", "deploy", "deployment", "device", "devices", "load", "log",
    "versions",
]  # fmt: skip

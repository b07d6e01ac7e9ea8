"""Networks from ONNX files, called with NumPy arrays.

    import sol.onnx as sol
    net = sol.load("model.onnx")
    y = net(x)

The file is read by libsol itself; neither the onnx package nor a framework is needed.
"""

from sol import cache, config, devices, log, versions
from sol.onnx.network import Network, load

__all__ = ["Network", "cache", "config", "devices", "load", "log", "versions"]

"""Where time and memory of a network go, whichever frontend it came from.

print(sol.profile(fast, x))                 a table, one row per kernel
sol.profile(fast, x).save_trace("t.json")   for chrome://tracing and ui.perfetto.dev
sol.report(fast, x, path="report.html")     all of it, and the network, as a page for a browser
print(sol.memory(fast, batch_size=32))
"""

import sys


def _frontend(network):
    """The module with the three functions for this network. No framework is imported for another one's network."""
    module = sys.modules.get("sol.onnx.network")
    if module is not None and isinstance(network, module.Network):
        from sol.onnx import measure
    else:
        from sol.pytorch import measure
    return measure


def profile(network, *inputs, runs=20):
    """Times each kernel of a network for these inputs, as the median of ``runs`` -> Profile.

    ``network``: what sol.optimize or sol.load returned. Raises RuntimeError with the reason when PyTorch runs the module, and
    NotImplementedError for an ONNX network that is partly interpreted.
    """
    return _frontend(network).profile(network, *inputs, runs=runs)


def report(network, *inputs, path="report.html", runs=20):
    """Writes a page for a browser: the network with the time of each kernel, memory over time, what was fused and chosen.

    Raises as ``profile`` does.
    """
    _frontend(network).report(network, *inputs, path=path, runs=runs)


def memory(network, batch_size=None, inputs=None):
    """What a network needs for a batch -> Memory.

    ``batch_size``: None is that of ``sol.optimize`` or ``sol.load``, or 1; of a network whose batch is fixed, no other one. ``inputs``: of an
    ONNX network, arrays that say all open sizes. Raises as ``profile`` does.
    """
    return _frontend(network).memory(network, batch_size, inputs)

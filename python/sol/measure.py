"""Time and memory of a network, for networks of both frontends.

print(sol.profile(fast, x))                 a table with one row per step
sol.profile(fast, x).save_trace("t.json")   a trace for chrome://tracing and ui.perfetto.dev
sol.report(fast, x, path="report.html")     an HTML report of the network, its times, its memory and the compiler's choices
print(sol.memory(fast, batch_size=32))
"""

import sys


def _frontend(network):
    """Returns the frontend's module that measures this network. It imports only the framework that the network needs."""
    module = sys.modules.get("sol.onnx.network")
    if module is not None and isinstance(network, module.Network):
        from sol.onnx import measure
    else:
        from sol.pytorch import measure
    return measure


def profile(network, *inputs, runs=20, **keywords):
    """Times each step of a network. Returns a sol.times.Profile with the median seconds of ``runs`` runs.

    network  an optimized module (sol.optimize) or a Network (sol.load)
    inputs   the arguments of one call of ``network``: tensors, or NumPy arrays; a module's also by name

    The steps of an ONNX network that is partly interpreted are those of its compiled parts, and the nodes that are
    interpreted (module "node"). A step that runs several times, in a loop, has the sum of its times.

    Raises RuntimeError with the reason when PyTorch runs the module, TypeError or ValueError for inputs that do not fit.
    """
    return _frontend(network).profile(network, *inputs, runs=runs, **keywords)


def report(network, *inputs, path="report.html", runs=20, **keywords):
    """Writes an HTML report to the file ``path``: the network with the median time of each step, memory over time, fused
    layers, and the implementations that were chosen and refused.

    ``network``, ``inputs``, ``runs``: as for ``profile``. Raises the same exceptions, OSError when ``path`` cannot be
    written, and NotImplementedError for an ONNX network that is partly interpreted.
    """
    _frontend(network).report(network, *inputs, path=path, runs=runs, **keywords)


def memory(network, batch_size=None, inputs=None):
    """Returns the sol.times.Memory, in bytes, that a network needs for one batch.

    batch_size  number of samples; None: the ``batch_size`` of sol.optimize or sol.load, or 1 if there was none
    inputs      for an ONNX network only: a list of arrays (or one array) whose shapes give the values of all open sizes

    Raises TypeError for a batch size that is no integer and for ``inputs`` of a PyTorch module, ValueError for a batch size
    that the network cannot have, RuntimeError with the reason when PyTorch runs the module, and NotImplementedError for an
    ONNX network that is partly interpreted.
    """
    return _frontend(network).memory(network, batch_size, inputs)

"""Lets programs that ``import onnxruntime`` run with SOL, without a change.

    import sol.onnx
    sol.onnx.replace_onnxruntime()
    import a_package_that_imports_onnxruntime

``python -m sol.onnx program.py arguments`` does the same for a whole program (__main__.py).
"""

import importlib
import sys
import types

# Programs compare the version of the package with those whose interface they need. It is the one that this interface is checked
# against.
VERSION = "1.31.1"
MODULES = (
    "capi",
    "capi._pybind_state",
    "capi.onnxruntime_inference_collection",
    "capi.onnxruntime_pybind11_state",
)


class _Replacement(types.ModuleType):
    """The module ``onnxruntime``: the names of ``sol.onnx``."""

    def __getattr__(self, name):
        return getattr(sys.modules["sol.onnx"], name)

    def __dir__(self):
        return dir(sys.modules["sol.onnx"])


def replace_onnxruntime():
    """Makes ``import onnxruntime`` import this interface, in the whole process. To be called before any import of the package.

    Its other parts, such as onnxruntime.quantization, cannot be imported then. Raises RuntimeError if ONNX Runtime itself has
    been imported.
    """
    found = sys.modules.get("onnxruntime")
    if isinstance(found, _Replacement):
        return
    if found is not None:
        raise RuntimeError("onnxruntime has been imported; replace_onnxruntime comes before that")
    module = _Replacement("onnxruntime", sys.modules["sol.onnx"].__doc__)
    module.__version__ = VERSION
    module.__path__ = []  # a package, whose other modules do not exist
    module.__spec__ = importlib.machinery.ModuleSpec("onnxruntime", None, is_package=True)
    sys.modules["onnxruntime"] = module
    for name in MODULES:
        sys.modules[f"onnxruntime.{name}"] = importlib.import_module(f"sol.onnx.{name}")

"""All names of ``sol.onnx`` and its exceptions: programs import some of them from here."""

from sol.onnx.capi.onnxruntime_pybind11_state import *  # noqa: F403
from sol.onnx.capi.onnxruntime_pybind11_state import __getattr__  # noqa: F401

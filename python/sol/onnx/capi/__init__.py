"""The modules in which ONNX Runtime has its exceptions, for programs that import them from there."""

from sol.onnx.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]

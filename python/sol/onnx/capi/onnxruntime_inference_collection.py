"""InferenceSession, OrtValue, IOBinding and the other names of ``sol.onnx``: programs import some of them from here."""

from sol.onnx.capi.onnxruntime_pybind11_state import __getattr__  # noqa: F401

"""The exceptions of ``InferenceSession``, with the names that they have in ONNX Runtime.

Each is also the exception that SOL raises elsewhere for such an error: ``sol.load`` raises ValueError for a bad model, and
InvalidGraph is a ValueError. SOL never raises EPFail, EngineError, ModelLoaded and NoModel. They exist for programs that name
them in an ``except``.
"""


class Fail(RuntimeError):
    """A call failed."""


class RuntimeException(RuntimeError):
    """The runtime failed."""


class InvalidArgument(ValueError):
    """An input or the name of an output does not fit the network."""


class InvalidProtobuf(ValueError):
    """The file is no ONNX model, or is damaged."""


class InvalidGraph(ValueError):
    """The file is an ONNX model, but its graph is wrong."""


class NotImplemented(NotImplementedError):
    """SOL does not implement an operator, or an option."""


class NoSuchFile(FileNotFoundError):
    """There is no such file."""


class NoModel(RuntimeError):
    """Never raised."""


class ModelLoaded(RuntimeError):
    """Never raised."""


class EngineError(RuntimeError):
    """Never raised."""


class EPFail(RuntimeError):
    """Never raised."""


def __getattr__(name):
    """Returns a name of ``sol.onnx``. ONNX Runtime has its classes in this module, too."""
    import sol.onnx

    if name in sol.onnx.__all__:
        return getattr(sol.onnx, name)
    raise AttributeError(f"SOL's replacement of onnxruntime has no {name!r}")

"""SOL as a backend of the onnx package: ``sol.onnx.backend.prepare(model).run(inputs)``. onnx's test suite uses it, too."""

import numpy
from onnx.backend.base import Backend, BackendRep
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

from sol.onnx.network import load


class SolRep(BackendRep):
    """A loaded network. ``run`` returns a tuple of outputs."""

    def __init__(self, network):
        self.network = network

    def run(self, inputs, **kwargs):
        values = [x if x is None or isinstance(x, list) else numpy.asarray(x) for x in inputs]
        try:
            results = self.network(*values)
        except NotImplementedError as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error
        return results if isinstance(results, tuple) else (results,)


class SolBackend(Backend):
    """Implements onnx's Backend. Raises BackendIsNotSupposedToImplementIt with SOL's reason for what SOL does not support."""

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        try:
            return SolRep(load(model.SerializeToString()))
        except NotImplementedError as error:
            raise BackendIsNotSupposedToImplementIt(str(error)) from error

    @classmethod
    def supports_device(cls, device):
        return device == "CPU"


is_compatible = SolBackend.is_compatible
prepare = SolBackend.prepare
run = SolBackend.run_model
supports_device = SolBackend.supports_device

"""Values and bound memory, with the interface of ONNX Runtime's package: OrtValue, OrtDevice, IOBinding.

All memory is the processor's, so an OrtValue is a NumPy array (or a list or dict, for a sequence or map) with another interface,
and binding saves no copies: a result is computed into new memory, and copied if the program has bound memory of its own.
"""

import ctypes

import numpy

from sol.onnx.capi.onnxruntime_pybind11_state import InvalidArgument, RuntimeException
from sol.onnx.feed import describe_value
from sol.onnx.session import NUMBERS, STRING, dtype_of


def _check_device(device_type):
    if device_type.lower() != "cpu":
        raise RuntimeException(f"there is no device {device_type!r}; SOL runs on the cpu")


class OrtDevice:
    """The processor: the only device."""

    def __init__(self, device_type="cpu", device_id=0):
        _check_device(device_type)
        self._id = device_id

    @staticmethod
    def make(ort_device_name, device_id, vendor_id=-1):
        """Returns the device "cpu". Raises RuntimeException for another one."""
        return OrtDevice(ort_device_name, device_id)

    def device_type(self):
        """Returns 0, ONNX Runtime's number of the processor."""
        return 0

    def device_id(self):
        """Returns the number that the program has given."""
        return self._id

    def device_mem_type(self):
        """Returns 0: usual memory."""
        return 0

    def device_vendor_id(self):
        """Returns 0: none."""
        return 0


class OrtValue:
    """A tensor, a sequence or a map. A tensor shares its memory with the array that it is made from."""

    def __init__(self, value):
        self._value = value

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj, device_type="cpu", device_id=0, vendor_id=-1):
        """Returns a tensor that shares the memory of the array."""
        _check_device(device_type)
        if not isinstance(numpy_obj, numpy.ndarray):
            raise TypeError(
                f"a tensor is made from an array, not from a {type(numpy_obj).__name__}"
            )
        return cls(numpy.ascontiguousarray(numpy_obj).reshape(numpy_obj.shape))

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data, onnx_element_type):
        """Returns a tensor over the same bytes, whose elements have another type of the same size, by ONNX's number."""
        return cls(data.view(_find_dtype(onnx_element_type)))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape, element_type, device_type="cpu", device_id=0, vendor_id=-1, memory_info=None
    ):
        """Returns a new tensor of zeros. ``element_type``: NumPy's type or ONNX's number."""
        _check_device(device_type)
        return cls(numpy.zeros(tuple(shape), _find_dtype(element_type)))

    @classmethod
    def from_dlpack(cls, data):
        """Returns a tensor that shares the memory of a tensor of another framework."""
        return cls(numpy.from_dlpack(data))

    def _tensor(self):
        if not self.is_tensor():
            raise RuntimeException(f"the value is no tensor but a {self.data_type()}")
        return self._value

    def data_ptr(self):
        """Returns the address of the first element."""
        return self._tensor().__array_interface__["data"][0]

    def device_name(self):
        """Returns "cpu"."""
        return "cpu"

    def shape(self):
        """Returns the list of dims."""
        return list(self._tensor().shape)

    def data_type(self):
        """Returns the type, such as "tensor(float)"."""
        return describe_value(self._value)

    def element_type(self):
        """Returns ONNX's number of the element type."""
        dtype = self._tensor().dtype
        return STRING if dtype.kind in "OUST" else NUMBERS[dtype.name]

    def has_value(self):
        """False for an optional without a value."""
        return self._value is not None

    def is_tensor(self):
        """Is it a tensor?"""
        return isinstance(self._value, numpy.ndarray)

    def is_sparse_tensor(self):
        """False: SOL has no sparse tensors."""
        return False

    def is_tensor_sequence(self):
        """Is it a sequence of tensors?"""
        return isinstance(self._value, list) and not any(isinstance(x, dict) for x in self._value)

    def tensor_size_in_bytes(self):
        """Returns the size of the elements."""
        return self._tensor().nbytes

    def numpy(self):
        """Returns the array. Raises RuntimeException for another value."""
        return self._tensor()

    def update_inplace(self, data):
        """Copies an array or OrtValue of the same shape and type into the memory."""
        _copy(data.numpy() if isinstance(data, OrtValue) else data, self._tensor(), "the new value")

    def __array__(self, dtype=None, copy=None):
        return numpy.array(self._tensor(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream=None):
        return self._tensor().__dlpack__()

    def __dlpack_device__(self):
        return self._tensor().__dlpack_device__()


def _find_dtype(element_type):
    if isinstance(element_type, (int, numpy.integer)):
        return dtype_of(int(element_type))
    return numpy.dtype(element_type)


def _copy(source, target, what):
    if not isinstance(source, numpy.ndarray):
        raise TypeError(f"{what} is no array but a {type(source).__name__}")
    if source.shape != target.shape or source.dtype != target.dtype:
        raise InvalidArgument(
            f"{what} is {source.dtype} {list(source.shape)}, its memory {target.dtype} {list(target.shape)}"
        )
    target[...] = source


def _over_memory(element_type, shape, address):
    """Returns an array over memory of the program, which must keep it."""
    dtype = _find_dtype(element_type)
    size = dtype.itemsize * int(numpy.prod(shape, dtype=numpy.int64))
    memory = (ctypes.c_char * size).from_address(address) if size else b""
    return numpy.frombuffer(memory, dtype).reshape(tuple(shape))


class IOBinding:
    """Inputs and outputs of later calls of ``InferenceSession.run_with_iobinding``. Outputs that are not bound are not returned."""

    def __init__(self, session):
        self._known = (
            [x.name for x in session.get_inputs()],
            [x.name for x in session.get_outputs()],
        )
        self._known[0].extend(x.name for x in session.get_overridable_initializers())
        self._inputs, self._outputs, self._results = {}, {}, []

    def _bind(self, kind, name, value):
        if name not in self._known[kind]:
            what = ("input", "output")[kind]
            raise InvalidArgument(f"there is no {what} {name!r}; there are {self._known[kind]}")
        (self._inputs, self._outputs)[kind][name] = value

    def bind_cpu_input(self, name, arr_on_cpu):
        """Binds an input to an array."""
        self._bind(0, name, arr_on_cpu)

    def bind_ortvalue_input(self, name, ortvalue):
        """Binds an input to an OrtValue. Calls see later changes of it."""
        self._bind(0, name, ortvalue._value)

    def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr):
        """Binds an input to memory at an address, which the program must keep."""
        _check_device(device_type)
        self._bind(0, name, _over_memory(element_type, shape, buffer_ptr))

    def bind_output(
        self, name, device_type="cpu", device_id=0, element_type=None, shape=None, buffer_ptr=None
    ):
        """Binds an output: to memory at an address, which the program must keep, or to new memory of each call."""
        _check_device(device_type)
        if buffer_ptr is not None and (element_type is None or shape is None):
            raise ValueError("bind_output: an address needs element_type and shape")
        target = None if buffer_ptr is None else _over_memory(element_type, shape, buffer_ptr)
        self._bind(1, name, target)

    def bind_ortvalue_output(self, name, ortvalue):
        """Binds an output to the memory of an OrtValue."""
        self._bind(1, name, ortvalue.numpy())

    def synchronize_inputs(self):
        """Without effect: all memory is the processor's."""

    synchronize_outputs = synchronize_inputs

    def clear_binding_inputs(self):
        """Forgets the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self):
        """Forgets the outputs, and the results of the last call."""
        self._outputs.clear()
        self._results = []

    def get_outputs(self):
        """Returns the results of the last call (OrtValue), in the order in which the outputs were bound."""
        return [OrtValue(x) for x in self._results]

    def copy_outputs_to_cpu(self):
        """Returns the results of the last call as arrays."""
        return list(self._results)

    def call(self, run, run_options):
        """Computes the bound outputs by ``run``, ``InferenceSession.run``."""
        results = run(list(self._outputs), self._inputs, run_options) if self._outputs else []
        for (name, target), result in zip(self._outputs.items(), results):
            if target is not None:
                _copy(result, target, f"output {name}")
        self._results = [
            result if target is None else target
            for target, result in zip(self._outputs.values(), results)
        ]

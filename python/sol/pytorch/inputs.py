"""Inputs of a model: their declaration by ``sol.input``, example tensors or constants, and their check at each call.

    spec = TensorSpec("x", (None, 3, 224, 224), torch.float32)   # None: any size
    tensor = check_tensor(spec, value)                            # contiguous, or an exception

The open sizes of a call have a key: the batch size, if only first sizes are open (all of these are the batch size); else a
tuple of the batch size, if it is open, and each other open size in the order of the inputs; None without open sizes.

make_specs: the Call that ``sol.optimize`` is given -> a TensorSpec or ConstantSpec per leaf. The value of a constant (a number, a
string, None) is compiled into the plan.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, strided

from sol import log
from sol.pytorch.structure import flatten

MAX_BYTES = 2**63 - 1
# The batch size of example inputs. PyTorch treats sizes of 0 and 1 as special cases.
EXAMPLE_BATCH = 2
# The other open sizes of example inputs: (the first, the distance to the next). All are different, so that PyTorch does not
# take one for another, and have many divisors. If a model refuses the first ones, smaller and equal ones are tried.
EXAMPLE_SIZES = (256, 64), (32, 16), (8, 4), (64, 0), (8, 0)

DTYPE_NAMES = {
    torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip

# Other subclasses of Tensor may define other operations.
PLAIN_TENSORS = torch.Tensor, torch.nn.Parameter, torch.nn.Buffer

# Types of inputs that are no tensors; their values are compiled in.
CONSTANTS = (int, float, bool, str, bytes, type(None), torch.dtype)


class Input:
    """The result of ``sol.input``; a size of 0 is any size. It is no tuple, as ``flatten`` would take that apart."""

    def __init__(self, shape, dtype, requires_grad):
        self.shape = shape
        self.dtype = dtype
        self.requires_grad = requires_grad

    def __repr__(self):
        return f"sol.input({list(self.shape)}, dtype={self.dtype})"


class TensorSpec(NamedTuple):
    """A tensor argument. A size of None is open. An open first size is the batch size, which all such inputs share."""

    name: str
    shape: tuple
    dtype: torch.dtype
    requires_grad: bool = False

    @property
    def is_dynamic(self):
        """Whether the first size is open."""
        return bool(self.shape) and self.shape[0] is None

    @property
    def open_dims(self):
        """The open dims but the first."""
        return [d for d, size in enumerate(self.shape) if size is None and d]

    def fits(self, shape):
        """Whether a tensor of this shape fits."""
        return len(shape) == len(self.shape) and all(
            a is None or a == b for a, b in zip(self.shape, shape)
        )

    def make_empty(self):
        """Returns a tensor without elements that wants a gradient if the declared one does."""
        return torch.empty(0, dtype=self.dtype, requires_grad=self.requires_grad)

    def __str__(self):
        return describe(self.dtype, self.shape)


class ConstantSpec(NamedTuple):
    """An argument of a type in CONSTANTS, whose value is compiled in."""

    name: str
    value: Any


def input(shape, dtype=torch.float32, requires_grad=False):
    """Declares a tensor argument for ``sol.optimize`` and ``sol.deploy``.

    shape          a list of sizes. Any size may be 0, which leaves it open: a call may have any value there. The first size
                   is the batch size, if it is open: it is equal for all inputs.
    dtype          a torch.dtype: a float, integer or bool type. PyTorch runs a model that reads others, such as complex numbers.
    requires_grad  only for sol.memory in training: at each call, SOL checks whether a gradient is needed

    Raises TypeError if a size is no integer or ``dtype`` no torch.dtype, ValueError if a size is negative or if the tensor
    has more than 2**63 - 1 bytes.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"sol.input: dtype must be a torch.dtype, not {dtype!r}")
    if isinstance(shape, int):
        raise TypeError(f"sol.input: shape must be a list of sizes, not {shape!r}")
    sizes = tuple(shape)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"sol.input: sizes are integers, not {size!r} in {list(sizes)}")
    _check_sizes(sizes, dtype)
    return Input(sizes, dtype, bool(requires_grad))


def _check_sizes(sizes, dtype):
    text = f"sol.input({list(sizes)})"
    if any(size < 0 for size in sizes):
        raise ValueError(f"{text}: sizes cannot be negative")
    size = dtype.itemsize
    for n in sizes:
        size *= max(n, 1)
    if size > MAX_BYTES:
        raise ValueError(f"{text}: {size} bytes are more than memory can ever hold")


def describe(dtype, shape):
    """Returns a dtype and a shape as text, with * for an open size: f32[*,3,224,224]."""
    sizes = ",".join("*" if size is None else str(size) for size in shape)
    return f"{DTYPE_NAMES.get(dtype, str(dtype).removeprefix('torch.'))}[{sizes}]"


def make_specs(call, first_is_any):
    """Returns (a spec per leaf, Structure) of a Call of declared inputs. Raises TypeError or ValueError.

    ``first_is_any``: the first size of every tensor stays open, also that of example tensors.
    """
    leaves, structure = flatten(call)
    names = leaf_names(structure)
    return [_make_spec(n, leaf, first_is_any) for n, leaf in zip(names, leaves)], structure


def leaf_names(structure):
    """Yields a name per leaf of a Call, for messages: input[0], input['mask'][1]."""
    for path in structure.paths():
        yield "input" + "".join(f"[{key!r}]" for key in path)


def _make_spec(name, leaf, first_is_any):
    if isinstance(leaf, torch.Size):
        leaf = input(leaf)
    if isinstance(leaf, torch.Tensor):
        _check_example(name, leaf)
        return _tensor_spec(name, leaf.shape, leaf, first_is_any)
    if isinstance(leaf, Input):
        return _tensor_spec(name, leaf.shape, leaf, first_is_any or leaf.shape[:1] == (0,))
    if type(leaf).__module__ == "numpy":
        raise TypeError(f"{name}: expected a tensor or sol.input, got numpy.{type(leaf).__name__}")
    if not isinstance(leaf, CONSTANTS):
        raise TypeError(
            f"{name}: expected a tensor, sol.input or number, got {type(leaf).__name__}"
        )
    return ConstantSpec(name, leaf)


def _tensor_spec(name, shape, facts, first_is_any):
    shape = tuple(shape)
    if isinstance(facts, Input):
        shape = tuple(size or None for size in shape)
    if first_is_any and shape:
        shape = (None, *shape[1:])
    return TensorSpec(name, shape, facts.dtype, facts.requires_grad)


def _check_example(name, tensor):
    check_kind(name, tensor)
    if 0 in tensor.shape:
        raise ValueError(f"{name}: the example {describe(tensor.dtype, tensor.shape)} is empty")


def check_kind(name, value):
    """Raises TypeError unless ``value`` is a plain, dense, real tensor on the CPU."""
    if not isinstance(value, torch.Tensor):
        kind = type(value)
        hint = "; use torch.from_numpy" if kind.__module__ == "numpy" else ""
        raise TypeError(f"{name}: expected a tensor, got {kind.__module__}.{kind.__name__}{hint}")
    if value.layout is not torch.strided:
        raise TypeError(f"{name}: SOL takes dense tensors, not {value.layout}")
    if value.is_quantized:
        raise TypeError(f"{name}: SOL takes no quantized tensors ({value.dtype})")
    if value.is_complex():
        raise TypeError(f"{name}: SOL takes no complex tensors ({value.dtype})")
    if value.is_meta:
        raise TypeError(f"{name}: a meta tensor has no values")
    if not value.is_cpu:
        raise ValueError(f"{name}: expected a tensor on cpu, got one on {value.device}")


def check_tensor(spec, value):
    """Returns ``value`` as a contiguous tensor; it copies only other memory layouts and negated views.

    Raises TypeError or ValueError with the argument's name, its type and shape, and the expected ones.
    """
    # The usual case takes few steps. The checks below run only for a value that does not fit.
    if (
        isinstance(value, Tensor)
        and value.dtype is spec.dtype
        and value.layout is strided
        and value.is_cpu
    ):
        shape = value.shape
        if len(shape) == len(spec.shape) and (
            shape == spec.shape
            or (spec.is_dynamic and shape[1:] == spec.shape[1:])
            or spec.fits(shape)
        ):
            return value if _is_plain(value) else _copy(spec, value)
    check_kind(spec.name, value)
    got = describe(value.dtype, value.shape)
    if value.dtype is not spec.dtype:
        raise TypeError(f"{spec.name}: expected {spec}, got {got}")
    raise ValueError(f"{spec.name}: expected {spec}, got {got}")


def check_constant(spec, value):
    """Returns ``value`` if it has the declared constant's type; all int and float values fit each other. Raises TypeError."""
    numbers = (int, float)
    if isinstance(spec.value, numbers) and isinstance(value, numbers):
        return value
    if type(value) is not type(spec.value):
        expected, got = type(spec.value).__name__, type(value).__name__
        raise TypeError(f"{spec.name}: expected {expected}, got {got}")
    return value


def _is_plain(tensor):
    return tensor.is_contiguous() and not tensor.is_neg()


def _copy(spec, tensor):
    log.say_once(
        log.info,
        ("copy", spec.name, tensor.stride()),
        f"{spec.name}: strides {tuple(tensor.stride())} are not row major, copied at each call",
    )
    return tensor.resolve_neg().contiguous()


def has_open_dims(specs):
    """Whether a size other than the batch size is open."""
    return any(spec.open_dims for spec in specs)


def find_sizes(specs, tensors):
    """Returns the key of the open sizes of a call. Raises ValueError if the batch size differs between inputs."""
    batch = find_batch(specs, tensors)
    others = [tensor.shape[d] for spec, tensor in zip(specs, tensors) for d in spec.open_dims]
    return (*([] if batch is None else [batch]), *others)


def is_empty(key):
    """Whether an open size of a call is 0."""
    return 0 in key if isinstance(key, tuple) else key == 0


def example_sizes(specs, batch, attempt=0):
    """Returns the key of example inputs; ``attempt``: an index into EXAMPLE_SIZES."""
    if not has_open_dims(specs):
        return batch
    first, step = EXAMPLE_SIZES[attempt]
    n = sum(len(spec.open_dims) for spec in specs)
    is_batched = any(spec.is_dynamic for spec in specs)
    return (*([batch] if is_batched else []), *(first + i * step for i in range(n)))


def fill_shapes(specs, key):
    """Returns the shapes of the inputs for a key of their open sizes."""
    values = list(key) if isinstance(key, tuple) else []
    batch = key
    if values and any(spec.is_dynamic for spec in specs):
        batch = values.pop(0)
    others = iter(values)
    return [
        [
            size if size is not None else next(others) if d else batch
            for d, size in enumerate(spec.shape)
        ]
        for spec in specs
    ]


def name_sizes(specs):
    """Returns (a name for each size of a key, {(input, dim): name} of the open dims)."""
    names, dims = [], {}
    if any(spec.is_dynamic for spec in specs):
        names.append("n")
    for i, spec in enumerate(specs):
        if spec.is_dynamic:
            dims[i, 0] = "n"
    for i, spec in enumerate(specs):
        for d in spec.open_dims:
            names.append(f"s{len(names)}")
            dims[i, d] = names[-1]
    return names, dims


def find_batch(specs, tensors):
    """Returns the batch size: the first size of all dynamic inputs; None without such inputs. Raises ValueError if it differs."""
    batch, first = None, None
    for spec, tensor in zip(specs, tensors):
        if not spec.is_dynamic:
            continue
        if batch is None:
            batch, first = tensor.shape[0], spec
        elif tensor.shape[0] != batch:
            raise ValueError(
                f"the first sizes of all inputs must be equal: {first.name} has {batch},"
                f" {spec.name} has {tensor.shape[0]}"
            )
    return batch

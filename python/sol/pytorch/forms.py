"""The forms in which a network is called: how the arguments are passed, which of them are tensors, and the tensors' types.

    sol.optimize(net, sol.input([0, 8]))    -> the declared Form: f(x)
    fast(x, 2.0), fast(x=x, bias=b)         -> further Forms: f(x, 2.0) and f(x, bias=b), which are captured at the first call

The engine keeps an Entry per Form, values of its constants, and open sizes. So a number or None may be in the place of a tensor, or
the other way round, and optional arguments may come and go.

Calls that mean the same have one Form: Binder gives arguments one normal form. But a tensor that was declared keeps its type
and sizes: if another one is given in its place, ``find`` raises an exception, and PyTorch runs the call.
"""

import contextlib
import inspect
import types

import torch

from sol.pytorch.inputs import (
    CONSTANTS,
    ConstantSpec,
    TensorSpec,
    check_constant,
    check_kind,
    check_tensor,
    find_batch,
    find_sizes,
    has_open_dims,
    leaf_names,
)
from sol.pytorch.structure import Call, flatten

# The number of Forms besides the declared one, after which PyTorch runs calls of further ones: each takes a capture.
MAX_FORMS = 16
# The number of ways to pass arguments for which the Form is kept.
MAX_WAYS = 64


class Form:
    """One form of calls. ``structure``: Structure of a Call; ``specs``: a spec per leaf of it. Immutable.

    ``undeclared``: in what it differs from the declared Form, as an exception; None for that one. ``is_flat``: all arguments are
    leaves, passed by position. ``only_tensors``: these are all tensors.
    """

    def __init__(self, specs, structure, undeclared=None):
        self.specs = specs
        self.structure = structure
        self.undeclared = undeclared
        self.tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
        self.constants = [spec.value for spec in specs if isinstance(spec, ConstantSpec)]
        self.key = self.make_key(self.constants)
        self._find_sizes = find_sizes if self.has_open_dims else find_batch
        by_position = all(isinstance(key, int) for key in structure.keys)
        self.is_flat = by_position and all(child.is_leaf for child in structure.children)
        self.only_tensors = self.is_flat and len(self.tensors) == len(specs)

    @property
    def has_open_dims(self):
        """Whether a size other than the batch size is open."""
        return has_open_dims(self.tensors)

    def make_key(self, constants):
        """Returns a dict key for calls of this Form with these constants. 1, 1.0 and True differ, and 0.0 and -0.0, too."""
        return (
            self if self.undeclared else None,
            *((type(x), repr(x)) for x in constants),
        )

    def with_constants(self, constants):
        """Returns ``specs`` with other values of the constants."""
        values = iter(constants)
        return [
            spec if isinstance(spec, TensorSpec) else spec._replace(value=next(values))
            for spec in self.specs
        ]

    def bind(self, leaves):
        """Returns (contiguous tensors, constants, key of the open sizes). Raises TypeError or ValueError for leaves that do not fit."""
        if len(leaves) != len(self.specs):
            raise ValueError(f"expected {len(self.structure.children)} inputs, got {len(leaves)}")
        if self.only_tensors:
            tensors = list(map(check_tensor, self.specs, leaves))
            return tensors, (), self._find_sizes(self.tensors, tensors)
        tensors, constants = [], []
        for spec, leaf in zip(self.specs, leaves):
            if isinstance(spec, TensorSpec):
                tensors.append(check_tensor(spec, leaf))
            else:
                constants.append(check_constant(spec, leaf))
        return tensors, constants, self._find_sizes(self.tensors, tensors)


class Forms:
    """The Forms of one network's calls."""

    def __init__(self, module, specs, structure):
        self.declared = Form(specs, structure)
        self.others = ()  # replaced as a whole, as other threads may read it
        self._latest = {}  # (number of positions, *names) -> a Form of such calls, which is tried first
        self._binder = Binder(module, self.declared)
        self._paths = self._spec_of_paths()

    def find(self, args, kwargs):
        """Returns (Form, leaves, what Form.bind returns) of a call. Raises TypeError or ValueError if there is no such Form."""
        first = None
        if self.declared.is_flat and not kwargs:
            try:
                return self.declared, args, self.declared.bind(args)
            except (TypeError, ValueError) as error:
                first = error.with_traceback(None)
        try:
            call = self._binder.normalize(args, kwargs)
        except TypeError as error:
            raise (first or error) from None
        way = len(args), *kwargs
        latest = self._latest.get(way)
        if latest is not None:
            with contextlib.suppress(TypeError, ValueError):
                leaves = latest.structure.leaves(call)
                return latest, leaves, latest.bind(leaves)
        form, leaves, bound = self._find(call, first)
        if len(self._latest) < MAX_WAYS:
            self._latest[way] = form
        return form, leaves, bound

    def _find(self, call, first):
        """As ``find``, for a Call in normal form. ``first``: why the declared Form does not fit, if that is known."""
        for form in (self.declared, *self.others):
            try:
                leaves = form.structure.leaves(call)
                return form, leaves, form.bind(leaves)
            except (TypeError, ValueError) as error:
                first = first or error.with_traceback(None)
        form = self._derive(call, first)
        leaves, _ = flatten(call)
        return form, leaves, form.bind(leaves)

    # ---- A new Form ----

    def _spec_of_paths(self):
        """Returns {path with the argument's name: TensorSpec} of the declared tensors."""
        declared = self.declared
        pairs = zip(declared.structure.paths(), declared.specs)
        return {self._named(x): spec for x, spec in pairs if isinstance(spec, TensorSpec)}

    def _named(self, path):
        return (self._binder.name_of(path[0]), *path[1:])

    def _derive(self, call, undeclared):
        """Adds the Form of ``call``. Raises ``undeclared``, or another exception, if there cannot be one."""
        leaves, structure = flatten(call)
        if not any(isinstance(x, torch.Tensor) for x in leaves):
            raise undeclared
        declared = [self._paths.get(self._named(path)) for path in structure.paths()]
        for spec, leaf in zip(declared, leaves):
            if spec and isinstance(leaf, torch.Tensor):
                check_tensor(spec, leaf)
        names = list(leaf_names(structure))
        sizes = _open_sizes(declared, leaves)
        specs = [_make_spec(*x, sizes) for x in zip(names, declared, leaves)]
        similar = [x for x in self.others if x.structure == structure and _are_alike(x, specs)]
        form = Form(specs, structure, undeclared)
        for other in similar:
            form = _merge(form, other, leaves) or form
        form.bind(leaves)
        if form.specs == self.declared.specs and structure == self.declared.structure:
            raise undeclared
        kept = [x for x in self.others if x not in similar]
        if len(kept) >= MAX_FORMS:
            raise ValueError(f"it was called in more than {MAX_FORMS} other forms")
        self.others = (*kept, form)
        return form


def _open_sizes(declared, leaves):
    """Returns (the batch size of a call or None, the set of its other open sizes), from the tensors that were declared."""
    pairs = [(a, b) for a, b in zip(declared, leaves) if a and isinstance(b, torch.Tensor)]
    batches = [tensor.shape[0] for spec, tensor in pairs if spec.is_dynamic]
    others = {tensor.shape[d] for spec, tensor in pairs for d in spec.open_dims}
    return batches[0] if batches else None, others - {0, 1}


def _make_spec(name, declared, leaf, sizes):
    """Returns the spec of a leaf. Sizes of a tensor that was not declared are open if they equal an open size of the call."""
    if isinstance(leaf, torch.Tensor):
        if declared:
            return declared._replace(name=name)
        check_kind(name, leaf)
        batch, others = sizes
        shape = (
            None if (n in others if d else n == batch) else n for d, n in enumerate(leaf.shape)
        )
        return TensorSpec(name, tuple(shape), leaf.dtype)
    if not isinstance(leaf, CONSTANTS):
        raise TypeError(f"{name}: SOL takes no {type(leaf).__name__}")
    return ConstantSpec(name, leaf)


def _are_alike(form, specs):
    """Whether a Form of the same structure differs from ``specs`` only in sizes and values of constants."""
    return all(map(_is_alike, form.specs, specs))


def _is_alike(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, ConstantSpec):
        return type(a.value) is type(b.value)
    return a.dtype is b.dtype and len(a.shape) == len(b.shape)


def _merge(form, other, leaves):
    """Returns a Form in which the sizes are open that differ between two Forms that are alike; None if ``leaves`` do not fit it."""
    specs = [
        a._replace(shape=tuple(m if m == n else None for m, n in zip(a.shape, b.shape)))
        if isinstance(a, TensorSpec)
        else a
        for a, b in zip(form.specs, other.specs)
    ]
    merged = Form(specs, form.structure, form.undeclared)
    try:
        merged.bind(leaves)
    except ValueError:  # two first sizes are open and differ
        return None
    return merged


# ---- Normal form of arguments ----


class Binder:
    """Gives the arguments of calls that mean the same one normal form: by position where possible, without those that equal their
    defaults, except where the declared Form has them.

    A forward that a decorator has replaced may look at how its arguments are passed. They stay as they are, but for the order of names.
    """

    def __init__(self, module, declared):
        self._module = module
        self._function = self._signature = None
        self._given = self._find_given(declared)

    def normalize(self, args, kwargs):
        """Returns the Call. Raises TypeError for arguments that the forward does not take."""
        signature = self._find_signature()
        if signature is None:
            return Call(args, _sort(kwargs, self._names))
        bound = signature.bind(*args, **kwargs)
        given, arguments = bound.arguments, {}
        for name, parameter in signature.parameters.items():
            if name in self._given:
                arguments[name] = given.get(name, parameter.default)
            elif name in given and not _is_same(given[name], parameter.default):
                arguments[name] = given[name]
        bound.arguments = arguments
        return Call(bound.args, bound.kwargs)

    def name_of(self, key):
        """Returns the name of an argument, from its key in the Structure of a Call."""
        return self._names[key] if isinstance(key, int) and key < self._n_positions else key

    def _find_given(self, declared):
        """Returns the names of the arguments that the declared Form has although they equal their defaults."""
        signature = self._find_signature()
        if signature is None:
            return set()
        values = dict(zip(declared.structure.paths(), declared.specs))
        constants = {path[0]: x.value for path, x in values.items() if _is_argument(path, x)}
        parameters = signature.parameters
        names = {self.name_of(key): value for key, value in constants.items()}
        return {x for x in names.keys() & parameters if _is_same(names[x], parameters[x].default)}

    def _find_signature(self):
        """Returns the signature of the module's forward; None if its arguments must stay as they are."""
        forward = self._module.forward
        function = getattr(forward, "__func__", forward)
        if function is not self._function:
            self._signature, self._names, self._n_positions = _read_signature(forward, function)
            self._function = function
        return self._signature


def arrange(module, call):
    """Returns the Call of a declaration in the order in which calls are normalized. Raises TypeError for unknown arguments."""
    forward = module.forward
    signature, names, _ = _read_signature(forward, getattr(forward, "__func__", forward))
    if signature is None:
        return Call(call.args, _sort(call.kwargs, names))
    bound = signature.bind(*call.args, **call.kwargs)
    return Call(bound.args, bound.kwargs)


def _read_signature(forward, function):
    """Returns (signature or None, names of all arguments, number of those that may be passed by position)."""
    try:
        signature = inspect.signature(forward)
    except (TypeError, ValueError):
        return None, [], 0
    kinds = [x.kind for x in signature.parameters.values()]
    by_position = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    is_plain = type(function) is types.FunctionType and not hasattr(function, "__wrapped__")
    n_positions = sum(kind in by_position for kind in kinds)
    return signature if is_plain else None, list(signature.parameters), n_positions


def _sort(kwargs, names):
    """Returns arguments in the order of ``names``, then the others in their own order."""
    known = {name: kwargs[name] for name in names if name in kwargs}
    return {**known, **kwargs} if known else kwargs


def _is_argument(path, spec):
    """Whether a constant is an argument of its own, and not a part of one."""
    return len(path) == 1 and isinstance(spec, ConstantSpec)


def _is_same(value, default):
    if value is default:
        return True
    if type(value) is not type(default) or not isinstance(value, CONSTANTS):
        return False
    return value == default and repr(value) == repr(default)

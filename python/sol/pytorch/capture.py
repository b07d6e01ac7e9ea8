"""Capture: from a PyTorch module to its graph, the Python state that it reads, and the open sizes for which it is valid.

    audit.py        decides whether a graph may replace the forward; it interprets the code and changes no Python state
    torch.export    runs the forward once with tensors that have no memory -> the graph

torch.export gets a wrapper that takes and returns flat lists of tensors, so it never sees nested structures or constants.

Both steps change state of the whole process while they run. So LOCK lets one thread capture at a time, and delays forks.
"""

import contextlib
import enum
import functools
import math
import os
import re
import threading
from typing import Any, NamedTuple

import sympy
import torch

from sol.pytorch.audit import Broken, CannotCapture, MayRefuse, audit, find_user_line, quiet
from sol.pytorch.inputs import (
    EXAMPLE_BATCH,
    EXAMPLE_SIZES,
    ConstantSpec,
    TensorSpec,
    example_sizes,
    fill_shapes,
    has_open_dims,
    name_sizes,
)
from sol.pytorch.modes import autocast_type
from sol.pytorch.reads import Reads
from sol.pytorch.regions import inline_regions
from sol.pytorch.replaced import replaced_code
from sol.pytorch.structure import Call, Made, flatten
from sol.pytorch.whole import whole_recurrent

# The wrapper's attribute that holds the model: all names in the exported program begin with it.
PREFIX = "model."
# A size of an input of the wrapper in the text of torch.export's guards: L['tensors'][0].size()[2].
INPUT_SIZE = re.compile(r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]")
# What the guards may call, and the names of modules that torch.export writes before them.
GUARD_NAMES = {
    "__builtins__": {}, "max": max, "min": min, "abs": abs, "trunc": math.trunc, "sym_float": float,
}  # fmt: skip
GUARD_MODULES = re.compile(r"\b(math|torch)\.")
# A guard that two sizes are equal.
EQUAL_SIZES = re.compile(r"[a-z]\w* == [a-z]\w*")
# Sizes around the examples that are tried to find a multiple.
MULTIPLE_RANGE = 64
# The number of keys whose validity is cached.
MAX_KNOWN = 1024

# Operators whose third argument, ``train``, says whether they are on.
DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}

# Operators whose results have other types than their nodes under torch.autocast: PyTorch's kernels for them cast inside.
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}

# Types of constants that a result may contain besides tensors. They are immutable, so all calls may return one object.
UNCHANGING = (
    int, float, complex, str, bytes, type(None), type(...), range, type, enum.Enum,
    torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip

# Held during a capture. A fork waits for it, so that PyTorch's state is consistent in the child.
LOCK = threading.RLock()
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


class Captured(NamedTuple):
    """A captured model.

    ``exported``: the ExportedProgram. ``reads``: the Python state that the forward reads (reads.Reads). ``output``:
    Structure of the result. ``constants``: {position: value} of the leaves of the result that are no tensors, with a sympy.Expr for an
    integer that depends on open sizes; the other leaves are the graph's outputs, in order. ``n_leaves``: number of all leaves. ``batches``: Batches. ``memory``: of the graph's
    example tensors.
    """

    exported: Any
    reads: Any
    output: Any
    constants: dict
    n_leaves: int
    batches: Any
    memory: Any


class Batches:
    """The open sizes for which an exported graph is valid: a range for each, and guards of torch.export as expressions.

    ``names``: of the sizes in a key, in order (inputs.py); ``ranges``: {name: (lowest, highest)}. ``symbols``: {symbol of
    the graph: name}. ``example``: the key for which it was captured. ``multiples``: {name: number that all valid sizes are
    multiples of}; ``least``: {name: the least size for which a library is valid}; ``titles``: {name: text for messages}.
    """

    def __init__(self, names, ranges, guards, symbols, example, read):
        self.names = names
        self.symbols = symbols
        self._read = read  # exported graph -> (ranges, guards, symbols)
        self.example = example
        self.multiples, self.least, self.titles = {}, {}, {}
        self._ranges = ranges
        self._equal = [x.split(" == ") for x in guards if EQUAL_SIZES.fullmatch(x)]
        self._guards = [compile(guard, "<guard>", "eval") for guard in guards]
        self._known = {}

    def exclude(self, name, value):
        """Removes a value of an open size for which an op of the graph has another meaning."""
        self._guards.append(compile(f"{name} != {int(value)}", "<guard>", "eval"))
        self._known.clear()

    def narrow(self, exported):
        """Adds the assumptions of another graph of the same model. Returns false if one of its open sizes has become fixed."""
        ranges, guards, symbols = self._read(exported)
        if symbols != self.symbols:
            return False
        for name, (low, high) in ranges.items():
            before = self._ranges[name]
            self._ranges[name] = max(low, before[0]), min(high, before[1])
        self._guards += [compile(guard, "<guard>", "eval") for guard in guards]
        self._known.clear()
        return True

    @property
    def is_free(self):
        """Whether the graph is valid for all sizes from 1 on."""
        ranges = self._ranges.values()
        return not self._guards and all(a <= 1 and b >= 2**31 - 1 for a, b in ranges)

    def admit(self, key):
        """Whether the graph is valid for the open sizes ``key``; always for None (no open sizes)."""
        if key is None:
            return True
        if key not in self._known:
            if len(self._known) > MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._holds(key)
        return self._known[key]

    def _holds(self, key):
        values = dict(zip(self.names, _as_tuple(key)))
        for name, (low, high) in self._ranges.items():
            if not low <= values[name] <= high or values[name] % self.multiples.get(name, 1):
                return False
        try:
            return all(eval(guard, GUARD_NAMES, values) for guard in self._guards)
        except ZeroDivisionError:
            return False

    def settle(self, size):
        """Returns a formula without minima and maxima: each becomes its value for the example, and sizes for which it has
        another value are no longer valid."""
        parts = sympy.preorder_traversal(size)
        found = [x for x in parts if type(x).__name__ in ("Min", "Max")]
        for extreme in sorted(found, key=sympy.count_ops):
            chosen = self._choose(extreme)
            if chosen is not None:
                return self.settle(size.xreplace({extreme: chosen}))
        return size

    def _choose(self, extreme):
        names = {symbol: sympy.Symbol(name) for symbol, name in self.symbols.items()}
        values = dict(zip(self.names, _as_tuple(self.example)))
        texts = {x: str(x.xreplace(names)) for x in extreme.args}
        if not all(_is_expression(text, self.names) for text in texts.values()):
            return None
        best = min if type(extreme).__name__ == "Min" else max
        chosen = best(extreme.args, key=lambda x: eval(texts[x], GUARD_NAMES, dict(values)))
        guard = f"{texts[chosen]} == {best.__name__}({', '.join(texts.values())})"
        self._guards.append(compile(guard, "<guard>", "eval"))
        self._known.clear()
        return chosen

    def find_multiples(self):
        """Finds ``multiples``, from the sizes near those of the example that are valid. The batch size has none."""
        key = self.example
        for i, name in enumerate(self.names):
            if name == "n":
                continue
            near = range(max(1, key[i] - MULTIPLE_RANGE), key[i] + MULTIPLE_RANGE + 1)
            valid = [n for n in near if self._holds(self._with_size(name, n))]
            multiple = math.gcd(*valid)
            if multiple > 1:
                self.multiples[name] = multiple
        self._known.clear()

    def _with_size(self, name, n):
        """Returns the example's key with another size, also for the sizes that must be equal to it."""
        same = {name}
        for _ in self._equal:
            same.update(*(pair for pair in self._equal if not same.isdisjoint(pair)))
        return tuple(n if x in same else size for x, size in zip(self.names, self.example))

    def find_least(self):
        """Fills in ``least``: no size from there up to the example's is invalid, as far as a size's multiples are valid at all."""
        key = self.example
        for i, name in enumerate(self.names):
            step = self.multiples.get(name, 1)
            least = key[i]
            while least > step and self._holds(self._with_size(name, least - step)):
                least -= step
            if name != "n":
                self.least[name] = least

    def __getstate__(self):
        raise TypeError("batches are not pickled: a model is captured again where it is loaded")


class Refused(ValueError):
    """The model itself raises an exception for inputs of these shapes, also in plain PyTorch."""


class _ForwardFailed(Exception):
    """The model's forward raised ``__cause__``. The wrapper raises this type, as torch.export prints graphs for some others."""


def _is_new(tensor):
    """Whether torch.export has made a tensor: its own have no memory. Tensors in older Python objects have."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def _formula_of(value):
    """Returns an integer that depends on open sizes as a sympy.Expr; other values are returned as they are."""
    return value.node.expr if isinstance(value, torch.SymInt) else value


class _Result:
    """The structure of a model's result. It is a separate object, as torch.export restores attributes of the module."""

    structure = None
    constants = {}
    n_leaves = 0


class _Flat(torch.nn.Module):
    """A wrapper of ``model`` that takes the tensors as separate arguments and returns a flat list of tensors."""

    def __init__(self, model, specs, structure):
        super().__init__()
        self.model = model
        self.result = _Result()
        self._specs = specs
        self._structure = structure

    def forward(self, *tensors):
        call = _build(self._specs, self._structure, tensors)
        try:
            result = self.model(*call.args, **call.kwargs)
        except Exception as error:
            raise _ForwardFailed from error
        leaves, self.result.structure = flatten(result, Made(_is_new, call))
        self.result.n_leaves = len(leaves)
        self.result.constants = {
            i: _formula_of(x) for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)
        }
        return [x for x in leaves if isinstance(x, torch.Tensor)]


def _capture_sizes(model, specs, structure, sizes, mode):
    """Captures for the open sizes ``sizes`` (a key): see ``capture``.

    A size of 1 becomes fixed, as PyTorch treats it as a special case. Raises CannotCapture when PyTorch must run the
    model, Refused when the model itself refuses these inputs. Without a ``mode``, all modules are in eval mode during the capture.
    """
    tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
    shapes = fill_shapes(tensors, sizes)
    examples = tuple(torch.zeros(n, dtype=spec.dtype) for n, spec in zip(shapes, tensors))
    flat = _Flat(model, specs, structure)
    with (
        LOCK,
        _eval_mode(model) if mode is None else _training_mode(mode, examples),
        _same_attributes(model),
        quiet(),
        replaced_code(),
    ):
        try:
            reads = audit(model, _build(specs, structure, examples))
            exported = _export(flat, examples, _find_open(tensors, shapes))
        except MayRefuse as error:
            with torch.random.fork_rng(devices=[]):
                _check_runs(flat, examples, tensors)
            raise Broken(str(error)) from error
    inline_regions(exported, mode is not None and mode.has_gradients)
    _check_autocast(exported)
    memory = _remove_dropouts(exported)
    result = flat.result
    _check_result(result)
    batches = _batches(exported, tensors, shapes, sizes)
    output, constants, n = result.structure, result.constants, result.n_leaves
    return Captured(exported, reads, output, constants, n, batches, memory)


class Memory:
    """Which of a graph's example tensors share memory."""

    def __init__(self):
        self._same = {}  # key of memory -> key of the memory that it is in truth
        self._kept = []  # tensors, so that their keys stay theirs

    def of(self, value):
        """Returns the key of the memory that an example tensor lies in."""
        key = value.untyped_storage()._cdata
        return self._same.get(key, key)

    def join(self, value, argument):
        """Notes that ``value`` is ``argument``."""
        self._kept.append(value)
        self._same[value.untyped_storage()._cdata] = self.of(argument)


def _check_autocast(exported):
    """Raises CannotCapture for an operator whose types under torch.autocast are unknown."""
    is_on = autocast_type() is not None
    for node in exported.graph.nodes:
        packet = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if packet in RECURRENT and (is_on or node.meta.get("autocast")):
            raise CannotCapture(f"{packet} under torch.autocast")


def _remove_dropouts(exported):
    """Removes dropouts that are off: they give their argument. Returns the graph's Memory: their example results have other
    memory than the argument."""
    memory = Memory()
    for node in list(exported.graph.nodes):
        packet = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if packet.rstrip("_") not in DROPOUTS or len(node.args) != 3:
            continue
        if node.args[2] is not False and node.args[1] != 0:  # it is on
            continue
        memory.join(node.meta["val"], node.args[0].meta["val"])
        node.replace_all_uses_with(node.args[0])
        exported.graph_signature.replace_all_uses(node.name, node.args[0].name)
        exported.graph.erase_node(node)
    exported.graph_module.recompile()
    return memory


def _check_result(result):
    """Raises CannotCapture unless each call can build a new result: immutable constants in a structure that can be rebuilt."""
    for value in result.constants.values():
        parts = value if isinstance(value, torch.Size) else (value,)
        if any(isinstance(x, (torch.SymInt, torch.SymFloat, torch.SymBool)) for x in parts):
            raise CannotCapture("the result has a number that depends on the batch size")
        if not isinstance(value, (*UNCHANGING, sympy.Expr)):
            raise CannotCapture(f"the result has a {type(value).__name__}")
    try:
        result.structure.build(iter([None] * result.n_leaves))
    except Exception as error:
        raise CannotCapture(f"the result cannot be built again: {_first_line(error)}") from None


def capture(model, specs, structure, sizes=None, hint=None, mode=None):
    """Captures ``model`` for inference, or in a Mode of training (modes.py). Returns a Captured, valid for ``Captured.batches``.

    ``sizes``: the open sizes of the example, a key; None: chosen here, with ``hint`` samples if that is not None. If the model
    refuses those, others are tried: a model may have a limit, such as the length of a sequence. Raises CannotCapture when
    PyTorch must run the model, Refused when the model itself refuses these inputs.
    """
    if sizes is not None:
        return _capture_sizes(model, specs, structure, sizes, mode)
    tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
    n, batch = len(EXAMPLE_SIZES) if has_open_dims(tensors) else 1, max(hint or 0, EXAMPLE_BATCH)
    for attempt in range(n - 1):
        with contextlib.suppress(Refused):
            sizes = example_sizes(tensors, batch, attempt)
            return _capture_sizes(model, specs, structure, sizes, mode)
    return _capture_sizes(model, specs, structure, example_sizes(tensors, batch, n - 1), mode)


def capture_graph(module, specs, shapes, sizes, named, mode=None):
    """Captures a graph of Dynamo, whose guards check the Python state that the forward reads: no audit. Returns a Captured.

    ``shapes``: of the inputs; ``sizes``: the key of their open sizes; ``named``: as name_sizes returns; ``mode``: a Mode with
    gradients, or None. Raises CannotCapture.
    """
    examples = tuple(torch.zeros(n, dtype=spec.dtype) for n, spec in zip(shapes, specs))
    from torch._dynamo.convert_frame import (
        compile_lock,  # held, as Dynamo must not compile meanwhile
    )

    flat = _Flat(module, specs, flatten(Call(examples, {}))[1])
    gradients = torch.no_grad() if mode is None else _training_mode(mode, examples)
    with LOCK, compile_lock, gradients, quiet():
        exported = _export(flat, examples, _find_open(specs, shapes))
    inline_regions(exported, mode is not None)
    _check_autocast(exported)
    memory = _remove_dropouts(exported)
    result = flat.result
    _check_result(result)
    batches = _batches(exported, specs, shapes, sizes, named)
    output, constants, n = result.structure, result.constants, result.n_leaves
    return Captured(exported, Reads(), output, constants, n, batches, memory)


def _find_open(specs, shapes):
    """Returns for each tensor the set of its dims that the graph leaves open."""
    return [
        {d for d, size in enumerate(spec.shape) if size is None and shape[d] > 1}
        for spec, shape in zip(specs, shapes)
    ]


def _build(specs, structure, tensors):
    """Returns the Call of the model: ``tensors`` and the constants of ``specs`` in their structure."""
    given = iter(tensors)
    leaves = [spec.value if isinstance(spec, ConstantSpec) else next(given) for spec in specs]
    return structure.build(iter(leaves))


def _export(flat, examples, are_open):
    """Returns the ExportedProgram. ``are_open``: for each example the set of its open dims.

    Raises MayRefuse when the forward raises an exception, else CannotCapture.
    """
    dims = tuple(dict.fromkeys(is_open, torch.export.Dim.AUTO) or None for is_open in are_open)
    try:
        with oblivious(), whole_recurrent():
            return torch.export.export(
                flat, examples, dynamic_shapes=(dims,) if dims else None, strict=False
            )
    except _ForwardFailed as error:
        cause = error.__cause__
        raise MayRefuse(f"torch.export: {_first_line(cause)}{find_user_line(cause)}") from error
    except Exception as error:
        raise Broken(f"torch.export: {_first_line(error)}") from error


def oblivious():
    """Returns a context in which torch.export treats sizes 0 and 1 like all others, instead of assuming sizes >= 2.

    If PyTorch does not have the option, the graph is valid from 2 on: smaller batches fall back.
    """
    try:
        from torch.fx.experimental import _config

        return _config.patch(backed_size_oblivious=True)
    except (ImportError, AttributeError):
        return contextlib.nullcontext()


@contextlib.contextmanager
def _training_mode(mode, examples):
    """Keeps the flags ``training``, and lets the examples that stand for inputs with gradients want them, too."""
    with torch.set_grad_enabled(mode.has_gradients), _no_saved_hooks():
        for tensor, wants in zip(examples, mode.inputs or ()):
            tensor.requires_grad_(wants)
        yield


@contextlib.contextmanager
def _no_saved_hooks():
    """Takes away the hooks for saved tensors, such as those of torch.utils.checkpoint: they are for the tensors of the call."""
    saved = torch._C._autograd
    hooks = []
    try:
        while pair := saved._top_saved_tensors_default_hooks(True):
            hooks.append(pair)
            saved._pop_saved_tensors_default_hooks()
        yield
    finally:
        for pair in reversed(hooks):
            saved._push_saved_tensors_default_hooks(*pair)


@contextlib.contextmanager
def _eval_mode(model):
    """Sets only the flags ``training``: a model may override train(), for example to freeze layers."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def _same_attributes(model):
    """Restores attributes of the modules: torch.export replaces lists and dicts by equal copies, but others may hold them."""
    saved = [(vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for own, before in saved:
            for name, value in before.items():
                if own.get(name) is not value:
                    own[name] = value


def _check_runs(flat, examples, tensors):
    """Raises Refused when the model fails in plain PyTorch too. Restores buffers that the forward writes."""
    before = [(x, x._version, x.clone()) for x in flat.buffers() if not x.is_inference()]
    try:
        flat(*examples)
    except _ForwardFailed as error:
        shapes = ", ".join(map(str, tensors))
        raise Refused(f"the model refuses {shapes}: {_first_line(error.__cause__)}") from error
    finally:
        for buffer, version, value in before:
            if buffer._version != version:
                buffer.copy_(value)


def _first_line(error):
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"


def _batches(exported, specs, shapes, sizes, named=None):
    """Returns the Batches for which torch.export's assumptions hold. Raises CannotCapture for an assumption of another kind."""
    names, dims = named or name_sizes(specs)
    read = functools.partial(_read_assumptions, names, dims, shapes)
    ranges, guards, symbols = read(exported)
    batches = Batches(names, ranges, guards, symbols, sizes, read)
    batches.titles = {name: f"dim {d} of {specs[i].name}" for (i, d), name in dims.items()}
    if named is None:
        batches.titles["n"] = "batch"
    if isinstance(sizes, tuple):
        batches.find_multiples()
    return batches


def _read_assumptions(names, dims, shapes, exported):
    """Returns (ranges, guards, symbols) of a graph, as for Batches."""
    symbols, guards = _name_symbols(exported, dims)
    ranges = dict.fromkeys(names, (0, 2**62))
    for symbol, interval in exported.range_constraints.items():
        if symbol in symbols:
            low, high = ranges[symbols[symbol]]
            ranges[symbols[symbol]] = max(low, int(interval.lower)), _lower(high, interval.upper)
    for guard in getattr(exported, "_guards_code", None) or []:
        text = INPUT_SIZE.sub(lambda x: _name_size(dims, shapes, int(x[1]), int(x[2])), guard)
        guards.append(GUARD_MODULES.sub("", text))
        if not _is_expression(guards[-1], names):
            raise CannotCapture(f"the model depends on {guard}")
    return ranges, guards, symbols


def _as_tuple(key):
    return key if isinstance(key, tuple) else (key,)


def _lower(high, upper):
    return int(upper) if upper < high else high


def _is_expression(text, names):
    """Whether a guard can be evaluated: it has the names of sizes only."""
    try:
        used = compile(text, "<guard>", "eval").co_names
    except SyntaxError:
        return False
    return set(used) <= {*names, *GUARD_NAMES}


def _name_size(dims, shapes, i, d):
    return dims.get((i, d)) or str(shapes[i][d])


def _name_symbols(exported, dims):
    """Returns ({symbol: name} of the open dims, guards): two dims may have one symbol, and a dim may have become a number."""
    symbols, guards = {}, []
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    inputs = [nodes[name] for name in exported.graph_signature.user_inputs]
    others = []
    for (i, d), name in dims.items():
        size = inputs[i].meta["val"].shape[d]
        size = size if isinstance(size, int) else size.node.expr
        if isinstance(size, int) or size.is_Integer:
            guards.append(f"{name} == {int(size)}")
        elif size.is_Symbol and symbols.setdefault(size, name) != name:
            guards.append(f"{name} == {symbols[size]}")
        elif not size.is_Symbol:
            others.append((name, size))
    for name, size in others:
        raise CannotCapture(f"the size {name} is {size}")
    return symbols, guards

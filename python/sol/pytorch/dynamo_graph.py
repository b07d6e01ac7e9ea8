"""Divides a graph of Dynamo: into weights, tensors, sizes and numbers among its inputs, and into the part that SOL computes
and the rest.

    dynamo.py -> split: the graph -> Split -> Part, which torch.export captures like any other module

Dynamo's graph returns everything that later code uses: tensors, sizes, and views of its inputs. SOL computes the tensors that
lie in memory of their own, the **roots**. The rest is a graph, too, which PyTorch runs after SOL: it computes sizes, and views of
inputs and roots, so that results share memory with each other exactly as in PyTorch.
"""

import contextlib
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.traceback import preserve_node_meta

from sol.pytorch.builder import Unsupported
from sol.pytorch.inputs import TensorSpec

# Operators whose results depend on how their input lies in memory. SOL's results are always contiguous.
STRIDED = {"as_strided", "data_ptr", "storage_offset", "stride", "untyped_storage"}
# Operators that write nothing. Their result is their argument, or a view of it, if it lies in the argument's memory.
VIEWS = {
    "contiguous", "detach", "expand", "flatten", "getitem", "narrow", "permute", "reshape", "select", "squeeze", "to", "transpose",
    "unsqueeze", "view",
}  # fmt: skip
# What Dynamo makes of no_grad and enable_grad, when they begin and when they end.
SET_GRAD = torch._C._set_grad_enabled
MAX_SYMBOLS = 8  # the most open sizes of a model: SOL_MAX_SYMBOLS


class Split(NamedTuple):
    """A graph, divided. Positions are those of its inputs.

    ``weights``: positions of weights; ``tensors``: of other tensors, and of integers that vary, each of which stands for a tensor
    of that size; ``sizes``: {position of an integer: (number of the tensor, dim) whose size it is}; ``numbers``: positions of all
    other inputs, whose values are compiled in. ``specs``: a TensorSpec for each of ``tensors``. ``names``, ``dims``: the open sizes, as inputs.name_sizes returns.
    ``body``: the graph that returns the roots only. ``rest``: the module that returns all results, called with the graph's
    inputs and the roots; None if the roots are the results. ``n_roots``: their number. ``switches``: the set of the values that it sets
    torch.is_grad_enabled() to. ``calls``: names of the functions of torch.ops.higher_order that it calls.
    """

    weights: list
    tensors: list
    sizes: dict
    numbers: list
    specs: list
    names: list
    dims: dict
    body: Any
    rest: Any
    n_roots: int
    switches: set
    calls: set


class Part(torch.nn.Module):
    """The body of a graph as a module of its other tensors. Its parameters and buffers are the graph's weights.

    ``tensors``: one per position of ``split.weights``. ``numbers``: one per position of ``split.numbers``. ``has_gradients``: it turns
    gradients off and on where the graph does.
    """

    def __init__(self, split, tensors, numbers=(), has_gradients=False):
        super().__init__()
        self.graph = split.body
        self._split = split
        self._numbers = numbers
        self._has_gradients = has_gradients
        self._names = [f"weight{i}" for i in range(len(tensors))]
        for name, tensor in zip(self._names, tensors):
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            (self.register_parameter if is_parameter else self.register_buffer)(name, tensor)

    def weights(self):
        """Returns the tensors that it was made with."""
        return [getattr(self, name) for name in self._names]

    def forward(self, *tensors):
        split = self._split
        args = dict(zip(split.tensors, tensors, strict=True))
        args.update(zip(split.weights, self.weights()))
        args.update(zip(split.numbers, self._numbers))
        args.update({at: tensors[i].shape[d] for at, (i, d) in split.sizes.items()})
        with preserve_node_meta():  # so that the captured nodes have the lines of the user's code
            runner = _Runner(self.graph, self._has_gradients)
            return list(runner.run(*(args[i] for i in range(len(args)))))


class _Runner(Interpreter):
    """Runs a graph with its ``with torch.autocast``. In a capture, Dynamo's functions for it only record that it begins and ends:
    the nodes between them would keep the types that they have without autocast."""

    def __init__(self, graph, has_gradients):
        super().__init__(graph)
        self._has_gradients = has_gradients

    def run(self, *args):
        """Runs the graph. Leaves all contexts that it has entered, also after an exception."""
        with contextlib.ExitStack() as self._stack:
            return super().run(*args)

    def call_function(self, target, args, kwargs):
        """Runs a node."""
        if target is torch.amp.autocast_mode._enter_autocast:
            context = contextlib.ExitStack()
            context.enter_context(torch.autocast(*args, **kwargs))
            return self._stack.enter_context(context)
        if target is torch.amp.autocast_mode._exit_autocast:
            return args[0].close()
        if target is SET_GRAD and not self._has_gradients:
            return None
        return super().call_function(target, args, kwargs)


def split(module, is_weight):
    """Returns the Split of Dynamo's GraphModule. ``is_weight``: for each input whether it is a weight. Raises Unsupported."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    values = [_value(node) for node in inputs]
    weights = [i for i, x in enumerate(values) if is_weight[i] and _is_static(x)]
    others = [i for i, x in enumerate(values) if _is_tensor(x) and i not in weights]
    tensors = [i for i in others if not _is_float(inputs[i])]
    symbols, sizes = _find_symbols(tensors, values), {}
    for i, x in enumerate(values):
        if not isinstance(_fix(x), int) and isinstance(x, torch.SymInt):
            if str(x) not in symbols:
                symbols[str(x)] = len(tensors), 0
                tensors.append(i)
            sizes[i] = symbols[str(x)]
    specs = [_make_spec(inputs[i].name, values[i]) for i in tensors]
    numbers = [i for i in range(len(inputs)) if i not in (*weights, *tensors, *sizes)]
    names, dims = _name_sizes(tensors, values)
    roots, results = _find_roots(module.graph, values)
    is_plain = [id(x) for x in roots] == [id(x) for x in results]
    return Split(
        weights, tensors, sizes, numbers, specs, names, dims,
        _make_body(module, roots, [inputs[i] for i in numbers]), None if is_plain else _make_rest(module, inputs, roots, results), len(roots),
        {x.args[0] for x in module.graph.nodes if x.target is SET_GRAD}, _find_calls(module),
    )  # fmt: skip


def _find_calls(module):
    targets = [node.target for node in module.graph.nodes]
    return {x.name() for x in targets if isinstance(x, torch._ops.HigherOrderOperator)}


def storage_of(value):
    """Returns a key of the memory that an example tensor of a graph lies in."""
    return value.untyped_storage()._cdata


def _value(node):
    return node.meta.get("example_value", node.meta.get("val"))


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _is_float(node):
    """Whether an input is a Python float, which Dynamo passes as a tensor if it may vary: only its value is read."""
    value = _value(node)
    is_scalar = _is_tensor(value) and value.dtype is torch.float64 and value.dim() == 0
    return is_scalar and bool(node.users) and all(map(_is_item, node.users))


def _is_item(node):
    return node.op == "call_method" and node.target == "item"


def is_float(node):
    """Whether a node reads the value of a Python float among the inputs."""
    given = node.args[0] if _is_item(node) else node
    return given is not node and given.op == "placeholder" and _is_float(given)


def _fix(size):
    """Returns a size as an integer if Dynamo has found out that it has one value only; else as it is."""
    fixed = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else None
    return size if fixed is None else fixed


def _is_static(value):
    return _is_tensor(value) and all(isinstance(size, int) for size in _shape(value))


def _shape(value):
    return tuple(map(_fix, value.shape if _is_tensor(value) else (value,)))


def _make_spec(name, value):
    shape = tuple(size if isinstance(size, int) else None for size in _shape(value))
    return TensorSpec(name, shape, value.dtype if _is_tensor(value) else torch.bool)


def _open_dims(tensors, values):
    """Yields (number of the tensor, dim, size) of each open size."""
    for number, i in enumerate(tensors):
        for d, size in enumerate(_shape(values[i])):
            if not isinstance(size, int):
                yield number, d, size


def _find_symbols(tensors, values):
    """Returns {size as text: (number of the tensor, dim)} of the open sizes of tensors."""
    found = {}
    for number, d, size in _open_dims(tensors, values):
        found.setdefault(str(size), (number, d))
    return found


def _name_sizes(tensors, values):
    """Returns (names, {(number of a tensor, dim): name}) of the open sizes. Equal formulas have one name.

    The first one is "n", the batch size, if it is a first dim. If there are more than a model may have, sizes that are equal in the
    first call have one name, too: each layer of a key/value cache has a length of its own for Dynamo.
    """
    found = sorted(_open_dims(tensors, values), key=lambda x: x[1] > 0)
    formulas = {str(size) for _, _, size in found}
    key = str if len(formulas) <= MAX_SYMBOLS else _first_value
    names, dims = {}, {}
    for number, d, size in found:
        is_batch = not names and d == 0 and _is_tensor(values[tensors[number]])
        name = "n" if is_batch else f"s{len(names)}"
        dims[number, d] = names.setdefault(key(size), name)
    return list(names.values()), dims


def _first_value(size):
    """Returns what an open size was in the call for which Dynamo made the graph; its formula, if that is unknown."""
    hint = size.node.hint if size.node.has_hint() else None
    return str(size) if hint is None else int(hint)


# ---- Results ----


def _find_roots(graph, values):
    """Returns (roots, results). Raises Unsupported if results share memory in a way that the rest cannot express."""
    results = _as_list(graph.output_node().args[0])
    given = {storage_of(x) for x in values if _is_tensor(x)}
    first = {}  # storage -> the first node that lies in it
    for node in graph.nodes:
        if _is_tensor(_value(node)):
            first.setdefault(storage_of(_value(node)), node)
    members = {}
    for node in dict.fromkeys(x for x in results if isinstance(x, Node) and _is_tensor(_value(x))):
        storage = storage_of(_value(node))
        if storage not in given:
            members.setdefault(storage, []).append(node)
    roots = [x[0] if len(x) == 1 else first[storage] for storage, x in members.items()]
    for group in members.values():
        if len(group) > 1 and any(_value(x)._version for x in group):
            raise Unsupported(f"the results {group[0]} and {group[1]} share memory that is written")
    _add_operands(roots, results, given)
    return roots, results


def _add_operands(roots, results, given):
    """Adds to ``roots`` what the rest would have to compute besides sizes and views. Raises Unsupported for strided views.

    A view of an input that is written is made after SOL has written the input. An operator that writes must not run again.
    """
    known = set(roots)
    todo = [x for x in results if isinstance(x, Node) and x not in known]
    seen = set(todo)
    owned = given | {storage_of(_value(x)) for x in roots}
    while todo:
        node = todo.pop()
        operator = getattr(node.target, "__name__", str(node.target))
        if operator in STRIDED:
            raise Unsupported(f"the result {node.name} depends on the strides of a tensor")
        value = _value(node)
        if _is_tensor(value) and storage_of(value) not in owned:
            roots.append(node)
            owned.add(storage_of(value))
            known.add(node)
            continue
        is_safe = node.op == "placeholder" or operator in VIEWS and storage_of(value) in given
        if _is_tensor(value) and value._version and not is_safe:
            raise Unsupported(f"the result {node.name} is written in place and shares memory")
        for other in node.all_input_nodes:
            if other not in seen and other not in known:
                seen.add(other)
                todo.append(other)


def _as_list(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


# ---- Graphs ----


def _make_body(module, roots, numbers):
    """Returns a module like Dynamo's that returns the roots. ``numbers``: the inputs that are numbers, floats as such."""
    graph, copies = Graph(), {}
    for node in module.graph.nodes:
        if node.op == "output":
            break
        if is_float(node) and node.args[0] in numbers:
            copies[node] = copies[node.args[0]]
            continue
        copies[node] = graph.node_copy(node, lambda x: copies[x])
    graph.output([copies[x] for x in roots])
    return GraphModule(module, graph)


def _make_rest(module, inputs, roots, results):
    """Returns the module that computes ``results`` from the graph's inputs and the roots."""
    graph, copies = Graph(), {}
    needed = _find_needed(results, set(roots))
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
    for i, node in enumerate(roots):
        copies[node] = graph.placeholder(f"root{i}")
    for node in module.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, lambda x: copies[x])
    graph.output(tuple(copies[x] if isinstance(x, Node) else x for x in results))
    return GraphModule(module, graph)


def _find_needed(results, roots):
    """Returns the nodes from which ``results`` follow, up to the roots."""
    todo = [x for x in results if isinstance(x, Node) and x not in roots]
    needed = set(todo)
    while todo:
        for other in todo.pop().all_input_nodes:
            if other not in needed and other not in roots:
                needed.add(other)
                todo.append(other)
    return needed

"""Imports an exported graph into a libsol model: ExportedProgram -> _Importer, ops.py -> Builder -> _core.Model.

torch.export leaves in-place ops and views in the graph. So each node belongs to an alias set: the nodes that may share
memory with one node, the set's ``base``. An in-place op becomes a normal layer only if no other node of its set that is
used later would see the write. If one would, the graph's functional form is imported, which torch.export makes. So is that of a
graph that writes into buffers or inputs: it returns their new values, which become updates of the model, or outputs that are
copied into the caller's tensors. A write into another tensor that exists before the call is Unsupported. Results that share memory
with other tensors are no outputs of the model (aliases.py).

A call that ops.py does not know or refuses becomes a host node (host.py), which PyTorch computes inside of the program. Whether
its result shares memory with an argument follows from the memory of the graph's example tensors.
"""

import operator
from typing import NamedTuple

import sympy
import torch
from torch.export.graph_signature import OutputKind

from sol.pytorch import ops, ops_type
from sol.pytorch.aliases import Alias, Output, find_chains, make_steps
from sol.pytorch.builder import Builder, DependsOnData, Hidden, Unsupported, Value
from sol.pytorch.capture import PREFIX
from sol.pytorch.custom import find_layer
from sol.pytorch.functional import COPY, make_functional
from sol.pytorch.host import HostNode, make_function
from sol.pytorch.inputs import DTYPE_NAMES
from sol.pytorch.nodes import as_list, find_origin, show, show_call
from sol.pytorch.updates import find_fault
from sol.pytorch.watch import find_tensor

# Layers that take most of a network's time, and in which SOL is faster.
ANCHORS = {"conv", "linear", "matmul"}
MOVES = {"reshape", "permute", "slice", "expand"}  # layers that compute nothing
MAX_REASONS = 4  # that a message lists
# A network without ANCHORS is compiled if it has so many layers that compute for each host node. A host node takes about 8 us
# longer than PyTorch's own call, and copies its result; a pointwise layer saves about 4 us, or a pass over memory.
LAYERS_PER_HOST = 2
# Ops whose result is the first argument itself: a write to one is a write to the other.
SAME = {"detach", "alias"}


class Imported(NamedTuple):
    """A model that is ready to compile.

    ``builder``: has the model. ``inputs``: indices of the graph's inputs that the model reads. ``params``: for each param
    its name in the module, or the tensor itself if the module does not own it. ``updates``: indices of the params that calls
    write. ``outputs``: for each output of the graph the index of the model's output, or the Alias that the result is. ``copies``: (index of
    a graph's input, index of the model's output) for each input that the forward writes. ``hosts``: a HostNode for each node that PyTorch computes. ``n_layers``: the number of nodes that
    became layers. ``sizes``: {position of a leaf of the result that depends on open sizes: function of the symbols' values}.
    ``ids``: the model's tensors, as Ids.
    """

    builder: Builder
    inputs: list
    params: list
    updates: list
    outputs: list
    copies: list
    hosts: list
    n_layers: int
    sizes: dict
    ids: "Ids"


class Ids(NamedTuple):
    """The ids of the tensors that are the model's inputs and outputs, in their order, and {index of a param: id}."""

    inputs: list
    params: dict
    outputs: list


class _Aliased(Hidden):
    """A write that another tensor sees."""


class _Visible(Hidden):
    """A write into a buffer or input. The functional form of the graph returns the new value."""


def import_graph(captured, module, name, ports=None, partial=True):
    """Builds the libsol model of a Captured of ``module``. Returns an Imported. Raises Unsupported.

    ``ports``: (names of the graph's inputs, names of its outputs), for a library. Without it, outputs of the graph that are
    the same tensor share one output of the model. ``partial``: PyTorch may compute nodes of the program.
    """
    chains = {} if ports else find_chains(captured)
    try:
        return _Importer(captured, module, name, ports, partial, chains).run()
    except Hidden as error:
        functional = make_functional(captured)
        if functional is None:
            raise
        try:
            return _Importer(functional, module, name, ports, partial, chains).run()
        except Unsupported as other:
            raise (error if isinstance(error, _Aliased) else other) from None


class _Importer:
    def __init__(self, captured, module, name, ports, partial, chains):
        exported = self._exported = captured.exported
        self._memory = captured.memory
        self._constants = captured.constants
        self._ports = ports
        self._module = module
        self._builder = Builder(name, captured.batches, may_draw=ports is None)
        self._order = {node: i for i, node in enumerate(exported.graph.nodes)}
        # Copies, as the signature computes these properties at each access.
        signature = exported.graph_signature
        self._positions = {name: i for i, name in enumerate(signature.user_inputs)}
        self._owned = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self._buffers = signature.inputs_to_buffers
        self._updated = {  # names of buffers
            spec.target
            for spec in signature.output_specs
            if spec.kind == OutputKind.BUFFER_MUTATION
        }
        self._updates = []  # indices of params
        self._literals = signature.inputs_to_lifted_tensor_constants
        self._values = {}  # cell -> Value, or list of Values
        self._cell = {}  # node -> the cell of its tensor: the first node that is the same tensor object
        self._base = {}  # node -> the base of its alias set
        self._members = {}  # base -> the nodes of its alias set
        self._sources = set()  # placeholders: inputs and parameters
        self._inputs, self._params = [], self._builder.params
        self._ids = Ids([], {}, [])
        self._partial = partial
        self._hosts = []  # HostNodes
        self._chains = chains  # of results, in the graph as captured
        self._written = []  # nodes that in-place ops write
        self._copies = []  # (index of an input, index of the model's output)
        self._bases = {}  # node whose results are in several alias sets -> their bases
        self._joined = set()  # nodes with several results that may overlap in memory
        self._n_layers = 0  # number of nodes that became layers

    def run(self):
        for node in self._exported.graph.nodes:
            self._builder.origin = find_origin(node)
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = self._output(node)
            else:
                raise Unsupported(f"a graph node {node.op} {node.target}")
        self._check_worth()
        return Imported(
            self._builder,
            self._inputs,
            self._params,
            self._updates,
            outputs,
            self._copies,
            self._hosts,
            self._n_layers,
            self._sizes(),
            self._ids,
        )

    def _sizes(self):
        """Returns Imported.sizes. Raises Unsupported."""
        found = self._constants.items()
        formula = self._builder.formula
        return {i: formula(x)[1] for i, x in found if isinstance(x, sympy.Expr)}

    def _check_worth(self):
        """Raises Unsupported if SOL would compute too little.

        The limit only avoids compiles that cannot pay: the selector times what is compiled.
        """
        kinds = {record.kind for record in self._builder.records}
        if (
            not self._hosts
            or self._n_layers >= LAYERS_PER_HOST * len(self._hosts)
            or not kinds.isdisjoint(ANCHORS)
        ):
            return
        reasons = "; ".join(f"{x.call}: {x.reason}" for x in self._hosts[:MAX_REASONS])
        n = self._n_layers + len(self._hosts)
        raise Unsupported(f"SOL would compute {self._n_layers} of {n} operations: {reasons}")

    # ---- Sources ----

    def _placeholder(self, node):
        is_updated = self._buffers.get(node.name) in self._updated
        if not node.users and not is_updated:
            return
        position = self._positions.get(node.name)
        if position is not None:
            self._inputs.append(position)
            name = self._ports[0][position] if self._ports else f"input{position}"
            self._source(node, name, self._builder.model.input, False)
            self._ids.inputs.append(self._values[node].id)
        else:
            name, owner = self._find_parameter(node)
            self._params.append(owner)
            self._source(node, name, self._builder.model.param, not is_updated)
            self._ids.params[len(self._params) - 1] = self._values[node].id

    def _source(self, node, name, add, constant):
        value = node.meta["val"]
        if value.dtype not in DTYPE_NAMES:
            raise Unsupported(f"{name} is {show(node)}, which has no type in SOL")
        shape = tuple(map(self._builder.size, value.shape))
        self._sources.add(node)
        dtype = DTYPE_NAMES[value.dtype]
        self._define(node, node, node, self._builder.source(add, name, dtype, shape, constant))

    def _find_parameter(self, node):
        """Returns (name, owner): the owner is a name in the module, or the tensor itself. Raises Unsupported."""
        name = self._owned.get(node.name)
        if name is not None:
            name = name.removeprefix(PREFIX)
            return name, name
        name = self._literals.get(node.name)
        if name is None:
            raise Unsupported(f"the graph input {node.name} is neither tensor nor parameter")
        short, tensor = name.removeprefix(PREFIX), self._exported.constants[name]
        # A tensor attribute of a module may be replaced, so it is found by name, as a buffer is. A literal cannot change.
        return short, short if find_tensor(self._module, short) is tensor else tensor

    # ---- Calls ----

    def _call(self, node):
        if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
            return self._getitem(node)
        if not _is_tensors(node.meta.get("val")):
            return self._skip(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise Unsupported(f"the operation {node.target}")
        layer = find_layer(node.target)
        if layer is not None:
            return self._custom(node, layer)
        try:
            self._op(node)
        except Hidden as error:
            raise type(error)(f"{show_call(node)}: {error}") from error
        except (Unsupported, ValueError, TypeError, NotImplementedError) as error:
            if not self._partial:
                raise Unsupported(f"{show_call(node)}: {error}") from error
            self._host(node, str(error))

    def _skip(self, node):
        """Skips a node without tensor results. A size needs no layer: its users read it from the node's metadata."""
        name = _op_name(node.target)
        values = as_list(node.meta.get("val"))
        is_mixed = any(isinstance(x, torch.Tensor) for x in values)
        if is_mixed or (values == [None] and name not in ops.IGNORED):
            raise Unsupported(f"the operation {show_call(node)}")

    def _check_dtype(self, node):
        for value in as_list(node.meta["val"]):
            if value.dtype not in DTYPE_NAMES:
                raise Unsupported(f"the result is {show(node)}, which has no type in SOL")

    def _promote(self, packet, node, arguments):
        """Casts the arguments of an op to the element type of its result, as PyTorch's promotion does."""
        if packet in ops_type.KEEPING or not isinstance(node.meta["val"], torch.Tensor):
            return arguments

        def cast(x):
            if isinstance(x, list):
                return [cast(item) for item in x]
            return self._builder.cast(x, self._builder.dtype) if isinstance(x, Value) else x

        return {name: x if name in ops_type.KEPT else cast(x) for name, x in arguments.items()}

    def _getitem(self, node):
        parts, index = node.args
        if index >= len(self._values[parts]):
            if node.users:
                raise Unsupported(f"result number {index} of {show_call(parts)}")
            return
        bases = self._bases.get(parts)
        base = bases[index] if bases else self._base[parts]
        self._define(node, node, base, self._values[parts][index])

    def _op(self, node):
        """Imports one ATen op: calls its function of ops.py, and puts the result into an alias set."""
        name = _op_name(node.target)
        packet, _, overload = name.rpartition(".")
        written = _written_argument(node)
        function = ops.OPS.get(f"{packet.removesuffix('_')}.{overload}" if written else name)
        if function is None:
            raise Unsupported("SOL does not support this operator")
        self._check_dtype(node)
        if written:
            self._check_write(node, written)
        n_records = len(self._builder.records)
        self._builder.dtype = DTYPE_NAMES[as_list(node.meta["val"])[0].dtype]
        arguments = self._promote(packet.removesuffix("_"), node, self._arguments(node))
        result = function(self._builder, **arguments, out=self._out_shapes(node))
        _check_shapes(result, self._out_shapes(node))
        _check_dtypes(result, node)
        added = {record.kind for record in self._builder.records[n_records:]}
        self._n_layers += not added <= MOVES
        packet = packet.removesuffix("_")
        first = node.args[0] if node.args else None
        if written:
            self._define(node, self._cell[written], self._base[written], result)
        elif packet in SAME:
            self._define(node, self._cell[first], self._base[first], result)
        elif _is_view(node.target):
            self._define(node, node, self._base[first], result)
        else:
            base = node if node.target is COPY else self._find_base(node)
            self._define(node, node, base, result)

    def _out_shapes(self, node):
        """Returns the result's shape as a tuple of sizes, or a list of shapes for a list of results."""
        value, size = node.meta["val"], self._builder.size
        if isinstance(value, torch.Tensor):
            return tuple(map(size, value.shape))
        return [tuple(map(size, x.shape)) for x in value]

    def _host(self, node, reason):
        """Adds a node that PyTorch computes, because of ``reason``. Raises Unsupported if PyTorch cannot do so in a program."""
        if node.meta.get("autocast"):
            raise Unsupported(f"{show_call(node)}: {reason}; inside of torch.autocast")
        try:
            written = _written_argument(node)
            function, inputs = make_function(node, bool(written), self._builder.formula)
            base = self._find_base(node)
        except Unsupported as error:
            kind = DependsOnData if isinstance(error, DependsOnData) else Unsupported
            raise kind(f"{show_call(node)}: {reason}; in PyTorch: {error}") from error
        if written:
            self._check_write(node, written)
        values = as_list(node.meta["val"])
        types = [(DTYPE_NAMES[x.dtype], tuple(map(self._builder.size, x.shape))) for x in values]
        name, inputs = str(node.target), [self._value(x) for x in inputs]
        results = self._builder.host(name, function, inputs, types)
        self._hosts.append(HostNode(show_call(node), self._builder.origin, reason))
        if isinstance(node.meta["val"], torch.Tensor):
            results = results[0]
        if written:
            self._define(node, self._cell[written], self._base[written], results)
        else:
            self._define(node, node, base, results)

    def _custom(self, node, layer):
        """Adds a call of a CustomLayer. Its results share memory with no other tensor."""
        names = [x.name for x in node.target._schema.arguments]
        given = dict(zip(names, node.args)) | node.kwargs
        inputs = [self._value(given.pop(name)) for name in layer.inputs]
        if any(isinstance(x, torch.fx.Node) for x in torch.utils._pytree.tree_leaves(given)):
            raise Unsupported(f"{show_call(node)}: an attribute depends on open sizes")
        self._check_dtype(node)
        values = as_list(node.meta["val"])
        types = [(DTYPE_NAMES[x.dtype], tuple(map(self._builder.size, x.shape))) for x in values]
        results = self._builder.custom(layer, layer.pack(given), inputs, types)
        self._n_layers += 1
        is_single = isinstance(node.meta["val"], torch.Tensor)
        self._define(node, node, node, results[0] if is_single else results)

    def _find_base(self, node):
        """Returns the base of a node's results: that of the argument whose memory they share, else the node itself.

        Not all schemas say so: einsum may return a view.
        """
        owners = {
            self._memory.of(x.meta["val"]): self._base[x]
            for x in node.all_input_nodes
            if x in self._base
        }
        results = [self._memory.of(x) for x in as_list(node.meta["val"])]
        bases = [owners.get(storage, node) for storage in results]
        if len(set(results)) < len(results):
            self._joined.add(node)
        if len(set(bases)) == 1:
            return bases[0]
        self._bases[node] = bases
        return node

    def _value(self, node):
        return self._values[self._cell[node]]

    def _define(self, node, cell, base, value):
        self._cell[node] = cell
        self._base[node] = base
        self._members.setdefault(base, []).append(node)
        self._values[cell] = value

    def _arguments(self, node):
        """Returns {name in the op's schema: Value, number, ...}; ``self`` and ``input`` are called x."""
        named = {}
        for i, argument in enumerate(node.target._schema.arguments):
            if i < len(node.args):
                value = node.args[i]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            else:
                value = argument.default_value
                if value is None:
                    continue
            name = "x" if argument.name in ("self", "input") else argument.name
            named[name] = torch.fx.node.map_aggregate(value, self._argument)
        return named

    def _argument(self, value):
        if not isinstance(value, torch.fx.Node):
            return value
        if value in self._cell:
            return self._value(value)
        return self._builder.size(value.meta["val"])

    # ---- Aliases ----

    def _check_write(self, node, written):
        """Raises Unsupported if a node that is another tensor than ``written`` would see the write of this in-place op."""
        base = self._base[written]
        self._written.append(written)
        if base in self._sources:
            is_visible = base.name in self._buffers or (
                base.name in self._positions and not self._ports
            )
            kind = _Visible if is_visible else Unsupported
            raise kind(f"it writes into {base.name}")
        for other in self._alive(base, node):
            if self._cell[other] is not self._cell[written] and not self._disjoint(other, written):
                raise _Aliased(f"the write also changes {other.name}, which shares its memory")

    def _disjoint(self, a, b):
        """Whether both nodes are different parts of the same chunk, split or unbind."""
        if a.target is not operator.getitem or b.target is not operator.getitem:
            return False
        return a.args[0] is b.args[0] and a.args[1] != b.args[1] and a.args[0] not in self._joined

    def _alive(self, base, node):
        """Yields the members of an alias set that are used after ``node``."""
        now = self._order[node]
        for member in self._members[base]:
            if any(self._order[user] > now for user in member.users):
                yield member

    def _output(self, node):
        """Adds the model's outputs. Returns for each result the index of the model's output, or an Alias. Raises Unsupported."""
        results, written, copied = self._sort_outputs(node)
        self._update(written)
        ports = {}  # cell -> index of the model's output
        found = [self._find_result(i, results, ports) for i in range(len(results))]
        if self._ports:
            for name, result in zip(self._ports[1], results):
                self._builder.model.output(name, self._values[self._cell[result]].id)
            return list(range(len(results)))
        for name, value in copied.items():
            port = ports.setdefault(self._cell[value], len(ports))
            self._copies.append((self._positions[name], port))
        if not ports and written:  # libsol's models have at least one output
            ports[self._cell[next(iter(written.values()))]] = 0
        if not ports:
            raise Unsupported(
                "it computes nothing: its results are inputs or parameters, or views of them"
            )
        for cell, port in ports.items():
            self._builder.model.output(f"output{port}", self._values[cell].id)
            self._ids.outputs.append(self._values[cell].id)
        return found

    def _sort_outputs(self, node):
        """Returns (results, {name of a buffer: its new value}, {name of an input: its new value}) as nodes. Raises Unsupported."""
        results, written, copied = [], {}, {}
        for spec, result in zip(self._exported.graph_signature.output_specs, node.args[0]):
            if spec.kind == OutputKind.BUFFER_MUTATION:
                written[spec.target] = result
            elif spec.kind == OutputKind.USER_INPUT_MUTATION and result in self._cell:
                copied[spec.target] = result
            elif spec.kind == OutputKind.USER_OUTPUT:
                results.append(result)
            else:
                raise Unsupported(f"the model writes into {spec.target}")
        return results, written, copied

    def _find_result(self, i, results, ports):
        """Returns the index of the model's output for result number ``i``, or an Alias. Adds outputs to ``ports``."""
        chain = self._chains.get(i)
        if chain is None:
            self._check_result(results[i], ports)
            return ports.setdefault(self._cell[results[i]], len(ports))
        if chain.root.op == "placeholder":
            position = self._positions.get(chain.root.name)
            source = self._find_parameter(chain.root)[1] if position is None else position
            if isinstance(source, torch.Tensor):
                raise Unsupported(
                    f"the result shares memory with {chain.root.name}, a tensor of no module"
                )
        else:
            root = self._find_root(chain.root, results)
            source = Output(ports.setdefault(self._cell[root], len(ports)))
        return Alias(source, make_steps(chain, self._builder.formula))

    def _find_root(self, root, results):
        """Returns the node of the tensor in whose memory several results lie. Raises Unsupported."""
        if root in self._cell:
            whole = root
            parts = [x for x in self._written if self._base[x] is self._base[root]]
            if any(self._cell[x] is not self._cell[root] for x in parts):
                raise _Aliased(f"the write into {parts[0].name} also changes {root.name}")
        else:  # this graph is the functional form, in which a result may be the tensor
            same = [
                i for i, chain in self._chains.items() if chain.root is root and not chain.nodes
            ]
            if not same:
                raise Unsupported(f"results share memory with {root.name}, which is not a result")
            whole = results[same[0]]
        if not root.meta["val"].is_contiguous() or 0 in self._out_shapes(whole):
            raise Unsupported(
                f"results share memory with {root.name}, which has gaps or no elements"
            )
        return whole

    def _update(self, written):
        """Adds the model's updates. ``written``: {name of a buffer: the node of its new value}. Raises Unsupported."""
        nodes = {self._buffers[x.name]: x for x in self._sources if x.name in self._buffers}
        for name, node in written.items():
            if name not in nodes or not isinstance(node, torch.fx.Node) or node not in self._cell:
                raise Unsupported(f"the model writes into {name}")
            self._builder.model.update(self._value(nodes[name]).id, self._value(node).id)
            self._updates.append(self._params.index(name.removeprefix(PREFIX)))
        fault = find_fault(self._module, [self._params[i] for i in self._updates])
        if fault:
            raise Unsupported(fault)

    def _check_result(self, result, ports):
        """Raises Unsupported for a result that is no output. Outputs of a library do not share memory with other tensors."""
        if not isinstance(result, torch.fx.Node) or result not in self._cell:
            raise Unsupported(f"the result {result} is no tensor of the graph")
        if 0 in self._out_shapes(result):
            raise Unsupported(f"the result {show(result)} is empty")
        if not self._ports:
            return
        if self._base[result] in self._sources:
            raise Unsupported(f"the result shares memory with {self._base[result].name}")
        for other in ports:
            same = self._cell[result] is other
            if (
                not same
                and self._base[other] is self._base[result]
                and not self._disjoint(other, result)
            ):
                raise Unsupported(f"the results {other.name} and {result.name} share memory")


# ---- Facts of nodes ----


def _op_name(target):
    return str(target).removeprefix("aten.")


def _is_tensors(value):
    values = as_list(value)
    return bool(values) and all(isinstance(x, torch.Tensor) for x in values)


def _written_argument(node):
    """Returns the node that an in-place op writes to, or None. Raises Unsupported for out= variants."""
    written = [i for i, a in enumerate(node.target._schema.arguments) if _writes(a)]
    if written and written != [0]:
        raise Unsupported("it writes into an argument")
    if written and not isinstance(node.args[0], torch.fx.Node):
        raise Unsupported("it writes into a list of tensors")
    return node.args[0] if written else None


def _writes(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


def _is_view(target):
    return any(x.alias_info is not None for x in target._schema.returns)


def _check_shapes(result, expected):
    """Raises Unsupported unless libsol and PyTorch compute the same shapes."""
    pairs = [(result, expected)] if isinstance(result, Value) else zip(result, expected)
    for value, shape in pairs:
        if value.shape != shape:
            raise Unsupported(f"SOL gives {value.shape} where PyTorch gives {shape}")


def _check_dtypes(result, node):
    values = [result] if isinstance(result, Value) else result
    for value, expected in zip(values, as_list(node.meta["val"])):
        if value.dtype != DTYPE_NAMES[expected.dtype]:
            raise Unsupported(f"SOL gives {value.dtype} where PyTorch gives {show(node)}")

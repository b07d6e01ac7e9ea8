"""A plan: one compiled program, and the mapping of a call's inputs and results to its buffers.

make_plan: module -> capture -> import -> compile -> Plan
"""

import contextlib
from time import perf_counter

import torch
from torch import empty, get_num_threads

from sol import _core, debug, device, log
from sol.config import config
from sol.progress import Bar
from sol.pytorch.aliases import Alias
from sol.pytorch.builder import DTYPES
from sol.pytorch.capture import capture
from sol.pytorch.importer import import_graph
from sol.pytorch.nodes import describe_graph
from sol.pytorch.reads import is_same
from sol.pytorch.seeds import draw, find_checkpoint
from sol.pytorch.selector import forget_times
from sol.pytorch.structure import flatten
from sol.pytorch.updates import count_up, find_fault, find_overlap, has_moved, restore
from sol.pytorch.watch import find_tensor

# The number of batch sizes for which the shapes of results are cached.
MAX_SHAPES = 64
CPU = torch.device("cpu")


class Plan:
    """Runs a model's program. Immutable, except for cached shapes; shared by copies of a module.

    ``graph``: the captured graph as text; equal texts give equal plans. ``inputs``: indices of the tensors that the program
    reads. ``batches``: the open sizes for which the graph is valid. ``ready``: for shortcuts, {key of the open sizes: for each
    output of the program the arguments of torch.empty}; it only grows. ``symbols_at``: for each symbol of the program its
    position in a key. ``kinds``: for each output its dtype and device. ``is_single``: the result is one tensor. ``updates``: names
    of the module's buffers that calls write; ``updated``: indices of these params. ``copies``: (index of an input, index of an output) for each input that calls write.
    ``is_list``: the result is the list of the program's outputs. ``has_aliases``: results share memory with other tensors (aliases.py),
    or depend on open sizes. ``hosts``: a HostNode for each node that PyTorch computes. ``draws``: each call has a seed for random
    numbers. ``debug``: a Recorder, or None.
    """

    def __init__(self, captured, imported, program, graph):
        self.program = program
        self.batches = captured.batches
        self.graph = graph
        self.inputs = imported.inputs
        self._params = imported.params
        self.updated = imported.updates  # indices of params
        self.updates = [imported.params[i] for i in imported.updates]
        self._ports = imported.outputs  # for each result the index of an output, or an Alias
        aliases = [port for port in imported.outputs if isinstance(port, Alias)]
        self._sizes = imported.sizes
        self.has_aliases = bool(aliases or self._sizes)
        self.copies = imported.copies
        self._shared = {i for i, _ in self.copies} | {
            x.source for x in aliases if type(x.source) is int
        }
        self._structure = captured.output
        self._constants = captured.constants
        self._n_leaves = captured.n_leaves
        self.kinds = tuple({"dtype": DTYPES[x], "device": CPU} for _, x, _ in program.outputs)
        self.hosts = imported.hosts
        self.draws = imported.builder.seed is not None
        self.symbols_at = tuple(map(captured.batches.names.index, imported.builder.symbols))
        self._shapes = {}
        self.ready = {}
        self.is_single = captured.output.is_leaf and not captured.constants and not self.has_aliases
        in_order = list(range(len(self.kinds)))
        is_plain = self._ports == in_order and not captured.constants
        self.is_list = is_plain and captured.output == flatten(in_order)[1]
        self.debug = None

    # ---- Weights ----

    def make_weights(self, module):
        """Prepacks the module's current parameters. Returns _core.Weights.

        Raises ValueError when a parameter does not exist any more or has another shape than in the plan.
        """
        fault = find_fault(module, self.updates)
        if fault:
            raise ValueError(fault)
        # A detached tensor keeps its memory alive, also if the parameter's `.data` is set to other memory.
        found = self._find_params(module)
        tensors = [tensor.detach().resolve_neg().contiguous() for tensor in found]
        return self.program.weights([tensor.data_ptr() for tensor in tensors], tensors)

    def _find_params(self, module):
        """Returns the tensors that are the program's params. Raises ValueError if one is missing or has another shape."""
        tensors = []
        for owner, (name, _, shape) in zip(self._params, self.program.params):
            tensor = find_tensor(module, owner) if isinstance(owner, str) else owner
            if tensor is None or tuple(tensor.shape) != shape:
                raise ValueError(f"parameter {name} is no longer of shape {list(shape)}")
            tensors.append(tensor)
        return tensors

    def has_moved(self, weights, module):
        """Whether a buffer that calls write lies elsewhere than when ``weights`` were made. Its values may have changed."""
        written = self._written(weights)
        return any(has_moved(find_tensor(module, x), y) for x, y in zip(self.updates, written))

    def _written(self, weights):
        return [weights.keep[i] for i in self.updated] if self.updated else []

    @property
    def kept(self):
        """Names of the module's tensors that calls read but do not write."""
        return {x for x in self._params if isinstance(x, str)}.difference(self.updates)

    # ---- Calls ----

    def refusal(self, batch):
        """Returns the reason why SOL must not run a call with these open sizes, or None."""
        if not self.batches.admit(batch):
            return f"{describe_sizes(batch)} is outside of what torch.export proved"
        try:
            shapes = self._output_shapes(self.symbols(batch))
        except ValueError as error:  # a condition of the program does not hold
            return f"{describe_sizes(batch)}: {error}"
        if any(0 in shape for shape in shapes):
            return f"{describe_sizes(batch)}: a result is empty"
        return find_checkpoint() if self.draws else None

    def find_overlap(self, weights, leaves, caller):
        """Returns the reason why SOL must not run a call that writes: its tensors lie in each other's memory. Or None."""
        written = [*zip(self.updates, self._written(weights))]
        copied = [(caller.names[i], caller.tensors[i]) for i, _ in self.copies]
        return (
            find_overlap(written + copied, leaves, "an input")
            or find_overlap(copied, weights.keep, "the model")
            or self.find_strided(caller)
        )

    def find_strided(self, caller):
        """Returns the reason why SOL must not run a call: an input that it writes, or whose memory it returns, has gaps. Or None.

        For such a tensor, an operator such as reshape makes a copy, unlike in the graph.
        """
        for i in self._shared:
            if not caller.tensors[i].is_contiguous() or caller.tensors[i].is_neg():
                return f"{caller.names[i]}, which is written or returned, is not contiguous"
        return None

    @property
    def writes(self):
        """Whether calls write buffers, inputs, or the state of a generator: so none may run twice."""
        return bool(self.updated or self.copies or self.draws)

    def _find_inputs(self, tensors):
        """Returns the program's inputs of a call, among them its seed."""
        found = [tensors[i] for i in self.inputs]
        return [*found, draw()] if self.draws else found

    def run(self, weights, tensors, batch, caller):
        """Runs the program. Returns the model's result, in new tensors except those that share memory with others.

        ``tensors``: one contiguous tensor per tensor input of the model, in the order of its specs. ``caller``: aliases.Caller.
        """
        symbols = self.symbols(batch)
        outputs = self._make_outputs(symbols)
        given = self._find_inputs(tensors)
        inputs = [x.data_ptr() for x in given]
        addresses = [output.data_ptr() for output in outputs]
        if self.debug:
            self.debug.run(self.program, weights, symbols, inputs, addresses)
        else:
            self.program.run(weights, symbols, inputs, addresses)
        if self.updated:
            count_up(self._written(weights))
        for i, port in self.copies:
            caller.tensors[i].copy_(outputs[port])
        return outputs[0] if self.is_single else self.build(outputs, caller, symbols)

    def note_batch(self, batch):
        """Adds a batch size to ``ready``. ``refusal`` must have admitted it."""
        key = -1 if batch is None else batch
        if key not in self.ready and len(self.ready) < MAX_SHAPES:
            shapes = self._output_shapes(self.symbols(batch))
            self.ready[key] = tuple((shape,) for shape in shapes)

    def profile(self, weights, tensors, batch):
        """Runs the program once and discards its results, also what it writes. Returns the rows of Program.profile, one per step."""
        symbols = self.symbols(batch)
        outputs = self._make_outputs(symbols)
        given = self._find_inputs(tensors)
        inputs = [x.data_ptr() for x in given]
        with self.unchanged(weights):
            return self.program.profile(weights, symbols, inputs, [y.data_ptr() for y in outputs])

    @contextlib.contextmanager
    def unchanged(self, weights):
        """Returns a context at whose end the buffers have the values from its beginning."""
        written = self._written(weights)
        before = [tensor.clone() for tensor in written]
        try:
            yield
        finally:
            restore(written, before)

    def memory(self, batch):
        """Returns Program.memory for this batch size."""
        return self.program.memory(self.symbols(batch))

    def returns_as(self, captured):
        """Whether this plan's results have the same structure and constants as those of another capture."""
        ours, theirs = self._constants, captured.constants
        return (
            self._structure == captured.output
            and ours.keys() == theirs.keys()
            and all(is_same(ours[i], theirs[i]) for i in ours if i not in self._sizes)
            and all(ours[i] == theirs[i] for i in self._sizes)
        )

    def symbols(self, batch):
        """Returns the values of the program's symbols for a key of open sizes."""
        if isinstance(batch, tuple):
            return tuple(batch[i] for i in self.symbols_at)
        return (batch,) if self.symbols_at else ()

    def _make_outputs(self, symbols):
        return [empty(s, **kind) for s, kind in zip(self._output_shapes(symbols), self.kinds)]

    def _output_shapes(self, symbols):
        shapes = self._shapes.get(symbols)
        if shapes is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes = {}
            shapes = [self.program.output_shape(i, symbols) for i in range(len(self.kinds))]
            self._shapes[symbols] = shapes
        return shapes

    def build(self, outputs, caller=None, symbols=()):
        """Returns the model's result: the tensors ``outputs``, aliases and constants in the structure that the forward returns.

        Without ``has_aliases``, only ``outputs`` are needed.
        """
        tensors = (
            port.make(caller, outputs, symbols) if isinstance(port, Alias) else outputs[port]
            for port in self._ports
        )
        sizes = {i: evaluate(symbols) for i, evaluate in self._sizes.items()}
        constants = {**self._constants, **sizes} if sizes else self._constants
        leaves = [constants[i] if i in constants else next(tensors) for i in range(self._n_leaves)]
        return self._structure.build(iter(leaves))


def make_plan(module, specs, structure, options, batch, old=None, partial=True, mode=None):
    """Captures for the open sizes ``batch`` (a key; None: any), imports and compiles. Returns (Plan, Reads).

    The plan is ``old`` itself if the graph and the result's structure are the same. ``options``: of the
    engine. ``partial``: PyTorch may compute nodes of the program. ``mode``: a Mode without gradients, or None. Raises
    CannotCapture or Unsupported when PyTorch must run the model, Refused when the model itself refuses such inputs.
    """
    times = [perf_counter()]
    captured = capture(module, specs, structure, batch, options.batch_hint, mode)
    graph = describe_graph(captured.exported)
    times.append(perf_counter())
    if old is not None and old.graph == graph and old.returns_as(captured):
        captured.reads.updates, captured.reads.kept = old.updates, old.kept
        return old, captured.reads
    plan = compile_plan(captured, graph, module, options, partial, times)
    captured.reads.updates, captured.reads.kept = plan.updates, plan.kept
    return plan, captured.reads


def _find_recompute():
    """Returns the option of the C interface: SOL_RECOMPUTE_CHEAP, or what the share leaves to be computed again."""
    share = config["training::memory"]
    return -1.0 if share is None else 1 - share


def compile_plan(captured, graph, module, options, partial, times, check=None, kind=Plan):
    """Imports and compiles a Captured of ``module``. Returns a Plan. Raises Unsupported.

    ``graph``: the graph as text. ``options``: engine.Options. ``times``: when the capture began and ended, for the log. ``check``: is called with what was
    imported, and may add layers, or raise Unsupported before anything is compiled. ``kind``: makes the plan.
    """
    name, batch_hint, _, target = options
    imported = import_graph(captured, module, name, partial=partial)
    if check is not None:
        check(imported)
    for size, value in imported.builder.excluded:
        captured.batches.exclude(size, value)
    at = map(captured.batches.names.index, imported.builder.symbols)
    sizes = captured.batches.example
    hints = [sizes[i] for i in at] if isinstance(sizes, tuple) else []
    model = imported.builder.model
    model.check()
    times.append(perf_counter())
    with Bar(f"SOL {name}") as progress:
        program = model.compile(
            **(target or device.get()).options,
            batch_hint=hints[0]
            if imported.builder.symbols[:1] not in ([], ["n"])
            else batch_hint or 0,
            hints=hints,
            winograd=config["compiler::winograd"],
            autotune=config["compiler::autotune"],
            debug=config["compiler::debug"],
            name=name,
            progress=progress,
            recompute=_find_recompute(),
        )
    times.append(perf_counter())
    log.say(log.info, _describe_times(name, times, program))
    if imported.hosts:
        log.say(log.info, _describe_hosts(name, imported))
    plan = kind(captured, imported, program, graph)
    plan.debug = debug.make_recorder(name, imported.builder.records, program)
    return plan


def describe_sizes(key):
    """Returns a key of open sizes as text."""
    return f"{'the sizes' if isinstance(key, tuple) else 'batch size'} {key}"


def _describe_times(name, times, program):
    captured, imported, compiled = (b - a for a, b in zip(times, times[1:]))
    return (
        f"{name}: captured in {captured:.2f} s, imported in {imported:.2f} s, compiled in {compiled:.2f} s;"
        f" {program.n_compiled} kernels were not in the cache, which took the C compiler"
        f" {program.compiler_s:.2f} s of processor time"
    )


def _describe_hosts(name, imported):
    n, of = len(imported.hosts), len(imported.hosts) + imported.n_layers
    return f"{name}: PyTorch computes {n} of {of} operations inside of the program: sol.host_nodes lists them"


_threads = None


def follow_threads():
    """Sets the number of SOL's threads to torch.get_num_threads(). After a change, all selectors start again."""
    global _threads
    n = get_num_threads()
    if n != _threads:
        _core.set_threads(n)
        forget_times()
        _threads = n

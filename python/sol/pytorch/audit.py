"""Decides whether a graph may replace a forward, and finds the Python state that the forward reads.

Dynamo interprets the forward's bytecode, so it sees reads and writes of Python state. torch.export sees only the tensor
operations of one run.

    a graph break, or Python state is written    CannotCapture, Writes: PyTorch must run the forward
    Python state is read                         Reads, which the model's guard checks

This file runs and compiles nothing, and attaches nothing to code objects. It uses a private interface of PyTorch, which is
the same from 2.11 to 2.13. If that interface is missing, no model can be captured.
"""

import contextlib
import logging
import re
import sys
import threading
import traceback
import types
import warnings

import torch

from sol.pytorch.bytecode import FOLDERS, asks_kinds, find_question, uses_all_attributes
from sol.pytorch.program import is_program
from sol.pytorch.reads import QUESTIONS, Unwatchable, Walker, source_name
from sol.pytorch.watch import BACKWARD_HOOKS, GLOBAL_HOOKS, INTERNAL, module_tensors


class CannotCapture(Exception):
    """No graph can replace the model's forward; PyTorch can run the model. The message is the reason."""


class Broken(CannotCapture):
    """No single graph can replace the forward, but several graphs may, with Python between them."""


class Writes(CannotCapture):
    """The forward writes Python state: at each call, or only at the first one, such as a cached table."""


class MayRefuse(CannotCapture):
    """The forward raised an exception during the capture. It may also raise one in plain PyTorch."""


OPTIONS = {
    "allow_rnn": True,
    "specialize_int": True,
    "specialize_float": True,
    "assume_static_by_default": True,
    "automatic_dynamic_shapes": False,
    "suppress_errors": False,
    "verbose": False,
}

# Dynamo's guards about PyTorch's global state. The engine checks that state (modes.py), or torch.export fixed it.
STATE_GUARDS = {
    "AUTOGRAD_SAVED_TENSORS_HOOKS", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS", "DUAL_LEVEL",
    "FSDP_TRAINING_STATE", "FUNCTORCH_STACK_MATCH", "GLOBAL_STATE", "GRAD_MODE", "SHAPE_ENV", "TORCH_FUNCTION_STATE",
}  # fmt: skip

# Dynamo's guards that hold as long as all objects on the path of their source, and their contents, stay the same.
OBJECT_GUARDS = {
    "BOOL_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "CONSTANT_MATCH", "CONSTANT_SUBCLASS_MATCH",
    "DICT_CONTAINS", "DICT_KEYS_MATCH", "DICT_NOT_CONTAINS", "DICT_VERSION", "DISPATCH_KEY_SET_MATCH",
    "DUPLICATE_INPUT", "EMPTY_NN_MODULE_HOOKS_DICT", "EQUALS_MATCH", "FUNCTION_MATCH", "HASATTR", "ID_MATCH",
    "MAPPING_KEYS_CHECK", "MODULE_MATCH", "NAME_MATCH", "NN_MODULE", "NONE_MATCH", "NOT_NONE_MATCH",
    "NOT_PRESENT_IN_GENERIC_DICT", "SEQUENCE_LENGTH", "SET_CONTAINS", "SET_NOT_CONTAINS", "TENSOR_MATCH", "TYPE_MATCH",
    "WEAKREF_ALIVE",
}  # fmt: skip


# Parts of names of operations in Dynamo's graph that make a gradient another one than that of the operators, and what to say.
GRADIENT_TRICKS = {
    "autograd_function_apply": "has a torch.autograd.Function",
    "hook": "gives a tensor a hook",
    "requires_grad": "changes which tensors want gradients",
    "inference_mode": "turns inference mode on or off",
}

# Modules whose functions have the gradients of their operators, also if Dynamo does not look into them (allow_in_graph).
PLAIN_MODULES = {"torch", "einops"}
GRAD_MODE = "_set_grad_enabled"

# The local variables of _call that hold the arguments of the model.
ARGUMENTS = {"args", "kwargs"}


def _call(model, args, kwargs):
    """The function that Dynamo interprets. Its global ``see`` is _see (_fresh)."""
    output = model(*args, **kwargs)
    see(output)  # noqa: F821
    return output


def _see(output):
    """Uses the Python values in an output: Dynamo makes no guard for a value that the forward only returns."""
    if isinstance(output, dict):
        for value in output.values():
            _see(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            _see(value)
    elif isinstance(output, (int, float, str)):
        bool(output == 0)
    elif not isinstance(output, (torch.Tensor, torch.nn.Module, type)) and hasattr(
        output, "__dict__"
    ):
        _see(output.__dict__)


def audit(model, call):
    """Returns the Reads of a structure.Call of ``model``: the Python state that the forward reads.

    ``call``: has example inputs. As in torch.export, their shapes decide which branches the forward takes. If gradients are on, the
    graph's are those of the forward. Raises CannotCapture with the reason when PyTorch must run the model, MayRefuse when the forward raises an exception.
    """
    if is_program(model):
        return _read_program(model)
    function = _fresh(_call)
    captured, written = _interpret(function, model, call)
    graph = captured.graph_capture_output
    walker = Walker(
        {"model": model, "args": call.args, "kwargs": call.kwargs},
        lambda name: _find_global(name, graph, function),
        _watched_anyway(model),
    )
    question = find_question(graph.traced_code)
    if question:
        raise CannotCapture(f"its forward asks for {question}")
    try:
        for module in model.modules():
            walker.touch(type(module))
        _check_graph(captured.backend_input, walker, {id(x) for x in model.buffers()})
        if torch.is_grad_enabled():
            _check_gradients(captured.backend_input)
        for guard in graph.output_graph.guards:
            _walk_guard(guard, walker)
        for source in written:
            walker.walk(source)
    except Unwatchable as error:
        raise CannotCapture(f"its forward reads {error}, which may change unseen") from None
    if uses_all_attributes(graph.traced_code):
        walker.reads.attributes = None
    walker.reads.asks_kinds = asks_kinds(graph.traced_code)
    walker.reads.freeze()
    return walker.reads


def _read_program(model):
    """Returns the Reads of a program's module. Its graph reads tensors, but PyTorch's code around it also reads tables of all types
    that can be taken apart. These do not matter, as they only gain entries."""
    walker = Walker({}, lambda name: ..., _watched_anyway(model))
    for module in model.modules():
        walker.touch(type(module))
    walker.reads.attributes = None
    walker.reads.freeze()
    return walker.reads


def find_reads(model):
    """Returns the Reads of the Python function of which Dynamo is compiling a graph, for a backend function of torch.compile.

    They have what Dynamo's guards check, as far as it is reached from modules, functions and global names, and is of a kind that can be
    watched: a list in a local variable, for example, may be another one in each call.
    """
    output = _find_output_graph()
    scope = types.SimpleNamespace(__globals__=output.global_scope)
    lasting = torch.nn.Module, types.FunctionType, types.MethodType, types.ModuleType, type
    roots = {key: x for key, x in output.local_scope.items() if isinstance(x, lasting)}
    walker = Walker(roots, lambda name: _find_global(name, output, scope), _watched_anyway(model))
    for guard in output.guards:
        with contextlib.suppress(Unwatchable):
            _walk_guard(guard, walker)
    walker.reads.freeze()
    return walker.reads


def _find_output_graph():
    """Returns the object of the graph that Dynamo is compiling, from the frames of its functions."""
    from torch._dynamo.output_graph import OutputGraph

    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, OutputGraph):
            return owner
        frame = frame.f_back
    raise CannotCapture("this PyTorch has another Dynamo")


def _watched_anyway(model):
    """Yields the objects that the guard of a Snapshot checks anyway: modules, their internal dicts, and their tensors."""
    yield from (*GLOBAL_HOOKS, *BACKWARD_HOOKS)
    for module in model.modules():
        yield module
        yield vars(module)
        yield from (vars(module)[name] for name in INTERNAL)
        yield from (tensor for _, tensor in module_tensors(module))


def _fresh(function):
    """Returns a copy of a function with its own globals: Dynamo adds names to the globals of a function that it interprets."""
    scope = {"__builtins__": __builtins__, "__name__": __name__, "see": _see}
    return types.FunctionType(function.__code__, scope, function.__name__)


def _interpret(function, model, call):
    """Returns (what Dynamo captured, sources of attributes that the forward sets to the values that they have)."""
    try:
        from torch._dynamo import config, utils
        from torch._dynamo.convert_frame import fullgraph_capture
    except ImportError as error:
        raise CannotCapture(f"this PyTorch has another Dynamo: {error}") from None

    def run(policy):
        options = OPTIONS | {"side_effect_replay_policy": policy}
        with config.patch(options), utils.get_metrics_context(), _exporting():
            return fullgraph_capture(function, (model, call.args, call.kwargs))

    try:
        try:
            return run("error"), []
        except RuntimeError as error:
            effects = _find_effects(error)
            if not _are_restored(effects):
                raise
            return run("info"), _sources_of(effects)
    except Exception as error:
        effects = _describe_effects(error)
        if effects:
            raise Writes(f"its forward writes to {effects}") from error
        kind = MayRefuse if _is_of_forward(error) else Broken
        raise kind(_describe(error)) from error


@contextlib.contextmanager
def _exporting():
    """Lets torch.compiler.is_exporting() be true, as in torch.export: the forward must take the same branches here."""
    before = torch.compiler._is_exporting_flag
    torch.compiler._is_exporting_flag = True
    try:
        yield
    finally:
        torch.compiler._is_exporting_flag = before


def _is_of_forward(error):
    """Whether the forward, or an operation with these shapes, raised the error, and not Dynamo itself."""
    words = "Observed exception", "Argument mismatch", "fake tensor call"
    return type(error).__name__ == "TorchRuntimeError" or any(x in str(error) for x in words)


@contextlib.contextmanager
def quiet():
    """Suppresses warnings and log messages of PyTorch on this thread: SOL reports its own reason for a fallback."""
    mine = _NotThisThread()
    loggers = [x for name, x in logging.root.manager.loggerDict.items() if _is_of_torch(name, x)]
    for logger in loggers:
        logger.addFilter(mine)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(mine)


def _is_of_torch(name, logger):
    return name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger)


class _NotThisThread(logging.Filter):
    def __init__(self):
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record):
        return record.thread != self._thread


def _find_global(name, graph, function):
    if name in graph.import_sources:
        return sys.modules[graph.import_sources[name]]
    if name.startswith("__builtins_dict__"):
        return vars(__import__("builtins"))
    return function.__globals__.get(name, ...)


def _walk_guard(guard, walker):
    kind = guard.create_fn_name()
    if kind in STATE_GUARDS:
        return
    source = guard.originating_source
    if kind not in OBJECT_GUARDS:
        raise Unwatchable(f"{source_name(source)} ({kind})")
    if _root(source) in ARGUMENTS:
        if kind == "HASATTR":
            _note_attribute(guard, source, walker)
        return
    value = walker.walk(source)
    if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)) and value in QUESTIONS:
        walker.reads.questions.append((value, value()))


def _note_attribute(guard, source, walker):
    """Notes that the forward asks whether an input has an attribute. Raises Unwatchable if the tensor classes have it."""
    name = getattr(guard.create_fn, "keywords", {}).get("attr")
    if name is None or hasattr(torch.Tensor, name):
        raise Unwatchable(f"an attribute of {source_name(source)}")
    walker.reads.asked_attributes.add(name)


def _root(source):
    """Returns the name of the local variable at the root of a source, or None."""
    while hasattr(source, "base"):
        source = source.base
    return getattr(source, "local_name", None)


def _check_graph(backend_input, walker, buffers):
    """Raises Unwatchable or CannotCapture for a graph that SOL cannot use.

    Each input of the graph must be an argument of the call or a tensor that the guard checks: no random numbers, no NumPy
    arrays. The graph may write into arguments of the call and into the model's ``buffers`` (ids): the importer finds these
    writes again. It must not write into other tensors, nor into ``input.data``, which has its own version counter.
    """
    for node in backend_input.graph_module.graph.nodes if backend_input else ():
        is_input = node.op == "placeholder"
        if is_input and _root(source := node._dynamo_source) in ARGUMENTS:
            if _is_argument(source):
                continue
        elif is_input:
            value = walker.walk(source)
            if not isinstance(value, torch.Tensor):
                raise Unwatchable(source_name(source))
            if id(value) in buffers:
                continue
        if is_input or "data" in str(getattr(node.target, "__name__", "")):
            if getattr(node.meta.get("example_value"), "_version", 0):
                raise CannotCapture(f"its forward writes to {_input_name(node)}")


def _check_gradients(backend_input):
    """Raises CannotCapture for a graph whose gradients are not those of its operators, apart from those inside of no_grad."""
    if not backend_input:
        return
    graphs = [x.graph for x in backend_input.graph_module.modules() if hasattr(x, "graph")]
    for node in (x for graph in graphs for x in graph.nodes if x.op.startswith("call")):
        text = _find_trick(node)
        if text:
            raise CannotCapture(f"its forward {text}{_find_line(node)}")
    modes = [x.args[0] for x in backend_input.graph_module.graph.nodes if _name(x) == GRAD_MODE]
    if modes and not modes[-1]:
        raise CannotCapture("its forward leaves gradients off")


def _find_trick(node):
    """Returns what a call of a graph does with gradients, or None if that is nothing special."""
    if node.kwargs.get("use_reentrant"):
        return "has a checkpoint that is reentrant"
    module = getattr(node.target, "__module__", None) or ""
    if isinstance(node.target, types.FunctionType) and module.split(".")[0] not in PLAIN_MODULES:
        return f"calls {_name(node)}, which may have a gradient of its own"
    return next((text for part, text in GRADIENT_TRICKS.items() if part in _name(node)), None)


def _name(node):
    return str(getattr(node.target, "__name__", node.target))


def _find_line(node):
    """Returns the user's line of a node of Dynamo's graph: " (net.py:93)", or ""."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f" ({frames[-1][0].rsplit('/', 1)[-1]}:{frames[-1][1]})" if frames else ""


def _is_argument(source):
    """Whether a source is a leaf of the arguments, and no attribute of one, such as its gradient."""
    from torch._dynamo.source import AttrSource

    while hasattr(source, "base"):
        if isinstance(source, AttrSource):
            return False
        source = source.base
    return True


def _input_name(node):
    while node.op != "placeholder":
        node = node.args[0]
    return source_name(node._dynamo_source)


# ---- Reasons ----


def _describe(error):
    """Returns Dynamo's reason for a failed capture, with the line in the user's code."""
    text = find_explanation(str(error)) or type(error).__name__
    return f"Dynamo: {text}{_user_line(getattr(error, 'real_stack', None))}"


def find_explanation(text):
    """Returns the first sentence of the explanation in a text of Dynamo; its first line if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines[1:3]:
        if line.startswith("Explanation: "):
            return re.split(r"(?<!e\.g)\. ", line.removeprefix("Explanation: "))[0].rstrip(".")
    return lines[0] if lines else ""


def _find_effects(error):
    """Returns Dynamo's SideEffects object from the frames of an error's traceback; None if the error is no side effect."""
    effects, at = None, error.__traceback__ if "side effects" in str(error) else None
    while at is not None and effects is None:
        effects = getattr(at.tb_frame.f_locals.get("self"), "side_effects", None)
        at = at.tb_next
    return effects


def _are_restored(effects):
    """Whether all attributes and dicts that a forward writes have the same values at its end as before, so that a call writes none
    of them."""
    attributes = getattr(effects, "store_attr_mutations", {})
    try:
        written = [x for x in effects.mutation_user_stacks if _is_older(x)]
        return bool(written) and all(
            _is_restored(x, attributes[x]) if x in attributes else _keeps_tensors(x, effects)
            for x in written
        )
    except (AttributeError, NotImplementedError, KeyError):
        return False


def _is_older(written):
    """Whether an object that a forward writes existed before the call. Nobody else sees writes into an object that the call has
    made, such as a result that is a dict."""
    from torch._dynamo.source import TempLocalSource

    return written.source is not None and not isinstance(written.source, TempLocalSource)


def _sources_of(effects):
    """Returns the sources of the attributes that are written. While they have these values, the forward writes nothing."""
    from torch._dynamo.source import AttrSource

    return [
        AttrSource(x.source, name)
        for x, attributes in effects.store_attr_mutations.items()
        if _is_older(x)
        for name in attributes
    ]


def _is_restored(written, attributes):
    # Other threads have other values.
    return not isinstance(written.value, threading.local) and all(
        value.as_python_constant() is getattr(written.value, name)
        for name, value in attributes.items()
    )


def _keeps_tensors(written, effects):
    """Whether a dict of buffers still has the same tensors: ``self.n += 1`` writes into the tensor, and then stores it again."""
    graph = effects.output_graph_weakref().graph
    sources = {
        id(node.meta["example_value"]): node._dynamo_source
        for node in graph.nodes
        if node.op == "placeholder" and hasattr(node, "_dynamo_source")
    }
    now = {key.vt.as_python_constant(): value for key, value in written.items.items()}
    before = [key.as_python_constant() for key in written.original_items]

    def is_same(name, value):
        source = value.source
        if source is None:  # the result of an operation, perhaps one in place
            source = sources.get(id(value.proxy.node.meta["example_value"]))
        return source is not None and source.base == written.source and source.index == name

    return list(now) == before and all(is_same(*item) for item in now.items())


def _describe_effects(error):
    """Returns the names that a forward writes, such as "model.n (net.py:12)"; "" if the error is no side effect.

    The names come from Dynamo's SideEffects object; "Python objects" if there are none.
    """
    if "side effects" not in str(error):
        return ""
    graph = _find_effects(error)
    found = []
    for written, stacks in getattr(graph, "mutation_user_stacks", {}).items():
        source = getattr(written, "source", None)
        if _is_older(written):
            names = list(getattr(graph, "store_attr_mutations", {}).get(written, ()))
            found.append(
                ".".join([source_name(source), *names[:1]])
                + _user_line(stacks[-1] if stacks else None)
            )
    return ", ".join(dict.fromkeys(found)) or "Python objects"


def find_user_line(error):
    """Returns the user's line that raised an exception, in the form of _user_line."""
    return _user_line(traceback.extract_tb(error.__traceback__))


def _user_line(stack):
    """Returns the innermost line of the user's code in a stack as " (file.py:12)", or ""."""
    own = [x for x in stack or () if not x.filename.startswith(FOLDERS)]
    return f" ({own[-1].filename.rsplit('/', 1)[-1]}:{own[-1].lineno})" if own else ""

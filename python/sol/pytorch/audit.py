"""Whether a forward is a function of its inputs, and what else it depends on. Dynamo knows: it interprets the forward's
bytecode, where torch.export only sees which tensor operations happened to run.

    a graph break, or state that is written    CannotCapture, Writes: PyTorch's forward must run
    state that is read                         Reads, which the model's guard watches

Nothing is run or compiled here, and no code object keeps anything. The interface is a private one of PyTorch, the same
from 2.11 to 2.13; if it is not there, nothing can be said of a model.
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
from sol.pytorch.reads import QUESTIONS, Unwatchable, Walker, source_name
from sol.pytorch.watch import BACKWARD_HOOKS, GLOBAL_HOOKS, INTERNAL, module_tensors


class CannotCapture(Exception):
    """PyTorch cannot see the model as one graph that may stand for it, but the model itself runs."""


class Writes(CannotCapture):
    """The forward writes Python state: at every call, or only at the first, such as a table that it keeps."""


class MayRefuse(CannotCapture):
    """The forward raised something: perhaps it does so in PyTorch, too."""


OPTIONS = {
    "allow_rnn": True,
    "side_effect_replay_policy": "error",
    "specialize_int": True,
    "specialize_float": True,
    "assume_static_by_default": True,
    "automatic_dynamic_shapes": False,
    "suppress_errors": False,
    "verbose": False,
}

# Guards that say nothing of Python objects: the engine looks at all of this, or torch.export did.
STATE_GUARDS = {
    "AUTOGRAD_SAVED_TENSORS_HOOKS", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS", "DUAL_LEVEL",
    "FSDP_TRAINING_STATE", "FUNCTORCH_STACK_MATCH", "GLOBAL_STATE", "GRAD_MODE", "SHAPE_ENV", "TORCH_FUNCTION_STATE",
}  # fmt: skip

# Guards that hold as long as all objects on their source's way, and what these contain, stay the same.
OBJECT_GUARDS = {
    "BOOL_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "CONSTANT_MATCH", "CONSTANT_SUBCLASS_MATCH",
    "DICT_CONTAINS", "DICT_KEYS_MATCH", "DICT_NOT_CONTAINS", "DICT_VERSION", "DISPATCH_KEY_SET_MATCH",
    "DUPLICATE_INPUT", "EMPTY_NN_MODULE_HOOKS_DICT", "EQUALS_MATCH", "FUNCTION_MATCH", "HASATTR", "ID_MATCH",
    "MAPPING_KEYS_CHECK", "MODULE_MATCH", "NAME_MATCH", "NN_MODULE", "NONE_MATCH", "NOT_NONE_MATCH",
    "NOT_PRESENT_IN_GENERIC_DICT", "SEQUENCE_LENGTH", "SET_CONTAINS", "SET_NOT_CONTAINS", "TENSOR_MATCH", "TYPE_MATCH",
    "WEAKREF_ALIVE",
}  # fmt: skip


def _call(model, args):
    """What is interpreted. ``see``: _see, which _fresh puts there."""
    output = model(*args)
    see(output)  # noqa: F821
    return output


def _see(output):
    """Looks at the Python values of an output: of what is only passed on, Dynamo would not say where it came from."""
    if isinstance(output, dict):
        for value in output.values():
            _see(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            _see(value)
    elif isinstance(output, (int, float, str)):
        bool(output == 0)


def audit(model, args):
    """What ``model(*args)`` reads -> Reads. Raises CannotCapture with the reason when it must run in PyTorch, MayRefuse
    when its forward raises an exception.

    ``args``: example inputs. Their shapes decide which way the forward takes, as they do for torch.export.
    """
    function = _fresh(_call)
    captured = _interpret(function, model, args)
    graph = captured.graph_capture_output
    walker = Walker(
        {"model": model, "args": args},
        lambda name: _find_global(name, graph, function),
        _watched_anyway(model),
    )
    question = find_question(graph.traced_code)
    if question:
        raise CannotCapture(f"its forward asks for {question}")
    try:
        for module in model.modules():
            walker.touch(type(module))
        _check_graph(captured.backend_input, walker)
        for guard in graph.output_graph.guards:
            _walk_guard(guard, walker)
    except Unwatchable as error:
        raise CannotCapture(f"its forward reads {error}, which may change unseen") from None
    if uses_all_attributes(graph.traced_code):
        walker.reads.attributes = None
    walker.reads.asks_kinds = asks_kinds(graph.traced_code)
    walker.reads.freeze()
    return walker.reads


def _watched_anyway(model):
    """Modules, the dicts of their parameters, hooks and the like, and their tensors: a Snapshot's own guard has them."""
    yield from (*GLOBAL_HOOKS, *BACKWARD_HOOKS)
    for module in model.modules():
        yield module
        yield vars(module)
        yield from (vars(module)[name] for name in INTERNAL)
        yield from (tensor for _, tensor in module_tensors(module))


def _fresh(function):
    """A copy with globals of its own, since Dynamo adds names to those of what it interprets."""
    scope = {"__builtins__": __builtins__, "__name__": __name__, "see": _see}
    return types.FunctionType(function.__code__, scope, function.__name__)


def _interpret(function, model, args):
    try:
        from torch._dynamo import config, utils
        from torch._dynamo.convert_frame import fullgraph_capture
    except ImportError as error:
        raise CannotCapture(f"this PyTorch has another Dynamo: {error}") from None
    try:
        with config.patch(OPTIONS), utils.get_metrics_context():
            return fullgraph_capture(function, (model, args))
    except Exception as error:
        effects = _side_effects(error)
        if effects:
            raise Writes(f"its forward writes to {effects}") from error
        kind = MayRefuse if _is_of_forward(error) else CannotCapture
        raise kind(_describe(error)) from error


def _is_of_forward(error):
    """Whether the forward itself raised it, or an operation with these shapes, as opposed to Dynamo."""
    words = "Observed exception", "Argument mismatch", "fake tensor call"
    return type(error).__name__ == "TorchRuntimeError" or any(x in str(error) for x in words)


@contextlib.contextmanager
def quiet():
    """PyTorch's compilers give no advice on this thread: whatever they find becomes a reason of SOL's."""
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
    if _root(source) == "args":
        if kind == "HASATTR":
            raise Unwatchable(f"an attribute of {source_name(source)}")
        return
    value = walker.walk(source)
    if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)) and value in QUESTIONS:
        walker.reads.questions.append((value, value()))


def _root(source):
    """The local variable that a source begins with, or None."""
    while hasattr(source, "base"):
        source = source.base
    return getattr(source, "local_name", None)


def _check_graph(backend_input, walker):
    """All inputs of the graph must be the call's, or tensors that are watched: no random numbers, no NumPy arrays. No
    input may be written to, nor what ``.data`` gives of one, for which PyTorch counts the writes apart."""
    for node in backend_input.graph_module.graph.nodes if backend_input else ():
        is_input = node.op == "placeholder"
        if is_input and _root(source := node._dynamo_source) != "args":
            if not isinstance(walker.walk(source), torch.Tensor):
                raise Unwatchable(source_name(source))
        if is_input or "data" in str(getattr(node.target, "__name__", "")):
            if getattr(node.meta.get("example_value"), "_version", 0):
                raise CannotCapture(f"its forward writes to {_input_name(node)}")


def _input_name(node):
    while node.op != "placeholder":
        node = node.args[0]
    return source_name(node._dynamo_source)


# ---- Reasons ----


def _describe(error):
    """Why Dynamo gave up, with the user's line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    for line in lines[1:3]:
        if line.startswith("Explanation: "):
            text = re.split(r"(?<!e\.g)\. ", line.removeprefix("Explanation: "))[0].rstrip(".")
    return f"Dynamo: {text}{_user_line(getattr(error, 'real_stack', None))}"


def _side_effects(error):
    """What a forward writes, such as model.n (net.py:12), as far as Dynamo's own objects tell; "" for other errors."""
    if "side effects" not in str(error):
        return ""
    graph, at = None, error.__traceback__
    while at is not None and graph is None:
        graph = getattr(at.tb_frame.f_locals.get("self"), "side_effects", None)
        at = at.tb_next
    found = []
    for written, stacks in getattr(graph, "mutation_user_stacks", {}).items():
        source = getattr(written, "source", None)
        if source is not None:
            names = list(getattr(graph, "store_attr_mutations", {}).get(written, ()))
            found.append(
                ".".join([source_name(source), *names[:1]])
                + _user_line(stacks[-1] if stacks else None)
            )
    return ", ".join(dict.fromkeys(found)) or "Python objects"


def find_user_line(error):
    """Where an exception came from, as _user_line."""
    return _user_line(traceback.extract_tb(error.__traceback__))


def _user_line(stack):
    """The innermost of the user's lines as " (file.py:12)", or ""."""
    own = [x for x in stack or () if not x.filename.startswith(FOLDERS)]
    return f" ({own[-1].filename.rsplit('/', 1)[-1]}:{own[-1].lineno})" if own else ""

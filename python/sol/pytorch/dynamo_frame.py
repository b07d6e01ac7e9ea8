"""What Dynamo knows of a graph, while it calls the backend or the graph: facts that it does not pass, or not as needed here.

Most of it is internal to PyTorch. If another version of PyTorch does not have a fact, the answer is the one of a usual call:
nothing is required of the graph, no reason is known, no compiled function is found.
"""

import collections
import sys
from typing import NamedTuple

import torch

from sol.pytorch.audit import find_explanation
from sol.pytorch.nodes import find_line

# The functions of PyTorch that call a compiled function, by their names in torch/_dynamo/eval_frame.py.
WRAPPERS = {"compile_wrapper", "_fn"}
EVAL_FRAME = "_dynamo/eval_frame.py"


class Break(NamedTuple):
    """A place where Dynamo ended a graph. ``origin``: the user's line."""

    reason: str
    origin: str

    def __str__(self):
        return f"{self.origin}: {self.reason}"


def is_fullgraph():
    """Whether the graph that Dynamo makes right now is of ``torch.compile(..., fullgraph=True)``."""
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        return bool(InstructionTranslator.current_tx().one_graph)
    except Exception:
        return False


def find_recompile_reason():
    """Returns the guard of the last earlier graph that failed, for the graph that Dynamo makes right now; "" if not known."""
    try:
        from torch._dynamo.utils import get_metrics_context

        reason = get_metrics_context()._metrics.get("recompile_reason") or ""
    except Exception:
        return ""
    # "0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3  # the user's code", and perhaps further lines
    return reason.strip().partition("\n")[0].partition("  #")[0].strip()


def find_callers():
    """Returns the modules and functions whose torch.compile'd form is running on this thread, innermost first."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in WRAPPERS and code.co_filename.endswith(EVAL_FRAME):
            function = frame.f_locals.get("fn")
            if function is not None:
                found.append(subject_of(function))
        frame = frame.f_back
    return found


def subject_of(function):
    """Returns the module that ``function`` calls, or the function itself, if it is not a method of a module."""
    function = getattr(
        function, "__wrapped__", function
    )  # of a frame that Dynamo adds around a module
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else function


def find_subject(compiled):
    """Returns the module or function that was given to torch.compile; None if ``compiled`` does not come from torch.compile."""
    if isinstance(compiled, torch.nn.Module):
        own = vars(compiled)
        if own.get("_compiled_call_impl") is not None:  # of nn.Module.compile
            return compiled
        return own.get("_orig_mod", own.get("_modules", {}).get("_orig_mod"))
    function = getattr(compiled, "_torchdynamo_orig_callable", None)
    return None if function is None else subject_of(function)


def find_skipped(subject):
    """Returns {reason: number of attempts} of the functions of a module, or of a function, of which Dynamo makes no graph at all.

    It does not call the backend for them, and PyTorch remembers only its last attempts.
    """
    try:
        from torch._dynamo.utils import get_compilation_metrics

        places, skipped = set(map(_place, _find_codes(subject))), collections.Counter()
        for x in get_compilation_metrics():
            if x.fail_reason and (x.co_filename, x.co_firstlineno, x.co_name) in places:
                where = f"{x.co_name} ({x.co_filename.rsplit('/', 1)[-1]}:{x.co_firstlineno})"
                skipped[f"Dynamo makes no graph of {where}: {find_explanation(x.fail_reason)}"] += 1
        return skipped
    except Exception:
        return {}


def _place(code):
    return code.co_filename, code.co_firstlineno, code.co_name


def _find_codes(subject):
    """Returns the code of a function, or of the forwards of a module, and of the frame that Dynamo adds around PyTorch's own ones."""
    if not isinstance(subject, torch.nn.Module):
        return [getattr(subject, "__func__", subject).__code__]
    from torch._dynamo.external_utils import wrap_inline

    forwards = {type(module).forward for module in subject.modules()}
    codes = [x.__code__ for x in forwards if hasattr(x, "__code__")]
    is_added = type(subject).__module__.startswith("torch.")
    return [*codes, wrap_inline(len).__code__] if is_added else codes


def find_break(module):
    """Returns the Break at the end of a graph, or None."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    stack = list(reason.user_stack or ())
    origin = f"{stack[-1].filename.rsplit('/', 1)[-1]}:{stack[-1].lineno}" if stack else ""
    return Break(_shorten(reason.reason), origin)


def _shorten(text):
    """Returns the first sentence of Dynamo's explanation, or its first line."""
    if text.startswith("generic_jump"):
        return "a condition depends on the values of a tensor"
    return find_explanation(text)


def name_graph(module):
    """Returns a name for a graph: "graph 0/0 (net.py:12)"."""
    lines = (find_line(node.meta.get("stack_trace") or "") for node in module.graph.nodes)
    identity = module.meta.get("dynamo_compile_id")
    return " ".join(filter(None, ["graph", str(identity or ""), next(filter(None, lines), "")]))

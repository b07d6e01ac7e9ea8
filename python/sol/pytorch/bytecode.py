"""What a forward's code asks, where neither Dynamo's guards nor torch.export would tell of it.

``codes``: the code objects that Dynamo went through. Only the user's are looked at: PyTorch's own code asks the same of
its tensors, and its answers do not change what is computed.
"""

import dis
import pathlib
import sys

import torch

# Not the user's.
FOLDERS = tuple(str(pathlib.Path(file).parent) for file in (torch.__file__, __file__))

# Attributes of tensors that Dynamo takes for constants.
ATTRIBUTES = {"requires_grad", "_version", "is_leaf", "_base"}
# Methods of which the same holds: SOL takes its inputs as if they were contiguous.
METHODS = {"is_contiguous", "stride"}
# torch.export runs the forward with tensors of another class. That shows where one of the first is compared with, or
# becomes, one of the second.
TYPES = {"type", "__class__"}
CLASSES = {"Tensor", "Parameter", "Buffer"}
# Ways to ask whether an input is a tensor or a Parameter.
KINDS = {"isinstance", "issubclass", *TYPES}
# Ways to attributes that Dynamo does not name one by one.
ALL_ATTRIBUTES = {"__dict__", "vars"}


def find_question(codes):
    """What is asked of a tensor that must be answered by PyTorch, with its place, as text; or None."""
    for code in _user_codes(codes):
        names = set(code.co_names)
        asked = names & ATTRIBUTES or (names & METHODS and _methods(code) & METHODS)
        if CLASSES & (names | {x for x in code.co_consts if isinstance(x, str)}):
            asked |= names & TYPES
        if asked:
            file = pathlib.Path(code.co_filename).name
            return f"a tensor's {min(asked)} ({file}:{code.co_firstlineno})"
    return None


def asks_kinds(codes):
    """Whether an answer may depend on an input's class, or on whether two inputs are the same object."""
    return any(
        KINDS.intersection(code.co_names) or _compares_objects(code) for code in _user_codes(codes)
    )


def uses_all_attributes(codes):
    return any(ALL_ATTRIBUTES.intersection(code.co_names) for code in _user_codes(codes))


def _user_codes(codes):
    return [code for code in codes if not code.co_filename.startswith(FOLDERS)]


def _methods(code):
    """Names of the methods that are called; an attribute may have the same name. Python 3.12 has one instruction for
    both: an odd argument means that a call follows."""
    steps = dis.get_instructions(code)
    has_one = sys.version_info >= (3, 12)
    return {
        step.argval
        for step in steps
        if step.opname == "LOAD_METHOD" or (has_one and step.opname == "LOAD_ATTR" and step.arg & 1)
    }


def _compares_objects(code):
    """Whether it has ``x is y`` with anything but a constant such as None."""
    steps = list(dis.get_instructions(code))
    return any(
        step.opname == "IS_OP" and before.opname != "LOAD_CONST"
        for before, step in zip(steps, steps[1:])
    )

"""Finds uses of tensor properties in a forward's bytecode that neither Dynamo's guards nor torch.export report.

``codes``: the code objects that Dynamo interpreted. Only the user's code objects are searched: PyTorch's own code uses the
same properties, but they do not change its results.
"""

import dis
import pathlib
import sys
import sysconfig

import torch

# Folders of code that is not the user's: torch and this package.
FOLDERS = tuple(str(pathlib.Path(file).parent) for file in (torch.__file__, __file__))

STDLIB = sysconfig.get_path("stdlib") + "/"

# Attributes of tensors that Dynamo treats as constants.
ATTRIBUTES = {"requires_grad", "_version", "is_leaf", "_base"}
# Methods of tensors whose results depend on strides. SOL makes its inputs contiguous, so results may differ.
METHODS = {"is_contiguous", "stride"}
# torch.export runs the forward with tensors of another class, so a use of TYPES together with a name of CLASSES may have
# another result there.
TYPES = {"type", "__class__"}
CLASSES = {"Tensor", "Parameter", "Buffer"}
# Names with which code tests the class of an input.
KINDS = {"isinstance", "issubclass", *TYPES}
# Names with which code reads all attributes of an object; Dynamo then does not name each one.
ALL_ATTRIBUTES = {"__dict__", "vars"}


def find_question(codes):
    """Returns the first tensor property that only PyTorch can answer, with its file and line, as text; or None."""
    for code in _user_codes(codes):
        names = set(code.co_names)
        asked = names & ATTRIBUTES and _loaded(code) & ATTRIBUTES
        asked = asked or (names & METHODS and _methods(code) & METHODS)
        if CLASSES & (names | {x for x in code.co_consts if isinstance(x, str)}):
            asked |= names & TYPES
        if asked:
            file = pathlib.Path(code.co_filename).name
            return f"a tensor's {min(asked)} ({file}:{code.co_firstlineno})"
    return None


def asks_kinds(codes):
    """Whether the result may depend on an input's class, or on whether two inputs are the same object."""
    return any(
        KINDS.intersection(code.co_names) or _compares_objects(code) for code in _user_codes(codes)
    )


def uses_all_attributes(codes):
    """Whether the user's code reads all attributes of an object, as ``vars`` does."""
    return any(ALL_ATTRIBUTES.intersection(code.co_names) for code in _user_codes(codes))


def _user_codes(codes):
    return [code for code in codes if not _is_library(code.co_filename)]


def _is_library(file):
    """Whether a file belongs to PyTorch, to this package or to Python's own library, whose Parameter is no tensor."""
    if file.startswith(FOLDERS):
        return True
    return file.startswith(STDLIB) and not {"site-packages", "dist-packages"} & set(file.split("/"))


def _loaded(code):
    """Returns the names of attributes that the code reads. It may only set some, such as the ``requires_grad`` of a tensor in a
    branch for training; Dynamo refuses those that a call sets."""
    loads = "LOAD_ATTR", "LOAD_METHOD"
    return {step.argval for step in dis.get_instructions(code) if step.opname in loads}


def _methods(code):
    """Returns the names of called methods, without attributes of the same names.

    From Python 3.12 on, LOAD_ATTR loads both attributes and methods; an odd argument means a method call.
    """
    steps = dis.get_instructions(code)
    has_one = sys.version_info >= (3, 12)
    return {
        step.argval
        for step in steps
        if step.opname == "LOAD_METHOD" or (has_one and step.opname == "LOAD_ATTR" and step.arg & 1)
    }


def _compares_objects(code):
    """Whether the code has ``x is y`` where y is no constant such as None."""
    steps = list(dis.get_instructions(code))
    return any(
        step.opname == "IS_OP" and before.opname != "LOAD_CONST"
        for before, step in zip(steps, steps[1:])
    )

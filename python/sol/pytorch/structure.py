"""Nested inputs and outputs: tuples, named tuples, lists, dicts and dataclasses of leaves.

``flatten`` returns the leaves and the Structure of a value. ``Structure.leaves`` returns the leaves of another value with
the same structure. ``Structure.build`` builds a value from leaves. Dataclasses need no registration. In a result, objects of other
classes are taken apart, too, if the forward has made them (``Made``): a cache of keys and values, for example.

The arguments of a call are a Call. Its Structure has a child per argument; the keys tell how each one is passed.
"""

import dataclasses
from typing import NamedTuple

import torch


class Call:
    """The arguments of one call: ``args`` by position, ``kwargs`` by name."""

    __slots__ = "args", "kwargs"

    def __init__(self, args, kwargs):
        self.args = tuple(args)
        self.kwargs = kwargs


class Structure(NamedTuple):
    """A node of a nested value. ``type``: None for a leaf. ``keys``: names of fields, dict keys or positions. Those
    of a Call: positions, then names."""

    type: type | None
    keys: tuple = ()
    children: tuple = ()

    @property
    def is_leaf(self):
        return self.type is None

    def build(self, leaves):
        """Returns a value of this structure, with the next leaves of the iterator ``leaves``."""
        if self.is_leaf:
            return next(leaves)
        values = [child.build(leaves) for child in self.children]
        if self.type is Call:
            return _build_call(self.keys, values)
        if issubclass(self.type, dict):
            return _build_dict(self.type, self.keys, values)
        if dataclasses.is_dataclass(self.type):
            return _build_dataclass(self.type, self.keys, values)
        if hasattr(self.type, "_fields"):
            # Without a call of the class's own __new__, which may have checks, as that of PackedSequence.
            return tuple.__new__(self.type, values)
        if self.type in (list, tuple) or _is_sequence_of_c(self.type):
            return self.type(values)
        return _build_object(self.type, self.keys, values)

    def leaves(self, value, where="input"):
        """Returns the list of leaves of ``value``, in this structure's order.

        Raises TypeError or ValueError, with the place, when ``value`` has another structure.
        """
        if self.is_leaf:
            return [value]
        if type(value) is not self.type:
            raise TypeError(f"{where}: expected {self.type.__name__}, got {type(value).__name__}")
        keys = _keys(value)
        # The order of a dict's keys is that of the result, if the forward goes through them.
        if keys != self.keys:
            raise ValueError(f"{where}: expected the parts {self.keys}, got {keys}")
        found = []
        for key, child in zip(self.keys, self.children):
            found += child.leaves(_part(value, key), f"{where}[{key!r}]")
        return found

    def paths(self, prefix=()):
        """Yields for each leaf the tuple of the keys that lead to it."""
        if self.is_leaf:
            yield prefix
        for key, child in zip(self.keys, self.children):
            yield from child.paths((*prefix, key))


LEAF = Structure(None)


def flatten(value, made=None):
    """Returns (list of leaves, Structure) of a nested value. ``made``: a Made, for results."""
    if not _is_container(value) and not (made and made.take(value)):
        return [value], LEAF
    leaves, children = [], []
    keys = _keys(value)
    for key in keys:
        found, child = flatten(_part(value, key), made)
        leaves += found
        children.append(child)
    return leaves, Structure(type(value), keys, tuple(children))


def _is_container(value):
    if dataclasses.is_dataclass(value):
        return not isinstance(value, type) and not _has_more(value)
    if isinstance(value, tuple):
        # Plain and named tuples are containers, and those that operators return, such as torch.return_types.max. Other
        # subclasses, such as torch.Size, are leaves.
        return type(value) is tuple or hasattr(value, "_fields") or _is_sequence_of_c(type(value))
    if isinstance(value, dict):
        return not _attributes(value)
    return type(value) is list or type(value) is Call


def _is_sequence_of_c(cls):
    """Whether a class is a named tuple that is defined in C, and has all its fields as elements."""
    n = getattr(cls, "n_fields", None)
    return n is not None and issubclass(cls, tuple) and n == cls.n_sequence_fields


class Made:
    """Tells which objects in a result a forward has made, so that each call can make new ones of the same class with the same
    attributes.

    ``is_new``: function that tells whether a tensor was made in this run of the forward. An object counts if it has tensors, and
    all of them are new: whoever writes a new tensor into an older object has a side effect, for which PyTorch runs the forward.
    ``given``: the arguments, whose objects are not new. An object that occurs twice would become two objects: it is not taken.
    """

    def __init__(self, is_new, given):
        self._is_new = is_new
        self._seen = {id(x): x for x in _walk(given)}

    def take(self, value):
        """Whether ``value`` is an object to take apart. True only once for each object."""
        if not _has_own_attributes(value) or id(value) in self._seen:
            return False
        tensors = [x for x in _walk(value) if isinstance(x, torch.Tensor)]
        self._seen[id(value)] = value
        return bool(tensors) and all(map(self._is_new, tensors))


def _walk(value, seen=None):
    """Yields the tensors and objects that a value consists of."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return
    seen[id(value)] = value
    yield value
    if _is_container(value):
        for key in _keys(value):
            yield from _walk(_part(value, key), seen)
    elif _has_own_attributes(value):
        for part in vars(value).values():
            yield from _walk(part, seen)


def _has_own_attributes(value):
    """Whether the attributes in its __dict__ are all that an object has: no slots, no base that Python itself implements."""
    cls = type(value)
    if isinstance(value, (torch.Tensor, torch.nn.Module, type)):
        return False
    if cls.__module__.partition(".")[0] == "torch":  # a size, for example, which is open in a graph
        return False
    if type(getattr(value, "__dict__", None)) is not dict:
        return False
    return cls.__new__ is object.__new__ and cls.__basicsize__ == _Plain.__basicsize__


class _Plain:
    """A class without anything."""


def _has_more(value):
    """Whether an instance of a dataclass has attributes that are no fields."""
    return not _attributes(value).keys() <= {field.name for field in dataclasses.fields(value)}


def _attributes(value):
    return getattr(value, "__dict__", {})


def _keys(value):
    if type(value) is Call:
        return (*range(len(value.args)), *value.kwargs)
    if isinstance(value, dict):
        return tuple(value)
    if _is_sequence(value):
        return tuple(range(len(value)))
    if dataclasses.is_dataclass(value) and not _has_more(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return tuple(vars(value))


def _part(value, key):
    if type(value) is Call:
        return value.args[key] if isinstance(key, int) else value.kwargs[key]
    if isinstance(value, dict) or _is_sequence(value):
        return value[key]
    return getattr(value, key)


def _is_sequence(value):
    return isinstance(value, (list, tuple))


def _build_call(keys, values):
    n = sum(isinstance(key, int) for key in keys)
    return Call(values[:n], dict(zip(keys[n:], values[n:])))


def _build_dict(cls, keys, values):
    """Builds a dict, or a dataclass that is also a dict, such as the outputs of Hugging Face's models."""
    if dataclasses.is_dataclass(cls):
        return cls(**dict(zip(keys, values)))
    return cls(zip(keys, values))


def _build_dataclass(cls, keys, values):
    """Builds a dataclass without a call of its __init__, which may have checks or side effects."""
    result = object.__new__(cls)
    for key, value in zip(keys, values):
        object.__setattr__(result, key, value)
    return result


def _build_object(cls, keys, values):
    """Builds an object as pickle does: without a call of its __init__."""
    result = object.__new__(cls)
    vars(result).update(zip(keys, values))
    return result

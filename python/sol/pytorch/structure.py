"""Nested inputs and outputs: tuples, named tuples, lists, dicts and dataclasses of leaves.

``flatten`` returns the leaves and the Structure of a value. ``Structure.leaves`` returns the leaves of another value with
the same structure. ``Structure.build`` builds a value from leaves. Dataclasses need no registration.
"""

import dataclasses
from typing import NamedTuple


class Structure(NamedTuple):
    """A node of a nested value. ``type``: None for a leaf. ``keys``: names of fields, dict keys or positions."""

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
        if issubclass(self.type, dict):
            return _build_dict(self.type, self.keys, values)
        if dataclasses.is_dataclass(self.type):
            return _build_dataclass(self.type, self.keys, values)
        if hasattr(self.type, "_fields"):
            return self.type(*values)
        return self.type(values)

    def leaves(self, value, where="input"):
        """Returns the list of leaves of ``value``, in this structure's order.

        Raises TypeError or ValueError, with the place, when ``value`` has another structure.
        """
        if self.is_leaf:
            return [value]
        if type(value) is not self.type:
            raise TypeError(f"{where}: expected {self.type.__name__}, got {type(value).__name__}")
        keys = _keys(value)
        if set(keys) != set(self.keys):
            raise ValueError(f"{where}: expected the parts {self.keys}, got {keys}")
        found = []
        for key, child in zip(self.keys, self.children):
            found += child.leaves(_part(value, key), f"{where}[{key!r}]")
        return found


LEAF = Structure(None)


def flatten(value):
    """Returns (list of leaves, Structure) of a nested value."""
    if not _is_container(value):
        return [value], LEAF
    leaves, children = [], []
    keys = _keys(value)
    for key in keys:
        found, child = flatten(_part(value, key))
        leaves += found
        children.append(child)
    return leaves, Structure(type(value), keys, tuple(children))


def _is_container(value):
    if dataclasses.is_dataclass(value):
        return not isinstance(value, type) and not _has_more(value)
    if isinstance(value, tuple):
        # Plain and named tuples are containers; other subclasses, such as torch.Size, are leaves.
        return type(value) is tuple or hasattr(value, "_fields")
    return type(value) is list or (isinstance(value, dict) and not _attributes(value))


def _has_more(value):
    """Whether an instance of a dataclass has attributes that are no fields."""
    return not _attributes(value).keys() <= {field.name for field in dataclasses.fields(value)}


def _attributes(value):
    return getattr(value, "__dict__", {})


def _keys(value):
    if isinstance(value, dict):
        return tuple(value)
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return tuple(range(len(value)))


def _part(value, key):
    if dataclasses.is_dataclass(value) and not isinstance(value, dict):
        return getattr(value, key)
    return value[key]


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

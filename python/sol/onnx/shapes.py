"""Shapes of inputs, and the sizes in them that a file leaves open.

A port is (name, dtype, shape). In a shape, a size below 0 is open, and equal ones are one size; a shape of None is open as a whole.
"""

from sol import _core


def describe(shape, size_name):
    """ "[batch, 3, ?, ?]"; ``size_name(size)`` is the name of an open size, or None."""
    if shape is None:
        return "of any shape"
    sizes = [_describe_size(size, size_name) for size in shape]
    return f"[{', '.join(sizes)}]"


def _describe_size(size, size_name):
    if size is None:  # a formula of others
        return "?"
    return str(size) if size >= 0 else _core.clean(size_name(size) or "?")


def find_sizes(ports, arrays, size_name):
    """{open size: its value} by the arrays. Raises ValueError for shapes that do not fit, with both shapes and, where two inputs contradict
    each other, with both names."""
    values, givers = {}, {}
    for (name, _, shape), array in zip(ports, arrays):
        check_shape(name, shape, array.shape, size_name)
        for size, found in zip(shape, array.shape):
            if size >= 0:
                continue
            if values.setdefault(size, found) != found:
                raise ValueError(
                    f"input {_core.clean(name)} has the shape {list(array.shape)}, not {describe(shape, size_name)}:"
                    f" {_describe_size(size, size_name)} is {values[size]} by input {_core.clean(givers[size])}"
                )
            givers.setdefault(size, name)
    return values


def check_shape(name, shape, found, size_name):
    """Raises ValueError, with both shapes, where fixed sizes or ranks differ."""
    fits = len(shape) == len(found) and all(n < 0 or n == m for n, m in zip(shape, found))
    if not fits:
        raise ValueError(
            f"input {_core.clean(name)} has the shape {list(found)}, not {describe(shape, size_name)}"
        )

"""Shapes of inputs, and the open sizes in them.

A port is (name, dtype, shape). In a shape, a size below 0 is open, and equal negative numbers are the same size. A shape of
None is open as a whole.
"""

from sol import _core


def describe(shape, size_name):
    """Returns a shape as text, such as "[batch, 3, ?, ?]". ``size_name(size)`` is the name of an open size, or None."""
    if shape is None:
        return "of any shape"
    sizes = [_describe_size(size, size_name) for size in shape]
    return f"[{', '.join(sizes)}]"


def _describe_size(size, size_name):
    if size is None:  # a formula of open sizes
        return "?"
    return str(size) if size >= 0 else _core.clean(size_name(size) or "?")


def find_sizes(ports, arrays, size_name):
    """Returns {open size: its value} from the arrays' shapes.

    Raises ValueError with the array's and the port's shape; if two inputs give one size different values, with both names.
    """
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
    """Raises ValueError with both shapes if ranks or fixed sizes of ``shape`` and ``found`` differ."""
    fits = len(shape) == len(found) and all(n < 0 or n == m for n, m in zip(shape, found))
    if not fits:
        raise ValueError(
            f"input {_core.clean(name)} has the shape {list(found)}, not {describe(shape, size_name)}"
        )

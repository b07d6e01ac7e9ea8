"""The sources of an ONNX model: a path, the bytes of a file, or a file object. The content decides whether it is one, not the
file's name.

read_source(model, folder) -> Source
"""

import os
import stat
from typing import NamedTuple

from sol import _core

HEAD = 1 << 16  # number of bytes from which the kind of a file is detected


class Source(NamedTuple):
    """An ONNX file. ``value``: its path as str, with external data beside it; or its bytes, with external data in ``folder``."""

    value: object
    folder: object
    name: str

    def model(self, shapes=None):
        """Returns a _core.Model. ``shapes``: {input name: sizes} for open sizes.

        Raises ValueError when it is malformed, NotImplementedError when it cannot be compiled as a whole.
        """
        sizes = None if shapes is None else [(name, tuple(dims)) for name, dims in shapes.items()]
        if isinstance(self.value, str):
            return _core.read_onnx(self.value, sizes)
        return _core.parse_onnx(self.value, self.folder, sizes)


def read_source(model, folder=None):
    """Returns the Source of a model.

    Raises OSError when a path cannot be read, TypeError for another object or a file that is open as text, and ValueError
    with the kind of the file when that is known and no ONNX model.
    """
    folder = None if folder is None else os.fspath(folder)
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _check(Source(bytes(model), folder, "network"), bytes(model))
    if hasattr(model, "read"):
        return _read_object(model, folder)
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"expected a path, bytes or a file object, got {type(model).__name__}")
    path = os.fsdecode(model)
    with open(path, "rb") as file:
        head = file.read(HEAD)
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return _check(Source(path, folder, path), head)
        data = head + file.read()  # a pipe can be read only once
    return _check(Source(data, folder, path), data)


def _read_object(file, folder):
    data = file.read()
    if not isinstance(data, bytes):
        raise TypeError("the file is open as text; a model is binary: open(path, 'rb')")
    name = getattr(file, "name", "network")
    return _check(Source(data, folder, name if isinstance(name, str) else "network"), data)


def _check(source, head):
    """Raises ValueError for a file of a known other kind. libsol's reader refuses unknown bytes later, with its own message."""
    if _core.is_onnx(head):
        return source
    name = _core.clean(source.name)
    if kind := _core.file_kind(head):
        raise ValueError(f"{name} is {kind}")
    if _begins_a_text(head):
        raise ValueError(f"{name} is a model in SOL's text form, which the program `sol` reads")
    return source


def _begins_a_text(head):
    lines = (line.strip() for line in head.splitlines())
    first = next((line for line in lines if line and not line.startswith(b"#")), b"")
    return first.startswith(b"model ")

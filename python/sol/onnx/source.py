"""What a model may be given as: a path, the bytes of a file, or a file object. What it is, its content says, never its name.

read_source(model, folder) -> Source
"""

import os
import stat
from typing import NamedTuple

from sol import _core

HEAD = 1 << 16  # bytes by which a model is known


class Source(NamedTuple):
    """``value``: the path of a file that libsol reads with what lies beside it, or bytes, whose external data lie in ``folder``."""

    value: object
    folder: object
    name: str

    def model(self, shapes=None):
        """A _core.Model, for these shapes of inputs {name: sizes}. Raises NotImplementedError when it cannot be compiled as a whole."""
        sizes = None if shapes is None else [(name, tuple(dims)) for name, dims in shapes.items()]
        if isinstance(self.value, str):
            return _core.read_onnx(self.value, sizes)
        return _core.parse_onnx(self.value, self.folder, sizes)


def read_source(model, folder=None):
    """Raises OSError when a path cannot be read, and ValueError for a file that is no ONNX model, saying what it is."""
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
        data = head + file.read()  # a pipe is gone once it was read
    return _check(Source(data, folder, path), data)


def _read_object(file, folder):
    data = file.read()
    if not isinstance(data, bytes):
        raise TypeError("the file is open as text; a model is binary: open(path, 'rb')")
    name = getattr(file, "name", "network")
    return _check(Source(data, folder, name if isinstance(name, str) else "network"), data)


def _check(source, head):
    """Unknown bytes go on to the reader, which says what is wrong with them."""
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

"""Deployment: the targets, and the step from a libsol model to a library, which both frontends share.

import sol
sol.deploy(model, [sol.input([1, 3, 224, 224])], target=sol.deployment.shared_lib, device=sol.device.x86,
           lib_name="MyNetwork", func_name="predict", path=".")
"""

import os

from sol.config import config
from sol.progress import Bar

shared_lib = "shared_lib"  # libNAME.so
static_lib = "static_lib"  # libNAME.a
ARCHIVE = b"PK\3\4"
c_source = "c_source"  # NAME.c, portable C99; for another device than "c" a folder of C sources


def deploy(model, *args, **options):
    """Writes a network as a library and its header.

    Calls sol.onnx.deploy if ``model`` is an ONNX file (a path, bytes, or a file object), else sol.pytorch.deploy, also for a
    file of torch.export.save, with the same arguments. See there for arguments and errors; both take ``target``, ``device``, ``lib_name``, ``func_name``,
    ``path``, ``weights``, ``memory`` and ``compiler``.
    """
    is_file = isinstance(model, (str, os.PathLike, bytes, bytearray, memoryview))
    if (is_file or hasattr(model, "read")) and not _is_archive(model):
        from sol.onnx.deploy import deploy as write_library
    else:
        from sol.pytorch.deploy import deploy as write_library
    write_library(model, *args, **options)


def _is_archive(model):
    """Whether a file begins as those of torch.export.save, which are zip archives."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return False
    try:
        if not hasattr(model, "read"):
            with open(model, "rb") as file:
                return file.read(4) == ARCHIVE
        at = model.tell()
        begin = model.read(4)
        model.seek(at)
        return begin == ARCHIVE
    except (OSError, ValueError):  # the frontend tells why it cannot be read
        return False


def write(
    model, params, symbols, *, target, device, lib_name, func_name, path, weights, memory, compiler
):
    """Writes the library of a _core.Model; the arguments are those of sol.pytorch.deploy.

    ``params``: addresses of the parameters' values. ``symbols``: a value for each open size of the model.
    Raises ValueError for a bad ``memory``, and what _core.Model.deploy raises.
    """
    if memory not in ("dynamic", "static"):
        raise ValueError(f"sol.deploy: memory is {memory!r}, not 'dynamic' or 'static'")
    device, cpu = device if isinstance(device, tuple) else (device, None)
    if device is None and target == c_source:
        device = "c"
    with Bar(f"SOL {lib_name}") as progress:
        model.deploy(
            params, tuple(symbols), lib_name, func_name, path, target, weights,
            device=device, cpu=cpu, compiler=compiler, static_memory=memory == "static",
            winograd=config["compiler::winograd"], autotune=config["compiler::autotune"],
            progress=progress,
        )  # fmt: skip

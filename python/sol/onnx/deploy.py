"""Deployment of an ONNX file: file -> libsol model -> sol.deployment.write."""

from sol import deployment
from sol.onnx.source import read_source


def deploy(
    model,
    batch_size=1,
    target=deployment.shared_lib,
    device=None,
    lib_name="MyNetwork",
    func_name="predict",
    path=".",
    weights="embedded",
    memory="dynamic",
    compiler=None,
    folder=None,
    shapes=None,
):
    """Writes an ONNX network as a library that needs only the C library, and a C header, into the folder ``path``.

    model       a path, a file object, or the bytes of a file
    batch_size  the value that ``func_name`` uses for every open size; except for "c", other functions take any sizes
    folder      where the external data of a file object or of bytes are
    shapes      {input name: list of sizes}, for files that leave more sizes open than the batch

    All other arguments are those of sol.pytorch.deploy. Raises OSError when a path cannot be read, ValueError for a bad
    model or argument, NotImplementedError for a network that cannot be compiled as a whole, RuntimeError when the compiler
    is missing or fails.
    """
    built = read_source(model, folder).model(shapes)
    deployment.write(
        built, built.values(), (batch_size,) * 4, target=target, device=device, lib_name=lib_name,
        func_name=func_name, path=path, weights=weights, memory=memory, compiler=compiler,
    )  # fmt: skip

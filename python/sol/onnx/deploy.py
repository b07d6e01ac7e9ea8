"""From an ONNX file to a library that needs nothing but the C library."""

import os

from sol import _core, deployment


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
):
    """Writes a library and its header into the folder ``path``.

    ``model``: a path, or the bytes of a file (whose external data lie in ``folder``). ``batch_size``: the value of open sizes that
    ``func_name`` is for. All else as for sol.pytorch.deploy.
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        built = _core.parse_onnx(bytes(model), None if folder is None else os.fspath(folder))
    else:
        built = _core.read_onnx(os.fspath(model))
    deployment.write(
        built, built.values(), (batch_size,) * 4, target=target, device=device, lib_name=lib_name,
        func_name=func_name, path=path, weights=weights, memory=memory, compiler=compiler,
    )  # fmt: skip

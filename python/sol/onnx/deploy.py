"""From an ONNX file to a library that needs nothing but the C library."""

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
    """Writes a library and its header into the folder ``path``. Raises NotImplementedError for what can only be interpreted.

    ``model``: a path, a file object, or the bytes of a file (whose external data lie in ``folder``). ``batch_size``: the value of open
    sizes that ``func_name`` is for. ``shapes``: {input: sizes}, where the file leaves more than the batch open. All else as for
    sol.pytorch.deploy.
    """
    built = read_source(model, folder).model(shapes)
    deployment.write(
        built, built.values(), (batch_size,) * 4, target=target, device=device, lib_name=lib_name,
        func_name=func_name, path=path, weights=weights, memory=memory, compiler=compiler,
    )  # fmt: skip

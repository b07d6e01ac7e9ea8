"""From a trained PyTorch model to a library that needs neither PyTorch nor Python."""

import torch

from sol import deployment
from sol.pytorch.capture import CannotCapture, capture
from sol.pytorch.engine import without_collections
from sol.pytorch.importer import find_tensor, import_graph
from sol.pytorch.inputs import TensorSpec, make_specs
from sol.pytorch.module import Optimized


def deploy(
    trained_model,
    inputs=None,
    target=deployment.shared_lib,
    device=None,
    lib_name="MyNetwork",
    func_name="predict",
    path=".",
    weights="embedded",
    memory="dynamic",
    compiler=None,
):
    """Writes a library, and a header that says how to call it, into the folder ``path``.

    trained_model  a torch.nn.Module, or what sol.optimize returned; its parameters as they are now
    inputs         as for sol.optimize; an optimized module's own when None. A first size 0 stays open: `predict` is then
                   for 1, the re-entrant functions for any
    target         sol.deployment.shared_lib, static_lib or c_source (portable C99)
    device         None: this machine; sol.device.x86, (sol.device.x86, "avx2"), sol.device.arm64 (cross-compiled), sol.device.c
    lib_name       a C identifier, in front of all symbols but ``func_name`` and func_name_init, _seed, _error
    weights        "embedded", "file" (mapped, beside the library) or "packed" (larger, ready at once)
    memory         "static": no malloc, one call at a time; for c_source
    compiler       a C compiler instead of the usual one

    Raises ValueError for bad names and folders, NotImplementedError naming the operation that a library cannot have,
    RuntimeError when the compiler is missing or fails. No file is left behind then.
    """
    specs, structure, model = _describe(trained_model, inputs)
    with without_collections():
        specs, captured, imported = _import_for_any(model, specs, structure, lib_name)
    if captured.constants:
        raise NotImplementedError("sol.deploy: a result that is no tensor cannot leave a library")
    tensors = [_value(model, owner) for owner in imported.params]
    built = imported.builder.model
    built.check()
    symbols = (1,) if any(map(is_open, specs)) else ()
    deployment.write(
        built, [t.data_ptr() for t in tensors], symbols, target=target, device=device,
        lib_name=lib_name, func_name=func_name, path=path, weights=weights, memory=memory,
        compiler=compiler,
    )  # fmt: skip


def _describe(model, inputs):
    if isinstance(model, Optimized):
        engine = vars(model)["_engine"]
        if inputs is None:
            return engine.specs, engine.structure, model._original
        model = model._original
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"sol.deploy: expected a torch.nn.Module, got {type(model).__name__}")
    if inputs is None:
        raise TypeError(
            "sol.deploy: say what the model takes, such as [sol.input([1, 3, 224, 224])]"
        )
    inputs = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    specs, structure = make_specs(list(inputs), first_is_any=False)
    return specs, structure, model


def _import(model, specs, structure, name):
    try:
        captured = capture(model, specs, structure, 1)
        return captured, import_graph(captured.exported, model, name)
    except CannotCapture as error:
        raise NotImplementedError(f"sol.deploy: {error}") from error


def _import_for_any(model, specs, structure, name):
    """The same; a model that means something else at some batch sizes is taken for a batch of 1 alone."""
    captured, imported = _import(model, specs, structure, name)
    if captured.batches.is_free and not imported.builder.excluded:
        return specs, captured, imported
    specs = [spec._replace(shape=(1, *spec.shape[1:])) if is_open(spec) else spec for spec in specs]
    return specs, *_import(model, specs, structure, name)


def is_open(spec):
    return isinstance(spec, TensorSpec) and spec.is_dynamic


def _value(module, owner):
    tensor = find_tensor(module, owner) if isinstance(owner, str) else owner
    return tensor.detach().resolve_neg().contiguous()

"""From a trained PyTorch model to a library that needs neither PyTorch nor Python."""

import inspect

import torch

from sol import deployment
from sol.pytorch.audit import CannotCapture
from sol.pytorch.builder import Unsupported
from sol.pytorch.capture import capture, choose_batch
from sol.pytorch.engine import without_collections
from sol.pytorch.importer import find_tensor, import_graph
from sol.pytorch.inputs import TensorSpec, make_specs
from sol.pytorch.module import Optimized

# Of a name that libsol and the header get.
MAX_NAME = 100


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
    """Writes a library, and a header that says how to call it, into the folder ``path``, which is made if need be.

    What was deployed there before under the same name is replaced, whatever kind it was; other files stay. The header names inputs as
    ``forward`` does, and outputs by the keys of the result: "scores" of {"scores": x}, "boxes.0" of {"boxes": (x, y)}.

    trained_model  a torch.nn.Module in eval mode, or what sol.optimize returned; its parameters as they are now
    inputs         as for sol.optimize; an optimized module's own when None. A first size 0 stays open: `predict` is then
                   for 1, the re-entrant functions for any
    target         sol.deployment.shared_lib, static_lib or c_source (portable C99)
    device         None: this machine; sol.device.x86, (sol.device.x86, "avx2"), sol.device.arm64 (cross-compiled), sol.device.c
    lib_name       a C identifier, in front of all symbols but ``func_name`` and func_name_init, _seed, _error
    weights        "embedded", "file" (mapped, beside the library) or "packed" (larger, ready at once)
    memory         "static": no malloc, one call at a time; for c_source
    compiler       a C compiler instead of the usual one

    Raises ValueError for bad names, for folders that cannot be made or have files in the way, and for a model in training mode;
    NotImplementedError naming the operation that a library cannot have; RuntimeError when the compiler is missing or fails. All files
    are as before then.
    """
    specs, structure, model = _describe(trained_model, inputs)
    _check_mode(model)
    with without_collections():
        specs, imported = _import_for_any(model, specs, structure, lib_name)
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


def _check_mode(model):
    """A library is for inference, and sol.optimize runs no module in training mode either."""
    for name, module in model.named_modules():
        if module.training:
            raise ValueError(
                f"sol.deploy: {name or 'the model'} is in training mode; call model.eval() first"
            )


def _import(model, specs, structure, name):
    try:
        captured = capture(model, specs, structure, choose_batch(None))
        inputs, outputs = _input_names(model, structure), _output_names(captured.output)
        for i, value in captured.constants.items():
            raise Unsupported(f"the result {outputs[i]} is {value!r:.40}; a library has tensors")
        inputs = [name for name, spec in zip(inputs, specs) if isinstance(spec, TensorSpec)]
        return captured, import_graph(captured.exported, model, name, (inputs, outputs))
    except (CannotCapture, Unsupported) as error:
        raise NotImplementedError(f"sol.deploy: {error}") from error


def _import_for_any(model, specs, structure, name):
    """(specs, Imported); a model that means something else at some batch sizes is taken for a batch of 1 alone."""
    captured, imported = _import(model, specs, structure, name)
    if captured.batches.is_free and not imported.builder.excluded:
        return specs, imported
    specs = [spec._replace(shape=(1, *spec.shape[1:])) if is_open(spec) else spec for spec in specs]
    return specs, _import(model, specs, structure, name)[1]


# ---- Names of inputs and outputs ----


def _input_names(model, structure):
    """A name for each leaf of the arguments: that of the parameter of ``forward``, and the keys within it."""
    names = [f"input{i}" for i in range(len(structure.children))]
    known = list(inspect.signature(model.forward).parameters.values())
    for i, parameter in enumerate(known[: len(names)]):
        if parameter.kind is parameter.VAR_POSITIONAL:
            names[i:] = [f"{parameter.name}.{k}" for k in range(len(names) - i)]
            break
        names[i] = parameter.name
    return _join(names, structure)


def _output_names(structure):
    """A name for each leaf of the result: its keys, or output0 and so on where there are only positions."""
    if structure.is_leaf:
        return ["output0"]
    keys = _keys(structure)
    is_plain = issubclass(structure.type, (tuple, list)) and keys is structure.keys
    return _join([f"output{key}" if is_plain else str(key) for key in keys], structure)


def _keys(structure):
    """As in Structure, but names for the parts of a named tuple."""
    return getattr(structure.type, "_fields", structure.keys)


def _join(names, structure):
    """``names`` of the children, each followed by the keys within it."""
    return [x for name, child in zip(names, structure.children) for x in _leaf_names(name, child)]


def _leaf_names(name, structure):
    if structure.is_leaf:
        return [name.replace("\0", "_").encode(errors="replace").decode()[:MAX_NAME]]
    return _join([f"{name}.{key}" for key in _keys(structure)], structure)


def is_open(spec):
    return isinstance(spec, TensorSpec) and spec.is_dynamic


def _value(module, owner):
    tensor = find_tensor(module, owner) if isinstance(owner, str) else owner
    return tensor.detach().resolve_neg().contiguous()

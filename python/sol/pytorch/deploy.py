"""Deployment of a trained PyTorch module: module -> capture -> import -> sol.deployment.write."""

import inspect

import torch

from sol import deployment
from sol.pytorch.audit import CannotCapture
from sol.pytorch.builder import Unsupported
from sol.pytorch.capture import capture
from sol.pytorch.engine import without_collections
from sol.pytorch.exported import find_model, is_exported
from sol.pytorch.importer import import_graph
from sol.pytorch.inputs import TensorSpec, has_open_dims, make_specs
from sol.pytorch.module import Optimized
from sol.pytorch.optimize import make_call
from sol.pytorch.watch import find_tensor

# The maximum length, in characters, of an input's or output's name in the header.
MAX_NAME = 100
# Open sizes below this are tried, one dim at a time.
TRIED_SIZES = 600


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
    kwargs=None,
):
    """Writes ``trained_model`` as a library that needs neither PyTorch nor Python, and a C header, into the folder ``path``.

    Creates the folder if it does not exist. An earlier deployment of the same name is replaced, also one of another target;
    other files stay. In the header, inputs have the names of the arguments of ``forward``, and outputs the keys of the
    result: "scores" for {"scores": x}, "boxes.0" and "boxes.1" for {"boxes": (x, y)}.

    trained_model  a torch.nn.Module in eval mode, or the result of sol.optimize; the library gets its current parameters. Or an
                   ExportedProgram, or a file of torch.export.save, which need no ``inputs``
    inputs         as for sol.optimize; None: those of the optimized module. Sizes of 0 stay open: ``func_name`` then
                   computes one sample, of the sizes that the header shows; except for sol.device.c, the library's other
                   functions take any sizes
    kwargs         a dict of inputs by the names of ``forward``'s arguments
    target         sol.deployment.shared_lib, static_lib or c_source (portable C99)
    device         None: this machine ("c" for c_source); sol.device.x86, (sol.device.x86, "avx2"), sol.device.arm64
                   (needs a cross compiler on other machines), sol.device.c, sol.device.ve (needs libveda and ncc)
    lib_name       a C identifier: the names of files, and the prefix of all symbols except ``func_name``, func_name_init,
                   func_name_seed and func_name_error
    func_name      a C identifier: the function that runs the network
    weights        "embedded": in the library as trained, prepacked at the first call; "file": the same, in a file beside
                   the library, which is mapped into memory; "packed": packed parameters in the library, which is larger
                   but has no prepack
    memory         "dynamic", or "static", for c_source: no malloc, but only one call at a time
    compiler       the C compiler; None: the default one

    Raises TypeError for another object or missing inputs; ValueError for bad names, a folder that cannot be created or
    whose files are in the way, and a module in training mode; NotImplementedError with the operation that a library cannot
    run; RuntimeError when the compiler is missing or fails, or the device cannot be used. After an error all files are as before.
    """
    specs, structure, model = _describe(trained_model, inputs, kwargs)
    _check_mode(model)
    with without_collections():
        specs, captured, imported = _import_for_any(model, specs, structure, lib_name)
    tensors = [_value(model, owner) for owner in imported.params]
    built = imported.builder.model
    built.check()
    symbols = _default_sizes(captured.batches, imported.builder)
    deployment.write(
        built, [t.data_ptr() for t in tensors], symbols, target=target, device=device,
        lib_name=lib_name, func_name=func_name, path=path, weights=weights, memory=memory,
        compiler=compiler,
    )  # fmt: skip


def _describe(model, inputs, kwargs):
    is_given = inputs is not None or kwargs is not None
    if isinstance(model, Optimized):
        engine = vars(model)["_engine"]
        if not is_given:
            return engine.specs, engine.structure, model._original
        model = model._original
    exported = None
    if is_exported(model):
        model, exported, _ = find_model("sol.deploy", model)
        inputs = () if inputs is None else inputs
        is_given = True
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"sol.deploy: expected a torch.nn.Module, got {type(model).__name__}")
    if not is_given:
        raise TypeError(
            "sol.deploy: say what the model takes, such as [sol.input([1, 3, 224, 224])]"
        )
    inputs = inputs if isinstance(inputs, (list, tuple)) else [inputs] if inputs is not None else []
    call = make_call("sol.deploy", model, inputs, {}, kwargs, exported)
    return *make_specs(call, first_is_any=False), model


def _check_mode(model):
    """Raises ValueError for a module in training mode: a library computes inference only."""
    for name, module in model.named_modules():
        if module.training:
            raise ValueError(
                f"sol.deploy: {name or 'the model'} is in training mode; call model.eval() first"
            )


def _import(model, specs, structure, name):
    try:
        captured = capture(model, specs, structure)
        if isinstance(captured.batches.example, tuple):
            captured.batches.find_least()
        inputs, outputs = _input_names(model, structure), _output_names(captured.output)
        for i, value in captured.constants.items():
            if value is None:  # an optional part that is not there
                continue
            raise Unsupported(f"the result {outputs[i]} is {value!r:.40}; a library has tensors")
        outputs = [name for i, name in enumerate(outputs) if i not in captured.constants]
        inputs = [name for name, spec in zip(inputs, specs) if isinstance(spec, TensorSpec)]
        imported = import_graph(captured, model, name, (inputs, outputs))
        if imported.hosts:
            nodes = "; ".join(map(str, imported.hosts))
            raise Unsupported(f"a library has no PyTorch, which would compute {nodes}")
        return captured, imported
    except (CannotCapture, Unsupported) as error:
        raise NotImplementedError(f"sol.deploy: {error}") from error


def _import_for_any(model, specs, structure, name):
    """Returns (specs, Captured, Imported). If the graph is not valid for all batch sizes, it is captured for a fixed batch of 1."""
    captured, imported = _import(model, specs, structure, name)
    for size, value in imported.builder.excluded:
        captured.batches.exclude(size, value)
    if captured.batches.is_free:
        return specs, captured, imported
    if has_open_dims([spec for spec in specs if isinstance(spec, TensorSpec)]):
        _check_sizes(captured.batches, imported.builder)
        return specs, captured, imported
    specs = [spec._replace(shape=(1, *spec.shape[1:])) if is_open(spec) else spec for spec in specs]
    return specs, *_import(model, specs, structure, name)


# ---- Open sizes ----


def _default_sizes(batches, builder):
    """Returns the values of the model's symbols for the library's simple function: one sample, and the example's other sizes."""
    example = batches.example if isinstance(batches.example, tuple) else (batches.example,)
    sizes = dict(zip(batches.names, example))
    return tuple(1 if name == "n" else sizes[name] for name in builder.symbols)


def _check_sizes(batches, builder):
    """Raises NotImplementedError unless the graph is valid for all sizes that the library accepts, as far as trying many shows.

    A library has no guards of torch.export. It refuses sizes at which a window does not fit, and other than the multiples.
    """
    program = builder.model.compile(device="ref")
    example = batches.example
    at = [batches.names.index(name) for name in builder.symbols]
    for i in range(len(example)):
        for n in range(1, TRIED_SIZES):
            key = (*example[:i], n, *example[i + 1 :])
            if not batches.admit(key) and _accepts(program, [key[k] for k in at]):
                raise NotImplementedError(
                    f"sol.deploy: with the sizes {key} the network may compute something else"
                )


def _accepts(program, symbols):
    try:
        program.output_shape(0, symbols)
    except ValueError:
        return False
    return True


# ---- Names of inputs and outputs ----


def _input_names(model, structure):
    """Returns a name per leaf of the arguments: the argument's name in ``forward``, and the keys inside it."""
    names = [f"input{x}" if isinstance(x, int) else x for x in structure.keys]
    known = list(inspect.signature(model.forward).parameters.values())
    by_position = sum(isinstance(x, int) for x in structure.keys)
    for i, parameter in enumerate(known[:by_position]):
        if parameter.kind is parameter.VAR_POSITIONAL:
            names[i:by_position] = [f"{parameter.name}.{k}" for k in range(by_position - i)]
            break
        names[i] = parameter.name
    return _join(names, structure)


def _output_names(structure):
    """Returns a name per leaf of the result: its keys, or output0, output1, ... for a plain tuple or list."""
    if structure.is_leaf:
        return ["output0"]
    keys = _keys(structure)
    is_plain = issubclass(structure.type, (tuple, list)) and keys is structure.keys
    return _join([f"output{key}" if is_plain else str(key) for key in keys], structure)


def _keys(structure):
    """Returns the keys of a Structure; for a named tuple, the names of its fields instead of positions."""
    return getattr(structure.type, "_fields", structure.keys)


def _join(names, structure):
    """Returns a name per leaf: the name of the child that holds it, and the keys inside that child."""
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

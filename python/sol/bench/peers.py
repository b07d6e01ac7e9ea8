"""The other inference engines. prepare_all compiles a network for each of them and compares its result with PyTorch's.

    eager, eager_cl    PyTorch, contiguous and channels_last
    inductor           torch.compile with frozen parameters
    onnxruntime        ONNX Runtime, CPU provider
    openvino           OpenVINO, for latency, in float32
    ncnn               ncnn in float32, converted by pnnx; only one image with batch 1

All run in float32 with the given number of threads. An engine that is not installed, cannot run a network, or has a wrong
result is left out, with the reason.
"""

import copy
import importlib.util
import os
import time
from typing import NamedTuple

import torch
from torch.utils import _pytree

from sol.bench import process, restrict

TOLERANCE = 1e-3  # the largest error of a correct result, relative to the largest output value


class Unfit(Exception):
    """An engine does not run a network. The message is the reason."""


class Job:
    """A network for the engines to prepare. ``folder``: for their files."""

    def __init__(self, target, threads, folder):
        self.model, self.inputs = target.model, target.inputs
        self.is_image, self.batch = target.is_image, target.batch
        self.threads, self.folder = threads, folder
        self._onnx = None

    def onnx(self):
        """Returns the path of the network as an ONNX file for this batch size. The first call exports it."""
        if self._onnx is None:
            path = os.path.join(self.folder, "network.onnx")
            torch.onnx.export(self.model, self.inputs, path, dynamo=True, verbose=False)
            self._onnx = path
        return self._onnx


# ---- Engines: prepare(job) returns a function without arguments that makes one call ----


def prepare_eager(job):
    return lambda: job.model(*job.inputs)


def prepare_channels_last(job):
    if not job.is_image:
        raise Unfit("the input is no image")
    model = copy.deepcopy(job.model).to(memory_format=torch.channels_last)
    x = job.inputs[0].contiguous(memory_format=torch.channels_last)
    return lambda: model(x)


def prepare_inductor(job):
    import torch._inductor.config as config

    config.freezing = True
    config.cpp.threads = job.threads
    if restrict.is_on():
        config.cpp.simdlen = 256  # bits
    compiled = torch.compile(job.model)
    compiled(*job.inputs)
    return lambda: compiled(*job.inputs)


def prepare_onnxruntime(job):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(job.onnx(), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    feed = dict(zip(names, (x.numpy() for x in job.inputs)))
    return lambda: session.run(None, feed)


def prepare_openvino(job):
    import openvino

    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": job.threads,
    }
    compiled = openvino.Core().compile_model(job.onnx(), "CPU", options)
    request = compiled.create_infer_request()
    for i, x in enumerate(job.inputs):
        request.set_input_tensor(i, openvino.Tensor(x.numpy(), shared_memory=True))

    def run():
        request.infer(share_outputs=True)
        return [request.get_output_tensor(i).data for i in range(len(compiled.outputs))]

    return run


def prepare_ncnn(job):
    """Needs a batch of 1, as ncnn's images have no batch. Half precision, ncnn's default, is turned off."""
    if job.batch != 1 or not job.is_image:
        raise Unfit("ncnn takes one image at a time")
    import ncnn
    import numpy
    import pnnx

    stem = os.path.join(job.folder, "network")
    pnnx.export(job.model, stem + ".pt", job.inputs, fp16=False)
    net = ncnn.Net()
    net.opt.num_threads = job.threads
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, "use_" + option, False)
    if net.load_param(stem + ".ncnn.param") or net.load_model(stem + ".ncnn.bin"):
        raise Unfit("ncnn cannot read what pnnx wrote")
    image = ncnn.Mat(job.inputs[0][0].numpy())

    def run():
        extractor = net.create_extractor()
        extractor.input("in0", image)
        return numpy.array(extractor.extract("out0")[1], copy=False)

    return run


class Peer(NamedTuple):
    """An engine: its displayed name, the packages that it needs, and its function prepare(job)."""

    title: str
    packages: tuple
    prepare: object


PEERS = {
    "eager": Peer("PyTorch eager", (), prepare_eager),
    "eager_cl": Peer("PyTorch eager, channels_last", (), prepare_channels_last),
    "inductor": Peer("PyTorch Inductor", (), prepare_inductor),
    "onnxruntime": Peer("ONNX Runtime", ("onnxruntime", "onnxscript"), prepare_onnxruntime),
    "openvino": Peer("OpenVINO", ("openvino", "onnxscript"), prepare_openvino),
    "ncnn": Peer("ncnn", ("ncnn", "pnnx"), prepare_ncnn),
}


# ---- Preparation and check ----


def missing_packages(name):
    """Returns the packages that a peer needs and that are not installed."""
    return [p for p in PEERS[name].packages if importlib.util.find_spec(p) is None]


def prepare_all(names, job, expected):
    """Returns (engines, seconds, left out): {name: function}, {name: seconds to prepare}, {name: reason}.

    ``expected``: the ``values`` of PyTorch's result.
    """
    engines, seconds, left_out = {}, {}, {}
    for name in names:
        process.tell(f"preparing {name}")
        start = time.perf_counter()
        try:
            if reason := restrict.refusal(name):
                raise Unfit(reason)
            if missing := missing_packages(name):
                raise Unfit(f"{' and '.join(missing)} not installed")
            run = PEERS[name].prepare(job)
            error = relative_error(values(run()), expected)
            if not error <= TOLERANCE:
                raise Unfit(f"wrong result, relative error {error:.1e}")
        except Exception as error:  # of any type: an engine's failure must not stop the others
            left_out[name] = describe(error)
        else:
            engines[name] = run
            seconds[name] = time.perf_counter() - start
    return engines, seconds, left_out


def describe(error):
    if isinstance(error, Unfit):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def values(result):
    """Returns the result of a network as a flat list of tensors."""
    return [torch.as_tensor(leaf) for leaf in _pytree.tree_leaves(result) if hasattr(leaf, "shape")]


def relative_error(got, expected):
    """Returns the largest difference, relative to the largest expected value of the same tensor; inf if sizes differ."""
    if len(got) != len(expected):
        return float("inf")
    return max((_tensor_error(a, b) for a, b in zip(got, expected)), default=0.0)


def _tensor_error(got, expected):
    if got.numel() != expected.numel():
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    got, expected = got.reshape(-1).double(), expected.reshape(-1).double()
    error = (got - expected).abs().max() / expected.abs().max().clamp_min(1e-30)
    return float("inf") if error.isnan() else error.item()

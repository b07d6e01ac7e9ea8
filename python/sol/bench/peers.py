"""The other engines. Each is made ready for one network, checked against PyTorch, and then only called.

    eager, eager_cl    PyTorch, contiguous and channels_last
    inductor           torch.compile, parameters frozen
    onnxruntime        ONNX Runtime, CPU provider
    openvino           OpenVINO, for latency, in float32
    ncnn               ncnn in float32, converted by pnnx: one image, batch 1

All run in float32 with the chosen number of threads. What is not installed, or cannot run a network, or
gives a wrong result, is left out, with its reason.
"""

import copy
import importlib.util
import os
import time
from typing import NamedTuple

import torch
from torch.utils import _pytree

from sol.bench import process, restrict

TOLERANCE = 1e-3  # of the largest output: above it a result is wrong


class Unfit(Exception):
    """Why an engine does not run a network."""


class Job:
    """One network to be prepared for engines; files go to ``folder``."""

    def __init__(self, target, threads, folder):
        self.model, self.inputs = target.model, target.inputs
        self.is_image, self.batch = target.is_image, target.batch
        self.threads, self.folder = threads, folder
        self._onnx = None

    def onnx(self):
        """The path of the network as ONNX, for this batch size; exported once."""
        if self._onnx is None:
            path = os.path.join(self.folder, "network.onnx")
            torch.onnx.export(self.model, self.inputs, path, dynamo=True, verbose=False)
            self._onnx = path
        return self._onnx


# ---- Engines: prepare(job) -> a function without arguments that makes one call ----


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
    """ncnn's images have no batch; half precision, which it would choose by itself, is off."""
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


# ---- Readying them ----


def missing_packages(name):
    """Packages that a peer needs and that are not installed."""
    return [p for p in PEERS[name].packages if importlib.util.find_spec(p) is None]


def prepare_all(names, job, expected):
    """(engines {name: function}, seconds {name: s}, left out {name: reason}); ``expected``: see ``values``."""
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
        except Exception as error:  # engines fail in their own ways; the others shall run
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
    """What a network returned, as a flat list of tensors."""
    return [torch.as_tensor(leaf) for leaf in _pytree.tree_leaves(result) if hasattr(leaf, "shape")]


def relative_error(got, expected):
    """The largest difference, relative to the largest value of its tensor; inf where sizes differ."""
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

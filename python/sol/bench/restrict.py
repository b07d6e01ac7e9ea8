"""Restricts the peers to the instruction set of SOL: with SOL_CPU=avx2, on a machine with AVX-512, to AVX2.

Each peer is restricted by its own environment variables. A peer that has no such variable is left out. OpenVINO's linear layers in
float32 are not restricted (its runtime model calls them gemm_mlas_f32), its other layers are.
"""

import os

# {peer: variables that its libraries read when they are loaded}; None: AVX-512 cannot be turned off.
AVX2 = {
    "eager": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "eager_cl": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "inductor": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "openvino": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "onnxruntime": None,
    "ncnn": None,
}


def is_on():
    return os.environ.get("SOL_CPU") == "avx2"


def environment():
    """Returns the environment variables that restrict the peers. They must be set before a peer is loaded."""
    found = {}
    for variables in AVX2.values() if is_on() else ():
        found |= variables or {}
    return found


def refusal(peer):
    """Returns the reason why the peer cannot be compared, or None."""
    return "cannot be kept from using AVX-512" if is_on() and AVX2[peer] is None else None


def as_text():
    """Returns the restrictions as text for the table's description; "" without restrictions."""
    switches = " ".join(f"{name}={value}" for name, value in environment().items())
    return f"peers restricted by {switches}" if switches else ""

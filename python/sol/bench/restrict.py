"""The peers with no more instructions than SOL has: SOL_CPU=avx2 on a machine with AVX-512.

Each has a switch of its own, found in its documentation and confirmed by its times; a peer without one is left out.
"""

import os

# What an engine's libraries read when they are loaded; None: nothing makes it do without AVX-512.
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
    """Variables that restrict the peers, to be set before any of them is loaded."""
    found = {}
    for variables in AVX2.values() if is_on() else ():
        found |= variables or {}
    return found


def refusal(peer):
    """Why the peer cannot be compared, or None."""
    return "cannot be kept from using AVX-512" if is_on() and AVX2[peer] is None else None


def as_text():
    """What was done, for the table's description; empty where nothing was."""
    switches = " ".join(f"{name}={value}" for name, value in environment().items())
    return f"peers restricted by {switches}" if switches else ""

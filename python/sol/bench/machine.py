"""Describes the machine of a measurement: CPU, instruction set, cores, memory, versions."""

import os
import platform
from importlib import metadata
from pathlib import Path

import sol
from sol.bench import restrict

PACKAGES = ("torch", "torchvision", "onnxruntime", "openvino", "ncnn")


def describe(threads):
    """Returns a dict for JSON, which ``as_text`` converts to a sentence."""
    return {
        "cpu": cpu_name(),
        "isa": instruction_set(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions(),
        "restricted": restrict.as_text(),
    }


def cpu_name():
    """Returns the CPU's name from /proc/cpuinfo, else from the module `platform`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    fields = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    for field in ("model name", "Model", "cpu model"):
        if fields.get(field):
            return fields[field]
    return platform.processor() or platform.machine()


def instruction_set():
    """Returns the instruction set that SOL uses, such as avx512; '?' if no device is available."""
    details = [detail for name, (ok, detail) in sol.devices().items() if ok and name != "ref"]
    return details[0] if details else "?"


def versions():
    found = {"sol": sol.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def add_rates(machine, row):
    """Updates the machine's rates with those of one network's row.

    The peak is the largest one, as other work on the machine only lowers it. The bandwidth is that of the network with the
    most bytes, which fit least into caches.
    """
    limit = row.get("limit")
    if not limit:
        return
    machine["peak_gflops"] = max(machine.get("peak_gflops", 0), limit["peak_gflops"])
    if limit["bytes"] >= machine.get("bandwidth_bytes", 0):
        machine["bandwidth_bytes"] = limit["bytes"]
        machine["bandwidth_gbs"] = limit["bandwidth_gbs"]


def as_text(machine):
    """Returns the description as one sentence."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    rates = [
        f"{machine[key]:.0f} {unit}"
        for key, unit in (("peak_gflops", "GF/s"), ("bandwidth_gbs", "GB/s"))
        if key in machine
    ]
    measured = f"; measured {' and '.join(rates)}" if rates else ""
    restricted = f"; {machine['restricted']}" if machine["restricted"] else ""
    return (
        f"{machine['cpu']}, {machine['isa']}, {machine['cores']} cores, {machine['threads']} threads,"
        f" {machine['memory_gib']} GiB{measured}; {packages}{restricted}"
    )

"""What people read, under ``.sol/<name>/`` in the working directory, with ``compiler::debug`` on.

    before.svg    the network as captured
    after.html    the network as compiled, with times, what was fused, chosen and refused; of the first call
    report.txt    what was chosen and refused for each cluster
    times.txt     times of the fused layers, of the first call
    memory.svg    memory over the first call, with compiler::debug_memory_consumption

A browser shows the pictures. Nothing here may make a call fail: what cannot be written is logged.
"""

import pathlib
import re
import threading
import time

from sol import log
from sol.config import config
from sol.svg import Row, draw_curve, draw_layers

SAMPLE_S = 0.0005


def make_recorder(name, records, program):
    """A Recorder for a compiled program if any debug option is on, else None."""
    if config["compiler::debug"] or config["compiler::debug_memory_consumption"]:
        return Recorder(name, records, program)
    return Recorder(name, None, program) if config["compiler::profile"] else None


class Recorder:
    """Runs a program in place of Program.run, and writes what there is to see.

    ``records``: the layers as built (builder.Record); None: log times only.
    """

    def __init__(self, name, records, program):
        self._name = name
        self._folder = None
        self._files_left = records is not None
        self._profile = config["compiler::profile"]
        self._memory = config["compiler::debug_memory_consumption"]
        if records is not None:
            self._folder = pathlib.Path(".sol") / (re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_")
            self._write_network(records, program)

    def _write_network(self, records, program):
        self._write("before.svg", draw_layers(f"{self._name}, as captured", make_rows(records)))
        self._write("report.txt", program.report())

    def run(self, program, weights, symbols, inputs, outputs):
        """One run. The first one is timed, step by step; all are with compiler::profile."""
        if not self._profile and not self._files_left:
            return program.run(weights, symbols, inputs, outputs)
        with MemorySampler(self._memory and self._files_left) as memory:
            steps = program.profile(weights, symbols, inputs, outputs)
        table = format_times(steps)
        if self._files_left:
            self._files_left = False
            self._write("times.txt", table)
            self._write("after.html", program.html_report(self._name, symbols, tuple(steps)))
            if memory.samples:
                self._write("memory.svg", self._draw_memory(memory.samples, program, symbols))
        if self._profile:
            log.say(log.info, f"{self._name}\n{table}")

    def _write(self, name, text):
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            log.say(log.warn, f"no {self._folder / name}: {error}")

    def _draw_memory(self, samples, program, symbols):
        """Resident memory over one call, with libsol's own share as lines."""
        sizes = {
            "packed weights": program.weights_size,
            "intermediate results": program.arena_size(symbols),
        }
        return draw_curve(
            f"{self._name}: memory of the process over a call",
            [(1e3 * t, n / 2**20) for t, n in samples],
            {name: size / 2**20 for name, size in sizes.items()},
            ("ms", "MiB"),
        )


def make_rows(records):
    """Layers as built; parameters are left out, they have one reader each."""
    drawn = [record for record in records if record.kind != "param"]
    place = {record.output: i for i, record in enumerate(drawn)}
    rows = []
    for record in drawn:
        shape = ",".join(map(str, record.shape))
        words = [f"{record.kind} [{shape}]", record.attributes, record.origin]
        reads = [place[x] for x in record.inputs if x in place]
        rows.append(Row("  ".join(filter(None, words)), reads))
    return rows


def format_times(steps):
    """A table of Program.profile's rows, one per fused layer."""
    total = sum(step[3] for step in steps) or 1e-12
    lines = [f"{'ms':>9} {'%':>5} {'GFlop/s':>8} {'GB/s':>6}  step"]
    for name, module, layers, seconds, flops, size, *_ in steps:
        rate = max(seconds, 1e-12) * 1e9
        lines.append(
            f"{seconds * 1e3:9.3f} {100 * seconds / total:5.1f} {flops / rate:8.1f} {size / rate:6.1f}"
            f"  {module} {name}: {layers}"
        )
    return "\n".join([*lines, f"{total * 1e3:9.3f} 100.0  total", ""])


class MemorySampler:
    """Reads the process's resident memory on a thread of its own -> samples [(seconds, bytes)], the first and the last one included, however
    short it takes."""

    def __init__(self, enabled):
        self.samples = []
        self._start = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True) if enabled else None

    def __enter__(self):
        self._start = time.perf_counter()
        if self._thread:
            self._take()
            self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        if self._thread:
            self._thread.join()
            self._take()

    def _take(self):
        self.samples.append((time.perf_counter() - self._start, resident_size()))

    def _sample(self):
        while not self._stop.wait(SAMPLE_S):
            self._take()


def resident_size():
    """Bytes of memory that this process really uses; 0 where Linux's /proc is missing."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * 4096

"""Debug output: with ``compiler::debug``, files under ``.sol/<name>/`` in the working directory.

    before.svg    the network as captured
    after.html    the HTML report of the compiled network, with the times of the first call
    report.txt    the implementations that were chosen and refused for each cluster
    times.txt     the times of the steps in the first call
    memory.svg    memory of the process during the first call, with compiler::debug_memory_consumption

Debug output never makes a call fail: a file that cannot be written is logged as a warning.
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
    """Returns a Recorder for a compiled program if any debug option or ``compiler::profile`` is on, else None."""
    if config["compiler::debug"] or config["compiler::debug_memory_consumption"]:
        return Recorder(name, records, program)
    return Recorder(name, None, program) if config["compiler::profile"] else None


class Recorder:
    """Runs a program instead of Program.run, and writes the debug files and the log of times.

    ``records``: the layers as built (builder.Record); None: no files, only the log.
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
        """Runs the program once. The first run is timed step by step; with ``compiler::profile`` all runs are."""
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
        """Returns SVG text: resident memory during one call, and lines for the sizes of packed weights and arena."""
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
    """Returns a svg.Row per record, without parameters."""
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
    """Returns the rows of Program.profile as a table with one line per step."""
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
    """A context manager that samples the process's resident memory on its own thread.

    ``samples``: [(seconds, bytes)], with one sample at the start and one at the end, also in a very short block.
    """

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
    """Returns the bytes of resident memory of this process; 0 where /proc does not exist."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * 4096

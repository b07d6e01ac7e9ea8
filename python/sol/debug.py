"""What people read, under ``.sol/<name>/`` in the working directory, with ``compiler::debug`` on.

    before.dot, after.dot   the network as captured, and as compiled, after the first call with its times
                            (.svg if `dot` is installed)
    report.txt              what was chosen and refused for each cluster
    times.txt               times of the fused layers, of the first call
    memory.svg              memory over time, with compiler::debug_memory_consumption (needs matplotlib)

Nothing here may make a call fail: what cannot be written is logged.
"""

import pathlib
import re
import shutil
import subprocess
import threading
import time

from sol import log
from sol.config import config
from sol.profile import draw_times, median_steps

DOT_TIMEOUT_S = 60
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
        self._picture("before", draw_records(self._name, records))
        self._picture("after", program.picture())
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
            self._picture("after", draw_times(program.picture(), median_steps([steps])))
            self._plot(memory.samples, steps, program, symbols)
        if self._profile:
            log.say(log.info, f"{self._name}\n{table}")

    def _picture(self, stem, dot):
        self._write(f"{stem}.dot", dot)
        tool = shutil.which("dot")
        if tool is None:
            return
        target = self._folder / f"{stem}.svg"
        command = [tool, "-Tsvg", "-o", str(target), str(self._folder / f"{stem}.dot")]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=DOT_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            log.say(log.warn, f"no {target}: {error}")

    def _write(self, name, text):
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_text(text)
        except OSError as error:
            log.say(log.warn, f"no {self._folder / name}: {error}")

    def _plot(self, samples, steps, program, symbols):
        if not samples:
            return
        sizes = program.weights_size, program.arena_size(symbols)
        try:
            plot_memory(self._folder / "memory.svg", samples, sizes)
        except ImportError:
            log.say(log.warn, "no plot of memory: matplotlib is not installed")
        except OSError as error:
            log.say(log.warn, f"no plot of memory: {error}")


def draw_records(name, records):
    """Graphviz text of the layers as built; parameters are left out, they have one reader each."""
    drawn = {record.output for record in records if record.kind != "param"}
    lines = [f"digraph {_quote(name)} {{", "  node [shape=box, fontname=Helvetica];"]
    for record in records:
        if record.output not in drawn:
            continue
        shape = ",".join(map(str, record.shape))
        label = "\n".join(
            filter(None, [f"{record.kind} [{shape}]", record.attributes, record.origin])
        )
        lines.append(f"  t{record.output} [label={_quote(label)}];")
        lines += [f"  t{x} -> t{record.output};" for x in record.inputs if x in drawn]
    return "\n".join([*lines, "}", ""])


def _quote(text):
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


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
    """Reads the process's resident memory on a thread of its own -> samples [(seconds, bytes)]."""

    def __init__(self, enabled):
        self.samples = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True) if enabled else None

    def __enter__(self):
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _sample(self):
        start = time.perf_counter()
        while not self._stop.wait(SAMPLE_S):
            self.samples.append((time.perf_counter() - start, resident_size()))


def resident_size():
    """Bytes of memory that this process really uses; 0 where Linux's /proc is missing."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * 4096


def plot_memory(path, samples, sizes):
    """Resident memory over one call, with libsol's own share as lines. Needs matplotlib."""
    from matplotlib.figure import Figure

    axes = (figure := Figure()).subplots()
    axes.plot([1e3 * t for t, _ in samples], [n / 2**20 for _, n in samples], label="process")
    for size, label in zip(sizes, ("packed weights", "intermediates")):
        axes.axhline(size / 2**20, linestyle="--", label=label, color="gray")
    axes.set(xlabel="ms", ylabel="MiB")
    axes.legend()
    figure.savefig(path)

"""Single layers and short chains, measured beside other engines: python -m sol.bench --layers [ROW...]

    parent   measure(): one child for all rows; after a crash another one for the remaining rows
    child    run(): builds, compiles and times row after row, and reports each one

A row has the keys of sol.bench.network, without those of compile times and steps, and

    limit     {"ms", "bytes", "gflop", "peak_gflops", "bandwidth_gbs", "is_memory": whether memory limits it}
    of_limit  the limit's time / SOL's median;  peer_of_limit: / the best peer's median
"""

import contextlib
import tempfile
import traceback

from sol.bench import network, process

# ---- In the parent ----


def measure(names, child_args, timeout, take):
    """Calls ``take(row)`` for each name, in their order. A row that fails is {"network", "failed": reason, "output"}.

    ``child_args(names)``: command line arguments of a child. ``timeout``: seconds for one row.
    """
    waiting, line = list(names), process.Line()
    show = line.show if line.is_visible else None

    def pop(found):
        line.clear()
        take(as_row(waiting.pop(0), found))

    while waiting:
        command = ["-m", "sol.bench", *child_args(waiting), "--child", "layers"]
        last = process.run_child(command, timeout * len(waiting), on_step=show, on_row=pop)
        # A child that ended early has reported the rows before; the next child begins with the row that ended it.
        if waiting and "error" in last:
            pop(last)


def as_row(name, found):
    if "error" in found:
        return {"network": name, "failed": found["error"], "output": found.get("output", "")}
    return {"network": name} | found["row"]


# ---- In the child ----


def run(names, build, peer_names, threads, seconds):
    """Measures the rows, and reports {"row": ...} or {"error": reason} for each. ``build(name)``: returns a row of the list."""
    for i, name in enumerate(names):
        prefix = f"{i + 1} of {len(names)}, {name}"
        try:
            process.report({"row": compare(build(name), peer_names, threads, seconds, prefix)})
        except Exception as error:
            traceback.print_exc()
            process.report({"error": f"{type(error).__name__}: {error}"[:300]})


def compare(row, peer_names, threads, seconds, prefix):
    """Returns the row's results. Raises WrongResult."""
    from sol.bench import peers
    from sol.bench.target import Target

    process.tell(f"{prefix}: compiling")
    target = Target(row.name, row.model.eval(), row.inputs())
    results = target.model(*target.inputs)
    expected = peers.values(results)
    fast, error = optimize(target, expected)
    with tempfile.TemporaryDirectory(prefix="sol-") as folder, only_step(prefix):
        job = peers.Job(target, threads, folder)
        engines, _, left_out = peers.prepare_all(peer_names, job, expected)
        engines["sol"] = lambda: fast(*target.inputs)
        found = network.time_engines(engines, seconds)
    found |= {"threads": threads, "error": error, "left_out": left_out}
    return found | describe_run(fast) | compare_limit(target, results, found)


def optimize(target, expected):
    """Returns (the module that SOL has optimized for these shapes, its error)."""
    import sol.pytorch as sol
    from sol.bench import peers

    sol.config["compiler::never_slower"] = False
    fast = sol.optimize(target.model, *target.inputs)
    error = peers.relative_error(peers.values(fast(*target.inputs)), expected)
    if not error <= peers.TOLERANCE:
        raise network.WrongResult(f"SOL's result is wrong: relative error {error:.1e}")
    return fast, error


def describe_run(fast):
    import sol.pytorch as sol

    hosts = [str(node) for node in sol.host_nodes(fast)]
    return {"fallbacks": dict(sol.fallbacks(fast)) | dict.fromkeys(hosts, 0)}


@contextlib.contextmanager
def only_step(prefix):
    """The steps of one row are too short to be shown: the line names the row."""
    tell = process.tell
    tell(prefix)
    process.tell = lambda step: None
    try:
        yield
    finally:
        process.tell = tell


def compare_limit(target, results, found):
    from sol.bench import limit

    least = limit.measure_alone(target.model, target.inputs, results)
    shares = {"of_limit": least["ms"] / found["ms"]["sol"][0]}
    if "best" in found:
        shares["peer_of_limit"] = least["ms"] / found["ms"][found["best"]][0]
    return {"limit": least} | shares

"""sol.profile, sol.report and sol.memory for networks from ONNX files."""

import math

import numpy

from sol import _core
from sol.onnx.shapes import describe
from sol.times import Memory, make_profile, write_report


def profile(network, *arrays, runs=20):
    """See sol.profile. The steps of a session are those of its partitions, and the nodes that it interprets."""
    if network.session:
        values, dot, program = network.check_values(arrays), "", None
        network.session.profile(values)  # makes the partitions

        def run():
            return network.session.profile(values)

    else:
        call, _ = network.prepare(arrays)
        program, dot = network.program, network.program.dot()

        def run():
            return network.program.profile(*call)

    return make_profile(network.name, dot, lambda: network(*arrays), run, runs, program)


def report(network, *arrays, path="report.html", runs=20):
    """See sol.report."""
    _refuse_session(network)
    call, _ = network.prepare(arrays)
    program = network.program
    write_report(path, network.name, program, call[1], lambda: program.profile(*call), runs)


def memory(network, batch_size=None, inputs=None):
    """See sol.memory."""
    _refuse_session(network)
    symbols = network.symbols(_sizes(network, batch_size, inputs))
    return Memory(parameters=parameter_bytes(network.program), **network.program.memory(symbols))


def parameter_bytes(program):
    """Returns the bytes of all parameters of the file that the program reads."""
    sizes = {"f32": 4, "f64": 8, "i64": 8, "i32": 4, "f16": 2, "bf16": 2, "i16": 2}
    return sum(math.prod(shape) * sizes.get(dtype, 1) for _, dtype, shape in program.params)


def _refuse_session(network):
    if network.session:
        raise NotImplementedError(
            f"{_core.clean(network.name)} is partly interpreted, and has no program as a whole to look into;"
            " sol.profile shows its parts; with shapes={input: sizes} sol.load may compile it as one"
        )


def _sizes(network, batch_size, inputs):
    """Returns {open size: value}, from arrays or from the batch size, which every open first size gets.

    Raises TypeError or ValueError for a batch size that the network cannot have.
    """
    if inputs is not None:
        arrays = [inputs] if isinstance(inputs, numpy.ndarray) else list(inputs)
        return network.find_sizes(arrays)
    firsts = [shape[0] for _, _, shape in network.inputs if shape]
    batch = network.batch_size or 1 if batch_size is None else batch_size
    if isinstance(batch, bool) or not isinstance(batch, int):
        raise TypeError(f"sol.memory: batch_size must be an integer, not {batch!r}")
    is_possible = any(size < 0 or size == batch for size in firsts)
    if batch_size is not None and (batch < 0 or not is_possible):
        shapes = [describe(shape, network.size_name) for _, _, shape in network.inputs]
        raise ValueError(
            f"sol.memory: {_core.clean(network.name)} has no batch of {batch}: its inputs are {', '.join(shapes)}"
        )
    return {size: batch for size in firsts if size < 0}

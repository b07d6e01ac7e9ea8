"""A part of the table of ATen ops (ops.py): LSTM, GRU, RNN, of all steps and of one step (cells).

PyTorch calls one op for all layers and directions. Each direction of a layer becomes a linear layer, which multiplies the inputs of
all steps, and a recurrent layer of libsol (docs/ir.md), whose output has the states of all steps, then the last state and the last
cell. The order of the gates is PyTorch's.
"""

from typing import NamedTuple

from sol.pytorch.builder import Value, needs
from sol.pytorch.ops_product import linear
from sol.pytorch.ops_random import dropout as dropout_of


class Weights(NamedTuple):
    """The parameters of one direction of a layer. Biases may be None."""

    inputs: Value
    state: Value
    input_bias: Value | None = None
    state_bias: Value | None = None


def _part(b, x, axis, start, size):
    """``size`` values along an axis, from ``start`` on."""
    if start == 0 and size == x.shape[axis]:
        return x
    return b.layer("slice", x, axis=axis, start=start, step=1, shape=[size])


def _biases(b, kind, weights):
    """Returns the bias of the inputs' product, or None, and the inputs of the layer that follow its state: a GRU multiplies the state's
    part of its last gate, with the bias, by another gate."""
    first, second = weights.input_bias, weights.state_bias
    units = weights.state.shape[1]
    if kind != "gru":
        return (first if second is None else b.layer("add", first, second)), []
    zeros = b.layer("expand", b.value(0.0, weights.state.dtype), shape=[units])
    if second is None:
        return first, [zeros]
    gates = b.layer("concat", _part(b, second, 0, 0, 2 * units), zeros, axis=0)
    return b.layer("add", first, gates), [_part(b, second, 0, 2 * units, units)]


def _check(kind, weights):
    units = weights.state.shape[1]
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    needs(weights.state.shape[0] == gates * units, "projected states (proj_size)")
    needs((weights.input_bias is None) == (weights.state_bias is None), "one bias of two")


def _run(b, kind, x, weights, states, axis, reverse=False):
    """One direction of one layer. ``x``: [n, steps, inputs], or [steps, n, inputs] for axis 0. ``states``: each [n, units].

    Returns the states of all steps, and the last values of ``states``, each [n, units].
    """
    _check(kind, weights)
    steps = x.shape[axis]
    bias, more = _biases(b, kind, weights)
    gates = linear(b, x, weights.inputs, bias)
    y = b.layer(kind, gates, weights.state, *states, *more, axis=axis, reverse=reverse)
    last = [_part(b, y, axis, steps + i, 1) for i in range(len(states))]
    last = [b.reshape(t, state.shape) for t, state in zip(last, states)]
    return _part(b, y, axis, 0, steps), last


def _split(b, x, i):
    """State ``i`` of [layers and directions, n, units]."""
    return b.reshape(_part(b, x, 0, i, 1), x.shape[1:])


def _join(b, values):
    """The opposite of _split."""
    values = [b.reshape(x, (1, *x.shape)) for x in values]
    return values[0] if len(values) == 1 else b.layer("concat", *values, axis=0)


def _all_layers(kind):
    def run(
        b, x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, out
    ):
        states = hx if isinstance(hx, list) else [hx]
        directions = 2 if bidirectional else 1
        size = len(params) // (num_layers * directions)
        needs(size == (4 if has_biases else 2), "projected states (proj_size)")
        lasts = []
        for layer in range(num_layers):
            parts = []
            for i in range(layer * directions, (layer + 1) * directions):
                weights = Weights(*params[i * size : (i + 1) * size])
                before = [_split(b, state, i) for state in states]
                y, last = _run(b, kind, x, weights, before, int(batch_first), i % directions == 1)
                parts.append(y)
                lasts.append(last)
            x = parts[0] if directions == 1 else b.layer("concat", *parts, axis=2)
            if layer + 1 < num_layers:
                x = dropout_of(b, x, dropout, train)
        return [x, *(_join(b, list(last)) for last in zip(*lasts))]

    return run


def _cell(kind):
    """One step, of [n, inputs]."""

    def run(b, x, hx, w_ih, w_hh, b_ih=None, b_hh=None, out=None):
        states = hx if isinstance(hx, list) else [hx]
        weights = Weights(w_ih, w_hh, b_ih, b_hh)
        _, last = _run(b, kind, b.reshape(x, (1, *x.shape)), weights, states, 0)
        return last if isinstance(hx, list) else last[0]

    return run


TABLE = {
    "lstm.input": _all_layers("lstm"),
    "gru.input": _all_layers("gru"),
    "rnn_tanh.input": _all_layers("rnn_tanh"),
    "rnn_relu.input": _all_layers("rnn_relu"),
    "lstm_cell.default": _cell("lstm"),
    "gru_cell.default": _cell("gru"),
    "rnn_tanh_cell.default": _cell("rnn_tanh"),
    "rnn_relu_cell.default": _cell("rnn_relu"),
}

"""Recurrent operators, linear attention and causal convolution, compiled and interpreted, compared with NumPy."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import sol.onnx as sol

LONG = 1030  # steps that are too many to be compiled
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
USUAL = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
INPUTS = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]

# Name: (function, default alpha, default beta, how many of both a node may give).
ACTIVATIONS = {
    "Sigmoid": (lambda x, a, b: 1 / (1 + np.exp(-x)), 0, 0, 0),
    "Tanh": (lambda x, a, b: np.tanh(x), 0, 0, 0),
    "Relu": (lambda x, a, b: np.maximum(x, 0), 0, 0, 0),
    "Softsign": (lambda x, a, b: x / (1 + abs(x)), 0, 0, 0),
    "Softplus": (lambda x, a, b: np.logaddexp(0, x), 0, 0, 0),
    "LeakyRelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, 0, 1),
    "Elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1, 0, 1),
    "ThresholdedRelu": (lambda x, a, b: np.where(x > a, x, 0), 1, 0, 1),
    "Affine": (lambda x, a, b: a * x + b, 1, 0, 2),
    "ScaledTanh": (lambda x, a, b: a * np.tanh(b * x), 1, 1, 2),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5, 2),
}


GENERATOR = np.random.default_rng(0)


def real(*shape, rng=GENERATOR):
    return rng.standard_normal(shape).astype(np.float32)


# ---- The formulas of ONNX's documentation, in float64 ----


def as_float32(x):
    """The value that an attribute of a file has."""
    return float(np.float32(x))


def read_activations(op, attributes, n_directions):
    """A function per activation of each direction. Alphas and betas belong to those that have them, in order."""
    names = attributes.get("activations", USUAL[op] * n_directions)
    given = [iter(attributes.get(k, ())) for k in ("activation_alpha", "activation_beta")]
    result = []
    for name in names:
        f, *numbers, n = ACTIVATIONS[name]
        for i in range(n):
            numbers[i] = next(map(as_float32, given[i]), numbers[i])
        result.append(lambda x, f=f, numbers=numbers: f(x, *numbers))
    return result


def step(op, x, h, c, w, r, b, p, acts, attributes):
    """The next h and c of one sequence."""
    n, clip = len(h), as_float32(attributes.get("clip", np.inf))
    act = [lambda v, f=f: f(np.clip(v, -clip, clip)) for f in acts]
    from_x, from_h = w @ x + b[: len(w)], r @ h + b[len(w) :]

    def gate(k):
        return slice(k * n, k * n + n)

    def total(k):
        return from_x[gate(k)] + from_h[gate(k)]

    if op == "RNN":
        return act[0](total(0)), c
    if op == "GRU":
        z, reset = act[0](total(0)), act[0](total(1))
        product = reset * from_h[gate(2)]
        if not attributes.get("linear_before_reset"):
            product = r[gate(2)] @ (reset * h) + b[len(w) :][gate(2)]
        return (1 - z) * act[1](from_x[gate(2)] + product) + z * h, c
    i = act[0](total(0) + p[gate(0)] * c)
    f = 1 - i if attributes.get("input_forget") else act[0](total(2) + p[gate(2)] * c)
    c = f * c + i * act[1](total(3))
    return act[0](total(1) + p[gate(1)] * c) * acts[2](c), c


def reference(op, inputs, attributes):
    """Y, Y_h, Y_c. A sequence that has ended keeps its state, and its further outputs are 0."""
    by_batch = attributes.get("layout", 0)
    inputs = {k: v.astype(np.float64) for k, v in inputs.items() if k != "sequence_lens"} | {
        k: v for k, v in inputs.items() if k == "sequence_lens"
    }
    if by_batch:
        inputs |= {
            k: inputs[k].swapaxes(0, 1) for k in ("X", "initial_h", "initial_c") if k in inputs
        }
    x, w, r = (inputs[k] for k in "XWR")
    (steps, batch, _), (d, _, n) = x.shape, r.shape
    acts = read_activations(op, attributes, d)
    lengths = inputs.get("sequence_lens", np.full(batch, steps))
    b = inputs.get("B", np.zeros((d, 2 * w.shape[1])))
    p = inputs.get("P", np.zeros((d, 3 * n)))
    y = np.zeros((steps, d, batch, n))
    h, c = (inputs.get(k, np.zeros((d, batch, n))).copy() for k in ("initial_h", "initial_c"))
    for i in range(d):
        own = acts[i * len(acts) // d : (i + 1) * len(acts) // d]
        for k in range(batch):
            order = range(lengths[k])
            for t in order[::-1] if i or attributes["direction"] == "reverse" else order:
                h[i, k], c[i, k] = step(
                    op, x[t, k], h[i, k], c[i, k], w[i], r[i], b[i], p[i], own, attributes
                )
                y[t, i, k] = h[i, k]
    if by_batch:
        return [y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)]
    return [y, h, c]


# ---- Networks of one node ----


def load(op, attributes, live, constants, outputs, opset=14, dims=None):
    """``live``: the inputs of a call; ``constants``: initializers; {name: array}. ``dims``: {input: its shape} instead of its own. An open size is a string in a shape."""
    names = [k if k in live | constants else "" for k in attributes.pop("names", INPUTS)]
    while not names[-1]:
        names.pop()

    def port(name, x):
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(x.dtype), (dims or {}).get(name, x.shape)
        )

    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **attributes)],
        "g",
        [port(*item) for item in live.items()],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in outputs if k],
        [numpy_helper.from_array(x, k) for k, x in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return model, sol.load(model.SerializeToString())


def listed(y):
    return list(y) if isinstance(y, tuple) else [y]


def compare(got, expected, kind):
    tolerance = {np.float16: 5e-3, np.float32: 2e-5, np.float64: 1e-11}[kind]
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == kind and a.shape == b.shape
        scale = abs(b).max(initial=1)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def random_case(seed, steps):
    """(operator, attributes, inputs, names of its outputs); each optional thing is there or not."""
    rng = np.random.default_rng(seed)
    op = ["RNN", "GRU", "LSTM"][seed % 3]
    direction = ["forward", "reverse", "bidirectional"][rng.integers(3)]
    d, g, layout = 1 + (direction == "bidirectional"), GATES[op], int(rng.integers(2))
    batch, n_in, n = rng.integers(1, [4, 4, 5])

    def some():
        return rng.random() < 0.5

    def value(*shape):
        return real(*shape, rng=rng)

    def by_layout(x):
        return x.swapaxes(0, 1).copy() if layout else x

    optional = {
        "B": value(d, 2 * g * n),
        "sequence_lens": rng.integers(0, steps + 1, batch).astype(np.int32),
        "initial_h": by_layout(value(d, batch, n)),
    }
    if op == "LSTM":
        optional |= {"initial_c": by_layout(value(d, batch, n)), "P": value(d, 3 * n)}
    small = np.float32(0.5)  # so that activations without bounds do not overflow
    inputs = {"X": by_layout(value(steps, batch, n_in)), "W": value(d, g * n, n_in) * small}
    inputs |= {"R": value(d, g * n, n) * small / n} | {k: v for k, v in optional.items() if some()}
    attributes = {"direction": direction, "layout": layout, "hidden_size": int(n)}
    if some():
        count = len(USUAL[op]) * d
        attributes["activations"] = [list(ACTIVATIONS)[i] for i in rng.integers(0, 11, count)]
        for name in ("activation_alpha", "activation_beta"):
            if some():
                attributes[name] = [
                    float(x) for x in rng.uniform(0.1, 0.9, rng.integers(1, count + 1))
                ]
    if some() or steps > 100:
        attributes["clip"] = float(rng.uniform(0.2, 1))
    if op == "LSTM" and some():
        attributes["input_forget"] = 1
    if op == "GRU" and some():
        attributes["linear_before_reset"] = 1
    return op, attributes, inputs, ["Y", "Y_h", "Y_c"][: 2 + (op == "LSTM")]


def check_random(seed, steps, kind, is_compiled):
    op, attributes, inputs, outputs = random_case(seed, steps)
    inputs = {k: v.astype(kind) if v.dtype == np.float32 else v for k, v in inputs.items()}
    named = ("X", "sequence_lens") if seed % 2 else ("X",)
    live = {k: inputs[k] for k in named if k in inputs}
    constants = {k: v for k, v in inputs.items() if k not in live}
    _, net = load(op, dict(attributes), live, constants, outputs)
    expected = reference(op, inputs, attributes)[: len(outputs)]
    compare(listed(net(**live)), expected, kind)
    assert net.counts == ((1, 0) if is_compiled else (0, 1))
    again = {k: -v if k == "X" else v for k, v in live.items()}
    expected = reference(op, inputs | again, attributes)[: len(outputs)]
    compare(listed(net(**again)), expected, kind)


KINDS = [np.float32, np.float64, np.float16]


@pytest.mark.parametrize("seed", range(24))
def test_random_recurrent(seed):
    check_random(seed, 1 + seed % 5, KINDS[seed // 3 % 3], True)


@pytest.mark.parametrize("seed", range(100, 109))
def test_long_recurrent(seed):
    """Activations with clipped inputs are interpreted, in pieces."""
    check_random(seed, LONG, KINDS[seed // 3 % 2], False)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", [*GATES, "relu"])
def test_open_steps(op, direction, layout):
    """Usual cells are one layer over any number of steps: one program for all steps, batches and lengths."""
    attributes = {"hidden_size": 4, "layout": layout, "direction": direction}
    n = 1 + (direction == "bidirectional")
    if op == "relu":
        op, attributes["activations"] = "RNN", ["Relu"] * n
    if op == "GRU":
        attributes["linear_before_reset"] = 1
    g = GATES[op]
    constants = {"W": real(n, g * 4, 3), "R": real(n, g * 4, 4) / 4, "B": real(n, g * 8)}
    shape = ["batch", "steps", 3] if layout else ["steps", "batch", 3]
    outputs, net = ["Y", "Y_h", "Y_c"][: 2 + (op == "LSTM")], None
    for steps, batch in (5, 2), (1, 1), (40, 3), (LONG, 1):
        x, lengths = real(steps, batch, 3), np.arange(steps, steps - batch, -1).clip(0)
        live = {"X": x.swapaxes(0, 1).copy() if layout else x}
        live["sequence_lens"] = lengths.astype(np.int32)
        dims = {"X": shape, "sequence_lens": ["batch"]}
        if net is None:
            _, net = load(op, dict(attributes), live, constants, outputs, dims=dims)
        expected = reference(op, live | constants, attributes)[: len(outputs)]
        compare(net(**live), expected, np.float32)
        assert not hasattr(net, "counts") or net.counts[1] == 0


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("steps, batch", [(0, 2), (3, 0), (0, 0)])
@pytest.mark.parametrize("op", GATES)
def test_recurrent_without_values(op, steps, batch, layout):
    """Without steps, the last state is the first one."""
    x, h = real(steps, batch, 3), real(2, batch, 4)
    if layout:
        x, h = x.swapaxes(0, 1), h.swapaxes(0, 1)
    inputs = {"X": x, "W": real(2, GATES[op] * 4, 3), "R": real(2, GATES[op] * 4, 4)}
    attributes = {"direction": "bidirectional", "hidden_size": 4, "layout": layout}
    constants = {k: inputs[k] for k in "WR"} | {"initial_h": h}
    _, net = load(op, dict(attributes), {"X": x}, constants, ["Y", "Y_h"])
    expected = reference(op, inputs | {"initial_h": h}, attributes)[:2]
    compare(net(x), expected, np.float32)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_recurrent(op, direction, layout):
    """All inputs except lengths; compared with ONNX's own reference, which computes one direction only and no layout."""
    n, g = 1 + (direction == "bidirectional"), GATES[op]
    x, attributes = real(5, 2, 3), {"hidden_size": 4}
    inputs = {"W": real(n, g * 4, 3), "R": real(n, g * 4, 4), "B": real(n, g * 8)}
    states = ["initial_h", "initial_c"][: 1 + (op == "LSTM")]
    inputs |= {k: real(n, 2, 4) for k in states} | ({"P": real(n, 12)} if op == "LSTM" else {})
    outputs = ["Y", "Y_h", "Y_c"][: 1 + len(states)]

    def swap(a):
        return a.swapaxes(0, 1).copy() if layout else a

    own = inputs | {k: swap(inputs[k]) for k in states}
    _, net = load(
        op, attributes | {"direction": direction, "layout": layout}, {"X": swap(x)}, own, outputs
    )
    parts = []
    for d in range(n):
        flip = (lambda a: a[::-1].copy()) if direction == "reverse" or d else (lambda a: a)
        one, _ = load(
            op, dict(attributes), {"X": x}, {k: v[d : d + 1] for k, v in inputs.items()}, outputs
        )
        y, *last = ReferenceEvaluator(one).run(None, {"X": flip(x)})
        parts.append((flip(y), *last))
    expected = [
        np.concatenate(p, 1 if i == 0 else 0) for i, p in enumerate(zip(*parts, strict=True))
    ]
    if layout:
        expected = [expected[0].transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in expected[1:])]
    compare(net(swap(x)), expected, np.float32)


def rnn(length=None, **more):
    inputs = {"X": real(5, 2, 3), "W": real(1, 4, 3), "R": real(1, 4, 4)}
    if length is not None:
        inputs["sequence_lens"] = np.array(length, np.int32)
    return inputs | more


def test_lengths_of_the_call():
    """One program for all of them; a length that is out of range is an error of the call."""
    inputs = rnn([5, 3])
    live = {k: inputs[k] for k in ("X", "sequence_lens")}
    attributes = {"hidden_size": 4, "direction": "reverse"}
    _, net = load("RNN", dict(attributes), live, {k: inputs[k] for k in "WR"}, ["Y", "Y_h"])
    for length in ([5, 3], [0, 5], [5, 5]):
        live["sequence_lens"] = np.array(length, np.int32)
        compare(net(**live), reference("RNN", inputs | live, attributes)[:2], np.float32)
        assert net.counts == (1, 0)
    for length in ([6, 1], [1, -1]):
        bad = "sample 0 has 6 steps" if length[0] > 5 else "sample 1 has -1 steps"
        with pytest.raises(IndexError, match=f"{bad}, but there are 5"):
            net(live["X"], np.array(length, np.int32))


@pytest.mark.parametrize(
    "inputs, attributes, message",
    [
        (rnn(B=real(1, 9)), {}, r"B is \[1,9\], not \[1,8\]"),
        (rnn(W=real(1, 4, 5)), {}, r"W is \[1,4,5\], not \[1,4,3\]"),
        (rnn(initial_h=real(2, 4)), {}, r"initial_h is \[2,4\], not \[1,2,4\]"),
        (rnn([1, 2, 3]), {}, r"sequence_lens is \[3\], not \[2\]"),
        (rnn([1, 9]), {}, "sequence_lens has 9 for 5 steps"),
        (rnn(), {"activations": ["Tanh", "Relu"]}, "2 activations, not 1"),
        (rnn(), {"activations": ["Cube"]}, "activation 0 is not one of ONNX"),
        (rnn(), {"activations": "Tanh"}, "attribute activations"),
        (rnn(), {"direction": "bidirectional"}, "weights of 1 directions"),
        (rnn(), {"direction": "up"}, 'direction "up"'),
        (rnn(), {"hidden_size": 5}, "hidden_size"),
    ],
)
def test_bad_recurrent(inputs, attributes, message):
    live, constants = {"X": inputs["X"]}, {k: v for k, v in inputs.items() if k != "X"}
    with pytest.raises((ValueError, NotImplementedError), match=message):
        load("RNN", dict(attributes), live, constants, ["Y"])[1](**live)


# ---- Linear attention, causal convolution ----


@pytest.mark.parametrize("places, is_compiled", [(0, False), (5, True), (64, True), (1100, False)])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(rule, places, is_compiled):
    """Of 4 query heads, 2 share a head of keys and values."""
    live = {"q": real(2, places, 12), "k": real(2, places, 6) / 3, "v": real(2, places, 8)}
    live["state"] = real(2, 2, 3, 4)
    live |= {"decay": -abs(real(2, places, 2))} if "gated" in rule else {}
    live |= {"beta": abs(real(2, places, 2)) / 3} if "delta" in rule else {}
    names = ["q", "k", "v", "state", "decay", "beta"]
    attributes = {"update_rule": rule, "q_num_heads": 4, "kv_num_heads": 2, "names": names}
    _, net = load("LinearAttention", attributes, live, {}, ["y", "s"], 27)
    y, state = np.zeros((2, places, 4, 4)), live["state"].astype(np.float64)
    for t in range(places):
        q, k, v = (live[name][:, t].reshape(2, -1, n) for name, n in (("q", 3), ("k", 3), ("v", 4)))
        if "gated" in rule:
            state = state * np.exp(live["decay"][:, t, :, None, None])
        if "delta" in rule:
            v = (v - np.einsum("bhij,bhi->bhj", state, k)) * live["beta"][:, t, :, None]
        state = state + k[..., None] * v[:, :, None]
        y[:, t] = np.einsum("bhi,bhij->bhj", q, state.repeat(2, 1)) / np.sqrt(3)
    compare(net(**live), [y.reshape(2, places, 16), state], np.float32)
    assert net.counts == ((1, 0) if is_compiled else (0, 1))


@pytest.mark.parametrize("kernel", [1, 3])
def test_causal_convolution(kernel):
    """With a kernel of one, the state has no values."""
    x, w, state = real(2, 3, 6), real(3, 1, kernel), real(2, 3, kernel - 1)
    live = {"x": x, "w": w} | ({"state": state} if kernel > 1 else {})
    attributes = {"names": ["x", "w", "", "state"]}
    _, net = load("CausalConvWithState", attributes, live, {}, ["y", "s"], 27)
    line = np.concatenate([state, x], 2)
    y = sum(w[:, 0, k, None] * line[..., k : k + 6] for k in range(kernel))
    compare(net(**live), [y, line[..., 6:]], np.float32)

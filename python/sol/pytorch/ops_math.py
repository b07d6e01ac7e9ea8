"""A part of the table of ATen ops (ops.py): functions of numbers that are formulas of layers, such as hypot and logaddexp.

A formula computes with Terms: values with Python's operators, and the layers as methods. Formulas keep what PyTorch promises at
the limits: NaN, infinities, and results near 0, where a naive formula has no digits left. An argument's name is that of the
op's schema; ``self`` and ``input`` are called x.
"""

import math

import torch

from sol.pytorch.builder import DTYPES, Value, all_axes, needs

FLOATS = {"f32", "f64", "f16", "bf16"}
OPERANDS = {"x", "other", "values"}  # arguments that may be numbers


class Term:
    """A Value in a formula. ``t.exp()`` adds the layer exp; operators add layers, too: ``1 - t``, ``t < 0``, ``a & b``."""

    def __init__(self, b, value):
        self._b, self.value = b, value

    def __getattr__(self, kind):
        return lambda *others, **attributes: self._layer(kind, self, *others, **attributes)

    def _layer(self, kind, *inputs, **attributes):
        values = [x.value if isinstance(x, Term) else x for x in inputs]
        return Term(self._b, self._b.layer(kind, *values, **attributes))

    @property
    def is_float(self):
        return self.value.dtype in FLOATS

    def choose(self, a, other):
        """``a`` where this condition holds, else ``other``; one of them may be a number."""
        return self._layer("where", self, *self._same(a, other))

    def _same(self, a, other):
        """Numbers get the element type of the other operand, a number beside a number that of the op's result."""
        terms = [x.value.dtype for x in (a, other) if isinstance(x, Term)]
        dtype = terms[0] if terms else self._b.dtype
        return [
            x if isinstance(x, Term) else Term(self._b, self._b.value(x, dtype)) for x in (a, other)
        ]

    def is_negative(self):
        """Whether the sign is minus, also of -0. The sign of a NaN does not count."""
        return (self < 0) | (self.equal(0) & (1 / self < 0)) if self.is_float else self < 0

    def log1p(self):
        """log(1 + x). Near 0, 1 + x has lost the digits of x, so it is the series of atanh(y) = log((1 + y) / (1 - y)) / 2."""
        return (self.abs() < 0.5).choose((self / (self + 2)).atanh() * 2, (self + 1).log())

    def expm1(self):
        """exp(x) - 1 = tanh(x / 2) * (exp(x) + 1), which keeps the digits of a small x."""
        return (self * 0.5).tanh() * (self.exp() + 1)

    def __add__(self, other):
        return self._layer("add", self, other)

    def __mul__(self, other):
        return self._layer("mul", self, other)

    def __sub__(self, other):
        return self._layer("sub", self, other)

    def __rsub__(self, other):
        return self._layer("sub", other, self)

    def __truediv__(self, other):
        return self._layer("div", self, other)

    def __rtruediv__(self, other):
        return self._layer("div", other, self)

    def __neg__(self):
        return self.neg()

    def __lt__(self, other):
        return self._layer("less", self, other)

    def __gt__(self, other):
        return self._layer("less", other, self)

    def __and__(self, other):
        return self._layer("bit_and", self, other)

    def __or__(self, other):
        return self._layer("bit_or", self, other)

    def __invert__(self):
        return self.bit_not()


def formula(function, floats=True):
    """Returns a function of the table from one of Terms. ``floats``: refuse integers. Other arguments than OPERANDS stay numbers.

    The result is cast to that of the op: a condition may be a number there.
    """

    def run(b, out, **arguments):
        def term(name, x):
            return Term(b, b.value(x)) if isinstance(x, Value) or name in OPERANDS else x

        terms = {name: term(name, x) for name, x in arguments.items()}
        are_floats = all(x.is_float for x in terms.values() if isinstance(x, Term))
        needs(not floats or are_floats, "a formula of floats, of integers")
        return b.cast(function(**terms).value, b.dtype)

    return run


# ---- One argument ----


def _entropy(x):
    return (x > 0).choose(-(x * x.log()), (x < 0).choose(-math.inf, x))


def _angle(x):
    return x.equal(x).choose((x < 0).choose(math.pi, 0.0), x)


def _sinc(x):
    y = x * math.pi
    return x.equal(0).choose(1.0, y.sin() / y)


def _logit(x, eps=None):
    if eps is not None:
        x = x.clamp(min=float(eps), max=1 - float(eps))
    return (x / (1 - x)).log()


def _nan_to_num(x, nan=None, posinf=None, neginf=None):
    if not x.is_float:
        return x
    largest = torch.finfo(DTYPES[x.value.dtype]).max
    y = x.equal(x).choose(x, float(nan or 0))
    y = y.equal(math.inf).choose(float(largest if posinf is None else posinf), y)
    return y.equal(-math.inf).choose(float(-largest if neginf is None else neginf), y)


def _is_finite(x):
    return x.abs() < math.inf if x.is_float else x.equal(x)


def _round(x, decimals=0):
    """PyTorch rounds a product or quotient with a power of 10, too."""
    if not x.is_float:
        needs(decimals >= 0, "integers, rounded to tens")
        return x
    factor = float(10 ** abs(decimals))
    if decimals < 0:
        return (x / factor).round() * factor
    return x.round() if decimals == 0 else (x * factor).round() / factor


def _softplus(x, beta, threshold):
    """With another threshold than 20, above which PyTorch returns x itself."""
    y = x * float(beta)
    return (y > float(threshold)).choose(x, y.softplus() / float(beta))


softplus = formula(_softplus)


# ---- The rest of the error function ----

# exp(x^2) * erfc(x) of a positive x is t * exp(P(t)) with t = 2 / (2 + x). P is fitted for a relative error of 1.2e-7.
TAIL = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


def _scaled_tail(x):
    """exp(x^2) * erfc(x) of x >= 0."""
    needs(x.value.dtype != "f64", "more digits than the formula has")
    t = 2 / (x + 2)
    y = t * TAIL[-1]
    for factor in reversed(TAIL[1:-1]):
        y = (y + factor) * t
    return t * (y + TAIL[0]).exp()


def _erfc(x):
    """1 - erf(x), which keeps the digits of a small result."""
    size = x.abs()
    tail = _scaled_tail(size) * (-(size * size)).exp()
    tail = size.equal(math.inf).choose(0.0, tail)
    near = 1 - x.erf()
    return (x > 0.5).choose(tail, near)


def _erfcx(x):
    size = x.abs()
    y = size.equal(math.inf).choose(0.0, _scaled_tail(size))
    return (x < 0).choose((x * x).exp() * 2 - y, y)


def _ndtr(x):
    """The probability of less than x in the normal distribution."""
    return _erfc(x * -math.sqrt(0.5)) * 0.5


def _log_ndtr(x):
    y = x * -math.sqrt(0.5)
    far = (_erfcx(y.abs()) * 0.5).log() - y * y
    far = x.equal(-math.inf).choose(-math.inf, far)
    return (x < -1.0).choose(far, (_erfc(-y) * -0.5).log1p())


# ---- Two arguments ----


def _hypot(x, other):
    """The larger one is factored out, so that squares neither overflow nor vanish. It is infinite if one is, even beside NaN."""
    a, b = x.abs(), other.abs()
    large, small = a.maximum(b), a.minimum(b)
    ratio = large.equal(0).choose(large, small / large)
    length = large * (ratio.square() + 1).sqrt()
    return (a.equal(math.inf) | b.equal(math.inf)).choose(math.inf, length)


def _atan2(x, other):
    """The angle of the point (other, x): of the quadrant with positive coordinates, then mirrored by their signs."""
    a, b = x.abs(), other.abs()
    zero = a.equal(0) & b.equal(b)
    ratio = (a.equal(math.inf) & b.equal(math.inf)).choose(1.0, zero.choose(0.0, a / b))
    angle = ratio.atan()
    angle = other.is_negative().choose(math.pi - angle, angle)
    return x.is_negative().choose(-angle, angle)


def _copysign(x, other):
    return other.is_negative().choose(-x.abs(), x.abs())


def _except_nan(kind):
    """fmax and fmin: the other operand where one is NaN."""

    def run(x, other):
        best = getattr(x, kind)(other)
        if not x.is_float:
            return best
        return x.equal(x).choose(other.equal(other).choose(best, x), other)

    return run


def _log_add_exp(base):
    """log(base^x + base^other), with the larger one factored out. The difference of equal infinities is NaN, so it is avoided."""

    def run(x, other):
        apart = x.equal(other).choose(0.0, (x - other).abs())
        scale = math.log(base)
        return x.maximum(other) + (apart * -scale).exp().log1p() * (1 / scale)

    return run


def _times_log(log):
    """x * log(other), which is 0 where x is 0, unless other is NaN."""

    def run(x, other):
        y = x.equal(0).choose(0.0, x * getattr(other, log)())
        return other.equal(other).choose(y, other)

    return run


def _is_close(x, other, rtol=1e-5, atol=1e-8, equal_nan=False):
    distance = (x - other).abs()
    near = ~(other.abs() * float(rtol) + float(atol) < distance) & (distance < math.inf)
    near = x.equal(other) | near
    return near | ~(x.equal(x) | other.equal(other)) if equal_nan else near


def _float_power(b, x, exponent, out):
    return b.layer("pow", b.value(x, "f64"), b.value(exponent, "f64"))


def _ldexp(b, x, other, out):
    return b.layer("mul", x, b.layer("pow", b.value(2.0), other))


def _shift(kind):
    def run(b, x, other, out):
        needs(b.dtype not in FLOATS, "shifts of floats")
        return b.layer(kind, b.value(x), b.value(other))

    return run


# ---- Counts and sums without NaN ----


def _count_nonzero(b, x, out, dim=None):
    is_set = b.cast(x, "bool")
    if x.rank == 0:
        return b.cast(is_set, "i64")
    return b.layer("sum", b.cast(is_set, "i64"), axes=all_axes(dim, x.rank))


def _sum_of_numbers(is_mean):
    """nansum and nanmean."""

    def run(b, x, out, dim=None, keepdim=False, dtype=None):
        needs(x.dtype in FLOATS, "a sum without NaN, of integers")
        names = {"axes": all_axes(dim, x.rank), "keepdim": bool(keepdim)} if x.rank else {}
        is_number = b.layer("equal", x, x)
        total = b.layer("sum", b.layer("where", is_number, x, b.value(0.0, x.dtype)), **names)
        if not is_mean:
            return total
        return b.layer("div", total, b.layer("sum", b.cast(is_number, x.dtype), **names))

    return run


def _layers(*kinds):
    """Rows of functions that are one layer: "acos" and PyTorch's other name "arccos"."""
    rows = {}
    for kind in kinds:
        other = kind.replace("a", "arc", 1) if kind[0] == "a" else kind
        names = " ".join(f"{name}.default" for name in {kind, other})
        rows[names] = formula(lambda x, kind=kind: getattr(x, kind)())
    return rows


TABLE = {
    **_layers("acos", "asin", "atan", "acosh", "asinh", "atanh", "sinh", "cosh"),
    "log1p.default special_log1p.default": formula(lambda x: x.log1p()),
    "expm1.default special_expm1.default": formula(lambda x: x.expm1()),
    "frac.default": formula(lambda x: x - x.trunc()),
    "sinc.default special_sinc.default": formula(_sinc),
    "logit.default special_logit.default": formula(_logit),
    "special_expit.default": formula(lambda x: x.sigmoid()),
    "special_entr.default": formula(_entropy),
    "erfc.default special_erfc.default": formula(_erfc),
    "special_erfcx.default": formula(_erfcx),
    "special_ndtr.default": formula(_ndtr),
    "special_log_ndtr.default": formula(_log_ndtr),
    "deg2rad.default": formula(lambda x: x * (math.pi / 180)),
    "rad2deg.default": formula(lambda x: x * (180 / math.pi)),
    "angle.default": formula(_angle),
    "signbit.default": formula(lambda x: x.is_negative(), floats=False),
    "isfinite.default": formula(_is_finite, floats=False),
    "isposinf.default": formula(lambda x: x.equal(math.inf)),
    "isneginf.default": formula(lambda x: x.equal(-math.inf)),
    "nan_to_num.default": formula(_nan_to_num, floats=False),
    "round.decimals special_round.default": formula(_round, floats=False),
    "hypot.default": formula(_hypot),
    "atan2.default arctan2.default": formula(_atan2),
    "copysign.Tensor copysign.Scalar": formula(_copysign),
    "fmax.default": formula(_except_nan("maximum"), floats=False),
    "fmin.default": formula(_except_nan("minimum"), floats=False),
    "heaviside.default": formula(
        lambda x, values: x.equal(0).choose(values, (x > 0).choose(1.0, 0.0))
    ),
    "logaddexp.default": formula(_log_add_exp(math.e)),
    "logaddexp2.default": formula(_log_add_exp(2)),
    "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self special_xlogy.default": formula(
        _times_log("log")
    ),
    "special_xlog1py.default special_xlog1py.other_scalar special_xlog1py.self_scalar": formula(
        _times_log("log1p")
    ),
    "isclose.default": formula(_is_close),
    "float_power.Tensor_Tensor float_power.Tensor_Scalar float_power.Scalar": _float_power,
    "ldexp.Tensor": _ldexp,
    "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar": _shift("shift_left"),
    "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar": _shift("shift_right"),
    "__lshift__.Tensor __lshift__.Scalar": _shift("shift_left"),
    "__rshift__.Tensor __rshift__.Scalar": _shift("shift_right"),
    "count_nonzero.default count_nonzero.dim_IntList": _count_nonzero,
    "nansum.default": _sum_of_numbers(False),
    "nanmean.default": _sum_of_numbers(True),
}

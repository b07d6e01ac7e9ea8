"""A part of the table of ATen ops (ops.py): dropouts, and attention with dropout.

The numbers are those of the random layer (builder.random), so a call's masks depend on its seed and on positions only.
"""

import math

from sol.pytorch.builder import needs

# The value to which selu tends for low arguments, negated: alpha dropout sets values to it, and keeps the mean and the variance.
SELU_LIMIT = 1.7580993408473766


def _kept(b, p, shape):
    """Bools, of which each is false with the probability p."""
    return b.layer("less_equal", float(p), b.random(shape))


def _choose(b, kept, x, if_kept, if_not):
    return b.layer("where", kept, b.value(if_kept, x.dtype), b.value(if_not, x.dtype))


def _of_features(x):
    """The shape of a mask that drops features of samples as a whole: [samples, features, ...]."""
    needs(x.rank > 1, "a dropout of features without samples")
    return (*x.shape[:2], *[1] * (x.rank - 2))


def _drop(b, x, p, kept):
    return b.layer("mul", x, _choose(b, kept, x, 1 / (1 - p) if p < 1 else 0.0, 0.0))


def dropout(b, x, p, train, out=None):
    """x * mask, whose elements are 0 with the probability p, else 1 / (1 - p)."""
    return _drop(b, x, p, _kept(b, p, x.shape)) if train and p else x


def _feature_dropout(b, x, p, train, out=None):
    return _drop(b, x, p, _kept(b, p, _of_features(x))) if train and p else x


def _native_dropout(b, x, p, train, out=None):
    needs(train is not False, "native_dropout that is off")
    kept = _kept(b, p, x.shape)
    return _drop(b, x, p, kept), kept


def _bernoulli(b, x, p, generator=None, out=None):
    """1 with the probability p, else 0: what a functional form has of a dropout in place."""
    needs(generator is None, "a generator of its own")
    return b.cast(_kept(b, 1 - p, x.shape), b.dtype)


def _alpha(b, x, p, shape):
    """scale * (x or -SELU_LIMIT) + the shift that keeps the mean."""
    if p == 1:
        return b.layer("mul", x, b.value(0.0, x.dtype))
    scale = 1 / math.sqrt((SELU_LIMIT**2 * p + 1) * (1 - p))
    shift = scale * SELU_LIMIT * p
    kept = _kept(b, p, shape)
    y = b.layer("mul", x, _choose(b, kept, x, scale, 0.0))
    return b.layer("add", y, _choose(b, kept, x, shift, shift - scale * SELU_LIMIT))


def _alpha_dropout(b, x, p, train, out=None):
    return _alpha(b, x, p, x.shape) if train and p else x


def _feature_alpha_dropout(b, x, p, train, out=None):
    return _alpha(b, x, p, _of_features(x)) if train and p else x


# ---- Attention ----


def _open_rows(b, mask):
    """Returns (mask, bools or None): no row of the mask hides all, and which rows did not do so before."""
    last = [mask.rank - 1]
    most = b.layer("reduce_max", mask, axes=last, keepdim=True)
    if mask.dtype == "bool":
        return b.layer("bit_or", mask, b.layer("bit_not", most)), most
    seen = b.layer("less", -math.inf, most)
    return b.layer("where", seen, mask, b.value(0.0, mask.dtype)), seen


def _hide(b, scores, mask):
    if mask.dtype == "bool":
        return b.layer("where", mask, scores, b.value(-math.inf, scores.dtype))
    return b.layer("add", scores, mask)


def _repeat_heads(b, x, n):
    """[.., groups, rows, d] with each head once for all heads of its group: [.., n, rows, d]."""
    if x.rank < 3 or x.shape[-3] in (1, n):
        return x
    *lead, groups, rows, d = x.shape
    parts = b.reshape(x, (*lead, groups, 1, rows, d))
    parts = b.layer("expand", parts, shape=[*lead, groups, n // groups, rows, d])
    return b.reshape(parts, (*lead, n, rows, d))


def drop_attention(b, query, key, value, mask, p, is_causal, scale):
    """dropout(softmax(query key^T * scale, masked)) value. A row that the mask hides as a whole gives 0, and has gradients of 0."""
    key, value = (
        _repeat_heads(b, x, query.shape[-3]) if query.rank > 2 else x for x in (key, value)
    )
    turned = [*range(key.rank - 2), key.rank - 1, key.rank - 2]
    scores = b.layer("matmul", query, b.layer("permute", key, axes=turned))
    scores, seen = b.layer("mul", scores, scale), None
    if mask is not None:
        mask, seen = _open_rows(b, mask)
        scores = _hide(b, scores, mask)
    if is_causal:
        scores = b.layer("tril", scores, value=-math.inf)
    weights = b.layer("softmax", scores, axis=scores.rank - 1)
    y = b.layer("matmul", _drop(b, weights, p, _kept(b, p, weights.shape)), value)
    return y if seen is None else b.layer("where", seen, y, b.value(0.0, y.dtype))


TABLE = {
    "dropout.default": dropout,
    "native_dropout.default": _native_dropout,
    "bernoulli.p": _bernoulli,
    "feature_dropout.default": _feature_dropout,
    "alpha_dropout.default": _alpha_dropout,
    "feature_alpha_dropout.default": _feature_alpha_dropout,
}

"""A part of the table of ATen ops (ops.py): losses.

A loss is a formula (ops_math.py) of each value, and a reduction. ``reduction``: 0 none, 1 mean, 2 sum.
"""

import math

from sol.pytorch.builder import Value, needs
from sol.pytorch.ops_index import gather
from sol.pytorch.ops_math import FLOATS, Term

NONE, MEAN, SUM = range(3)


def _reduce(y, reduction):
    if reduction == NONE or not y.value.rank:
        return y
    return y.mean() if reduction == MEAN else y.sum()


def _loss(function):
    """Returns a function of the table from one of Terms, which computes the loss of each value."""

    def run(b, out, reduction=MEAN, **arguments):
        terms = {name: Term(b, x) if isinstance(x, Value) else x for name, x in arguments.items()}
        return _reduce(function(**terms), reduction).value

    return run


# ---- Differences ----


def _huber(x, target, delta=1.0):
    distance = (x - target).abs()
    return (distance < delta).choose(
        distance.square() * 0.5, (distance - 0.5 * delta) * float(delta)
    )


def _smooth_l1(x, target, beta=1.0):
    distance = (x - target).abs()
    if beta == 0:
        return distance
    return (distance < beta).choose(distance.square() * (0.5 / beta), distance - 0.5 * beta)


# ---- Probabilities ----


def _weighted(y, weight):
    return y if weight is None else y * weight


def _with_logits(x, target, weight=None, pos_weight=None):
    softplus = (-x).softplus()  # -log(sigmoid(x))
    if pos_weight is not None:
        softplus = softplus * ((pos_weight - 1) * target + 1)
    return _weighted((1 - target) * x + softplus, weight)


def _kl_div(b, x, target, out, reduction=MEAN, log_target=False):
    x, target = Term(b, x), Term(b, target)
    if log_target:
        return _reduce(target.exp() * (target - x), reduction).value
    entropy = target.equal(0).choose(0.0, target * target.log())
    return _reduce(entropy - target * x, reduction).value


def _poisson(b, x, target, log_input, full, eps, reduction, out):
    x, target = Term(b, x), Term(b, target)
    y = x.exp() - target * x if log_input else x - target * (x + float(eps)).log()
    if full:  # Stirling's formula of log(target!), for numbers above 1
        stirling = target * target.log() - target + (target * (2 * math.pi)).log() * 0.5
        y = y + (target > 1).choose(stirling, 0.0)
    return _reduce(y, reduction).value


# ---- Margins ----


def _soft_margin(x, target):
    return (-target * x).softplus()


def _hinge_embedding(x, target, margin=1.0):
    """x where the target is 1, the hinge where it is -1, their sum elsewhere."""
    hinge = (float(margin) - x).relu()
    return target.equal(1).choose(0.0, hinge) + target.equal(-1).choose(0.0, x)


def _margin_ranking(input1, input2, target, margin=0.0):
    return (-target * (input1 - input2) + float(margin)).relu()


def _cosine_embedding(input1, input2, target, margin=0.0):
    axis = input1.value.rank - 1
    needs(axis >= 0 and input1.value.rank == input2.value.rank, "a cosine of other ranks")

    def dot(x, y):
        return (x * y).sum(axes=[axis])

    square = (dot(input1, input1) + 1e-12) * (dot(input2, input2) + 1e-12)
    cosine = dot(input1, input2) / square.sqrt()
    near = target.equal(1).choose(1 - cosine, 0.0)
    return near + target.equal(-1).choose((cosine - float(margin)).relu(), 0.0)


def _triplet_margin(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False):
    def distance(x, y):
        apart = x - y + float(eps)
        return apart.norm(p=float(p), axes=[apart.value.rank - 1])

    far = distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    return (distance(anchor, positive) - far + float(margin)).relu()


# ---- Classes ----


def _of_classes(function):
    """Returns the function of a loss whose targets may be numbers of classes: all floats get the type of the result, as autocast needs."""

    def run(b, x, target, out, weight=None, **options):
        x, target, weight = (
            b.cast(t, b.dtype) if t is not None and t.dtype in FLOATS else t
            for t in (x, target, weight)
        )
        return function(b, x, target, out, weight=weight, **options)

    return run


def _class_axis(x):
    return 0 if x.rank == 1 else 1


def _of_class(b, x, target):
    """Returns x[n, target[n, ..], ..]: x without the dim of classes."""
    axis = _class_axis(x)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    y = gather(b, x, axis, b.reshape(target, shape), shape)
    return b.reshape(y, target.shape)


def _class_weights(b, weight, target):
    """Returns weight[target]."""
    flat = b.reshape(target, (math.prod(target.shape),))
    return b.reshape(gather(b, weight, 0, flat, flat.shape), target.shape)


def _negative_log_likelihood(b, x, target, out, weight=None, reduction=MEAN, ignore_index=-100):
    """Targets that are ignored read class 0, and count 0. A mean is divided by the sum of the weights that count."""
    needs(target.dtype == "i64" and x.rank > 0, f"classes of type {target.dtype}")
    counts = b.layer("bit_not", b.layer("equal", target, ignore_index))
    target = b.layer("where", counts, target, b.value(0, "i64"))
    zero = b.value(0.0, x.dtype)
    if weight is None:
        factor = b.cast(counts, x.dtype)
    else:
        factor = b.layer("where", counts, _class_weights(b, weight, target), zero)
    y = b.layer("neg", _of_class(b, x, target))
    y = y if weight is None else b.layer("mul", y, factor)
    y = b.layer("where", counts, y, zero)
    if reduction == NONE:
        return y
    total = b.layer("sum", y) if y.rank else y
    if reduction == SUM:
        return total
    return b.layer("div", total, b.layer("sum", factor) if factor.rank else factor)


def _smoothed(b, x, target, weight, reduction, ignore_index):
    """The loss of all classes alike, as label smoothing adds it."""
    axis = _class_axis(x)
    y = b.layer("neg", x)
    if weight is not None:
        y = b.layer("mul", y, b.reshape(weight, (*weight.shape, *[1] * (x.rank - 1 - axis))))
    y = b.layer("sum", y, axes=[axis])
    counts = b.layer("bit_not", b.layer("equal", target, ignore_index))
    y = b.layer("where", counts, y, b.value(0.0, x.dtype))
    if reduction == NONE:
        return y
    total = b.layer("sum", y) if y.rank else y
    if reduction == SUM:
        return total
    if weight is None:
        count = b.cast(counts, x.dtype)
    else:
        known = b.layer("where", counts, target, b.value(0, "i64"))
        known = _class_weights(b, weight, known)
        count = b.layer("where", counts, known, b.value(0.0, x.dtype))
    return b.layer("div", total, b.layer("sum", count) if count.rank else count)


def _cross_entropy(
    b, x, target, out, weight=None, reduction=MEAN, ignore_index=-100, label_smoothing=0.0
):
    """Classes are numbers, or a probability for each."""
    axis = _class_axis(x)
    n = x.shape[axis]
    needs(isinstance(n, int), "an unknown number of classes")
    y = b.layer("log_softmax", x, axis=axis)
    if target.dtype != "i64":
        return _of_probabilities(b, y, target, weight, reduction, label_smoothing)
    loss = _negative_log_likelihood(b, y, target, out, weight, reduction, ignore_index)
    if not label_smoothing:
        return loss
    even = _smoothed(b, y, target, weight, reduction, ignore_index)
    parts = ((loss, 1 - label_smoothing), (even, label_smoothing / n))
    return b.layer("add", *(b.layer("mul", *part) for part in parts))


def _of_probabilities(b, y, target, weight, reduction, label_smoothing):
    """A mean is divided by the number of samples."""
    axis = _class_axis(y)
    n = y.shape[axis]
    if label_smoothing:
        target = b.layer("add", b.layer("mul", target, 1 - label_smoothing), label_smoothing / n)
    y = b.layer("mul", y, target)
    if weight is not None:
        y = b.layer("mul", y, b.reshape(weight, (*weight.shape, *[1] * (y.rank - 1 - axis))))
    y = b.layer("neg", b.layer("sum", y, axes=[axis]))
    return _reduce(Term(b, y), reduction).value


def _multi_margin(b, x, target, out, p=1, margin=1.0, weight=None, reduction=MEAN):
    """The hinge of all classes but the target's, which counts `margin` ** p itself."""
    rows, classes = (1, math.prod(x.shape)) if x.rank < 2 else x.shape
    x, target = b.reshape(x, (rows, classes)), b.reshape(target, (rows,))
    own = b.reshape(_of_class(b, x, target), (rows, 1))
    y = b.layer("relu", b.layer("add", b.layer("sub", x, own), float(margin)))
    y = b.layer("square", y) if p == 2 else y
    if weight is not None:
        factor = b.reshape(_class_weights(b, weight, target), (rows, 1))
        y = b.layer("mul", y, factor)
    line = b.layer("arange", shape=[classes], dtype="i64")
    is_own = b.layer("equal", b.reshape(target, (rows, 1)), line)
    y = b.layer("mean", b.layer("where", is_own, b.value(0.0, x.dtype), y), axes=[1])
    return b.reshape(_reduce(Term(b, y), reduction).value, out)


TABLE = {
    "mse_loss.default": _loss(lambda x, target: (x - target).square()),
    "l1_loss.default": _loss(lambda x, target: (x - target).abs()),
    "huber_loss.default": _loss(_huber),
    "smooth_l1_loss.default": _loss(_smooth_l1),
    "binary_cross_entropy_with_logits.default": _loss(_with_logits),
    "kl_div.default": _kl_div,
    "poisson_nll_loss.default": _poisson,
    "soft_margin_loss.default": _loss(_soft_margin),
    "hinge_embedding_loss.default": _loss(_hinge_embedding),
    "margin_ranking_loss.default": _loss(_margin_ranking),
    "cosine_embedding_loss.default": _loss(_cosine_embedding),
    "triplet_margin_loss.default": _loss(_triplet_margin),
    "nll_loss_nd.default nll_loss.default nll_loss2d.default": _of_classes(
        _negative_log_likelihood
    ),
    "cross_entropy_loss.default": _of_classes(_cross_entropy),
    "multi_margin_loss.default": _of_classes(_multi_margin),
}

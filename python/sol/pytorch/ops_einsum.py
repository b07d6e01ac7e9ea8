"""The ATen op einsum: one operand is summed and permuted, two become one batched matrix product.

The table and its conventions are those of ops.py.
"""

import math

from sol.pytorch.builder import needs


def _take(b, x, labels, order):
    """Sums over the labels that are not in ``order``, and permutes the others into this order."""
    gone = [axis for axis, label in enumerate(labels) if label not in order]
    if gone:
        x = b.layer("sum", x, axes=gone)
    labels = [label for label in labels if label in order]
    axes = [labels.index(label) for label in order]
    return x if axes == sorted(axes) else b.layer("permute", x, axes=axes)


def _multiply(b, x, left, y, right, result):
    """The labels of a product: of both operands and the result, of both but not the result, and of one only."""
    sizes = {**dict(zip(right, y.shape)), **dict(zip(left, x.shape))}
    both = [label for label in left if label in right and label in result]
    inner = [label for label in left if label in right and label not in result]
    rows = [label for label in left if label not in right and label in result]
    columns = [label for label in right if label not in left and label in result]

    def product(labels):
        return math.prod(sizes[label] for label in labels)

    batch = [sizes[label] for label in both]
    x = b.reshape(_take(b, x, left, both + rows + inner), (*batch, product(rows), product(inner)))
    y = b.reshape(
        _take(b, y, right, both + inner + columns), (*batch, product(inner), product(columns))
    )
    order = both + rows + columns
    z = b.reshape(b.layer("matmul", x, y), tuple(sizes[label] for label in order))
    return _take(b, z, order, result)


def _einsum(b, equation, tensors, out, path=None):
    text = equation.replace(" ", "")
    needs("..." not in text and "->" in text, f"einsum of {equation}")
    given, result = text.split("->")
    labels = given.split(",")
    needs(len(labels) == len(tensors) <= 2, "einsum of more than two tensors")
    for x, letters in zip(tensors, labels):
        needs(len(set(letters)) == len(letters) == x.rank, f"einsum of {equation}")
    if len(tensors) == 1:
        return _take(b, tensors[0], labels[0], list(result))
    (x, left), (y, right) = zip(tensors, labels)
    for label, size in zip(left, x.shape):
        needs(label not in right or y.shape[right.index(label)] == size, "einsum that broadcasts")
    return _multiply(b, x, left, y, right, list(result))


TABLE = {"einsum.default": _einsum}

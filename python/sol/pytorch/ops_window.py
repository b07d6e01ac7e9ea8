"""A part of the table of ATen ops (ops.py): convolutions whose weight is computed from the input.

The layer conv needs a constant weight, which is packed once. Here the windows of the image become columns of a matrix, and the
convolution a product with the weight. The table and its conventions are those of ops.py.
"""

import math

from sol.pytorch.builder import needs
from sol.pytorch.ops_move import im2col


def conv(b, x, weight, bias, stride, pad, dilation, groups):
    """x [n,c,h,w], weight [k,c/groups,r,s]. ``pad``: top, left, bottom, right."""
    if any(pad):
        x = b.layer("pad", x, pad=list(pad))
    n, c, k, kernel = *x.shape[:2], weight.shape[0], weight.shape[2:]
    size = [
        (whole - d * (r - 1) - 1) // s + 1
        for whole, d, r, s in zip(x.shape[2:], dilation, kernel, stride)
    ]
    depth, pixels = c * math.prod(kernel), size[0] * size[1]
    columns = im2col(b, x, kernel, dilation, [0, 0], stride, (n, depth, pixels))
    columns = b.reshape(columns, (n, groups, depth // groups, pixels))
    matrix = b.reshape(weight, (groups, k // groups, depth // groups))
    y = b.reshape(b.layer("matmul", matrix, columns), (n, k, *size))
    return y if bias is None else b.layer("add", y, b.reshape(bias, (k, 1, 1)))


def conv_transpose(b, x, weight, bias, stride, padding, output_padding, groups, dilation):
    """A convolution by the reversed kernel: of the image with zeros between its pixels. weight [c,k/groups,r,s]."""
    c, k, *kernel = weight.shape
    for axis in (2, 3):
        x = _insert_zeros(b, x, axis, stride[axis - 2])
    before = [d * (r - 1) - p for d, r, p in zip(dilation, kernel, padding)]
    behind = [n + extra for n, extra in zip(before, output_padding)]
    needs(min(before + behind) >= 0, "a padding that is larger than the kernel")
    for axis, size in ((2, kernel[0]), (3, kernel[1])):
        if size > 1:
            weight = b.layer("slice", weight, axis=axis, start=size - 1, step=-1, shape=[size])
    weight = b.reshape(weight, (groups, c // groups, k, *kernel))
    weight = b.layer("permute", weight, axes=[0, 2, 1, 3, 4])
    weight = b.reshape(weight, (groups * k, c // groups, *kernel))
    return conv(b, x, weight, bias, [1, 1], before + behind, dilation, groups)


def _insert_zeros(b, x, axis, stride):
    """Puts stride - 1 zeros between the values along an axis: pads each of them with what follows it."""
    if stride == 1:
        return x
    shape, size = x.shape, x.shape[axis]
    inner = math.prod(shape[axis + 1 :])
    y = b.layer(
        "pad", b.reshape(x, (*shape[:axis], size, inner)), pad=[0, 0, 0, (stride - 1) * inner]
    )
    y = b.reshape(y, (*shape[:axis], size * stride, *shape[axis + 1 :]))
    whole = (size - 1) * stride + 1
    return b.layer("slice", y, axis=axis, start=0, step=1, shape=[whole])

"""A part of the table of ATen ops (ops.py): grid_sampler, which reads images and volumes at computed points, between pixels.

The table of pixels [n * h * w, c] is read by the layer gather. A point outside of the image reads a pixel inside, and counts
0. So no index is out of range, whatever the grid. The table and its conventions are those of ops.py.
"""

import itertools
import math

from sol.pytorch.builder import needs
from sol.pytorch.ops_index import Rows
from sol.pytorch.ops_math import Term

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2
SHARPNESS = -0.75  # of PyTorch's cubic kernel


def _grid_sampler(b, x, grid, interpolation_mode, padding_mode, align_corners, out):
    """``grid``: [n, rows, columns, 2] has a point (x, y) per result, from -1 to 1; for volumes [n, .., 3] points (x, y, z)."""
    n, c, *sizes = x.shape
    needs(all(isinstance(size, int) for size in sizes), "grid_sampler of an image of unknown size")
    last = x.rank - 1
    pixels = b.layer("permute", x, axes=[0, *range(2, x.rank), 1])
    image = _Image(b, b.reshape(pixels, (math.prod((n, *sizes)), c)), n, sizes)
    at = [
        _pixel(_part(b, grid, len(sizes) - 1 - i), size, align_corners)
        for i, size in enumerate(sizes)
    ]

    def pad(i, position):
        return _pad(position, sizes[i], padding_mode, align_corners)

    if interpolation_mode == BICUBIC:
        y = image.cubic(at, pad)
    else:
        at = [pad(i, position) for i, position in enumerate(at)]
        y = image.nearest(at) if interpolation_mode == NEAREST else image.linear(at)
    return b.layer("permute", y.value, axes=[0, last, *range(1, last)])


def _part(b, grid, i):
    part = b.layer("slice", grid, axis=grid.rank - 1, start=i, step=1, shape=[1])
    return Term(b, b.reshape(part, grid.shape[:-1]))


def _pixel(at, size, align_corners):
    """Turns a coordinate from -1 to 1 into one of pixels: the ends are the centres of pixels, or the edges of the image."""
    return (at + 1) * ((size - 1) / 2) if align_corners else ((at + 1) * size - 1) * 0.5


def _pad(at, size, padding_mode, align_corners):
    """Moves a point outside of the image to the border, or to its mirror image."""
    if padding_mode == ZEROS:
        return at
    if padding_mode == REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        at = _reflect(at, low, span) if span else at * 0.0
    return at.clamp(min=0.0, max=float(size - 1))


def _reflect(at, low, span):
    """Mirrors a point at both ends of the range from ``low`` on, as often as it takes."""
    distance = (at - low).abs()
    extra = distance.rem(float(span))
    is_odd = (distance / float(span)).floor().mod(2.0).equal(1.0)
    return is_odd.choose(span - extra, extra) + low


def _cubic_weights(t):
    """Of the four pixels around a point, which is ``t`` behind the second one."""
    a = SHARPNESS

    def near(d):
        return ((d * (a + 2) - (a + 3)) * d) * d + 1

    def far(d):
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


class _Image:
    """Images or volumes as a table of pixels, and how to read them at points: a Term per dim, rows before columns."""

    def __init__(self, b, table, n, sizes):
        self._b, self._table, self._n, self._sizes = b, table, n, sizes

    def nearest(self, at):
        return self._read([position.round() for position in at], None)

    def linear(self, at):
        """The sum of all pixels around the point. Each counts by its distance from the point, along each dim."""
        total = None
        first = [position.floor() for position in at]
        for corner in itertools.product((0, 1), repeat=len(at)):
            near = [position + step for position, step in zip(first, corner)]
            weight = None
            for position, pixel in zip(at, near):
                part = 1 - (position - pixel).abs()
                weight = part if weight is None else weight * part
            part = self._read(near, weight)
            total = part if total is None else total + part
        return total

    def cubic(self, at, pad):
        """The sum of 4 x 4 pixels. Each of them is padded on its own."""
        needs(len(at) == 2, "bicubic interpolation of volumes")
        first = [position.floor() for position in at]
        weights = [_cubic_weights(position - pixel) for position, pixel in zip(at, first)]
        total = None
        for i, j in itertools.product(range(4), repeat=2):
            near = [pad(d, first[d] + float(step - 1)) for d, step in enumerate((i, j))]
            part = self._read(near, weights[0][i] * weights[1][j])
            total = part if total is None else total + part
        return total

    def _read(self, at, weight):
        """Returns whole pixels times ``weight``; 0 outside of the image, whatever the pixel that is read instead."""
        inside = None
        for position, size in zip(at, self._sizes):
            for test in (position > -1, position < size):
                inside = test if inside is None else inside & test
        pixel = self._take(at)
        if weight is not None:
            pixel = pixel * self._beside_channels(weight)
        return self._beside_channels(inside).choose(pixel, 0.0)

    def _beside_channels(self, term):
        return Term(self._b, self._b.reshape(term.value, (*term.value.shape, 1)))

    def _take(self, at):
        b, rows, sizes = self._b, Rows(self._b), self._sizes
        rows.add_line(self._n, math.prod(sizes), (self._n, *[1] * len(sizes)))
        for i, (position, size) in enumerate(zip(at, sizes)):
            number = b.cast(position.value, "i64")
            number = b.layer("clamp", number, min=0.0, max=float(size - 1))
            rows.add(b.layer("mul", number, math.prod(sizes[i + 1 :])))
        return Term(b, rows.take(self._table))


TABLE = {
    "grid_sampler.default grid_sampler_2d.default grid_sampler_3d.default": _grid_sampler,
}

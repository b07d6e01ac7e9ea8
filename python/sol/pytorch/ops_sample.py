"""A part of the table of ATen ops (ops.py): grid_sampler, which reads images at computed points, between pixels.

The table of pixels [n * h * w, c] is read by the layer gather. A point outside of the image reads a pixel inside, and counts
0. So no index is out of range, whatever the grid. The table and its conventions are those of ops.py.
"""

import math

from sol.pytorch.builder import needs
from sol.pytorch.ops_index import Rows
from sol.pytorch.ops_math import Term

BILINEAR, NEAREST = 0, 1
ZEROS, BORDER = 0, 1


def _grid_sampler(b, x, grid, interpolation_mode, padding_mode, align_corners, out):
    """``grid``: [n, rows, columns, 2] has a point (x, y) per result, from -1 to 1. Rank 4 only."""
    needs(x.rank == 4, "grid_sampler of volumes")
    needs(interpolation_mode in (BILINEAR, NEAREST), "grid_sampler with mode=bicubic")
    needs(padding_mode in (ZEROS, BORDER), "grid_sampler with padding_mode=reflection")
    n, c, h, w = x.shape
    needs(isinstance(h, int) and isinstance(w, int), "grid_sampler of an image of unknown size")
    pixels = b.layer("permute", x, axes=[0, 2, 3, 1])
    image = _Image(b, b.reshape(pixels, (math.prod((n, h, w)), c)), n, h, w)
    at = [
        _pixel(_part(b, grid, i), size, align_corners, padding_mode) for i, size in ((1, h), (0, w))
    ]
    y = image.nearest(*at) if interpolation_mode == NEAREST else image.bilinear(*at)
    return b.layer("permute", y.value, axes=[0, 3, 1, 2])


def _part(b, grid, i):
    part = b.layer("slice", grid, axis=3, start=i, step=1, shape=[1])
    return Term(b, b.reshape(part, grid.shape[:3]))


def _pixel(at, size, align_corners, padding_mode):
    """Turns a coordinate from -1 to 1 into one of pixels: the ends are the centres of pixels, or the edges of the image."""
    y = (at + 1) * ((size - 1) / 2) if align_corners else ((at + 1) * size - 1) * 0.5
    return y.clamp(min=0.0, max=float(size - 1)) if padding_mode == BORDER else y


class _Image:
    """Images as a table of pixels, and how to read them at rows y and columns x."""

    def __init__(self, b, table, n, h, w):
        self._b, self._table, self._n, self._h, self._w = b, table, n, h, w

    def nearest(self, y, x):
        return self._read(y.round(), x.round(), None)

    def bilinear(self, y, x):
        """The sum of four pixels. Each counts by its distance from the point, along rows and columns."""
        total = None
        top, left = y.floor(), x.floor()
        for down in (0, 1):
            for right in (0, 1):
                row, column = top + down, left + right
                weight = (1 - (y - row).abs()) * (1 - (x - column).abs())
                part = self._read(row, column, weight)
                total = part if total is None else total + part
        return total

    def _read(self, row, column, weight):
        """Returns whole pixels times ``weight``; 0 outside of the image, whatever the pixel that is read instead."""
        inside = (row > -1) & (row < self._h) & (column > -1) & (column < self._w)
        pixel = self._take(row, column)
        if weight is not None:
            pixel = pixel * self._beside_channels(weight)
        return self._beside_channels(inside).choose(pixel, 0.0)

    def _beside_channels(self, term):
        return Term(self._b, self._b.reshape(term.value, (*term.value.shape, 1)))

    def _take(self, row, column):
        b, rows = self._b, Rows(self._b)
        rows.add_line(self._n, self._h * self._w, (self._n, 1, 1))
        for at, size, stride in ((row, self._h, self._w), (column, self._w, 1)):
            number = b.cast(at.value, "i64")
            number = b.layer("clamp", number, min=0.0, max=float(size - 1))
            rows.add(b.layer("mul", number, stride))
        return Term(b, rows.take(self._table))


TABLE = {"grid_sampler.default grid_sampler_2d.default": _grid_sampler}

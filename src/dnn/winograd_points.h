/*
 * Winograd's transforms of tiles, for the files *_kernel.c: between values of images and values at points.
 *
 *   F(4x4,3x3) has the points 0, +-a, +-b, inf in each dimension, with a = 2/3 and b = 3/2; F(2x2,3x3) 0, +-1, inf. winograd_kernel.c
 *   says where they come from. G is in winograd.c (make_g).
 */
#ifndef SOL_DNN_WINOGRAD_POINTS_H
#define SOL_DNN_WINOGRAD_POINTS_H

#include "dnn/simd.h"

enum { OUT_MAX = 4, IN_MAX = OUT_MAX + 2 };

/* ---- Tiles of a batch, whose images have rows x columns of them ---- */

/* Position of a tile: sample (`image`), tile row and tile column. */
struct place {
    int64_t image, row, column;
};

static struct place place_of(int64_t rows, int64_t columns, int64_t tile) {
    const int64_t in_image = rows * columns, rest = tile % in_image;
    return (struct place){tile / in_image, rest / columns, rest % columns};
}

/* Moves on to the next tile, without the divisions of place_of. */
static inline void place_step(int64_t rows, int64_t columns, struct place *place) {
    if (++place->column < columns) return;
    place->column = 0;
    if (++place->row < rows) return;
    place->row = 0;
    place->image++;
}

/* ---- From a patch of x: V = B^T d B ---- */

/*
 * v = B^T d for the points 0, a, -a, b, -b, inf. The row of B^T for point p has the coefficients of M(x)/(x - p), and for inf
 * those of M(x) = x(x^2 - a^2)(x^2 - b^2) = x^5 - s x^3 + x, as ab = 1. The rows for p and -p use the same even and odd
 * terms.
 */
INLINE void to_points4(const vec *d, vec *v) {
    const vec a = vec_set(2.0f / 3), b = vec_set(1.5f), a2 = vec_set(4.0f / 9), b2 = vec_set(2.25f);
    const vec s = vec_set(97.0f / 36);
    vec even_a = d[4] - b2 * d[2], odd_a = d[3] - b2 * d[1];
    vec even_b = d[4] - a2 * d[2], odd_b = d[3] - a2 * d[1];
    v[0] = (d[0] + d[4]) - s * d[2];
    v[1] = even_a + a * odd_a;
    v[2] = even_a - a * odd_a;
    v[3] = even_b + b * odd_b;
    v[4] = even_b - b * odd_b;
    v[5] = (d[1] + d[5]) - s * d[3];
}

/* The same for the points 0, 1, -1, inf, with M(x) = x^3 - x. The row of point 0 is negated here and in G (make_g). */
INLINE void to_points2(const vec *d, vec *v) {
    v[0] = d[0] - d[2];
    v[1] = d[2] + d[1];
    v[2] = d[2] - d[1];
    v[3] = d[3] - d[1];
}

INLINE void to_points(int out, const vec *d, vec *v) {
    if (out == 4) to_points4(d, v);
    else to_points2(d, v);
}

/* V of one tile and channel block: transforms the columns of its patch of x, then the rows. `row`: floats between rows of x. */
INLINE void transform_patch(int out, const float *x, int64_t row, float *v, int64_t v_point) {
    const int in = out + 2;
    vec half[IN_MAX * IN_MAX], d[IN_MAX], p[IN_MAX];
    UNROLL
    for (int j = 0; j < in; j++) {
        UNROLL
        for (int i = 0; i < in; i++) d[i] = vec_load(x + i * row + j * LANES);
        to_points(out, d, p);
        UNROLL
        for (int i = 0; i < in; i++) half[i * in + j] = p[i];
    }
    UNROLL
    for (int i = 0; i < in; i++) {
        to_points(out, half + i * in, p);
        UNROLL
        for (int j = 0; j < in; j++) vec_store(v + (i * in + j) * v_point, p[j]);
    }
}

/* ---- To a tile of y: Y = A^T M A ---- */

/*
 * y = A^T m. A^T has the powers of the points. The columns of +-a are divided by a, those of +-b by b (G contains these
 * factors), so that the row of first powers needs no multiplication. 1/a = b.
 */
INLINE void from_points4(const vec *m, vec *y) {
    const vec a = vec_set(2.0f / 3), b = vec_set(1.5f), a2 = vec_set(4.0f / 9), b2 = vec_set(2.25f);
    vec sum_a = m[1] + m[2], difference_a = m[1] - m[2];
    vec sum_b = m[3] + m[4], difference_b = m[3] - m[4];
    y[0] = (m[0] + b * sum_a) + a * sum_b;
    y[1] = difference_a + difference_b;
    y[2] = a * sum_a + b * sum_b;
    y[3] = (m[5] + a2 * difference_a) + b2 * difference_b;
}

INLINE void from_points2(const vec *m, vec *y) {
    y[0] = m[0] + (m[1] + m[2]);
    y[1] = m[3] + (m[1] - m[2]);
}

INLINE void from_points(int out, const vec *m, vec *y) {
    if (out == 4) from_points4(m, y);
    else from_points2(m, y);
}

#endif

/*
 * For product_kernel.c: vectors that are not full, and copies of matrices into dense blocks, transposed in registers if need be.
 */
#ifndef SOL_DNN_PRODUCT_COPY_H
#define SOL_DNN_PRODUCT_COPY_H

#include "dnn/simd.h"

/* The first n < LANES values; the others are zero. */
static inline vec load_some(const float *at, int64_t n) {
#if LANES == 16 && defined __AVX512F__
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), at);
#else
    vec v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = at[i];
    return v;
#endif
}

static inline void store_some(float *at, vec v, int64_t n) {
#if LANES == 16 && defined __AVX512F__
    _mm512_mask_storeu_ps(at, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    for (int64_t i = 0; i < n; i++) at[i] = v[i];
#endif
}

/* ---- Transposing ---- */

/*
 * Lane l of *a and of *b: of lanes whose number has bit `bit`, those of *a change places with the others of *b. After this with all
 * bits, for all pairs of rows whose numbers differ in that bit, the LANES rows are transposed.
 */
INLINE void exchange(int bit, vec *a, vec *b) {
    ivec low, high;
    UNROLL
    for (int l = 0; l < LANES; l++) {
        low[l] = l & bit ? LANES + l - bit : l;
        high[l] = l & bit ? LANES + l : l + bit;
    }
#ifdef __aarch64__
    typedef uint8_t bytes_of __attribute__((vector_size(4 * LANES), may_alias));
    typedef bytes_of bytes;
    const bytes low_bytes = (bytes)(low * 0x04040404 + 0x03020100);
    const bytes high_bytes = (bytes)(high * 0x04040404 + 0x03020100);
    const vec v = (vec)__builtin_shuffle((bytes)*a, (bytes)*b, low_bytes);
    *b = (vec)__builtin_shuffle((bytes)*a, (bytes)*b, high_bytes);
#else
    const vec v = __builtin_shuffle(*a, *b, low);
    *b = __builtin_shuffle(*a, *b, high);
#endif
    *a = v;
}

/* Transposes v: lane j of v[i] and lane i of v[j] change places. */
INLINE void transpose(vec *v) {
    UNROLL
    for (int bit = 1; bit < LANES; bit *= 2) {
        UNROLL
        for (int i = 0; i < LANES; i++)
            if (!(i & bit)) exchange(bit, &v[i], &v[i + bit]);
    }
}

/* Writes n_rows <= LANES rows of whole vectors: row i is lane i of the n_columns <= LANES columns, `column` floats apart, whose rows
 * are neighbours; columns behind the last one are zero. */
static inline void copy_transposed(const float *from, int64_t column, int64_t n_rows,
                                   int64_t n_columns, float *to, int64_t stride) {
    vec v[LANES];
    if (n_rows == LANES && n_columns == LANES) {
        UNROLL
        for (int j = 0; j < LANES; j++) v[j] = vec_load(from + j * column);
    } else {
        for (int64_t j = 0; j < LANES; j++)
            v[j] = j >= n_columns    ? (vec){0}
                   : n_rows == LANES ? vec_load(from + j * column)
                                     : load_some(from + j * column, n_rows);
    }
    transpose(v);
    if (n_rows == LANES) {
        UNROLL
        for (int i = 0; i < LANES; i++) vec_store(to + i * stride, v[i]);
    } else {
        for (int64_t i = 0; i < n_rows; i++) vec_store(to + i * stride, v[i]);
    }
}

/* ---- Any strides ---- */

/* Copies one row of neighbouring values, and zeros up to `width`. */
static inline void copy_row(const float *from, int64_t n, float *to, int64_t width) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vec_store(to + i, vec_load(from + i));
    for (; i < n; i++) to[i] = from[i];
    for (; i < width; i++) to[i] = 0;
}

/*
 * Copies a matrix of n_rows x n_columns with the strides `row` and `column` to rows that are `stride` floats apart, with zeros behind
 * the last column up to `width`. The rows have room for whole vectors, which are written if row is 1.
 */
static void product_copy(const float *from, int64_t row, int64_t column, int64_t n_rows,
                         int64_t n_columns, float *to, int64_t stride, int64_t width) {
    if (column == 1 || row != 1) {
        for (int64_t i = 0; i < n_rows; i++, from += row, to += stride) {
            if (column == 1) {
                copy_row(from, n_columns, to, width);
                continue;
            }
            for (int64_t j = 0; j < n_columns; j++) to[j] = from[j * column];
            for (int64_t j = n_columns; j < width; j++) to[j] = 0;
        }
        return;
    }
    for (int64_t i = 0; i < n_rows; i += LANES)
        for (int64_t j = 0; j < width; j += LANES)
            copy_transposed(from + i + j * column, column, min_i64(LANES, n_rows - i),
                            min_i64(LANES, n_columns - j), to + i * stride + j, stride);
}

#endif

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

/* The lanes of two vectors, those of the second one counted from LANES on, in which they are after an exchange (below). Constants, as
 * the compiler would compute such vectors lane by lane. */
#define LOW(bit, l) ((l) & (bit) ? LANES + (l) - (bit) : (l))
#define HIGH(bit, l) ((l) & (bit) ? LANES + (l) : (l) + (bit))
#define LANES_4(X, bit, l) X(bit, l), X(bit, l + 1), X(bit, l + 2), X(bit, l + 3)
#define LANES_8(X, bit, l) LANES_4(X, bit, l), LANES_4(X, bit, l + 4)
#define LANES_16(X, bit, l) LANES_8(X, bit, l), LANES_8(X, bit, l + 8)
#if LANES == 16
#define ALL_LANES(X, bit) ((ivec){LANES_16(X, bit, 0)})
#elif LANES == 8
#define ALL_LANES(X, bit) ((ivec){LANES_8(X, bit, 0)})
#else
#define ALL_LANES(X, bit) ((ivec){LANES_4(X, bit, 0)})
#endif

INLINE vec pick_lanes(vec a, vec b, ivec lanes) {
#ifdef __aarch64__
    return (vec)__builtin_shuffle((bytes)a, (bytes)b, (bytes)(lanes * 0x04040404 + 0x03020100));
#else
    return __builtin_shuffle(a, b, lanes);
#endif
}

/*
 * Of the lanes whose number has this bit, those of *a change places with the lanes of *b that lack it. After this with each bit, for
 * all pairs of rows whose numbers differ in the bit, LANES rows are transposed.
 */
#define EXCHANGE(bit, a, b)                                         \
    do {                                                            \
        const vec low = pick_lanes(*(a), *(b), ALL_LANES(LOW, bit)); \
        *(b) = pick_lanes(*(a), *(b), ALL_LANES(HIGH, bit));        \
        *(a) = low;                                                 \
    } while (0)
#define EXCHANGE_ALL(bit, v)                \
    UNROLL                                  \
    for (int i = 0; i < LANES; i++)         \
        if (!(i & (bit))) EXCHANGE(bit, &(v)[i], &(v)[(i + (bit)) % LANES])

/* Lane j of v[i] and lane i of v[j] change places. */
INLINE void transpose(vec *v) {
    EXCHANGE_ALL(1, v);
    EXCHANGE_ALL(2, v);
#if LANES >= 8
    EXCHANGE_ALL(4, v);
#endif
#if LANES >= 16
    EXCHANGE_ALL(8, v);
#endif
}

/*
 * Writes n_rows <= LANES rows of whole vectors: row i is lane i of the n_columns <= LANES columns, `column` floats apart, whose rows
 * are neighbours; columns behind the last one are zero. All loops are unrolled, so that v stays in registers; where is_whole is a
 * constant, there are no branches.
 */
INLINE void copy_block(bool is_whole, const float *from, int64_t column, int64_t n_rows,
                       int64_t n_columns, float *to, int64_t stride) {
    vec v[LANES];
    UNROLL
    for (int j = 0; j < LANES; j++, from += column) {
        if (is_whole) v[j] = vec_load(from);
        else if (j >= n_columns) v[j] = (vec){0};
        else v[j] = n_rows == LANES ? vec_load(from) : load_some(from, n_rows);
    }
    transpose(v);
    UNROLL
    for (int i = 0; i < LANES; i++, to += stride)
        if (is_whole || i < n_rows) vec_store(to, v[i]);
}

/* These are functions of their own, as they need all registers. The first one copies whole blocks below each other. */
static __attribute__((noinline)) void copy_whole_blocks(const float *from, int64_t column,
                                                        int64_t n_rows, float *to, int64_t stride) {
    for (int64_t i = 0; i < n_rows; i += LANES)
        copy_block(true, from + i, column, LANES, LANES, to + i * stride, stride);
}

static __attribute__((noinline)) void copy_some_block(const float *from, int64_t column,
                                                      int64_t n_rows, int64_t n_columns, float *to,
                                                      int64_t stride) {
    copy_block(false, from, column, n_rows, n_columns, to, stride);
}

/* Copies n_columns <= LANES columns of neighbouring rows. */
static void copy_columns(const float *from, int64_t column, int64_t n_rows, int64_t n_columns,
                         float *to, int64_t stride) {
    const int64_t whole = n_columns == LANES ? n_rows / LANES * LANES : 0;
    copy_whole_blocks(from, column, whole, to, stride);
    for (int64_t i = whole; i < n_rows; i += LANES)
        copy_some_block(from + i, column, min_i64(LANES, n_rows - i), n_columns, to + i * stride,
                        stride);
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
    for (int64_t j = 0; j < width; j += LANES)
        copy_columns(from + j * column, column, n_rows, max_i64(0, min_i64(LANES, n_columns - j)),
                     to + j, stride);
}

#endif

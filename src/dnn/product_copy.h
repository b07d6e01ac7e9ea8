/*
 * For product_kernel.c: copies of matrices into dense blocks, transposed in registers if need be.
 */
#ifndef SOL_DNN_PRODUCT_COPY_H
#define SOL_DNN_PRODUCT_COPY_H

#include "dnn/simd_transpose.h"

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

/*
 * Products of the kernels of recurrent layers: a tile has a vector of sums per row and vector of units. Compiled once per instruction
 * set. This file is part of deployed libraries.
 */
#ifndef SOL_DNN_RECURRENT_PRODUCT_H
#define SOL_DNN_RECURRENT_PRODUCT_H

#include "dnn/simd.h"

/* ROWS * VECTORS sums must fit into the registers together with a value per row and a weight. */
#if REGISTERS == 32
#define ROWS 6
#else
#define ROWS 3
#endif
enum { VECTORS = 4 };

/* sum[i][v] = the products of the `inner` values of row i with vectors v, v + vectors, .. of the weight. Rows are prefetched, as other
 * threads have written parts of them in the step before. */
INLINE void multiply_tile(int rows, int vectors, int64_t inner, const float *weight,
                          const float *const row[ROWS], vec (*sum)[VECTORS]) {
    UNROLL
    for (int i = 0; i < rows; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = (vec){0};
    }
    for (int64_t k = 0; k < inner;) {
        const int64_t end = min_i64(k + LINE, inner);
        UNROLL
        for (int i = 0; i < rows; i++) __builtin_prefetch(row[i] + k + 3 * LINE);
        for (; k < end; k++, weight += vectors * LANES) {
            vec x[ROWS];
            UNROLL
            for (int i = 0; i < rows; i++) x[i] = vec_set(row[i][k]);
            UNROLL
            for (int v = 0; v < vectors; v++) {
                const vec w = vec_keep(vec_load(weight + v * LANES));
                UNROLL
                for (int i = 0; i < rows; i++) sum[i][v] += x[i] * w;
            }
        }
    }
}

#endif

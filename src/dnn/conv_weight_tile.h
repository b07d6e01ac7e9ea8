/*
 * The inner loop of gradients of convolutions' weights, for the files *_kernel.c.
 *
 * A tile is TILE_ROWS rows of up to TILE_VECTORS vectors: sums over pixels of products of a value of x, which is broadcast, and a vector of
 * dy. They stay in registers, with the vectors of dy and of x, so all loops over them are unrolled.
 */
#ifndef SOL_DNN_CONV_WEIGHT_TILE_H
#define SOL_DNN_CONV_WEIGHT_TILE_H

#include "dnn/simd.h"

#ifdef BY_LANE
enum { TILE_VECTORS = 4, TILE_ROWS = 4, TILE_STEP = LANES };
#elif REGISTERS == 32
enum { TILE_VECTORS = 2, TILE_ROWS = 8, TILE_STEP = 1 };
#else
enum { TILE_VECTORS = 2, TILE_ROWS = 4, TILE_STEP = 1 };
#endif

INLINE void clear_tile(int vectors, vec sum[TILE_ROWS][TILE_VECTORS]) {
    UNROLL
    for (int i = 0; i < TILE_ROWS; i++) UNROLL
    for (int v = 0; v < vectors; v++) sum[i][v] = (vec){0};
}

/* sum[row i][v] += x[pixel][row i] * dy[pixel][vector v], for the pixels [dy, end). Pixels of x are x_pixel floats apart, vectors of dy
 * `block`. offset: of each row in x; NULL: they are neighbours. Each pixel fetches the line at `next` into L2, which then moves by `step`. */
INLINE void add_pixels(int vectors, const float *x, int64_t x_pixel, const int64_t *offset,
                       const float *dy, const float *end, int64_t block, const float *next,
                       int64_t step, vec sum[TILE_ROWS][TILE_VECTORS]) {
    for (; dy < end; dy += LANES, x += x_pixel, next += step) {
        vec d[TILE_VECTORS], loaded = {0};
        __builtin_prefetch(next, 0, 2);
        UNROLL
        for (int v = 0; v < vectors; v++) d[v] = vec_load(dy + v * block);
        if (TILE_STEP > 1 && !offset) loaded = vec_load(x);
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++) {
            const vec value = vec_set(TILE_STEP > 1 && !offset ? loaded[i % LANES]
                                      : offset                 ? x[offset[i]]
                                                               : x[i]);
            UNROLL
            for (int v = 0; v < vectors; v++) sum[i][v] += value * d[v];
        }
    }
}

/* to[row][vector] += sum[row][vector] */
INLINE void add_tile(int vectors, float *to, vec sum[TILE_ROWS][TILE_VECTORS]) {
    UNROLL
    for (int i = 0; i < TILE_ROWS; i++) UNROLL
    for (int v = 0; v < vectors; v++) {
        float *at = to + (i * TILE_VECTORS + v) * LANES;
        vec_store(at, vec_load(at) + sum[i][v]);
    }
}

#endif

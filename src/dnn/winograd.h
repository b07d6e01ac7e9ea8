/*
 * Winograd convolution: what winograd.c (plan, cost, packing) and winograd_kernel.c (the work)
 * share.
 *
 * y is cut into tiles of out x out pixels; a tile is computed from `points` = (out+2)^2 products
 * per channel pair instead of 9*out^2. Tiles are numbered through the whole batch, so that small
 * images share weights.
 *
 *   packed U  [k pair][point][c][2*LANES]    transformed weights; a k pair is two channel blocks
 *   scratch V [point][c block][tile][LANES]  transformed input of one block of tiles
 *   scratch M [point][2][tile][LANES]        products of one k pair
 *
 * One task is (block of tiles, group of k pairs): it transforms its input, then for each of its k
 * pairs multiplies at all points and transforms back. All sums run over c in stored order whatever
 * the division into blocks and groups, hence the result is the same for every number of threads.
 */
#ifndef SOL_DNN_WINOGRAD_H
#define SOL_DNN_WINOGRAD_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum winograd_param {
    WINOGRAD_OUT,     /* pixels of y per tile and dimension: 4 or 2 */
    WINOGRAD_TILES_H, /* tiles per image */
    WINOGRAD_TILES_W,
    WINOGRAD_PAIRS,   /* of k blocks; the last one may be half empty */
    WINOGRAD_GROUPS,  /* of k pairs: how many tasks share a block of tiles */
    WINOGRAD_BLOCK,   /* most tiles in a block; sizes the scratch */
    WINOGRAD_V_POINT, /* floats between two points in V */
    WINOGRAD_M_POINT, /* ... and in M */
};

static inline int64_t winograd_tiles(const struct dnn_plan *plan, int64_t batch) {
    return batch * plan->param[WINOGRAD_TILES_H] * plan->param[WINOGRAD_TILES_W];
}

/* Blocks that the tiles of a batch are divided into. */
int64_t dnn_winograd_blocks(const struct dnn_plan *plan, int64_t batch);

#endif

/*
 * Winograd convolution F(4x4,3x3) and F(2x2,3x3): the data layouts that winograd.c (plan, cost),
 * winograd_pack.c (packing) and winograd_kernel.c (computation) share.
 *
 *   task = (block of tiles, group of k pairs):
 *       V = B^T x B, for all channels of the block's tiles; then for each k pair of the group:  M = V U  ->  y = A^T M A
 *
 *   tile    out x out pixels of y, computed from (out+2) x (out+2) pixels of x. At the bottom and right edge a tile may lie
 *           partly outside y; only the pixels inside are written.
 *   point   one of the (out+2)^2 positions of a transformed tile. Per pair of an input and an output channel a tile takes one
 *           product per point, instead of 9*out^2 products.
 *   k pair  two neighbouring channel blocks of y; the last pair may be one block
 *   block   consecutive tiles. Tiles are numbered across all samples of the batch, so a block, which reads the weights
 *           once, may hold several small samples.
 *
 * Dilation. A convolution with dilation d consists of d * d independent ones over every d-th row and column of x and y. Each of
 * them has tiles of its own: the rows of tiles are those of the first row phase (rows 0, d, 2d, .. of y), then those of the second one
 * (rows 1, d + 1, ..), and so on; columns of tiles alike. The pixels of a tile are d rows and columns apart, in x and in y.
 *
 *   packed U  [k pair][point][c][2*LANES]    transformed weights
 *   scratch V [point][c block][tile][LANES]  transformed input of one block of tiles
 *   scratch M [point][2][tile][LANES]        products of one k pair
 *
 * Invariant: each sum runs over c in stored order, for any division into blocks and groups. So the result has the same bits
 * for any number of threads.
 */
#ifndef SOL_DNN_WINOGRAD_H
#define SOL_DNN_WINOGRAD_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum winograd_param {
    WINOGRAD_OUT,     /* pixels of y per tile and dimension: 4 or 2 */
    WINOGRAD_TILES_H, /* tiles per sample, vertically and horizontally */
    WINOGRAD_TILES_W,
    WINOGRAD_PHASE_H, /* tiles per row phase and per column phase */
    WINOGRAD_PHASE_W,
    WINOGRAD_PAIRS,   /* k pairs; the last one may be half empty */
    WINOGRAD_GROUPS,  /* groups that the k pairs are divided into: tasks per block of tiles */
    WINOGRAD_BLOCK,   /* most tiles in a block; the scratch is sized for it */
    WINOGRAD_V_POINT, /* floats between two points in V */
    WINOGRAD_M_POINT, /* ... and in M */
    WINOGRAD_PART, /* channel blocks whose products are added up before they are added to those of others */
};

/* Points of a transformed tile. */
static inline int64_t winograd_points(const struct dnn_plan *plan) {
    return (plan->param[WINOGRAD_OUT] + 2) * (plan->param[WINOGRAD_OUT] + 2);
}

/* Tiles of a batch. */
static inline int64_t winograd_tiles(const struct dnn_plan *plan, int64_t batch) {
    return batch * plan->param[WINOGRAD_TILES_H] * plan->param[WINOGRAD_TILES_W];
}

/* Number of blocks that the tiles of a batch are divided into. */
int64_t dnn_winograd_blocks(const struct dnn_plan *plan, int64_t batch);

/* struct dnn_impl's function of this name. */
void dnn_winograd_pack(const struct dnn_plan *plan, const float *weight, float *packed,
                       int64_t task);

#endif

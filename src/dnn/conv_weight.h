/*
 * The gradient of a convolution's weight: what conv_weight.c (plan, cost, last sums) and conv_weight_kernel.c (computation) share.
 *
 *   dw[k,c,r,s] = sum over n,i,j of dy[n,k,i,j] * x[n, c, i*sh - pt + r*dh, j*sw - pl + s*dw]
 *
 *   task = (share of the pixels, group, some bundles, some units)  ->  chunks  ->  bundles, units  ->  taps  ->  tiles
 *
 *   bundle  neighbouring channel blocks of dy, as many as a tile has vectors; the last bundle may have fewer
 *   unit    one channel block of x with all its taps; of a plain x all channels
 *   row     one channel of x and one tap: its sums for the channels of a bundle are a row of vectors
 *   tile    a few rows of one bundle. Its sums stay in registers while it runs over the pixels of a chunk
 *   chunk   some rows of dy of one image, or several small images: so few pixels that their dy and x stay in the caches for all
 *           tiles of the task
 *   share   a part of all chunks
 *
 * Bundles and units are those of one group of channels, of which each begins a block.
 *
 *   sums    [bundle][unit][row][vectors * LANES] of a task; in scratch, or with several shares in the partial results
 *   row     of a blocked x [tap][channel of the block]; of a plain x [channel][tap], rounded up to whole tiles
 *   partial [share][task][sums]; dnn_conv_weight_join adds the shares in order, and writes dw
 *   panel   of a plain x: [channel][row][column], a zero padded copy of the x that a chunk reads
 *
 * A sum is one over the pixels of a chunk, in order; such sums are added up chunk by chunk, then share by share. Neither chunks nor
 * shares depend on the number of threads, so the result has the same bits for any number.
 */
#ifndef SOL_DNN_CONV_WEIGHT_H
#define SOL_DNN_CONV_WEIGHT_H

#include "dnn/list.h"

/* Indices into dnn_plan.param. */
enum conv_weight_param {
    WEIGHT_VECTORS,    /* of a bundle: TILE_VECTORS of the kernel */
    WEIGHT_CHANNELS,   /* rows of a tile: TILE_ROWS of the kernel */
    WEIGHT_UNITS,      /* of a group */
    WEIGHT_BUNDLES,    /* of a group */
    WEIGHT_K_BLOCKS,   /* channel blocks of dy of a group */
    WEIGHT_UNIT_ROWS,  /* rows of a unit */
    WEIGHT_TASK_UNITS, /* units of a task; fewer in the last one */
    WEIGHT_TASK_BUNDLES,
    WEIGHT_SHARES,
    WEIGHT_CHUNK_ROWS,   /* rows of dy in a chunk */
    WEIGHT_CHUNK_IMAGES, /* images of a chunk; 1 unless a chunk has all rows */
    WEIGHT_PANEL_ROWS,   /* of a plain x */
    WEIGHT_PANEL_COLUMNS,
    /* With Winograd's transforms (winograd_weight.h) a chunk consists of their tiles: rows and columns of them in an image, tiles of a
     * chunk. Else 0 */
    WEIGHT_TILE_ROWS,
    WEIGHT_TILE_COLUMNS,
    WEIGHT_CHUNK_TILES,
    WEIGHT_N_PARAMS,
};

/* The tiles of an instruction set; simd.h explains how many sums fit into its registers. */
static inline int64_t conv_weight_vectors(const struct dnn_kernels *kernels) {
    return kernels->step > 1 ? 4 : 2;
}
static inline int64_t conv_weight_rows(const struct dnn_kernels *kernels) {
    return kernels->step > 1 || kernels->values < 9 ? 4 : 8;
}

static inline int64_t conv_weight_unit_floats(const struct dnn_plan *plan) {
    return plan->param[WEIGHT_UNIT_ROWS] * plan->param[WEIGHT_VECTORS] * plan->problem.lanes;
}
static inline int64_t conv_weight_task_floats(const struct dnn_plan *plan) {
    return plan->param[WEIGHT_TASK_UNITS] * plan->param[WEIGHT_TASK_BUNDLES] *
           conv_weight_unit_floats(plan);
}
static inline int64_t conv_weight_unit_tasks(const struct dnn_plan *plan) {
    return ceil_div(plan->param[WEIGHT_UNITS], plan->param[WEIGHT_TASK_UNITS]);
}
/* Tasks of one group and share, and of one share. */
static inline int64_t conv_weight_group_tasks(const struct dnn_plan *plan) {
    return ceil_div(plan->param[WEIGHT_BUNDLES], plan->param[WEIGHT_TASK_BUNDLES]) *
           conv_weight_unit_tasks(plan);
}
static inline int64_t conv_weight_tasks(const struct dnn_plan *plan) {
    return plan->problem.groups * conv_weight_group_tasks(plan);
}
/* Chunks of an image. */
static inline int64_t conv_weight_chunks(const struct dnn_plan *plan) {
    return ceil_div(plan->problem.oh, plan->param[WEIGHT_CHUNK_ROWS]);
}

static inline int64_t conv_weight_tiles(const struct dnn_plan *plan, int64_t batch) {
    return batch * plan->param[WEIGHT_TILE_ROWS] * plan->param[WEIGHT_TILE_COLUMNS];
}

static inline int64_t conv_weight_batch_chunks(const struct dnn_plan *plan, int64_t batch) {
    const int64_t tiles = plan->param[WEIGHT_CHUNK_TILES];
    if (tiles) return ceil_div(conv_weight_tiles(plan, batch), tiles);
    return ceil_div(batch, plan->param[WEIGHT_CHUNK_IMAGES]) * conv_weight_chunks(plan);
}
/* Shares that have pixels: each at least two chunks, which take longer than to write and add its sums. Of open images all shares, as the
 * join is planned for expected sizes. */
static inline int64_t conv_weight_used_shares(const struct dnn_plan *plan, int64_t batch) {
    const int64_t shares = plan->param[WEIGHT_SHARES],
                  chunks = conv_weight_batch_chunks(plan, batch);
    return plan->problem.open ? shares : max_i64(1, min_i64(shares, ceil_div(chunks, 2)));
}

/* The work of a task. */
struct conv_weight_task {
    int64_t share, group, bundle, n_bundles, unit, n_units;
};
static inline struct conv_weight_task conv_weight_find_task(const struct dnn_plan *plan,
                                                            int64_t task) {
    const int64_t *param = plan->param, n_units = conv_weight_unit_tasks(plan),
                  n = conv_weight_group_tasks(plan);
    struct conv_weight_task t = {.share = task / n / plan->problem.groups,
                                 .group = task / n % plan->problem.groups,
                                 .bundle = task % n / n_units * param[WEIGHT_TASK_BUNDLES],
                                 .unit = task % n_units * param[WEIGHT_TASK_UNITS]};
    t.n_units = min_i64(param[WEIGHT_TASK_UNITS], param[WEIGHT_UNITS] - t.unit);
    t.n_bundles = min_i64(param[WEIGHT_TASK_BUNDLES], param[WEIGHT_BUNDLES] - t.bundle);
    return t;
}

/* The sums of bundle `bundle` and unit `unit` of a task, which has the sums at `sums`. */
static inline float *conv_weight_find_sums(const struct dnn_plan *plan, float *sums, int64_t bundle,
                                           int64_t unit) {
    return sums + (bundle * plan->param[WEIGHT_TASK_UNITS] + unit) * conv_weight_unit_floats(plan);
}
/* The channel blocks of dy in a bundle of the group. */
static inline int64_t conv_weight_count_vectors(const struct dnn_plan *plan, int64_t bundle) {
    const int64_t vectors = plan->param[WEIGHT_VECTORS];
    return min_i64(vectors, plan->param[WEIGHT_K_BLOCKS] - bundle * vectors);
}

/* Sets the units, bundles and shares of tasks that have at most so many bytes of sums. */
void dnn_conv_weight_divide(struct dnn_plan *plan, int64_t task_bytes);
/* struct dnn_impl's functions of these names. */
int64_t dnn_conv_weight_tasks(const struct dnn_plan *plan, int64_t batch);
int64_t dnn_conv_weight_parts(const struct dnn_plan *plan);
void dnn_conv_weight_join(const struct dnn_plan *plan, int64_t batch, float *partial, float *y,
                          int64_t part);

/* Writes the part of dw of a task that has no other shares. */
void dnn_conv_weight_store(const struct dnn_plan *plan, const struct conv_weight_task *task,
                           float *sums, float *y);

#endif

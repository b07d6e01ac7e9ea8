/*
 * The gradient of the weight of a depthwise convolution, or of another one with few channels per group: what conv_weight_grouped.c (plan,
 * cost, last sums) and conv_weight_grouped_kernel.c (computation) share.
 *
 *   task = (share of the pixels, channel block)  ->  chunks  ->  kernel rows, channels of the group  ->  tiles
 *
 * As in grouped.h, x and dy have the same number of channels, and a block holds complete groups of `size` channels, a proper divisor of
 * the lanes. A lane of the sums is a channel k of dy; for channel j of the group a shuffle moves channel j of each lane's own group of x
 * into that lane.
 *
 *   chunk    some rows of dy of one image: so few pixels that they stay in L1 for all kernel rows
 *   tile     up to WEIGHT_TILE neighbouring kernel columns. Its sums stay in registers while it runs over the pixels of a chunk
 *   sums     [kernel row][channel j of the group][kernel column][LANES]
 *   partial  [share][channel block][sums]; dnn_conv_weight_grouped's join adds the shares in order, and writes dw
 *
 * Neither chunks nor shares depend on the number of threads (conv_weight.h).
 */
#ifndef SOL_DNN_CONV_WEIGHT_GROUPED_H
#define SOL_DNN_CONV_WEIGHT_GROUPED_H

#include "dnn/list.h"

/* Indices into dnn_plan.param. */
enum conv_weight_grouped_param {
    WEIGHT_SIZE, /* channels per group */
    WEIGHT_N_SHARES,
    WEIGHT_ROWS, /* rows of dy in a chunk */
};

/* Floats of the sums of a channel block. */
static inline int64_t conv_weight_grouped_floats(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    return (int64_t)p->kh * p->kw * plan->param[WEIGHT_SIZE] * p->lanes;
}

/* Chunks of the whole batch, and shares that have pixels: at least two chunks each (conv_weight.h). */
static inline int64_t conv_weight_grouped_chunks(const struct dnn_plan *plan, int64_t batch) {
    return batch * ceil_div(plan->problem.oh, plan->param[WEIGHT_ROWS]);
}
static inline int64_t conv_weight_grouped_shares(const struct dnn_plan *plan, int64_t batch) {
    const int64_t shares = plan->param[WEIGHT_N_SHARES],
                  chunks = conv_weight_grouped_chunks(plan, batch);
    return plan->problem.open ? shares : max_i64(1, min_i64(shares, ceil_div(chunks, 2)));
}

#endif

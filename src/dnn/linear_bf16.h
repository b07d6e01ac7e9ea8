/*
 * Linear layers whose factors may be rounded to bf16: the parameters that linear_bf16.c (plan, cost, packing) and
 * linear_bf16_kernel.c (computation) share.
 *
 *   weight f32 [output][input] -> pack -> bf16 [panel][pair of inputs][2 * lanes outputs][2 inputs]
 *
 * A panel is 2 * lanes outputs. The last panel and the last pair are filled up with zeros.
 *   task = BF16_PANELS panels of a block of rows; the outputs are the inner index of tasks
 */
#ifndef SOL_DNN_LINEAR_BF16_H
#define SOL_DNN_LINEAR_BF16_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum linear_bf16_param {
    BF16_PANELS, /* panels per task */
    BF16_ROWS,   /* most rows of x per task */
};

/* BF16_DEPTH: most inputs per part of a sum; the sums of the parts are added in y. BF16_STRIDE: values from one copied row to the
 * next. The additional cache line lets rows lie in different sets of the cache. */
enum { BF16_DEPTH = 1024, BF16_STRIDE = BF16_DEPTH + 32 };

/* Number of equal parts of at most `most` that n is divided into; at least 1. */
static inline int64_t bf16_parts(int64_t n, int64_t most) { return max_i64(1, ceil_div(n, most)); }

#endif

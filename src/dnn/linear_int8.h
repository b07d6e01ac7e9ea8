/*
 * Quantized linear layers: what linear_int8.c (plan, packing) and linear_int8_kernel.c (computation) share.
 *
 *   task    LINEAR_INT8_ROWS rows of x, times LINEAR_INT8_PAIRS pairs of outputs
 *   pair    2 * LANES neighbouring outputs; the last one may have fewer
 *   packed  [pair][1 + quads]: the sums of the weights, [2 * LANES] of i32; then the weights, [quad][2 * LANES][4 inputs] of i8, with
 *           zeros for inputs and outputs that do not exist
 */
#ifndef SOL_DNN_LINEAR_INT8_H
#define SOL_DNN_LINEAR_INT8_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum linear_int8_param {
    LINEAR_INT8_ROWS,
    LINEAR_INT8_PAIRS,
    LINEAR_INT8_SIZE, /* bytes of packed weights of one pair */
};

static inline int64_t linear_int8_quads(const struct dnn_plan *plan) {
    return ceil_div(plan->problem.c, 4);
}

#endif

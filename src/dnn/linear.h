/*
 * Linear layers: the parameters that linear.c (plan, cost) and linear_kernel.c (computation) share.
 *
 *   task = LINEAR_OUTPUTS outputs of all rows of x. x is [row][input], the weight is [output][input], read in place.
 */
#ifndef SOL_DNN_LINEAR_H
#define SOL_DNN_LINEAR_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum linear_param {
    LINEAR_OUTPUTS, /* outputs per task */
    LINEAR_BATCH,   /* most rows of x per pass over the task's weights */
    LINEAR_X_SIZE,  /* floats of x that stay in L2. If the rows of a pass have more, the sums are */
    LINEAR_DEPTH,   /* ... computed in parts of this many inputs, a multiple of lanes */
};

#endif

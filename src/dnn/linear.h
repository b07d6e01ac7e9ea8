/* Linear layers: what linear.c (plan, cost) and linear_kernel.c (the work) share. */
#ifndef SOL_DNN_LINEAR_H
#define SOL_DNN_LINEAR_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum linear_param {
    LINEAR_OUTPUTS, /* outputs per task */
    LINEAR_BATCH,   /* most rows of x that one pass over the weights serves */
    LINEAR_X_SIZE,  /* floats of x that stay in L2; rows of x that are more are taken in parts of */
    LINEAR_DEPTH,   /* ... this many inputs, a multiple of lanes */
};

#endif

/*
 * Convolutions with few channels per group: what grouped.c (plan, packing) and grouped_kernel.c
 * (the work) share.
 *
 * Input and output have the same channels, and a group fits a vector: depthwise (one channel per
 * group) or, with 16 lanes, up to 8 channels. All lanes of a block of y then come from the same
 * block of x, and no multiplication is wasted: product j of a group takes channel j of the lane's
 * own group, by a shuffle of the loaded vector.
 *
 *   packed  [channel block][kernel row][kernel column][channel j of the group][LANES]
 *
 * x is read in place and never copied, as the time is mostly that of moving x and y.
 */
#ifndef SOL_DNN_GROUPED_H
#define SOL_DNN_GROUPED_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum grouped_param {
    GROUPED_SIZE,   /* channels per group */
    GROUPED_ROWS,   /* of y per task */
    GROUPED_CHUNKS, /* tasks per channel block and image */
};

#endif

/*
 * Depthwise convolutions, and others with few channels per group: the layout that grouped.c (plan, cost, packing) and
 * grouped_kernel.c (computation) share.
 *
 *   task = (sample, channel block, some rows of y)  ->  rows  ->  tiles
 *
 * x and y have the same number of channels. The number of channels per group, `size`, is a proper divisor of the lanes: 1
 * (depthwise), 2, 4 or 8 with 16 lanes. So a channel block holds complete groups, and a block of y depends on one block of x
 * alone. Each kernel position takes `size` multiply-adds of full vectors: for product j a shuffle moves channel j of each
 * lane's own group into that lane. No lane multiplies in vain.
 *
 * A transposed convolution of stride (sh, sw) has sw column phases: the columns of y that are u modulo sw. All points of a row and a phase
 * read the same taps, a list of at most GROUPED_MAX_TAPS, and neighbouring points neighbouring pixels of x.
 *
 *   packed  [channel block][kernel row][kernel column][channel j of the group][LANES]
 *
 * x is read in place and never copied, as memory traffic of x and y takes most of the time.
 */
#ifndef SOL_DNN_GROUPED_H
#define SOL_DNN_GROUPED_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum grouped_param {
    GROUPED_SIZE,   /* channels per group */
    GROUPED_ROWS,   /* rows of y per task */
    GROUPED_CHUNKS, /* tasks per channel block and sample */
};

/* The most taps of a transposed convolution. */
#define GROUPED_MAX_TAPS 121

#endif

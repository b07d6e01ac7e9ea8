/*
 * Depthwise convolutions of plain images: what depthwise.c (plan, cost) and depthwise_kernel.c (computation) share. Each channel of y is
 * a convolution of one channel of x by a window of its own.
 *
 *   task = (sample, channel, plane of y, some rows of it)  ->  tiles of rows and vectors of pixels  ->  runs of kernel rows
 *
 * Lanes are neighbouring pixels of a row. grouped.c, whose lanes are channels, wastes none of them at the ends of rows, but needs blocks:
 * where x is plain and y leaves, two copies would take longer than the convolution.
 *
 *   panel  the rows of x that a task reads, with zeros around the image, and its columns by phase of the stride:
 *          [plane of the kernel][row][phase][column]
 *   tile   some rows of one vector, or one row of some vectors; its sums stay in registers
 *   run    up to DEPTHWISE_RUN kernel rows of which each reads the rows of x that the one before has read for the next row of the tile.
 *          So each vector is loaded once for all of them.
 *
 * Rows of a tile are ROW_STEP rows of y apart, kernel rows of a run RUN_STEP: one of both is 1, the other is what dilation and stride
 * make of it. If neither divides the other, a run is one kernel row.
 *
 * The order of a sum (kernel planes, runs, kernel columns, kernel rows of the run) does not depend on tile, task or thread.
 */
#ifndef SOL_DNN_DEPTHWISE_H
#define SOL_DNN_DEPTHWISE_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum depthwise_param {
    DEPTHWISE_ROWS,     /* of y per task */
    DEPTHWISE_CHUNKS,   /* tasks per channel and sample */
    DEPTHWISE_PHASES,   /* of a row of the panel */
    DEPTHWISE_PHASE,    /* floats of a phase */
    DEPTHWISE_ROW_STEP, /* rows of y from one row of a tile to the next */
    DEPTHWISE_RUN_STEP, /* kernel rows from one row of a run to the next */
    DEPTHWISE_MOST,     /* kernel rows of a run */
    DEPTHWISE_D,        /* planes of x, of y and of the kernel; images are volumes of one plane */
    DEPTHWISE_OD,
    DEPTHWISE_KD,
    DEPTHWISE_PLANE, /* floats of the panel from a plane of the kernel to the next */
    DEPTHWISE_OFFSETS, /* bytes of the table in front of the panel: floats from the first to each kernel column */
};

#define DEPTHWISE_RUN 7
#define DEPTHWISE_MAX_STRIDE 16

#endif

/*
 * Products of many rows: what product.c (plan, packing) and product_kernel.c (computation) share.
 *
 *   y[row][output] = sum over inputs of x[row][input] * weight[output][input]
 *
 * The inputs are divided into parts of `depth`, the outputs into panels of two vectors. The packed weight is
 * [part][panel][input of the part][2 * lanes outputs]. Inputs and outputs beyond the last one are zeros.
 *
 *   task = some tiles of rows x some panels; all parts, one after the other
 *     part  -> the task's rows of x are copied into a dense block in scratch, which stays in L2 (an aligned x stride of 4096
 *              bytes would map all rows of a tile to one set of L1)
 *     panel -> one panel of a part stays in L1, while all tiles of the task are computed from it
 *     tile  -> up to `values` rows x one panel: the sums of a part stay in registers. y holds them between parts.
 *
 * The order of a sum depends on the number of inputs alone: not on rows, tiles, tasks or threads.
 */
#ifndef SOL_DNN_PRODUCT_H
#define SOL_DNN_PRODUCT_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum product_param {
    PRODUCT_DEPTH,  /* inputs per part, a multiple of the kernel's step */
    PRODUCT_PARTS,  /* parts of the inputs */
    PRODUCT_PANELS, /* panels of outputs */
};

/* Most inputs of a part: a block of 128 rows has 128 KiB, a panel of it 32 KiB with 16 lanes. Longer parts would make sums less
 * accurate, too: each of them is added up one product after the other. */
#define PRODUCT_MAX_DEPTH 256
/* Floats from one row of a block of x to the next: an odd number of cache lines, so that a tile's rows are in different sets. */
#define PRODUCT_STRIDE (PRODUCT_MAX_DEPTH + 16)
#define PRODUCT_MAX_ROWS 128 /* most rows of a task */
#define PRODUCT_FEW 3        /* rows of a tile that reads several panels at the same time ... */
#define PRODUCT_WIDE 4       /* ... up to so many */

/* The division of a product into tasks: rows in `row_parts`, each of whole tiles, panels in `panel_parts`. */
struct product_division {
    int64_t tiles, row_parts, panel_parts;
    int64_t streams; /* panels that are read at the same time */
};

/* The division of a product of `rows` rows and `panels` panels with `inputs` inputs. */
struct product_division product_divide(const struct dnn_plan *plan, int64_t rows, int64_t panels,
                                       int64_t inputs);

#endif

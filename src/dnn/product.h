/*
 * Products: what product.c (plan, packing) and product_kernel.c (computation) share.
 *
 *   linear: y[row][output] = sum over inputs of x[row][input] * weight[output][input]
 *   matmul: many products y = x * b, whose matrices have any strides
 *
 * The inputs are divided into parts of PRODUCT_DEPTH, the outputs into panels of PRODUCT_VECTORS vectors, two or three (dnn/simd.h); the
 * last one has as many as it needs. The packed weight is [part][panel][input of the part][output of the panel]. Inputs and outputs beyond the
 * last one are zeros.
 *
 *   task = some tiles of rows x some panels; all parts, one after the other
 *     part  -> the task's rows of x stay in L2; they are copied into a dense block in scratch, if they cannot be read in place (an x
 *              stride of 4096 bytes would map all rows of a tile to one set of L1)
 *     panel -> one panel of a part stays in L1, while all tiles of the task are computed from it
 *     tile  -> up to PRODUCT_VALUES rows x one panel: the sums of a part stay in registers. y holds them between parts.
 *
 * If all products of a matmul have one b, and many rows together, b is packed before, as a weight. Otherwise a task of a matmul packs its
 * panels of b for each part, and then computes all of its rows, a block of them at a time.
 *
 * The order of a sum depends on the number of inputs alone: not on rows, tiles, tasks or threads.
 */
#ifndef SOL_DNN_PRODUCT_H
#define SOL_DNN_PRODUCT_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum product_param {
    PRODUCT_PARTS,  /* parts of the inputs */
    PRODUCT_PANELS, /* panels of outputs */
};

/* Inputs of a part; the last one may have fewer. A panel of it has 48 KiB with 16 lanes. Longer parts would make sums less accurate,
 * too: within a part one product is added after the other. */
#define PRODUCT_DEPTH 256
/* Floats from one row of a block of x to the next: an odd number of cache lines, so that a tile's rows are in different sets. */
#define PRODUCT_STRIDE (PRODUCT_DEPTH + 16)
#define PRODUCT_MAX_ROWS 128    /* of a block */
#define PRODUCT_MAX_PACKED 512  /* outputs of b that a task of a matmul packs at a time */
#define PRODUCT_FEW 3           /* rows of a tile without prefetches */
#define PRODUCT_WIDE 4          /* panels of a task of such rows, at least: memory is read in long runs */
#define PRODUCT_NARROW 8        /* panels of a task that reads short rows in place */
#define PRODUCT_STREAMED (8 << 20) /* elements of y that is written past the caches, at least */

/* The division of a product: rows in `row_parts`, each of whole tiles, panels in `panel_parts`. */
struct product_division {
    int64_t tiles, row_parts, panel_parts;
};
/* The division of each of n products with one packed weight into tasks, for `rows` rows of each; of a linear layer n is 1. */
struct product_division product_divide(const struct dnn_plan *plan, int64_t rows, int64_t n);

/* The products of a matmul for `batch` rows in all, each divided into parts; a task has some parts of all products, and just one if b is
 * packed. */
struct product_matrices {
    int64_t n, rows, tasks; /* rows: of one product */
    int n_dims;
    struct product_division by;
};
struct product_matrices product_count(const struct dnn_plan *plan, int64_t batch);

#endif

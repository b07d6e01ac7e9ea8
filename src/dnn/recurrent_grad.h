/*
 * The gradients of recurrent layers: what the step's functions (recurrent_grad.c), the vector kernel (recurrent_grad_kernel.c), the
 * plain loops (recurrent_grad_plain.h) and the compiler (emit_recurrent.c) share.
 *
 *   step_recurrent_grad -> dnn_recurrent_walk, from the last step to the first: tiles of units -> dnn_recurrent_grad_fn
 *
 * With g[t] the gradient of the products y[t - 1] * weight, the gradient of the state behind a step is
 * dh[t] = dy[t] + weight^T * g[t + 1], for a gru also + dh[t + 1] * z[t + 1]; the cell's functions turn it into g[t]. A task of a step has a
 * tile of units for some samples: it computes dh and g for these units, with all gates.
 *
 * The output has the gradients of the gates as columns of `units` values. In the row behind the steps lies what a step passes to the one
 * before: for an lstm the cell's gradient, for a gru dh * z.
 *
 * The packed weight is [tile][gate and unit of g][lane]; a tile has four vectors of units of the state. Weights beyond the last unit are
 * zero.
 */
#ifndef SOL_RECURRENT_GRAD_H
#define SOL_RECURRENT_GRAD_H

#include "dnn/recurrent.h"
#include "dnn/recurrent_grad_plain.h"

/* A kind for the kernel: no step, but the gradient of the state before the first one. */
enum { RECURRENT_FIRST = RECURRENT_GRU + 1 };

/* Columns of the output: gradients of the products, and for a gru that of x's last gate. */
static inline int dnn_recurrent_columns(int64_t kind) {
    return kind == RECURRENT_LSTM || kind == RECURRENT_GRU ? 4 : 1;
}
/* Units of a tile, for vectors of `lanes`. */
static inline int dnn_recurrent_grad_tile(int lanes) { return 4 * lanes; }

/* One sample at one step of time. */
struct recurrent_grad_row {
    const float *after;  /* g of the step behind; it is multiplied by the weight */
    const float *dy;     /* NULL: 0 */
    const float *more;   /* added to dh; NULL: 0 */
    const float *gates;  /* what the layer has kept; FIRST: NULL */
    const float *before; /* the cell before the step of an lstm; the state before that of a gru */
    float *carry;        /* of an lstm or gru: what the next step gets */
    float *out;          /* the gradients of the gates; FIRST: dh */
};

/* dnn_recurrent_grad_fn computes units [unit, unit + tile) of n rows. `inner`: values of g, 0: there is no product; `weight`: the packed
 * weight of this tile. */

/* The step; data: a struct dnn_kernels. One task, which is run on the thread of the call, as it calls the pool. */
extern const struct step_kind step_recurrent_grad;
/* Plain loops, with the weight [gates * units, units]. A task is a sample. */
extern const struct step_kind step_recurrent_grad_plain;
/* Packs the weight: ptr = {weight, packed}, a task is a tile. */
extern const struct step_kind step_recurrent_grad_pack;

#endif

/*
 * Recurrent layers: what the step's functions (recurrent.c), the vector kernel (recurrent_kernel.c) and the compiler
 * (emit_recurrent.c) share.
 *
 *   step_recurrent -> dnn_recurrent_walk: all steps of time in order, on all threads: tiles of units -> dnn_recurrent_fn
 *
 * At each step of time, the state behind it is y[t] = cell(x[t] + y[t - 1] * weight). The tasks of one step of time are
 * independent: one has a tile of units for some samples, with all gates of these units. Between two steps
 * of time threads wait until all tasks of the first one are done.
 *
 * The packed weight is [tile][unit of y[t - 1]][vector][lane]. A tile of an lstm or gru has one vector of units and a vector per gate;
 * of the other kinds four vectors of units. Weights beyond the last unit are zero.
 */
#ifndef SOL_RECURRENT_H
#define SOL_RECURRENT_H

#include "dnn/recurrent_plain.h"
#include "run/program.h"

/* Vectors of a tile: of gates, or of units. */
static inline int dnn_recurrent_vectors(int64_t kind) { return kind == RECURRENT_GRU ? 3 : 4; }
static inline int dnn_recurrent_gates(int64_t kind) {
    return kind == RECURRENT_LSTM ? 4 : kind == RECURRENT_GRU ? 3 : 1;
}
/* Units of a tile, for vectors of `lanes`. */
static inline int dnn_recurrent_tile(int64_t kind, int lanes) {
    return dnn_recurrent_gates(kind) > 1 ? lanes : 4 * lanes;
}

/* Columns of `units` values that are kept for a gradient: the gates, and the cell of an lstm; of the other kinds see ir/layer.def. */
static inline int dnn_recurrent_kept(int64_t kind) {
    const int gates = dnn_recurrent_gates(kind);
    return gates > 1 ? gates + 1 : 1;
}

/* One sample at one step of time: x, the state before, the state behind, the cell, which is replaced, and the columns that are kept;
 * NULL: they are not. */
struct recurrent_row {
    const float *x, *h;
    float *y, *cell, *kept;
};

/* Computes units [unit, unit + tile) of n rows. `weight`: the packed weight of this tile; `bias`: of a gru, the bias of all units. */
typedef void dnn_recurrent_fn(int64_t kind, int64_t units, int64_t unit, const float *weight,
                              const float *bias, int n, const struct recurrent_row *row);

/* recurrent_grad.h */
struct recurrent_grad_row;
typedef void dnn_recurrent_grad_fn(int64_t kind, int64_t units, int64_t unit, int64_t inner,
                                   const float *weight, int n,
                                   const struct recurrent_grad_row *row);

/* Runs all steps of time; data: a struct dnn_kernels. One task, which is run on the thread of the call, as it calls the pool. */
extern const struct step_kind step_recurrent;
/* Plain loops, with the weight [gates * units, units]. A task is a sample. */
extern const struct step_kind step_recurrent_plain;
/* Packs the weight: ptr = {weight, packed}, a task is a tile. */
extern const struct step_kind step_recurrent_pack;
int64_t dnn_recurrent_n_pack_tasks(const struct step *step, const int64_t *arg);
/* One task, or one per sample; none without samples. */
int64_t dnn_recurrent_one_task(const struct step *step, const int64_t *arg);
int64_t dnn_recurrent_n_samples(const struct step *step, const int64_t *arg);

#define RECURRENT_LENGTH_MESSAGE "sample %lld has %lld steps, but there are %lld"
/* Fails the call: sample `n` has more steps than there are, or less than 0. */
void dnn_recurrent_fail(const struct step *step, const int64_t *arg, const int64_t *length,
                        int64_t n);

#endif

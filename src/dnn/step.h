/*
 * Steps of the DNN module: what a program does with a plan, once it is chosen.
 *
 * All that a program calls is here and in the implementations and kernels: nothing of the compiler, so that it can be part of a
 * library by itself (deploy/).
 */
#ifndef SOL_DNN_STEP_H
#define SOL_DNN_STEP_H

#include "dnn/dnn.h"
#include "run/program.h"

/* Pointers and arguments of a step; those of its epilogue follow. */
enum {
    DNN_X,
    DNN_PACKED,
    DNN_WEIGHT,
    DNN_BIAS,
    DNN_RESIDUAL,
    DNN_SCALE,
    DNN_SHIFT,
    DNN_Y,
    DNN_N_POINTERS
};
enum { DNN_BATCH, DNN_X_STRIDE, DNN_Y_STRIDE, DNN_RESIDUAL_STRIDE, DNN_N_ARGS };

/* The data of a step that runs a plan; in the program. */
struct dnn_work {
    struct dnn_plan plan;
    const struct kernel *finish; /* the epilogue; NULL: none */
};

/* step->data: a struct dnn_work. */
void dnn_step_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                  int64_t begin, int64_t end);
int64_t dnn_step_n_tasks(const struct step *step, const int64_t *arg);
/* What the implementation itself needs per thread; its epilogue's scratch follows. */
size_t dnn_step_scratch(const struct dnn_plan *plan);

/* step->data: a struct dnn_plan; ptr = {weight, packed}. */
void dnn_step_pack(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                   int64_t begin, int64_t end);
int64_t dnn_step_n_pack_tasks(const struct step *step, const int64_t *arg);

#endif

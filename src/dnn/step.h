/*
 * The functions of the DNN module's steps: they run a plan that dnn_emit has chosen.
 *
 *   run/exec.c -> step_dnn_pack -> plan.impl->pack
 *   run/exec.c -> step_dnn      -> plan.impl->run -> per finished region: the generated epilogue
 *
 * Invariant: this file, the implementations and the kernels do not depend on the compiler, as deployed libraries contain them
 * (deploy/).
 */
#ifndef SOL_DNN_STEP_H
#define SOL_DNN_STEP_H

#include "dnn/dnn.h"
#include "run/program.h"

/* Indices of the run step's pointers and arguments. Those of its epilogue follow them. */
enum {
    DNN_X,
    DNN_PACKED,
    DNN_WEIGHT,
    DNN_BIAS,
    DNN_RESIDUAL,
    DNN_SCALE,
    DNN_SHIFT,
    DNN_ZERO,
    DNN_RANGE,
    DNN_Y,
    DNN_N_POINTERS
};
enum { DNN_BATCH, DNN_X_STRIDE, DNN_Y_STRIDE, DNN_RESIDUAL_STRIDE, DNN_N_ARGS };
/* The number of the last arguments of steps whose problem is `open`. Conv: h, w, oh, ow; matmul: those of `matrix`, k, c. */
static inline int dnn_n_sizes(enum dnn_kind kind) {
    return kind == DNN_CONV || kind == DNN_CONV_WEIGHT ? 4 : DNN_N_MATRIX + 2;
}

/* step->data of the run step; lies in the program's memory. */
struct dnn_work {
    struct dnn_plan plan;
    const struct kernel *finish; /* the generated epilogue; NULL: none */
};

/* step->data: a struct dnn_work. An open step is planned again for the sizes in the last arguments; a packed weight stays the
 * same, but b of a matmul. */
extern const struct step_kind step_dnn;
/* Bytes of scratch per thread that the implementation needs, rounded up to a cache line. The epilogue's scratch follows. */
size_t dnn_step_scratch(const struct dnn_plan *plan);

/* The step behind a step with partial results. step->data: a struct dnn_plan; ptr = {partial results, y}; arg = {batch}. */
extern const struct step_kind step_dnn_join;

/* The pack step. step->data: a struct dnn_plan; ptr = {weight, packed}. Of an open matmul it is planned again, too; arg = {rows,
 * the last arguments of its step_dnn}. */
extern const struct step_kind step_dnn_pack;

#endif

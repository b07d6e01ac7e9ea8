/* From a DNN cluster to steps: choose the implementation, pack once, run at every call. */
#ifndef SOL_DNN_EMIT_H
#define SOL_DNN_EMIT_H

#include "dnn/dnn.h"
#include "plan/build.h"

/* Settles near ties: the index of the fastest of `n` plans, cheapest by cost first. The device's, since only it can run them. */
typedef int dnn_tune(struct arena *arena, const struct dnn_plan *plans, int n);
#define DNN_NEAR_TIE 2.0 /* plans that cost at most this many times the cheapest are worth a run */

/*
 * `epilogue` is a generated kernel that works in place on points [begin, end) of y, as a step: its kernel is `data`; pointers and
 * arguments are copied. Points are counted as the stored vectors of channels are (linear: as values are), as if all images followed
 * each other. NULL: none. `tune` NULL: the cost model alone decides, and the same way on every run.
 */
enum sol_status dnn_emit(struct build *build, const struct cluster *cluster,
                         const struct dnn_isa *isa, dnn_tune *tune, const struct step *epilogue);

/* Does any implementation support this conv on blocked images? Called before layouts are chosen. */
bool dnn_supports(const struct layer *conv, int lanes);

#endif

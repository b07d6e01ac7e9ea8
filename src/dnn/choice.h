/*
 * The choice of an implementation for a problem: from those that the device has (caps.impls), by cost, or by timing.
 */
#ifndef SOL_DNN_CHOICE_H
#define SOL_DNN_CHOICE_H

#include "dnn/emit.h"

/* The number of implementations that the device has. */
int dnn_count_impls(const struct build *build);
/* Fills candidate[dnn_count_impls()] with each implementation's answer, and *best. EUNSUPPORTED if all refuse. */
enum sol_status dnn_choose(struct build *build, const struct dnn_problem *problem,
                           const struct dnn_isa *isa, dnn_tune *tune,
                           struct sol_candidate *candidate, struct dnn_plan *best);

#endif

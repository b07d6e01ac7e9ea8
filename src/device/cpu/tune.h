/* Settles near ties between implementations by running them. */
#ifndef SOL_CPU_TUNE_H
#define SOL_CPU_TUNE_H

#include "dnn/list.h"

/* The index of the fastest of `n` plans for one problem, the cheapest by cost first. A dnn_tune. */
int cpu_tune(struct arena *arena, const struct dnn_plan *plans, int n);

/* The text under which the winner is remembered, in the arena: all that it depends on. */
const char *cpu_tune_key(struct arena *arena, const struct dnn_plan *plans, int n);

#endif

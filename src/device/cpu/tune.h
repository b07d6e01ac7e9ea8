/* Autotuning: chooses between implementations of nearly equal cost by timing. */
#ifndef SOL_CPU_TUNE_H
#define SOL_CPU_TUNE_H

#include "dnn/list.h"

/* Returns the index of the fastest of `n` plans for one problem; plans[0] is the cheapest by the cost model. Of type dnn_tune. */
int cpu_tune(struct arena *arena, const struct dnn_plan *plans, int n);

/* The key under which the winner is stored, allocated in the arena: everything that the winner depends on. */
const char *cpu_tune_key(struct arena *arena, const struct dnn_plan *plans, int n);

#endif

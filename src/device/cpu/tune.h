/* Settles near ties between implementations by running them. */
#ifndef SOL_CPU_TUNE_H
#define SOL_CPU_TUNE_H

#include "dnn/dnn.h"

#include <sol/sol.h>

#define TUNE_MAX_CANDIDATES 8

/* The index of the fastest of `n` <= TUNE_MAX_CANDIDATES plans for one problem, the cheapest by cost first. */
int cpu_tune(const struct dnn_plan *plans, int n);

#endif

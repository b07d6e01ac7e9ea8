/* What others may ask about the CPU. */
#ifndef SOL_CPU_H
#define SOL_CPU_H

#include "dnn/dnn.h"

/* The best instruction set that this machine has, or the one that $SOL_CPU names. Never NULL. */
const struct dnn_isa *cpu_isa(void);

#endif

/* What others may ask about the CPU. */
#ifndef SOL_CPU_H
#define SOL_CPU_H

#include "dnn/dnn.h"

/* The device's name: that of the architecture that this build is for. */
#if defined __x86_64__ || defined __i386__
#define CPU_NAME "x86"
#elif defined __aarch64__
#define CPU_NAME "arm64"
#else
#define CPU_NAME "cpu"
#endif

/* Does this machine have the instruction set? All have "generic". */
bool cpu_has(const struct dnn_isa *isa);

/* The best instruction set that this machine has, or the one that $SOL_CPU names. Never NULL. */
const struct dnn_isa *cpu_isa(void);

#endif

/* The CPU device's interface for other folders: its name, its instruction sets, its compiler flags. */
#ifndef SOL_CPU_H
#define SOL_CPU_H

#include "dnn/dnn.h"
#include "jit/jit.h"

/* The device's name: the architecture that SOL was built for. */
#if defined __x86_64__ || defined __i386__
#define CPU_NAME "x86"
#elif defined __aarch64__
#define CPU_NAME "arm64"
#else
#define CPU_NAME "cpu"
#endif

/* C expressions: does the processor have this instruction set of x86? Used here, and printed into deployed libraries. */
#define CPU_HAS_AVX512                                                              \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&     \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
#define CPU_HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))

/* The compiler's flags for generated kernels, without those of the instruction set. The same as for SOL's own kernels. */
#define CPU_KERNEL_FLAGS \
    "-O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-strict-aliasing -w"

/* The flags to compile generated kernels into shared objects. */
#define CPU_OBJECT_FLAGS "-shared -fPIC "

/* Does this machine have the instruction set? All have "generic". */
bool cpu_has(const struct dnn_isa *isa);

/* The instruction set that $SOL_CPU names, if this machine has it; else the best one that it has. Never NULL. */
const struct dnn_isa *cpu_isa(void);

#endif

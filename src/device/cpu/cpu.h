/* What others may ask about the CPU. */
#ifndef SOL_CPU_H
#define SOL_CPU_H

#include "dnn/dnn.h"
#include "jit/jit.h"

/* The device's name: that of the architecture that this build is for. */
#if defined __x86_64__ || defined __i386__
#define CPU_NAME "x86"
#elif defined __aarch64__
#define CPU_NAME "arm64"
#else
#define CPU_NAME "cpu"
#endif

/* What a processor must have for an instruction set of x86, as C: asked here, and printed into libraries. */
#define CPU_HAS_AVX512                                                              \
    (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&     \
     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
#define CPU_HAS_AVX2 (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))

/* Flags of the compiler for generated kernels, besides those of the instruction set: as for SOL's own kernels. */
#define CPU_KERNEL_FLAGS \
    "-O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-strict-aliasing -w"

/* Generated kernels are shared objects of the C compiler, with these flags besides. */
#define CPU_OBJECT_FLAGS "-shared -fPIC "
extern const struct jit_loader cpu_objects;

/* Does this machine have the instruction set? All have "generic". */
bool cpu_has(const struct dnn_isa *isa);

/* The best instruction set that this machine has, or the one that $SOL_CPU names. Never NULL. */
const struct dnn_isa *cpu_isa(void);

#endif

/*
 * The two rates that bound every kernel: multiply-adds on registers, and reading memory. Compiled once per instruction
 * set, as the kernels that are compared with them.
 */
#include "dnn/list.h"
#include "dnn/simd.h"

/* Independent sums: two multiply-adds per cycle of latency 4 need 8 of them, and older cores 10; more would spill where
 * there are 16 registers. */
#define CHAINS 12

/*
 * The factor is loaded, so that the compiler cannot know the result; it keeps the sums finite. Unrolled, or the sums would
 * live in memory.
 */
static double multiply(int64_t rounds, float *out) {
    volatile float factor = 0.5f;
    const vec a = vec_set(factor);
    vec sum[CHAINS];
#pragma GCC unroll 16
    for (int i = 0; i < CHAINS; i++) sum[i] = vec_set((float)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) sum[i] = sum[i] * a + a;
    }
#pragma GCC unroll 16
    for (int i = 1; i < CHAINS; i++) sum[0] += sum[i];
    vec_store(out, sum[0]);
    return 2.0 * LANES * CHAINS * (double)rounds;
}

#define STREAMS 8 /* loads in flight that do not wait for each other's addition */

static void read_floats(const float *at, int64_t n, float *out) {
    vec sum[STREAMS] = {0};
    for (int64_t i = 0; i < n; i += STREAMS * LANES) {
#pragma GCC unroll 8
        for (int s = 0; s < STREAMS; s++) sum[s] += vec_load(at + i + s * LANES);
    }
#pragma GCC unroll 8
    for (int s = 1; s < STREAMS; s++) sum[0] += sum[s];
    vec_store(out, sum[0]);
}

const struct dnn_probe_kernels ISA_NAME(dnn_probe_kernels) = {multiply, read_floats};

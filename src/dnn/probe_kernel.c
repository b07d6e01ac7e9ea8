/*
 * Measures the two rates that bound every kernel: multiply-adds on registers, and reading memory. Compiled once per
 * instruction set, as the other kernels are.
 *
 *   device/cpu/probe.c -> multiply, read, on all threads -> peaks in reports
 */
#include "dnn/list.h"
#include "dnn/simd.h"

/* Independent sums: two multiply-adds per cycle of latency 4 need 8 of them, older cores 10. With 16 registers more than 12
 * would spill. */
#define CHAINS 12

/*
 * `volatile` prevents the compiler from computing the result; 0.5 keeps the sums finite. Without unrolling the sums would be
 * in memory instead of registers.
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

#define STREAMS 8 /* independent sums, so that loads do not wait for additions */

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

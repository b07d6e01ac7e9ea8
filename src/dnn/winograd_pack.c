/*
 * Winograd convolution: packing of weights, U = G g G^T.
 *
 *   run/exec.c, once per version of the parameters, or in each call that trains -> dnn_winograd_pack, on ranges of tasks
 *
 * winograd.h explains the terms and the layout. A program that trains packs at each step, so libsol contains the transform for several
 * instruction sets. A deployed library is compiled for one, and defines ISA (deploy/native.c).
 */
#include "dnn/winograd.h"

#include <math.h>
#include <string.h>

/*
 *   KERNELS    kernels that are transformed together: so many that vectors are loaded long after their floats were stored one by
 *              one, as a processor waits for such stores. min(lanes, CHANNELS) channels of 2 * lanes kernels are a multiple of it
 *   MAX_WIDTH  floats of a channel at a point, at most
 *   CHANNELS   channels whose points are written together, at most
 */
enum { KERNELS = 32, MAX_WIDTH = 32, CHANNELS = 8 };

/*
 * The row of G for point p is (1, p, p^2) / M'(p), and (0, 0, 1) for inf, with M of winograd_kernel.c (to_points4). A^T there
 * omits a factor per point (from_points4); G contains it, where it costs nothing.
 */
static void make_g(int64_t out, double g[6][3]) {
    static const double points4[] = {0, 2.0 / 3, -2.0 / 3, 1.5, -1.5}, points2[] = {0, 1, -1};
    const double *points = out == 4 ? points4 : points2;
    const int n = (int)out + 1;
    for (int i = 0; i < n; i++) {
        double factor = out == 4 && i > 0 ? fabs(points[i]) : 1;
        for (int j = 0; j < n; j++)
            if (j != i) factor /= points[i] - points[j];
        if (out == 2 && i == 0) factor = -factor; /* B^T's row is negated too: to_points2 */
        g[i][0] = factor;
        g[i][1] = factor * points[i];
        g[i][2] = factor * points[i] * points[i];
    }
    g[n][0] = g[n][1] = 0;
    g[n][2] = 1;
}

/* ---- The transform ---- */

/*
 * Transforms some 3x3 kernels in double, so that U is rounded only once. Each point has a row of `width` floats in u. The loops over
 * kernels are short and of a known length, so that compilers use vectors. turned: rows and columns are in reverse order.
 */
#define TRANSFORM(name, target)                                                                   \
    target static void name(int in, double g[6][3], bool turned, const float *const *weight,      \
                            float *u, int64_t width) {                                            \
        double half[6][3][KERNELS], w[9][KERNELS];                                                \
        for (int k = 0; k < KERNELS; k++)                                                         \
            for (int t = 0; t < 9; t++) w[turned ? 8 - t : t][k] = (double)weight[k][t];          \
        for (int i = 0; i < in; i++)                                                              \
            for (int s = 0; s < 3; s++)                                                           \
                for (int k = 0; k < KERNELS; k++)                                                 \
                    half[i][s][k] =                                                               \
                        g[i][0] * w[s][k] + g[i][1] * w[3 + s][k] + g[i][2] * w[6 + s][k];        \
        for (int i = 0; i < in; i++)                                                              \
            for (int j = 0; j < in; j++)                                                          \
                for (int k = 0; k < KERNELS; k++)                                                 \
                    u[(i * in + j) * width + k] =                                                 \
                        (float)(half[i][0][k] * g[j][0] + half[i][1][k] * g[j][1] +               \
                                half[i][2][k] * g[j][2]);                                         \
    }
TRANSFORM(transform, )
typedef void transform_kernels(int in, double g[6][3], bool turned, const float *const *weight,
                               float *u, int64_t width);

#if defined __x86_64__ && defined __GNUC__ && !defined ISA
TRANSFORM(transform_avx2, __attribute__((target("avx2,fma"))))
TRANSFORM(transform_avx512, __attribute__((target("avx512f"))))
static transform_kernels *find_transform(void) {
    if (__builtin_cpu_supports("avx512f")) return transform_avx512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? transform_avx2
                                                                           : transform;
}
#else
static transform_kernels *find_transform(void) { return transform; }
#endif

/* ---- Channels ---- */

/* Channel of the model, or -1 for padding. Beyond the last stored channel, in a half empty k pair, is padding too. */
static int model_channel(const int *map, int64_t stored, int64_t n_stored) {
    return stored < n_stored ? dnn_model_channel(map, stored) : -1;
}

/* The kernel between stored channels c and k. */
static const float *find_kernel(const struct dnn_problem *p, const float *weight, int64_t c,
                                int64_t k) {
    static const float zero[9];
    const int64_t from = model_channel(p->c_map, c, p->c), to = model_channel(p->k_map, k, p->k);
    if (from < 0 || to < 0) return zero;
    return weight + (p->turned ? from * p->k_model + to : to * p->c_model + from) * 9;
}

/* Transforms the kernels between `n` stored channels, the first of which is c, and the outputs of a pair. A point of them is a row, which
 * is written at once: rows are `step` floats apart, often a power of two, so that few lines of each fit into the caches. */
static void pack_channels(const struct dnn_plan *plan, transform_kernels *transform_some,
                          double g[6][3], const float *weight, int64_t c, int64_t n, int64_t pair,
                          float *to, int64_t step) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t width = 2 * p->lanes, row = n * width;
    float u[36 * CHANNELS * MAX_WIDTH];
    for (int64_t j = 0; j < row; j += KERNELS) {
        const float *kernel[KERNELS];
        for (int64_t i = 0; i < KERNELS; i++)
            kernel[i] = find_kernel(p, weight, c + (j + i) / width, pair * width + (j + i) % width);
        transform_some((int)plan->param[WINOGRAD_OUT] + 2, g, p->turned, kernel, u + j, row);
    }
    for (int64_t i = 0; i < winograd_points(plan); i++)
        memcpy(to + i * step, u + i * row, (size_t)row * sizeof *u);
}

/* Pack task: (k pair, c block), the last one fastest. */
void dnn_winograd_pack(const struct dnn_plan *plan, const float *weight, float *packed,
                       int64_t task) {
    const struct dnn_problem *problem = &plan->problem;
    const int64_t lanes = problem->lanes, c_blocks = problem->c / lanes;
    const int64_t step = (int64_t)problem->c * 2 * lanes, n = min_i64(lanes, CHANNELS);
    const int64_t pair = task / c_blocks, c_begin = task % c_blocks * lanes;
    transform_kernels *const transform_some = find_transform();
    double g[6][3];
    make_g(plan->param[WINOGRAD_OUT], g);
    float *u = packed + pair * winograd_points(plan) * step + c_begin * 2 * lanes;
    for (int64_t i = 0; i < lanes; i += n)
        pack_channels(plan, transform_some, g, weight, c_begin + i, n, pair, u + i * 2 * lanes,
                      step);
}

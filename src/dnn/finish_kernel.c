/*
 * Bias, residual and activation in one pass over the sums that a vendor's library has computed, while they are in a cache.
 *
 *   onednn.c, openblas.c: run -> the library -> plan->kernels->finish
 *
 * oneDNN's own relu and clip are not used: they replace NaN by a number (measured with 3.2), PyTorch's keep it.
 */
#include "dnn/list.h"
#include "dnn/simd.h"

#include <math.h>

dnn_finish_fn ISA_NAME(dnn_finish);
void ISA_NAME(dnn_finish)(const struct dnn_problem *problem, const float *sum, const float *bias,
                          const float *residual, float *y, int64_t n) {
    /* Without activation the bounds are infinite. Comparisons with NaN are false, so a NaN is kept. */
    const bool is_clamp = problem->act == DNN_ACT_CLAMP;
    const float relu = problem->act == DNN_ACT_RELU ? 0 : -INFINITY;
    const float min = is_clamp ? problem->act_min : relu;
    const float max = is_clamp ? problem->act_max : INFINITY;
    const vec low = vec_set(min), high = vec_set(max);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vec v = vec_load(sum + i);
        if (bias) v += vec_load(bias + i);
        if (residual) v += vec_load(residual + i);
        vec_store(y + i, vec_min(vec_max(v, low), high));
    }
    for (; i < n; i++) {
        float v = sum[i];
        if (bias) v += bias[i];
        if (residual) v += residual[i];
        v = v < min ? min : v;
        y[i] = v > max ? max : v;
    }
}

/*
 * Behind a library's sum: bias, residual and activation in one pass, while the values are in a cache.
 *
 * Libraries could do it themselves, but oneDNN's relu and clip make numbers of NaN (measured with 3.2), and PyTorch's do not.
 */
#include "dnn/list.h"
#include "dnn/simd.h"

#include <math.h>

struct range {
    float low, high;
};

/* With these bounds max and min leave every value as it is, NaN too. */
static struct range find_range(const struct dnn_problem *problem) {
    if (problem->act == DNN_ACT_RELU) return (struct range){0, INFINITY};
    if (problem->act == DNN_ACT_CLAMP) return (struct range){problem->act_min, problem->act_max};
    return (struct range){-INFINITY, INFINITY};
}

/* Comparisons are false for NaN, which so passes through. */
static float clamp(float v, struct range range) {
    v = v < range.low ? range.low : v;
    return v > range.high ? range.high : v;
}

dnn_finish_fn ISA_NAME(dnn_finish);
void ISA_NAME(dnn_finish)(const struct dnn_problem *problem, const float *sum, const float *bias,
                          const float *residual, float *y, int64_t n) {
    const struct range range = find_range(problem);
    const vec low = vec_set(range.low), high = vec_set(range.high);
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
        y[i] = clamp(v, range);
    }
}

/* What follows a sum that a vendor's library computed: bias, residual, activation. */
#ifndef SOL_DNN_FINISH_H
#define SOL_DNN_FINISH_H

#include "dnn/dnn.h"

struct dnn_finish_kernels {
    /* y[i] = act(sum[i] + bias[i] + residual[i]) for i < n; bias and residual may be NULL; sum may be y. */
    void (*run)(const struct dnn_problem *problem, const float *sum, const float *bias,
                const float *residual, float *y, int64_t n);
};

#endif

/*
 * Products by VEDNN: text for the device, behind dnn/product_plain.h and vednn.h.
 *
 *   one task -> run_library: a call for the whole batch, which VEDNN divides into parts for all cores -> finish: bias, activation
 *            -> where VEDNN cannot compute it: the units of product_plain.h
 *
 * VEDNN cannot leave out gaps between samples, and may refuse sizes or lack memory, which is known only here.
 */
#ifdef KERNEL_MATRIX
/* The weight is [output][input], but that of VEDNN's layers [input][output]. So this is the gradient of a layer of VEDNN that has as many
 * inputs as this one has outputs. */
static int run_library(const problem *p, void *const *ptr, const int64_t *arg) {
    (void)arg;
    return vednnLinearBackwardData((unsigned long)p->columns, (unsigned long)p->terms,
                                   (unsigned long)p->rows, ptr[X], ptr[WEIGHT], ptr[Y]);
}
#else
static int run_library(const problem *p, void *const *ptr, const int64_t *arg) {
    const int64_t *side = arg + SIZES, c = p->groups * p->c, k = p->groups * p->k;
    const int n = (int)p->batch;
    const struct vednn_tensor x = {0, n, (int)c, (int)side[1], (int)side[0]};
    const struct vednn_tensor y = {0, n, (int)k, (int)side[3], (int)side[2]};
    const struct vednn_filter weight = {0, 0, (int)p->c, (int)p->k, (int)p->kw, (int)p->kh};
    const struct vednn_convolution convolution = {
        (int)p->groups, (int)p->sw, (int)p->sh, (int)p->pl, (int)p->pt, (int)p->dw, (int)p->dh};
    if (n != p->batch || p->x_stride != c * side[0] * side[1] ||
        p->y_stride != k * side[2] * side[3])
        return 1;
#ifdef KERNEL_WEIGHT
    return vednnConvolutionBackwardFilter(&x, ptr[X], &y, ptr[WEIGHT], &weight, ptr[Y],
                                          &convolution, 0);
#else
    return vednnConvolutionForward(&x, ptr[X], &weight, ptr[WEIGHT], &y, ptr[Y], &convolution, 0);
#endif
}
#endif

/* A row of y is a channel of a sample, which has one bias, or a row of a linear layer, whose columns have. */
static void finish(const problem *p, void *const *ptr, const int64_t *arg) {
    (void)arg;
#ifndef KERNEL_WEIGHT
    const float *bias = (const float *)ptr[BIAS];
#ifdef KERNEL_CONV
    const int64_t channels = p->groups * p->k, n = p->batch * channels, columns = p->oh * p->ow;
#else
    const int64_t n = p->rows, columns = p->columns;
#endif
#ifndef MIN
    if (!bias) return;
#endif
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) {
        struct unit u = {0};
        u.n_columns = columns;
#ifdef KERNEL_CONV
        if (bias) u.row_bias = bias + i % channels;
#else
        u.column_bias = bias;
#endif
        finish_row(&u, 0, (float *)ptr[Y] + i * columns);
    }
#endif
}

/*
 * Replaces composite layers by simple ones, the only ones that all later code handles.
 *
 *   batch_norm(x, mean, var, weight, bias) -> x * scale + shift,  scale = weight / sqrt(var + eps), shift = bias - mean * scale
 *   softmax(x) -> e / sum(e),  e = exp(x - max(x))
 *
 * scale and shift depend on parameters only, so `prepack` computes them, once per version of the parameters.
 */
#include "pass/pass.h"

/* Reshapes [C] to [C, 1, 1, ..], which broadcasts along axis 1 of a tensor of rank `rank`. The rank is at least 2, as shape
 * inference of batch_norm requires. */
static struct tensor *align_channel(struct model *m, struct tensor *x, int rank) {
    struct size dim[SOL_MAX_RANK];
    dim[0] = ir_elements(x);
    for (int i = 1; i < rank - 1; i++) dim[i] = size_const(1);
    return pass_reshape(m, x, rank - 1, dim);
}

static struct tensor *decompose_batch_norm(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0], *mean = l->in[1], *var = l->in[2], *weight = l->in[3],
                  *bias = l->in[4];
    struct tensor *eps = pass_scalar(m, x->dtype, l->attr.eps);
    struct tensor *deviation = pass_binary(m, LAYER_add, var, eps, l->origin);
    struct tensor *inverse = pass_add(m, LAYER_rsqrt, 1, &deviation, NULL, l->origin);
    struct tensor *scale = pass_binary(m, LAYER_mul, weight, inverse, l->origin);
    struct tensor *shift = pass_binary(
        m, LAYER_sub, bias, pass_binary(m, LAYER_mul, mean, scale, l->origin), l->origin);
    if (!scale || !shift) return NULL;
    struct tensor *product =
        pass_binary(m, LAYER_mul, x, align_channel(m, scale, x->rank), l->origin);
    return pass_binary(m, LAYER_add, product, align_channel(m, shift, x->rank), l->origin);
}

/* The axis stays with length 1, so that the result broadcasts with x. */
static struct tensor *reduce_axis(struct model *m, enum layer_kind kind, struct tensor *x,
                                  int64_t axis) {
    struct attr attr = ir_default_attr();
    attr.n_axes = 1;
    attr.axes[0] = axis;
    attr.keepdim = true;
    return pass_add(m, kind, 1, &x, &attr, NULL);
}

/* Subtracting the maximum keeps exponents <= 0, so exp does not overflow, and the sum is at least 1. */
static struct tensor *decompose_softmax(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0];
    struct tensor *top = reduce_axis(m, LAYER_reduce_max, x, l->attr.axis);
    struct tensor *below = pass_binary(m, LAYER_sub, x, top, l->origin);
    struct tensor *e = pass_add(m, LAYER_exp, 1, &below, NULL, l->origin);
    struct tensor *total = e ? reduce_axis(m, LAYER_sum, e, l->attr.axis) : NULL;
    return pass_binary(m, LAYER_div, e, total, l->origin);
}

static const struct pass_rule rules[] = {{LAYER_batch_norm, decompose_batch_norm},
                                         {LAYER_softmax, decompose_softmax}};

enum sol_status pass_decompose(struct model *m) { return pass_apply(m, rules, COUNT(rules)); }

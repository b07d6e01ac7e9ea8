/*
 * Replaces composite layers by simple ones, the only ones that all later code handles.
 *
 *   batch_norm(x, mean, var, weight, bias) -> x * scale + shift,  scale = weight / sqrt(var + eps), shift = bias - mean * scale
 *   softmax(x) -> e * (1 / sum(e)),  e = exp(x - max(x))
 *   log_softmax(x) -> d - log(sum(exp(d))),  d = x - max(x)
 *   argmax(x) -> min(where(x == max(x) or x is NaN, position, large))
 *
 * scale and shift depend on parameters only, so PREPACK computes them, once per version of the parameters. The other composites
 * are in decompose_norm.c, decompose_attention.c, decompose_transposed.c, decompose_random.c and decompose_volume.c.
 */
#include "pass/decompose.h"

/* ---- Helpers ---- */

struct tensor *decompose_unary(struct model *m, const struct layer *l, enum layer_kind kind,
                               struct tensor *x) {
    return make_unary(m, kind, x, l->origin);
}

struct tensor *decompose_binary(struct model *m, const struct layer *l, enum layer_kind kind,
                                struct tensor *x, struct tensor *y) {
    return make_binary(m, kind, x, y, l->origin);
}

struct tensor *decompose_with(struct model *m, const struct layer *l, enum layer_kind kind,
                              struct tensor *x, double value) {
    return make_with(m, kind, x, value, l->origin);
}

struct tensor *decompose_reduce(struct model *m, const struct layer *l, enum layer_kind kind,
                                struct tensor *x, int n, const int64_t *axes, bool keepdim) {
    return make_reduce(m, kind, x, n, axes, keepdim, l->origin);
}

/* ---- Batch norm ---- */

/* Reshapes [C] to [C, 1, 1, ..], which broadcasts along axis 1 of a tensor of rank `rank`. The rank is at least 2, as shape
 * inference of batch_norm requires. */
static struct tensor *align_channel(struct model *m, struct tensor *x, int rank) {
    struct size dim[SOL_MAX_RANK];
    dim[0] = ir_elements(x);
    for (int i = 1; i < rank - 1; i++) dim[i] = size_const(1);
    return make_reshape(m, x, rank - 1, dim);
}

static struct tensor *decompose_batch_norm(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0], *mean = l->in[1], *var = l->in[2], *weight = l->in[3],
                  *bias = l->in[4];
    struct tensor *eps = make_scalar(m, x->dtype, l->attr.eps);
    struct tensor *deviation = make_binary(m, LAYER_add, var, eps, l->origin);
    struct tensor *inverse = make_layer(m, LAYER_rsqrt, 1, &deviation, NULL, l->origin);
    struct tensor *scale = make_binary(m, LAYER_mul, weight, inverse, l->origin);
    struct tensor *shift = make_binary(
        m, LAYER_sub, bias, make_binary(m, LAYER_mul, mean, scale, l->origin), l->origin);
    if (!scale || !shift) return NULL;
    struct tensor *product =
        make_binary(m, LAYER_mul, x, align_channel(m, scale, x->rank), l->origin);
    return make_binary(m, LAYER_add, product, align_channel(m, shift, x->rank), l->origin);
}

/* ---- Softmax ---- */

/* The axis stays with length 1, so that the result broadcasts with x. */
static struct tensor *reduce_axis(struct model *m, const struct layer *l, enum layer_kind kind,
                                  struct tensor *x) {
    return make_reduce(m, kind, x, 1, &l->attr.axis, true, NULL);
}

/* Subtracting the maximum keeps exponents <= 0, so exp does not overflow, and the sum is at least 1. An empty axis has no maximum,
 * but then the result has no values either. */
static struct tensor *decompose_softmax(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0];
    if (size_is(x->dim[l->attr.axis], 0)) return x;
    struct tensor *below =
        decompose_binary(m, l, LAYER_sub, x, reduce_axis(m, l, LAYER_reduce_max, x));
    struct tensor *e = decompose_unary(m, l, LAYER_exp, below);
    struct tensor *total = reduce_axis(m, l, LAYER_sum, e);
    return decompose_binary(m, l, LAYER_mul, e, decompose_unary(m, l, LAYER_reciprocal, total));
}

/* The logarithm of the softmax would lose digits. */
static struct tensor *decompose_log_softmax(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0];
    if (size_is(x->dim[l->attr.axis], 0)) return x;
    const int64_t *axis = &l->attr.axis;
    struct tensor *top = decompose_reduce(m, l, LAYER_reduce_max, x, 1, axis, true);
    struct tensor *below = decompose_binary(m, l, LAYER_sub, x, top);
    struct tensor *e = decompose_unary(m, l, LAYER_exp, below),
                  *total = decompose_reduce(m, l, LAYER_sum, e, 1, axis, true);
    return decompose_binary(m, l, LAYER_sub, below, decompose_unary(m, l, LAYER_log, total));
}

/* Is x NaN? */
static struct tensor *find_nan(struct model *m, struct tensor *x) {
    struct tensor *same = make_binary(m, LAYER_equal, x, x, NULL);
    return make_layer(m, LAYER_bit_not, 1, &same, NULL, NULL);
}

/*
 * argmax(x) -> the least position where x is its maximum, or NaN. If a value is NaN, the maximum is NaN and equals
 * nothing, so the first NaN is found.
 */
static struct tensor *decompose_extreme(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0];
    bool is_max = l->kind == LAYER_argmax;
    struct tensor *top = reduce_axis(m, l, is_max ? LAYER_reduce_max : LAYER_reduce_min, x);
    struct tensor *found = make_binary(m, LAYER_equal, x, top, l->origin);
    if (size_family(x->dtype) == FAMILY_FLOAT && found)
        found = make_binary(m, LAYER_bit_or, found, find_nan(m, x), l->origin);
    struct tensor *at[3] = {found,
                            make_positions(m, SOL_I32, x->rank, l->attr.axis, x->dim[l->attr.axis]),
                            make_scalar(m, SOL_I32, INT32_MAX)};
    struct tensor *first = make_layer(m, LAYER_where, 3, at, NULL, l->origin);
    struct tensor *index = first ? reduce_axis(m, l, LAYER_reduce_min, first) : NULL;
    struct attr wide = ir_default_attr();
    wide.dtype = SOL_I64;
    if (index) index = make_layer(m, LAYER_cast, 1, &index, &wide, NULL);
    if (!index || l->attr.keepdim) return index;
    return make_reshape(m, index, l->out[0]->rank, l->out[0]->dim);
}

static const struct pass_rule rules[] = {{LAYER_conv_transpose, decompose_conv_transpose},
                                         {LAYER_conv, decompose_volume},
                                         {LAYER_batch_norm, decompose_batch_norm},
                                         {LAYER_layer_norm, decompose_layer_norm},
                                         {LAYER_rms_norm, decompose_rms_norm},
                                         {LAYER_group_norm, decompose_group_norm},
                                         {LAYER_softmax, decompose_softmax},
                                         {LAYER_log_softmax, decompose_log_softmax},
                                         {LAYER_attention, decompose_attention},
                                         {LAYER_logsumexp, decompose_logsumexp},
                                         {LAYER_norm, decompose_norm},
                                         {LAYER_variance, decompose_variance},
                                         {LAYER_sum, decompose_reduction},
                                         {LAYER_mean, decompose_reduction},
                                         {LAYER_random, decompose_random},
                                         {LAYER_argmax, decompose_extreme},
                                         {LAYER_argmin, decompose_extreme}};

enum sol_status pass_decompose(struct model *m) { return pass_apply(m, rules, COUNT(rules)); }

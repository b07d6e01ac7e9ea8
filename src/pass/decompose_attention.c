/*
 * attention(q, k, v, mask) -> softmax(cap(q k^T * scale) + mask) v
 *
 * Grouped heads: if h heads of q share one head of k and v, q[..,g*h,m,d] becomes [..,g,h,m,d], and k and v get a dim of 1
 * in the place of h. The products broadcast over it, so k and v are not copied.
 *
 * A row that is masked as a whole gives 0 instead of NaN, as in PyTorch and ONNX (row_softmax), unless the layer is strict.
 */
#include "pass/decompose.h"

#include <math.h>

/* Divides dim `rank - 3` into `groups` and the rest; a dim of 1 becomes two. Tensors without this dim stay. */
static struct tensor *split_heads(struct model *m, struct tensor *t, int64_t groups) {
    struct size dim[SOL_MAX_RANK];
    int at = t->rank - 3;
    if (at < 0) return t;
    int64_t heads = size_value(t->dim[at]);
    for (int d = 0; d < t->rank; d++) dim[d + (d > at)] = t->dim[d];
    dim[at] = size_const(heads == 1 ? 1 : groups);
    dim[at + 1] = size_const(heads == 1 ? 1 : heads / groups);
    return pass_reshape(m, t, t->rank + 1, dim);
}

/* Exchanges the last two dims. */
static struct tensor *transpose(struct model *m, const struct layer *l, struct tensor *x) {
    struct attr attr = ir_default_attr();
    if (!x) return NULL;
    attr.n_axes = x->rank;
    for (int d = 0; d < x->rank; d++) attr.axes[d] = d;
    attr.axes[x->rank - 1] = x->rank - 2;
    attr.axes[x->rank - 2] = x->rank - 1;
    return pass_add(m, LAYER_permute, 1, &x, &attr, l->origin);
}

/* cap * tanh(x / cap) stays between -cap and cap; 0: no limit. */
static struct tensor *cap(struct model *m, const struct layer *l, struct tensor *x) {
    double limit = l->attr.softcap;
    if (limit == 0) return x;
    x = decompose_unary(m, l, LAYER_tanh, decompose_with(m, l, LAYER_mul, x, 1 / limit));
    return decompose_with(m, l, LAYER_mul, x, limit);
}

/* Row i sees columns 0 to i only. */
static struct tensor *hide_later(struct model *m, const struct layer *l, struct tensor *x) {
    struct attr attr = ir_default_attr();
    attr.value = -(double)INFINITY;
    return l->attr.causal ? pass_add(m, LAYER_tril, 1, &x, &attr, l->origin) : x;
}

/* Softmax over the last dim. The maximum is limited to a finite number and the sum to at least 1. A row of only -infinity then has
 * exponentials of 0, and 0 / 1 = 0; without the limits, of a strict layer, it has NaN. For any other row the limits have no effect: its largest element adds exp(0) = 1 to the sum. */
static struct tensor *row_softmax(struct model *m, const struct layer *l, struct tensor *x) {
    if (!x) return NULL;
    const int64_t last = x->rank - 1;
    struct tensor *top = decompose_reduce(m, l, LAYER_reduce_max, x, 1, &last, true);
    if (!l->attr.strict) top = decompose_with(m, l, LAYER_maximum, top, -decompose_largest(x));
    struct tensor *e = decompose_unary(m, l, LAYER_exp, decompose_binary(m, l, LAYER_sub, x, top));
    struct tensor *total = decompose_reduce(m, l, LAYER_sum, e, 1, &last, true);
    if (!l->attr.strict) total = decompose_with(m, l, LAYER_maximum, total, 1);
    return decompose_binary(m, l, LAYER_div, e, total);
}

/* The inputs, with the heads divided into groups. k and v have one head per group. */
static void take_inputs(struct model *m, const struct layer *l, struct tensor *in[4]) {
    int64_t group = ir_head_group(l);
    for (int i = 0; i < l->n_in; i++) in[i] = l->in[i];
    if (group == 1) return;
    int64_t groups = size_value(l->in[1]->dim[l->in[1]->rank - 3]);
    for (int i = 0; i < l->n_in; i++) in[i] = split_heads(m, l->in[i], groups);
}

/* A float is added to the scores. Where a bool is false, the score becomes -infinity. */
static struct tensor *apply_mask(struct model *m, const struct layer *l, struct tensor *x,
                                 struct tensor *mask) {
    if (!x || !mask) return NULL;
    if (mask->dtype != SOL_BOOL) return decompose_binary(m, l, LAYER_add, x, mask);
    struct tensor *in[] = {mask, x, pass_scalar(m, x->dtype, -(double)INFINITY)};
    return pass_add(m, LAYER_where, 3, in, NULL, l->origin);
}

struct tensor *decompose_attention(struct model *m, const struct layer *l) {
    struct tensor *in[4] = {NULL};
    if (m->computes && m->computes(l, m->lanes)) return l->out[0];
    take_inputs(m, l, in);
    struct tensor *scores = decompose_binary(m, l, LAYER_matmul, in[0], transpose(m, l, in[1]));
    if (l->attr.scale != 1) scores = decompose_with(m, l, LAYER_mul, scores, l->attr.scale);
    scores = cap(m, l, scores);
    if (l->n_in > 3) scores = apply_mask(m, l, scores, in[3]);
    struct tensor *weights = row_softmax(m, l, hide_later(m, l, scores));
    struct tensor *y = decompose_binary(m, l, LAYER_matmul, weights, in[2]);
    return y && ir_head_group(l) > 1 ? pass_reshape(m, y, l->out[0]->rank, l->out[0]->dim) : y;
}

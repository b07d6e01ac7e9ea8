/*
 * The layers that attention stands for: attention(q, k, v, mask) -> softmax(cap(q k^T * scale) + mask) v
 *
 * Grouped heads: if h heads of q share one head of k and v, q[..,g*h,m,d] becomes [..,g,h,m,d], and k and v get a dim of 1
 * in the place of h. The products broadcast over it, so k and v are not copied.
 *
 * A row that is masked as a whole gives 0 instead of NaN, as in PyTorch and ONNX (row_softmax), unless the layer is strict.
 */
#include "ir/make.h"

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
    return make_reshape(m, t, t->rank + 1, dim);
}

/* cap * tanh(x / cap) stays between -cap and cap; 0: no limit. */
static struct tensor *cap(struct model *m, const struct layer *l, struct tensor *x) {
    double limit = l->attr.softcap;
    if (limit == 0) return x;
    x = make_unary(m, LAYER_tanh, make_with(m, LAYER_mul, x, 1 / limit, l->origin), l->origin);
    return make_with(m, LAYER_mul, x, limit, l->origin);
}

/* Row i sees columns 0 to i only. */
static struct tensor *hide_later(struct model *m, const struct layer *l, struct tensor *x) {
    struct attr attr = ir_default_attr();
    attr.value = -(double)INFINITY;
    return l->attr.causal ? make_layer(m, LAYER_tril, 1, &x, &attr, l->origin) : x;
}

/* Softmax over the last dim. The maximum is limited to a finite number and the sum to at least 1. A row of only -infinity then has
 * exponentials of 0, and 0 / 1 = 0; without the limits, of a strict layer, it has NaN. For any other row the limits have no effect: its
 * largest element adds exp(0) = 1 to the sum. */
static struct tensor *row_softmax(struct model *m, const struct layer *l, struct tensor *x) {
    if (!x) return NULL;
    const int64_t last = x->rank - 1;
    struct tensor *top = make_reduce(m, LAYER_reduce_max, x, 1, &last, true, l->origin);
    if (!l->attr.strict) top = make_with(m, LAYER_maximum, top, -make_largest(x), l->origin);
    struct tensor *e =
        make_unary(m, LAYER_exp, make_binary(m, LAYER_sub, x, top, l->origin), l->origin);
    struct tensor *total = make_reduce(m, LAYER_sum, e, 1, &last, true, l->origin);
    if (!l->attr.strict) total = make_with(m, LAYER_maximum, total, 1, l->origin);
    return make_binary(m, LAYER_div, e, total, l->origin);
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
    if (mask->dtype != SOL_BOOL) return make_binary(m, LAYER_add, x, mask, l->origin);
    struct tensor *in[] = {mask, x, make_scalar(m, x->dtype, -(double)INFINITY)};
    return make_layer(m, LAYER_where, 3, in, NULL, l->origin);
}

void make_attention_weights(struct model *m, const struct layer *l, struct attention *a) {
    *a = (struct attention){.v = NULL};
    struct tensor *in[4] = {NULL};
    take_inputs(m, l, in);
    a->q = in[0], a->k = in[1], a->v = in[2], a->mask = in[3];
    struct tensor *scores =
        make_binary(m, LAYER_matmul, in[0], make_transpose(m, in[1], l->origin), l->origin);
    if (l->attr.scale != 1) scores = make_with(m, LAYER_mul, scores, l->attr.scale, l->origin);
    a->scores = scores = cap(m, l, scores);
    if (l->n_in > 3) scores = apply_mask(m, l, scores, in[3]);
    a->weights = row_softmax(m, l, hide_later(m, l, scores));
}

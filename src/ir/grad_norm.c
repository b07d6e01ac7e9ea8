/*
 * Gradients of norms. With x^ = (x - mean) * f, f = 1 / sqrt(variance + eps), and g = dy * weight:
 *
 *   dx = f * (g - mean(g) - x^ * mean(g * x^)),   dweight = sum(dy * x^),   dbias = sum(dy)
 *
 * Ba, Kiros and Hinton, "Layer Normalization", arXiv 1607.06450. The statistics are computed again by the same layers as in the
 * forward part (pass/decompose_norm.c), so equal ones are computed once and only these small tensors are saved.
 */
#include "ir/rule.h"

/* The statistics of x over some axes. */
struct statistics {
    int n;
    const int64_t *axes;
    struct tensor *factor, *normal; /* f and x^ */
    bool centered;
};

static struct tensor *mean(struct rule *r, const struct statistics *s, struct tensor *x) {
    return make_reduce(r->m, LAYER_mean, x, s->n, s->axes, true, r->layer->origin);
}

static void find_statistics(struct rule *r, struct tensor *x, struct statistics *s) {
    if (s->centered) x = SUB(x, mean(r, s, x));
    s->factor = UNARY(rsqrt, ADD(mean(r, s, SQUARE(x)), NUM(r->layer->attr.eps)));
    s->normal = MUL(x, s->factor);
}

static struct tensor *back(struct rule *r, const struct statistics *s, struct tensor *g) {
    struct tensor *inner = MUL(s->normal, mean(r, s, MUL(g, s->normal)));
    if (s->centered) inner = ADD(mean(r, s, g), inner);
    return MUL(s->factor, SUB(g, inner));
}

static void norm(struct rule *r, bool centered) {
    const struct layer *l = r->layer;
    struct statistics s = {.n = l->attr.n_axes, .axes = l->attr.axes, .centered = centered};
    find_statistics(r, X, &s);
    rule_give(r, 0, back(r, &s, l->n_in > 1 ? MUL(DY, l->in[1]) : DY));
    if (l->n_in > 1) rule_give(r, 1, MUL(DY, s.normal));
    if (l->n_in > 2) rule_give(r, 2, DY);
}
void grad_layer_norm(struct rule *r) { norm(r, true); }
void grad_rms_norm(struct rule *r) { norm(r, false); }

/* A vector with a value per channel, as a tensor that broadcasts along axis 1 of x. */
static struct tensor *align(struct rule *r, struct tensor *vector) {
    struct size dim[SOL_MAX_RANK];
    for (int d = 0; d < X->rank - 1; d++) dim[d] = d ? size_const(1) : X->dim[1];
    return vector ? make_reshape(r->m, vector, X->rank - 1, dim) : NULL;
}

/* The sum over all dims but the channels, as a vector. */
static struct tensor *sum_channels(struct rule *r, struct tensor *x) {
    int64_t axes[SOL_MAX_RANK];
    int n = 0;
    for (int d = 0; d < X->rank; d++)
        if (d != 1) axes[n++] = d;
    return make_reduce(r->m, LAYER_sum, x, n, axes, false, r->layer->origin);
}

/* x as [n, groups, channels of a group, other dims] is normalized over the last two. */
void grad_group_norm(struct rule *r) {
    static const int64_t axes[] = {2, 3};
    const struct layer *l = r->layer;
    const int64_t each = size_value(X->dim[1]) / l->attr.groups;
    const struct size dim[] = {X->dim[0], size_const(l->attr.groups), size_const(each),
                               ir_count(X, 2, X->rank)};
    struct statistics s = {.n = 2, .axes = axes, .centered = true};
    struct tensor *g = l->n_in > 1 ? MUL(DY, align(r, l->in[1])) : DY;
    find_statistics(r, make_reshape(r->m, X, 4, dim), &s);
    struct tensor *dx = back(r, &s, make_reshape(r->m, g, 4, dim));
    rule_give(r, 0, make_reshape(r->m, dx, X->rank, X->dim));
    struct tensor *normal = make_reshape(r->m, s.normal, X->rank, X->dim);
    if (l->n_in > 1) rule_give(r, 1, sum_channels(r, MUL(DY, normal)));
    if (l->n_in > 2) rule_give(r, 2, sum_channels(r, DY));
}

/*
 * Inputs: x, and per channel mean, variance, weight, bias. The statistics are inputs like others: those of a batch are layers, whose
 * rules give the rest of x's gradient.
 */
void grad_batch_norm(struct rule *r) {
    struct tensor **in = r->layer->in;
    struct tensor *factor = UNARY(rsqrt, ADD(in[2], NUM(r->layer->attr.eps)));
    struct tensor *scale = MUL(in[3], factor);
    rule_give(r, 0, MUL(DY, align(r, scale)));
    struct tensor *total = sum_channels(r, DY);
    struct tensor *moment = sum_channels(r, MUL(DY, SUB(X, align(r, in[1]))));
    rule_give(r, 1, UNARY(neg, MUL(total, scale)));
    rule_give(r, 2, MUL(MUL(moment, scale), MUL(SQUARE(factor), NUM(-0.5))));
    rule_give(r, 3, MUL(moment, factor));
    rule_give(r, 4, total);
}

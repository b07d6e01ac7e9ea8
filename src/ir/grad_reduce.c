/* Gradients of reductions, of softmax and of running sums. */
#include "ir/rule.h"

static struct tensor *sum_along(struct rule *r, struct tensor *x) {
    return make_reduce(r->m, LAYER_sum, x, 1, &r->layer->attr.axis, true, r->layer->origin);
}

static struct tensor *count_reduced(struct rule *r) {
    return rule_count(r, X, r->layer->attr.n_axes, r->layer->attr.axes);
}

void grad_sum(struct rule *r) { rule_give(r, 0, rule_keep_axes(r, DY)); }
void grad_mean(struct rule *r) { rule_give(r, 0, DIV(rule_keep_axes(r, DY), count_reduced(r))); }

/* The product of the other values: y / x without zeros; with one zero, its own gradient is the product of the others, as all are 0
 * with two. */
void grad_prod(struct rule *r) {
    struct tensor *is_zero = BINARY(equal, X, NUM(0)), *others = WHERE(is_zero, NUM(1), X);
    struct tensor *zeros = rule_reduce(r, LAYER_sum, WHERE(is_zero, NUM(1), NUM(0)));
    struct tensor *product = rule_reduce(r, LAYER_prod, others);
    struct tensor *alone = BINARY(bit_and, is_zero, BINARY(equal, zeros, NUM(1)));
    struct tensor *slope =
        WHERE(BINARY(equal, zeros, NUM(0)), DIV(product, others), WHERE(alone, product, NUM(0)));
    rule_give(r, 0, MUL(rule_keep_axes(r, DY), slope));
}

/* Equal extremes share dy. */
static void share_extreme(struct rule *r, struct tensor *x, struct tensor *y) {
    struct tensor *found = WHERE(BINARY(equal, x, y), NUM(1), NUM(0));
    struct tensor *share = DIV(rule_keep_axes(r, DY), rule_reduce(r, LAYER_sum, found));
    rule_give(r, 0, MUL(share, found));
}

/* strict: the first extreme along the only axis has all of dy. */
static void give_first(struct rule *r) {
    struct attr at = ir_default_attr();
    at.axis = r->layer->attr.axes[0];
    at.keepdim = true;
    const bool is_max = r->layer->kind == LAYER_reduce_max;
    struct tensor *first =
        make_layer(r->m, is_max ? LAYER_argmax : LAYER_argmin, 1, &X, &at, r->layer->origin);
    struct tensor *place = make_positions(r->m, SOL_I64, X->rank, at.axis, X->dim[at.axis]);
    rule_give(r, 0, WHERE(BINARY(equal, place, first), rule_keep_axes(r, DY), NUM(0)));
}

void grad_reduce_extreme(struct rule *r) {
    if (r->layer->attr.strict && r->layer->attr.n_axes == 1) give_first(r);
    else share_extreme(r, X, rule_keep_axes(r, Y));
}

void grad_logsumexp(struct rule *r) {
    struct tensor *weight = UNARY(exp, SUB(X, rule_keep_axes(r, Y)));
    rule_give(r, 0, MUL(rule_keep_axes(r, DY), weight));
}

/* y = (sum of |x|^p)^(1/p): dy * sign(x) * (|x| / y)^(p-1), and 0 where y is 0. */
void grad_norm(struct rule *r) {
    const double p = r->layer->attr.p;
    struct tensor *y = rule_keep_axes(r, Y), *dy = rule_keep_axes(r, DY), *size = UNARY(abs, X);
    struct tensor *slope, *sign = UNARY(sign, X);
    if (isinf(p)) {
        struct tensor *found = WHERE(BINARY(equal, size, y), sign, NUM(0));
        struct tensor *n = rule_reduce(r, LAYER_sum, UNARY(abs, found));
        slope = DIV(found, BINARY(maximum, n, NUM(1)));
    } else if (p == 0) slope = NUM(0);
    else if (p == 1) slope = sign;
    else if (p == 2) slope = DIV(X, y);
    else slope = MUL(sign, BINARY(pow, DIV(size, y), NUM(p - 1)));
    rule_give(r, 0, WHERE(BINARY(equal, y, NUM(0)), NUM(0), MUL(dy, slope)));
}

/* 2 * (x - mean) / (n - correction) */
void grad_variance(struct rule *r) {
    struct tensor *centered = SUB(X, rule_reduce(r, LAYER_mean, X));
    struct tensor *n = SUB(count_reduced(r), NUM(r->layer->attr.correction));
    struct tensor *factor = DIV(MUL(rule_keep_axes(r, DY), NUM(2)), n);
    rule_give(r, 0, MUL(factor, centered));
}

/* The sum over all later positions is a running sum from the end. */
static struct tensor *reverse(struct rule *r, struct tensor *x) {
    struct attr attr = ir_default_attr();
    if (!x) return NULL;
    attr.axis = r->layer->attr.axis;
    attr.n_shape = 1;
    attr.shape[0] = x->dim[attr.axis];
    attr.start = size_sub(x->dim[attr.axis], size_const(1));
    attr.step = -1;
    return make_layer(r->m, LAYER_slice, 1, &x, &attr, r->layer->origin);
}
void grad_cumsum(struct rule *r) {
    struct tensor *x = reverse(r, DY);
    struct attr attr = ir_default_attr();
    attr.axis = r->layer->attr.axis;
    rule_give(r, 0, reverse(r, make_layer(r->m, LAYER_cumsum, 1, &x, &attr, r->layer->origin)));
}

/* y * (dy - sum(dy * y)) */
void grad_softmax(struct rule *r) {
    struct tensor *product = MUL(DY, Y);
    rule_give(r, 0, SUB(product, MUL(Y, sum_along(r, product))));
}
void grad_log_softmax(struct rule *r) {
    rule_give(r, 0, SUB(DY, MUL(UNARY(exp, Y), sum_along(r, DY))));
}

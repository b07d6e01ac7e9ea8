/*
 * Pointwise layers as point expressions. Quotients, bits and comparisons: define_number.c; windows and reductions:
 * define_window.c; layers that move values: define_shape.c.
 *
 *   layer  ->  ir_define: the define function of its kind  ->  struct expr
 *
 * The formulas are PyTorch's. DFP generates kernels from these expressions and uses no other description of a layer.
 */
#include "ir/define.h"

#include <math.h>
#include <string.h>

struct expr *ir_define(struct arena *arena, const struct layer *layer, int *n_vars) {
    const struct tensor *typical = layer->n_in ? layer->in[layer->n_in - 1] : layer->out[0];
    struct define d = {.arena = arena, .layer = layer, .n_vars = layer->out[0]->rank};
    d.type = typical->dtype;
    struct expr *e = layer_infos[layer->kind].define(&d);
    *n_vars = d.n_vars;
    return e;
}

/* ---- Building blocks ---- */

const struct index **define_point(struct define *d, int rank) {
    const struct index **index = ARENA_ARRAY(d->arena, const struct index *, rank + 1);
    for (int i = 0; i < rank; i++) index[i] = VAR(i);
    return index;
}

struct expr *define_load(struct define *d, int i, const struct index **index, bool checked,
                         double fill) {
    struct expr load = {.kind = EXPR_LOAD, .index = index, .checked = checked, .fill = fill};
    load.tensor = d->layer->in[i];
    load.type = load.tensor->dtype;
    load.n_index = load.tensor->rank;
    return arena_copy(d->arena, &load, sizeof load);
}

const struct index *define_broadcast(struct define *d, const struct tensor *in, int dim) {
    const struct tensor *out = d->layer->out[0];
    int var = out->rank - in->rank + dim;
    bool splat = size_is(in->dim[dim], 1) && !size_is(out->dim[var], 1);
    return splat ? NUMBER(0) : VAR(var);
}

struct expr *define_in(struct define *d, int i) {
    const struct tensor *in = d->layer->in[i];
    const struct index **index = ARENA_ARRAY(d->arena, const struct index *, in->rank + 1);
    for (int k = 0; k < in->rank; k++) index[k] = define_broadcast(d, in, k);
    return define_load(d, i, index, false, 0);
}

struct expr *define_reduce(struct define *d, enum combine combine, int n,
                           const struct size *extent) {
    struct expr reduce = {.kind = EXPR_REDUCE, .type = d->type, .combine = combine, .n_vars = n};
    reduce.first_var = d->n_vars;
    reduce.extent = arena_copy(d->arena, extent, sizeof *extent * (size_t)n);
    d->n_vars += n;
    return arena_copy(d->arena, &reduce, sizeof reduce);
}

struct expr *define_range(struct define *d, const struct index *index, struct size low,
                          struct size high) {
    struct expr range = {
        .kind = EXPR_RANGE, .type = SOL_BOOL, .n_index = 1, .low = low, .high = high};
    range.index = arena_copy(d->arena, &index, sizeof index);
    return arena_copy(d->arena, &range, sizeof range);
}

#define X define_in(d, 0)
#define Y define_in(d, 1)

struct expr *define_none(struct define *d) {
    (void)d;
    return NULL;
}
struct expr *define_scalar(struct define *d) { return C(d->layer->attr.value); }
struct expr *define_cast(struct define *d) { return CAST(d->layer->attr.dtype, X); }

/* ---- One input ---- */

/* min(max(x, low), high), which is `high` if low > high. Infinite bounds are left out. */
static struct expr *clamp(struct define *d, struct expr *x, double low, double high) {
    struct expr *e = x;
    if (low != -INFINITY) e = BINARY(MAX, e, C(low));
    return high != INFINITY ? BINARY(MIN, e, C(high)) : e;
}
/* 1 / (1 + exp(-x)) */
static struct expr *sigmoid(struct define *d, struct expr *x) {
    return BINARY(DIV, C(1), BINARY(ADD, C(1), UNARY(EXP, UNARY(NEG, x))));
}
/* log(1 + e) for e in [0, 1], exact also for small e: the factor e / ((1 + e) - 1) corrects the rounding of 1 + e. Goldberg,
 * "What every computer scientist should know about floating-point arithmetic", ACM Computing Surveys 23(1), 1991, theorem 4. */
static struct expr *log_one_plus(struct define *d, struct expr *e) {
    struct expr *sum = BINARY(ADD, C(1), e), *kept = BINARY(SUB, sum, C(1));
    struct expr *corrected = BINARY(MUL, UNARY(LOG, sum), BINARY(DIV, e, kept));
    return SELECT(BINARY(EQUAL, sum, C(1)), e, corrected);
}
/* log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-|x|)) */
static struct expr *softplus(struct define *d, struct expr *x) {
    struct expr *tail = log_one_plus(d, UNARY(EXP, UNARY(NEG, UNARY(ABS, x))));
    return BINARY(ADD, BINARY(MAX, x, C(0)), tail);
}
/* min(max(x + 3, 0), 6) / 6 */
static struct expr *hard_sigmoid(struct define *d, struct expr *x) {
    return BINARY(MUL, clamp(d, BINARY(ADD, x, C(3)), 0, 6), C(1.0 / 6));
}

struct expr *define_copy(struct define *d) { return X; }
struct expr *define_relu(struct define *d) { return BINARY(MAX, X, C(0)); }
struct expr *define_clamp(struct define *d) {
    return clamp(d, X, d->layer->attr.min, d->layer->attr.max);
}
/* x < 0 ? alpha * x : x */
struct expr *define_leaky_relu(struct define *d) {
    struct expr *x = X;
    return SELECT(BINARY(LESS, x, C(0)), BINARY(MUL, x, C(d->layer->attr.alpha)), x);
}
/* x * factor */
static struct expr *scaled(struct define *d, struct expr *x, double factor) {
    return factor == 1 ? x : BINARY(MUL, x, C(factor));
}
/* scale * (x < 0 ? alpha * (exp(input_scale * x) - 1) : x). Both sides are computed for all lanes of a vector, so min(x, 0) keeps
 * exp from overflowing. */
struct expr *define_elu(struct define *d) {
    const struct attr *a = &d->layer->attr;
    struct expr *x = X, *power = UNARY(EXP, scaled(d, BINARY(MIN, x, C(0)), a->input_scale)),
                *below = BINARY(MUL, C(a->alpha), BINARY(SUB, power, C(1)));
    return scaled(d, SELECT(BINARY(LESS, x, C(0)), below, x), a->scale);
}
struct expr *define_sigmoid(struct define *d) { return sigmoid(d, X); }
struct expr *define_tanh(struct define *d) { return UNARY(TANH, X); }
/* x * (1 + erf(x / sqrt 2)) / 2 */
struct expr *define_gelu(struct define *d) {
    struct expr *x = X, *one_plus = BINARY(ADD, C(1), UNARY(ERF, BINARY(MUL, x, C(M_SQRT1_2))));
    return BINARY(MUL, BINARY(MUL, x, C(0.5)), one_plus);
}
/* x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2; Hendrycks and Gimpel, arXiv 1606.08415 */
struct expr *define_gelu_tanh(struct define *d) {
    struct expr *x = X, *cubed = BINARY(MUL, BINARY(MUL, x, x), x);
    struct expr *inner = BINARY(ADD, x, BINARY(MUL, cubed, C(0.044715)));
    struct expr *t = UNARY(TANH, BINARY(MUL, inner, C(sqrt(M_2_PI))));
    return BINARY(MUL, BINARY(MUL, x, C(0.5)), BINARY(ADD, C(1), t));
}
/* x * sigmoid(x) as x / (1 + exp(-x)): one division and no product */
struct expr *define_silu(struct define *d) {
    struct expr *x = X;
    return BINARY(DIV, x, BINARY(ADD, C(1), UNARY(EXP, UNARY(NEG, x))));
}
struct expr *define_hardsigmoid(struct define *d) { return hard_sigmoid(d, X); }
struct expr *define_hardswish(struct define *d) {
    struct expr *x = X;
    return BINARY(MUL, x, hard_sigmoid(d, x));
}
struct expr *define_softplus(struct define *d) { return softplus(d, X); }
/* x * tanh(softplus(x)). The logarithm and the hyperbolic tangent cancel: with e = exp(x) it is x * q / (q + 2),
 * q = e * (e + 2). For x >= 20 the quotient is 1 in float; the min keeps e * e from overflowing. */
struct expr *define_mish(struct define *d) {
    struct expr *x = X, *e = UNARY(EXP, BINARY(MIN, x, C(20))),
                *q = BINARY(MUL, e, BINARY(ADD, e, C(2)));
    return BINARY(MUL, x, BINARY(DIV, q, BINARY(ADD, q, C(2))));
}
struct expr *define_exp(struct define *d) { return UNARY(EXP, X); }
struct expr *define_log(struct define *d) { return UNARY(LOG, X); }
struct expr *define_sqrt(struct define *d) { return UNARY(SQRT, X); }
struct expr *define_rsqrt(struct define *d) { return BINARY(DIV, C(1), UNARY(SQRT, X)); }
struct expr *define_abs(struct define *d) { return UNARY(ABS, X); }
struct expr *define_neg(struct define *d) { return UNARY(NEG, X); }
struct expr *define_square(struct define *d) {
    struct expr *x = X;
    return BINARY(MUL, x, x);
}
struct expr *define_reciprocal(struct define *d) { return BINARY(DIV, C(1), X); }
struct expr *define_erf(struct define *d) { return UNARY(ERF, X); }
/* x / (1 + |x|) */
struct expr *define_softsign(struct define *d) {
    struct expr *x = X;
    return BINARY(DIV, x, BINARY(ADD, UNARY(ABS, x), C(1)));
}

/* ---- Two and three inputs ---- */

struct expr *define_add(struct define *d) { return BINARY(ADD, X, Y); }
struct expr *define_sub(struct define *d) { return BINARY(SUB, X, Y); }
struct expr *define_mul(struct define *d) { return BINARY(MUL, X, Y); }
struct expr *define_div(struct define *d) { return BINARY(DIV, X, Y); }
struct expr *define_maximum(struct define *d) { return BINARY(MAX, X, Y); }
struct expr *define_minimum(struct define *d) { return BINARY(MIN, X, Y); }
struct expr *define_prelu(struct define *d) {
    struct expr *x = X;
    return SELECT(BINARY(LESS, x, C(0)), BINARY(MUL, Y, x), x);
}
struct expr *define_where(struct define *d) { return SELECT(X, Y, define_in(d, 2)); }

/*
 * Gradients of pointwise layers: dx = dy * y'(x), written with x or with y, whichever is cheaper or kept anyway.
 *
 * Where a function has a kink, the choice is PyTorch's; where the formula needs a value that the layer has computed (y), that value is
 * saved or computed again, as the planner decides.
 */
#include "ir/rule.h"

/* ---- One input ---- */

static struct tensor *plus_one(struct rule *r, struct tensor *x) { return ADD(x, NUM(1)); }
static struct tensor *one_minus(struct rule *r, struct tensor *x) { return SUB(NUM(1), x); }

/* dy where the condition holds, else 0. */
static void give_where(struct rule *r, struct tensor *condition) {
    rule_give(r, 0, WHERE(condition, DY, NUM(0)));
}
static void give_unless(struct rule *r, struct tensor *condition) {
    rule_give(r, 0, WHERE(condition, NUM(0), DY));
}
static void give_times(struct rule *r, struct tensor *slope) { rule_give(r, 0, MUL(DY, slope)); }

/* A NaN is not <= 0, so it passes dy on. */
void grad_relu(struct rule *r) { give_unless(r, BINARY(less_equal, Y, NUM(0))); }

static struct tensor *both(struct rule *r, struct tensor *a, struct tensor *b) {
    return a && b ? BINARY(bit_and, a, b) : a ? a : b;
}
/* dy at the limits, too, unless it is strict (hardtanh, relu6); nothing where x is NaN. */
void grad_clamp(struct rule *r) {
    const double min = r->layer->attr.min, max = r->layer->attr.max;
    const bool low = min != -(double)INFINITY, high = max != (double)INFINITY;
    if (!low && !high) rule_give(r, 0, DY);
    else if (r->layer->attr.strict)
        give_where(r, both(r, low ? BINARY(less, NUM(min), X) : NULL,
                           high ? BINARY(less, X, NUM(max)) : NULL));
    else
        give_where(r, both(r, low ? BINARY(less_equal, NUM(min), X) : NULL,
                           high ? BINARY(less_equal, X, NUM(max)) : NULL));
}

void grad_leaky_relu(struct rule *r) {
    struct tensor *below = MUL(DY, NUM(r->layer->attr.alpha));
    rule_give(r, 0, WHERE(BINARY(less, NUM(0), X), DY, below));
}

/* scale * (x < 0 ? alpha * (exp(input_scale * x) - 1) : x); the minimum keeps exp from overflowing where it is not chosen. */
void grad_elu(struct rule *r) {
    const struct attr *a = &r->layer->attr;
    struct tensor *power = UNARY(exp, MUL(BINARY(minimum, X, NUM(0)), NUM(a->input_scale)));
    struct tensor *below = MUL(power, NUM(a->alpha * a->scale * a->input_scale));
    give_times(r, WHERE(BINARY(less_equal, X, NUM(0)), below, NUM(a->scale)));
}

void grad_sigmoid(struct rule *r) { give_times(r, MUL(Y, one_minus(r, Y))); }
void grad_tanh(struct rule *r) { give_times(r, one_minus(r, SQUARE(Y))); }

/* Phi(x) + x * phi(x), the normal distribution and its density. */
void grad_gelu(struct rule *r) {
    struct tensor *below = MUL(plus_one(r, UNARY(erf, MUL(X, NUM(M_SQRT1_2)))), NUM(0.5));
    struct tensor *density =
        MUL(UNARY(exp, MUL(SQUARE(X), NUM(-0.5))), NUM(M_2_SQRTPI * M_SQRT1_2 / 2));
    give_times(r, ADD(below, MUL(X, density)));
}

/* With t = tanh(u), u = sqrt(2 / pi) * (x + 0.044715 x^3): (1 + t) / 2 + x / 2 * (1 - t^2) * u'. */
void grad_gelu_tanh(struct rule *r) {
    const double k = sqrt(M_2_PI), c = 0.044715;
    struct tensor *squared = SQUARE(X);
    struct tensor *u = MUL(MUL(X, plus_one(r, MUL(squared, NUM(c)))), NUM(k));
    struct tensor *t = UNARY(tanh, u), *slope = MUL(plus_one(r, MUL(squared, NUM(3 * c))), NUM(k));
    struct tensor *tail = MUL(MUL(MUL(X, NUM(0.5)), one_minus(r, SQUARE(t))), slope);
    give_times(r, ADD(MUL(plus_one(r, t), NUM(0.5)), tail));
}

/* With s = sigmoid(x): s * (1 + x * (1 - s)). */
void grad_silu(struct rule *r) {
    struct tensor *s = UNARY(sigmoid, X);
    give_times(r, MUL(s, plus_one(r, MUL(X, one_minus(r, s)))));
}

void grad_hardsigmoid(struct rule *r) {
    struct tensor *inside = BINARY(less, UNARY(abs, X), NUM(3));
    rule_give(r, 0, WHERE(inside, MUL(DY, NUM(1.0 / 6)), NUM(0)));
}

/* 0 up to -3, dy from 3 on. */
void grad_hardswish(struct rule *r) {
    struct tensor *between = MUL(DY, ADD(MUL(X, NUM(1.0 / 3)), NUM(0.5)));
    struct tensor *upper = WHERE(BINARY(less, X, NUM(3)), between, DY);
    rule_give(r, 0, WHERE(BINARY(less_equal, X, NUM(-3)), NUM(0), upper));
}

void grad_softplus(struct rule *r) { give_times(r, UNARY(sigmoid, X)); }

/* With t = tanh(softplus(x)), s = sigmoid(x): t + x * s * (1 - t^2). */
void grad_mish(struct rule *r) {
    struct tensor *t = UNARY(tanh, UNARY(softplus, X));
    struct tensor *slope = MUL(UNARY(sigmoid, X), one_minus(r, SQUARE(t)));
    give_times(r, ADD(t, MUL(X, slope)));
}

void grad_exp(struct rule *r) { give_times(r, Y); }
void grad_log(struct rule *r) { rule_give(r, 0, DIV(DY, X)); }
void grad_sqrt(struct rule *r) { rule_give(r, 0, DIV(DY, MUL(Y, NUM(2)))); }
void grad_rsqrt(struct rule *r) { give_times(r, MUL(MUL(Y, SQUARE(Y)), NUM(-0.5))); }
void grad_abs(struct rule *r) { give_times(r, UNARY(sign, X)); }
void grad_neg(struct rule *r) { rule_give(r, 0, UNARY(neg, DY)); }
void grad_square(struct rule *r) { give_times(r, MUL(X, NUM(2))); }
void grad_reciprocal(struct rule *r) { give_times(r, UNARY(neg, SQUARE(Y))); }
void grad_erf(struct rule *r) {
    give_times(r, MUL(UNARY(exp, UNARY(neg, SQUARE(X))), NUM(M_2_SQRTPI)));
}
void grad_softsign(struct rule *r) { rule_give(r, 0, DIV(DY, SQUARE(plus_one(r, UNARY(abs, X))))); }
void grad_sin(struct rule *r) { give_times(r, UNARY(cos, X)); }
void grad_cos(struct rule *r) { give_times(r, UNARY(neg, UNARY(sin, X))); }
void grad_tan(struct rule *r) { give_times(r, plus_one(r, SQUARE(Y))); }
void grad_asin(struct rule *r) { give_times(r, UNARY(rsqrt, one_minus(r, SQUARE(X)))); }
void grad_acos(struct rule *r) { give_times(r, UNARY(neg, UNARY(rsqrt, one_minus(r, SQUARE(X))))); }
void grad_atan(struct rule *r) { rule_give(r, 0, DIV(DY, plus_one(r, SQUARE(X)))); }
void grad_sinh(struct rule *r) { give_times(r, UNARY(cosh, X)); }
void grad_cosh(struct rule *r) { give_times(r, UNARY(sinh, X)); }
void grad_asinh(struct rule *r) { give_times(r, UNARY(rsqrt, plus_one(r, SQUARE(X)))); }
void grad_acosh(struct rule *r) { give_times(r, UNARY(rsqrt, SUB(SQUARE(X), NUM(1)))); }
void grad_atanh(struct rule *r) { rule_give(r, 0, DIV(DY, one_minus(r, SQUARE(X)))); }
/* Constant between steps. */
void grad_zero(struct rule *r) {
    for (int i = 0; i < r->layer->n_in; i++) rule_give(r, i, NUM(0));
}
void grad_cast(struct rule *r) {
    if (rule_wants(r, 0)) rule_give(r, 0, make_cast(r->m, DY, X->dtype));
}
void grad_copy(struct rule *r) { rule_give(r, 0, DY); }

/* ---- Two and three inputs ---- */

#define B r->layer->in[1]

void grad_add(struct rule *r) {
    rule_give(r, 0, DY);
    rule_give(r, 1, DY);
}
void grad_sub(struct rule *r) {
    rule_give(r, 0, DY);
    rule_give(r, 1, UNARY(neg, DY));
}
void grad_mul(struct rule *r) {
    rule_give(r, 0, MUL(DY, B));
    rule_give(r, 1, MUL(DY, X));
}
void grad_div(struct rule *r) {
    rule_give(r, 0, DIV(DY, B));
    rule_give(r, 1, UNARY(neg, DIV(MUL(DY, Y), B)));
}

/* The larger (smaller) value gets dy; equal ones get half of it each. */
static void give_extreme(struct rule *r, struct tensor *loser_0, struct tensor *loser_1) {
    struct tensor *shared = WHERE(BINARY(equal, X, B), MUL(DY, NUM(0.5)), DY);
    rule_give(r, 0, WHERE(loser_0, NUM(0), shared));
    rule_give(r, 1, WHERE(loser_1, NUM(0), shared));
}
void grad_maximum(struct rule *r) { give_extreme(r, BINARY(less, X, B), BINARY(less, B, X)); }
void grad_minimum(struct rule *r) { give_extreme(r, BINARY(less, B, X), BINARY(less, X, B)); }

/* x^b: b * x^(b-1), and 0 for b = 0; y * log(x), and 0 where x is 0 and b >= 0. */
void grad_pow(struct rule *r) {
    struct tensor *slope = MUL(B, BINARY(pow, X, SUB(B, NUM(1))));
    rule_give(r, 0, MUL(DY, WHERE(BINARY(equal, B, NUM(0)), NUM(0), slope)));
    struct tensor *vanishes =
        BINARY(bit_and, BINARY(equal, X, NUM(0)), BINARY(less_equal, NUM(0), B));
    rule_give(r, 1, MUL(DY, WHERE(vanishes, NUM(0), MUL(Y, UNARY(log, X)))));
}

void grad_prelu(struct rule *r) {
    struct tensor *above = BINARY(less, NUM(0), X);
    rule_give(r, 0, WHERE(above, DY, MUL(DY, B)));
    rule_give(r, 1, WHERE(above, NUM(0), MUL(DY, X)));
}

/* x - b * quotient, with the quotient rounded down, or towards 0. */
static void give_remainder(struct rule *r, enum layer_kind quotient) {
    rule_give(r, 0, DY);
    rule_give(r, 1, UNARY(neg, MUL(DY, rule_binary(r, quotient, X, B))));
}
void grad_mod(struct rule *r) { give_remainder(r, LAYER_floor_div); }
void grad_rem(struct rule *r) { give_remainder(r, LAYER_trunc_div); }

void grad_where(struct rule *r) {
    rule_give(r, 1, WHERE(X, DY, NUM(0)));
    rule_give(r, 2, WHERE(X, NUM(0), DY));
}

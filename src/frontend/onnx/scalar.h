/*
 * Functions of single values, which eval.def names.
 *
 * Functions of floats are the formulas of ONNX's operators, written so that they neither overflow nor lose digits where the plain
 * formula would: with log1p and expm1 near 0, and exponents that are never positive. Functions of integers wrap at 64 bits. They
 * compute with unsigned integers, since signed overflow is undefined in C; `is_unsigned` of struct eval tells how to read the bits.
 */
#ifndef SOL_ONNX_SCALAR_H
#define SOL_ONNX_SCALAR_H

#include "eval.h"

#include <math.h>

/* ---- Floats ---- */

static inline double negate(double x) { return -x; }
static inline double invert(double x) { return 1 / x; }
/* 0, -0 and NaN do not change. */
static inline double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
/* NaN stays NaN, as in compiled layers. */
static inline double rectify(double x) { return x > 0 || x != x ? x : 0; }
static inline double sigmoid(double x) { return 1 / (1 + exp(-x)); }
/* log(1 + e^x), without overflow: the exponent is never positive. */
static inline double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static inline double softsign(double x) { return x / (1 + fabs(x)); }
static inline double mish(double x) { return x * tanh(softplus(x)); }
/* x times the hard sigmoid with the slope 1/6. */
static inline double hard_swish(double x) { return x * fmax(0, fmin(1, x / 6 + 0.5)); }
static inline double is_nan(double x) { return x != x; }

static inline double leaky_relu(double x, double alpha, double unused) {
    (void)unused;
    return x < 0 ? alpha * x : x;
}
/* alpha (e^x - 1) below 0. */
static inline double elu(double x, double alpha, double unused) {
    (void)unused;
    return x < 0 ? alpha * expm1(x) : x;
}
/* A scaled elu. The defaults of eval.def are those of the paper: with them, means and variances stay stable in deep networks. */
static inline double selu(double x, double alpha, double gamma) {
    return gamma * (x > 0 ? x : alpha * expm1(x));
}
/* Differentiable everywhere, unlike elu with alpha other than 1. */
static inline double celu(double x, double alpha, double unused) {
    (void)unused;
    return fmax(0, x) + fmin(0, alpha * expm1(x / alpha));
}
static inline double thresholded_relu(double x, double alpha, double unused) {
    (void)unused;
    return x > alpha ? x : 0;
}
static inline double hard_sigmoid(double x, double alpha, double beta) {
    return fmax(0, fmin(1, alpha * x + beta));
}
static inline double swish(double x, double alpha, double unused) {
    (void)unused;
    return x * sigmoid(alpha * x);
}
/* Moves x towards 0 by `bias`; 0 for x between -lambda and lambda. */
static inline double shrink(double x, double lambda, double bias) {
    return x < -lambda ? x + bias : x > lambda ? x - bias : 0;
}

static inline double add(double a, double b) { return a + b; }
static inline double sub(double a, double b) { return a - b; }
static inline double mul(double a, double b) { return a * b; }
static inline double quotient(double a, double b) { return a / b; }
/* NaN if either is NaN, as in NumPy. */
static inline double larger(double a, double b) { return a > b || a != a ? a : b; }
static inline double smaller(double a, double b) { return a < b || a != a ? a : b; }
/* Comparisons give 1 or 0; those with NaN give 0. */
static inline double equal(double a, double b) { return a == b; }
static inline double less(double a, double b) { return a < b; }
static inline double less_equal(double a, double b) { return a <= b; }
static inline double greater(double a, double b) { return a > b; }
static inline double greater_equal(double a, double b) { return a >= b; }
static inline double prelu(double x, double slope) { return x < 0 ? slope * x : x; }
/* The result has the sign of b, as in Python; that of C's fmod has the sign of a. */
static inline double modulo(double a, double b) {
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
/* Combines of reductions. */
static inline double add_square(double a, double b) { return a + b * b; }
static inline double add_abs(double a, double b) { return a + fabs(b); }

/* ---- Integers: 64 bits, wrapping ---- */

static inline int64_t int_negate(int64_t x) { return (int64_t)(0 - (uint64_t)x); }
static inline int64_t int_abs(int64_t x) { return x < 0 ? int_negate(x) : x; }
static inline int64_t int_same(int64_t x) { return x; }
static inline int64_t int_sign(int64_t x) { return (x > 0) - (x < 0); }
static inline int64_t int_rectify(int64_t x) { return x > 0 ? x : 0; }
static inline int64_t int_not(int64_t x) { return ~x; }
static inline int64_t bool_not(int64_t x) { return !x; }

#define INT_BINARY(name, value)                                                  \
    static inline int64_t int_##name(struct eval *e, int64_t a, int64_t b) {     \
        (void)e;                                                                 \
        return (value);                                                          \
    }
INT_BINARY(add, (int64_t)((uint64_t)a + (uint64_t)b))
INT_BINARY(sub, (int64_t)((uint64_t)a - (uint64_t)b))
INT_BINARY(mul, (int64_t)((uint64_t)a * (uint64_t)b))
INT_BINARY(and, a &b)
INT_BINARY(or, a | b)
INT_BINARY(xor, a ^ b)
INT_BINARY(equal, a == b)
INT_BINARY(less, e->is_unsigned ? (uint64_t)a < (uint64_t)b : a < b)
INT_BINARY(less_equal, e->is_unsigned ? (uint64_t)a <= (uint64_t)b : a <= b)
INT_BINARY(greater, e->is_unsigned ? (uint64_t)a > (uint64_t)b : a > b)
INT_BINARY(greater_equal, e->is_unsigned ? (uint64_t)a >= (uint64_t)b : a >= b)
INT_BINARY(larger, int_greater(e, a, b) ? a : b)
INT_BINARY(smaller, int_less(e, a, b) ? a : b)
INT_BINARY(add_square, int_add(e, a, int_mul(e, b, b)))
INT_BINARY(add_abs, int_add(e, a, int_abs(b)))
INT_BINARY(prelu, a < 0 ? int_mul(e, a, b) : a)
#undef INT_BINARY

/* Rounds towards 0. INT64_MIN / -1 does not fit, and wraps. */
static inline int64_t int_div(struct eval *e, int64_t a, int64_t b) {
    if (!b) eval_stop(e, fail(SOL_EINVAL, "a division of integers by 0"));
    if (e->is_unsigned) return (int64_t)((uint64_t)a / (uint64_t)b);
    return b == -1 ? int_negate(a) : a / b;
}
/* The result has the sign of the dividend. INT64_MIN % -1, at which the processor would trap, is 0. */
static inline int64_t int_remainder(struct eval *e, int64_t a, int64_t b) {
    if (!b) eval_stop(e, fail(SOL_EINVAL, "a division of integers by 0"));
    if (e->is_unsigned) return (int64_t)((uint64_t)a % (uint64_t)b);
    return b == -1 ? 0 : a % b;
}
/* The result has the sign of the divisor. */
static inline int64_t int_modulo(struct eval *e, int64_t a, int64_t b) {
    int64_t r = int_remainder(e, a, b);
    return !e->is_unsigned && r && (r < 0) != (b < 0) ? r + b : r;
}
/* A shift by 64 or more bits, or by a negative number, gives 0. */
static inline int64_t int_shift_left(struct eval *e, int64_t a, int64_t b) {
    (void)e;
    return b >= 0 && b < 64 ? (int64_t)((uint64_t)a << b) : 0;
}
/* An arithmetic shift of signed integers. A shift by 64 or more bits, or by a negative number, gives 0, or -1 for negative
 * integers. */
static inline int64_t int_shift_right(struct eval *e, int64_t a, int64_t b) {
    bool is_signed = !e->is_unsigned && a < 0;
    if (b < 0 || b >= 64) return is_signed ? -1 : 0;
    return is_signed ? ~(int64_t)(~(uint64_t)a >> b) : (int64_t)((uint64_t)a >> b);
}
/* By repeated squaring, wrapping. A negative exponent gives 0, except for the bases 1 and -1. */
static inline int64_t int_pow(struct eval *e, int64_t a, int64_t b) {
    uint64_t result = 1, power = (uint64_t)a;
    if (b < 0 && !e->is_unsigned) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
    for (uint64_t left = (uint64_t)b; left; left >>= 1, power *= power)
        if (left & 1) result *= power;
    return (int64_t)result;
}

#endif

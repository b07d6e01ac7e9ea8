/*
 * The formulas of primitives, combines and index operations, written a second time. Only the names are shared with ir/primitive.def,
 * so a test finds an error in one of the two. If a formula is missing here, the compiler warns, and the test that needs it fails.
 */
#ifndef MEANING_H
#define MEANING_H

#include "check.h"

#include "ir/expr.h"

#include <math.h>

static inline double meaning_nan_or(double a, double b, double result) {
    return isnan(a) || isnan(b) ? NAN : result;
}

static inline double meaning_of_primitive(enum primitive primitive, double a, double b, double c) {
    switch (primitive) {
    case PRIMITIVE_NONE:
    case N_PRIMITIVES: break;
    case PRIMITIVE_ADD: return a + b;
    case PRIMITIVE_SUB: return a - b;
    case PRIMITIVE_MUL: return a * b;
    case PRIMITIVE_DIV: return a / b;
    case PRIMITIVE_MAX: return meaning_nan_or(a, b, fmax(a, b));
    case PRIMITIVE_MIN: return meaning_nan_or(a, b, fmin(a, b));
    case PRIMITIVE_NEG: return copysign(a, signbit(a) ? 1 : -1);
    case PRIMITIVE_ABS: return copysign(a, 1);
    case PRIMITIVE_SQRT: return sqrt(a);
    case PRIMITIVE_EXP: return exp(a);
    case PRIMITIVE_LOG: return log(a);
    case PRIMITIVE_TANH: return tanh(a);
    case PRIMITIVE_ERF: return erf(a);
    case PRIMITIVE_LESS: return isless(a, b);
    case PRIMITIVE_EQUAL: return !(a < b || a > b || isunordered(a, b));
    case PRIMITIVE_SELECT: return !(a < 0 || a > 0 || isnan(a)) ? c : b;
    }
    REQUIRE(!"a primitive that meaning.h knows");
    return 0;
}

static inline double meaning_of_combine(enum combine combine, double a, double b) {
    switch (combine) {
    case COMBINE_ADD: return a + b;
    case COMBINE_MAX: return meaning_nan_or(a, b, fmax(a, b));
    case COMBINE_MIN: return meaning_nan_or(a, b, fmin(a, b));
    case N_COMBINES: break;
    }
    REQUIRE(!"a combine that meaning.h knows");
    return 0;
}

/* The result of a reduction over zero values. */
static inline double meaning_of_nothing(enum combine combine) {
    switch (combine) {
    case COMBINE_ADD: return 0;
    case COMBINE_MAX: return -HUGE_VAL;
    case COMBINE_MIN: return HUGE_VAL;
    case N_COMBINES: break;
    }
    REQUIRE(!"a combine that meaning.h knows");
    return 0;
}

static inline int64_t meaning_of_index(enum index_op op, int64_t a, int64_t b) {
    switch (op) {
    case INDEX_ADD: return a + b;
    case INDEX_MUL: return a * b;
    case INDEX_DIV: return (int64_t)floor((double)a / (double)b);
    case INDEX_MOD: return a - b * (int64_t)floor((double)a / (double)b);
    case INDEX_CONST:
    case INDEX_VAR: break;
    }
    REQUIRE(!"an operation of indices that meaning.h knows");
    return 0;
}

/* The distance of `is` from `should`, in units in the last place of (float)should. Two NaNs are equal. */
static inline double meaning_ulps(float is, double should) {
    float rounded = (float)should;
    if (isnan(should) || isnan(is)) return isnan(should) && isnan(is) ? 0 : 1e9;
    if (is == rounded) return 0;
    if (isinf(rounded) || isinf(is)) return isinf(rounded) && fabsf(is) >= 3.4028e38f ? 1 : 1e9;
    int exponent = rounded == 0 ? -149 : ilogbf(rounded) - 23;
    return fabs((double)is - should) / ldexp(1, exponent < -149 ? -149 : exponent);
}

#endif

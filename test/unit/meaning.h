/*
 * The formulas of primitives, combines and index operations, written a second time. Only the names are shared with ir/primitive.def,
 * so a test finds an error in one of the two. If a formula is missing here, the test that needs it fails.
 */
#ifndef MEANING_H
#define MEANING_H

#include "check.h"

#include "ir/expr.h"

#include <math.h>

static inline double meaning_nan_or(double a, double b, double result) {
    return isnan(a) || isnan(b) ? NAN : result;
}

/* Of floats. */
static inline double meaning_of_primitive(enum primitive primitive, double a, double b, double c) {
    switch (primitive) {
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
    case PRIMITIVE_FLOOR: return -ceil(-a);
    case PRIMITIVE_ROUND: return rint(a);
    case PRIMITIVE_SIN: return sin(a);
    case PRIMITIVE_COS: return cos(a);
    case PRIMITIVE_TAN: return tan(a);
    case PRIMITIVE_ASIN: return asin(a);
    case PRIMITIVE_ACOS: return acos(a);
    case PRIMITIVE_ATAN: return atan(a);
    case PRIMITIVE_SINH: return sinh(a);
    case PRIMITIVE_COSH: return cosh(a);
    case PRIMITIVE_ASINH: return asinh(a);
    case PRIMITIVE_ACOSH: return acosh(a);
    case PRIMITIVE_ATANH: return atanh(a);
    case PRIMITIVE_POW: return pow(a, b);
    case PRIMITIVE_REMAINDER: return fmod(a, b);
    default: break; /* of integers only */
    }
    REQUIRE(!"a primitive of floats that meaning.h knows");
    return 0;
}

/* The lower bits of a number, as a value of an integer type; of a bool, 0 or 1. */
static inline int64_t meaning_of_bits(enum sol_dtype type, uint64_t bits) {
    int unused = 64 - 8 * (int)size_element(type);
    if (type == SOL_BOOL) return bits != 0;
    if (type == SOL_U8) return (int64_t)(bits & 255);
    return (int64_t)(bits << unused) >> unused;
}

/* Shifts of a 64-bit number by any distance. */
static inline uint64_t meaning_of_shift(bool left, int64_t a, int64_t distance) {
    uint64_t fill = a < 0 && !left ? UINT64_MAX : 0, bits = (uint64_t)a;
    if (distance < 0 || distance > 63) return fill;
    for (; distance; distance--) bits = left ? bits << 1 : bits >> 1 | (fill & (uint64_t)1 << 63);
    return bits;
}

/* Threefry-2x32-20: a round adds, turns and mixes; after each four, words of the key are added in turn. */
static inline uint32_t meaning_of_threefry(uint32_t x, uint32_t key0, uint32_t key1) {
    const uint32_t key[] = {key0, key1, 466688986 ^ key0 ^ key1};
    uint32_t y = key1;
    x += key0;
    for (uint32_t i = 0; i < 20; i++) {
        const int turn = "\015\017\032\006\021\035\020\030"[i % 8];
        x += y;
        y = x ^ (y * (1u << turn) + (y >> (32 - turn)));
        if (i % 4 == 3) x += key[(i / 4 + 1) % 3], y += key[(i / 4 + 2) % 3] + (i + 1) / 4;
    }
    return x;
}

static inline uint64_t meaning_of_bits_of_integers(enum primitive primitive, int64_t a, int64_t b,
                                                   int64_t c) {
    uint64_t x = (uint64_t)a, y = (uint64_t)b;
    bool overflows = a == INT64_MIN && b == -1;
    switch (primitive) {
    case PRIMITIVE_ADD: return x + y;
    case PRIMITIVE_SUB: return x - y;
    case PRIMITIVE_MUL: return x * y;
    case PRIMITIVE_MAX: return a < b ? y : x;
    case PRIMITIVE_MIN: return a < b ? x : y;
    case PRIMITIVE_NEG: return ~x + 1;
    case PRIMITIVE_ABS: return a < 0 ? ~x + 1 : x;
    case PRIMITIVE_LESS: return a < b;
    case PRIMITIVE_EQUAL: return a == b;
    case PRIMITIVE_SELECT: return a ? y : (uint64_t)c;
    case PRIMITIVE_REMAINDER: return b == 0 || overflows ? 0 : (uint64_t)(a % b);
    case PRIMITIVE_QUOTIENT: return b == 0 ? 0 : overflows ? x : (uint64_t)(a / b);
    case PRIMITIVE_AND: return x & y;
    case PRIMITIVE_OR: return x | y;
    case PRIMITIVE_XOR: return x ^ y;
    case PRIMITIVE_SHIFT_LEFT: return meaning_of_shift(true, a, b);
    case PRIMITIVE_SHIFT_RIGHT: return meaning_of_shift(false, a, b);
    case PRIMITIVE_THREEFRY: return meaning_of_threefry((uint32_t)a, (uint32_t)b, (uint32_t)c);
    default: break; /* of floats only */
    }
    REQUIRE(!"a primitive of integers that meaning.h knows");
    return 0;
}

/* Of integers and bools; `type` is that of the result. */
static inline int64_t meaning_of_integers(enum primitive primitive, enum sol_dtype type, int64_t a,
                                          int64_t b, int64_t c) {
    return meaning_of_bits(type, meaning_of_bits_of_integers(primitive, a, b, c));
}

static inline double meaning_of_combine(enum combine combine, double a, double b) {
    switch (combine) {
    case COMBINE_ADD: return a + b;
    case COMBINE_MUL: return a * b;
    case COMBINE_MAX: return meaning_nan_or(a, b, fmax(a, b));
    case COMBINE_MIN: return meaning_nan_or(a, b, fmin(a, b));
    case N_COMBINES: break;
    }
    REQUIRE(!"a combine that meaning.h knows");
    return 0;
}

static inline int64_t meaning_of_combined_integers(enum combine combine, enum sol_dtype type,
                                                   int64_t a, int64_t b) {
    switch (combine) {
    case COMBINE_ADD: return meaning_of_bits(type, (uint64_t)a + (uint64_t)b);
    case COMBINE_MUL: return meaning_of_bits(type, (uint64_t)a * (uint64_t)b);
    case COMBINE_MAX: return a < b ? b : a;
    case COMBINE_MIN: return a < b ? a : b;
    case N_COMBINES: break;
    }
    REQUIRE(!"a combine that meaning.h knows");
    return 0;
}

/* The result of a reduction over zero values; infinities stand for the limits of integers. */
static inline double meaning_of_nothing(enum combine combine) {
    switch (combine) {
    case COMBINE_ADD: return 0;
    case COMBINE_MUL: return 1;
    case COMBINE_MAX: return -HUGE_VAL;
    case COMBINE_MIN: return HUGE_VAL;
    case N_COMBINES: break;
    }
    REQUIRE(!"a combine that meaning.h knows");
    return 0;
}

/* The largest (or smallest) value of an integer type. */
static inline int64_t meaning_of_limit(enum sol_dtype type, bool largest) {
    if (type == SOL_BOOL) return largest;
    if (type == SOL_U8) return largest ? 255 : 0;
    int64_t half = (int64_t)1 << (8 * size_element(type) - 2);
    return largest ? half - 1 + half : -half - half;
}

/* A constant of an integer type: a whole number, or an infinity for the type's limit. */
static inline int64_t meaning_of_constant(enum sol_dtype type, double value) {
    return isinf(value) ? meaning_of_limit(type, value > 0) : (int64_t)value;
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

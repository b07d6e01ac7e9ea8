/* Conversions between the bytes of elements and the values that the reference computes with. */
#include "device/ref/element.h"

#include <math.h>

/* ---- Floats of 16 bits ---- */

/* A float of 16 bits has a sign, an exponent, and digits - 1 stored binary digits. All values are multiples of 2^lowest, the smallest
 * positive one. */
struct format {
    int digits, lowest;
    uint16_t infinity; /* its bits; NaNs are above it */
};

static struct format get_format(enum sol_dtype type) {
    return type == SOL_F16 ? (struct format){11, -24, 0x7c00} : (struct format){8, -133, 0x7f80};
}

/* The exponent field counts from 0. Fields 0 and 1 have the same unit, 2^lowest; from 1 on there is a leading digit that is not
 * stored. */
double ref_widen(enum sol_dtype type, uint16_t bits) {
    struct format f = get_format(type);
    int size = bits & 0x7fff, leading = 1 << (f.digits - 1), field = size / leading;
    double value =
        field ? ldexp(leading + size % leading, f.lowest + field - 1) : ldexp(size, f.lowest);
    if (size >= f.infinity) value = size == f.infinity ? INFINITY : NAN;
    return bits >> 15 ? -value : value;
}

/* Rounds to a multiple of the last digit's unit, but at least of 2^lowest. With this unit's exponent, the bits of a value of `n` units
 * are (exponent - lowest) * 2^(digits - 1) + n, also if n has been rounded up to the next power of two. */
static uint16_t narrow(enum sol_dtype type, float value) {
    struct format f = get_format(type);
    int exponent, sign = signbit(value) ? 0x8000 : 0;
    if (value == 0) return (uint16_t)sign; /* it has no exponent */
    if (isnan(value)) return (uint16_t)(sign | f.infinity | 1 << (f.digits - 2));
    if (isinf(value)) return (uint16_t)(sign | f.infinity);
    frexp(fabs((double)value), &exponent);
    int unit = exponent - f.digits > f.lowest ? exponent - f.digits : f.lowest;
    int n = (int)rint(ldexp(fabs((double)value), -unit));
    int bits = (unit - f.lowest) * (1 << (f.digits - 1)) + n;
    return (uint16_t)(sign | (bits > f.infinity ? f.infinity : bits));
}

/* ---- Writing ---- */

/* The conversion is undefined in C for values that do not fit. */
static int64_t truncate(double value) {
    return value > -0x1p63 && value < 0x1p63 ? (int64_t)value : INT64_MIN;
}

void ref_put_whole(enum sol_dtype type, void *array, int64_t i, int64_t value) {
    switch (type) {
    case SOL_F32: ((float *)array)[i] = (float)value; break;
    case SOL_F64: ((double *)array)[i] = (double)value; break;
    case SOL_BF16:
    case SOL_F16: ((uint16_t *)array)[i] = narrow(type, (float)value); break;
    case SOL_I64: ((int64_t *)array)[i] = value; break;
    case SOL_I32: ((int32_t *)array)[i] = (int32_t)value; break;
    case SOL_I16: ((int16_t *)array)[i] = (int16_t)value; break;
    case SOL_I8: ((int8_t *)array)[i] = (int8_t)value; break;
    case SOL_U8: ((uint8_t *)array)[i] = (uint8_t)value; break;
    default: ((uint8_t *)array)[i] = value != 0; break;
    }
}

void ref_put_real(enum sol_dtype type, void *array, int64_t i, double value) {
    switch (type) {
    case SOL_F32: ((float *)array)[i] = (float)value; break;
    case SOL_F64: ((double *)array)[i] = value; break;
    case SOL_BF16:
    case SOL_F16: ((uint16_t *)array)[i] = narrow(type, (float)value); break;
    case SOL_BOOL: ((uint8_t *)array)[i] = value != 0; break;
    default: ref_put_whole(type, array, i, truncate(value)); break;
    }
}

/* ---- Constants ---- */

int64_t ref_constant(enum sol_dtype type, double value) {
    bool is_signed = type != SOL_U8 && type != SOL_BOOL;
    int bits = type == SOL_BOOL ? 1 : 8 * (int)size_element(type) - is_signed;
    int64_t highest = (int64_t)(UINT64_MAX >> (64 - bits)), lowest = is_signed ? -highest - 1 : 0;
    if (value <= (double)lowest) return lowest;
    return value >= (double)highest ? highest : (int64_t)value;
}

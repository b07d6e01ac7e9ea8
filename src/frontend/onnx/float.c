/*
 * Decodes and encodes floats below 32 bits. A table gives the sizes of exponent and mantissa of each type.
 *
 * Sources: IEEE 754 (f16, e5m2), bfloat16, "FP8 Formats for Deep Learning" (e4m3fn), the FNUZ variants of Graphcore and AMD, and
 * the microscaling formats of the Open Compute Project (e2m1, e8m0). Tables of 256 values would work for 8 bits, too, but this
 * code serves all types. Decoding is exact; encoding rounds once.
 */
#include "array.h"

#include <math.h>

/* Which bit patterns are no finite numbers. IEEE: the highest exponent means infinity and NaNs. FN: only all ones is NaN. FNUZ:
 * only the pattern of -0 is NaN. FINITE: none. */
enum style { IEEE, FN, FNUZ, FINITE };

/* Indexed by ONNX's number. Values above `largest`, the largest finite value, overflow. */
static const struct format {
    int exponent, mantissa, bias;
    enum style style;
    double largest;
} formats[N_TYPES] = {
    [TYPE_F16] = {5, 10, 15, IEEE, 65504}, [TYPE_BF16] = {8, 7, 127, IEEE, 0x1.FEp127},
    [TYPE_E4M3FN] = {4, 3, 7, FN, 448},    [TYPE_E4M3FNUZ] = {4, 3, 8, FNUZ, 240},
    [TYPE_E5M2] = {5, 2, 15, IEEE, 57344}, [TYPE_E5M2FNUZ] = {5, 2, 16, FNUZ, 57344},
    [TYPE_E2M1] = {2, 1, 1, FINITE, 6},
};

/* E8M0 is a power of two; it has no sign and no zero. */
#define E8M0_BIAS 127
#define E8M0_NAN 255

/* Is the pattern a NaN of this style? */
static bool is_nan(const struct format *f, unsigned bits, unsigned exponent, unsigned mantissa) {
    unsigned highest = (1u << f->exponent) - 1;
    switch (f->style) {
    case IEEE: return exponent == highest && mantissa;
    case FN: return exponent == highest && mantissa == (1u << f->mantissa) - 1;
    case FNUZ: return bits == 1u << (f->exponent + f->mantissa);
    default: return false;
    }
}

/* Exact, since a double can hold every value. With exponent 0 there is no implicit leading 1. */
double float_decode(enum type type, unsigned bits) {
    const struct format *f = &formats[type];
    if (type == TYPE_E8M0) return bits == E8M0_NAN ? (double)NAN : ldexp(1, (int)bits - E8M0_BIAS);
    unsigned highest = (1u << f->exponent) - 1, mantissa = bits & ((1u << f->mantissa) - 1);
    unsigned exponent = bits >> f->mantissa & highest;
    double sign = bits >> (f->exponent + f->mantissa) & 1 ? -1 : 1;
    if (is_nan(f, bits, exponent, mantissa)) return (double)NAN;
    if (f->style == IEEE && exponent == highest) return sign * (double)INFINITY;
    unsigned whole = exponent ? mantissa + (1u << f->mantissa) : mantissa;
    return sign * ldexp(whole, (int)(exponent ? exponent : 1) - f->bias - f->mantissa);
}

/* A quiet NaN, or the only NaN of the style. */
static unsigned encode_nan(const struct format *f, unsigned sign) {
    unsigned highest = (1u << f->exponent) - 1, all = (1u << f->mantissa) - 1;
    switch (f->style) {
    case IEEE: return sign | highest << f->mantissa | 1u << (f->mantissa - 1);
    case FN: return sign | highest << f->mantissa | all;
    case FNUZ: return 1u << (f->exponent + f->mantissa);
    default: return 1u << (f->exponent + f->mantissa);
    }
}

/* The bits of a finite value above 0, rounded to a multiple of 2^(e - mantissa), the last bit of the mantissa. */
static unsigned encode_finite(const struct format *f, double value) {
    int e = ilogb(value) < 1 - f->bias ? 1 - f->bias : ilogb(value);
    unsigned steps = (unsigned)rint(ldexp(value, f->mantissa - e));
    return ((unsigned)(e + f->bias - 1) << f->mantissa) + steps;
}

/* A value that is too large: the largest finite value if the type is FINITE or `saturates`, else infinity, or NaN without
 * infinity. */
static unsigned encode_large(const struct format *f, unsigned sign, bool saturates) {
    if (f->style == FINITE || saturates) return sign | encode_finite(f, f->largest);
    if (f->style == IEEE) return sign | ((1u << f->exponent) - 1) << f->mantissa;
    return encode_nan(f, sign);
}

/* E8M0: rounds to the nearest power of two, halfway up. 0 becomes the smallest; negative values and infinity become NaN. */
static unsigned encode_power(double value) {
    if (!(value > 0)) return value == 0 ? 0 : E8M0_NAN;
    if (isinf(value)) return E8M0_NAN;
    int e;
    double part = frexp(value, &e); /* value = part * 2^e, part from 0.5 */
    int power = e - 1 + (part >= 0.75) + E8M0_BIAS;
    return power < 0 ? 0 : power > 254 ? 254 : (unsigned)power;
}

/* Rounds to nearest, ties to even, by scaling and rint; subnormals need no extra code. */
unsigned float_encode(enum type type, double value, bool saturates) {
    const struct format *f = &formats[type];
    if (type == TYPE_E8M0) return encode_power(value);
    unsigned sign = signbit(value) ? 1u << (f->exponent + f->mantissa) : 0;
    bool is_wide = type == TYPE_F16 || type == TYPE_BF16; /* they overflow to infinity */
    if (isnan(value)) return encode_nan(f, sign);
    value = fabs(value);
    if (isinf(value)) return encode_large(f, sign, saturates && !is_wide);
    unsigned bits = value > 0 ? encode_finite(f, fmin(value, 4 * f->largest)) : 0;
    if (bits > encode_finite(f, f->largest)) return encode_large(f, sign, saturates && !is_wide);
    return !bits && f->style == FNUZ ? 0 : sign | bits;
}

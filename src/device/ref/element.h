/*
 * Inside device/ref: reads and writes single elements of every type.
 *
 *   an element's bytes  ->  ref_get_real, ref_get_whole  ->  a layer's formula  ->  ref_put_real, ref_put_whole  ->  bytes
 *
 * Formulas compute with `real` values (double) or `whole` ones (int64_t). An i64 is never a double on its way, as doubles hold
 * only integers up to 2^53. Writing converts to the element's type. So a cast is a read and a write.
 */
#ifndef SOL_REF_ELEMENT_H
#define SOL_REF_ELEMENT_H

#include "base/size.h"

/* The value of an f16 or bf16, exactly. */
double ref_widen(enum sol_dtype type, uint16_t bits);

/* Element `i` of an array of integers or bools. */
static inline int64_t ref_get_whole(enum sol_dtype type, const void *array, int64_t i) {
    switch (type) {
    case SOL_I64: return ((const int64_t *)array)[i];
    case SOL_I32: return ((const int32_t *)array)[i];
    case SOL_I16: return ((const int16_t *)array)[i];
    case SOL_I8: return ((const int8_t *)array)[i];
    case SOL_U8: return ((const uint8_t *)array)[i];
    default: return ((const uint8_t *)array)[i] != 0; /* a bool */
    }
}

/* Element `i` of an array of any type. */
static inline double ref_get_real(enum sol_dtype type, const void *array, int64_t i) {
    switch (type) {
    case SOL_F32: return (double)((const float *)array)[i];
    case SOL_F64: return ((const double *)array)[i];
    case SOL_BF16:
    case SOL_F16: return ref_widen(type, ((const uint16_t *)array)[i]);
    default: return (double)ref_get_whole(type, array, i);
    }
}

/* Writes `value` as element `i`. To an integer: modulo 2^bits; to a bool: value != 0; to a float: rounded to the nearest, in the
 * middle to even. f16 and bf16 are rounded to f32 first, as layers of these types compute in f32. */
void ref_put_whole(enum sol_dtype type, void *array, int64_t i, int64_t value);
/* The same for a real value. To an integer: rounded towards 0; what does not fit in an i64 gives the smallest i64. NaN is true. */
void ref_put_real(enum sol_dtype type, void *array, int64_t i, double value);

/* An attribute's value as an integer or bool: rounded towards 0; infinities, and other values beyond the type's range, are
 * the type's limits. */
int64_t ref_constant(enum sol_dtype type, double value);

#endif

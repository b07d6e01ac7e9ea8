/*
 * Functions on vectors, for kernels whose values need more than products: recurrent_kernel.c, recurrent_grad_kernel.c,
 * attention_kernel.c. The polynomials are those of dfp/vector.h, so that these kernels are as accurate as generated ones.
 */
#ifndef SOL_SIMD_MATH_H
#define SOL_SIMD_MATH_H

#include "dnn/simd.h"

typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec pick(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }

/* exp(r), |r| <= ln(2) / 2 */
INLINE vec exponential_near_zero(vec r) {
    vec p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = p * r + 4.1666668e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    return p * r + 1.0f;
}

/* exp(x) = 2^n * exp(r), |r| <= ln(2)/2, for x <= 0. Adding 1.5 * 2^23 rounds to an integer, and t ends with the bits of n. Below -87,
 * where the result would lose digits, it is 0. NaN stays: so 2^n is a factor, and not added to the exponent. */
INLINE vec exponential_of_negative(vec x) {
    const vec t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
    vec r = x - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    const vec y = exponential_near_zero(r) * (vec)(((uvec)t << 23) + 0x3f800000);
#if LANES == 16 && defined __AVX512F__
    const __mmask16 tiny = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    return (vec)_mm512_mask_mov_ps((__m512)y, tiny, _mm512_setzero_ps());
#else
    return (vec)((uvec)y & ~(uvec)(x < -87.0f));
#endif
}

/* With e = exp(-|x|), which takes less work than exp(x): 1 / (1 + e), or e / (1 + e) if x < 0. */
INLINE vec sigmoid(vec x) {
    const vec e = exponential_of_negative((vec)((ivec)x | (int32_t)0x80000000));
    return pick(x < 0.0f, e, vec_set(1.0f)) / (1.0f + e);
}

/* Near zero an odd polynomial, elsewhere 1 - 2 e / (1 + e) with e = exp(-2 |x|), and the sign of x. */
INLINE vec tangent(vec x) {
    const vec a = (vec)((ivec)x & 0x7fffffff), s = x * x;
    vec p = -5.70498872745e-3f * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    const vec e = exponential_of_negative(-2.0f * a);
    vec far = 1.0f - 2.0f * e / (1.0f + e);
    far = (vec)((ivec)far | ((ivec)x & (int32_t)0x80000000));
    return pick(a < 0.625f, p * s * x + x, far);
}

/* ---- Transposing ---- */

/* Transposes LANES vectors. In step s, each pair of vectors i and i + s exchanges the lanes with bit s: that of i takes the lower ones
 * of both. */
INLINE void simd_exchange(vec x[LANES]) {
    ivec lane;
    UNROLL
    for (int l = 0; l < LANES; l++) lane[l] = l;
    UNROLL
    for (int s = 1; s < LANES; s *= 2) {
        const ivec upper = ((lane & s) != 0) & (LANES - s), low = lane + upper, high = low + s;
        UNROLL
        for (int i = 0; i < LANES; i++) {
            if (i & s) continue;
            const vec a = x[i], b = x[i + s];
            x[i] = __builtin_shuffle(a, b, low);
            x[i + s] = __builtin_shuffle(a, b, high);
        }
    }
}

/* ---- Memory: n <= 0 lanes are none ---- */

INLINE vec load_part(const float *at, int64_t n) {
    vec v = {0};
    if (n >= LANES) return vec_load(at);
    for (int64_t i = 0; i < n; i++) v[i] = at[i];
    return v;
}

INLINE void store_part(float *at, vec v, int64_t n) {
    if (n >= LANES) vec_store(at, v);
    else
        for (int64_t i = 0; i < n; i++) at[i] = v[i];
}

#endif

/*
 * Vectors that are not full, and matrices that are transposed in registers: for kernels that read or write tensors whose lanes are not
 * neighbours in memory.
 */
#ifndef SOL_DNN_SIMD_TRANSPOSE_H
#define SOL_DNN_SIMD_TRANSPOSE_H

#include "dnn/simd.h"

/* Whether an access to a part of a vector is one instruction. */
#if LANES == 16 && defined __AVX512F__
#define HAS_MASKS true
#else
#define HAS_MASKS false
#endif

/* The first n < LANES values; the others are zero. */
static inline vec load_some(const float *at, int64_t n) {
#if LANES == 16 && defined __AVX512F__
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), at);
#else
    vec v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = at[i];
    return v;
#endif
}

static inline void store_some(float *at, vec v, int64_t n) {
#if LANES == 16 && defined __AVX512F__
    _mm512_mask_storeu_ps(at, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    float values[LANES];
    int64_t i = 0;
    vec_store(values, v);
    for (; i + 4 <= n; i += 4) memcpy(at + i, values + i, 4 * sizeof *at);
    for (; i < n; i++) at[i] = values[i];
#endif
}

/* ---- Transposing ---- */

/* The lanes of two vectors, those of the second one counted from LANES on, in which they are after an exchange (below). Constants, as
 * the compiler would compute such vectors lane by lane. */
#define LOW(bit, l) ((l) & (bit) ? LANES + (l) - (bit) : (l))
#define HIGH(bit, l) ((l) & (bit) ? LANES + (l) : (l) + (bit))
#define LANES_4(X, bit, l) X(bit, l), X(bit, l + 1), X(bit, l + 2), X(bit, l + 3)
#define LANES_8(X, bit, l) LANES_4(X, bit, l), LANES_4(X, bit, l + 4)
#define LANES_16(X, bit, l) LANES_8(X, bit, l), LANES_8(X, bit, l + 8)
#if LANES == 16
#define ALL_LANES(X, bit) ((ivec){LANES_16(X, bit, 0)})
#elif LANES == 8
#define ALL_LANES(X, bit) ((ivec){LANES_8(X, bit, 0)})
#else
#define ALL_LANES(X, bit) ((ivec){LANES_4(X, bit, 0)})
#endif

INLINE vec pick_lanes(vec a, vec b, ivec lanes) {
#ifdef __aarch64__
    return (vec)__builtin_shuffle((byte_vec)a, (byte_vec)b,
                                  (byte_vec)(lanes * 0x04040404 + 0x03020100));
#else
    return __builtin_shuffle(a, b, lanes);
#endif
}

/*
 * Of the lanes whose number has this bit, those of *a change places with the lanes of *b that lack it. After this with each bit, for
 * all pairs of rows whose numbers differ in the bit, LANES rows are transposed.
 */
#define EXCHANGE(bit, a, b)                                         \
    do {                                                            \
        const vec low = pick_lanes(*(a), *(b), ALL_LANES(LOW, bit)); \
        *(b) = pick_lanes(*(a), *(b), ALL_LANES(HIGH, bit));        \
        *(a) = low;                                                 \
    } while (0)
#define EXCHANGE_ALL(bit, v)                \
    UNROLL                                  \
    for (int i = 0; i < LANES; i++)         \
        if (!(i & (bit))) EXCHANGE(bit, &(v)[i], &(v)[(i + (bit)) % LANES])

/* Lane j of v[i] and lane i of v[j] change places. */
INLINE void transpose(vec *v) {
    EXCHANGE_ALL(1, v);
    EXCHANGE_ALL(2, v);
#if LANES >= 8
    EXCHANGE_ALL(4, v);
#endif
#if LANES >= 16
    EXCHANGE_ALL(8, v);
#endif
}

#endif

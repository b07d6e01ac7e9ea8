/*
 * Products of quantized numbers, for *_kernel.c: the inner loop, and how integer sums become values of y.
 *
 *   y = f or saturate(round(f) + zero point of y), with f = s * scale[k] + bias[k], s = sum of (x - zero) * w
 *
 * Four neighbouring channels of x are one quad, of 32 bits, which are loaded and broadcast as one number. A vector of weights has a
 * quad per output: [LANES outputs][4 channels]. So all addresses count quads as f32 kernels count floats, and one step multiplies
 * four channels.
 *
 * Numbers of type i8 are turned into u8 by x ^ 0x80, which adds 128 to x and to the zero point alike. Sums begin with -zero * (sum of
 * the weights), which the packed weight has, so that the inner loop multiplies x as it is. All sums are exact modulo 2^32; they
 * are the same for each way to multiply.
 */
#ifndef SOL_DNN_INT8_H
#define SOL_DNN_INT8_H

#include "dnn/simd.h"

typedef int8_t i8vec __attribute__((vector_size(LANES), aligned(1), may_alias));

/* Has the processor an instruction that multiplies quads (VNNI)? Else the kernels multiply pairs of 16 bits. */
#if LANES == 16 && defined __AVX512BW__
#define INT8_WAYS 2
static inline bool int8_has_dot(void) {
    return !dnn_without_dot && __builtin_cpu_supports("avx512vnni");
}
/* By the assembler, so that one object file serves processors with and without the instruction. */
INLINE ivec int8_dot(ivec sum, ivec x, ivec w) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
}
INLINE ivec int8_multiply_pairs(ivec x, ivec w) {
    return (ivec)_mm512_madd_epi16((__m512i)x, (__m512i)w);
}
#elif LANES == 8 && defined __AVX2__
#define INT8_WAYS 2
static inline bool int8_has_dot(void) {
    return !dnn_without_dot && __builtin_cpu_supports("avxvnni");
}
INLINE ivec int8_dot(ivec sum, ivec x, ivec w) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
    return sum;
}
INLINE ivec int8_multiply_pairs(ivec x, ivec w) {
    return (ivec)_mm256_madd_epi16((__m256i)x, (__m256i)w);
}
#else
#define INT8_WAYS 1
static inline bool int8_has_dot(void) { return false; }
#endif

INLINE ivec int8_set(int32_t x) { return x - (ivec){0}; }

/* The quad at `at`, whose address may be any. */
INLINE int32_t int8_load(const void *at) {
    int32_t quad;
    memcpy(&quad, at, sizeof quad);
    return quad;
}

/* sum[i][v] += x[i] * weights[v], for one quad of each pixel i: x[i] is at first + i * step for the tile's first row, and likewise
 * at `second`; steps are bytes. flip: 0x80 in each byte if x is of i8, else 0. `dot`: by int8_dot. */
INLINE void int8_multiply(bool dot, int rows, int columns, int vectors, int64_t step,
                          const char *first, const char *second, ivec flip, const ivec *weights,
                          ivec (*sum)[2]) {
    const int pixels = rows * columns;
    const ivec w[2] = {weights[0], weights[1]};
#if INT8_WAYS == 2
    if (dot) {
        UNROLL
        for (int i = 0; i < pixels; i++) {
            const char *from = (i < columns ? first : second) + i % columns * step;
            const ivec x = int8_set(int8_load(from)) ^ flip;
            sum[i][0] = int8_dot(sum[i][0], x, w[0]);
            if (vectors == 2) sum[i][1] = int8_dot(sum[i][1], x, w[1]);
        }
        return;
    }
    typedef int16_t pairs __attribute__((vector_size(4 * LANES), may_alias));
    typedef uint16_t upairs __attribute__((vector_size(4 * LANES), may_alias));
    /* Channels 0 and 2 of each quad, then 1 and 3. A product of u8 and i8 fits 16 bits with sign, a sum of two fits 32. */
    UNROLL
    for (int odd = 0; odd < 2; odd++) {
        ivec part[2];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            pairs both = (pairs)w[v];
            if (!odd) both <<= 8;
            part[v] = (ivec)(both >> 8);
        }
        UNROLL
        for (int i = 0; i < pixels; i++) {
            const char *from = (i < columns ? first : second) + i % columns * step;
            const ivec quad = int8_set(int8_load(from)) ^ flip;
            ivec x = quad & 0x00ff00ff;
            if (odd) x = (ivec)((upairs)quad >> 8);
            sum[i][0] += int8_multiply_pairs(x, part[0]);
            if (vectors == 2) sum[i][1] += int8_multiply_pairs(x, part[1]);
        }
    }
#else
    (void)dot;
    UNROLL
    for (int c = 0; c < 4; c++) {
        const ivec part[2] = {(w[0] << (24 - 8 * c)) >> 24, (w[1] << (24 - 8 * c)) >> 24};
        UNROLL
        for (int i = 0; i < pixels; i++) {
            const char *from = (i < columns ? first : second) + i % columns * step;
            const int32_t quad = int8_load(from) ^ flip[0];
            const ivec x = int8_set((int32_t)((uint32_t)quad >> 8 * c & 255));
            sum[i][0] += x * part[0];
            if (vectors == 2) sum[i][1] += x * part[1];
        }
    }
#endif
}

/* What all tiles of two neighbouring vectors of outputs have in common. */
struct int8_outputs {
    vec scale[2], bias[2];
    ivec start[2];       /* of the sums */
    ivec valid[2];       /* all bits of outputs that exist, none of padding */
    int n[2];            /* outputs that are stored */
    vec low, high;       /* limits of y - zero point; unused if y is f32 */
    ivec offset;         /* int8_store_bytes */
    enum sol_dtype type; /* of y */
};

/* The destination of a tile. Strides are bytes: to the next pixel, the tile's second row, the second vector of outputs. */
struct int8_place {
    char *y;
    int64_t pixel, row, block;
};

/* n <= LANES floats, then zeros. */
static inline vec int8_load_some(const float *at, int n) {
    vec v = {0};
    if (n == LANES) return vec_load(at);
    for (int i = 0; i < n; i++) v[i] = at[i];
    return v;
}

/* scale, bias and sums (of the weights): of the first output; `n` outputs are left. */
static inline void int8_prepare(const struct dnn_plan *plan, const struct dnn_call *call,
                                const float *scale, const float *bias, const int32_t *sums,
                                int64_t n, struct int8_outputs *out) {
    const bool is_signed = plan->problem.x_type == SOL_I8;
    const uint32_t zero = (uint32_t)*call->zero + (is_signed ? 128 : 0);
    out->type = plan->problem.y_type;
    for (int v = 0; v < 2; v++) {
        out->n[v] = (int)max_i64(0, min_i64(LANES, n - v * LANES));
        out->scale[v] = int8_load_some(scale + v * LANES, out->n[v]);
        out->bias[v] = int8_load_some(bias + v * LANES, out->n[v]);
        for (int i = 0; i < LANES; i++) {
            out->start[v][i] = (int32_t)(0 - zero * (uint32_t)sums[v * LANES + i]);
            out->valid[v][i] = -1;
        }
    }
    if (out->type == SOL_F32) return;
    out->low = vec_set(call->range[1] - call->range[0]);
    out->high = vec_set(call->range[2] - call->range[0]);
    out->offset = int8_set((int32_t)call->range[0] - 0x4b400000);
}

/* Bytes without sign. gcc 12 has an instruction for this, but finds it for all vectors only by its name. */
INLINE ivec int8_widen(i8vec x) {
#if LANES == 16 && defined __AVX512F__
    return (ivec)_mm512_cvtepu8_epi32((__m128i)x);
#elif LANES == 8 && defined __AVX2__
    return (ivec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&x));
#else
    return __builtin_convertvector(x, ivec) & 255;
#endif
}

/* The lowest byte of each lane. gcc 12 converts from i32 to bytes one by one, but with AVX-512. */
INLINE i8vec int8_narrow(ivec x) {
#if LANES == 16
    return __builtin_convertvector(x, i8vec);
#else
    typedef int16_t shorts __attribute__((vector_size(2 * LANES)));
    return __builtin_convertvector(__builtin_convertvector(x, shorts), i8vec);
#endif
}

/* Stores a vector of f32, of which n outputs exist. */
INLINE void int8_store_floats(vec f, ivec valid, int n, char *y) {
    const vec value = (vec)((ivec)f & valid);
    if (n == LANES) vec_store((float *)y, value);
    else memcpy(y, &value, (size_t)n * sizeof(float));
}

/* The same in 8 bits. Adding 1.5 * 2^23 rounds a float of small magnitude to an integer, halves to even, and leaves it in the lowest
 * bits; `offset` removes the others and adds the zero point. */
INLINE void int8_store_bytes(vec f, vec low, vec high, ivec offset, ivec valid, int n, char *y) {
    const vec rounded = vec_min(vec_max(f, low), high) + 0x1.8p23f;
    const i8vec narrow = int8_narrow(((ivec)rounded + offset) & valid);
    if (n == LANES) *(i8vec *)y = narrow;
    else memcpy(y, &narrow, (size_t)n);
}

/* Stores a tile. The compiler must assume that stores change *out, so its values are copied first. */
INLINE void int8_finish(int rows, int columns, int vectors, const struct int8_outputs *out,
                        struct int8_place to, ivec (*sum)[2]) {
    const vec low = out->low, high = out->high;
    const ivec offset = out->offset;
    const bool is_float = out->type == SOL_F32;
    UNROLL
    for (int v = 0; v < vectors; v++) {
        const vec scale = out->scale[v], bias = out->bias[v];
        const ivec valid = out->valid[v];
        const int n = out->n[v];
        char *y = to.y + v * to.block;
        UNROLL
        for (int i = 0; i < rows * columns; i++) {
            const vec f = __builtin_convertvector(sum[i][v], vec) * scale + bias;
            char *at = y + i / columns * to.row + i % columns * to.pixel;
            if (is_float) int8_store_floats(f, valid, n, at);
            else int8_store_bytes(f, low, high, offset, valid, n, at);
        }
    }
}

#endif

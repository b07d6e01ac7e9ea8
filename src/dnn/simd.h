/*
 * Vectors, and the inner loop that several kernels share, for the files *_kernel.c. These are compiled once per
 * instruction set:
 *
 *   -DISA=avx512 -DLANES=16 -DREGISTERS=32
 *   -DISA=avx2   -DLANES=8  -DREGISTERS=16
 *   -DISA=neon   -DLANES=4  -DREGISTERS=32 -DBY_LANE
 *   -DISA=generic -DLANES=4 -DREGISTERS=16
 *
 * LANES: floats per vector. REGISTERS: vector registers. BY_LANE: a multiply-add can take one lane of a register as a factor.
 * The code uses GNU vector extensions, except for max and min, so that one source serves all instruction sets. With
 * -ffp-contract=fast gcc compiles a += b*c to a fused multiply-add. Tile sizes follow from these macros, here and in the
 * kernels; plans read them from struct dnn_kernels.
 */
#ifndef SOL_SIMD_H
#define SOL_SIMD_H

#include "dnn/dnn.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define LINE 16 /* floats of a cache line */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define SIMD_JOIN2(a, b) a##_##b
#define SIMD_JOIN(a, b) SIMD_JOIN2(a, b)
#define ISA_NAME(name) SIMD_JOIN(name, ISA) /* ISA_NAME(dnn_direct_kernels) -> dnn_direct_kernels_avx512 */

static inline vec vec_load(const float *at) { return *(const vec *)at; }
static inline void vec_store(float *at, vec v) { *(vec *)at = v; }
static inline vec vec_set(float x) { return x - (vec){0}; }

/* Stores past the caches, without reading the line before; `at` has the vector's alignment. simd_fence comes before others read it. */
static inline void vec_stream(float *at, vec v) {
#if LANES == 16 && defined __AVX512F__
    _mm512_stream_ps(at, (__m512)v);
#elif LANES == 8 && defined __AVX__
    _mm256_stream_ps(at, (__m256)v);
#else
    vec_store(at, v);
#endif
}
static inline void simd_fence(void) {
#ifdef __x86_64__
    _mm_sfence();
#endif
}

/* v in a register. Else compilers load a value again for each product. */
INLINE vec vec_keep(vec v) {
#if defined __AVX512F__ && LANES == 16
    __asm__("" : "+v"(v));
#elif defined __SSE__ && LANES <= 8
    __asm__("" : "+x"(v));
#elif defined __aarch64__
    __asm__("" : "+w"(v));
#endif
    return v;
}

/* If `a` is NaN, the result is NaN: relu(NaN) is NaN, as in PyTorch. x86's max and min return the second operand if one
 * operand is NaN. These are intrinsics, as gcc has no ?: on vectors in C, and compiles masks to three instructions. */
#if LANES == 16 && defined __AVX512F__
static inline vec vec_max(vec a, vec b) { return (vec)_mm512_max_ps((__m512)b, (__m512)a); }
static inline vec vec_min(vec a, vec b) { return (vec)_mm512_min_ps((__m512)b, (__m512)a); }
#elif LANES == 8 && defined __AVX__
static inline vec vec_max(vec a, vec b) { return (vec)_mm256_max_ps((__m256)b, (__m256)a); }
static inline vec vec_min(vec a, vec b) { return (vec)_mm256_min_ps((__m256)b, (__m256)a); }
#elif LANES == 4 && defined __SSE__
static inline vec vec_max(vec a, vec b) { return (vec)_mm_max_ps((__m128)b, (__m128)a); }
static inline vec vec_min(vec a, vec b) { return (vec)_mm_min_ps((__m128)b, (__m128)a); }
#else
static inline vec vec_select(ivec mask, vec a, vec b) {
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}
static inline vec vec_max(vec a, vec b) { return vec_select(a < b, b, a); }
static inline vec vec_min(vec a, vec b) { return vec_select(a > b, b, a); }
#endif

/* Lane i of the result is lane lanes[i] of x. For arm64 gcc has only a shuffle of bytes. */
#ifdef __aarch64__
typedef uint8_t byte_vec __attribute__((vector_size(4 * LANES), may_alias));
static inline vec vec_shuffle(vec x, ivec lanes) {
    return (vec)__builtin_shuffle((byte_vec)x, (byte_vec)(lanes * 0x04040404 + 0x03020100));
}
#else
static inline vec vec_shuffle(vec x, ivec lanes) { return __builtin_shuffle(x, lanes); }
#endif

/*
 * A tile: up to VALUES values of x (pixels), times two vectors of weights (2*LANES output channels). Its 2 * VALUES sums stay
 * in registers. HALF_VALUES: most columns of a tile of two rows. STEP: channels per step of the inner loop.
 *
 * With BY_LANE each pixel loads STEP channels into a register of its own, and four registers hold weights. Otherwise one
 * channel of one pixel at a time is broadcast from memory: all pixels share one register, and two hold weights.
 */
#if defined BY_LANE && REGISTERS == 32
enum { STEP = LANES };
#define VALUES 9
#define HALF_VALUES 4
#elif REGISTERS == 32
enum { STEP = 1 };
#define VALUES 14
#define HALF_VALUES 7
#else
enum { STEP = 1 };
#define VALUES 6
#define HALF_VALUES 3
#endif

/* The tile of a product (dnn/product.h): up to PRODUCT_VALUES rows x PRODUCT_VECTORS vectors. 9 x 3 take 12 loads for 27 multiply-adds,
 * 14 x 2 take 16 for 28. Convolutions have 14 x 2, as few have a multiple of three blocks of channels. */
#if REGISTERS == 32 && !defined BY_LANE
#define PRODUCT_VALUES 9
#define PRODUCT_VECTORS 3
#else
#define PRODUCT_VALUES VALUES
#define PRODUCT_VECTORS 2
#endif

/* sum += x * w. Of many sums in an unrolled loop gcc computes every fourth one in a register of a factor, and moves it back: so many
 * instructions (1.99 per product instead of 1.75) that they take time where another process has the other thread of the core. */
INLINE void simd_add_product(vec *sum, vec x, vec w) {
#if REGISTERS == 32 && defined __AVX512F__
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(*sum) : "v"(x), "v"(w));
#else
    *sum += x * w;
#endif
}

/* sum[i][v] += x[pixel i][c] * weights[c][v], for `step` channels c, pixels i, and the first `vectors` v of `width`. at[i]: the first
 * channel of pixel i. weights: [c][width * LANES]; sum: [pixels][width]. */
INLINE void simd_multiply_at(int step, int pixels, int vectors, int width, const float *const *at,
                             const float *weights, vec *sum) {
    vec loaded[VALUES], w[PRODUCT_VECTORS];
    if (step > 1) {
        UNROLL
        for (int i = 0; i < pixels; i++) loaded[i] = vec_load(at[i]);
    }
    UNROLL
    for (int c = 0; c < step; c++, weights += width * LANES) {
        UNROLL
        for (int v = 0; v < vectors; v++) w[v] = vec_load(weights + v * LANES);
        UNROLL
        for (int i = 0; i < pixels; i++) {
            const vec x = vec_set(step > 1 ? loaded[i][c] : *at[i]);
            UNROLL
            for (int v = 0; v < vectors; v++) simd_add_product(&sum[i * width + v], x, w[v]);
        }
    }
}

/* The same for rows x columns pixels. `first` is the first pixel of the first row, `second` that of the second row (unused if rows
 * == 1). Neighbouring pixels are `block` floats apart. */
INLINE void simd_multiply(int step, int rows, int columns, int vectors, int block,
                          const float *first, const float *second, const float *weights,
                          vec (*sum)[2]) {
    const int pixels = rows * columns;
    const float *at[VALUES];
    UNROLL
    for (int i = 0; i < pixels; i++) at[i] = (i < columns ? first : second) + i % columns * block;
    simd_multiply_at(step, pixels, vectors, 2, at, weights, sum[0]);
}

INLINE void simd_clear(int pixels, vec (*sum)[2]) {
    UNROLL
    for (int i = 0; i < pixels; i++) sum[i][0] = sum[i][1] = (vec){0};
}

/* Sums that are added up in parts: adds those of the parts before, which are in memory as all registers are in use, and stores them there.
 * pixel, block: floats to the next pixel and vector. */
INLINE void simd_add_parts(int pixels, int vectors, int64_t pixel, int64_t block, const float *at,
                           vec (*sum)[2]) {
    UNROLL
    for (int i = 0; i < pixels; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] += vec_load(at + i * pixel + v * block);
}
INLINE void simd_store_parts(int pixels, int vectors, int64_t pixel, int64_t block, float *at,
                             vec (*sum)[2]) {
    UNROLL
    for (int i = 0; i < pixels; i++)
        for (int v = 0; v < vectors; v++) vec_store(at + i * pixel + v * block, sum[i][v]);
}

/* The destination of a tile's sums, and what is added to them. y and residual are blocked and have the same strides. */
struct simd_output {
    float *y;                     /* the tile's first pixel; residual alike */
    const float *residual, *bias; /* NULL: none */
    /* floats to the next pixel, to the tile's second row and second channel block, in y and residual */
    int64_t pixel, row, block;
    const struct dnn_problem *problem;
};

/* Adds bias and residual, applies the activation, and stores the tile. sum[i * step + v] belongs to pixel i and vector v. Bias
 * and residual are added last, since sums that start from them are less accurate. pixel: that of `out`, or a constant. */
INLINE void simd_finish(int rows, int columns, int vectors, int step, int64_t pixel,
                        const struct simd_output *out, vec *sum) {
    const struct dnn_problem *problem = out->problem;
    const int pixels = rows * columns;
    const int64_t row = out->row, block = out->block;
    float *y = out->y; /* a copy, as the compiler must assume that stores to y change *out */
    UNROLL
    for (int v = 0; v < vectors; v++, sum++) {
        if (out->bias) {
            const vec bias = vec_load(out->bias + v * LANES);
            UNROLL
            for (int i = 0; i < pixels; i++) sum[i * step] += bias;
        }
        if (out->residual) {
            const float *from = out->residual + v * block;
            UNROLL
            for (int i = 0; i < pixels; i++)
                sum[i * step] += vec_load(from + i / columns * row + i % columns * pixel);
        }
        if (problem->act != DNN_ACT_NONE) {
            const vec low = vec_set(problem->act == DNN_ACT_CLAMP ? problem->act_min : 0);
            UNROLL
            for (int i = 0; i < pixels; i++) sum[i * step] = vec_max(sum[i * step], low);
        }
        if (problem->act == DNN_ACT_CLAMP) {
            const vec high = vec_set(problem->act_max);
            UNROLL
            for (int i = 0; i < pixels; i++) sum[i * step] = vec_min(sum[i * step], high);
        }
        UNROLL
        for (int i = 0; i < pixels; i++)
            vec_store(y + v * block + i / columns * row + i % columns * pixel, sum[i * step]);
    }
}

/* X(1) X(2) ... X(n), for functions by tile size and tables of them. n is a literal or a macro: 1 to 9, 12 or 14. */
#define SIMD_UP_TO(n, X) SIMD_JOIN(SIMD_UP_TO, n)(X)
#define SIMD_UP_TO_1(X) X(1)
#define SIMD_UP_TO_2(X) SIMD_UP_TO_1(X) X(2)
#define SIMD_UP_TO_3(X) SIMD_UP_TO_2(X) X(3)
#define SIMD_UP_TO_4(X) SIMD_UP_TO_3(X) X(4)
#define SIMD_UP_TO_5(X) SIMD_UP_TO_4(X) X(5)
#define SIMD_UP_TO_6(X) SIMD_UP_TO_5(X) X(6)
#define SIMD_UP_TO_7(X) SIMD_UP_TO_6(X) X(7)
#define SIMD_UP_TO_8(X) SIMD_UP_TO_7(X) X(8)
#define SIMD_UP_TO_9(X) SIMD_UP_TO_8(X) X(9)
#define SIMD_UP_TO_12(X) SIMD_UP_TO_9(X) X(10) X(11) X(12)
#define SIMD_UP_TO_14(X) SIMD_UP_TO_12(X) X(13) X(14)

#endif

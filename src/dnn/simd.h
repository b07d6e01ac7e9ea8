/*
 * Vectors for the files *_kernel.c, which are compiled once per instruction set:
 *
 *   -DISA=avx512 -DLANES=16 -DREGISTERS=32
 *   -DISA=avx2   -DLANES=8  -DREGISTERS=16
 *   -DISA=neon   -DLANES=4  -DREGISTERS=32 -DBY_LANE
 *   -DISA=generic -DLANES=4 -DREGISTERS=16
 *
 * GNU vector extensions, but for max and min: the same text serves all of them. With -ffp-contract=fast gcc turns
 * a += b*c into a fused multiply-add. Sizes of tiles follow from these numbers, here and in the
 * kernels; plans learn them from the tables of kernels.
 */
#ifndef SOL_SIMD_H
#define SOL_SIMD_H

#include <stdint.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define SIMD_JOIN2(a, b) a##_##b
#define SIMD_JOIN(a, b) SIMD_JOIN2(a, b)
#define ISA_NAME(name) SIMD_JOIN(name, ISA) /* ISA_NAME(dnn_direct_kernels) -> dnn_direct_kernels_avx512 */

static inline vec vec_load(const float *at) { return *(const vec *)at; }
static inline void vec_store(float *at, vec v) { *(vec *)at = v; }
static inline vec vec_set(float x) { return x - (vec){0}; }
/* A NaN in `a` stays: relu(NaN) is NaN, as in PyTorch. x86 answers with the second operand when one is NaN; gcc's C has no
 * ?: on vectors that would say so, and what it makes of masks is three instructions in place of one. */
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

/* Lane i of the result is lane lanes[i] of x. For arm64 gcc knows only a shuffle of bytes. */
#ifdef __aarch64__
typedef uint8_t bytes __attribute__((vector_size(4 * LANES), may_alias));
static inline vec vec_shuffle(vec x, ivec lanes) {
    return (vec)__builtin_shuffle((bytes)x, (bytes)(lanes * 0x04040404 + 0x03020100));
}
#else
static inline vec vec_shuffle(vec x, ivec lanes) { return __builtin_shuffle(x, lanes); }
#endif

/*
 * Tiles of products: up to VALUES values (pixels) times two vectors of weights, summed in
 * registers: 2 * VALUES of them.
 *
 * With BY_LANE a multiply-add takes one lane of a register: each value is loaded with STEP channels
 * at once and needs a register of its own, four more hold weights. Elsewhere one channel at a time
 * is broadcast from memory, so that all values share one register, and two hold weights.
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

/* X(1) X(2) ... X(n), for functions and tables of functions by size; n is a number or its name. */
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
#define SIMD_UP_TO_14(X) SIMD_UP_TO_9(X) X(10) X(11) X(12) X(13) X(14)

#endif

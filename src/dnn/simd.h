/*
 * Vectors for the files *_kernel.c, which are compiled once per instruction set:
 *   -DISA=avx512 -DLANES=16 | -DISA=avx2 -DLANES=8 | -DISA=generic -DLANES=4
 * GNU vector extensions only: the same text serves AVX-512, AVX2, SSE and NEON.
 * With -ffp-contract=fast gcc turns a += b*c into a fused multiply-add.
 */
#ifndef SOL_SIMD_H
#define SOL_SIMD_H

#include <stdint.h>
#include <string.h>

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define SIMD_JOIN2(a, b) a##_##b
#define SIMD_JOIN(a, b) SIMD_JOIN2(a, b)
#define ISA_NAME(name) SIMD_JOIN(name, ISA) /* ISA_NAME(dnn_direct_kernels) -> dnn_direct_kernels_avx512 */

static inline vec vec_load(const float *at) { return *(const vec *)at; }
static inline void vec_store(float *at, vec v) { *(vec *)at = v; }
static inline vec vec_set(float x) { return x - (vec){0}; }
/* gcc's C has no ?: on vectors. A NaN in `a` stays: relu(NaN) is NaN, as in PyTorch. */
static inline vec vec_select(ivec mask, vec a, vec b) {
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
}
static inline vec vec_max(vec a, vec b) { return vec_select(a < b, b, a); }
static inline vec vec_min(vec a, vec b) { return vec_select(a > b, b, a); }

#endif

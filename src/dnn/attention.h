/*
 * Attention: what the step's functions (attention.c), the vector kernel (attention_kernel.c) and the compiler (emit_attention.c)
 * share.
 *
 *   y = softmax(cap(q k^T * scale) + mask) v, for each index of the dims before the last two
 *
 *   step -> step_attention -> per task, a block of rows of q at one such index: dnn_attention_fn
 *
 * q, k, v, y and the mask may have any strides. Only the last dim of q, k, v and y must be dense; the mask's may have the stride 0.
 */
#ifndef SOL_ATTENTION_H
#define SOL_ATTENTION_H

#include "run/program.h"

/* Most rows of a task: lanes of vectors. Most keys whose scores are in scratch memory at once. */
enum { ATTENTION_ROWS = 64, ATTENTION_KEYS = 128 };

/* Dims before the last two. Groups of heads need one more than a tensor has. */
enum { ATTENTION_OUTER = SOL_MAX_RANK - 1 };

/* The pointers of a step. MASK: NULL: none. */
enum { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_MASK, ATTENTION_Y, ATTENTION_N_POINTERS };

/* The arguments of a step; strides in elements. SCALE and CAP: bits of a float. A tensor has a stride per dim: of the outer ones,
 * of rows, and of the last one, which is 1 except in the mask. */
enum {
    ATTENTION_M,
    ATTENTION_N,
    ATTENTION_D,
    ATTENTION_E,
    ATTENTION_SCALE,
    ATTENTION_CAP, /* 0: none */
    ATTENTION_CAUSAL,
    ATTENTION_STRICT,
    ATTENTION_MASK_SIZE, /* bytes of a mask's element: 4: float, 1: bool */
    ATTENTION_LANES,
    ATTENTION_PAIRS, /* 1: the factors of both products may be rounded to bf16 */
    ATTENTION_DIM,   /* the sizes of the outer dims; 1 for those that the tensors do not have */
    ATTENTION_STRIDE = ATTENTION_DIM + ATTENTION_OUTER,
    ATTENTION_N_ARGS = ATTENTION_STRIDE + ATTENTION_N_POINTERS * (ATTENTION_OUTER + 2)
};
/* The stride of pointer `pointer` along outer dim `dim`; ATTENTION_OUTER: along rows; ATTENTION_OUTER + 1: the last dim. */
static inline int attention_stride(int pointer, int dim) {
    return ATTENTION_STRIDE + pointer * (ATTENTION_OUTER + 2) + dim;
}

/* Rows [row, row + rows) of one matrix q; its k, v, mask and y, of which q, y and mask begin at `row`. */
struct attention_block {
    const float *q, *k, *v;
    const void *mask;
    float *y;
    int64_t row, rows, keys, d, e;
    int64_t total_rows;                                     /* of the matrix q */
    int64_t q_row, k_row, v_row, y_row, mask_row, mask_key; /* strides */
    float scale, cap;
    bool is_causal, is_strict, is_bool, may_round;
};
/* What is added to a score: a float of the mask, or of a bool 0 or -infinity. */
static inline float attention_read_mask(const struct attention_block *b, int64_t row, int64_t key) {
    const int64_t at = row * b->mask_row + key * b->mask_key;
    if (!b->is_bool) return ((const float *)b->mask)[at];
    return ((const uint8_t *)b->mask)[at] ? 0 : -__builtin_inff();
}

/* `scratch`: dnn_attention_scratch floats, aligned to 64 bytes. */
typedef void dnn_attention_fn(const struct attention_block *block, float *scratch);

/* Floats: q^T, scores, masks, sums of v, maxima, sums of weights, factors; and pairs of bf16, if `may_round`: of a block's k or v. */
static inline int64_t dnn_attention_scratch(int64_t d, int64_t e, bool may_round) {
    const int64_t pairs = max_i64(ATTENTION_KEYS * ceil_div(d, 2), ATTENTION_KEYS / 2 * e);
    return ATTENTION_ROWS * (d + e + 2 * ATTENTION_KEYS + 3) + (may_round ? pairs : 0);
}

/* The step; data: a struct dnn_kernels. */
extern const struct step_kind step_attention;

#endif

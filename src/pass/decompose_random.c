/*
 * random: numbers by position.
 *
 *   seed, stream -> a key of two words -> random_bits of each position in row-major order -> the upper 24 bits as a fraction
 *
 * The key of a stream is what the seed's key gives for two counters of the stream's own. So streams and seeds have sequences that are
 * as independent as those of different keys.
 *
 * Positions are those of the whole tensor, also where a batch is computed in parts: an arange along the batch is never divided
 * (plan/micro_batch.c).
 */
#include "pass/decompose.h"

#define FRACTION_BITS 24   /* of a float */
#define INNER_VALUES  4096 /* 16 KB, which stay in the first cache */

static struct tensor *convert(struct model *m, const struct layer *l, struct tensor *x,
                              enum sol_dtype dtype) {
    struct attr attr = ir_default_attr();
    attr.dtype = dtype;
    return make_layer(m, LAYER_cast, 1, &x, &attr, l->origin);
}

/* x >> n. */
static struct tensor *shift(struct model *m, const struct layer *l, struct tensor *x, int n) {
    return make_with(m, LAYER_shift_right, x, n, l->origin);
}

static struct tensor *bits(struct model *m, const struct layer *l, struct tensor *counter,
                           struct tensor *const key[2]) {
    struct tensor *in[3] = {counter, key[0], key[1]};
    return make_layer(m, LAYER_random_bits, 3, in, NULL, l->origin);
}

/* 0, step, 2 * step, .. in row-major order of `rank` dims. */
static struct tensor *count(struct model *m, const struct layer *l, int64_t step, int rank,
                            const struct size *dim) {
    struct attr attr = ir_default_attr();
    attr.n_shape = 1;
    attr.shape[0] = size_const(1);
    for (int d = 0; d < rank; d++) attr.shape[0] = size_mul(attr.shape[0], dim[d]);
    attr.step = step;
    attr.dtype = SOL_I32;
    struct tensor *at = make_layer(m, LAYER_arange, 0, NULL, &attr, l->origin);
    return at ? make_reshape(m, at, rank, dim) : NULL;
}

/* The position of each value, from 2^31 on as an i32 of the same bits: the sum of a position in the last dims, of few values, and of
 * one in the other dims. Both are small tensors; one of all positions would be as large as the output. */
static struct tensor *positions(struct model *m, const struct layer *l) {
    const struct tensor *out = l->out[0];
    struct size dim[SOL_MAX_RANK];
    int first = out->rank;
    int64_t inner = 1;
    for (; first > 0 && size_is_const(out->dim[first - 1]); first--) {
        const int64_t n = size_value(out->dim[first - 1]);
        if (inner * n > INNER_VALUES) break;
        inner *= n;
    }
    struct tensor *near = count(m, l, 1, out->rank - first, out->dim + first);
    for (int d = 0; d < out->rank; d++) dim[d] = d < first ? out->dim[d] : size_const(1);
    if (!first) return near;
    return make_binary(m, LAYER_add, count(m, l, inner, out->rank, dim), near, l->origin);
}

struct tensor *decompose_random(struct model *m, const struct layer *l) {
    struct tensor *seed[2] = {convert(m, l, l->in[0], SOL_I32),
                              convert(m, l, shift(m, l, l->in[0], 32), SOL_I32)},
                  *key[2];
    for (int i = 0; i < 2; i++)
        key[i] = bits(m, l, make_scalar(m, SOL_I32, 2 * (double)l->attr.stream + i), seed);
    struct tensor *whole = shift(m, l, bits(m, l, positions(m, l), key), 32 - FRACTION_BITS);
    whole = make_with(m, LAYER_bit_and, whole, (1 << FRACTION_BITS) - 1, l->origin);
    return make_with(m, LAYER_mul, convert(m, l, whole, SOL_F32), 1.0 / (1 << FRACTION_BITS),
                     l->origin);
}

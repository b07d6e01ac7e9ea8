/*
 * Adding layers to a model, for passes and for the rules of gradients.
 *
 * Each function adds a layer and returns its output. It returns NULL, with a message, if an input is NULL (after an earlier error),
 * or if the layer is invalid. So a formula is written as one expression of calls, and its result is tested once. `origin` is that of
 * the layer that the formula stands for; it may be NULL.
 */
#ifndef SOL_MAKE_H
#define SOL_MAKE_H

#include "ir/ir.h"

struct tensor *make_layer(struct model *m, enum layer_kind kind, int n_in, struct tensor *const *in,
                          const struct attr *attr, const char *origin);
struct tensor *make_scalar(struct model *m, enum sol_dtype dtype, double value);
struct tensor *make_unary(struct model *m, enum layer_kind kind, struct tensor *x,
                          const char *origin);
struct tensor *make_binary(struct model *m, enum layer_kind kind, struct tensor *a,
                           struct tensor *b, const char *origin);
/* x and a number of its type. */
struct tensor *make_with(struct model *m, enum layer_kind kind, struct tensor *x, double value,
                         const char *origin);
/* A reduction over `n` axes. */
struct tensor *make_reduce(struct model *m, enum layer_kind kind, struct tensor *x, int n,
                           const int64_t *axes, bool keepdim, const char *origin);
struct tensor *make_reshape(struct model *m, struct tensor *x, int rank, const struct size *dim);
struct tensor *make_permute(struct model *m, struct tensor *x, int n, const int64_t *axes,
                            const char *origin);
/* Exchanges the last two dims. */
struct tensor *make_transpose(struct model *m, struct tensor *x, const char *origin);
/* x itself if it has this shape. */
struct tensor *make_expand(struct model *m, struct tensor *x, int rank, const struct size *dim,
                           const char *origin);
/* Values start, start + step, .., n of them, along an axis; x itself if these are all. */
struct tensor *make_slice(struct model *m, struct tensor *x, int axis, int64_t start, int64_t step,
                          struct size n, const char *origin);
/* [k] -> [k*n]: each value n times. */
struct tensor *make_repeat(struct model *m, struct tensor *x, int64_t n, const char *origin);
/* The positions 0, 1, .. along dim `axis` of n values; the other dims of `rank` are 1. */
struct tensor *make_positions(struct model *m, enum sol_dtype dtype, int rank, int64_t axis,
                              struct size n);
/* The largest finite number of x's type. */
double make_largest(const struct tensor *x);
struct tensor *make_cast(struct model *m, struct tensor *x, enum sol_dtype dtype);

/* ---- ir/make_attention.c ---- */

/* What an attention layer stands for. With grouped heads, q, k and v have one more dim: see the file. */
struct attention {
    struct tensor *q, *k, *v, *mask;
    struct tensor *scores;  /* q k^T * scale, limited by softcap, before masks */
    struct tensor *weights; /* its softmax over the keys */
};
void make_attention_weights(struct model *m, const struct layer *l, struct attention *out);

#endif

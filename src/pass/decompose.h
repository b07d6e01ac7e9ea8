/*
 * Inside the pass decompose: one function per composite layer. Each returns the tensor that replaces the layer's output, made of
 * simple layers with the layer's origin; NULL after an error.
 *
 *   decompose.c: the table, batch_norm, softmax      decompose_norm.c: norms, reductions
 *   decompose_attention.c                             decompose_transposed.c: conv_transpose
 *   decompose_random.c: random                        decompose_volume.c: conv of volumes
 */
#ifndef SOL_DECOMPOSE_H
#define SOL_DECOMPOSE_H

#include "pass/pass.h"

/* ---- decompose_norm.c ---- */

struct tensor *decompose_layer_norm(struct model *m, const struct layer *l);
struct tensor *decompose_rms_norm(struct model *m, const struct layer *l);
struct tensor *decompose_group_norm(struct model *m, const struct layer *l);
struct tensor *decompose_norm(struct model *m, const struct layer *l);
struct tensor *decompose_variance(struct model *m, const struct layer *l);
struct tensor *decompose_logsumexp(struct model *m, const struct layer *l);
struct tensor *decompose_reduction(struct model *m, const struct layer *l); /* of sum, mean */

/* ---- decompose_transposed.c ---- */

struct tensor *decompose_conv_transpose(struct model *m, const struct layer *l);

/* ---- decompose_random.c ---- */

struct tensor *decompose_random(struct model *m, const struct layer *l);

/* ---- decompose_volume.c ---- */

struct tensor *decompose_volume(struct model *m, const struct layer *l);

/* ---- decompose_attention.c ---- */

struct tensor *decompose_attention(struct model *m, const struct layer *l);

/* ---- Helpers: layers with the origin of `l` ---- */

struct tensor *decompose_unary(struct model *m, const struct layer *l, enum layer_kind kind,
                               struct tensor *x);
struct tensor *decompose_binary(struct model *m, const struct layer *l, enum layer_kind kind,
                                struct tensor *x, struct tensor *y);
/* x and a number. */
struct tensor *decompose_with(struct model *m, const struct layer *l, enum layer_kind kind,
                              struct tensor *x, double value);
/* A reduction over `n` axes. */
struct tensor *decompose_reduce(struct model *m, const struct layer *l, enum layer_kind kind,
                                struct tensor *x, int n, const int64_t *axes, bool keepdim);

#endif

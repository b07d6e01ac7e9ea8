/* What the generators share: gen_layer.c, gen_move.c, gen_composite.c, gen_recurrent.c, gen_dag.c, gen_mixed.c, gen_cnn.c, gen_epilogue.c, gen_kept.c. */
#ifndef GEN_PARTS_H
#define GEN_PARTS_H

#include "base/size.h"
#include "gen.h"

#define GEN_MOST  20000 /* elements of a tensor of a single layer's case */
#define GEN_BATCH 7 /* the largest batch that tests use, for bounds of sums over it */

/* ---- gen.c ---- */

void gen_start(struct gen *g, struct random *r, const char *name);
/* Adds a value for a tensor of the builder. Returns its index in g->value. */
int gen_value(struct gen *g, sol_tensor tensor, double size, double low, double error);
/* A new input, or parameter, of type g->type: floats from low to high, or integers of the type's whole range. */
int gen_leaf(struct gen *g, bool param, int rank, const int64_t *dim, float low, float high);
/* The same with integers, i64 or i32, from -n to n - 1. */
int gen_numbers(struct gen *g, bool param, int rank, const int64_t *dim, int64_t n);
/* i64 from 0 to n - 1. */
int gen_positions(struct gen *g, bool param, int rank, const int64_t *dim, int64_t n);
/* Adds a layer that reads values; `attributes` as text. The caller sets size, low and error if they
 * are needed. */
int gen_add(struct gen *g, const char *kind, int n_in, const int *in, const char *attributes);
void gen_output(struct gen *g, int value);
int64_t gen_extent(const struct gen *g, int64_t dim); /* the dim at the largest batch */
int64_t gen_elements(const struct gen *g, int value);
/* A shape of rank 1 to 4 with at most `most` elements; the first dim is sometimes the batch. */
int gen_shape(struct gen *g, int64_t most, int64_t *dim);
/* Dim `d` of a value as attribute text, also if it is a formula. */
const char *gen_size_text(const struct gen *g, int value, int d, char text[SIZE_TEXT]);
bool gen_same_dim(const struct gen *g, int x, int y, int d);
/* The same, also of rank 0 or 5, and sometimes with a dim of 0. */
int gen_any_shape(struct gen *g, int64_t most, int64_t *dim);
/* A dim as attribute text: "7" or "$0". */
const char *gen_dim_text(int64_t dim, char text[24]);
/* A constant of type g->type. */
int gen_scalar(struct gen *g, double value);

/* ---- gen_layer.c ---- */

int gen_random_leaf(struct gen *g, float low, float high); /* of any shape */

/* ---- gen_product.c ---- */

int gen_random_image(struct gen *g, int c); /* [n,c,h,w], from -1 to 1 */
void gen_conv_case(struct gen *g, const char *kind, const char *attributes);
void gen_conv_weight(struct gen *g, const char *kind, const char *attributes);
void gen_linear_case(struct gen *g, const char *kind, const char *attributes);
void gen_quant_conv_case(struct gen *g, const char *kind, const char *attributes);
void gen_quant_linear_case(struct gen *g, const char *kind, const char *attributes);
void gen_matmul_case(struct gen *g, const char *kind, const char *attributes);
void gen_batch_norm_case(struct gen *g, const char *kind, const char *attributes);

/* ---- gen_move.c ---- */

void gen_reshape_case(struct gen *g, const char *kind, const char *attributes);
void gen_permute_case(struct gen *g, const char *kind, const char *attributes);
void gen_slice_case(struct gen *g, const char *kind, const char *attributes);
void gen_place_case(struct gen *g, const char *kind, const char *attributes);
void gen_concat_case(struct gen *g, const char *kind, const char *attributes);
void gen_expand_case(struct gen *g, const char *kind, const char *attributes);
void gen_pad_case(struct gen *g, const char *kind, const char *attributes);
void gen_gather_case(struct gen *g, const char *kind, const char *attributes);
void gen_scatter_case(struct gen *g, const char *kind, const char *attributes);
void gen_resample_case(struct gen *g, const char *kind, const char *attributes);

/* ---- gen_composite.c ---- */

void gen_axes_norm(struct gen *g, const char *kind, const char *attributes);
void gen_group_norm(struct gen *g, const char *kind, const char *attributes);
void gen_conv_transpose(struct gen *g, const char *kind, const char *attributes);
void gen_attention(struct gen *g, const char *kind, const char *attributes);
void gen_triangle(struct gen *g, const char *kind, const char *attributes);

/* ---- gen_recurrent.c ---- */

void gen_recurrent(struct gen *g, const char *kind, const char *attributes);
void gen_recurrent_grad(struct gen *g, const char *kind, const char *attributes);
/* A layer of this kind, whose gates x has for n samples along dim 1 - axis; lengths < 0: none. */
int gen_recurrent_of(struct gen *g, const char *kind, int x, int64_t n, int64_t units, int axis,
                     int lengths);

#endif

/*
 * Random models for tests, made through the public builder: the same seed gives the same model
 * everywhere.
 *
 *   gen_layer   one layer of a given kind between inputs and an output
 *   gen_types   the same layer for each element type that it allows, in one model
 *   gen_dag     any graph of DFP's layers: chains, diamonds, broadcasts, reductions
 *   gen_mixed   a graph of several element types
 *   gen_fusible a graph that DFP must turn into exactly one kernel
 *   gen_epilogue a convolution or linear layer, and pointwise layers after it
 *   gen_cnn     a small network of convolutions, poolings, concats, slices and residual sums
 *   gen_kept    a model that was compiled wrongly once
 *   gen_joint   a model with a part that runs in BACKWARD
 *   gen_gradient the gradients of a model
 *   gen_open    layers and networks over open rows, columns and sequences
 *
 * The generator tracks bounds of the values and of their rounding errors. So models have no
 * overflow, no logarithm of a negative number, and no division by nearly 0.
 */
#ifndef GEN_H
#define GEN_H

#include "random.h"

#include <sol/sol.h>

#define GEN_VALUES 256
#define GEN_LEAVES 128

/* A tensor of the model under construction. */
struct gen_value {
    sol_tensor tensor;
    enum sol_dtype type;
    int rank;
    int64_t dim[SOL_MAX_RANK]; /* as sol_model_shape returns them */
    double size;               /* absolute values are at most this */
    double low;                /* values are at least this, if it is above 0 */
    double error;              /* a high estimate of the rounding error; 0: the value is exact */
    int readers;
};

/* The values of an input or parameter: floats from low to high. Integers are of their type's whole range, or from low to high if
 * `is_index` is set. */
struct gen_range {
    float low, high;
    bool is_index;
    bool special; /* some floats are NaN, infinite, -0 or tiny */
};

struct gen {
    struct random *random;
    struct sol_model *model;
    int64_t batch;                   /* symbol 0, as a dim */
    enum sol_dtype type;             /* of new leaves: f32 unless the generator is for types */
    bool is_mixed;                   /* output_error is allowed, and nothing else */
    bool special;                    /* new leaves have special values */
    double tolerance;                /* allowed relative to the largest output */
    double error;                    /* allowed in addition, absolute */
    double output_error[GEN_LEAVES]; /* of each output */
    int n, n_inputs, n_params, n_outputs;
    struct gen_value value[GEN_VALUES];
    struct gen_range input[GEN_LEAVES], param[GEN_LEAVES];
};

/* One of the following by its name: a kind of layer, types:KIND for all its element types, dag, mixed, fusible, epilogue, cnn, many or
 * kept. */
void gen_named(struct gen *g, struct random *r, const char *name);
/* Each starts a model in *g, which the caller frees with sol_model_free(g->model). */
void gen_layer(struct gen *g, struct random *r,
               const char *kind); /* no output: a kind without cases */
void gen_types(struct gen *g, struct random *r, const char *kind);
void gen_dag(struct gen *g, struct random *r);
void gen_mixed(struct gen *g, struct random *r); /* sets is_mixed */
void gen_fusible(struct gen *g, struct random *r);
void gen_epilogue(struct gen *g, struct random *r);
void gen_cnn(struct gen *g, struct random *r);
void gen_many(struct gen *g, struct random *r); /* more tensors than a kernel can read */
void gen_kept(struct gen *g, struct random *r); /* regression tests */
void gen_open(struct gen *g, struct random *r); /* several symbols; symbol 0 is the batch */
/* The model of `g` with a random part that runs in BACKWARD: what depends on some of its inputs, and on one more input, "gate" f32[],
 * by which some tensors are multiplied: the caller passes 1. The caller frees it. NULL: the model has no text. */
struct sol_model *gen_joint(const struct gen *g, struct random *r);
/* The model of `g` with an input "dy" of BACKWARD per float output, in order, and as outputs of BACKWARD the gradients of its float inputs
 * and parameters, by their names. The caller frees it. NULL, with sol_error(): a layer has no gradient. */
struct sol_model *gen_gradient(const struct gen *g);
/* A network as gen_cnn's over `rows` rows and `columns` columns, which may be symbols; adds its outputs. */
void gen_cnn_of(struct gen *g, int64_t rows, int64_t columns);

#endif

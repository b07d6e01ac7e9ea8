/*
 * From a DNN cluster to a problem: what is to be computed, as numbers. It depends on no device but for the width of its channel blocks.
 *
 *   cluster -> dnn_problem_make -> dnn_choose (choice.h) -> emit.c
 */
#ifndef SOL_DNN_PROBLEM_H
#define SOL_DNN_PROBLEM_H

#include "dnn/dnn.h"
#include "plan/build.h"

/* The sizes of a matmul: of struct dnn_problem, as formulas. */
struct dnn_matrix_sizes {
    struct size k, c, at[DNN_N_MATRIX];
    struct size packed; /* bytes of a packed b, at most */
};
/* For a matmul only. `y`: the cluster's output. */
void dnn_problem_matrices(const struct build *build, const struct cluster *cluster,
                          const struct tensor *y, struct dnn_matrix_sizes *out);
/* `matrices`: of a matmul. */
struct dnn_problem dnn_problem_make(struct build *build, const struct cluster *cluster,
                                    const struct dnn_matrix_sizes *matrices);

/* "conv", "linear", .. */
const char *dnn_problem_name(const struct dnn_problem *problem);
/* The convolution's output and weight; of the gradient of a weight, the tensors that have their shapes. */
struct tensor *dnn_problem_y(const struct layer *anchor);
struct tensor *dnn_problem_weight(const struct layer *anchor);
struct tensor *dnn_problem_bias(const struct layer *anchor); /* NULL: none */
/* Of a conv_transpose: is it a usual convolution with a turned weight? Without strides it is, unless more than all padding is cut off. */
bool dnn_problem_is_turned(const struct layer *anchor);
/* A convolution, or the gradient of one's weight. */
bool dnn_problem_has_images(const struct layer *anchor);
/* Rows of a linear layer: all dims but the last. */
struct size dnn_problem_rows(const struct tensor *x);
/* The cluster's output. */
struct tensor *dnn_problem_output(const struct cluster *cluster);

#endif

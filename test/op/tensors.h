/*
 * Tensors of one run of a generated model.
 *
 *   tensors_add_random: inputs and parameters | tensors_add: outputs -> tensors_compare
 */
#ifndef TENSORS_H
#define TENSORS_H

#include "gen.h"
#include "ir/ir.h"

struct tensors {
    int n;
    void *at[GEN_LEAVES];
    enum sol_dtype type[GEN_LEAVES];
    int64_t size[GEN_LEAVES]; /* elements */
};

int64_t tensors_count(const struct tensor *t, const int64_t *symbols); /* elements */
/* Allocates exactly as many bytes as needed, so ASan finds accesses beyond the end. Bytes that no program writes as a result show where
 * an output was not written: as a float they are large, as a bool illegal. */
void *tensors_add(struct tensors *list, enum sol_dtype type, int64_t n);
void tensors_add_random(struct tensors *list, struct random *r, const struct tensor *t,
                        const int64_t *symbols, struct gen_range range);
void tensors_free(struct tensors *list);
/* The largest error of tensor i, relative to the error that the generator allows. */
double tensors_compare(const struct gen *g, const struct tensors *is,
                       const struct tensors *expected, int i);

#endif

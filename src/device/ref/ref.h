/*
 * The device `ref`: the reference that tests compare every other implementation with.
 *
 * One plain scalar function per layer, with loops over output points and no optimization. It shares no code
 * with DFP, with ir/define.c or with the DNN kernels, so that a mistake there is not repeated here.
 * Single values are computed in float, as everywhere in SOL. Sums are in double, so
 * that the reference's rounding error is far below the errors that it measures.
 *
 * All tensors are f32, plain and dense, except the indices of a gather. PyTorch's results are the definition: NaN propagates,
 * and windows that extend over the edge are counted as in PyTorch.
 */
#ifndef SOL_REF_H
#define SOL_REF_H

#include "ir/ir.h"

/* Computes one layer: writes its output to `out`, from its inputs `in`. `symbols` are the values of the model's symbols.
 * For inputs and parameters it does nothing. Never allocates. EINVAL: an index of a gather is outside of its table. */
enum sol_status ref_layer(const struct layer *layer, const int64_t *symbols, const float *const *in,
                          float *out);

/* Runs a whole model; pointers are in the order of m->inputs, m->params and m->outputs. ENOMEM: no memory for a
 * buffer. */
enum sol_status ref_run(const struct model *m, const int64_t *symbols, const void *const *inputs,
                        const void *const *params, void *const *outputs);

#endif

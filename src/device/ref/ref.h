/*
 * The device `ref`: the oracle that every other implementation is compared with.
 *
 * One plain scalar function per layer, loops over output points, nothing clever. It shares no code
 * with DFP, with define.c or with the DNN kernels, so that a mistake there cannot hide here as
 * well. Single values are computed in float, as everywhere in SOL; sums are collected in double, so
 * that the oracle's own rounding error is far below what it judges.
 *
 * All tensors but a gather's numbers are f32, plain and dense. PyTorch's results are the definition: NaN propagates,
 * windows that hang over the edge count as PyTorch counts them.
 */
#ifndef SOL_REF_H
#define SOL_REF_H

#include "ir/ir.h"

/* Computes layer->out[0] into `out`, from `in` in the layer's order. `symbols` are the model's.
 * Sources other than scalar have nothing to compute and leave `out` alone. Never allocates. Fails when numbers of a gather are outside of its table. */
enum sol_status ref_layer(const struct layer *layer, const int64_t *symbols, const float *const *in,
                          float *out);

/* Runs a whole model, pointers in the order of m->inputs, m->params and m->outputs. ENOMEM
 * when a buffer cannot be had. */
enum sol_status ref_run(const struct model *m, const int64_t *symbols, const void *const *inputs,
                        const void *const *params, void *const *outputs);

#endif

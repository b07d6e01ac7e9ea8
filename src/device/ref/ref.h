/*
 * The device `ref`: the reference that tests compare every other implementation with.
 *
 * One plain scalar function per layer, with loops over output points and no optimization. It shares no code
 * with DFP, with ir/define.c or with the DNN kernels, so that a mistake there is not repeated here.
 *
 * What a layer computes depends on the element type of its values:
 *   f32        single values in float, as everywhere in SOL. Sums are in double, so that the reference's rounding error is far
 *              below the errors that it measures
 *   f64        all in double
 *   f16, bf16  as f32; each layer rounds its results to the nearest, in the middle to even
 *   integers   exact, modulo 2^bits; an integer divided by 0 gives 0
 *   bool       0 or 1
 *
 * All tensors are plain and dense. PyTorch's results are the definition: NaN propagates,
 * and windows that extend over the edge are counted as in PyTorch.
 */
#ifndef SOL_REF_H
#define SOL_REF_H

#include "ir/ir.h"

/* Computes one layer: writes its outputs to `out`, from its inputs `in`, all of them in the types of their tensors. `symbols` are
 * the values of the model's symbols. For inputs and parameters it does nothing. Never allocates. EINDEX: an index of a gather is
 * outside of its table. */
enum sol_status ref_layer(const struct layer *layer, const int64_t *symbols, const void *const *in,
                          void *const *out);

/* Runs a whole model; pointers are in the order of m->inputs, m->params and m->outputs. Parameters that the model updates are
 * written after the last layer. ENOMEM: no memory for a buffer. */
enum sol_status ref_run(const struct model *m, const int64_t *symbols, const void *const *inputs,
                        const void *const *params, void *const *outputs);
/* One call of a model with a backward part: FORWARD leaves out the layers of BACKWARD, which computes all layers again, but writes no
 * outputs and parameters of FORWARD. Pointers that a call does not use may be NULL. */
enum sol_status ref_run_phase(const struct model *m, enum phase phase, const int64_t *symbols,
                              const void *const *inputs, const void *const *params,
                              void *const *outputs);
/* The same model with f64 in place of every float type, so that nothing is rounded to f32, f16 or bf16: for tests that need exacter
 * results than those of ref_run. Inputs and parameters have their declared types; outputs that are floats are written as f64. Updates
 * are not applied. */
enum sol_status ref_run_double(const struct model *m, const int64_t *symbols,
                               const void *const *inputs, const void *const *params,
                               void *const *outputs);

#endif

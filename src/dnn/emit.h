/*
 * From a DNN cluster to steps.
 *
 *   device/cpu/cpu.c, emit -> dnn_emit: problem, choice of the implementation, a pack step and a step
 */
#ifndef SOL_DNN_EMIT_H
#define SOL_DNN_EMIT_H

#include "dnn/dnn.h"
#include "plan/build.h"

/* Autotunes: runs `n` plans of one problem, cheapest by cost first, and returns the index of the fastest. The device
 * implements it, as only the device knows whether this machine can run the kernels. */
typedef int dnn_tune(struct arena *arena, const struct dnn_plan *plans, int n);
#define DNN_NEAR_TIE 2.0 /* plans that cost at most this many times the cheapest one are timed */

/*
 * Appends the steps of `cluster`; fails if every implementation refuses.
 * `epilogue` describes the generated kernel of the cluster's epilogue; NULL: none. Its `data` is the struct kernel; its
 * pointers, arguments and scratch_size are added to those of the step. The kernel works in place on points [begin, end) of y;
 * a point is one vector of channels of [n][channel block][pixel], or one value of [row][output] for a linear; the numbering
 * ignores gaps between samples.
 * `tune` NULL: no timing. The cost model alone chooses, and prefers own kernels to libraries.
 */
enum sol_status dnn_emit(struct build *build, const struct cluster *cluster,
                         const struct dnn_isa *isa, dnn_tune *tune, const struct step *epilogue);

/* emit_recurrent.c: appends the steps of a cluster of module RECURRENT. `isa` NULL: plain loops, for any processor. */
enum sol_status dnn_emit_recurrent(struct build *build, const struct cluster *cluster,
                                   const struct dnn_isa *isa);

/* emit_attention.c: does the kernel compute this attention layer as a whole? */
bool dnn_computes_attention(const struct layer *layer);
/* Appends the step of a cluster of module ATTENTION. */
enum sol_status dnn_emit_attention(struct build *build, const struct cluster *cluster,
                                   const struct dnn_isa *isa);

/* True if an implementation can compute this conv on blocked tensors, or if it is a linear, or a matmul unless this is disabled, which
 * DFP computes then. Called before layouts are chosen. */
bool dnn_supports(const struct layer *conv, int lanes);
/* Does a kernel compute this composite layer as a whole? Else it is decomposed. */
bool dnn_computes(const struct layer *layer, int lanes);
/* Can this convolution write a plain y in about the time that a blocked one takes? Then only a bias and an activation are fused. */
bool dnn_writes_plain(const struct layer *conv, int lanes);

/* plain.c: the same as dnn_supports and dnn_writes_plain, for far devices. */
bool dnn_plain_supports(const struct layer *layer, int lanes);
bool dnn_plain_takes_conv(const struct layer *conv, int lanes);

#endif

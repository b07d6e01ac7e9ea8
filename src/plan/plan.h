/*
 * The plan: from an optimized model to clusters with layouts, implementations and buffers.
 *
 *   model -> cluster.c -> layout.c -> choose.c (DNN) / dfp -> memory.c -> steps of a program
 *
 * A Cluster is a set of layers that one kernel computes. Module DNN: one conv or linear with what was fused into its
 * prologue and epilogue. Module DFP: any connected set of other layers. Module copy: layers that only move values.
 */
#ifndef SOL_PLAN_H
#define SOL_PLAN_H

#include "ir/expr.h"
#include "ir/ir.h"

enum module { MODULE_DFP, MODULE_DNN, MODULE_COPY, MODULE_NONE };

struct cluster {
    int id;
    enum module module;
    bool prepare;                      /* reads parameters only: runs once per version of the weights */
    VEC(struct layer *) layers;        /* topological */
    VEC(struct tensor *) inputs;       /* read, not made here */
    VEC(struct tensor *) outputs;      /* made here, read elsewhere (or model outputs) */
};

/*
 * Where a tensor lies: address of element (i0, i1, ..) in elements = offset + sum i[d] * stride[d], and for a blocked
 * tensor with c = the stored position of the channel: (c / block) * stride[channel axis] + c % block.
 * A slice of a concat has its parent's stride for the batch.
 */
struct view {
    struct tensor *root;               /* whose memory it is; itself when not an alias */
    struct size offset;                /* elements from the root's start */
    struct size stride[SOL_MAX_RANK];
};

/* ---- What DFP answers for a cluster: dfp/dfp.h ---- */

/*
 * A generated kernel: C text that depends on the structure only, never on sizes, so that equal structures share
 * one kernel. All sizes, strides and trip counts come as `arg`, polynomials evaluated per call:
 *     void <symbol>(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end)
 */
struct dfp_kernel {
    const char *text;                  /* function named SOL_KERNEL, without headers: unique by content */
    const char *comment;               /* which layers it fuses, for people; stands in front of the text when debugging */
    int n_ptr;
    struct tensor **ptr;               /* inputs, then outputs */
    int n_arg;
    struct size *arg;
    struct size tasks;                 /* trip count of the grid */
    size_t scratch_size;               /* bytes per thread; constant */
    double flops_per_task;
    const void *code;                  /* the same nest as relocatable code for dfp_interpret, when there is no compiler */
    size_t code_size;
};

#endif

/*
 * The plan: from an optimized model to clusters with layouts, implementations and buffers.
 *
 *   model -> layout.c -> storage.c -> cluster.c, anchor.c -> micro_batch.c -> the device's emit (dnn, dfp) -> build.c
 *
 * A Cluster is a set of layers that one kernel computes. Module DNN: one conv or linear with what was fused into its
 * prologue and epilogue, part of which DFP generates. Module DFP: any connected set of other layers. Module copy: layers that only move values. Module gather: one gather.
 */
#ifndef SOL_PLAN_H
#define SOL_PLAN_H

#include "ir/expr.h"
#include "ir/ir.h"

enum module {
    MODULE_DFP,
    MODULE_DNN,
    MODULE_COPY,   /* moves values through a table: run/copy.c */
    MODULE_GATHER, /* rows of a table, by numbers of the call: run/gather.c */
    MODULE_VIEW, /* costs nothing: the output lies in the input's memory, or the inputs in the output's */
};

/*
 * What a DNN cluster computes: epilogue(act(anchor(prologue(x)) + residual)). What is not there is NULL. The layers of
 * all parts are in the cluster's `layers`.
 */
struct dnn_fusion {
    struct layer *anchor; /* the conv or linear */
    struct tensor *x, *residual;
    struct tensor *scale, *shift; /* prologue: relu(x * scale + shift) */
    struct layer *prologue_act;
    struct layer *act; /* relu or clamp */
    struct cluster
        *epilogue; /* made by DFP, called for each finished tile; not in the list of clusters */
};

struct cluster {
    int id;
    enum module module;
    bool prepack;        /* reads parameters only: runs once per version of the weights */
    bool by_sample;      /* can be computed for a part of the batch ... */
    int64_t micro_batch; /* ... and should be, for that many samples, if the batch is batch_hint */
    VEC(struct layer *) layers; /* topological */
    VEC(struct tensor *)
    inputs; /* read, not made here; scalars are not listed: they become constants of the text */
    VEC(struct tensor *) outputs; /* made here, read elsewhere (or model outputs) */
    struct dnn_fusion *dnn;       /* module DNN only */
    struct tensor
        *tile; /* an epilogue only: the tensor that it begins with and works on in place */
};

/*
 * Where a tensor lies. Address of element (i0, i1, ..), in elements from the root's start:
 *   offset + sum over d of i[d] * stride[d]
 * For a blocked tensor i[channel axis] counts blocks, and the position inside the block is added. Dims inside a sample
 * are always dense; only the batch stride differs, where a sample lies inside a larger one (concat, slice).
 */
enum storage_kind {
    STORAGE_UNDECIDED,
    STORAGE_OWN,    /* memory of its own, or the caller's */
    STORAGE_ALIAS,  /* a piece of the input of its producer, which then costs nothing */
    STORAGE_PLACED, /* written straight into its place in a concat's output */
};
struct storage {
    enum storage_kind kind;
    bool is_filled;        /* a concat whose inputs are placed in it, so that it costs nothing */
    bool has_batch_stride; /* there may be gaps between samples */
    struct tensor *root;   /* whose memory it is; itself for OWN */
    struct size offset;
    struct size stride[SOL_MAX_RANK];
};

/* The whole plan; arrays by tensor id. */
struct plan {
    struct arena *arena;
    struct model *model;
    int lanes;                      /* width of a channel block; from the device */
    VEC(struct cluster *) clusters; /* in the order of execution */
    bool (*supports_anchor)(const struct layer *conv,
                            int lanes); /* can the device's DNN module do it? */
    struct storage *storage;
    struct cluster **maker; /* of each tensor, NULL for sources */
};

/* ---- layout.c: which tensors are blocked, and copies where layouts meet ---- */
enum sol_status plan_layouts(struct plan *plan);
int layout_channel_axis(const struct tensor *t);               /* 0 for rank 1, else 1 */
int layout_position(const struct layout *layout, int channel); /* stored position of a channel */
bool layout_equal(const struct layout *a, const struct layout *b);
/* Do both layouts put the tensor's values in the same order, without padding? */
bool layout_is_same_order(const struct tensor *a, const struct tensor *b);
struct size layout_elements(const struct tensor *t); /* stored elements, padding included */

/* ---- storage.c: memory and addresses ---- */
enum sol_status plan_storage(struct plan *plan); /* fills plan->storage; may insert copies */
/* Does the layer cost nothing, because its output is there already? */
bool storage_is_view(const struct plan *plan, const struct layer *layer);
/* `tile` is computed in the memory of `out`, which an epilogue makes of it. */
void storage_set_in_place(const struct plan *plan, const struct tensor *tile,
                          const struct tensor *out);

/* ---- cluster.c: who computes what ---- */
/* Tells why the layers of a would-be cluster cannot share a kernel; NULL = they can. DFP's, see dfp_refuse. */
typedef const char *plan_refuse(struct arena *arena, const struct cluster *cluster);
enum sol_status plan_clusters(struct plan *plan, plan_refuse *refuse);

/* ---- micro_batch.c: what can be computed for a part of the batch ---- */
enum sol_status plan_micro_batches(struct plan *plan, int64_t batch);
/* Is the first dim the batch, and no other size open? */
bool plan_is_batch_major(const struct tensor *t);

/* ---- movement.c: copies as tables ---- */
struct copy_table;
bool movement_keeps_batch(const struct layer *layer); /* does it move values within samples only? */
bool movement_is_possible(
    const struct layer *layer); /* may it be part of a chain that one copy does? */
/* The table that moves chain[0]'s input to chain[n-1]'s output. `batch` returns how many times it is applied. */
enum sol_status movement_table(struct arena *arena, struct layer *const *chain, int n,
                               struct copy_table *out, struct size *batch);

/* ---- What DFP answers for a cluster: dfp/dfp.h ---- */

/*
 * A generated kernel: C text that depends on the structure only, never on sizes, so that equal structures share
 * one kernel. All sizes, strides and trip counts come as `arg`, polynomials evaluated per call:
 *     void <symbol>(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end)
 */
struct dfp_kernel {
    const char *text; /* function named SOL_KERNEL, without headers: unique by content */
    const char *
        comment; /* which layers it fuses, for people; stands in front of the text when debugging */
    int n_ptr;
    struct tensor **ptr; /* inputs, then outputs */
    int n_arg;
    struct size *arg;
    struct size tasks;   /* trip count of the grid */
    size_t scratch_size; /* bytes per thread; constant */
    double flops_per_task;
    const void
        *code; /* the same nest as relocatable code for dfp_interpret, when there is no compiler */
    size_t code_size;
};

#endif

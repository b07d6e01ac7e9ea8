/*
 * The DNN module: convolutions and linear layers, by own kernels and vendor libraries.
 *
 *   emit.c at compile time:  cluster -> problem -> [dnn_impls: refuse? cost?] -> plan
 *   run/exec.c, two steps:   pack(plan, weight), once per version of the weights; run(plan, call), at every call
 *
 * Implementations stand in one ordered list (list.h); each refuses with a reason or answers with a cost. All that they find
 * out about a problem goes into its plan, so that packing and running decide nothing.
 *
 * Layouts. A "blocked" tensor is [n][channel block][row][column][lane] with `lanes` channels per block; pad
 * lanes (stored, but no channel of the model) hold zero by invariant: each kernel writes zero there. It follows
 * from zero weights and zero bias in those places. A "plain" tensor is [n][channel][row][column].
 * Strides are in elements. Stored channels are counted with their padding: always a multiple of `lanes` when blocked.
 *
 * Kernels are compiled once per instruction set, take all shapes as arguments and never see the thread pool:
 * they work on tasks [begin, end) of n_tasks, in any order and division, with the same result.
 */
#ifndef SOL_DNN_H
#define SOL_DNN_H

#include "base/base.h"

enum dnn_kind { DNN_CONV, DNN_LINEAR };
enum dnn_act { DNN_ACT_NONE, DNN_ACT_RELU, DNN_ACT_CLAMP };

/* What to compute; known at compile time but for the batch.
 *   y[n,k,i,j] = act(bias[k] + sum_{c,r,s} P(x[n, c, i*sh - pt + r*dh, j*sw - pl + s*dw]) * w[k,c,r,s] + residual[n,k,i,j])
 * with P(v) = v, or max(v*scale[c] + shift[c], prologue_min) when `prologue` (applied before zero padding).
 * Linear: y[n,k] = act(bias[k] + sum_c x[n,c]*w[k,c] + residual[n,k]), all plain and dense.
 *
 * The fields, as X(kind of value, type, name): the struct and dnn_print_problem follow from this list.
 * INT: an integer, an enum or a truth value. C_MAP, K_MAP: NULL, or `c` or `k` numbers. */
#define DNN_PROBLEM(X)                                                                             \
    X(INT, enum dnn_kind, kind)                                                                    \
    X(INT, int64_t, batch_hint)                                                                    \
    X(INT, int, lanes) /* width of a channel block */                                              \
    X(INT, int, threads)                                                                           \
    X(INT, int, c) X(INT, int, k) /* stored channels in and out, over all groups */                \
    /* Channels in the weight tensor, which is [k_model][c_model / groups][kh][kw]. */             \
    X(INT, int, c_model) X(INT, int, k_model) X(INT, int, groups)                                  \
    /* Stored channel -> model channel, -1 = padding; NULL = identity (then c == c_model). Example:\
     * two joined images of 3 and 2 channels in blocks of 4 are stored as 0 1 2 -1 3 4 -1 -1. */   \
    X(C_MAP, const int *, c_map) X(K_MAP, const int *, k_map)                                      \
    X(INT, int, h) X(INT, int, w) X(INT, int, oh) X(INT, int, ow) X(INT, int, kh) X(INT, int, kw)  \
    X(INT, int, sh) X(INT, int, sw) X(INT, int, pt) X(INT, int, pl) X(INT, int, dh) X(INT, int, dw)\
    X(INT, bool, x_plain) X(INT, bool, y_plain) /* else blocked */                                 \
    X(INT, bool, bias) X(INT, bool, residual) X(INT, bool, prologue)                               \
    X(INT, bool, residual_plain) /* layout of the residual; as y otherwise */                      \
    X(FLOAT, float, prologue_min) /* -INFINITY: no clamp */                                        \
    X(INT, enum dnn_act, act)                                                                      \
    X(FLOAT, float, act_min) X(FLOAT, float, act_max) /* for DNN_ACT_CLAMP */
struct dnn_problem {
#define DNN_FIELD(kind, type, name) type name;
    DNN_PROBLEM(DNN_FIELD)
#undef DNN_FIELD
};

/* Pointers of one call. Strides of n in elements: dims inside an image are dense, images may lie apart (slices of a concat). */
struct dnn_call {
    const float *x, *residual;
    const float *packed, *weight; /* by pack; as the framework holds it, when nothing is packed */
    const float *bias, *scale, *shift; /* k stored values; c stored values of the prologue */
    float *y;
    int64_t batch, x_stride, y_stride, residual_stride;
    /* Unless NULL, every implementation calls it exactly once per finished region of y, after bias,
     * residual and act, while the region is in the cache: n_pixels pixels in a row of channel block
     * k_block of image n, from `pixel` on. It works in place and in any order. Linear: n_pixels
     * outputs of row n, from output `pixel` on; k_block is 0. */
    void (*epilogue)(void *user, int64_t n, int64_t k_block, int64_t pixel, int n_pixels);
    void *epilogue_user;
};

/* What an implementation decided: plain data, copied into the program. X(kind of value, type, name, array): as above. */
#define DNN_PLAN(X)                                                                                \
    X(IMPL, const struct dnn_impl *, impl, )                                                       \
    X(KERNELS, const struct dnn_kernels *, kernels, ) /* of one instruction set */                 \
    X(INTS, int64_t, param, [48])             /* the implementation's own, e.g. tile sizes */      \
    X(INT, size_t, packed_size, )             /* bytes; 0: the weight tensor is used in place */   \
    X(INT, int64_t, n_pack_tasks, )                                                                \
    X(INT, size_t, scratch_size, )            /* bytes per thread for run */                       \
    X(FLOAT, double, cost, )                  /* estimated seconds at batch_hint */                \
    X(PROBLEM, struct dnn_problem, problem, ) /* its maps must outlive the plan: program memory */
struct dnn_plan {
#define DNN_FIELD(kind, type, name, array) type name array;
    DNN_PLAN(DNN_FIELD)
#undef DNN_FIELD
};

/* Tasks [begin, end) of n_tasks; `scratch` is the thread's own, plan->scratch_size bytes. */
typedef void dnn_run_fn(const struct dnn_plan *plan, const struct dnn_call *call, void *scratch,
                        int64_t begin, int64_t end);

struct dnn_impl {
    const char *name; /* "direct", "winograd4", ... */
    /* NULL: accepted; else the reason, static text. */
    const char *(*refuse)(const struct dnn_problem *problem);
    void (*plan)(struct dnn_plan *plan); /* problem, kernels -> the rest of the plan */
    /* Writes the weight in the order that run reads it; task < n_pack_tasks. NULL where it is used in place. */
    void (*pack)(const struct dnn_plan *plan, const float *weight, float *packed, int64_t task);
    int64_t (*n_tasks)(const struct dnn_plan *plan, int64_t batch);
    dnn_run_fn *run;
    bool approximate; /* rounding error above direct's: not in deterministic mode */
    /* A vendor's library: its version, or the reason why it is not available. NULL: an own kernel. */
    const char *(*probe)(bool *available);
};

/* The rows of dnn/list.h in their order, ended by NULL. */
extern const struct dnn_impl *const dnn_impls[];

/* Kernel tables by instruction set. `lanes` is 16, 8, 4. */
struct dnn_isa {
    const char *name; /* "avx512", "avx2", "neon", "generic" */
    const char *arch; /* "x86", "arm64"; "" for any */
    int lanes;
    double flops_per_cycle;   /* per core, for the cost model */
    const char *flags;        /* of the compiler, for generated kernels ... */
    const char *kernel_flags; /* ... and those that own kernels need besides */
    const struct dnn_kernels *kernels;
};
extern const struct dnn_isa dnn_isas[]; /* best first, ended by name == NULL */

/* ---- print.c ---- */

/* All fields as an initializer in C, in one line: equal texts are equal problems. */
void dnn_print_problem(struct text *text, const struct dnn_problem *problem);
/* The same for a plan, in a source that has the implementations and, as `kernels`, their table. */
void dnn_print_plan(struct text *text, const struct dnn_plan *plan);

/* ---- What implementations have in common ---- */

/* Whose kernels these are; they must be in the table. */
const struct dnn_isa *dnn_find_isa(const struct dnn_kernels *kernels);
/* Peak of one core for the cost models, which all assume the same clock: only ratios decide. */
double dnn_flops_per_s(const struct dnn_kernels *kernels);

/* Calls the epilogue, if there is one, for a rectangle of y's channel block k_block: n_rows x n_columns pixels from number
 * `pixel` on, in an image of `width` columns. Whole rows follow each other, so they are one call. */
void dnn_call_epilogue(const struct dnn_call *call, int64_t n, int64_t k_block, int64_t pixel,
                       int64_t n_rows, int64_t n_columns, int64_t width);

/* Refuses what is not a dense matrix product with the weight as the framework holds it. */
const char *dnn_refuse_linear(const struct dnn_problem *problem);

static inline int dnn_model_channel(const int *map, int64_t stored) {
    return map ? map[stored] : (int)stored;
}

/* Divides `total` into n even parts: where part i begins. It ends where part i + 1 begins. 10 in 4:
 * 0, 3, 6, 8, 10. */
static inline int64_t dnn_split(int64_t total, int64_t i, int64_t n) {
    return total / n * i + min_i64(i, total % n);
}

#endif

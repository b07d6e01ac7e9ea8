/*
 * The DNN module: convolutions, linear layers and matmuls, computed by own kernels or vendors' libraries.
 *
 *   problem.c, choice.c, at compile time: cluster -> problem -> [each of the device's implementations: refuse or plan] -> cheapest plan
 *   run/exec.c, prepack step:   pack(plan, weight), once per version of the parameters
 *   run/exec.c, step:           run(plan, call, tasks), at every call
 *
 * list.h lists the implementations in order. An implementation refuses a problem with a reason, or makes a plan with an
 * estimated cost. The plan holds all decisions (tile sizes, division into tasks); pack and run make none.
 *
 * Layouts. "Blocked": [n][channel block][row][column][lane], `lanes` channels per block; nChw16c for 16 lanes.
 * "Plain": [n][channel][row][column]. Strides are in elements. `c` and `k` count stored channels, which include
 * padding; for a blocked tensor they are multiples of `lanes`. Invariant: padding channels hold zero. Kernels write
 * zero there without extra code, as the weights and the bias of padding channels are zero.
 *
 * Kernels are compiled once per instruction set and take all shapes as arguments. They do not call the thread pool: a
 * kernel computes tasks [begin, end) of n_tasks, and the result is the same bits for any order and division of tasks.
 */
#ifndef SOL_DNN_H
#define SOL_DNN_H

#include "base/base.h"

enum dnn_kind { DNN_CONV, DNN_LINEAR, DNN_MATMUL, DNN_CONV_WEIGHT };
enum dnn_act { DNN_ACT_NONE, DNN_ACT_RELU, DNN_ACT_CLAMP };

/*
 * Indices into dnn_problem.matrix, of a matmul: strides of a, b and y in elements, and the rows of one product. Then, for each dim
 * of products, their number and the strides; the number is 0 behind the last dim. The first number (the rows, if there is no dim)
 * follows from the rows of a call.
 */
enum dnn_matrix { DNN_A_ROW, DNN_A_COLUMN, DNN_B_ROW, DNN_B_COLUMN, DNN_Y_ROW, DNN_ROWS, DNN_DIMS };
enum dnn_matrix_dim { DNN_DIM_SIZE, DNN_DIM_A, DNN_DIM_B, DNN_DIM_Y, DNN_DIM_FIELDS };
enum {
    DNN_MAX_DIMS = SOL_MAX_RANK - 2,
    DNN_N_MATRIX = DNN_DIMS + DNN_MAX_DIMS * DNN_DIM_FIELDS,
};

/* One conv, linear or matmul. All is known at compile time except the batch and, if `open`, the sizes of the images.
 *   y[n,k,i,j] = act(bias[k] + sum_{c,r,s} P(x[n, c, i*sh - pt + r*dh, j*sw - pl + s*dw]) * w[k,c,r,s] + residual[n,k,i,j])
 * with P(v) = v without prologue, else max(v*scale[c] + shift[c], prologue_min). The prologue applies to the values of x,
 * not to the zero padding (pt, pl) around them.
 * Transposed conv: x[n,c,i,j] * w[c,k,r,s] is added to y[n, k, i*sh - pt + r*dh, j*sw - pl + s*dw].
 * Linear: y[n,k] = act(bias[k] + sum_c x[n,c]*w[k,c] + residual[n,k]); all tensors are plain and dense, n counts rows.
 * Matmul, a product of two computed tensors: y[.., i, k] = act(sum_c a[.., i, c] * b[.., c, k] + residual[.., i, k]). a is x of
 * struct dnn_call, b the weight. `matrix` has their strides, so that either may be transposed or a part of another tensor;
 * the residual is dense. Rows are counted through all products.
 *
 * Gradient of a weight: the fields describe the convolution, with dy, the gradient of its output, in the place of y. `weight` of struct
 * dnn_call is dy and y_stride its stride; y is the plain weight's gradient, or the partial results that `join` adds up:
 *   dw[k,c,r,s] = sum_{n,i,j} dy[n,k,i,j] * x[n, c, i*sh - pt + r*dh, j*sw - pl + s*dw]
 *
 * A volume is [n][channel][plane][row][column], and the sum is over the planes of the kernel, too. h, w: size of x; oh, ow: of y; kh, kw: of the kernel; sh, sw: strides; dh, dw: dilations (1: none); pt, pl: padding at the top
 * and left. Padding at the bottom and right follows from oh and ow.
 *
 * Fields as X(kind of value, type, name, array). The struct and dnn_print_problem are generated from this list.
 * INT: integer, enum or bool. INTS: an array of integers. C_MAP, K_MAP: NULL, or an array of `c` or `k` ints. */
#define DNN_PROBLEM(X)                                                                             \
    X(INT, enum dnn_kind, kind)                                                                    \
    /* Element types in which x, y and the weight are stored. Only implementations with `any_type` get others than SOL_F32. */\
    X(INT, enum sol_dtype, x_type) X(INT, enum sol_dtype, w_type) X(INT, enum sol_dtype, y_type)   \
    /* The type to which both factors of a product may be rounded; SOL_F32: to none. Sums are f32. */\
    X(INT, enum sol_dtype, factors)                                                                \
    X(INT, int64_t, batch_hint) /* expected batch or rows: cost and division are planned for it */ \
    X(INT, int, lanes) /* width of a channel block */                                              \
    X(INT, int, threads)                                                                           \
    /* Of a model with a backward part: weights are packed at each call, and rounding errors, which add up over both parts, are kept small */\
    X(INT, bool, trained)                                                                          \
    X(INT, int, c) X(INT, int, k) /* stored channels of x and y, over all groups */                \
    /* Channels of the model. The weight is [k_model][c_model / groups][kh][kw]. */                \
    X(INT, int, c_model) X(INT, int, k_model) X(INT, int, groups)                                  \
    /* Stored channel -> model channel, -1 = padding; NULL = identity (then c == c_model). Example:\
     * the concat of 3 and 2 channels in blocks of 4 is stored as 0 1 2 -1 3 4 -1 -1. */           \
    X(C_MAP, const int *, c_map) X(K_MAP, const int *, k_map)                                      \
    X(INT, int, h) X(INT, int, w) X(INT, int, oh) X(INT, int, ow) X(INT, int, kh) X(INT, int, kw)  \
    /* h, w, oh, ow, of a matmul k, c and `matrix`, are expected ones: a call plans again. A packed weight must not depend on them */\
    X(INT, bool, open)                                                                             \
    X(INT, bool, transposed) /* the weight is [c_model][k_model / groups][kh][kw] */               \
    /* A transposed convolution without strides, as a usual one: the weight is [c_model][k_model][kh][kw] with reversed rows and columns */\
    X(INT, bool, turned)                                                                           \
    X(INT, int, sh) X(INT, int, sw) X(INT, int, pt) X(INT, int, pl) X(INT, int, dh) X(INT, int, dw)\
    /* Of volumes: planes of x, of y, of the kernel, step, padding in front, dilation. The weight is [k][c / groups][kd][kh][kw]. Images\
     * have none: all are 0. */                                                                    \
    X(INT, int, d) X(INT, int, od) X(INT, int, kd) X(INT, int, sd) X(INT, int, pd) X(INT, int, dd) \
    X(INT, bool, x_plain) X(INT, bool, y_plain) /* else blocked */                                 \
    X(INT, bool, bias) X(INT, bool, residual) X(INT, bool, prologue)                               \
    X(INT, bool, residual_plain) /* else blocked */                                                \
    X(FLOAT, float, prologue_min) /* -INFINITY: no clamp */                                        \
    X(INT, enum dnn_act, act)                                                                      \
    X(FLOAT, float, act_min) X(FLOAT, float, act_max) /* for DNN_ACT_CLAMP */                      \
    X(INTS, int64_t, matrix, [DNN_N_MATRIX]) /* of a matmul */                                     \
    /* b of a matmul is packed by a step of its own; then the packed b may depend on sizes that are open, as it is planned with them, too */\
    X(INT, bool, packs_b)
struct dnn_problem {
#define DNN_FIELD(kind, type, name, ...) type name __VA_ARGS__;
    DNN_PROBLEM(DNN_FIELD)
#undef DNN_FIELD
};

/* Pointers and sizes of one call. The strides are elements from one sample to the next: a sample is dense, but there may
 * be gaps between samples (slices of a concat). Linear: a sample is a row. Matmul: a row of a product is one of the residual; the
 * strides of x and y are in the problem. x, y and weight point to elements of x_type, y_type and w_type of the problem. */
struct dnn_call {
    const float *x, *residual;
    const float *packed, *weight; /* written by pack; the framework's, only if packed_size is 0 */
    const float *bias, *scale, *shift; /* bias: k stored values; scale, shift: c stored values */
    /* Quantized products (int8.h); then `scale` has k stored values. range: of an 8-bit y, its zero point and limits. */
    const int32_t *zero;
    const float *range;
    float *y;
    int64_t batch, x_stride, y_stride, residual_stride;
    /* The epilogue; NULL: none. An implementation calls it exactly once per finished region of y (after
     * bias, residual and act), while the region is in the cache; the regions cover y and may come in any
     * order. It works in place. Region: pixels [pixel, pixel + n_pixels) of channel block k_block of
     * sample n, where pixel = row * ow + column. Linear, matmul: outputs [pixel, pixel + n_pixels) of row n;
     * k_block is 0. */
    void (*epilogue)(void *user, int64_t n, int64_t k_block, int64_t pixel, int n_pixels);
    void *epilogue_user;
};

/* The decisions of an implementation for one problem. It is plain data and becomes part of the program.
 * X(kind of value, type, name, array): as DNN_PROBLEM. */
#define DNN_PLAN(X)                                                                                \
    X(IMPL, const struct dnn_impl *, impl, )                                                       \
    X(KERNELS, const struct dnn_kernels *, kernels, ) /* of one instruction set */                 \
    X(INTS, int64_t, param, [48])             /* private to the implementation: tile sizes ... */  \
    X(INT, size_t, packed_size, )             /* bytes; 0: run reads the weight in place */        \
    X(INT, int64_t, n_pack_tasks, )                                                                \
    X(INT, size_t, scratch_size, )            /* bytes per thread for run */                       \
    X(INT, size_t, partial_size, )            /* bytes that run writes instead of y; 0: y */       \
    X(FLOAT, double, cost, )                  /* estimated seconds at batch_hint */                \
    X(PROBLEM, struct dnn_problem, problem, ) /* its maps lie in the program's memory */
struct dnn_plan {
#define DNN_FIELD(kind, type, name, array) type name array;
    DNN_PLAN(DNN_FIELD)
#undef DNN_FIELD
};

/* Computes tasks [begin, end) of n_tasks. `scratch`: plan->scratch_size bytes for this thread alone, uninitialized. */
typedef void dnn_run_fn(const struct dnn_plan *plan, const struct dnn_call *call, void *scratch,
                        int64_t begin, int64_t end);
/* Writes part `task` < n_pack_tasks of the packed weight. `weight` has elements of w_type. */
typedef void dnn_pack_fn(const struct dnn_plan *plan, const float *weight, float *packed,
                         int64_t task);

struct dnn_impl {
    const char *name; /* "direct", "winograd4", ... */
    /* Returns NULL to accept, or the reason to refuse as static text. */
    const char *(*refuse)(const struct dnn_problem *problem);
    /* In: impl, problem, kernels of an accepted problem. Fills in the other fields. */
    void (*plan)(struct dnn_plan *plan);
    dnn_pack_fn *pack; /* NULL if the weight is read in place */
    int64_t (*n_tasks)(const struct dnn_plan *plan, int64_t batch);
    dnn_run_fn *run;
    /* With partial results: computes part `part` < n_parts of y from them, and may change them. Else NULL. */
    int64_t (*n_parts)(const struct dnn_plan *plan);
    void (*join)(const struct dnn_plan *plan, int64_t batch, float *partial, float *y,
                 int64_t part);
    bool any_type; /* it takes problems with other element types than f32, or refuses them itself */
    bool volumes;  /* it takes convolutions of volumes, or refuses them itself */
    bool approximate; /* larger rounding errors than direct: refused in deterministic mode */
    /* Of a vendor's library: returns its version, or why it is not available. NULL: an own kernel. */
    const char *(*probe)(bool *available);
    /* Such a library is chosen by its estimated cost, without timing: of devices on which nothing is timed. */
    bool by_cost;
    /* Of a far device's library: text behind product_plain.h, which calls it in one task, and the words that link it (struct jit_loader).
     * NULL: product_plain.h alone. */
    const char *text, *libraries;
};

/* The implementations in the order of dnn/list.h, ended by NULL. */
extern const struct dnn_impl *const dnn_impls[];
/* Of devices whose kernels are C text, which their compiler compiles: an implementation has a plan, but no functions (plain.c). */
extern const struct dnn_impl dnn_plain;
extern const struct dnn_impl *const dnn_far_impls[];

/* An instruction set and its kernels. */
struct dnn_isa {
    const char *name;         /* "avx512", "avx2", "neon", "generic" */
    const char *arch;         /* "x86", "arm64"; "" for any */
    int lanes;                /* floats per vector: 16, 8 or 4 */
    double flops_per_cycle;   /* per core, for the cost models */
    const char *flags;        /* C compiler flags for generated and for own kernels */
    const char *kernel_flags; /* further flags for own kernels */
    const struct dnn_kernels *kernels;
};
extern const struct dnn_isa dnn_isas[]; /* best first, ended by name == NULL */

/* ---- print.c ---- */

/* Appends all fields as a C initializer in one line. Equal texts mean equal problems, so the text serves as a key. */
void dnn_print_problem(struct text *text, const struct dnn_problem *problem);
/* The same for a plan. The source around it must declare the implementations (dnn_NAME) and a struct dnn_kernels `kernels`. */
void dnn_print_plan(struct text *text, const struct dnn_plan *plan);

/* ---- What implementations have in common ---- */

/* For tests: quantized products are computed as on a processor without an instruction for them. */
extern bool dnn_without_dot;

/* The row of dnn_isas with these kernels; there must be one. */
const struct dnn_isa *dnn_find_isa(const struct dnn_kernels *kernels);
/* Peak flops per second of one core, at the clock of 3 GHz that all cost models assume: only ratios of costs matter. */
double dnn_flops_per_s(const struct dnn_kernels *kernels);

/* Calls the epilogue, if there is one, for a rectangle of y's channel block k_block of sample n: n_rows x n_columns pixels,
 * the first at index `pixel`. y has `width` columns. One call per row, or one call in all if n_columns == width. */
void dnn_call_epilogue(const struct dnn_call *call, int64_t n, int64_t k_block, int64_t pixel,
                       int64_t n_rows, int64_t n_columns, int64_t width);

/* The reason of `impl` to refuse the problem, or NULL. */
const char *dnn_refuse(const struct dnn_impl *impl, const struct dnn_problem *problem);

/* True if stored channels [g * stored / groups, (g + 1) * stored / groups) hold only channels of group g, and padding. */
bool dnn_keeps_groups(const int *map, int stored, int model, int groups);

/* For implementations that read the weight in place: refuses everything but a linear without prologue, groups and maps. */
const char *dnn_refuse_linear(const struct dnn_problem *problem);

static inline int dnn_model_channel(const int *map, int64_t stored) {
    return map ? map[stored] : (int)stored;
}

/* Divides [0, total) into n nearly equal parts: part i is [dnn_split(i), dnn_split(i + 1)). 10 in 4 parts:
 * 0, 3, 6, 8, 10. */
static inline int64_t dnn_split(int64_t total, int64_t i, int64_t n) {
    return total / n * i + min_i64(i, total % n);
}

#endif

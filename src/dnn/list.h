/*
 * The list of implementations. Generated from it: dnn_impls (list.c), the kernel table of an instruction set (table_kernel.c),
 * and the sources of a deployed library (deploy/sources.c, deploy/native.c).
 */
#ifndef SOL_DNN_LIST_H
#define SOL_DNN_LIST_H

#include "dnn/attention.h"
#include "dnn/dnn.h"
#include "dnn/recurrent.h"

/*
 * The order is that of dnn_impls. Of plans with equal cost the first one wins; in deterministic mode the first
 * implementation that accepts wins.
 *
 *   OWN(file, name)     own kernels: src/dnn/FILE.c with `dnn_NAME`, FILE_kernel.c with ISA_NAME(dnn_run_NAME), and FILE.h
 *   MORE(file, name)    another implementation in the files of an OWN row
 *   VENDOR(file, name)  a vendor's library: src/dnn/FILE.c with `dnn_NAME`
 *
 * `name` is also the name in struct dnn_impl.
 */
#define DNN_LIST(OWN, MORE, VENDOR) \
    OWN(winograd, winograd4)        \
    MORE(winograd, winograd2)       \
    OWN(grouped, grouped)           \
    OWN(depthwise, depthwise)       \
    OWN(direct, direct)             \
    OWN(linear_bf16, linear_bf16)   \
    OWN(product, product)           \
    OWN(winograd_weight, winograd_weight) \
    OWN(conv_weight, conv_weight)   \
    OWN(conv_weight_grouped, conv_weight_grouped) \
    MORE(product, matmul)           \
    OWN(linear_int8, linear_int8)   \
    VENDOR(onednn, onednn)          \
    VENDOR(openblas, openblas)

#define DNN_DECLARE(file, name) extern const struct dnn_impl dnn_##name;
DNN_LIST(DNN_DECLARE, DNN_DECLARE, DNN_DECLARE)

#define DNN_NOTHING(...)
#define DNN_COUNT(...) +1
enum { DNN_N_IMPLS = DNN_LIST(DNN_COUNT, DNN_COUNT, DNN_COUNT) };

/* y[i] = act(sum[i] + bias[i] + residual[i]) for i < n, where a vendor's library has computed `sum`. bias and residual may be
 * NULL; sum may be y. */
typedef void dnn_finish_fn(const struct dnn_problem *problem, const float *sum, const float *bias,
                           const float *residual, float *y, int64_t n);

/* Kernels that measure the peak of a core, for reports: the limits that other kernels are compared with. */
struct dnn_probe_kernels {
    /* Multiply-adds on registers alone; returns the number of floating point operations. Writes one vector to `out`. */
    double (*multiply)(int64_t rounds, float *out);
    /* Reads n floats, n a multiple of 128, and writes a vector of their sums to `out`. */
    void (*read)(const float *at, int64_t n, float *out);
};

/* The kernels of one instruction set. */
struct dnn_kernels {
    int values; /* most pixels of a tile: VALUES in dnn/simd.h */
    int step;   /* channels per step of the inner loop: STEP in dnn/simd.h */
    int product_values, product_vectors; /* PRODUCT_VALUES and PRODUCT_VECTORS there */
#define DNN_MEMBER(file, name) dnn_run_fn *name;
    DNN_LIST(DNN_MEMBER, DNN_MEMBER, DNN_NOTHING)
#undef DNN_MEMBER
    dnn_pack_fn *pack_matmul;
    dnn_finish_fn *finish;
    dnn_recurrent_fn *recurrent;
    dnn_recurrent_grad_fn *recurrent_grad;
    dnn_attention_fn *attention;
    const struct dnn_probe_kernels *probe;
};

/* Defines run_NAME, which calls the kernel of the plan's instruction set. */
#define DNN_RUN(name)                                                                              \
    static void run_##name(const struct dnn_plan *plan, const struct dnn_call *call,               \
                           void *scratch, int64_t begin, int64_t end) {                            \
        plan->kernels->name(plan, call, scratch, begin, end);                                      \
    }

/* FILE of the implementation's row: "winograd" for winograd4. NULL for a vendor's library. */
const char *dnn_find_file(const struct dnn_impl *impl);

/* Does the processor have multiply-adds of pairs of bf16? Deployed libraries ask this when they run. */
#ifdef __x86_64__
#define BF16_HAS_PAIRS __builtin_cpu_supports("avx512bf16")
#else
#define BF16_HAS_PAIRS 0
#endif

#endif

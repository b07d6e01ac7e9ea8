/* The ordered list of implementations and the tables of kernels by instruction set. */
#include "dnn/dnn.h"

#include "dnn/kernels.h"

extern const struct dnn_impl dnn_winograd4, dnn_winograd2, dnn_grouped, dnn_direct, dnn_linear,
    dnn_onednn, dnn_openblas;

/* First come the ones that do less work; ties in cost go to the earlier one. */
const struct dnn_impl *const dnn_impls[] = {
    &dnn_winograd4, &dnn_winograd2, &dnn_grouped,  &dnn_direct,
    &dnn_linear,    &dnn_onednn,    &dnn_openblas, NULL};

#define DNN_ISA_TABLE(isa)                                                    \
    extern const struct dnn_direct_kernels dnn_direct_kernels_##isa;          \
    extern const struct dnn_grouped_kernels dnn_grouped_kernels_##isa;        \
    extern const struct dnn_winograd_kernels dnn_winograd_kernels_##isa;      \
    extern const struct dnn_linear_kernels dnn_linear_kernels_##isa;          \
    extern const struct dnn_probe_kernels dnn_probe_kernels_##isa;            \
    extern const struct dnn_finish_kernels dnn_finish_kernels_##isa;          \
    static const struct dnn_kernels kernels_##isa = {                         \
        &dnn_direct_kernels_##isa, &dnn_grouped_kernels_##isa,                \
        &dnn_winograd_kernels_##isa, &dnn_linear_kernels_##isa,               \
        &dnn_finish_kernels_##isa, &dnn_probe_kernels_##isa};

DNN_ISA_TABLE(generic)
#ifdef __x86_64__
DNN_ISA_TABLE(avx512)
DNN_ISA_TABLE(avx2)
#elif defined __aarch64__
DNN_ISA_TABLE(neon)
#endif

/* Flops per cycle are those of the most common server cores (Zen 4/5, Skylake-SP, Neoverse N1); only their ratios matter. */
const struct dnn_isa dnn_isas[] = {
#ifdef __x86_64__
    {"avx512", 16, 64, &kernels_avx512},
    {"avx2", 8, 32, &kernels_avx2},
#elif defined __aarch64__
    {"neon", 4, 16, &kernels_neon},
#endif
    {"generic", 4, 8, &kernels_generic},
    {NULL, 0, 0, NULL},
};

const struct dnn_isa *dnn_find_isa(const struct dnn_kernels *kernels) {
    const struct dnn_isa *isa = dnn_isas;
    while (isa->name && isa->kernels != kernels) isa++;
    return isa;
}

double dnn_flops_per_s(const struct dnn_kernels *kernels) {
    const double clock_hz = 3e9;
    return dnn_find_isa(kernels)->flops_per_cycle * clock_hz;
}

const char *dnn_refuse_linear(const struct dnn_problem *problem) {
    if (problem->kind != DNN_LINEAR) return "not a linear layer";
    if (problem->groups != 1) return "more than one group";
    if (!problem->x_plain || !problem->y_plain) return "x or y is not plain";
    if (problem->residual && !problem->residual_plain) return "residual is not plain";
    if (problem->prologue) return "has a prologue";
    if (problem->c_map || problem->k_map)
        return "channels are rearranged, the weight is used in place";
    return NULL;
}

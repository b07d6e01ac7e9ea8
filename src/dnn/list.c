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
DNN_ISA_TABLE(neon)
#ifdef __x86_64__
DNN_ISA_TABLE(avx512)
DNN_ISA_TABLE(avx2)
#endif

/*
 * Flops per cycle are those of the most common server cores (Zen 4/5, Skylake-SP, Neoverse N1); only their ratios matter.
 * The kernels of arm64 are built on other processors, too, as plain vectors: libraries are planned and packed with them there.
 */
const struct dnn_isa dnn_isas[] = {
#ifdef __x86_64__
    {"avx512", "x86", 16, 64,
     "-mavx512f -mavx512vl -mavx512dq -mavx512bw -mavx2 -mfma -mprefer-vector-width=512 -DLANES=16",
     "-DREGISTERS=32", &kernels_avx512},
    {"avx2", "x86", 8, 32, "-mavx2 -mfma -DLANES=8", "-DREGISTERS=16", &kernels_avx2},
#endif
    {"neon", "arm64", 4, 16, "-DLANES=4", "-DREGISTERS=32 -DBY_LANE", &kernels_neon},
    {"generic", "", 4, 8, "-DLANES=4", "-DREGISTERS=16", &kernels_generic},
    {NULL, NULL, 0, 0, NULL, NULL, NULL},
};

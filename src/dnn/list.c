/* The tables dnn_impls and dnn_isas. */
#include "dnn/list.h"

#define ENTRY(file, name) &dnn_##name,
const struct dnn_impl *const dnn_impls[] = {DNN_LIST(ENTRY, ENTRY, ENTRY) NULL};

const char *dnn_find_file(const struct dnn_impl *impl) {
#define FIND_FILE(file, name) \
    if (impl == &dnn_##name) return #file;
    DNN_LIST(FIND_FILE, FIND_FILE, DNN_NOTHING)
    return NULL;
}

extern const struct dnn_kernels dnn_kernels_generic, dnn_kernels_neon, dnn_kernels_avx2,
    dnn_kernels_avx512;

/*
 * Flops per cycle are those of common server cores (Zen 4/5, Skylake-SP, Neoverse N1); only their ratios matter.
 * The neon kernels use generic vectors and are built on x86, too: there they plan and pack libraries deployed for arm64.
 */
const struct dnn_isa dnn_isas[] = {
#ifdef __x86_64__
    {"avx512", "x86", 16, 64,
     "-mavx512f -mavx512vl -mavx512dq -mavx512bw -mavx2 -mfma -mprefer-vector-width=512 -DLANES=16",
     "-DREGISTERS=32", &dnn_kernels_avx512},
    {"avx2", "x86", 8, 32, "-mavx2 -mfma -DLANES=8", "-DREGISTERS=16", &dnn_kernels_avx2},
#endif
    {"neon", "arm64", 4, 16, "-DLANES=4", "-DREGISTERS=32 -DBY_LANE", &dnn_kernels_neon},
    {"generic", "", 4, 8, "-DLANES=4", "-DREGISTERS=16", &dnn_kernels_generic},
    {NULL, NULL, 0, 0, NULL, NULL, NULL},
};

/* All kernels of one instruction set as one table: compiled once per instruction set, as they are. */
#include "dnn/list.h"
#include "dnn/simd.h"

#define DECLARE(file, name) \
    extern const struct dnn_##file##_kernels ISA_NAME(dnn_##file##_kernels);
DNN_KERNELS(DECLARE)

#define ENTRY(file, name) &ISA_NAME(dnn_##file##_kernels),
const struct dnn_kernels ISA_NAME(dnn_kernels) = {DNN_KERNELS(ENTRY)};

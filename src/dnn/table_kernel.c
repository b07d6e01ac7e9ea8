/* The table of all kernels of one instruction set, struct dnn_kernels. Compiled once per instruction set, as the kernels. */
#include "dnn/list.h"
#include "dnn/simd.h"

#define DECLARE(file, name) extern dnn_run_fn ISA_NAME(dnn_run_##name);
DNN_LIST(DECLARE, DECLARE, DNN_NOTHING)
extern dnn_pack_fn ISA_NAME(dnn_pack_matmul);
extern dnn_finish_fn ISA_NAME(dnn_finish);
extern dnn_recurrent_fn ISA_NAME(dnn_recurrent);
extern dnn_recurrent_grad_fn ISA_NAME(dnn_recurrent_grad);
extern dnn_attention_fn ISA_NAME(dnn_attention);
extern const struct dnn_probe_kernels ISA_NAME(dnn_probe_kernels);

#define ENTRY(file, name) .name = ISA_NAME(dnn_run_##name),
const struct dnn_kernels ISA_NAME(dnn_kernels) = {
    .values = VALUES,
    .step = STEP,
    .product_values = PRODUCT_VALUES,
    .product_vectors = PRODUCT_VECTORS,
    DNN_LIST(ENTRY, ENTRY, DNN_NOTHING).pack_matmul = ISA_NAME(dnn_pack_matmul),
    .finish = ISA_NAME(dnn_finish),
    .recurrent = ISA_NAME(dnn_recurrent),
    .recurrent_grad = ISA_NAME(dnn_recurrent_grad),
    .attention = ISA_NAME(dnn_attention),
    .probe = &ISA_NAME(dnn_probe_kernels)};

/* libFuzzer: reading any bytes as ONNX gives a valid model or a message; what reads as a model also declares something. seeds.py writes the corpus. */
#include "no_compiler.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sol_onnx *onnx = NULL;
    enum sol_status status = sol_onnx_parse(data, size, "build/fuzz/external", &onnx);
    if (status ? onnx != NULL || !*sol_error() : sol_model_check(sol_onnx_model(onnx)) != SOL_OK)
        abort();
    struct sol_onnx_info *info = NULL;
    if (sol_onnx_info_parse(data, size, &info) && (!status || !*sol_error())) abort();
    sol_onnx_info_free(info);
    sol_onnx_free(onnx);
    return 0;
}

/*
 * SOL, ONNX frontend: reads an ONNX file into a model.
 *
 *     struct sol_onnx *onnx;
 *     struct sol_program *program;
 *     struct sol_weights *weights;
 *     if (sol_onnx_read("net.onnx", &onnx)) puts(sol_error());
 *     sol_compile(sol_onnx_model(onnx), NULL, &program);
 *     sol_weights_new(program, sol_onnx_params(onnx), &weights);
 *
 * Opsets 6 to 28 of the default domain. A file may come from anybody: whatever it holds, the answer is a model or an error that
 * names the node, and nothing outside of the file's folder is read.
 */
#ifndef SOL_ONNX_H
#define SOL_ONNX_H

#include <sol/sol.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sol_onnx;

/* EINVAL when the file cannot be read or is malformed, EUNSUPPORTED for what SOL does not have. */
SOL_API SOL_CHECKED enum sol_status sol_onnx_read(const char *path, struct sol_onnx **out);
/* The same from memory, which is copied. `folder`: where external data may lie; NULL: nowhere. */
SOL_API SOL_CHECKED enum sol_status sol_onnx_parse(const void *data, size_t size,
                                                   const char *folder, struct sol_onnx **out);
/* The model; it belongs to `onnx`. */
SOL_API struct sol_model *sol_onnx_model(const struct sol_onnx *onnx);
/* Values of the model's parameters for sol_weights_new, in its order; valid until sol_onnx_free. */
SOL_API int sol_onnx_n_params(const struct sol_onnx *onnx);
SOL_API const void *const *sol_onnx_params(const struct sol_onnx *onnx);
SOL_API void sol_onnx_free(struct sol_onnx *onnx);

#ifdef __cplusplus
}
#endif
#endif

/* Reads tensors of an ONNX file, whose values are in it or in external files of the same folder. */
#ifndef SOL_ONNX_TENSOR_H
#define SOL_ONNX_TENSOR_H

#include "proto.h"

/* A tensor, row-major. `at` is aligned to its elements. */
struct data {
    enum sol_dtype dtype;
    int rank;
    int64_t dim[SOL_MAX_RANK];
    int64_t n; /* elements: the product of dims */
    const void *at;
};

/* SOL's dtype for ONNX's number of an element type; EUNSUPPORTED when SOL has none. */
enum sol_status tensor_dtype(int64_t onnx, enum sol_dtype *out);
/* The values of `tensor`: a pointer into the file, or a copy in `arena`. `folder` is that of external data (NULL: external data
 * is an error). EINVAL when the tensor contradicts itself. Memory is allocated only after the size has been compared with that of
 * the data. */
struct array;
enum sol_status array_read(struct arena *arena, const char *folder,
                           const struct onnx_tensor *tensor, struct array *out);
/* The same for element types that SOL compiles. */
enum sol_status tensor_read(struct arena *arena, const char *folder,
                            const struct onnx_tensor *tensor, struct data *out);

/* The number at `at`, an element of a float type. */
double tensor_double(enum sol_dtype dtype, const void *at);

/* external.c: reads `size` bytes from a regular file within `folder`; `entries` are its location, offset and length. */
enum sol_status external_read(struct arena *arena, const char *folder, const struct list *entries,
                              size_t size, const void **out);

#endif

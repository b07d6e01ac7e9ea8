/* Tensors that lie in an ONNX file, or in files beside it. */
#ifndef SOL_ONNX_TENSOR_H
#define SOL_ONNX_TENSOR_H

#include "proto.h"

/* Values, row major. `at` is aligned to its elements; NULL: there are none at hand. */
struct data {
    enum sol_dtype dtype;
    int rank;
    int64_t dim[SOL_MAX_RANK];
    int64_t n; /* elements: the product of dims */
    const void *at;
};

/* ONNX's number of an element type as SOL's; EUNSUPPORTED when SOL has none. */
enum sol_status tensor_dtype(int64_t onnx, enum sol_dtype *out);
/* The values of `tensor`, read or pointed to. `folder` (NULL: none) is where external data may lie. EINVAL where anything about
 * it does not fit; nothing is allocated for sizes that only the file claims. */
enum sol_status tensor_read(struct arena *arena, const char *folder,
                            const struct onnx_tensor *tensor, struct data *out);

/* external.c: `size` bytes as `entries` (location, offset, length) say, from a regular file within `folder`. */
enum sol_status external_read(struct arena *arena, const char *folder, const struct list *entries,
                              size_t size, const void **out);

#endif

/*
 * The part of oneDNN's C API that SOL uses, and the table of primitives.
 *
 *   onednn.c        the implementation `dnn_onednn`: problem -> chunks of output channels -> keys
 *   onednn_table.c  key -> primitive, layout of its weights, sizes; one table for all programs of the process
 *   onednn_api.c    opens the library (version 3) and fills in `onednn`
 *
 * The declarations are written after oneDNN's manual, without its headers; the values are part of its binary interface since
 * 3.0.
 */
#ifndef SOL_DNN_ONEDNN_H
#define SOL_DNN_ONEDNN_H

#include "dnn/dnn.h"
#include "dnn/vendor.h"

enum { ONEDNN_SUCCESS, ONEDNN_OUT_OF_MEMORY };
enum { ONEDNN_CPU = 1, ONEDNN_F32 = 3, ONEDNN_IN_ORDER = 1, ONEDNN_SCRATCHPAD_USER = 1 };
enum { ONEDNN_FORWARD_INFERENCE = 96, ONEDNN_CONVOLUTION_DIRECT = 1 };
enum { ONEDNN_TAG_ANY = 1, ONEDNN_TAG_NCHW16C = 78, ONEDNN_TAG_NCHW8C = 102 };
enum { ONEDNN_QUERY_NAME = 8, ONEDNN_QUERY_WEIGHTS = 131, ONEDNN_QUERY_SCRATCHPAD = 136 };
enum { ONEDNN_RUNTIME_SEQUENTIAL = 1, ONEDNN_RUNTIME_OPENMP = 2 };
/* Argument names of a primitive's tensors. A reorder copies from SRC to DST. */
enum {
    ONEDNN_SRC = 1,
    ONEDNN_DST = 17,
    ONEDNN_WEIGHTS = 33,
    ONEDNN_BIAS = 41,
    ONEDNN_SCRATCHPAD = 80
};

struct onednn_version {
    int major, minor, patch;
    const char *hash;
    unsigned cpu_runtime, gpu_runtime;
};

struct onednn_arg {
    int name;
    void *memory;
};

/* X(result, name, parameters); the library exports it as dnnl_NAME. An int result is a status. Functions that create an
 * object store it in *(first argument). */
#define ONEDNN_API(X)                                                                                       \
    X(const struct onednn_version *, version, (void))                                                       \
    X(int, engine_create, (void **engine, int kind, size_t index))                                          \
    X(int, stream_create, (void **stream, void *engine, unsigned flags))                                    \
    X(int, stream_destroy, (void *stream))                                                                  \
    X(int, memory_desc_create_with_tag, (void **desc, int rank, const int64_t *dims, int type, int tag))    \
    X(int, memory_desc_create_with_strides, (void **desc, int rank, const int64_t *dims, int type,          \
                                             const int64_t *strides))                                       \
    X(int, memory_desc_destroy, (void *desc))                                                               \
    X(size_t, memory_desc_get_size, (const void *desc))                                                     \
    X(int, memory_create, (void **memory, const void *desc, void *engine, void *at))                        \
    X(int, memory_set_data_handle, (void *memory, void *at))                                                \
    X(int, memory_destroy, (void *memory))                                                                  \
    X(int, primitive_attr_create, (void **attr))                                                            \
    X(int, primitive_attr_set_scratchpad_mode, (void *attr, int mode))                                      \
    X(int, primitive_attr_destroy, (void *attr))                                                            \
    X(int, convolution_forward_primitive_desc_create,                                                       \
      (void **desc, void *engine, int propagation, int algorithm, const void *x, const void *weights,       \
       const void *bias, const void *y, const int64_t *stride, const int64_t *dilation,                     \
       const int64_t *pad_begin, const int64_t *pad_end, const void *attr))                                 \
    X(int, matmul_primitive_desc_create, (void **desc, void *engine, const void *x, const void *weights,    \
                                          const void *bias, const void *y, const void *attr))               \
    X(int, reorder_primitive_desc_create, (void **desc, const void *from, void *from_engine,                \
                                           const void *to, void *to_engine, const void *attr))              \
    X(const void *, primitive_desc_query_md, (const void *desc, int what, int index))                       \
    X(int, primitive_desc_query, (const void *desc, int what, int index, void *out))                        \
    X(int, primitive_desc_destroy, (void *desc))                                                            \
    X(int, primitive_create, (void **primitive, const void *desc))                                          \
    X(int, primitive_execute, (const void *primitive, void *stream, int n, const struct onednn_arg *args))  \
    X(int, primitive_destroy, (void *primitive))

struct onednn {
#define ONEDNN_MEMBER(type, name, parameters) type(*name) parameters;
    ONEDNN_API(ONEDNN_MEMBER)
#undef ONEDNN_MEMBER
    void *engine;
    struct vendor vendor;
};
extern struct onednn onednn; /* constant once onednn_open has returned */

/* Opens the library on the first call. Returns false if it cannot be used, with the reason in onednn.vendor.detail. */
bool onednn_open(void);

/* Calls a function of the library that returns a status. The fault tests make the n-th call fail. */
#define ONEDNN_CALL(name, ...) (vendor_call_fails() ? ONEDNN_OUT_OF_MEMORY : onednn.name(__VA_ARGS__))
/* Converts oneDNN's status to SOL's. On failure the message contains `what`. */
enum sol_status onednn_status(int status, const char *what);

/* ---- Table ---- */

/* All that a primitive depends on. Only ints, so that equal keys are equal bytes. Of a conv, `rows` is the number of samples
 * and `c`, `k` count channels over all `groups`. A linear has `rows` rows, c and k; the other fields but bias are 0. */
struct onednn_key {
    int kind, lanes, rows, groups, c, k, h, w, oh, ow, kh, kw, sh, sw, pt, pl, dh, dw;
    int x_plain, y_plain, bias;
};

struct onednn_facts {
    size_t packed_size, scratch_size; /* bytes */
};
/* Returns NULL and fills in *out, or returns the reason why the library cannot compute it, as static text. */
const char *onednn_check(const struct onednn_key *key, struct onednn_facts *out);

/* Addresses of the tensors for one execution. bias may be NULL. */
struct onednn_tensors {
    const float *x, *packed, *bias;
    float *y;
    void *scratch;
};
/* A primitive with its stream and memory objects, for one thread at a time. The caller of onednn_take must give it back. */
struct onednn_use;
enum sol_status onednn_take(const struct onednn_key *key, struct onednn_use **out);
void onednn_give_back(struct onednn_use *use); /* NULL: does nothing */
enum sol_status onednn_execute(struct onednn_use *use, const struct onednn_tensors *tensors);
/* Reorders weights from [k][c / groups][kh][kw] to the layout of the primitive. `packed`: packed_size bytes. */
enum sol_status onednn_pack(const struct onednn_key *key, const float *weight, float *packed);
/* Testing: removes all entries that no call uses from the table. */
void onednn_forget(void);

#endif

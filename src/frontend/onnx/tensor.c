/*
 * Reads the values of a TensorProto from raw_data, from one of the typed fields, or from an external file. Exactly one of these
 * must have values, and exactly as many as the dims require.
 */
#include "tensor.h"

#include "array.h"

#include "base/size.h"

#include <string.h>

enum store { FLOATS, DOUBLES, INT32S, INT64S };

/* Indexed by ONNX's number of the element type; SOL_N_DTYPES: SOL does not have the type. */
static const struct element {
    const char *name;
    enum sol_dtype dtype;
    enum store store; /* the typed field */
} elements[] = {
    {"undefined", SOL_N_DTYPES, FLOATS}, {"float", SOL_F32, FLOATS},
    {"uint8", SOL_U8, INT32S},           {"int8", SOL_I8, INT32S},
    {"uint16", SOL_N_DTYPES, INT32S},    {"int16", SOL_I16, INT32S},
    {"int32", SOL_I32, INT32S},          {"int64", SOL_I64, INT64S},
    {"string", SOL_N_DTYPES, INT32S},    {"bool", SOL_BOOL, INT32S},
    {"float16", SOL_F16, INT32S},        {"double", SOL_F64, DOUBLES},
    {"uint32", SOL_N_DTYPES, INT64S},    {"uint64", SOL_N_DTYPES, INT64S},
    {"complex64", SOL_N_DTYPES, FLOATS}, {"complex128", SOL_N_DTYPES, DOUBLES},
    {"bfloat16", SOL_BF16, INT32S},
};

enum sol_status tensor_dtype(int64_t onnx, enum sol_dtype *out) {
    if (onnx < 1) return fail(SOL_EINVAL, "an element type %lld", (long long)onnx);
    if (onnx >= COUNT(elements))
        return fail(SOL_EUNSUPPORTED, "element type %lld is not known", (long long)onnx);
    *out = elements[onnx].dtype;
    return *out == SOL_N_DTYPES ? fail(SOL_EUNSUPPORTED, "elements of type %s", elements[onnx].name)
                                : SOL_OK;
}

static enum sol_status read_dims(const struct onnx_tensor *tensor, struct data *out) {
    if (tensor->dims.n > SOL_MAX_RANK)
        return fail(SOL_EUNSUPPORTED, "rank %d; it may be 0 to %d", tensor->dims.n, SOL_MAX_RANK);
    out->rank = tensor->dims.n;
    out->n = 1;
    int64_t size, item = size_element(out->dtype);
    for (int i = 0; i < out->rank; i++) {
        out->dim[i] = *ITEM(tensor->dims, int64_t, i);
        if (out->dim[i] < 0) return fail(SOL_EINVAL, "dim %d is %lld", i, (long long)out->dim[i]);
        if (__builtin_mul_overflow(out->n, out->dim[i], &out->n) ||
            __builtin_mul_overflow(out->n, item, &size))
            return fail(SOL_EINVAL, "the number of elements overflows");
    }
    return SOL_OK;
}

/* As onnx.proto defines: small integers, bools and floats of 16 bits are in int32_data, the floats as their bits. */
static const struct list *typed_field(const struct onnx_tensor *tensor) {
    switch (elements[tensor->data_type].store) {
    case FLOATS: return &tensor->floats;
    case DOUBLES: return &tensor->doubles;
    case INT32S: return &tensor->int32s;
    default: return &tensor->int64s;
    }
}

/* The number of typed fields that have values. */
static int count_typed(const struct onnx_tensor *t) {
    return (t->floats.n > 0) + (t->doubles.n > 0) + (t->int32s.n > 0) + (t->int64s.n > 0) +
           (t->uint64s.n > 0) + (t->strings.n > 0);
}

/* Copies integers of 64 bits, truncated to the size of an element. */
static const void *narrow(struct arena *arena, const struct list *from, size_t size) {
    char *out = arena_alloc_array(arena, size, (size_t)from->n);
    for (int i = 0; i < from->n; i++) memcpy(out + size * (size_t)i, ITEM(*from, int64_t, i), size);
    return out;
}

static enum sol_status read_typed(struct arena *arena, const struct onnx_tensor *tensor,
                                  struct data *out) {
    const struct list *field = typed_field(tensor);
    if (count_typed(tensor) > (field->n > 0))
        return fail(SOL_EINVAL, "values in a field for another element type");
    if (field->n != out->n)
        return fail(SOL_EINVAL, "%d values for %lld elements", field->n, (long long)out->n);
    bool is_float = field == &tensor->floats || field == &tensor->doubles;
    out->at = is_float ? field->at : narrow(arena, field, (size_t)size_element(out->dtype));
    return SOL_OK;
}

/* Uses the bytes in place if they are aligned, else copies them: raw_data is row-major and little endian, as in SOL. */
static enum sol_status read_raw(struct arena *arena, const struct onnx_tensor *tensor,
                                struct data *out) {
    const struct bytes *raw = tensor->raw;
    size_t item = (size_t)size_element(out->dtype), size = (size_t)out->n * item;
    if (count_typed(tensor)) return fail(SOL_EINVAL, "values both raw and typed");
    if (raw->size != size)
        return fail(SOL_EINVAL, "%zu raw bytes for %lld elements of %zu", raw->size,
                    (long long)out->n, item);
    out->at = (uintptr_t)raw->at % item ? arena_copy(arena, raw->at, size) : raw->at;
    return SOL_OK;
}

/* A tensor without elements gets an address, too, since a value whose data is NULL counts as not known. */
enum sol_status tensor_read(struct arena *arena, const char *folder,
                            const struct onnx_tensor *tensor, struct data *out) {
    static const char nothing[SOL_MAX_RANK];
    TRY(tensor_dtype(tensor->data_type, &out->dtype));
    TRY(read_dims(tensor, out));
    if (tensor->data_location == 1) {
        if (tensor->raw || count_typed(tensor))
            return fail(SOL_EINVAL, "values here and in another file");
        TRY(external_read(arena, folder, &tensor->external,
                          (size_t)out->n * (size_t)size_element(out->dtype), &out->at));
    } else if (tensor->data_location) {
        return fail(SOL_EINVAL, "data_location %lld", (long long)tensor->data_location);
    } else {
        TRY(tensor->raw ? read_raw(arena, tensor, out) : read_typed(arena, tensor, out));
    }
    if (!out->n) out->at = nothing;
    return SOL_OK;
}

double tensor_double(enum sol_dtype dtype, const void *at) {
    uint16_t bits;
    if (dtype == SOL_F32) return (double)*(const float *)at;
    if (dtype == SOL_F64) return *(const double *)at;
    memcpy(&bits, at, sizeof bits);
    return float_decode(dtype == SOL_F16 ? TYPE_F16 : TYPE_BF16, bits);
}

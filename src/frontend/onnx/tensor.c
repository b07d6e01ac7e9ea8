/*
 * Reads the values of a TensorProto from raw_data, from one of the typed fields, or from an external file. Exactly one of these
 * must have values, and exactly as many as the dims require: files with values in two places have been used to make a checker read
 * other values than the runtime.
 *
 * Values are used in place if possible. Elements of 4 and 2 bits, which are packed in bytes, the first one in the lowest bits, are
 * copied to bytes of their own. Memory is allocated only after the size has been compared with that of the data.
 */
#include "tensor.h"

#include "array.h"

#include <string.h>

enum sol_status tensor_dtype(int64_t onnx, enum sol_dtype *out) {
    if (onnx < 1) return fail(SOL_EINVAL, "an element type %lld", (long long)onnx);
    if (!type_is_known(onnx))
        return fail(SOL_EUNSUPPORTED, "element type %lld is not known", (long long)onnx);
    if (!type_dtype((enum type)onnx, out))
        return fail(SOL_EUNSUPPORTED, "elements of type %s", types[onnx].name);
    return SOL_OK;
}

/* The number of elements that share a byte in a file. */
static int packed_in_byte(enum type type) {
    bool is_half = type == TYPE_U4 || type == TYPE_I4 || type == TYPE_E2M1;
    return is_half ? 2 : type == TYPE_U2 || type == TYPE_I2 ? 4 : 1;
}

static enum sol_status read_dims(const struct onnx_tensor *tensor, struct array *out) {
    if (!type_is_known(tensor->data_type) || types[tensor->data_type].kind == KIND_COMPLEX)
        return fail(tensor->data_type < 1 ? SOL_EINVAL : SOL_EUNSUPPORTED,
                    "element type %lld is not known", (long long)tensor->data_type);
    if (tensor->dims.n > SOL_MAX_RANK)
        return fail(SOL_EUNSUPPORTED, "rank %d; it may be 0 to %d", tensor->dims.n, SOL_MAX_RANK);
    out->type = (enum type)tensor->data_type;
    out->rank = tensor->dims.n;
    for (int i = 0; i < out->rank; i++) {
        out->dim[i] = *ITEM(tensor->dims, int64_t, i);
        if (out->dim[i] < 0) return fail(SOL_EINVAL, "dim %d is %lld", i, (long long)out->dim[i]);
    }
    return dims_count(out->rank, out->dim, &out->n)
               ? SOL_OK
               : fail(SOL_EINVAL, "the number of elements overflows");
}

/* The field of the message that holds elements of this type, as onnx.proto defines. Types below 32 bits are in int32_data, floats
 * as their bits. */
static const struct list *typed_field(const struct onnx_tensor *tensor, enum type type) {
    switch (type) {
    case TYPE_F32: return &tensor->floats;
    case TYPE_F64: return &tensor->doubles;
    case TYPE_I64: return &tensor->int64s;
    case TYPE_U32:
    case TYPE_U64: return &tensor->uint64s;
    case TYPE_STRING: return &tensor->strings;
    default: return &tensor->int32s;
    }
}

/* The number of typed fields that have values. */
static int count_typed(const struct onnx_tensor *t) {
    return (t->floats.n > 0) + (t->doubles.n > 0) + (t->int32s.n > 0) + (t->int64s.n > 0) +
           (t->uint64s.n > 0) + (t->strings.n > 0);
}

/* Copies integers of 64 bits, truncated to the size of an element. */
static void *narrow(struct arena *arena, const struct list *from, size_t size) {
    char *out = arena_alloc_array(arena, size, (size_t)from->n);
    for (int i = 0; i < from->n; i++) memcpy(out + size * (size_t)i, ITEM(*from, int64_t, i), size);
    return out;
}

/* Fields of floats, doubles, strings and 64-bit integers have the elements as they are. */
static enum sol_status read_typed(struct arena *arena, const struct onnx_tensor *tensor,
                                  struct array *out) {
    const struct list *field = typed_field(tensor, out->type);
    size_t size = types[out->type].size;
    if (count_typed(tensor) > (field->n > 0))
        return fail(SOL_EINVAL, "values in a field for another element type");
    if (field->n != ceil_div(out->n, packed_in_byte(out->type)))
        return fail(SOL_EINVAL, "%d values for %lld elements", field->n, (long long)out->n);
    bool is_same = out->type == TYPE_F32 || size >= 8;
    out->data = is_same ? field->at : narrow(arena, field, size);
    return SOL_OK;
}

/* Reads raw_data, or an external file: row-major and little endian, as in SOL. They are copied if they are not aligned. */
static enum sol_status read_bytes(struct arena *arena, const char *folder,
                                  const struct onnx_tensor *tensor, struct array *out) {
    size_t item = types[out->type].size;
    size_t size = (size_t)ceil_div(out->n, packed_in_byte(out->type)) * item;
    const void *from = tensor->raw ? tensor->raw->at : NULL;
    if (out->type == TYPE_STRING) return fail(SOL_EINVAL, "strings as raw bytes");
    if (count_typed(tensor)) return fail(SOL_EINVAL, "values both raw and typed");
    if (tensor->data_location) {
        if (tensor->raw) return fail(SOL_EINVAL, "values here and in another file");
        TRY(external_read(arena, folder, &tensor->external, size, &from));
    } else if (tensor->raw->size != size) {
        return fail(SOL_EINVAL, "%zu raw bytes for %lld elements of %zu", tensor->raw->size,
                    (long long)out->n, item);
    }
    out->data = (uintptr_t)from % item ? arena_copy(arena, from, size) : (void *)(uintptr_t)from;
    return SOL_OK;
}

/* Copies elements that are not yet as in arrays: packed ones get a byte each, with their sign extended; bools become 0 or 1. */
static void normalize(struct arena *arena, struct array *array) {
    int packed = packed_in_byte(array->type), bits = 8 / packed;
    const uint8_t *from = array->data;
    if (packed == 1 && array->type != TYPE_BOOL) return;
    uint8_t *to = array->data = arena_alloc(arena, (size_t)array->n);
    for (int64_t i = 0; i < array->n; i++) {
        to[i] = (uint8_t)(from[i / packed] >> (i % packed * bits)) & (uint8_t)((1 << bits) - 1);
        if (array->type != TYPE_E2M1) array_set_int(array, i, array_int(array, i));
    }
}

/* An array without elements gets an address, too, since a value whose data is NULL counts as not known. */
enum sol_status array_read(struct arena *arena, const char *folder,
                           const struct onnx_tensor *tensor, struct array *out) {
    static char nothing[16];
    TRY(read_dims(tensor, out));
    if (tensor->data_location < 0 || tensor->data_location > 1)
        return fail(SOL_EINVAL, "data_location %lld", (long long)tensor->data_location);
    bool is_typed = !tensor->raw && !tensor->data_location;
    TRY(is_typed ? read_typed(arena, tensor, out) : read_bytes(arena, folder, tensor, out));
    if (out->n) normalize(arena, out);
    else out->data = nothing;
    return SOL_OK;
}

enum sol_status tensor_read(struct arena *arena, const char *folder,
                            const struct onnx_tensor *tensor, struct data *out) {
    struct array array = {0};
    TRY(tensor_dtype(tensor->data_type, &out->dtype));
    TRY(array_read(arena, folder, tensor, &array));
    out->rank = array.rank;
    out->n = array.n;
    out->at = array.data;
    memcpy(out->dim, array.dim, sizeof out->dim);
    return SOL_OK;
}

double tensor_double(enum sol_dtype dtype, const void *at) {
    uint16_t bits;
    if (dtype == SOL_F32) return (double)*(const float *)at;
    if (dtype == SOL_F64) return *(const double *)at;
    memcpy(&bits, at, sizeof bits);
    return float_decode(dtype == SOL_F16 ? TYPE_F16 : TYPE_BF16, bits);
}

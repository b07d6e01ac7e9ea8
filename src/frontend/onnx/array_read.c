/*
 * Reads a TensorProto of any element type, including strings, as an array. tensor.c reads only the types that SOL compiles, in
 * place.
 *
 * Elements of 4 and 2 bits are packed in bytes, the first one in the lowest bits. Memory is allocated only after the size has been
 * compared with that of the data.
 */
#include "eval.h"
#include "tensor.h"

#include <string.h>

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
    if (out->rank) memcpy(out->dim, tensor->dims.at, (size_t)out->rank * sizeof *out->dim);
    return dims_count(out->rank, out->dim, &out->n)
               ? SOL_OK
               : fail(SOL_EINVAL, "dims below 0, or more elements than can be counted");
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

/* The number of typed fields that have values; there may be at most one. */
static int count_typed(const struct onnx_tensor *t) {
    return (t->floats.n > 0) + (t->doubles.n > 0) + (t->int32s.n > 0) + (t->int64s.n > 0) +
           (t->uint64s.n > 0) + (t->strings.n > 0);
}

/* Floats, doubles and strings are copied as they are; integers of 64 bits are truncated to the size of an element. */
static enum sol_status read_typed(struct space *space, const struct onnx_tensor *tensor,
                                  struct array *out) {
    const struct list *field = typed_field(tensor, out->type);
    int packed = packed_in_byte(out->type);
    size_t size = types[out->type].size;
    if (count_typed(tensor) > (field->n > 0))
        return fail(SOL_EINVAL, "values in a field for another element type");
    if (field->n != ceil_div(out->n, packed))
        return fail(SOL_EINVAL, "%d values for %lld elements", field->n, (long long)out->n);
    out->data = space_alloc(space, out->n + packed, size);
    bool is_same = out->type == TYPE_F32 || out->type == TYPE_F64 || out->type == TYPE_STRING;
    if (is_same && out->n) memcpy(out->data, field->at, (size_t)out->n * size);
    for (int i = 0; i < field->n && !is_same; i++)
        memcpy((char *)out->data + (size_t)i * size, ITEM(*field, int64_t, i), size);
    return SOL_OK;
}

/* Reads raw_data, or an external file. The size in bytes must be exact; it is checked before memory is allocated. */
static enum sol_status read_bytes(struct space *space, const char *folder,
                                  const struct onnx_tensor *tensor, struct array *out) {
    size_t item = types[out->type].size;
    size_t size = (size_t)ceil_div(out->n, packed_in_byte(out->type)) * item;
    const void *from = tensor->raw ? tensor->raw->at : NULL;
    if (out->type == TYPE_STRING) return fail(SOL_EINVAL, "strings as raw bytes");
    if (count_typed(tensor)) return fail(SOL_EINVAL, "values both raw and typed");
    if (tensor->data_location == 1)
        TRY(external_read(&space->arena, folder, &tensor->external, size, &from));
    else if (tensor->raw->size != size)
        return fail(SOL_EINVAL, "%zu raw bytes for %lld elements of %zu", tensor->raw->size,
                    (long long)out->n, item);
    out->data = space_alloc(space, out->n, item);
    if (size) memcpy(out->data, from, size);
    return SOL_OK;
}

/* Goes from the last element to the first, so that no packed byte is overwritten before it is read. */
static void unpack(struct array *array) {
    int packed = packed_in_byte(array->type), bits = 8 / packed;
    uint8_t *at = array->data;
    for (int64_t i = array->n - 1; i >= 0 && packed > 1; i--)
        at[i] = (uint8_t)(at[i / packed] >> (i % packed * bits)) & (uint8_t)((1 << bits) - 1);
}

/* Extends the sign of small integers to all bits of the byte; bools become 0 or 1. */
static void normalize(struct array *array) {
    bool is_small = packed_in_byte(array->type) > 1 && is_integer(array->type);
    for (int64_t i = 0; i < array->n && is_small; i++) array_set_int(array, i, array_int(array, i));
    for (int64_t i = 0; i < array->n && array->type == TYPE_BOOL; i++)
        ((uint8_t *)array->data)[i] = ((uint8_t *)array->data)[i] != 0;
}

/* Values in two places, raw and typed, are refused: such files have been used to make a checker read other values than the
 * runtime. */
enum sol_status array_read(struct space *space, const char *folder,
                           const struct onnx_tensor *tensor, struct array **out) {
    struct array *array = *out = SPACE_ARRAY(space, struct array, 1);
    TRY(read_dims(tensor, array));
    if (tensor->data_location < 0 || tensor->data_location > 1)
        return fail(SOL_EINVAL, "data_location %lld", (long long)tensor->data_location);
    bool is_typed = !tensor->raw && !tensor->data_location;
    TRY(is_typed ? read_typed(space, tensor, array) : read_bytes(space, folder, tensor, array));
    unpack(array);
    normalize(array);
    return SOL_OK;
}

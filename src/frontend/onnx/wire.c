/*
 * Protobuf's wire format: a message is a sequence of (field number, type, value).
 *
 * Source: protobuf.dev, "Encoding". Groups (types 3 and 4) are deprecated there and not used by ONNX, so they are refused.
 */
#include "wire.h"

#include <string.h>

#define LARGEST_VARINT 10 /* bytes; each has 7 bits of a value of 64 */

static enum sol_status read_varint(struct bytes *in, uint64_t *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < LARGEST_VARINT; i++) {
        if (i == in->size) return fail(SOL_EINVAL, "ends within a number");
        uint8_t byte = in->at[i];
        if (i == LARGEST_VARINT - 1 && byte > 1) break; /* bit 64 and above */
        value |= (uint64_t)(byte & 127) << (7 * i);
        if (byte & 128) continue;
        *in = (struct bytes){in->at + i + 1, in->size - i - 1};
        *out = value;
        return SOL_OK;
    }
    return fail(SOL_EINVAL, "a number has more than 64 bits");
}

/* Little endian, as are all machines that SOL runs on. */
static enum sol_status read_fixed(struct bytes *in, size_t size, uint64_t *out) {
    if (in->size < size) return fail(SOL_EINVAL, "ends within a number");
    *out = 0;
    memcpy(out, in->at, size);
    *in = (struct bytes){in->at + size, in->size - size};
    return SOL_OK;
}

static enum sol_status read_bytes(struct bytes *in, struct bytes *out) {
    uint64_t size;
    TRY(read_varint(in, &size));
    if (size > in->size)
        return fail(SOL_EINVAL, "a field of %llu bytes where %zu are left",
                    (unsigned long long)size, in->size);
    *out = (struct bytes){in->at, (size_t)size};
    *in = (struct bytes){in->at + size, in->size - (size_t)size};
    return SOL_OK;
}

enum sol_status wire_value(struct bytes *packed, enum wire_type type, uint64_t *out) {
    if (type == WIRE_VARINT) return read_varint(packed, out);
    return read_fixed(packed, type == WIRE_FIXED64 ? 8 : 4, out);
}

enum sol_status wire_next(struct bytes *message, struct wire_field *out) {
    uint64_t tag;
    *out = (struct wire_field){0};
    if (!message->size) return SOL_OK;
    TRY(read_varint(message, &tag));
    if (tag >> 3 < 1 || tag >> 3 > (1 << 29) - 1)
        return fail(SOL_EINVAL, "a field has the number %llu", (unsigned long long)(tag >> 3));
    out->number = (int)(tag >> 3);
    switch (tag & 7) {
    case WIRE_VARINT:
    case WIRE_FIXED64:
    case WIRE_FIXED32:
        out->type = (enum wire_type)(tag & 7);
        return wire_value(message, out->type, &out->value);
    case WIRE_BYTES: out->type = WIRE_BYTES; return read_bytes(message, &out->bytes);
    default:
        return fail(SOL_EINVAL, "field %d has the unknown type %d", out->number, (int)(tag & 7));
    }
}

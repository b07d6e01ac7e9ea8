/* Reads Protobuf's wire format without copying. Input is untrusted: a length is compared with the bytes that are left before it
 * is used. */
#ifndef SOL_ONNX_WIRE_H
#define SOL_ONNX_WIRE_H

#include "base/base.h"

/* Bytes that another object owns. */
struct bytes {
    const uint8_t *at;
    size_t size;
};

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct wire_field {
    int number; /* 0: the message has ended */
    enum wire_type type;
    uint64_t value;     /* WIRE_VARINT and WIRE_FIXED*: the bits */
    struct bytes bytes; /* WIRE_BYTES: the content */
};

/* Reads the first field of `message` and removes it from `message`. EINVAL when it is malformed. */
enum sol_status wire_next(struct bytes *message, struct wire_field *out);
/* The same for one value of a packed repeated field, which has no field number. */
enum sol_status wire_value(struct bytes *packed, enum wire_type type, uint64_t *out);

#endif

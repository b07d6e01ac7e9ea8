/* Protobuf's wire format, read where it lies. Nothing is trusted: a length is compared with what is left before it is used. */
#ifndef SOL_ONNX_WIRE_H
#define SOL_ONNX_WIRE_H

#include "base/base.h"

/* Bytes of somebody else's memory. */
struct bytes {
    const uint8_t *at;
    size_t size;
};

enum wire_type { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

struct wire_field {
    int number; /* 0: the message has ended */
    enum wire_type type;
    uint64_t value;     /* of a varint or fixed field, the bits */
    struct bytes bytes; /* of a field with a length */
};

/* Takes the next field off the front of `message`. EINVAL when it is malformed. */
enum sol_status wire_next(struct bytes *message, struct wire_field *out);
/* Takes one bare value of a packed field. */
enum sol_status wire_value(struct bytes *packed, enum wire_type type, uint64_t *out);

#endif

/* Writes protobuf messages for tests, valid and invalid ones. A message has a fixed buffer; fields are appended. */
#ifndef PROTO_WRITER_H
#define PROTO_WRITER_H

#include <stdint.h>
#include <string.h>

struct message {
    size_t size;
    uint8_t at[8192];
};

static inline void put_byte(struct message *m, unsigned byte) {
    if (m->size < sizeof m->at) m->at[m->size++] = (uint8_t)byte;
}

static inline void put_varint(struct message *m, uint64_t value) {
    for (; value > 127; value >>= 7) put_byte(m, (unsigned)(value & 127) | 128);
    put_byte(m, (unsigned)value);
}

static inline void put_int(struct message *m, int field, int64_t value) {
    put_varint(m, (uint64_t)field << 3);
    put_varint(m, (uint64_t)value);
}

static inline void put_raw(struct message *m, int field, const void *data, size_t size) {
    put_varint(m, (uint64_t)field << 3 | 2);
    put_varint(m, size);
    for (size_t i = 0; i < size; i++) put_byte(m, ((const uint8_t *)data)[i]);
}

static inline void put_text(struct message *m, int field, const char *text) {
    put_raw(m, field, text, strlen(text));
}

static inline void put_message(struct message *m, int field, const struct message *inner) {
    put_raw(m, field, inner->at, inner->size);
}

static inline void put_float(struct message *m, int field, float value) {
    uint8_t bits[4];
    memcpy(bits, &value, 4);
    put_varint(m, (uint64_t)field << 3 | 5);
    for (int i = 0; i < 4; i++) put_byte(m, bits[i]);
}

#endif

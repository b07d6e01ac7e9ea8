/*
 * Reads wire format into the structs of proto.h. A table per message maps field numbers to members of its struct.
 *
 * Fields are handled as in protobuf: unknown numbers are skipped; if a single field occurs twice, the last one counts; repeated
 * numbers may be packed or single. A known field of another type is an error.
 */
#include "proto.h"

#include <ctype.h>
#include <string.h>

#define DEEPEST 100 /* nested messages; each nested graph adds three: graph, node, attribute */
/* Stack that reading one message needs at most, including an error message, without the messages in it. Later recursions over
 * graphs need less stack per level than reading. */
#define READ_STACK ((size_t)16 << 10)

/* Kinds from INTS on are repeated and stored in a struct list; read_field relies on this order. OPTIONAL_INT is stored as a
 * pointer, which is NULL when the field is missing: a dim of 0 differs from an open one. */
enum kind {
    INT,
    FLOAT,
    STRING,
    BYTES,
    MESSAGE,
    OPTIONAL_INT,
    INTS,
    FLOATS,
    DOUBLES,
    STRINGS,
    BYTES_LIST,
    MESSAGES
};

struct field {
    int number;
    enum kind kind;
    size_t offset;
    const struct message *message;
};
struct message {
    const char *name;
    size_t size;
    const struct field *field; /* a row with number 0 ends it */
};

#define FIELD(type, number, kind, member) {number, kind, offsetof(struct onnx_##type, member), NULL}
#define NESTED(type, number, kind, member, inner) \
    {number, kind, offsetof(struct onnx_##type, member), &inner##_message}
#define TABLE(type, ...)                                                              \
    static const struct field type##_fields[] = {__VA_ARGS__, {0, INT, 0, NULL}};      \
    static const struct message type##_message = {#type, sizeof(struct onnx_##type), type##_fields}

static const struct message graph_message, type_message;

TABLE(entry, FIELD(entry, 1, STRING, key), FIELD(entry, 2, STRING, value));
TABLE(tensor, FIELD(tensor, 1, INTS, dims), FIELD(tensor, 2, INT, data_type),
      FIELD(tensor, 4, FLOATS, floats), FIELD(tensor, 5, INTS, int32s),
      FIELD(tensor, 6, BYTES_LIST, strings), FIELD(tensor, 7, INTS, int64s),
      FIELD(tensor, 8, STRING, name), FIELD(tensor, 9, BYTES, raw),
      FIELD(tensor, 10, DOUBLES, doubles), FIELD(tensor, 11, INTS, uint64s),
      NESTED(tensor, 13, MESSAGES, external, entry), FIELD(tensor, 14, INT, data_location));
TABLE(attribute, FIELD(attribute, 1, STRING, name), FIELD(attribute, 2, FLOAT, f),
      FIELD(attribute, 3, INT, i), FIELD(attribute, 4, BYTES, s),
      NESTED(attribute, 5, MESSAGE, t, tensor), NESTED(attribute, 6, MESSAGE, g, graph),
      FIELD(attribute, 7, FLOATS, floats), FIELD(attribute, 8, INTS, ints),
      FIELD(attribute, 9, BYTES_LIST, strings), FIELD(attribute, 20, INT, type),
      FIELD(attribute, 21, STRING, reference));
TABLE(node, FIELD(node, 1, STRINGS, inputs), FIELD(node, 2, STRINGS, outputs),
      FIELD(node, 3, STRING, name), FIELD(node, 4, STRING, op_type),
      NESTED(node, 5, MESSAGES, attributes, attribute), FIELD(node, 7, STRING, domain),
      FIELD(node, 8, STRING, overload));
TABLE(dim, FIELD(dim, 1, OPTIONAL_INT, value), FIELD(dim, 2, STRING, param));
TABLE(shape, NESTED(shape, 1, MESSAGES, dims, dim));
TABLE(tensor_type, FIELD(tensor_type, 1, INT, elem_type),
      NESTED(tensor_type, 2, MESSAGE, shape, shape));
TABLE(holder, NESTED(holder, 1, MESSAGE, type, type)); /* TypeProto.Sequence, TypeProto.Optional */
TABLE(map, FIELD(map, 1, INT, key), NESTED(map, 2, MESSAGE, value, type));
TABLE(type, NESTED(type, 1, MESSAGE, tensor, tensor_type),
      NESTED(type, 4, MESSAGE, sequence, holder), NESTED(type, 5, MESSAGE, map, map),
      NESTED(type, 9, MESSAGE, optional, holder));
TABLE(value, FIELD(value, 1, STRING, name), NESTED(value, 2, MESSAGE, type, type));
TABLE(opset, FIELD(opset, 1, STRING, domain), FIELD(opset, 2, INT, version));
TABLE(function, FIELD(function, 1, STRING, name), FIELD(function, 4, STRINGS, inputs),
      FIELD(function, 5, STRINGS, outputs), FIELD(function, 6, STRINGS, attributes),
      NESTED(function, 7, MESSAGES, nodes, node), NESTED(function, 9, MESSAGES, opsets, opset),
      FIELD(function, 10, STRING, domain), NESTED(function, 11, MESSAGES, defaults, attribute),
      FIELD(function, 13, STRING, overload));
TABLE(property, FIELD(property, 1, BYTES, key), FIELD(property, 2, BYTES, value));
TABLE(model, FIELD(model, 1, INT, ir_version), FIELD(model, 2, BYTES, producer),
      FIELD(model, 4, BYTES, domain), FIELD(model, 5, OPTIONAL_INT, version),
      FIELD(model, 6, BYTES, description), NESTED(model, 7, MESSAGE, graph, graph),
      NESTED(model, 8, MESSAGES, opsets, opset), NESTED(model, 14, MESSAGES, properties, property),
      NESTED(model, 25, MESSAGES, functions, function));

/* Declared above, since the tables of graphs and nodes refer to each other, as those of types and holders do. */
static const struct field graph_fields[] = {NESTED(graph, 1, MESSAGES, nodes, node),
                                            FIELD(graph, 2, STRING, name),
                                            NESTED(graph, 5, MESSAGES, initializers, tensor),
                                            FIELD(graph, 10, BYTES, description),
                                            NESTED(graph, 11, MESSAGES, inputs, value),
                                            NESTED(graph, 12, MESSAGES, outputs, value),
                                            FIELD(graph, 15, BYTES_LIST, sparse),
                                            {0, INT, 0, NULL}};
static const struct message graph_message = {"graph", sizeof(struct onnx_graph), graph_fields};

/* ---- Values ---- */

/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. Returns the length of the character, 0 when malformed. */
static size_t utf8_length(const uint8_t *at, size_t left) {
    static const uint8_t least_second[] = {[0xE0 - 0xC0] = 0xA0, [0xF0 - 0xC0] = 0x90};
    uint8_t first = at[0];
    size_t n = first < 0x80   ? 1
               : first < 0xC2 ? 0
               : first < 0xE0 ? 2
               : first < 0xF0 ? 3
               : first < 0xF5 ? 4
                              : 0;
    if (!n || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xC0) != 0x80) return 0;
    if (n > 2 && (size_t)(first - 0xC0) < sizeof least_second && at[1] < least_second[first - 0xC0])
        return 0;
    if ((first == 0xED && at[1] > 0x9F) || (first == 0xF4 && at[1] > 0x8F)) return 0;
    return n;
}

/* A NUL inside a name is an error, since it would end the C string, and two names could become equal. */
static enum sol_status copy_string(struct arena *arena, struct bytes in, const char **out) {
    for (size_t i = 0, n; i < in.size; i += n) {
        n = utf8_length(in.at + i, in.size - i);
        if (!n || !in.at[i]) return fail(SOL_EINVAL, "a name is no UTF-8, or holds a NUL");
    }
    char *copy = arena_alloc(arena, in.size + 1);
    if (in.size) memcpy(copy, in.at, in.size);
    *out = copy;
    return SOL_OK;
}

/* Appends a zeroed item and returns it. */
static void *append(struct arena *arena, struct list *list, size_t size) {
    if (list->n == list->cap) list->at = vec_grow(arena, list->at, list->n, &list->cap, size);
    void *item = (char *)list->at + size * (size_t)list->n++;
    memset(item, 0, size);
    return item;
}

/* Integers of all types are stored in 64 bits; a float is the low half of `bits`. */
static void append_number(struct arena *arena, struct list *list, enum kind kind, uint64_t bits) {
    if (kind == INTS) memcpy(append(arena, list, 8), &bits, 8);
    else if (kind == DOUBLES) memcpy(append(arena, list, 8), &bits, 8);
    else memcpy(append(arena, list, 4), &bits, 4);
}

static enum wire_type number_type(enum kind kind) {
    bool is_int = kind == INT || kind == INTS || kind == OPTIONAL_INT;
    return is_int ? WIRE_VARINT : kind == DOUBLES ? WIRE_FIXED64 : WIRE_FIXED32;
}

/* Reads packed numbers, or a single one. */
static enum sol_status read_numbers(struct arena *arena, const struct wire_field *in,
                                    enum kind kind, struct list *out) {
    enum wire_type type = number_type(kind);
    struct bytes left = in->bytes;
    uint64_t bits;
    if (in->type == type) append_number(arena, out, kind, in->value);
    while (in->type == WIRE_BYTES && left.size) {
        TRY(wire_value(&left, type, &bits));
        append_number(arena, out, kind, bits);
    }
    return SOL_OK;
}

static enum sol_status read_message(struct arena *arena, struct bytes in,
                                    const struct message *message, void *out, int depth);

/* If a message occurs twice, the last one counts; other readers merge them. */
static enum sol_status read_single(struct arena *arena, const struct wire_field *in,
                                   const struct field *field, char *at, int depth) {
    switch (field->kind) {
    case INT: memcpy(at, &in->value, 8); return SOL_OK;
    case FLOAT: memcpy(at, &in->value, 4); return SOL_OK;
    case OPTIONAL_INT: *(int64_t **)at = arena_copy(arena, &in->value, 8); return SOL_OK;
    case BYTES:
        *(struct bytes **)at = arena_copy(arena, &in->bytes, sizeof in->bytes);
        return SOL_OK;
    case STRING: return copy_string(arena, in->bytes, (const char **)at);
    default: break;
    }
    void *inner = arena_alloc(arena, field->message->size);
    memcpy(at, &inner, sizeof inner);
    return read_message(arena, in->bytes, field->message, inner, depth + 1);
}

static enum sol_status read_repeated(struct arena *arena, const struct wire_field *in,
                                     const struct field *field, struct list *list, int depth) {
    switch (field->kind) {
    case STRINGS: return copy_string(arena, in->bytes, append(arena, list, sizeof(char *)));
    case BYTES_LIST:
        *(struct bytes *)append(arena, list, sizeof(struct bytes)) = in->bytes;
        return SOL_OK;
    case MESSAGES:
        return read_message(arena, in->bytes, field->message,
                            append(arena, list, field->message->size), depth + 1);
    default: return read_numbers(arena, in, field->kind, list);
    }
}

/* Does the field have a wire type that its kind allows? Repeated numbers may be packed, as bytes. */
static bool has_type(const struct field *field, enum wire_type type) {
    bool is_number = field->kind == INT || field->kind == FLOAT || field->kind == OPTIONAL_INT;
    bool is_numbers = field->kind == INTS || field->kind == FLOATS || field->kind == DOUBLES;
    if (is_number || is_numbers)
        return type == number_type(field->kind) || (is_numbers && type == WIRE_BYTES);
    return type == WIRE_BYTES;
}

static enum sol_status read_field(struct arena *arena, const struct wire_field *in,
                                  const struct message *message, char *out, int depth) {
    const struct field *field = message->field;
    while (field->number && field->number != in->number) field++;
    if (!field->number) return SOL_OK;
    if (!has_type(field, in->type))
        return fail(SOL_EINVAL, "field %d has the wrong type", in->number);
    if (field->kind < INTS) return read_single(arena, in, field, out + field->offset, depth);
    return read_repeated(arena, in, field, (struct list *)(void *)(out + field->offset), depth);
}

static enum sol_status read_message(struct arena *arena, struct bytes in,
                                    const struct message *message, void *out, int depth) {
    struct wire_field field;
    bool is_deep = depth > DEEPEST;
    enum sol_status status = is_deep ? fail(SOL_EINVAL, "nested more than %d deep", DEEPEST)
                                     : os_stack_check(READ_STACK, "nested too deep");
    if (!status) status = wire_next(&in, &field);
    while (!status && field.number) {
        status = read_field(arena, &field, message, out, depth);
        if (!status) status = wire_next(&in, &field);
    }
    if (status && depth <= DEEPEST) fail_prefix(depth ? "%s, " : "%s: ", message->name);
    return status;
}

/* An error names the enclosing messages, outermost first: "model: graph, node, field 3 has the wrong type". */
enum sol_status proto_read(struct arena *arena, struct bytes file, struct onnx_model *out) {
    *out = (struct onnx_model){0};
    return read_message(arena, file, &model_message, out, 0);
}

/* ---- Attributes ---- */

const struct onnx_attribute *proto_attribute(const struct onnx_node *node, const char *name) {
    for (int i = 0; i < node->attributes.n; i++) {
        const struct onnx_attribute *a = ITEM(node->attributes, struct onnx_attribute, i);
        if (a->name && !strcmp(a->name, name)) return a;
    }
    return NULL;
}

/* The file declares the type of an attribute; it must be the one that the operator has. */
enum sol_status proto_typed_attribute(const struct onnx_node *node, const char *name,
                                      enum onnx_attribute_type type,
                                      const struct onnx_attribute **out) {
    *out = proto_attribute(node, name);
    if (!*out || (*out)->type == (int64_t)type) return SOL_OK;
    return fail(SOL_EINVAL, "attribute %s has type %lld instead of %d", name,
                (long long)(*out)->type, (int)type);
}

bool proto_is_name(const char *param) {
    for (; param && *param; param++)
        if (isalnum((unsigned char)*param) || (unsigned char)*param >= 0x80) return true;
    return false;
}

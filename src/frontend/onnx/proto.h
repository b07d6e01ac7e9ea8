/*
 * The messages of an ONNX file, as structs, and the reader that fills them.
 *
 *   bytes of a file  --proto_read-->  struct onnx_model and all that it points to, in an arena
 *
 * Field numbers are those of onnx.proto (ONNX IR version 14); fields that SOL does not use are skipped. Strings are copied, and
 * are UTF-8 without NUL; `struct bytes` point into the file. A field that a message does not have is zero, NULL or an empty list.
 */
#ifndef SOL_ONNX_PROTO_H
#define SOL_ONNX_PROTO_H

#include "wire.h"

/* Repeated fields: `at` is an array of the type that the field's comment names. */
struct list {
    int n, cap;
    void *at;
};
#define ITEM(list, type, i) ((type *)(list).at + (i))

struct onnx_entry {
    const char *key, *value;
};

struct onnx_tensor {
    const char *name;
    int64_t data_type, data_location;
    struct list dims;                    /* int64_t */
    struct list floats, doubles;         /* float, double */
    struct list int32s, int64s, uint64s; /* all as int64_t; uint64s keep their bits */
    struct list strings;                 /* struct bytes */
    struct bytes *raw;                   /* NULL when there is no such field */
    struct list external;                /* struct onnx_entry */
};

struct onnx_graph;
/* AttributeProto.type */
enum onnx_attribute_type {
    ONNX_FLOAT = 1,
    ONNX_INT,
    ONNX_STRING,
    ONNX_TENSOR,
    ONNX_GRAPH,
    ONNX_FLOATS,
    ONNX_INTS,
    ONNX_STRINGS
};
struct onnx_attribute {
    const char *name, *reference;
    int64_t type, i;
    float f;
    struct bytes *s;
    struct onnx_tensor *t;
    struct onnx_graph *g;
    struct list floats, ints, strings; /* float, int64_t, struct bytes */
};

struct onnx_node {
    const char *name, *op_type, *domain, *overload;
    struct list inputs, outputs; /* const char * */
    struct list attributes;      /* struct onnx_attribute */
};

struct onnx_dim {
    int64_t *value;
    const char *param;
};
struct onnx_shape {
    struct list dims; /* struct onnx_dim */
};
struct onnx_tensor_type {
    int64_t elem_type;
    struct onnx_shape *shape;
};
/* At most one is set. `sequence` and `optional` hold the type of the items, or of the value. */
struct onnx_type {
    struct onnx_tensor_type *tensor;
    struct onnx_holder *sequence, *optional;
    struct onnx_map *map;
};
struct onnx_holder {
    struct onnx_type *type;
};
struct onnx_map {
    int64_t key; /* the element type of the keys */
    struct onnx_type *value;
};
struct onnx_value {
    const char *name;
    struct onnx_type *type;
};

struct onnx_graph {
    const char *name;
    struct list nodes;           /* struct onnx_node */
    struct list initializers;    /* struct onnx_tensor */
    struct list inputs, outputs; /* struct onnx_value */
    struct list sparse;          /* struct bytes: sparse initializers, which SOL refuses */
    struct bytes *description;
};

struct onnx_opset {
    const char *domain;
    int64_t version;
};

/* What only describes a model may be any bytes: SOL must not refuse a file because of it. */
struct onnx_property {
    struct bytes *key, *value;
};

struct onnx_model {
    int64_t ir_version, *version;
    struct bytes *producer, *domain, *description;
    struct onnx_graph *graph;
    struct list opsets;     /* struct onnx_opset */
    struct list properties; /* struct onnx_property */
    struct list functions;  /* struct onnx_function */
};

/* A model-local function: a node that calls it is replaced by `nodes`. */
struct onnx_function {
    const char *name, *domain, *overload;
    struct list inputs, outputs, attributes; /* const char * */
    struct list defaults;                    /* struct onnx_attribute */
    struct list nodes;                       /* struct onnx_node */
    struct list opsets;                      /* struct onnx_opset */
};

/* Reads a whole model. EINVAL when it is not a well-formed message. Allocates in `arena`, whose boundary the caller has set. */
enum sol_status proto_read(struct arena *arena, struct bytes file, struct onnx_model *out);

/* A node's attribute; NULL when it is missing. */
const struct onnx_attribute *proto_attribute(const struct onnx_node *node, const char *name);
/* The same; EINVAL when it has another type. */
enum sol_status proto_typed_attribute(const struct onnx_node *node, const char *name,
                                      enum onnx_attribute_type type,
                                      const struct onnx_attribute **out);

/* function.c: inlines model-local functions: replaces each node that calls one by the nodes of the function, in the whole graph
 * of the model. EINVAL when functions call each other recursively. */
enum sol_status function_inline(struct arena *arena, struct onnx_model *model);

/* fix.c: gives inputs the `n` shapes of the caller. EINVAL when there is no such input, or the file fixes another size. */
struct sol_onnx_shape;
enum sol_status onnx_fix_shapes(struct arena *arena, struct onnx_graph *graph,
                                const struct sol_onnx_shape *shapes, int n);

/* False for no name, and for a mark such as "?", which some writers use instead of a name of an open size. */
bool proto_is_name(const char *param);

#endif

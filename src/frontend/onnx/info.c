/*
 * What a file declares (struct sol_onnx_info), for programs that show it or that check values before a call.
 *
 *   bytes of a file  --proto_read-->  struct onnx_model  -->  struct sol_onnx_info
 *
 * Both are in one arena. All texts are copied into it, so the file's bytes are needed only while reading.
 */
#include "array.h"
#include "proto.h"

#include <sol/onnx.h>
#include <string.h>

/* What sol_onnx_info_free gets is the member `told`, which is therefore the first one. */
struct info {
    struct sol_onnx_info told;
    struct arena arena;
};

/* Text from a file up to its first NUL; "" when it has none. */
static const char *copy_text(struct arena *arena, const struct bytes *in) {
    size_t size = in ? in->size : 0;
    char *copy = arena_alloc(arena, size + 1); /* zeroed */
    if (size) memcpy(copy, in->at, size);
    return copy;
}

/* ONNX's own names of the element types. */
static const char *const element_names[N_TYPES] = {
    [TYPE_F32] = "float",
    [TYPE_U8] = "uint8",
    [TYPE_I8] = "int8",
    [TYPE_U16] = "uint16",
    [TYPE_I16] = "int16",
    [TYPE_I32] = "int32",
    [TYPE_I64] = "int64",
    [TYPE_STRING] = "string",
    [TYPE_BOOL] = "bool",
    [TYPE_F16] = "float16",
    [TYPE_F64] = "double",
    [TYPE_U32] = "uint32",
    [TYPE_U64] = "uint64",
    [TYPE_C64] = "complex64",
    [TYPE_C128] = "complex128",
    [TYPE_BF16] = "bfloat16",
    [TYPE_E4M3FN] = "float8e4m3fn",
    [TYPE_E4M3FNUZ] = "float8e4m3fnuz",
    [TYPE_E5M2] = "float8e5m2",
    [TYPE_E5M2FNUZ] = "float8e5m2fnuz",
    [TYPE_U4] = "uint4",
    [TYPE_I4] = "int4",
    [TYPE_E2M1] = "float4e2m1",
    [TYPE_E8M0] = "float8e8m0",
    [TYPE_U2] = "uint2",
    [TYPE_I2] = "int2",
};

/* Recursive: proto_read limits how deep messages, and so types, are nested. */
static const char *describe_type(struct arena *arena, const struct onnx_type *type) {
    if (type && type->tensor)
        return type_is_known(type->tensor->elem_type)
                   ? arena_printf(arena, "tensor(%s)", element_names[type->tensor->elem_type])
                   : "";
    if (type && type->sequence)
        return arena_printf(arena, "seq(%s)", describe_type(arena, type->sequence->type));
    if (type && type->map && type_is_known(type->map->key))
        return arena_printf(arena, "map(%s,%s)", element_names[type->map->key],
                            describe_type(arena, type->map->value));
    if (type && type->optional)
        return arena_printf(arena, "optional(%s)", describe_type(arena, type->optional->type));
    return "";
}

static const struct onnx_shape *find_shape(const struct onnx_type *type) {
    if (type && type->optional) type = type->optional->type;
    return type && type->tensor ? type->tensor->shape : NULL;
}

static const struct sol_onnx_dim *tell_dims(struct arena *arena, const struct onnx_shape *shape) {
    struct sol_onnx_dim *dims = ARENA_ARRAY(arena, struct sol_onnx_dim, shape->dims.n);
    for (int d = 0; d < shape->dims.n; d++) {
        const struct onnx_dim *dim = ITEM(shape->dims, struct onnx_dim, d);
        bool is_known = dim->value && *dim->value >= 0;
        dims[d].size = is_known ? *dim->value : -1;
        dims[d].name = is_known || !dim->param ? "" : dim->param;
    }
    return dims;
}

static bool has_initializer(const struct onnx_graph *graph, const char *name) {
    for (int i = 0; name && i < graph->initializers.n; i++) {
        const struct onnx_tensor *tensor = ITEM(graph->initializers, struct onnx_tensor, i);
        if (tensor->name && !strcmp(tensor->name, name)) return true;
    }
    return false;
}

static const struct sol_onnx_port *tell_ports(struct arena *arena, const struct onnx_graph *graph,
                                              const struct list *values) {
    struct sol_onnx_port *ports = ARENA_ARRAY(arena, struct sol_onnx_port, values->n);
    for (int i = 0; i < values->n; i++) {
        const struct onnx_value *value = ITEM(*values, struct onnx_value, i);
        const struct onnx_shape *shape = find_shape(value->type);
        ports[i].name = value->name ? value->name : "";
        ports[i].type = describe_type(arena, value->type);
        ports[i].rank = shape ? shape->dims.n : -1;
        ports[i].dim = shape ? tell_dims(arena, shape) : NULL;
        ports[i].is_initialized = values == &graph->inputs && has_initializer(graph, value->name);
    }
    return ports;
}

static void tell_properties(struct arena *arena, const struct onnx_model *model,
                            struct sol_onnx_info *out) {
    int n = out->n_properties = model->properties.n;
    const char **keys = ARENA_ARRAY(arena, const char *, n);
    const char **values = ARENA_ARRAY(arena, const char *, n);
    for (int i = 0; i < n; i++) {
        const struct onnx_property *property = ITEM(model->properties, struct onnx_property, i);
        keys[i] = copy_text(arena, property->key);
        values[i] = copy_text(arena, property->value);
    }
    out->keys = keys;
    out->values = values;
}

static void tell(struct arena *arena, const struct onnx_model *model, struct sol_onnx_info *out) {
    const struct onnx_graph *graph = model->graph;
    out->ir_version = model->ir_version;
    out->version = model->version ? *model->version : INT64_MAX;
    out->producer = copy_text(arena, model->producer);
    out->domain = copy_text(arena, model->domain);
    out->description = copy_text(arena, model->description);
    out->graph_name = graph->name ? graph->name : "";
    out->graph_description = copy_text(arena, graph->description);
    out->n_inputs = graph->inputs.n;
    out->n_outputs = graph->outputs.n;
    out->inputs = tell_ports(arena, graph, &graph->inputs);
    out->outputs = tell_ports(arena, graph, &graph->outputs);
    tell_properties(arena, model, out);
}

static enum sol_status read_info(struct info *info, struct bytes file) {
    struct onnx_model model;
    TRY(proto_read(&info->arena, file, &model));
    if (!model.graph) return fail(SOL_EINVAL, "it has no graph");
    tell(&info->arena, &model, &info->told);
    return SOL_OK;
}

void sol_onnx_info_free(struct sol_onnx_info *told) {
    if (!told) return;
    struct info *info = (struct info *)(void *)told;
    arena_fini(&info->arena);
    mem_free(info);
}

/* When memory runs out while reading, control jumps back to this function; `status` is volatile because it is set after setjmp. */
enum sol_status sol_onnx_info_parse(const void *data, size_t size, struct sol_onnx_info **out) {
    jmp_buf out_of_memory;
    volatile enum sol_status status;
    if (!data && size) return fail(SOL_EINVAL, "there are no bytes");
    struct info *info = mem_alloc(sizeof *info, 64);
    if (!info) return fail(SOL_ENOMEM, "no memory for an ONNX model");
    arena_init(&info->arena);
    info->arena.boundary = &out_of_memory;
    if (setjmp(out_of_memory))
        status = fail(SOL_ENOMEM, "out of memory while reading an ONNX model");
    else status = read_info(info, (struct bytes){data, size});
    info->arena.boundary = NULL;
    if (status) sol_onnx_info_free(&info->told);
    else *out = &info->told;
    return status;
}

enum sol_status sol_onnx_info_read(const char *path, struct sol_onnx_info **out) {
    char *file;
    size_t size;
    if (!path) return fail(SOL_EINVAL, "there is no such path");
    TRY(os_read_any(path, &file, &size)); /* its message has the path */
    enum sol_status status = sol_onnx_info_parse(file, size, out);
    mem_free(file);
    if (status) fail_prefix("%.512s: ", path);
    return status;
}

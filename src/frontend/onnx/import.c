/*
 * Imports a graph of ONNX: calls SOL's builder for initializers, inputs, nodes in their order, and outputs.
 *
 * ONNX requires that nodes are in topological order and that every name is defined once. Both are checked here, so all inputs of
 * a node are defined when it is imported. Errors name the node.
 */
#include "import.h"

#include "eval.h"

#include <string.h>

/* ---- Names ---- */

/* The slot of the name, or the empty slot where it would be stored; linear probing. Half of the slots stay empty, so the search
 * ends. */
static struct import_value **find_slot(const struct import *im, const char *name) {
    unsigned mask = (unsigned)im->slots.cap - 1;
    unsigned at = (unsigned)hash_bytes(0, name, strlen(name)) & mask;
    while (im->slots.at[at] && strcmp(im->slots.at[at]->name, name) != 0) at = (at + 1) & mask;
    return &im->slots.at[at];
}

struct import_value *import_find(const struct import *im, const char *name) {
    return *find_slot(im, name);
}

/* NULL with a message when the name is taken or empty. */
struct import_value *import_define(struct import *im, const char *name) {
    struct import_value **slot = name && *name ? find_slot(im, name) : NULL;
    if (!slot || *slot) {
        (void)fail(SOL_EINVAL, slot ? "\"%.64s\" is made twice" : "a tensor without a name", name);
        return NULL;
    }
    *slot = ARENA_NEW(im->arena, struct import_value);
    **slot = (struct import_value){.name = name, .tensor = -1};
    return *slot;
}

/* Callers pass twice the number of names as `n`, so that at least half of the slots stay empty. */
void import_make_slots(struct import *im, size_t n) {
    for (im->slots.cap = 16; (size_t)im->slots.cap < n;) im->slots.cap *= 2;
    im->slots.at = ARENA_ARRAY(im->arena, struct import_value *, im->slots.cap);
}

static void make_slots(struct import *im, const struct onnx_graph *graph) {
    size_t n = 16 + 2 * ((size_t)graph->initializers.n + (size_t)graph->inputs.n);
    for (int i = 0; i < graph->nodes.n; i++)
        n += 2 * (size_t)ITEM(graph->nodes, struct onnx_node, i)->outputs.n;
    import_make_slots(im, n);
}

/* ---- Constants ---- */

static int64_t read_whole(const struct data *data, int64_t i) {
    const char *at = (const char *)data->at + (size_t)i * (size_t)size_element(data->dtype);
    int64_t wide = 0;
    int32_t word;
    int16_t half;
    switch (data->dtype) {
    case SOL_I64: memcpy(&wide, at, 8); return wide;
    case SOL_I32: memcpy(&word, at, 4); return word;
    case SOL_I16: memcpy(&half, at, 2); return half;
    case SOL_I8: return *(const int8_t *)at;
    default: return *(const uint8_t *)at;
    }
}

void import_data(const struct data *data, struct import_value *out) {
    out->dtype = data->dtype;
    out->rank = data->rank;
    out->data = data->at;
    for (int d = 0; d < data->rank; d++) out->dim[d] = size_const(data->dim[d]);
}

/* Larger integer tensors get no shape value: they are data. */
void import_constant(struct import *im, const struct data *data, struct import_value *out) {
    import_data(data, out);
    if (data->dtype < SOL_I64 || data->n > IMPORT_MAX_SHAPE_VALUES) return;
    out->shape_value = ARENA_ARRAY(im->arena, struct size, data->n + 1);
    for (int64_t i = 0; i < data->n; i++) out->shape_value[i] = size_const(read_whole(data, i));
}

struct data import_describe(const struct array *array, enum sol_dtype dtype) {
    struct data data = {.dtype = dtype, .rank = array->rank, .n = array->n, .at = array->data};
    memcpy(data.dim, array->dim, sizeof data.dim);
    return data;
}

struct array *import_array(struct space *space, const struct import_value *v) {
    int64_t dim[SOL_MAX_RANK];
    for (int d = 0; d < v->rank; d++) dim[d] = size_value(v->dim[d]);
    struct array *array = array_new(space, type_of_dtype(v->dtype), v->rank, dim);
    if (v->tensor < 0 && v->data)
        memcpy(array->data, v->data, (size_t)array->n * types[array->type].size);
    else if (v->tensor < 0 && v->shape_value)
        for (int64_t k = 0; k < array->n; k++)
            array_set_int(array, k, size_value(v->shape_value[k]));
    return array;
}

static enum sol_status add_initializer(struct import *im, const struct onnx_tensor *tensor) {
    struct data data;
    struct import_value *value = import_define(im, tensor->name);
    if (!value) return SOL_EINVAL;
    enum sol_status status = tensor_read(im->arena, im->folder, tensor, &data);
    if (status) fail_prefix("initializer \"%.64s\": ", tensor->name);
    else import_constant(im, &data, value);
    return status;
}

/* ---- Inputs and outputs ---- */

/* The number of the symbol for an open size. Sizes with equal names are one symbol; a size without a name is a symbol
 * of its own. */
static int64_t find_symbol(struct import *im, const char *name, int d) {
    for (int i = 0; i < im->symbols.n; i++)
        if (name && im->symbols.at[i] && !strcmp(im->symbols.at[i], name)) return -1 - i;
    VEC_PUSH(im->arena, &im->symbols, name);
    return sol_model_symbol(im->model, name ? name : d ? "size" : "batch");
}

static enum sol_status read_dim(struct import *im, const struct onnx_dim *dim, int d,
                                int64_t *out) {
    const char *param = proto_is_name(dim->param) ? dim->param : NULL;
    if (dim->value && *dim->value < 0)
        return fail(SOL_EINVAL, "dim %d is %lld", d, (long long)*dim->value);
    im->has_open_dims |= !dim->value && (d || !param);
    *out = dim->value ? *dim->value : find_symbol(im, param, d);
    return SOL_OK;
}

static enum sol_status read_input(struct import *im, const struct onnx_value *input,
                                  struct import_value *value) {
    const struct onnx_tensor_type *type = input->type ? input->type->tensor : NULL;
    int64_t dim[SOL_MAX_RANK];
    if (!type || !type->shape)
        return fail(SOL_EUNSUPPORTED, type ? "its rank is open" : "it is no tensor");
    TRY(tensor_dtype(type->elem_type, &value->dtype));
    value->rank = type->shape->dims.n;
    if (value->rank > SOL_MAX_RANK)
        return fail(SOL_EUNSUPPORTED, "rank %d; it may be 0 to %d", value->rank, SOL_MAX_RANK);
    for (int d = 0; d < value->rank; d++) {
        TRY(read_dim(im, ITEM(type->shape->dims, struct onnx_dim, d), d, &dim[d]));
        value->dim[d] = dim[d] < 0 ? size_symbol((int)(-1 - dim[d])) : size_const(dim[d]);
    }
    value->tensor = sol_model_input(im->model, input->name, value->dtype, value->rank, dim);
    return value->tensor < 0 ? sol_model_check(im->model) : SOL_OK;
}

/* Before IR version 4, initializers were listed as inputs, too; they are skipped here. An initializer is no tensor of the model
 * yet. */
static enum sol_status add_input(struct import *im, const struct onnx_value *input) {
    const struct import_value *known = input->name ? import_find(im, input->name) : NULL;
    if (known && known->tensor < 0) return SOL_OK;
    struct import_value *value = import_define(im, input->name);
    if (!value) return SOL_EINVAL;
    enum sol_status status = read_input(im, input, value);
    if (status) fail_prefix("input \"%.64s\": ", input->name);
    return status;
}

static enum sol_status add_output(struct import *im, const struct onnx_value *output) {
    struct import_value *value = output->name ? import_find(im, output->name) : NULL;
    if (!value)
        return fail(SOL_EINVAL, "output \"%.64s\" is made by no node",
                    output->name ? output->name : "");
    struct op_call call = {.im = im, .n_in = 1, .in = &value};
    sol_tensor tensor = value->tensor < 0 ? call_tensor(&call, 0) : value->tensor;
    if (tensor < 0) {
        fail_prefix("output \"%.64s\": ", output->name);
        return im->status;
    }
    sol_model_output(im->model, output->name, tensor);
    return SOL_OK;
}

/* ---- Nodes ---- */

bool import_has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; n && (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return true;
    return false;
}

/* Ignoring an attribute that SOL does not know could give a wrong result, so it is an error. */
enum sol_status import_check_attributes(const struct onnx_node *node, const char *known) {
    for (int i = 0; i < node->attributes.n; i++) {
        const struct onnx_attribute *a = ITEM(node->attributes, struct onnx_attribute, i);
        if (!a->name || !import_has_word(known, a->name))
            return fail(SOL_EUNSUPPORTED, "attribute \"%.64s\" is not known",
                        a->name ? a->name : "");
        if (a->reference && *a->reference)
            return fail(SOL_EINVAL, "attribute %s refers to a function's", a->name);
        for (int k = 0; k < i; k++)
            if (!strcmp(ITEM(node->attributes, struct onnx_attribute, k)->name, a->name))
                return fail(SOL_EINVAL, "attribute %s is given twice", a->name);
    }
    return SOL_OK;
}

/* An input with an empty name is left out; at the end of the list, such inputs are not counted. */
static enum sol_status find_inputs(struct op_call *c) {
    for (int i = 0; i < c->n_in; i++) {
        const char *name = *ITEM(c->node->inputs, const char *, i);
        if (!*name) continue;
        c->in[i] = import_find(c->im, name);
        if (!c->in[i])
            return fail(SOL_EINVAL, "input \"%.64s\" is no output of an earlier node", name);
    }
    while (c->n_in && !c->in[c->n_in - 1]) c->n_in--;
    for (int i = 0; i < c->op->min_in; i++)
        if (!call_has(c, i)) return fail(SOL_EINVAL, "input %d is missing", i);
    return c->n_in > c->op->max_in
               ? fail(SOL_EINVAL, "%d inputs; it takes at most %d", c->n_in, c->op->max_in)
               : SOL_OK;
}

static enum sol_status define_outputs(struct op_call *c) {
    for (int i = 0; i < c->n_out; i++) {
        const char *name = *ITEM(c->node->outputs, const char *, i);
        if (*name && !(c->out[i] = import_define(c->im, name))) return SOL_EINVAL;
    }
    return SOL_OK;
}

/* Are all inputs shape values, so that the node can be folded without a layer? */
static bool all_numbers(const struct op_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] && !c->in[i]->shape_value) return false;
    return c->n_in > 0;
}

/* Refuses a node with an output that it names but the operator function has not set. */
static enum sol_status check_given(const struct op_call *c) {
    for (int i = 0; i < c->n_out; i++) {
        const struct import_value *v = c->out[i];
        if (v && v->tensor < 0 && !v->data && !v->shape_value)
            return fail(SOL_EUNSUPPORTED, "output %d (\"%.64s\")", i, v->name);
    }
    return SOL_OK;
}

static const char *why_unknown(const struct onnx_node *node) {
    struct node_kind kind = {0};
    node_kind(node, &kind);
    if (!kind.interpreted) return "SOL has no such operator";
    return "SOL interprets this operator and cannot compile it, so no library can have it";
}

/* Shape values that are folded are marked as read: in a session, the partition gets guards for them. */
enum sol_status import_node(struct import *im, const struct onnx_node *node) {
    struct op_call c = {.im = im, .node = node, .n_in = node->inputs.n, .n_out = node->outputs.n};
    struct node_kind kind = {0};
    node_kind(node, &kind);
    c.op = kind.compiled;
    if (!c.op) return fail(SOL_EUNSUPPORTED, "%s", why_unknown(node));
    c.in = ARENA_ARRAY(im->arena, struct import_value *, c.n_in + 1);
    c.out = ARENA_ARRAY(im->arena, struct import_value *, c.n_out + 1);
    TRY(import_check_attributes(node, c.op->attributes));
    TRY(find_inputs(&c));
    TRY(define_outputs(&c));
    bool folds =
        c.op->fold != op_none && all_numbers(&c) && (!im->is_single || c.op->build == op_none);
    for (int i = 0; i < c.n_in && folds; i++) (void)call_shape_value(&c, i);
    TRY((folds ? c.op->fold : c.op->build)(&c));
    return im->status ? im->status : check_given(&c);
}

static enum sol_status add_node(struct import *im, const struct onnx_node *node, int i) {
    enum sol_status status = import_node(im, node);
    const char *domain = node->domain ? node->domain : "";
    if (status)
        fail_prefix("node %d, %.64s%s%.64s \"%.64s\": ", i, domain, *domain ? "." : "",
                    node->op_type ? node->op_type : "(no operator)", node->name ? node->name : "");
    return status;
}

/* ---- All of it ---- */

enum sol_status import_graph(struct import *im, const struct onnx_graph *graph) {
    if (graph->sparse.n) return fail(SOL_EUNSUPPORTED, "sparse initializers");
    make_slots(im, graph);
    for (int i = 0; i < graph->initializers.n; i++)
        TRY(add_initializer(im, ITEM(graph->initializers, struct onnx_tensor, i)));
    for (int i = 0; i < graph->inputs.n; i++)
        TRY(add_input(im, ITEM(graph->inputs, struct onnx_value, i)));
    for (int i = 0; i < graph->nodes.n; i++)
        TRY(add_node(im, ITEM(graph->nodes, struct onnx_node, i), i));
    for (int i = 0; i < graph->outputs.n; i++)
        TRY(add_output(im, ITEM(graph->outputs, struct onnx_value, i)));
    return sol_model_check(im->model);
}

/* ---- The table ---- */

static const struct op ops[] = {
#define OP(name, min, max, build, fold, layer, attributes) \
    {"", #name, min, max, op_##build, op_##fold, layer, attributes},
#define OP_OF(domain, name, min, max, build, layer, attributes) \
    {domain, #name, min, max, op_##build, op_none, layer, attributes},
#include "op.def"
#undef OP
#undef OP_OF
};

const struct op *op_find(const char *domain, const char *name) {
    if (!domain || !strcmp(domain, "ai.onnx")) domain = "";
    for (int i = 0; name && i < COUNT(ops); i++)
        if (!strcmp(ops[i].name, name) && !strcmp(ops[i].domain, domain)) return &ops[i];
    return NULL;
}

enum sol_status op_none(struct op_call *c) {
    return fail(SOL_EUNSUPPORTED, "SOL has no %s for such inputs", c->op->name);
}

/*
 * Functions of a file's own: their nodes take the place of the nodes that call them, so that nothing behind the reader knows
 * functions.
 *
 *   y = f(a, b)  with  f(p, q) -> r { t = Mul(p, q); r = Relu(t) }   becomes   f0/t = Mul(a, b); y = Relu(f0/t)
 *
 * Parameters become the caller's names, other names get a prefix of their own per call, also within graphs of nodes. Attributes that
 * refer to the function's become the caller's, or the default, or nothing. A file can say in a few lines what expands to more nodes
 * than memory holds: depth and number of nodes are limited.
 */
#include "proto.h"

#include <string.h>

#define DEEPEST 100
#define MAX_NODES (1 << 20)
#define EXPAND_STACK ((size_t)16 << 10) /* as READ_STACK: later walks take less for each level */

/* Counts that limit what a file can make of itself. */
struct inliner {
    struct arena *arena;
    const struct onnx_model *model;
    int n_calls, n_nodes, depth;
};

/* One call being expanded; NULL for the model's own graph, whose names stay. */
struct expansion {
    const struct onnx_function *function;
    const struct onnx_node *node; /* the caller, its names as they are outside */
    const char *prefix;
};

static const char *or_empty(const char *text) { return text ? text : ""; }

static bool is_same(const char *a, const char *b) { return !strcmp(or_empty(a), or_empty(b)); }

/* By name, domain and overload. Few files have more than some tens, so a search will do. */
static const struct onnx_function *find_function(const struct inliner *in,
                                                 const struct onnx_node *node) {
    for (int i = 0; i < in->model->functions.n; i++) {
        const struct onnx_function *f = ITEM(in->model->functions, struct onnx_function, i);
        if (is_same(f->name, node->op_type) && is_same(f->domain, node->domain) &&
            is_same(f->overload, node->overload))
            return f;
    }
    return NULL;
}

/* ---- Names ---- */

/* The caller's name for the parameter `name`; NULL when it is none, "" when the caller leaves it out. */
static const char *find_argument(const struct list *parameters, const struct list *arguments,
                                 const char *name) {
    for (int i = 0; i < parameters->n; i++)
        if (!strcmp(*ITEM(*parameters, const char *, i), name))
            return i < arguments->n ? *ITEM(*arguments, const char *, i) : "";
    return NULL;
}

/* Names that are left out stay so: an input that the caller does not give is none inside, either. */
static const char *rename_one(struct inliner *in, const struct expansion *x, const char *name) {
    if (!x || !name || !*name) return name;
    const char *outside = find_argument(&x->function->inputs, &x->node->inputs, name);
    if (!outside) outside = find_argument(&x->function->outputs, &x->node->outputs, name);
    /* An output that the caller does not want still has a name inside. */
    bool is_input = find_argument(&x->function->inputs, &x->node->inputs, name) != NULL;
    if (outside && (*outside || is_input)) return outside;
    return arena_printf(in->arena, "%s%s", x->prefix, name);
}

/* Lists are copied: one function may be called often. */
static struct list rename_all(struct inliner *in, const struct expansion *x, struct list names) {
    struct list out = {names.n, names.n, ARENA_ARRAY(in->arena, const char *, names.n + 1)};
    for (int i = 0; i < names.n; i++)
        *ITEM(out, const char *, i) = rename_one(in, x, *ITEM(names, const char *, i));
    return out;
}

static struct list rename_values(struct inliner *in, const struct expansion *x, struct list from) {
    struct list out = {from.n, from.n, ARENA_ARRAY(in->arena, struct onnx_value, from.n + 1)};
    for (int i = 0; i < from.n; i++) {
        struct onnx_value *value = ITEM(out, struct onnx_value, i);
        *value = *ITEM(from, struct onnx_value, i);
        value->name = rename_one(in, x, value->name);
    }
    return out;
}

static struct list rename_tensors(struct inliner *in, const struct expansion *x, struct list from) {
    struct list out = {from.n, from.n, ARENA_ARRAY(in->arena, struct onnx_tensor, from.n + 1)};
    for (int i = 0; i < from.n; i++) {
        struct onnx_tensor *tensor = ITEM(out, struct onnx_tensor, i);
        *tensor = *ITEM(from, struct onnx_tensor, i);
        tensor->name = rename_one(in, x, tensor->name);
    }
    return out;
}

/* ---- Nodes ---- */

static enum sol_status expand_nodes(struct inliner *in, const struct expansion *x,
                                    struct list nodes, struct list *out);

static enum sol_status expand_graph(struct inliner *in, const struct expansion *x,
                                    struct onnx_graph **graph) {
    TRY(os_stack_check(EXPAND_STACK, "graphs of functions nested too deep"));
    struct onnx_graph *copy = arena_copy(in->arena, *graph, sizeof **graph);
    copy->nodes = (struct list){0};
    copy->inputs = rename_values(in, x, copy->inputs);
    copy->outputs = rename_values(in, x, copy->outputs);
    copy->initializers = rename_tensors(in, x, copy->initializers);
    TRY(expand_nodes(in, x, (*graph)->nodes, &copy->nodes));
    *graph = copy;
    return SOL_OK;
}

/* NULL when there is none of this name. */
static const struct onnx_attribute *find_attribute(const struct list *list, const char *name) {
    for (int i = 0; i < list->n; i++)
        if (is_same(ITEM(*list, struct onnx_attribute, i)->name, name))
            return ITEM(*list, struct onnx_attribute, i);
    return NULL;
}

/* The attribute itself, or what it refers to under its own name; NULL when the caller gives nothing and there is no default. */
static const struct onnx_attribute *resolve(struct inliner *in, const struct expansion *x,
                                            const struct onnx_attribute *a) {
    if (!x || !a->reference || !*a->reference) return a;
    const struct onnx_attribute *found = find_attribute(&x->node->attributes, a->reference);
    if (!found) found = find_attribute(&x->function->defaults, a->reference);
    if (!found) return NULL;
    struct onnx_attribute *copy = arena_copy(in->arena, found, sizeof *found);
    copy->name = a->name;
    return copy;
}

static enum sol_status expand_attributes(struct inliner *in, const struct expansion *x,
                                         struct onnx_node *node) {
    struct list from = node->attributes;
    struct list out = {0, from.n, ARENA_ARRAY(in->arena, struct onnx_attribute, from.n + 1)};
    for (int i = 0; i < from.n; i++) {
        const struct onnx_attribute *own = ITEM(from, struct onnx_attribute, i);
        const struct onnx_attribute *a = resolve(in, x, own);
        if (!a) continue;
        struct onnx_attribute *copy = ITEM(out, struct onnx_attribute, out.n++);
        *copy = *a;
        /* A graph that the caller handed over has the caller's names already. */
        if (copy->g) TRY(expand_graph(in, a == own ? x : NULL, &copy->g));
    }
    node->attributes = out;
    return SOL_OK;
}

/* The function's operators must mean what the model's mean. */
static enum sol_status check_opsets(const struct inliner *in, const struct onnx_function *f) {
    for (int i = 0; i < f->opsets.n; i++) {
        const struct onnx_opset *inner = ITEM(f->opsets, struct onnx_opset, i);
        for (int k = 0; k < in->model->opsets.n; k++) {
            const struct onnx_opset *outer = ITEM(in->model->opsets, struct onnx_opset, k);
            if (is_same(inner->domain, outer->domain) && inner->version != outer->version)
                return fail(SOL_EUNSUPPORTED, "function %.64s has opset %lld, the model %lld",
                            or_empty(f->name), (long long)inner->version,
                            (long long)outer->version);
        }
    }
    return SOL_OK;
}

static enum sol_status expand_call(struct inliner *in, const struct onnx_function *f,
                                   const struct onnx_node *node, struct list *out) {
    struct expansion x = {f, node, arena_printf(in->arena, "f%d/", in->n_calls++)};
    TRY(check_opsets(in, f));
    if (++in->depth > DEEPEST)
        return fail(SOL_EINVAL, "functions that call each other more than %d deep", DEEPEST);
    TRY(os_stack_check(EXPAND_STACK, "functions nested too deep"));
    TRY(expand_nodes(in, &x, f->nodes, out));
    in->depth--;
    return SOL_OK;
}

/* Appends the nodes, renamed and with calls expanded. */
static enum sol_status expand_nodes(struct inliner *in, const struct expansion *x,
                                    struct list nodes, struct list *out) {
    for (int i = 0; i < nodes.n; i++) {
        struct onnx_node node = *ITEM(nodes, struct onnx_node, i);
        if (++in->n_nodes > MAX_NODES)
            return fail(SOL_EINVAL, "functions that expand to more than %d nodes", MAX_NODES);
        node.inputs = rename_all(in, x, node.inputs);
        node.outputs = rename_all(in, x, node.outputs);
        TRY(expand_attributes(in, x, &node));
        const struct onnx_function *f = find_function(in, &node);
        if (f) TRY(expand_call(in, f, &node, out));
        if (f) continue;
        if (out->n == out->cap)
            out->at = vec_grow(in->arena, out->at, out->n, &out->cap, sizeof node);
        *ITEM(*out, struct onnx_node, out->n++) = node;
    }
    return SOL_OK;
}

enum sol_status function_inline(struct arena *arena, struct onnx_model *model) {
    struct inliner in = {.arena = arena, .model = model};
    return model->functions.n ? expand_graph(&in, NULL, &model->graph) : SOL_OK;
}

/*
 * Inlines model-local functions: each node that calls one is replaced by the nodes of the function, so that the rest of the
 * frontend needs no functions.
 *
 *   y = f(a, b)  with  f(p, q) -> r { t = Mul(p, q); r = Relu(t) }   becomes   f0/t = Mul(a, b); y = Relu(f0/t)
 *
 * Parameters become the caller's names. Other names get a prefix that is unique per call, also in subgraphs. An attribute that
 * refers to an attribute of the function becomes the caller's one, or the default, or is removed. Depth and number of nodes are
 * limited, since a small file can expand to more nodes than fit in memory.
 */
#include "proto.h"

#include <string.h>

#define DEEPEST 100
#define MAX_NODES (1 << 20)
#define EXPAND_STACK ((size_t)16 << 10) /* stack per level, as READ_STACK of proto.c */

/* The state of inlining; n_nodes and depth are limited. */
struct inliner {
    struct arena *arena;
    const struct onnx_model *model;
    int n_calls, n_nodes, depth;
};

/* A call that is being expanded. Functions take NULL for the model's own graph, whose names do not change. */
struct expansion {
    const struct onnx_function *function;
    const struct onnx_node *node; /* the calling node, with the names of the graph around it */
    const char *prefix;
};

static const char *or_empty(const char *text) { return text ? text : ""; }

static bool is_same(const char *a, const char *b) { return !strcmp(or_empty(a), or_empty(b)); }

/* Compares name, domain and overload. Files have few functions, so a linear search is enough. */
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

/* The caller's name for the parameter `name`; NULL when `name` is no parameter, "" when the caller leaves it out. */
static const char *find_argument(const struct list *parameters, const struct list *arguments,
                                 const char *name) {
    for (int i = 0; i < parameters->n; i++)
        if (!strcmp(*ITEM(*parameters, const char *, i), name))
            return i < arguments->n ? *ITEM(*arguments, const char *, i) : "";
    return NULL;
}

/* The new name of `name` in a call. An input that the caller leaves out is left out in the function's nodes, too. */
static const char *rename_one(struct inliner *in, const struct expansion *x, const char *name) {
    if (!x || !name || !*name) return name;
    const char *outside = find_argument(&x->function->inputs, &x->node->inputs, name);
    if (!outside) outside = find_argument(&x->function->outputs, &x->node->outputs, name);
    /* An output that the caller leaves out still needs a name, since other nodes of the function may read it. */
    bool is_input = find_argument(&x->function->inputs, &x->node->inputs, name) != NULL;
    if (outside && (*outside || is_input)) return outside;
    return arena_printf(in->arena, "%s%s", x->prefix, name);
}

/* A new list, since a function may be called several times. */
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

/* The attribute, or a copy, with its name, of the attribute that it refers to; NULL when the caller gives none and there is no
 * default. */
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
        /* A graph that comes from the caller's attribute has the caller's names already. */
        if (copy->g) TRY(expand_graph(in, a == own ? x : NULL, &copy->g));
    }
    node->attributes = out;
    return SOL_OK;
}

/* The function must use the same opsets as the model, so that operators have the same meaning. */
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

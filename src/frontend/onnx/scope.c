/*
 * Scopes: the names and values of a graph that is being interpreted.
 *
 * A subgraph can read names of the graphs around it, so a scope points to the outer scope.
 */
#include "eval.h"

#include <string.h>

#define MAX_DEPTH 100                      /* of nested graphs */
#define NODE_STACK ((size_t)24 << 10) /* stack that one node needs at most, without its subgraphs */

/* A slot of the hash table. The value is NULL while the name has none; the name is NULL in an empty slot. */
struct binding {
    const char *name;
    struct array *value;
};
/* Names are compared as strings, since the file has a copy of a name for each use. */
struct scope {
    struct scope *outer;
    struct binding *slots; /* a hash table; cap is a power of two and more than the names */
    int cap;
};

/* The table has at least twice as many slots as names, so every search ends. */
struct scope *scope_new(struct space *space, struct scope *outer, int max_names) {
    struct scope *scope = SPACE_ARRAY(space, struct scope, 1);
    for (scope->cap = 8; scope->cap < 2 * (int64_t)max_names;) scope->cap *= 2;
    scope->slots = SPACE_ARRAY(space, struct binding, scope->cap);
    scope->outer = outer;
    return scope;
}

/* The slot of a name, or the empty slot where it would be stored. */
static struct binding *find_slot(const struct scope *scope, const char *name) {
    unsigned mask = (unsigned)scope->cap - 1;
    unsigned at = (unsigned)hash_bytes(0, name, strlen(name)) & mask;
    while (scope->slots[at].name && strcmp(scope->slots[at].name, name) != 0) at = (at + 1) & mask;
    return &scope->slots[at];
}

struct array *scope_find(const struct scope *scope, const char *name) {
    for (; scope; scope = scope->outer) {
        const struct binding *slot = find_slot(scope, name);
        if (slot->value) return slot->value;
    }
    return NULL;
}

struct array **scope_slot(struct scope *scope, const char *name) {
    struct binding *slot = find_slot(scope, name);
    slot->name = name;
    return &slot->value;
}

/* ---- Graphs ---- */

int scope_count_names(const struct onnx_graph *graph) {
    int64_t n = (int64_t)graph->initializers.n + graph->inputs.n;
    for (int i = 0; i < graph->nodes.n; i++)
        n += ITEM(graph->nodes, struct onnx_node, i)->outputs.n;
    return n > 1 << 26 ? 1 << 26 : (int)n;
}

/* Initializers of a subgraph are read each time it runs. */
static enum sol_status add_initializer(struct eval_context *run, struct scope *scope,
                                       const struct onnx_tensor *tensor) {
    struct array *array;
    if (!tensor->name || !*tensor->name) return fail(SOL_EINVAL, "an initializer without a name");
    TRY(array_read(run->space, run->folder, tensor, &array));
    *scope_slot(scope, tensor->name) = array;
    return SOL_OK;
}

enum sol_status scope_run(struct eval_context *run, struct scope *scope,
                          const struct onnx_graph *graph) {
    for (int i = 0; i < graph->initializers.n; i++)
        TRY(add_initializer(run, scope, ITEM(graph->initializers, struct onnx_tensor, i)));
    for (int i = 0; i < graph->nodes.n; i++) {
        const struct onnx_node *node = ITEM(graph->nodes, struct onnx_node, i);
        enum sol_status status = eval_node(run, scope, node);
        if (status) fail_prefix("%.64s: ", node->op_type ? node->op_type : "(no operator)");
        if (status) return status;
    }
    return SOL_OK;
}

/* Inputs are bound by position, not by name. */
static void bind_inputs(struct eval *e, struct scope *scope, const struct onnx_graph *graph,
                        int n_in, struct array **in) {
    if (graph->inputs.n != n_in)
        eval_stop(e, fail(SOL_EINVAL, "a graph of %d inputs gets %d", graph->inputs.n, n_in));
    for (int i = 0; i < n_in; i++) {
        const char *name = ITEM(graph->inputs, struct onnx_value, i)->name;
        eval_check(e, name && *name, "an input without a name");
        *scope_slot(scope, name) = in[i];
    }
}

/* The scope and all its values are freed at the end of the call, or by a loop's space_release. */
void eval_subgraph(struct eval *e, const struct onnx_graph *graph, int n_in, struct array **in,
                   struct array **out) {
    struct scope *scope = scope_new(e->space, e->scope, scope_count_names(graph));
    if (++e->run->depth > MAX_DEPTH)
        eval_stop(e, fail(SOL_EINVAL, "graphs nested more than %d deep", MAX_DEPTH));
    enum sol_status status = os_stack_check(NODE_STACK, "graphs nested too deep");
    if (status) eval_stop(e, status);
    bind_inputs(e, scope, graph, n_in, in);
    status = scope_run(e->run, scope, graph);
    if (status) eval_stop(e, status);
    for (int i = 0; i < graph->outputs.n; i++) {
        const char *name = ITEM(graph->outputs, struct onnx_value, i)->name;
        out[i] = name ? scope_find(scope, name) : NULL;
        eval_check(e, out[i] != NULL, "an output that no node makes");
    }
    e->run->depth--;
}

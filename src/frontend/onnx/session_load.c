/*
 * Loads a session: everything that does not depend on inputs.
 *
 *   bytes of a file -> session_load -> struct session_graph of the outer graph, and of all subgraphs
 *
 * Loading refuses unknown operators and names that are defined twice, finds the last reader of each name, reads initializers, and
 * computes the nodes that depend on no input. Subgraphs are loaded after the graph around them, since they read its constants.
 */
#include "session.h"

#include <string.h>

#define LOAD_STACK ((size_t)24 << 10) /* stack that loading one graph needs at most, without its subgraphs */

/* ---- Checks ---- */

/* Refuses operators that SOL can neither compile nor interpret, also in subgraphs. */
static enum sol_status check_nodes(const struct onnx_graph *graph) {
    for (int i = 0; i < graph->nodes.n; i++) {
        const struct onnx_node *node = ITEM(graph->nodes, struct onnx_node, i);
        const char *domain = node->domain ? node->domain : "", *type = node->op_type;
        struct node_kind kind = {0};
        node_kind(node, &kind);
        if (!kind.interpreted && !kind.compiled)
            return fail(SOL_EUNSUPPORTED,
                        "node %d, %.64s%s%.64s \"%.64s\": SOL has no such operator", i, domain,
                        *domain ? "." : "", type ? type : "(no operator)",
                        node->name ? node->name : "");
        for (int k = 0; k < node->attributes.n; k++) {
            const struct onnx_attribute *a = ITEM(node->attributes, struct onnx_attribute, k);
            if (a->g) TRY(check_nodes(a->g));
        }
    }
    return SOL_OK;
}

/* Notes that node `i` reads the name. Nodes come in order, so the last reader stays. */
static void note_use(struct session_graph *graph, struct space *space, const char *name, int i) {
    if (!name || !*name) return;
    struct array **slot = scope_slot(graph->last_use, name);
    if (!*slot) *slot = array_new(space, TYPE_I64, 0, NULL);
    array_set_int(*slot, 0, i);
}

/* Includes all names that subgraphs of the node read; entering their own names, too, does no harm. */
static void note_uses(struct session_graph *graph, struct space *space,
                      const struct onnx_node *node, int i) {
    for (int k = 0; k < node->inputs.n; k++)
        note_use(graph, space, *ITEM(node->inputs, const char *, k), i);
    for (int k = 0; k < node->attributes.n; k++) {
        const struct onnx_graph *inner = ITEM(node->attributes, struct onnx_attribute, k)->g;
        for (int j = 0; inner && j < inner->nodes.n; j++)
            note_uses(graph, space, ITEM(inner->nodes, struct onnx_node, j), i);
        for (int j = 0; inner && j < inner->outputs.n; j++)
            note_use(graph, space, ITEM(inner->outputs, struct onnx_value, j)->name, i);
    }
}

/* Counts the names of subgraphs, too, since note_uses enters them into the same table. */
static int64_t count_names(const struct onnx_graph *graph) {
    int64_t n = (int64_t)graph->initializers.n + graph->inputs.n + graph->outputs.n;
    for (int i = 0; i < graph->nodes.n; i++) {
        const struct onnx_node *node = ITEM(graph->nodes, struct onnx_node, i);
        n += (int64_t)node->inputs.n + node->outputs.n;
        for (int k = 0; k < node->attributes.n; k++) {
            const struct onnx_graph *inner = ITEM(node->attributes, struct onnx_attribute, k)->g;
            if (inner) n += count_names(inner);
        }
    }
    return n;
}

/* The number of names that the graph defines, without its subgraphs. */
static int count_defined(const struct onnx_graph *graph) {
    int n = graph->initializers.n + graph->inputs.n;
    for (int i = 0; i < graph->nodes.n; i++)
        n += ITEM(graph->nodes, struct onnx_node, i)->outputs.n;
    return n;
}

/* Enters a name. `mark` tells what kind of definition it is. A second definition is an error, unless the first has the mark
 * `may`. */
static enum sol_status note_name(struct session_graph *graph, const char *name, struct array *mark,
                                 const struct array *may) {
    if (!name || !*name) return SOL_OK;
    if (scope_find(graph->names, name) && !*scope_slot(graph->names, name)) graph->hides = true;
    struct array **slot = scope_slot(graph->names, name);
    if (*slot && *slot != may) return fail(SOL_EINVAL, "\"%.64s\" is made twice", name);
    *slot = mark;
    return SOL_OK;
}

/* ONNX requires that each name of a graph is defined once, so that a scope has one value per name. An initializer may have the
 * name of an input, whose default it is. Subgraphs have their own names. */
static enum sol_status note_names(struct session_graph *graph) {
    static struct array given, input, made;
    const struct onnx_graph *from = graph->graph;
    for (int i = 0; i < from->initializers.n; i++)
        TRY(note_name(graph, ITEM(from->initializers, struct onnx_tensor, i)->name, &given, NULL));
    for (int i = 0; i < from->inputs.n; i++)
        TRY(note_name(graph, ITEM(from->inputs, struct onnx_value, i)->name, &input, &given));
    for (int i = 0; i < from->nodes.n; i++) {
        const struct onnx_node *node = ITEM(from->nodes, struct onnx_node, i);
        for (int k = 0; k < node->outputs.n; k++)
            TRY(note_name(graph, *ITEM(node->outputs, const char *, k), &made, NULL));
    }
    return SOL_OK;
}

/* ---- Constants ---- */

/* Initializers are read once; all calls share them. */
static enum sol_status add_initializers(struct space *space, struct session_graph *graph) {
    if (graph->graph->sparse.n) return fail(SOL_EUNSUPPORTED, "sparse initializers");
    for (int i = 0; i < graph->graph->initializers.n; i++) {
        const struct onnx_tensor *tensor = ITEM(graph->graph->initializers, struct onnx_tensor, i);
        struct array *array = SPACE_ARRAY(space, struct array, 1);
        if (!tensor->name || !*tensor->name)
            return fail(SOL_EINVAL, "an initializer without a name");
        enum sol_status status = array_read(&space->arena, graph->shared->folder, tensor, array);
        if (status) fail_prefix("initializer \"%.64s\": ", tensor->name);
        if (status) return status;
        *scope_slot(graph->constants, tensor->name) = array;
    }
    return SOL_OK;
}

/* The value, while a subgraph is loaded, of its names that have no constant value. They hide constants of outer graphs. */
static struct array unknown;

/* Replaces the value `from` of the names that the nodes and inputs of a subgraph define. */
static void replace_values(struct session_graph *graph, const struct array *from,
                           struct array *to) {
    for (int i = 0; i < graph->graph->inputs.n; i++) {
        const char *name = ITEM(graph->graph->inputs, struct onnx_value, i)->name;
        if (name && *name) *scope_slot(graph->constants, name) = to;
    }
    for (int i = 0; i < graph->graph->nodes.n; i++) {
        const struct onnx_node *node = ITEM(graph->graph->nodes, struct onnx_node, i);
        for (int k = 0; k < node->outputs.n; k++) {
            const char *name = *ITEM(node->outputs, const char *, k);
            struct array **slot = *name ? scope_slot(graph->constants, name) : NULL;
            if (slot && *slot == from) *slot = to;
        }
    }
}

/* Can the node be computed while loading, since all its inputs are constants? Not if it has subgraphs, which may read other
 * names. */
static bool reads_constants(const struct session_graph *graph, int n) {
    const struct onnx_node *node = ITEM(graph->graph->nodes, struct onnx_node, n);
    for (int i = 0; i < node->inputs.n; i++) {
        const char *name = *ITEM(node->inputs, const char *, i);
        const struct array *value = *name ? scope_find(graph->constants, name) : NULL;
        if (*name && (!value || value == &unknown)) return false;
    }
    for (int i = 0; i < node->attributes.n; i++)
        if (ITEM(node->attributes, struct onnx_attribute, i)->g) return false;
    return true;
}

/* A node that is computed while loading, for interpret_constant. */
struct constant_node {
    struct session_call *call;
    int i;
};

static enum sol_status interpret_constant(void *user) {
    struct constant_node *constant = user;
    return session_interpret(constant->call, constant->i);
}

/* Nodes that depend on no input are computed once, here: Constant nodes, and nodes that read only constants. A subgraph may never
 * run, so an error in it is none of the network: a call that runs the node will find it. */
static enum sol_status add_constants(struct space *space, struct session_graph *graph) {
    struct eval_context run = session_context(space, graph->shared);
    struct session_call call = {.graph = graph, .run = &run, .scope = graph->constants};
    call.done = graph->is_constant = SPACE_ARRAY(space, bool, graph->graph->nodes.n);
    for (int i = 0; i < graph->graph->nodes.n; i++) {
        struct constant_node constant = {&call, i};
        if (!reads_constants(graph, i)) continue;
        if (!graph->is_inner) TRY(session_interpret(&call, i));
        else (void)space_protect(space, interpret_constant, &constant);
    }
    return SOL_OK;
}

/* ---- Graphs ---- */

/* Outputs of the graph count as read by node `n`, which is after the last one. */
static void find_last_uses(struct space *space, struct session_graph *graph) {
    int n = graph->graph->nodes.n;
    graph->last_use = scope_new(space, NULL, graph->max_names);
    for (int i = 0; i < n; i++)
        note_uses(graph, space, ITEM(graph->graph->nodes, struct onnx_node, i), i);
    for (int i = 0; i < graph->graph->outputs.n; i++)
        note_use(graph, space, ITEM(graph->graph->outputs, struct onnx_value, i)->name, n);
}

static enum sol_status load_graph(struct space *space, struct session_graph *graph,
                                  struct session_graph *outer);

/* Only the branches of an If run at most once when their node runs. */
static enum sol_status load_inner(struct space *space, struct session_graph *outer, int i) {
    const struct onnx_node *node = ITEM(outer->graph->nodes, struct onnx_node, i);
    for (int k = 0; k < node->attributes.n; k++) {
        const struct onnx_graph *graph = ITEM(node->attributes, struct onnx_attribute, k)->g;
        if (!graph) continue;
        if (!outer->inner[i])
            outer->inner[i] = SPACE_ARRAY(space, struct session_graph, node->attributes.n);
        outer->inner[i][k] =
            (struct session_graph){.shared = outer->shared,
                                   .graph = graph,
                                   .is_inner = true,
                                   .is_loop = outer->is_loop || strcmp(node->op_type, "If") != 0};
        enum sol_status status = load_graph(space, &outer->inner[i][k], outer);
        if (status)
            fail_prefix("node %d, %.64s \"%.64s\": ", i, node->op_type,
                        node->name ? node->name : "");
        if (status) return status;
    }
    return SOL_OK;
}

static enum sol_status load_graph(struct space *space, struct session_graph *graph,
                                  struct session_graph *outer) {
    int n = graph->graph->nodes.n;
    TRY(os_stack_check(LOAD_STACK, "graphs nested too deep"));
    graph->n_names = count_defined(graph->graph);
    graph->max_names = (int)count_names(graph->graph);
    graph->names = scope_new(space, outer ? outer->names : NULL, graph->n_names);
    TRY(note_names(graph));
    graph->constants = scope_new(space, outer ? outer->constants : NULL, graph->n_names);
    graph->inner = SPACE_ARRAY(space, struct session_graph *, n);
    graph->slots = SPACE_ARRAY(space, struct partition_slot, n);
    graph->kinds = SPACE_ARRAY(space, struct node_kind, n);
    for (int i = 0; i < n; i++)
        node_kind(ITEM(graph->graph->nodes, struct onnx_node, i), &graph->kinds[i]);
    find_last_uses(space, graph);
    TRY(add_initializers(space, graph));
    if (graph->is_inner) replace_values(graph, NULL, &unknown);
    TRY(add_constants(space, graph));
    for (int i = 0; i < n; i++) TRY(load_inner(space, graph, i));
    if (graph->is_inner) replace_values(graph, &unknown, NULL);
    return SOL_OK;
}

enum sol_status session_load(struct space *space, struct bytes file, const char *folder,
                             struct session_graph *graph) {
    struct onnx_model *model = ARENA_NEW(&space->arena, struct onnx_model);
    /* Strings of the file are copied. Tensors point into `file`, which is freed with the session. */
    TRY(proto_read(&space->arena, file, model));
    TRY(onnx_check(model, &graph->shared->opset));
    TRY(function_inline(&space->arena, model));
    graph->graph = model->graph;
    graph->shared->folder = folder ? arena_strdup(&space->arena, folder) : NULL;
    TRY(check_nodes(graph->graph));
    if (count_names(graph->graph) > 1 << 26)
        return fail(SOL_EUNSUPPORTED, "more than %d names", 1 << 26);
    return load_graph(space, graph, NULL);
}

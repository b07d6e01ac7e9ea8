/*
 * Plans partitions: decides which nodes of a graph are compiled together, and when a later run may use the result again.
 *
 *   values of a call, nodes from `first` on -> partition_plan -> struct partition -> run_program (partition.c) -> values in the scope
 *
 * Planning goes through the nodes in order. A value is available when it is in the call's scope; the results of nodes in the
 * program are not, until it runs. A node whose inputs are all available, and only numbers and vectors of at most SMALL integers,
 * is interpreted at once, since its results may decide shapes. Any other node goes to the builder, with the shapes of this call as
 * constants, and so do nodes that follow from shapes alone, which it folds. Values of this call are inputs of that model. When the
 * builder reads a value (a new shape, bounds), a guard makes the program depend on it. A node that the builder refuses is
 * interpreted if its inputs are available; otherwise the partition ends before it.
 *
 * A partition keeps a list of events, in the order in which they happened:
 *
 *   GUARD  the value of this name must have this shape, and perhaps these bytes
 *   KNOWN  then this name has this value (the shape of a tensor that the program computes)
 *   EARLY  this node is interpreted, before the program runs
 *   SMALL_EARLY  the same, if the node's inputs are so small that a kernel is not worth its call (subgraphs only)
 *
 * A later call repeats the events; if all guards hold, it may run the program. Example, with x[2,3,4] and y = Neg(Reshape(t,
 * Concat(Shape(t)[0], -1))), t = Tanh(x): Tanh goes to the builder (GUARD x, its shape), Shape of t is [2,3,4] (KNOWN), Gather [0]
 * and Concat read available integers (EARLY), Reshape and Neg go to the builder. This is one program; x[5,3,4] needs another one.
 *
 * Invariants: each value in the call's scope is correct even if the partition is not used, since either the interpreter has
 * computed it or it follows from guards that hold. A node is interpreted once per call, even if planning begins again. A
 * partition does not change once it is ready.
 */
#include "partition.h"

#include <string.h>

static const struct onnx_node *node_at(const struct session_call *call, int i) {
    return ITEM(call->graph->graph->nodes, struct onnx_node, i);
}

/* A copy in the partition's arena: type and shape, and the values if `bytes` is true. */
static struct array *keep_array(struct partition *partition, const struct array *array,
                                bool bytes) {
    struct array *copy = arena_copy(&partition->arena, array, sizeof *array);
    size_t size = (size_t)array->n * types[array->type].size;
    copy->data = bytes ? arena_alloc(&partition->arena, size) : NULL;
    if (bytes && size) memcpy(copy->data, array->data, size);
    return copy;
}

/* ---- Planning ---- */

/* The state of planning: the partition, and the import of its model. */
struct partition_plan {
    struct session_call *call;
    struct partition *partition;
    const struct partition *previous; /* the newest one with the same first node; NULL: none */
    struct import im;
    bool *barred; /* by node: the builder refused it */
};

/* Is the value of the name available? Values that the program will compute are not. */
static bool is_at_hand(const struct partition_plan *plan, const char *name) {
    return !*name || scope_find(plan->call->scope, name);
}

/* Are all values available that a subgraph reads of this graph? */
static bool graph_at_hand(const struct partition_plan *plan, const struct onnx_graph *graph);

/* Are all inputs of the node available? `is_inner`: a name that the import does not know is defined inside the subgraph. */
static bool reads_at_hand(const struct partition_plan *plan, const struct onnx_node *node,
                          bool is_inner) {
    for (int i = 0; i < node->inputs.n; i++) {
        const char *name = *ITEM(node->inputs, const char *, i);
        if (!is_at_hand(plan, name) && (!is_inner || import_find(&plan->im, name))) return false;
    }
    for (int i = 0; i < node->attributes.n; i++) {
        const struct onnx_attribute *a = ITEM(node->attributes, struct onnx_attribute, i);
        if (a->g && !graph_at_hand(plan, a->g)) return false;
    }
    return true;
}

static bool graph_at_hand(const struct partition_plan *plan, const struct onnx_graph *graph) {
    for (int i = 0; i < graph->nodes.n; i++)
        if (!reads_at_hand(plan, ITEM(graph->nodes, struct onnx_node, i), true)) return false;
    for (int i = 0; i < graph->outputs.n; i++) {
        const char *name = ITEM(graph->outputs, struct onnx_value, i)->name;
        if (name && !is_at_hand(plan, name) && import_find(&plan->im, name)) return false;
    }
    return true;
}

bool partition_is_small(const struct session_call *call, int i) {
    const struct onnx_node *node = node_at(call, i);
    int64_t n = 0;
    for (int k = 0; k < node->inputs.n; k++) {
        const char *name = *ITEM(node->inputs, const char *, k);
        const struct array *x = *name ? scope_find(call->scope, name) : NULL;
        if (x && x->n > SMALL - n) return false;
        n += x ? x->n : 0;
    }
    return true;
}

/* Does the import know the value for all runs with the same shapes, so that folding it needs no guard for its bytes? */
static bool is_known(const struct partition_plan *plan, const char *name) {
    const struct import_value *v = import_find(&plan->im, name);
    return scope_is_constant(plan->call->scope, name) || (v && !v->live && v->shape_value);
}

/* Can the builder compute the node without a layer, from shapes alone? */
static bool is_foldable(const struct partition_plan *plan, const struct onnx_node *node) {
    const struct op *op = op_find(node->domain, node->op_type);
    if (!strcmp(node->op_type, "Shape") || !strcmp(node->op_type, "Size")) return true;
    for (int i = 0; i < node->inputs.n; i++) {
        const char *name = *ITEM(node->inputs, const char *, i);
        if (*name && !is_known(plan, name)) return false;
    }
    return op && op->fold != op_none;
}

/* Is the value data: not one of the few integers, a number or a short vector, that may be shapes, axes and the like? */
static bool is_data(const struct array *x) {
    return is_float(x->type) || x->n > SMALL || x->rank > 1;
}

/* Is the node, whose inputs are available, cheaper to interpret than to compile? It is if it has no data, or an input of a type that
 * is not compiled. What the builder folds is left to it; but in subgraphs, whose shapes may change with each iteration, it would
 * make a partition for each of them. */
static bool is_bookkeeping(const struct partition_plan *plan, const struct onnx_node *node) {
    static const char *const names[] = {"Identity", "Shape", "Size"};
    bool is_inner = plan->call->graph->is_inner, has_data = false;
    for (int i = 0; i < COUNT(names); i++)
        if (is_inner && !strcmp(names[i], node->op_type)) return true;
    if (!is_inner && node->inputs.n && is_foldable(plan, node)) return false;
    for (int i = 0; i < node->inputs.n; i++) {
        const char *name = *ITEM(node->inputs, const char *, i);
        const struct array *x = *name ? scope_find(plan->call->scope, name) : NULL;
        enum sol_dtype dtype;
        if (x && (!is_tensor(x) || !type_dtype(x->type, &dtype))) return true;
        has_data |= x && is_data(x);
    }
    return !has_data;
}

static void add_event(struct partition *partition, struct event event) {
    VEC_PUSH(&partition->arena, &partition->events, event);
}

/* Did the value of this name differ from the one that the previous plan, or an earlier one, was made for? So do the bounds of a
 * Slice in a loop that follow from the number of the iteration. A plan that depends on them would not be used again. */
static bool has_varied(const struct partition_plan *plan, const char *name,
                       const struct array *array) {
    if (!plan->call->graph->is_loop || !plan->previous) return false;
    for (int i = 0; i < plan->previous->events.n; i++) {
        const struct event *event = &plan->previous->events.at[i];
        if (event->kind != GUARD || strcmp(event->name, name) != 0) continue;
        return event->varies || (event->array->data && !partition_guard_holds(event, array));
    }
    return false;
}

/* Defines an available value in the import: a constant of the session with its data, a value of this run as live. Values that vary,
 * and large ones, cannot be read while planning, so the builder refuses nodes whose layers depend on them. */
static enum sol_status bring(struct partition_plan *plan, const char *name) {
    struct array *array = scope_find(plan->call->scope, name);
    enum sol_dtype dtype;
    struct data data;
    if (!array || !is_tensor(array) || !type_dtype(array->type, &dtype))
        return fail(SOL_EUNSUPPORTED, "an input of a type that is not compiled");
    data = import_describe(array, dtype);
    struct import_value *value = import_define(&plan->im, name);
    import_constant(&plan->im, &data, value);
    /* Constants need no guard: they never change, and the program packs them once. */
    if (scope_is_constant(plan->call->scope, name)) return SOL_OK;
    value->live = value->data;
    value->data = NULL;
    value->varies = array->n > SMALL || has_varied(plan, name, array);
    if (value->varies || array->rank > 1) value->shape_value = NULL;
    add_event(plan->partition,
              (struct event){.kind = GUARD, .name = name, .value = value, .varies = value->varies});
    return SOL_OK;
}

/* Stores the outputs of a node that are known values in the call's scope, and adds KNOWN events for later calls. */
static void note_known(struct partition_plan *plan, const struct onnx_node *node) {
    struct session_call *call = plan->call;
    for (int i = 0; i < node->outputs.n; i++) {
        const char *name = *ITEM(node->outputs, const char *, i);
        const struct import_value *v = *name ? import_find(&plan->im, name) : NULL;
        if (!v || v->tensor >= 0 || !(v->data || v->shape_value)) continue;
        struct array *known = import_array(call->run->space, v);
        *scope_slot(call->scope, name) = known;
        add_event(plan->partition,
                  (struct event){.kind = KNOWN,
                                 .name = name,
                                 .array = keep_array(plan->partition, known, true)});
    }
}

/* Refuses the node if an operator function has not set an output that is read. */
static enum sol_status check_read(const struct partition_plan *plan, const struct onnx_node *node) {
    for (int i = 0; i < node->outputs.n; i++) {
        const char *name = *ITEM(node->outputs, const char *, i);
        const struct import_value *v = *name ? import_find(&plan->im, name) : NULL;
        bool is_given = !v || v->tensor >= 0 || v->data || v->shape_value;
        if (!is_given && scope_find(plan->call->graph->last_use, name))
            return fail(SOL_EUNSUPPORTED, "output %d", i);
    }
    return SOL_OK;
}

/* Imports one node, after those of its inputs that the import does not know yet. */
static enum sol_status build(struct partition_plan *plan, int i) {
    const struct onnx_node *node = node_at(plan->call, i);
    for (int k = 0; k < node->inputs.n; k++) {
        const char *name = *ITEM(node->inputs, const char *, k);
        if (*name && !import_find(&plan->im, name)) TRY(bring(plan, name));
    }
    TRY(import_node(&plan->im, node));
    TRY(check_read(plan, node));
    note_known(plan, node);
    return SOL_OK;
}

/* Begins with an empty model and no events. The import uses the partition's arena, since weights may use data of operators in
 * place. */
static void start_over(struct partition_plan *plan) {
    struct partition *partition = plan->partition;
    struct arena *arena = &partition->arena;
    sol_model_free(partition->model);
    arena_fini(arena);
    arena_init(arena);
    arena->boundary = plan->call->run->space->arena.boundary;
    memset(&partition->events, 0, sizeof partition->events);
    memset(&partition->inputs, 0, sizeof partition->inputs);
    memset(&partition->outputs, 0, sizeof partition->outputs);
    partition->model = sol_model_new("part");
    if (!partition->model)
        space_stop(plan->call->run->space, fail(SOL_ENOMEM, "no memory for a model"));
    plan->im = (struct import){.arena = arena,
                               .model = partition->model,
                               .folder = plan->call->graph->shared->folder,
                               .opset = plan->call->graph->shared->opset};
    import_make_slots(&plan->im, 16 + 2 * (size_t)plan->call->graph->max_names);
    partition->n_taken = 0;
}

/* Interprets a node before the program runs, even if it comes after nodes of the program. */
static enum sol_status interpret_early(struct partition_plan *plan, int i, enum event_kind kind) {
    add_event(plan->partition, (struct event){.kind = kind, .node = i});
    return session_interpret(plan->call, i);
}

/* Did the builder refuse the node? Lack of memory and bugs are errors instead. */
static bool is_refusal(enum sol_status status) {
    return status != SOL_ENOMEM && status != SOL_EBUG;
}

/* Takes nodes until one needs results of this partition. *again: the builder refused a node, so planning must begin again, since
 * the node may have left layers in the model. */
static enum sol_status take_nodes(struct partition_plan *plan, bool *again) {
    struct session_call *call = plan->call;
    struct partition *partition = plan->partition;
    int n = call->graph->graph->nodes.n;
    *again = false;
    for (partition->end = partition->first; partition->end < n; partition->end++) {
        int i = partition->end;
        const struct onnx_node *node = node_at(call, i);
        if (call->graph->is_constant[i]) continue;
        /* Interpret an available node that needs no kernel, that the builder has refused, or that this run has interpreted. */
        bool is_ready = reads_at_hand(plan, node, false);
        bool is_early = plan->barred[i] || (is_ready && is_bookkeeping(plan, node));
        bool is_small = call->graph->is_inner && !is_early && partition_is_small(call, i);
        if (is_ready && is_early && !plan->barred[i])
            log_write(LOG_DEBUG, "node %d is interpreted: %s of few values", i, node->op_type);
        if (is_ready && (is_early || is_small || call->done[i])) {
            TRY(interpret_early(plan, i, is_small ? SMALL_EARLY : EARLY));
            continue;
        }
        if (plan->barred[i]) return i > partition->first ? SOL_OK : session_interpret(call, i);
        /* A refusal may leave layers in the model, so planning begins again without this node. */
        enum sol_status status = build(plan, i);
        if (status && !is_refusal(status)) return status;
        if (status) log_write(LOG_DEBUG, "node %d is interpreted: %s", i, sol_error());
        plan->barred[i] = status != SOL_OK;
        *again = status != SOL_OK;
        if (*again) return SOL_OK;
        partition->n_taken++;
    }
    return SOL_OK;
}

/* ---- Compiling ---- */

/* Is the name read by a node after this partition, or an output of the graph, which counts as read after the last node? */
static bool is_used_later(const struct partition_plan *plan, const char *name) {
    const struct array *last = scope_find(plan->call->graph->last_use, name);
    return last && array_int(last, 0) >= plan->partition->end;
}

/* Only tensors that are read later become outputs of the program; others may be fused away. */
static void name_outputs(struct partition_plan *plan) {
    struct partition *partition = plan->partition;
    for (int i = partition->first; i < partition->end; i++) {
        const struct onnx_node *node = node_at(plan->call, i);
        for (int k = 0; k < node->outputs.n; k++) {
            const char *name = *ITEM(node->outputs, const char *, k);
            const struct import_value *v = *name ? import_find(&plan->im, name) : NULL;
            if (!v || v->tensor < 0 || !is_used_later(plan, name)) continue;
            sol_model_output(partition->model, name, v->tensor);
            VEC_PUSH(&partition->arena, &partition->outputs, name);
        }
    }
}

/* Fills the guards at the end of planning, when it is known which values the builder has read. */
static void keep_guards(struct partition_plan *plan) {
    for (int i = 0; i < plan->partition->events.n; i++) {
        struct event *event = &plan->partition->events.at[i];
        if (event->kind != GUARD) continue;
        const struct array *array = scope_find(plan->call->scope, event->name);
        /* A value that is no input of the model can influence the program only if it was read. */
        bool is_read = !event->varies && (event->value->is_read || event->value->tensor < 0);
        event->array = keep_array(plan->partition, array, is_read);
    }
}

/* A partition without outputs has no program. */
static enum sol_status compile(struct partition_plan *plan) {
    struct partition *partition = plan->partition;
    partition->inputs.n = partition->outputs.n = 0;
    name_outputs(plan);
    keep_guards(plan);
    for (int i = 0; i < plan->im.inputs.n; i++)
        VEC_PUSH(&partition->arena, &partition->inputs, plan->im.inputs.at[i]->name);
    /* The results of all nodes are known values, or are not read. */
    if (!partition->outputs.n) return SOL_OK;
    TRY(sol_compile(partition->model, &plan->call->graph->shared->options, &partition->program));
    return sol_weights_new(partition->program, plan->im.params.at, &partition->weights);
}

/* The model could not be compiled, so all its nodes will be interpreted. */
static void bar_all(struct partition_plan *plan) {
    for (int i = plan->partition->first; i < plan->partition->end; i++) plan->barred[i] = true;
}

/* Each round ends with a plan or bars at least one more node, so the loop ends. */
static enum sol_status make_plan(struct partition_plan *plan) {
    bool again = true;
    while (again) {
        start_over(plan);
        TRY(take_nodes(plan, &again));
        if (again || !plan->partition->n_taken) continue;
        enum sol_status status = compile(plan);
        if (status && !is_refusal(status)) return status;
        if (status)
            log_write(LOG_DEBUG, "nodes %d to %d are interpreted: %s", plan->partition->first,
                      plan->partition->end - 1, sol_error());
        if (status) bar_all(plan);
        again = status != SOL_OK;
    }
    sol_model_free(plan->partition->model);
    plan->partition->model = NULL;
    return SOL_OK;
}

enum sol_status partition_plan(struct session_call *call, struct partition *partition,
                               const struct partition *previous) {
    struct partition_plan plan = {.call = call, .partition = partition, .previous = previous};
    plan.barred = SPACE_ARRAY(call->run->space, bool, call->graph->graph->nodes.n);
    return make_plan(&plan);
}

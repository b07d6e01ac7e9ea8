/*
 * Runs graphs: the outer graph of a call, and inside of it the subgraphs of control flow.
 *
 *   session_enter -> inputs into the scope -> session_run_nodes: partition_run until no node is left -> session_leave
 *
 * A node with subgraphs is interpreted: its function (eval_control.c) calls eval_subgraph, which runs the subgraph here. So runs are
 * nested: run->call is the innermost one. All of them have one space, one time limit, and the counts of the call.
 */
#include "partition.h"

#define MAX_DEPTH 100                 /* of nested graphs */
#define NODE_STACK ((size_t)24 << 10) /* stack that one node needs at most, without its subgraphs */

struct session_call *session_enter(struct eval_context *run, struct session_graph *graph) {
    struct session_call *call = SPACE_ARRAY(run->space, struct session_call, 1);
    struct scope *outer = run->call ? run->call->scope : NULL;
    call->graph = graph;
    call->run = run;
    call->outer = run->call;
    call->node = -1;
    call->scope =
        scope_new(run->space, scope_inside(run->space, graph->constants, outer), graph->n_names);
    call->done = SPACE_ARRAY(run->space, bool, graph->graph->nodes.n);
    run->call = call;
    return call;
}

void session_leave(struct session_call *call) {
    partitions_leave(call);
    call->run->call = call->outer;
}

static const struct onnx_node *node_of(const struct session_call *call) {
    return ITEM(call->graph->graph->nodes, struct onnx_node, call->node);
}

#define NODE_FORMAT "node %d, %.64s \"%.64s\""
#define NODE_ARGS(call) (call)->node, node_of(call)->op_type, node_of(call)->name ? node_of(call)->name : ""

void session_add_node(struct text *text, const struct session_call *call) {
    text_add(text, NODE_FORMAT, NODE_ARGS(call));
}

void session_fail(struct eval_context *run) {
    for (struct session_call *call; (call = run->call); session_leave(call))
        if (call->node >= 0) fail_prefix(NODE_FORMAT ": ", NODE_ARGS(call));
}

/* partition_run advances i; a partition has at least one node. */
enum sol_status session_run_nodes(struct session_call *call) {
    for (int i = 0; i < call->graph->graph->nodes.n;) TRY(partition_run(call, i, &i));
    return SOL_OK;
}

/* call->node is set while the node runs, and stays set after an error or a jump, for the message. */
enum sol_status session_interpret(struct session_call *call, int i) {
    if (call->done[i]) return SOL_OK;
    call->node = i;
    if (call->run->profile) TRY(session_profile_node(call, node_of(call)));
    else TRY(eval_node(call->run, call->scope, node_of(call), &call->graph->kinds[i]));
    call->done[i] = true;
    call->run->n_interpreted++;
    call->node = -1;
    return SOL_OK;
}

/* ---- Subgraphs ---- */

/* The subgraph `graph` of the node that the call runs. */
static struct session_graph *find_inner(const struct session_call *call,
                                        const struct onnx_graph *graph) {
    for (int k = 0; k < node_of(call)->attributes.n; k++)
        if (ITEM(node_of(call)->attributes, struct onnx_attribute, k)->g == graph)
            return &call->graph->inner[call->node][k];
    return NULL;
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

static void find_outputs(struct eval *e, const struct scope *scope, const struct onnx_graph *graph,
                         struct array **out) {
    for (int i = 0; i < graph->outputs.n; i++) {
        const char *name = ITEM(graph->outputs, struct onnx_value, i)->name;
        out[i] = name ? scope_find(scope, name) : NULL;
        eval_check(e, out[i] != NULL, "an output that no node makes");
    }
}

static void check_depth(struct eval *e) {
    int depth = 0;
    for (const struct session_call *call = e->run->call; call; call = call->outer) depth++;
    if (depth > MAX_DEPTH)
        eval_stop(e, fail(SOL_EINVAL, "graphs nested more than %d deep", MAX_DEPTH));
    enum sol_status status = os_stack_check(NODE_STACK, "graphs nested too deep");
    if (status) eval_stop(e, status);
}

/* The outer run may be planning. It gives up its turn meanwhile: subgraphs take long, and plan partitions of their own. The run and
 * all its values are freed at the end of the call, or by a loop's space_release. */
void eval_subgraph(struct eval *e, const struct onnx_graph *graph, int n_in, struct array **in,
                   struct array **out) {
    struct session_call *outer = e->run->call;
    bool is_planner = outer->is_planner;
    check_depth(e);
    partitions_end(outer);
    struct session_call *call = session_enter(e->run, find_inner(outer, graph));
    bind_inputs(e, call->scope, graph, n_in, in);
    enum sol_status status = session_run_nodes(call);
    if (status) eval_stop(e, status);
    find_outputs(e, call->scope, graph, out);
    session_leave(call);
    if (is_planner) partitions_begin(outer);
}

/*
 * Sessions: load a network that is not compiled as a whole, and run calls of it.
 *
 *   file -> load -> struct session_graph;   inputs of a call -> compute: partition_run until no node is left -> results
 *
 * The values of a call are in its own space. Results are copied, so that they stay valid after the call. Calls of one session may
 * overlap: they share constants, which never change, and partitions, which are reference counted.
 *
 * Loading does everything that does not depend on inputs. It refuses unknown operators and names that are defined twice, finds the
 * last reader of each name, reads initializers, and computes the nodes that depend on no input. Each call has a limit of memory,
 * and a limit of time for loops, so that no file can exhaust the machine.
 */
#include "session.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define LOOP_SECONDS 60 /* the default of SOL_LOOP_SECONDS */

/* After loading, only the counts change, and the partitions, under the graph's lock. */
struct sol_session {
    char *file;
    struct space space; /* the graph, constants, names */
    struct session_graph graph;
    VEC(const struct onnx_value *) inputs;
    atomic_int n_compiled, n_interpreted; /* of the last call that ended */
};

/* Values and all that they point to, in a space that sol_results_free frees. */
struct sol_results {
    struct space space;
    int n;
    struct sol_value **values;
};

/* A positive number in an environment variable, or `default_value`. */
static double setting(enum env variable, double default_value) {
    const char *text = env_get(variable);
    double value;
    return text && text_parse_double(&text, &value) && value > 0 ? value : default_value;
}

/* The limit in bytes: SOL_CALL_MEMORY, which is in MiB; by default half of the machine's memory. */
static int64_t memory_limit(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    double half = pages > 0 && size > 0 ? (double)pages * (double)size / 2 : 0x1p32;
    return (int64_t)fmin(setting(ENV_SOL_CALL_MEMORY, half / 0x1p20), 0x1p40) * ((int64_t)1 << 20);
}

/* Calls `request(user)`. Each error in it that jumps to the boundary of `space` ends here, as a status. */
static enum sol_status protect(struct space *space, enum sol_status (*request)(void *),
                               void *user) {
    jmp_buf boundary;
    volatile enum sol_status status;
    space->arena.boundary = &boundary;
    if (setjmp(boundary)) status = space->status ? space->status : SOL_ENOMEM;
    else status = request(user);
    space->arena.boundary = NULL;
    return status;
}

/* ---- Loading ---- */

/* Refuses operators that SOL can neither compile nor interpret, also in subgraphs. */
static enum sol_status check_nodes(const struct onnx_graph *graph) {
    for (int i = 0; i < graph->nodes.n; i++) {
        const struct onnx_node *node = ITEM(graph->nodes, struct onnx_node, i);
        const char *domain = node->domain ? node->domain : "", *type = node->op_type;
        bool is_standard = !*domain || !strcmp(domain, "ai.onnx");
        if (!operator_find(domain, type) && !(is_standard && type && op_find(type)))
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

/* Enters a name. `mark` tells what kind of definition it is. A second definition is an error, unless the first has the mark
 * `may`. */
static enum sol_status note_name(struct scope *seen, const char *name, struct array *mark,
                                 const struct array *may) {
    if (!name || !*name) return SOL_OK;
    const struct array *known = scope_find(seen, name);
    if (known && known != may) return fail(SOL_EINVAL, "\"%.64s\" is made twice", name);
    *scope_slot(seen, name) = mark;
    return SOL_OK;
}

/* ONNX requires that each name of a graph is defined once, so that a scope has one value per name. An initializer may have the
 * name of an input, whose default it is. Subgraphs have their own names. */
static enum sol_status check_names(struct space *space, const struct onnx_graph *graph) {
    static struct array given, input, made;
    struct scope *seen = scope_new(space, NULL, scope_count_names(graph));
    for (int i = 0; i < graph->initializers.n; i++)
        TRY(note_name(seen, ITEM(graph->initializers, struct onnx_tensor, i)->name, &given, NULL));
    for (int i = 0; i < graph->inputs.n; i++)
        TRY(note_name(seen, ITEM(graph->inputs, struct onnx_value, i)->name, &input, &given));
    for (int i = 0; i < graph->nodes.n; i++) {
        const struct onnx_node *node = ITEM(graph->nodes, struct onnx_node, i);
        for (int k = 0; k < node->outputs.n; k++)
            TRY(note_name(seen, *ITEM(node->outputs, const char *, k), &made, NULL));
        for (int k = 0; k < node->attributes.n; k++) {
            const struct onnx_graph *inner = ITEM(node->attributes, struct onnx_attribute, k)->g;
            if (inner) TRY(check_names(space, inner));
        }
    }
    return SOL_OK;
}

/* The time limit of loops starts here. */
static void run_init(struct session_graph *graph, struct space *space, struct eval_context *out) {
    *out =
        (struct eval_context){.space = space,
                              .folder = graph->folder,
                              .opset = graph->opset,
                              .node = -1,
                              .deadline = os_now() + setting(ENV_SOL_LOOP_SECONDS, LOOP_SECONDS)};
}

/* Initializers are read once; all calls share them. */
static enum sol_status add_initializers(struct sol_session *session) {
    const struct onnx_graph *graph = session->graph.graph;
    if (graph->sparse.n) return fail(SOL_EUNSUPPORTED, "sparse initializers");
    for (int i = 0; i < graph->initializers.n; i++) {
        const struct onnx_tensor *tensor = ITEM(graph->initializers, struct onnx_tensor, i);
        struct array *array;
        if (!tensor->name || !*tensor->name)
            return fail(SOL_EINVAL, "an initializer without a name");
        enum sol_status status = array_read(&session->space, session->graph.folder, tensor, &array);
        if (status) fail_prefix("initializer \"%.64s\": ", tensor->name);
        if (status) return status;
        *scope_slot(session->graph.constants, tensor->name) = array;
    }
    return SOL_OK;
}

/* Can the node be computed while loading, since all its inputs are constants? Not if it has subgraphs, which may read other
 * names. */
static bool reads_constants(const struct session_graph *graph, const struct onnx_node *node) {
    for (int i = 0; i < node->inputs.n; i++) {
        const char *name = *ITEM(node->inputs, const char *, i);
        if (*name && !scope_find(graph->constants, name)) return false;
    }
    for (int i = 0; i < node->attributes.n; i++)
        if (ITEM(node->attributes, struct onnx_attribute, i)->g) return false;
    return operator_find(node->domain, node->op_type) != NULL;
}

/* Nodes that depend on no input are computed once, here: Constant nodes, and nodes that read only constants. */
static enum sol_status add_constants(struct sol_session *session) {
    struct session_graph *graph = &session->graph;
    struct session_call call = {.graph = graph, .scope = graph->constants};
    run_init(graph, &session->space, &call.run);
    call.done = graph->is_constant = SPACE_ARRAY(&session->space, bool, graph->graph->nodes.n);
    for (int i = 0; i < graph->graph->nodes.n; i++) {
        const struct onnx_node *node = ITEM(graph->graph->nodes, struct onnx_node, i);
        if (reads_constants(graph, node)) TRY(session_interpret(&call, i));
    }
    return SOL_OK;
}

/* Before IR version 4, initializers were listed among the inputs, too. */
static enum sol_status find_inputs(struct sol_session *session) {
    const struct onnx_graph *graph = session->graph.graph;
    for (int i = 0; i < graph->inputs.n; i++) {
        const struct onnx_value *input = ITEM(graph->inputs, struct onnx_value, i);
        if (!input->name || !*input->name) return fail(SOL_EINVAL, "input %d has no name", i);
        if (!scope_find(session->graph.constants, input->name))
            VEC_PUSH(&session->space.arena, &session->inputs, input);
    }
    return SOL_OK;
}

/* Arguments of load, which is called by protect. */
struct loading {
    struct sol_session *session;
    struct bytes file;
    const char *folder;
};

/* Finds all errors that do not depend on the inputs of a call. */
static enum sol_status load(void *user) {
    struct loading *loading = user;
    struct sol_session *session = loading->session;
    struct space *space = &session->space;
    struct session_graph *graph = &session->graph;
    struct onnx_model *model = ARENA_NEW(&space->arena, struct onnx_model);
    /* Strings of the file are copied. Tensors point into `file`, which is freed with the session. */
    TRY(proto_read(&space->arena, loading->file, model));
    TRY(onnx_check(model, &graph->opset));
    TRY(function_inline(&space->arena, model));
    graph->graph = model->graph;
    graph->folder = loading->folder ? arena_strdup(&space->arena, loading->folder) : NULL;
    TRY(check_nodes(graph->graph));
    int64_t max = count_names(graph->graph);
    if (max > 1 << 26) return fail(SOL_EUNSUPPORTED, "more than %d names", 1 << 26);
    TRY(check_names(space, graph->graph));
    /* Scopes cannot grow, so their names are counted first. */
    graph->constants = scope_new(space, NULL, (int)max);
    graph->last_use = scope_new(space, NULL, (int)max);
    /* Outputs of the graph count as read by node `n`, which is after the last one. */
    int n = graph->graph->nodes.n;
    for (int i = 0; i < n; i++)
        note_uses(graph, space, ITEM(graph->graph->nodes, struct onnx_node, i), i);
    for (int i = 0; i < graph->graph->outputs.n; i++)
        note_use(graph, space, ITEM(graph->graph->outputs, struct onnx_value, i)->name, n);
    TRY(add_initializers(session));
    TRY(add_constants(session));
    return find_inputs(session);
}

void sol_session_free(struct sol_session *session) {
    if (!session) return;
    partitions_free(&session->graph);
    arena_fini(&session->space.arena);
    mem_free(session->file);
    mem_free(session);
}

/* Takes ownership of `file`, which is mem_alloc'ed. */
static enum sol_status open_file(char *file, size_t size, const char *folder,
                                 const struct sol_options *options, struct sol_session **out) {
    struct sol_session *session = mem_alloc(sizeof *session, 64);
    if (!session) {
        mem_free(file);
        return fail(SOL_ENOMEM, "no memory for an ONNX model");
    }
    session->file = file;
    lock_init(&session->graph.lock);
    space_init(&session->space, memory_limit());
    if (options) session->graph.options = *options;
    struct loading loading = {session, {(const uint8_t *)file, size}, folder};
    enum sol_status status = protect(&session->space, load, &loading);
    if (status) sol_session_free(session);
    else *out = session;
    return status;
}

enum sol_status sol_session_parse(const void *data, size_t size, const char *folder,
                                  const struct sol_options *options, struct sol_session **out) {
    if (!data && size) return fail(SOL_EINVAL, "there are no bytes");
    char *file = mem_realloc(NULL, size + 1);
    if (!file) return fail(SOL_ENOMEM, "no memory for an ONNX model of %zu bytes", size);
    if (size) memcpy(file, data, size);
    return open_file(file, size, folder, options, out);
}

enum sol_status sol_session_read(const char *path, const struct sol_options *options,
                                 struct sol_session **out) {
    char folder[4096], *file;
    size_t size;
    if (!path || !onnx_folder(path, folder)) return fail(SOL_EINVAL, "there is no such path");
    TRY(os_read_any(path, &file, &size)); /* its message has the path */
    enum sol_status status = open_file(file, size, folder, options, out);
    if (status) fail_prefix("%.512s: ", path);
    return status;
}

/* ---- Inputs and outputs ---- */

/* NULL when the rank of the value is unknown or too large. */
static const struct onnx_shape *find_shape(const struct onnx_value *value) {
    const struct onnx_shape *shape =
        value->type && value->type->tensor ? value->type->tensor->shape : NULL;
    return shape && shape->dims.n <= SOL_MAX_RANK ? shape : NULL;
}

/* False for a mark such as "?", which some writers use instead of a name of an open size. */
static bool is_name(const char *param) {
    for (; param && *param; param++)
        if (isalnum((unsigned char)*param) || (unsigned char)*param >= 0x80) return true;
    return false;
}

/* The name of an open dim: dim at % SOL_MAX_RANK of input at / SOL_MAX_RANK. NULL when it has none. */
static const char *name_at(const struct sol_session *session, int64_t at) {
    const bool is_input = at >= 0 && at / SOL_MAX_RANK < session->inputs.n;
    const struct onnx_shape *shape =
        is_input ? find_shape(session->inputs.at[at / SOL_MAX_RANK]) : NULL;
    if (!shape || at % SOL_MAX_RANK >= shape->dims.n) return NULL;
    const struct onnx_dim *dim = ITEM(shape->dims, struct onnx_dim, at % SOL_MAX_RANK);
    return dim->value || !is_name(dim->param) ? NULL : dim->param;
}

/* The number of a named size is -2 - at, where `at` is its first occurrence among the inputs (name_at). */
const char *sol_session_size_name(const struct sol_session *session, int64_t dim) {
    return dim < -1 ? name_at(session, -2 - dim) : NULL;
}

static int64_t number_name(const struct sol_session *session, const char *param) {
    for (int64_t at = 0; is_name(param) && at < (int64_t)session->inputs.n * SOL_MAX_RANK; at++) {
        const char *name = name_at(session, at);
        if (name && !strcmp(name, param)) return -2 - at;
    }
    return -1;
}

/* Returns the name; sets type, rank and dims. Open dims become -1. */
static const char *tell(const struct onnx_value *value, int *type, int *rank, int64_t *dim) {
    const struct onnx_tensor_type *tensor = value->type ? value->type->tensor : NULL;
    const struct onnx_shape *shape = find_shape(value);
    *type = tensor && type_is_known(tensor->elem_type) ? (int)tensor->elem_type : 0;
    *rank = shape ? shape->dims.n : -1;
    for (int d = 0; d < *rank; d++) {
        const int64_t *size = ITEM(shape->dims, struct onnx_dim, d)->value;
        dim[d] = size && *size >= 0 ? *size : -1;
    }
    return value->name ? value->name : "";
}

static const char *tell_names(const struct sol_session *session, const struct onnx_value *value,
                              int *type, int *rank, int64_t *dim) {
    const char *name = tell(value, type, rank, dim);
    for (int d = 0; d < *rank; d++)
        if (dim[d] < 0)
            dim[d] = number_name(session, ITEM(find_shape(value)->dims, struct onnx_dim, d)->param);
    return name;
}

int sol_session_n_inputs(const struct sol_session *session) { return session->inputs.n; }

int sol_session_n_outputs(const struct sol_session *session) {
    return session->graph.graph->outputs.n;
}

const char *sol_session_input(const struct sol_session *session, int i, int *type, int *rank,
                              int64_t dim[SOL_MAX_RANK]) {
    return tell_names(session, session->inputs.at[i], type, rank, dim);
}

const char *sol_session_output(const struct sol_session *session, int i, int *type, int *rank,
                               int64_t dim[SOL_MAX_RANK]) {
    return tell_names(session, ITEM(session->graph.graph->outputs, struct onnx_value, i), type,
                      rank, dim);
}

void sol_session_count(const struct sol_session *session, int *compiled, int *interpreted) {
    *compiled = atomic_load(&session->n_compiled);
    *interpreted = atomic_load(&session->n_interpreted);
}

/* ---- A call ---- */

/* A caller's value as an array that points to the same memory. */
static struct array *borrow(struct space *space, const struct sol_value *value, int depth) {
    /* Values are nested once or twice; the limit stops at a cycle of pointers. */
    if (depth > 8 || (value->type > 0 && !type_is_known(value->type)) ||
        value->type < SOL_VALUE_SEQUENCE || value->rank < 0 || value->rank > SOL_MAX_RANK)
        space_stop(space,
                   fail(SOL_EINVAL, "a value of type %d, rank %d", value->type, value->rank));
    struct array *array = SPACE_ARRAY(space, struct array, 1);
    *array = (struct array){.type = (enum type)value->type, .rank = value->rank, .n = value->n};
    if (value->type > 0 && !dims_count(value->rank, value->dim, &array->n))
        space_stop(space, fail(SOL_EINVAL, "a value of more elements than can be counted"));
    memcpy(array->dim, value->dim, sizeof array->dim);
    array->data = (void *)(uintptr_t)value->data;
    if (array->n > 0 && !array->data) space_stop(space, fail(SOL_EINVAL, "a value without data"));
    if (value->type != SOL_VALUE_SEQUENCE) return array;
    struct array **items = SPACE_ARRAY(space, struct array *, value->n);
    for (int64_t i = 0; i < value->n; i++)
        items[i] = borrow(space, ((const struct sol_value *const *)value->data)[i], depth + 1);
    array->data = items;
    return array;
}

/* struct sol_string and struct bytes have the same layout. */
_Static_assert(sizeof(struct sol_string) == sizeof(struct bytes), "strings");

/* A deep copy, since an array of the call may share memory with inputs, constants or partitions. */
static struct sol_value *hand_out(struct space *space, const struct array *array) {
    struct sol_value *value = SPACE_ARRAY(space, struct sol_value, 1);
    *value = (struct sol_value){.type = array->type, .rank = array->rank, .n = array->n};
    memcpy(value->dim, array->dim, sizeof value->dim);
    if (array->type == TYPE_SEQUENCE) {
        struct sol_value **items = SPACE_ARRAY(space, struct sol_value *, array->n);
        for (int64_t i = 0; i < array->n; i++)
            items[i] = hand_out(space, ((struct array **)array->data)[i]);
        value->data = items;
    } else if (array->type != TYPE_NONE) {
        void *copy = space_alloc(space, array->n, types[array->type].size);
        memcpy(copy, array->data, (size_t)array->n * types[array->type].size);
        for (int64_t i = 0; i < array->n && array->type == TYPE_STRING; i++) {
            struct bytes *s = (struct bytes *)copy + i;
            s->at = s->size ? arena_copy(&space->arena, s->at, s->size) : (const uint8_t *)"";
        }
        value->data = copy;
    }
    return value;
}

/* Checks type and shape as far as the file declares them. */
static enum sol_status check_input(const struct onnx_value *input, const struct array *array) {
    int type, rank;
    int64_t dim[SOL_MAX_RANK];
    tell(input, &type, &rank, dim);
    if (!type) return SOL_OK;
    if ((int)array->type != type)
        return fail(SOL_EINVAL, "it is %s, not %s",
                    is_tensor(array) ? types[array->type].name : "no tensor", types[type].name);
    bool fits = rank < 0 || rank == array->rank;
    for (int d = 0; fits && d < rank; d++) fits = dim[d] < 0 || dim[d] == array->dim[d];
    return fits ? SOL_OK : fail(SOL_EINVAL, "it has another shape than the file says");
}

/* A running call: its inputs, its state and its results. */
struct request {
    struct sol_session *session;
    const struct sol_value *const *inputs;
    struct session_call call;
    struct space space;
    struct sol_results *results;
};

/* An optional input that is left out gets no value. */
static enum sol_status bind_inputs(struct request *request) {
    for (int i = 0; i < request->session->inputs.n; i++) {
        const struct onnx_value *input = request->session->inputs.at[i];
        if (!request->inputs[i]) continue;
        struct array *array = borrow(&request->space, request->inputs[i], 0);
        enum sol_status status = check_input(input, array);
        if (status) fail_prefix("input %.64s: ", input->name);
        if (status) return status;
        *scope_slot(request->call.scope, input->name) = array;
    }
    return SOL_OK;
}

/* Copies the results to their own space, so that the space of the call can be freed. */
static enum sol_status output_results(void *user) {
    struct request *request = user;
    const struct onnx_graph *graph = request->session->graph.graph;
    struct sol_results *results = request->results;
    results->values = SPACE_ARRAY(&results->space, struct sol_value *, graph->outputs.n);
    for (int i = 0; i < graph->outputs.n; i++) {
        const char *name = ITEM(graph->outputs, struct onnx_value, i)->name;
        const struct array *array = name ? scope_find(request->call.scope, name) : NULL;
        if (!array)
            return fail(SOL_EINVAL, "output \"%.64s\" is made by no node", name ? name : "");
        results->values[results->n++] = hand_out(&results->space, array);
    }
    return SOL_OK;
}

/* Runs partition after partition until no node is left. */
static enum sol_status compute(void *user) {
    struct request *request = user;
    struct session_graph *graph = &request->session->graph;
    struct session_call *call = &request->call;
    call->graph = graph;
    call->scope = scope_new(&request->space, graph->constants, (int)count_names(graph->graph));
    run_init(graph, &request->space, &call->run);
    call->done = SPACE_ARRAY(&request->space, bool, graph->graph->nodes.n);
    TRY(bind_inputs(request));
    /* partition_run advances i; a partition has at least one node. */
    for (int i = 0; i < graph->graph->nodes.n;) TRY(partition_run(call, i, &i));
    return SOL_OK;
}

/* run.node is set while the node runs, and stays set after an error or a jump, for the message. */
enum sol_status session_interpret(struct session_call *call, int i) {
    const struct onnx_node *node = ITEM(call->graph->graph->nodes, struct onnx_node, i);
    if (call->done[i]) return SOL_OK;
    call->run.node = i;
    enum sol_status status = eval_node(&call->run, call->scope, node);
    if (status) return status;
    call->done[i] = true;
    call->n_interpreted++;
    call->run.node = -1;
    return SOL_OK;
}

/* Puts the node's number, operator and name in front of the message, also after a jump. */
static void name_node(const struct session_call *call) {
    if (call->run.node < 0) return;
    const struct onnx_node *node =
        ITEM(call->graph->graph->nodes, struct onnx_node, call->run.node);
    fail_prefix("node %d, %.64s \"%.64s\": ", call->run.node, node->op_type,
                node->name ? node->name : "");
}

/* Results are copied under a second boundary, since they have another space. */
static enum sol_status run_call(struct request *request) {
    request->call.run.node = -1;
    enum sol_status status = protect(&request->space, compute, request);
    if (status && request->call.graph) name_node(&request->call);
    if (!status) status = protect(&request->results->space, output_results, request);
    partitions_leave(&request->call);
    atomic_store(&request->session->n_compiled, request->call.n_compiled);
    atomic_store(&request->session->n_interpreted, request->call.n_interpreted);
    return status;
}

enum sol_status sol_session_run(struct sol_session *session, const struct sol_value *const *inputs,
                                struct sol_results **out) {
    struct request request = {.session = session, .inputs = inputs};
    request.results = mem_alloc(sizeof *request.results, 64);
    if (!request.results) return fail(SOL_ENOMEM, "no memory for results");
    space_init(&request.space, memory_limit());
    space_init(&request.results->space, memory_limit());
    /* Jumps end in run_call, so both spaces are always freed or returned. */
    enum sol_status status = run_call(&request);
    arena_fini(&request.space.arena);
    if (status) sol_results_free(request.results);
    else *out = request.results;
    return status;
}

const struct sol_value *sol_results_get(const struct sol_results *results, int i) {
    return results->values[i];
}

void sol_results_free(struct sol_results *results) {
    if (!results) return;
    arena_fini(&results->space.arena);
    mem_free(results);
}

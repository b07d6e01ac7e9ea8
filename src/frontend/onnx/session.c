/*
 * Sessions: the public functions.
 *
 *   file -> session_load -> struct session_graph;   inputs of a call -> session_run_nodes -> results
 *
 * The values of a call are in its own space. Results are copied, so that they stay valid after the call. Calls of one session may
 * overlap: they share constants, which never change, and partitions, which are reference counted. Each call has a limit of memory,
 * and a limit of time for loops, so that no file can exhaust the machine.
 */
#include "session.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define LOOP_SECONDS 60 /* the default of SOL_LOOP_SECONDS */

/* After loading, only the counts change, and the partitions, under the lock. */
struct sol_session {
    char *file;
    struct space space; /* the graph, constants, names */
    struct session_shared shared;
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

struct eval_context session_context(struct space *space, struct session_shared *shared) {
    return (struct eval_context){.space = space,
                                 .folder = shared->folder,
                                 .opset = shared->opset,
                                 .deadline =
                                     os_now() + setting(ENV_SOL_LOOP_SECONDS, LOOP_SECONDS)};
}

/* ---- Loading ---- */

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

/* Arguments of load, which is called by session_protect. */
struct loading {
    struct sol_session *session;
    struct bytes file;
    const char *folder;
};

/* Finds all errors that do not depend on the inputs of a call. */
static enum sol_status load(void *user) {
    struct loading *loading = user;
    struct sol_session *session = loading->session;
    TRY(session_load(&session->space, loading->file, loading->folder, &session->graph));
    return find_inputs(session);
}

void sol_session_free(struct sol_session *session) {
    if (!session) return;
    partitions_free(&session->shared);
    eval_free_singles(&session->shared.singles);
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
    lock_init(&session->shared.lock);
    session->graph.shared = &session->shared;
    space_init(&session->space, memory_limit());
    if (options) session->shared.options = *options;
    struct loading loading = {session, {(const uint8_t *)file, size}, folder};
    enum sol_status status = space_protect(&session->space, load, &loading);
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

/* The name of an open dim: dim at % SOL_MAX_RANK of input at / SOL_MAX_RANK. NULL when it has none. */
static const char *name_at(const struct sol_session *session, int64_t at) {
    const bool is_input = at >= 0 && at / SOL_MAX_RANK < session->inputs.n;
    const struct onnx_shape *shape =
        is_input ? find_shape(session->inputs.at[at / SOL_MAX_RANK]) : NULL;
    if (!shape || at % SOL_MAX_RANK >= shape->dims.n) return NULL;
    const struct onnx_dim *dim = ITEM(shape->dims, struct onnx_dim, at % SOL_MAX_RANK);
    return dim->value || !proto_is_name(dim->param) ? NULL : dim->param;
}

/* The number of a named size is -2 - at, where `at` is its first occurrence among the inputs (name_at). */
const char *sol_session_size_name(const struct sol_session *session, int64_t dim) {
    return dim < -1 ? name_at(session, -2 - dim) : NULL;
}

static int64_t number_name(const struct sol_session *session, const char *param) {
    for (int64_t at = 0; proto_is_name(param) && at < (int64_t)session->inputs.n * SOL_MAX_RANK;
         at++) {
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
        value->type < SOL_VALUE_MAP || value->rank < 0 || value->rank > SOL_MAX_RANK)
        space_stop(space,
                   fail(SOL_EINVAL, "a value of type %d, rank %d", value->type, value->rank));
    struct array *array = SPACE_ARRAY(space, struct array, 1);
    *array = (struct array){.type = (enum type)value->type, .rank = value->rank, .n = value->n};
    if (value->type > 0 && !dims_count(value->rank, value->dim, &array->n))
        space_stop(space, fail(SOL_EINVAL, "a value of more elements than can be counted"));
    memcpy(array->dim, value->dim, sizeof array->dim);
    array->data = (void *)(uintptr_t)value->data;
    if (array->n > 0 && !array->data) space_stop(space, fail(SOL_EINVAL, "a value without data"));
    if (!is_list(array)) return array;
    if (array->type == TYPE_MAP && array->n != 2)
        space_stop(space, fail(SOL_EINVAL, "a map without keys and values"));
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
    if (is_list(array)) {
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
    struct session_profile *profile; /* NULL: the call is not profiled */
    struct eval_context run;
    struct space space;
    struct sol_results *results;
};

/* An optional input that is left out gets no value. */
static enum sol_status bind_inputs(struct request *request, struct scope *scope) {
    for (int i = 0; i < request->session->inputs.n; i++) {
        const struct onnx_value *input = request->session->inputs.at[i];
        if (!request->inputs[i]) continue;
        struct array *array = borrow(&request->space, request->inputs[i], 0);
        enum sol_status status = check_input(input, array);
        if (status) fail_prefix("input %.64s: ", input->name);
        if (status) return status;
        *scope_slot(scope, input->name) = array;
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
        const struct array *array = name ? scope_find(request->run.call->scope, name) : NULL;
        if (!array)
            return fail(SOL_EINVAL, "output \"%.64s\" is made by no node", name ? name : "");
        results->values[results->n++] = hand_out(&results->space, array);
    }
    return SOL_OK;
}

static enum sol_status compute(void *user) {
    struct request *request = user;
    if (request->run.profile) request->run.profile->arena.boundary = request->space.arena.boundary;
    struct session_call *call = session_enter(&request->run, &request->session->graph);
    TRY(bind_inputs(request, call->scope));
    return session_run_nodes(call);
}

/* Results are copied under a second boundary, since they have another space. */
static enum sol_status run_call(struct request *request) {
    struct sol_session *session = request->session;
    request->run = session_context(&request->space, &session->shared);
    request->run.profile = request->profile;
    request->run.singles = &session->shared.singles;
    request->run.number = partitions_number(&session->shared);
    enum sol_status status = space_protect(&request->space, compute, request);
    if (!status) status = space_protect(&request->results->space, output_results, request);
    session_fail(&request->run);
    atomic_store(&session->n_compiled, request->run.n_compiled);
    atomic_store(&session->n_interpreted, request->run.n_interpreted);
    return status;
}

static enum sol_status run_session(struct sol_session *session,
                                   const struct sol_value *const *inputs,
                                   struct session_profile *profile, struct sol_results **out) {
    struct request request = {.session = session, .inputs = inputs, .profile = profile};
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

enum sol_status sol_session_run(struct sol_session *session, const struct sol_value *const *inputs,
                                struct sol_results **out) {
    return run_session(session, inputs, NULL, out);
}

enum sol_status sol_session_profile(struct sol_session *session,
                                    const struct sol_value *const *inputs,
                                    void (*visit)(void *user, const struct sol_step_time *step),
                                    void *user) {
    struct session_profile profile = {0};
    struct sol_results *results;
    arena_init(&profile.arena);
    enum sol_status status = run_session(session, inputs, &profile, &results);
    if (!status) session_profile_visit(&profile, visit, user);
    if (!status) sol_results_free(results);
    arena_fini(&profile.arena);
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

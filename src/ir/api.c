/*
 * The builder of sol.h. A sol_model owns an arena and the model in it.
 *
 *   sol_model_* (sol.h)  ->  [this file], api_gradients.c  ->  ir_add, ir_add_source (model.c), ir_parse (text.c)
 *
 * Errors are sticky: the first one is kept with its message, and later calls change nothing. Every public function is a
 * boundary at which running out of memory ends (base.h); it is kept like any other error.
 */
#include "ir/api.h"
#include "run/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct model *ir_user_model(const struct sol_model *user) { return user->m; }

void api_keep_mistake(struct sol_model *user, enum sol_status status) {
    if (user->status || !status) return;
    user->status = status;
    snprintf(user->message, sizeof user->message, "%s", sol_error());
}

BODY struct sol_model *new_user_model(void) {
    struct sol_model *user = mem_alloc(sizeof *user, 64);
    if (user) arena_init(&user->arena);
    else (void)fail(SOL_ENOMEM, "no memory for a model");
    return user;
}

BODY enum sol_status start_model(struct sol_model *user, const char *name) {
    enum sol_status status = ir_check_name(name);
    user->m = ir_model_new(&user->arena, status ? "" : name);
    return status;
}

struct sol_model *sol_model_new(const char *name) {
    struct sol_model *user = new_user_model();
    if (!user) return NULL;
    BUILDER_BOUNDARY(user, start_model(user, name));
    if (user->m) return user;
    sol_model_free(user);
    return NULL;
}

void sol_model_free(struct sol_model *user) {
    if (!user) return;
    for (int i = 0; user->m && i < user->m->hosts.n; i++)
        host_release(user->m->hosts.at[i].function);
    arena_fini(&user->arena);
    mem_free(user);
}

/* ---- Building ---- */

BODY enum sol_status add_symbol(struct sol_model *user, const char *name, int64_t least,
                                int64_t multiple, int64_t *out) {
    int number;
    TRY(ir_check_name(name));
    TRY(ir_add_symbol(user->m, arena_strdup(&user->arena, name ? name : ""), least, multiple,
                      &number));
    *out = -1 - number;
    return SOL_OK;
}

int64_t sol_model_symbol_limited(struct sol_model *user, const char *name, int64_t least,
                                 int64_t multiple) {
    int64_t symbol = -1;
    BUILDER_BOUNDARY(user, add_symbol(user, name, least, multiple, &symbol));
    return symbol;
}

int64_t sol_model_symbol_multiple(struct sol_model *user, const char *name, int64_t multiple) {
    return sol_model_symbol_limited(user, name, 0, multiple);
}

int64_t sol_model_symbol(struct sol_model *user, const char *name) {
    return sol_model_symbol_multiple(user, name, 1);
}

sol_tensor api_hand_out(struct sol_model *user, struct tensor *t) {
    VEC_PUSH(&user->arena, &user->tensors, t);
    return user->tensors.n - 1;
}

static enum sol_status read_dims(struct model *m, int rank, const int64_t *dim, struct size *out) {
    if (rank < 0 || rank > SOL_MAX_RANK)
        return fail(SOL_EINVAL, "rank %d; it may be 0 to %d", rank, SOL_MAX_RANK);
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 0 && -1 - dim[i] >= m->n_symbols)
            return fail(SOL_EINVAL, "dim %d is %lld", i, (long long)dim[i]);
        out[i] = dim[i] < 0 ? size_free(&m->quotients, (int)(-1 - dim[i])) : size_const(dim[i]);
    }
    /* ir_check_shape may return SOL_EUNSUPPORTED, for the output of a layer. A declared shape is a bad argument. */
    return ir_check_shape(m, rank, out) ? SOL_EINVAL : SOL_OK;
}

BODY enum sol_status add_source(struct sol_model *user, enum layer_kind kind, const char *name,
                                enum sol_dtype dtype, int rank, const int64_t *dim,
                                sol_tensor *out) {
    struct size size[SOL_MAX_RANK];
    TRY(ir_check_name(name));
    enum sol_status status = (unsigned)dtype < SOL_N_DTYPES
                                 ? read_dims(user->m, rank, dim, size)
                                 : fail(SOL_EINVAL, "unknown type %d", (int)dtype);
    if (status) fail_prefix("%s \"%s\": ", layer_infos[kind].name, name ? name : "");
    else *out = api_hand_out(user, ir_add_source(user->m, kind, name, dtype, rank, size));
    return status;
}

sol_tensor sol_model_input(struct sol_model *user, const char *name, enum sol_dtype dtype, int rank,
                           const int64_t *dim) {
    sol_tensor out = POISON;
    BUILDER_BOUNDARY(user, add_source(user, LAYER_input, name, dtype, rank, dim, &out));
    return out;
}

sol_tensor sol_model_param(struct sol_model *user, const char *name, enum sol_dtype dtype, int rank,
                           const int64_t *dim) {
    sol_tensor out = POISON;
    BUILDER_BOUNDARY(user, add_source(user, LAYER_param, name, dtype, rank, dim, &out));
    return out;
}

struct tensor *api_get_tensor(const struct sol_model *user, sol_tensor handle) {
    return user && handle >= 0 && handle < user->tensors.n ? user->tensors.at[handle] : NULL;
}

enum sol_status api_get_tensors(struct sol_model *user, const char *kind, int n_in,
                                const sol_tensor *in, struct tensor ***out) {
    if (n_in < 0) return fail(SOL_EINVAL, "%s: %d inputs", kind, n_in);
    *out = ARENA_ARRAY(&user->arena, struct tensor *, n_in + 1);
    for (int i = 0; i < n_in; i++)
        if (!((*out)[i] = api_get_tensor(user, in[i])))
            return fail(SOL_EINVAL, "%s: input %d is no tensor", kind, i);
    return SOL_OK;
}

static enum sol_status build_layer(struct sol_model *user, const char *kind_name, int n_in,
                                   const sol_tensor *in, const char *attributes, const char *origin,
                                   sol_tensor *out) {
    enum layer_kind kind = ir_find_kind(kind_name ? kind_name : "");
    if (kind == N_LAYER_KINDS || kind == LAYER_input || kind == LAYER_param || kind == LAYER_host)
        return fail(SOL_EINVAL, "there is no layer \"%.64s\" to add", kind_name ? kind_name : "");
    struct tensor **tensors, *result;
    TRY(api_get_tensors(user, kind_name, n_in, in, &tensors));
    struct attr attr;
    TRY(ir_parse_attr(attributes ? attributes : "", &layer_infos[kind], &user->m->quotients,
                      &attr));
    TRY(ir_add(user->m, kind, n_in, tensors, &attr, origin, &result));
    *out = api_hand_out(user, result);
    return SOL_OK;
}

BODY enum sol_status add_layer(struct sol_model *user, const char *kind, int n_in,
                               const sol_tensor *in, const char *attributes, const char *origin,
                               sol_tensor *out) {
    TRY(ir_check_name(origin));
    enum sol_status status = build_layer(user, kind, n_in, in, attributes, origin, out);
    /* Messages of ir_add contain the origin already; messages of errors before it do not. */
    if (status && origin && !strstr(sol_error(), origin)) fail_prefix("%s: ", origin);
    return status;
}

sol_tensor sol_model_layer(struct sol_model *user, const char *kind, int n_in, const sol_tensor *in,
                           const char *attributes, const char *origin) {
    sol_tensor out = POISON;
    BUILDER_BOUNDARY(user, add_layer(user, kind, n_in, in, attributes, origin, &out));
    return out;
}

BODY enum sol_status add_scalar(struct sol_model *user, double value, sol_tensor *out) {
    struct attr attr = ir_default_attr();
    struct tensor *t = NULL;
    attr.value = value;
    TRY(ir_add(user->m, LAYER_scalar, 0, NULL, &attr, NULL, &t));
    *out = api_hand_out(user, t);
    return SOL_OK;
}

sol_tensor sol_model_scalar(struct sol_model *user, double value) {
    sol_tensor out = POISON;
    BUILDER_BOUNDARY(user, add_scalar(user, value, &out));
    return out;
}

/* The entry exists before the function, so that nothing is lost if memory for the entry is out. */
BODY enum sol_status add_host(struct sol_model *user, const struct sol_host *host, int *out) {
    TRY(ir_check_name(host->name));
    if (!host->run) return fail(SOL_EINVAL, "a host without a function");
    const char *name = arena_strdup(&user->arena, host->name ? host->name : "");
    VEC_PUSH(&user->arena, &user->m->hosts, (struct host){.name = name});
    *out = user->m->hosts.n;
    return SOL_OK;
}

int sol_model_host(struct sol_model *user, const struct sol_host *host) {
    int n = 0;
    BUILDER_BOUNDARY(user, add_host(user, host, &n));
    if (!n) {
        if (host->release) host->release(host->user);
        return -1;
    }
    struct host_function *function = host_new(host);
    if (!function) api_keep_mistake(user, fail(SOL_ENOMEM, "out of memory in the builder"));
    user->m->hosts.at[n - 1].function = function;
    return n - 1;
}

static enum sol_status build_host_layer(struct sol_model *user, int host, int n_in,
                                        const sol_tensor *in, const char *types,
                                        const char *attributes, const char *origin, int n_out,
                                        sol_tensor *out) {
    struct attr attr;
    struct tensor_type *type;
    struct tensor **tensors, **results = ARENA_ARRAY(&user->arena, struct tensor *, n_out);
    int n_types;
    TRY(ir_check_name(origin));
    TRY(api_get_tensors(user, "host", n_in, in, &tensors));
    TRY(ir_parse_attr(attributes ? attributes : "", &layer_infos[LAYER_host], &user->m->quotients,
                      &attr));
    attr.host = host;
    TRY(ir_parse_types(types ? types : "", user->m, &type, &n_types));
    if (n_types != n_out) return fail(SOL_EINVAL, "host: %d types for %d outputs", n_types, n_out);
    TRY(ir_add_host(user->m, n_in, tensors, n_out, type, &attr, origin, results));
    for (int i = 0; i < n_out; i++) out[i] = api_hand_out(user, results[i]);
    return SOL_OK;
}

BODY enum sol_status add_host_layer(struct sol_model *user, int host, int n_in,
                                    const sol_tensor *in, const char *types, const char *attributes,
                                    const char *origin, int n_out, sol_tensor *out) {
    return build_host_layer(user, host, n_in, in, types, attributes, origin, n_out, out);
}

void sol_model_host_layer(struct sol_model *user, int host, int n_in, const sol_tensor *in,
                          const char *types, const char *attributes, const char *origin, int n_out,
                          sol_tensor *out) {
    for (int i = 0; i < n_out; i++) out[i] = POISON;
    BUILDER_BOUNDARY(user,
                     add_host_layer(user, host, n_in, in, types, attributes, origin, n_out, out));
}

BODY enum sol_status add_output(struct sol_model *user, const char *name, sol_tensor handle) {
    struct tensor *t = api_get_tensor(user, handle);
    if (!t) return fail(SOL_EINVAL, "output \"%s\" is no tensor", name ? name : "");
    return ir_add_output(user->m, t, name, FORWARD);
}

void sol_model_output(struct sol_model *user, const char *name, sol_tensor handle) {
    BUILDER_BOUNDARY(user, add_output(user, name, handle));
}

BODY enum sol_status add_update(struct sol_model *user, sol_tensor param, sol_tensor value) {
    struct tensor *to = api_get_tensor(user, param), *from = api_get_tensor(user, value);
    if (!to || !from)
        return fail(SOL_EINVAL, "update: the %s is no tensor", to ? "value" : "param");
    return ir_add_update(user->m, to, from);
}

void sol_model_update(struct sol_model *user, sol_tensor param, sol_tensor value) {
    BUILDER_BOUNDARY(user, add_update(user, param, value));
}

/* ---- Queries ---- */

int sol_model_shape(const struct sol_model *user, sol_tensor handle, int64_t dim[SOL_MAX_RANK]) {
    const struct tensor *t = api_get_tensor(user, handle);
    if (!t) return -1;
    ir_show_dims(t, dim);
    return t->rank;
}

bool sol_model_dim(const struct sol_model *user, sol_tensor handle, int d, char *out, size_t size) {
    const struct tensor *t = api_get_tensor(user, handle);
    if (!t || d < 0 || d >= t->rank) return false;
    snprintf(out, size, "%s", SIZE_FORMAT(t->dim[d]));
    return true;
}

BODY enum sol_status read_size(struct sol_model *user, const char *text, char *out, size_t size) {
    struct size found;
    const char *at = text;
    if (!size_parse(&at, &user->m->quotients, &found) || *at)
        return fail(SOL_EINVAL, "\"%.64s\" is no size", text);
    TRY(ir_check_symbols(user->m, found));
    snprintf(out, size, "%s", SIZE_FORMAT(found));
    return SOL_OK;
}

/* Its error is kept as others are: a size that is none belongs to a layer that cannot be built. */
bool sol_model_size(struct sol_model *user, const char *text, char *out, size_t size) {
    BUILDER_BOUNDARY(user, read_size(user, text, out, size));
    return user && !user->status;
}

enum sol_dtype sol_model_dtype(const struct sol_model *user, sol_tensor handle) {
    const struct tensor *t = api_get_tensor(user, handle);
    return t ? t->dtype : SOL_N_DTYPES;
}

bool sol_model_get_input(const struct sol_model *user, int i, struct sol_port *out) {
    if (!user || user->status || i < 0 || i >= user->m->inputs.n) return false;
    const struct tensor *t = user->m->inputs.at[i];
    *out = (struct sol_port){.name = t->name ? t->name : "", .dtype = t->dtype, .rank = t->rank};
    ir_show_dims(t, out->dim);
    return true;
}

const char *sol_model_symbol_name(const struct sol_model *user, int i) {
    return user && !user->status && i >= 0 && i < user->m->n_symbols ? user->m->symbol[i] : NULL;
}

enum sol_status sol_model_recover(struct sol_model *user) {
    if (!user) return fail(SOL_EINVAL, "there is no model");
    if (!user->status) return SOL_OK;
    const enum sol_status status = fail(user->status, "%s", user->message);
    if (status != SOL_ENOMEM) user->status = SOL_OK;
    return status;
}

/* Does not change the model: a missing output is not kept as an error, since it may still be added, and several threads may
 * call this. */
enum sol_status sol_model_check(const struct sol_model *user) {
    if (!user) return fail(SOL_EINVAL, "there is no model");
    if (user->status) return fail(user->status, "%s", user->message);
    if (!user->m->outputs.n) return fail(SOL_EINVAL, "the model has no output");
    return ir_verify(user->m);
}

/* ---- Text ---- */

/* The text lies in memory of malloc, which the caller frees; NULL if memory is out. */
static char *print_model(struct arena *arena, const struct model *m) {
    struct text text;
    ARENA_BOUNDARY(arena, return NULL);
    text_init(&text, arena);
    ir_print(&text, m);
    char *out = mem_realloc(NULL, text.size + 1);
    if (out) memcpy(out, text.at, text.size + 1);
    return out;
}

char *sol_model_print(const struct sol_model *user) {
    struct arena arena;
    if (!user || user->status) return NULL;
    arena_init(&arena);
    char *out = print_model(&arena, user->m);
    arena_fini(&arena);
    return out;
}

BODY enum sol_status parse_model(struct sol_model *user, const char *text) {
    TRY(ir_parse(text, &user->arena, &user->m));
    for (int i = 0; i < user->m->layers.n; i++)
        for (int k = 0; k < user->m->layers.at[i]->n_out; k++)
            api_hand_out(user, user->m->layers.at[i]->out[k]);
    return SOL_OK;
}

enum sol_status sol_model_parse(const char *text, struct sol_model **out) {
    struct sol_model *user = new_user_model();
    if (!user) return SOL_ENOMEM;
    BUILDER_BOUNDARY(user, parse_model(user, text));
    enum sol_status status = user->status;
    if (status) {
        sol_model_free(user);
        return status;
    }
    *out = user;
    return SOL_OK;
}

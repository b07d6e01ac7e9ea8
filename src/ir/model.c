/*
 * Building and changing models.
 *
 *   api.c, text.c, passes  ->  ir_add, ir_add_source, ir_replace  ->  struct model
 *
 * Invariant: layers are in topological order while building, ids are dense, every tensor has one producer. Passes may
 * append layers out of order; pass_clean sorts them again.
 */
#include "ir/ir.h"
#include "run/host.h"

#include <string.h>

struct model *ir_model_new(struct arena *arena, const char *name) {
    struct model *m = ARENA_NEW(arena, struct model);
    m->arena = arena;
    m->name = arena_strdup(arena, name ? name : "model");
    return m;
}

static struct tensor *new_output(struct model *m, struct layer *l) {
    struct tensor *t = ARENA_NEW(m->arena, struct tensor);
    t->id = m->n_tensors++;
    t->producer = l;
    return t;
}

static struct layer *new_layer(struct model *m, enum layer_kind kind, int n_in,
                               struct tensor *const *in, int n_out, const struct attr *attr,
                               const char *origin) {
    struct layer *l = ARENA_NEW(m->arena, struct layer);
    l->id = m->n_layers++;
    l->model = m;
    l->kind = kind;
    l->n_in = n_in;
    l->in = arena_copy(m->arena, in, sizeof *in * (size_t)n_in);
    l->attr = attr ? *attr : ir_default_attr();
    l->origin = origin ? arena_strdup(m->arena, origin) : NULL;
    l->n_out = n_out;
    l->out = ARENA_ARRAY(m->arena, struct tensor *, n_out);
    for (int i = 0; i < n_out; i++) l->out[i] = new_output(m, l);
    return l;
}

enum sol_status ir_add_symbol(struct model *m, const char *name, int64_t least, int64_t multiple,
                              int *out) {
    if (m->n_symbols == SIZE_FREE) return fail(SOL_EUNSUPPORTED, "more than %d symbols", SIZE_FREE);
    if (multiple < 1 || multiple > INT32_MAX)
        return fail(SOL_EINVAL, "symbol \"%.64s\" is a multiple of %lld; at least 1 is possible",
                    name, (long long)multiple);
    if (least < 0)
        return fail(SOL_EINVAL, "symbol \"%.64s\" is at least %lld; sizes are >= 0", name,
                    (long long)least);
    *out = m->n_symbols++;
    m->quotients.n_free = m->n_symbols;
    m->symbol[*out] = name;
    m->quotients.multiple[*out] = multiple;
    m->quotients.least[*out] = least;
    if (!size_free(&m->quotients, *out).bad) return SOL_OK;
    return fail(SOL_EUNSUPPORTED, "more than %d symbols", SIZE_SYMBOLS);
}

static void list_readings(struct model *m, struct layer *l) {
    for (int i = 0; i < l->n_in; i++) VEC_PUSH(m->arena, &l->in[i]->readers, l);
}

/* When memory is out, the layer is not in the model. */
static void append(struct model *m, struct layer *l) {
    list_readings(m, l);
    VEC_PUSH(m->arena, &m->layers, l);
    m->n_edits++;
}

struct tensor *ir_add_source(struct model *m, enum layer_kind kind, const char *name,
                             enum sol_dtype dtype, int rank, const struct size *dim) {
    struct layer *l = new_layer(m, kind, 0, NULL, 1, NULL, NULL);
    struct tensor *t = l->out[0];
    t->dtype = dtype;
    t->rank = rank;
    for (int i = 0; i < rank; i++) t->dim[i] = dim[i];
    t->name = arena_strdup(m->arena, name ? name : "");
    t->phase = kind == LAYER_param ? PREPACK : FORWARD;
    append(m, l);
    if (kind == LAYER_input) VEC_PUSH(m->arena, &m->inputs, t);
    else VEC_PUSH(m->arena, &m->params, t);
    return t;
}

/* Puts the layer in front of the current error message: "conv (net.py:7): ". */
static void prefix_layer(const struct layer *l) {
    const char *name = layer_infos[l->kind].name;
    if (l->origin) fail_prefix("%s (%s): ", name, l->origin);
    else fail_prefix("%s: ", name);
}

static enum sol_status check_inputs(const struct layer *l) {
    const struct layer_info *info = &layer_infos[l->kind];
    if (l->n_in >= info->min_in && l->n_in <= info->max_in) return SOL_OK;
    return fail(SOL_EINVAL, "%d inputs; it takes %d to %d", l->n_in, info->min_in, info->max_in);
}

enum sol_status ir_check_name(const char *name) {
    const size_t n = name ? strlen(name) : 0;
    if (n <= IR_MAX_NAME) return SOL_OK;
    return fail(SOL_EINVAL, "the name \"%.32s..\" has %zu bytes; at most %d are possible", name, n,
                IR_MAX_NAME);
}

/* A shape's number of elements, times this, must not overflow: bytes per element, times the padding of a single channel to the
 * widest block, times a reserve for sums of such sizes. */
#define ELEMENT_HEADROOM 1024

/* Does the model have all symbols of the size? */
static bool has_symbols(const struct model *m, struct size size) {
    for (int i = 0; i < size.n; i++)
        for (int f = 0; f < SIZE_FACTORS && size.term[i].factor[f].power; f++) {
            int symbol = size.term[i].factor[f].symbol;
            bool free = symbol < SIZE_FREE;
            if (free ? symbol >= m->n_symbols : symbol >= SIZE_FREE + m->quotients.n) return false;
        }
    return true;
}

enum sol_status ir_check_symbols(const struct model *m, struct size size) {
    if (has_symbols(m, size)) return SOL_OK;
    return fail(SOL_EINVAL, "%s has a symbol that the model does not have", SIZE_FORMAT(size));
}

/* A size with a negative coefficient may be negative at a call: ir/condition.c has such calls refused. */
static enum sol_status check_dim(const struct model *m, int i, struct size dim) {
    char text[SIZE_TEXT];
    size_format(text, dim);
    if (!has_symbols(m, dim))
        return fail(SOL_EINVAL, "dim %d is %s, a symbol that the model does not have", i, text);
    if (size_is_const(dim) && size_value(dim) < 0)
        return fail(SOL_EINVAL, "dim %d would be %s", i, text);
    return SOL_OK;
}

/* Dims of 0 are left out of the product: the strides, products of the other dims, must not overflow either. */
enum sol_status ir_check_shape(const struct model *m, int rank, const struct size *dim) {
    struct size n = size_const(ELEMENT_HEADROOM);
    if (rank < 0 || rank > SOL_MAX_RANK)
        return fail(SOL_EINVAL, "rank %d; it may be 0 to %d", rank, SOL_MAX_RANK);
    for (int i = 0; i < rank; i++) {
        TRY(check_dim(m, i, dim[i]));
        if (!size_is(dim[i], 0)) n = size_mul(n, dim[i]);
    }
    return n.bad ? fail(SOL_EUNSUPPORTED, "the size of the tensor overflows or has too many terms")
                 : SOL_OK;
}

/* A layer runs when all its inputs are there. */
static void join_phases(const struct layer *l, struct tensor *t) {
    for (int i = 0; i < l->n_in; i++) t->phase = phase_join(t->phase, l->in[i]->phase);
}

enum sol_status ir_add(struct model *m, enum layer_kind kind, int n_in, struct tensor *const *in,
                       const struct attr *attr, const char *origin, struct tensor **out) {
    struct layer *l = new_layer(m, kind, n_in, in, 1, attr, origin);
    struct tensor *t = l->out[0];
    join_phases(l, t);
    enum sol_status status = check_inputs(l);
    if (!status) status = layer_infos[kind].types(l);
    if (!status) status = layer_infos[kind].infer(l);
    if (!status) status = ir_check_shape(m, t->rank, t->dim);
    if (status) {
        prefix_layer(l);
        return status;
    }
    /* What depends on symbols is computed at every call, even from constants: sizes, and where a slice or a range starts. */
    if (!size_is_const(ir_elements(t)) || !size_is_const(l->attr.start))
        t->phase = phase_join(t->phase, FORWARD);
    append(m, l);
    *out = t;
    return SOL_OK;
}

struct tensor *ir_keep_gates(struct layer *l) {
    struct model *m = l->model;
    if (l->n_out == 2) return l->out[1];
    struct tensor **out = ARENA_ARRAY(m->arena, struct tensor *, 2);
    out[0] = l->out[0];
    out[1] = new_output(m, l);
    out[1]->phase = out[0]->phase;
    ir_set_gates(l, out[1]);
    l->out = out;
    l->n_out = 2;
    m->n_edits++;
    return out[1];
}

void ir_copy_gates(const struct layer *l, const struct tensor *copy, struct tensor **map) {
    if (l->n_out == 2 && ir_may_keep_gates(l->kind))
        map[l->out[1]->id] = ir_keep_gates(copy->producer);
}

static enum sol_status check_host(const struct model *m, int n_in, int n_out,
                                  const struct tensor_type *type, const struct attr *attr) {
    if (attr->host < 0 || attr->host >= m->hosts.n)
        return fail(SOL_EINVAL, "there is no host %lld", (long long)attr->host);
    if (n_in > IR_MAX_PORTS || n_out < 1 || n_out > IR_MAX_PORTS)
        return fail(SOL_EINVAL,
                    "%d inputs and %d outputs; there may be up to %d, and at least one output",
                    n_in, n_out, IR_MAX_PORTS);
    const struct host *host = &m->hosts.at[attr->host];
    if (host->function && host->function->custom && n_in + n_out > SOL_CUSTOM_TENSORS)
        return fail(SOL_EUNSUPPORTED, "%s: %d inputs and outputs; a custom layer has at most %d",
                    host->name, n_in + n_out, SOL_CUSTOM_TENSORS);
    if (attr->effects && attr->pure) return fail(SOL_EINVAL, "a layer with effects cannot be pure");
    for (int i = 0; i < n_out; i++) TRY(ir_check_shape(m, type[i].rank, type[i].dim));
    return SOL_OK;
}

/* The function runs at every call, also if its inputs are constant. */
enum sol_status ir_add_host(struct model *m, int n_in, struct tensor *const *in, int n_out,
                            const struct tensor_type *type, const struct attr *attr,
                            const char *origin, struct tensor **out) {
    enum sol_status status = check_host(m, n_in, n_out, type, attr);
    if (status) {
        fail_prefix(origin ? "host (%s): " : "host: ", origin);
        return status;
    }
    struct layer *l = new_layer(m, LAYER_host, n_in, in, n_out, attr, origin);
    for (int i = 0; i < n_out; i++) {
        out[i] = l->out[i];
        out[i]->phase = FORWARD;
        join_phases(l, out[i]);
        out[i]->dtype = type[i].dtype;
        out[i]->rank = type[i].rank;
        memcpy(out[i]->dim, type[i].dim, sizeof out[i]->dim);
    }
    append(m, l);
    return SOL_OK;
}

void ir_set_backward(struct tensor *t) { t->phase = BACKWARD; }

enum sol_status ir_add_output(struct model *m, struct tensor *t, const char *name,
                              enum phase phase) {
    TRY(ir_check_name(name));
    if (phase == FORWARD && phase_is_backward(t->phase))
        return fail(SOL_EINVAL, "output \"%s\" depends on an input of the backward call",
                    name ? name : "");
    VEC_PUSH(m->arena, &m->outputs, t);
    VEC_PUSH(m->arena, &m->output_names, arena_strdup(m->arena, name ? name : ""));
    VEC_PUSH(m->arena, &m->output_phases, phase);
    return SOL_OK;
}

bool ir_has_backward(const struct model *m) {
    for (int i = 0; i < m->outputs.n; i++)
        if (m->output_phases.at[i] == BACKWARD) return true;
    return false;
}

enum sol_status ir_add_update(struct model *m, struct tensor *param, struct tensor *value) {
    if (param->producer->kind != LAYER_param)
        return fail(SOL_EINVAL, "update: only a parameter can be updated");
    if (param->is_updated)
        return fail(SOL_EINVAL, "update: parameter \"%s\" is updated twice", param->name);
    if (param->dtype != value->dtype || !ir_same_shape(param, value, -1))
        return fail(SOL_EINVAL,
                    "update: parameter \"%s\" and its new value differ in shape or element type",
                    param->name);
    if (phase_is_backward(value->phase))
        return fail(
            SOL_EINVAL,
            "update: the new value of parameter \"%s\" depends on an input of the backward call",
            param->name);
    param->is_updated = true;
    param->phase = FORWARD;
    for (int i = 0; i < m->layers.n; i++) /* what depends on it is no constant */
        for (int k = 0; k < m->layers.at[i]->n_out; k++)
            join_phases(m->layers.at[i], m->layers.at[i]->out[k]);
    VEC_PUSH(m->arena, &m->updates, ((struct update){param, value}));
    return SOL_OK;
}

/* ---- Cloning ---- */

static void clone_layer(struct model *copy, const struct layer *l, struct tensor **map) {
    struct tensor **in = ARENA_ARRAY(copy->arena, struct tensor *, l->n_in + 1);
    for (int i = 0; i < l->n_in; i++) in[i] = map[l->in[i]->id];
    struct layer *c = new_layer(copy, l->kind, l->n_in, in, l->n_out, &l->attr, l->origin);
    for (int i = 0; i < l->n_out; i++) {
        struct tensor *t = map[l->out[i]->id] = c->out[i];
        int id = t->id;
        *t = *l->out[i];
        t->id = id;
        t->producer = c;
        memset(&t->readers, 0, sizeof t->readers);
        join_phases(c, t);
        if (t->name) t->name = arena_strdup(copy->arena, t->name);
    }
    append(copy, c);
}

struct model *ir_clone(struct arena *arena, const struct model *m) {
    struct model *copy = ir_model_new(arena, m->name);
    struct tensor **map = ARENA_ARRAY(arena, struct tensor *, m->n_tensors + 1);
    copy->n_symbols = m->n_symbols;
    for (int i = 0; i < m->n_symbols; i++) copy->symbol[i] = arena_strdup(arena, m->symbol[i]);
    copy->quotients = m->quotients;
    for (int i = 0; i < m->hosts.n; i++) {
        struct host host = m->hosts.at[i];
        host.name = arena_strdup(arena, host.name);
        VEC_PUSH(arena, &copy->hosts, host);
    }
    for (int i = 0; i < m->layers.n; i++) clone_layer(copy, m->layers.at[i], map);
    for (int i = 0; i < m->inputs.n; i++) VEC_PUSH(arena, &copy->inputs, map[m->inputs.at[i]->id]);
    for (int i = 0; i < m->params.n; i++) VEC_PUSH(arena, &copy->params, map[m->params.at[i]->id]);
    for (int i = 0; i < m->outputs.n; i++) {
        VEC_PUSH(arena, &copy->outputs, map[m->outputs.at[i]->id]);
        VEC_PUSH(arena, &copy->output_names, arena_strdup(arena, m->output_names.at[i]));
        VEC_PUSH(arena, &copy->output_phases, m->output_phases.at[i]);
    }
    for (int i = 0; i < m->updates.n; i++) {
        const struct update *u = &m->updates.at[i];
        VEC_PUSH(arena, &copy->updates, ((struct update){map[u->param->id], map[u->value->id]}));
    }
    return copy;
}

/* ---- Queries and changes ---- */

void ir_find_readers(struct model *m) {
    for (int i = 0; i < m->layers.n; i++) {
        struct layer *l = m->layers.at[i];
        for (int k = 0; k < l->n_out; k++) l->out[k]->readers.n = 0;
        list_readings(m, l);
    }
}

static void replace_inputs(struct model *m, struct layer *l, const struct tensor *from,
                           struct tensor *to) {
    for (int k = 0; k < l->n_in; k++) {
        if (l->in[k] != from) continue;
        l->in[k] = to;
        VEC_PUSH(m->arena, &to->readers, l);
    }
}

void ir_replace(struct model *m, struct tensor *from, struct tensor *to) {
    for (int i = 0; i < from->readers.n; i++) replace_inputs(m, from->readers.at[i], from, to);
    from->readers.n = 0;
    m->n_edits++;
    for (int i = 0; i < m->outputs.n; i++)
        if (m->outputs.at[i] == from) m->outputs.at[i] = to;
    for (int i = 0; i < m->updates.n; i++)
        if (m->updates.at[i].value == from) m->updates.at[i].value = to;
}

bool ir_is_output(const struct model *m, const struct tensor *t) {
    for (int i = 0; i < m->outputs.n; i++)
        if (m->outputs.at[i] == t) return true;
    for (int i = 0; i < m->updates.n; i++)
        if (m->updates.at[i].value == t) return true;
    return false;
}

bool ir_is_input(const struct tensor *t) {
    while (t->producer->kind == LAYER_reshape) t = t->producer->in[0];
    return t->producer->kind == LAYER_input;
}

struct size ir_count(const struct tensor *t, int begin, int end) {
    struct size n = size_const(1);
    for (int d = begin; d < end; d++) n = size_mul(n, t->dim[d]);
    return n;
}

bool ir_is_conv(const struct layer *layer) {
    return layer->kind == LAYER_conv || layer->kind == LAYER_conv_transpose ||
           layer->kind == LAYER_quant_conv;
}

int64_t ir_group_size(const struct layer *conv, const struct tensor *image) {
    return size_value(image->dim[1]) / conv->attr.groups;
}

struct size ir_elements(const struct tensor *t) { return ir_count(t, 0, t->rank); }

bool ir_same_shape(const struct tensor *a, const struct tensor *b, int64_t except) {
    if (a->rank != b->rank) return false;
    for (int d = 0; d < a->rank; d++)
        if (d != except && !size_equal(a->dim[d], b->dim[d])) return false;
    return true;
}

bool ir_is_invariant(const struct tensor *t, int begin) {
    const struct size_table *quotients = &t->producer->model->quotients;
    for (int d = begin; d < t->rank; d++)
        if (size_depends(quotients, t->dim[d], 0)) return false;
    return true;
}

void ir_show_dims(const struct tensor *t, int64_t dim[SOL_MAX_RANK]) {
    for (int d = 0; d < t->rank; d++) {
        dim[d] = size_is_const(t->dim[d]) ? size_value(t->dim[d]) : INT64_MIN;
        struct model *m = t->producer->model;
        for (int s = 0; s < m->n_symbols; s++)
            if (size_equal(t->dim[d], size_free(&m->quotients, s))) dim[d] = -1 - s;
    }
}

/*
 * Runs a whole model through the reference, layer by layer, in the model's order.
 *
 *   inputs, params  ->  [a buffer per tensor, freed after its last reader]  ->  outputs
 *
 * Each output is copied from its tensor's buffer as soon as it is computed. So a tensor may be an output several times, or
 * an input, too. New values of parameters are kept in the same way, and written after the last layer.
 */
#include "device/ref/ref.h"
#include "device/ref/element.h"

#include "run/host.h"

#include <stdio.h>
#include <string.h>

/* The state of one run; arrays by tensor id. */
struct run {
    const struct model *m;
    const int64_t *symbols;
    const void **data; /* the tensor's values, NULL before it exists */
    void **owned;      /* the buffer to free, NULL for the caller's tensors */
    int *last;         /* position of the last layer that reads it, -1 for none */
    void **update;     /* by update: the parameter's new value, NULL before it exists */
    enum phase phase;  /* N_PHASES: all at once */
};

/* Size of a tensor in bytes; ENOMEM on overflow. */
static enum sol_status find_bytes(const struct tensor *t, const int64_t *symbols, size_t *out) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(n, size_eval(&t->dim[i], symbols), &n) || n < 0)
            return fail(SOL_ENOMEM, "tensor %d has too many elements", t->id);
    if (__builtin_mul_overflow((size_t)n, (size_t)size_element(t->dtype), out))
        return fail(SOL_ENOMEM, "tensor %d has too many elements", t->id);
    return SOL_OK;
}

static enum sol_status start_run(struct run *r) {
    size_t n = (size_t)r->m->n_tensors + 1; /* never 0 */
    r->data = mem_alloc(n * sizeof *r->data, 16);
    r->owned = mem_alloc(n * sizeof *r->owned, 16);
    r->last = mem_alloc(n * sizeof *r->last, 16);
    r->update = mem_alloc(((size_t)r->m->updates.n + 1) * sizeof *r->update, 16);
    if (!r->data || !r->owned || !r->last || !r->update) return fail(SOL_ENOMEM, "out of memory");
    for (int i = 0; i < r->m->n_tensors; i++) r->last[i] = -1;
    for (int i = 0; i < r->m->layers.n; i++)
        for (int j = 0; j < r->m->layers.at[i]->n_in; j++)
            r->last[r->m->layers.at[i]->in[j]->id] = i;
    return SOL_OK;
}

static void end_run(struct run *r) {
    for (int i = 0; r->owned && i < r->m->n_tensors; i++) mem_free(r->owned[i]);
    for (int i = 0; r->update && i < r->m->updates.n; i++) mem_free(r->update[i]);
    mem_free(r->data);
    mem_free(r->owned);
    mem_free(r->last);
    mem_free(r->update);
}

/* Calls ref_layer with an array of the inputs' addresses. Only layers with many inputs, such as a concat, need to
 * allocate it. */
static enum sol_status call_layer(struct run *r, const struct layer *layer) {
    const void *few[8], **in = few;
    void *out[2] = {NULL, NULL}; /* the second one is of recurrent layers */
    if (layer->n_in > COUNT(few)) in = mem_alloc((size_t)layer->n_in * sizeof *in, 16);
    if (!in) return fail(SOL_ENOMEM, "out of memory");
    for (int i = 0; i < layer->n_in; i++) in[i] = r->data[layer->in[i]->id];
    for (int i = 0; i < layer->n_out; i++) out[i] = r->owned[layer->out[i]->id];
    enum sol_status status = ref_layer(layer, r->symbols, in, out);
    if (in != few) mem_free(in);
    return status;
}

static void describe(const struct run *r, const struct tensor *t, struct sol_host_tensor *to) {
    to->data = (void *)(uintptr_t)r->data[t->id];
    to->dtype = t->dtype;
    to->rank = t->rank;
    for (int d = 0; d < t->rank; d++) to->dim[d] = size_eval(&t->dim[d], r->symbols);
}

/* Calls the function of a host layer once, for all its tasks. */
static enum sol_status call_host(struct run *r, const struct layer *l) {
    const struct host *host = &r->m->hosts.at[l->attr.host];
    char what[512];
    struct sol_host_tensor *tensor = mem_alloc(sizeof *tensor * (size_t)(l->n_in + l->n_out), 16);
    if (!tensor) return fail(SOL_ENOMEM, "out of memory");
    for (int i = 0; i < l->n_in; i++) describe(r, l->in[i], &tensor[i]);
    for (int i = 0; i < l->n_out; i++) describe(r, l->out[i], &tensor[l->n_in + i]);
    snprintf(what, sizeof what, l->origin ? "%s (%s)" : "%s", host->name, l->origin);
    struct sol_host_call call = {.n_in = l->n_in,
                                 .n_out = l->n_out,
                                 .in = tensor,
                                 .out = tensor + l->n_in,
                                 .n_symbols = r->m->n_symbols,
                                 .symbol = r->symbols};
    call.end = host_count_tasks(host->function, &call);
    enum sol_status status = call.end ? host_call(host->function, what, &call) : SOL_OK;
    mem_free(tensor);
    return status;
}

static enum sol_status alloc_output(struct run *r, const struct tensor *t) {
    size_t size;
    TRY(find_bytes(t, r->symbols, &size));
    r->owned[t->id] = mem_alloc(size + 1, 64); /* an empty tensor has an address, too */
    if (!r->owned[t->id]) return fail(SOL_ENOMEM, "no %zu bytes for tensor %d", size, t->id);
    r->data[t->id] = r->owned[t->id];
    return SOL_OK;
}

static enum sol_status eval_layer(struct run *r, const struct layer *layer) {
    for (int i = 0; i < layer->n_out; i++) TRY(alloc_output(r, layer->out[i]));
    return layer->kind == LAYER_host ? call_host(r, layer) : call_layer(r, layer);
}

/* Does this call write what belongs to `phase`, FORWARD or BACKWARD? */
static bool is_of_call(const struct run *r, enum phase phase) {
    return r->phase == N_PHASES || r->phase == phase;
}

static enum sol_status copy_outputs(struct run *r, const struct tensor *t, void *const *outputs) {
    for (int i = 0; i < r->m->outputs.n; i++) {
        size_t size;
        if (r->m->outputs.at[i] != t || !is_of_call(r, r->m->output_phases.at[i])) continue;
        TRY(find_bytes(t, r->symbols, &size));
        if (size) memcpy(outputs[i], r->data[t->id], size);
    }
    return SOL_OK;
}

static enum sol_status keep_updates(struct run *r, const struct tensor *t) {
    for (int i = 0; i < r->m->updates.n; i++) {
        size_t size;
        if (r->m->updates.at[i].value != t || !is_of_call(r, FORWARD)) continue;
        TRY(find_bytes(t, r->symbols, &size));
        r->update[i] = mem_alloc(size + 1, 64);
        if (!r->update[i]) return fail(SOL_ENOMEM, "no %zu bytes for tensor %d", size, t->id);
        memcpy(r->update[i], r->data[t->id], size);
    }
    return SOL_OK;
}

/* Nothing can fail here: keep_updates has found all sizes. A parameter without elements may have the address NULL. */
static void apply_updates(const struct run *r) {
    for (int i = 0; i < r->m->updates.n && is_of_call(r, FORWARD); i++) {
        const struct tensor *param = r->m->updates.at[i].param;
        size_t size = 0;
        enum sol_status status = find_bytes(param, r->symbols, &size);
        if (!status && size) memcpy((void *)(uintptr_t)r->data[param->id], r->update[i], size);
    }
}

/* Frees the inputs and outputs of layer number `at` that no later layer reads. */
static void drop_dead(struct run *r, int at) {
    const struct layer *layer = r->m->layers.at[at];
    for (int i = -layer->n_out; i < layer->n_in; i++) {
        int id = i < 0 ? layer->out[-1 - i]->id : layer->in[i]->id;
        if (r->last[id] > at) continue;
        mem_free(r->owned[id]);
        r->owned[id] = NULL;
    }
}

static enum sol_status eval_layers(struct run *r, void *const *outputs) {
    for (int i = 0; i < r->m->layers.n; i++) {
        const struct layer *layer = r->m->layers.at[i];
        if (r->phase == FORWARD && phase_is_backward(layer->out[0]->phase)) continue;
        if (!r->data[layer->out[0]->id]) TRY(eval_layer(r, layer));
        for (int k = 0; k < layer->n_out; k++) {
            TRY(copy_outputs(r, layer->out[k], outputs));
            TRY(keep_updates(r, layer->out[k]));
        }
        drop_dead(r, i);
    }
    return SOL_OK;
}

enum sol_status ref_run(const struct model *m, const int64_t *symbols, const void *const *inputs,
                        const void *const *params, void *const *outputs) {
    return ref_run_phase(m, N_PHASES, symbols, inputs, params, outputs);
}

enum sol_status ref_run_phase(const struct model *m, enum phase phase, const int64_t *symbols,
                              const void *const *inputs, const void *const *params,
                              void *const *outputs) {
    struct run r = {.m = m, .symbols = symbols, .phase = phase};
    enum sol_status status = start_run(&r);
    for (int i = 0; !status && i < m->inputs.n; i++) r.data[m->inputs.at[i]->id] = inputs[i];
    for (int i = 0; !status && i < m->params.n; i++) r.data[m->params.at[i]->id] = params[i];
    if (!status) status = eval_layers(&r, outputs);
    if (!status) apply_updates(&r);
    end_run(&r);
    return status;
}

/* ---- In double ---- */

static enum sol_dtype widen(enum sol_dtype type) {
    return size_family(type) == FAMILY_FLOAT ? SOL_F64 : type;
}

/* A copy of the model in which every float type is f64. All layers keep their rules: floats may be of any type, and equal types stay
 * equal. It has no updates, as not all parameters are the caller's. */
static struct model *widen_model(struct arena *arena, const struct model *m) {
    struct model *wide = ir_clone(arena, m);
    wide->updates.n = 0;
    for (int i = 0; i < wide->layers.n; i++) {
        struct layer *layer = wide->layers.at[i];
        layer->attr.dtype = widen(layer->attr.dtype);
        layer->out[0]->dtype = widen(layer->out[0]->dtype);
    }
    return wide;
}

/* The values of tensor `t`, which lie at `from`, in its widened type. */
static enum sol_status widen_values(struct arena *arena, const struct tensor *t,
                                    const int64_t *symbols, const void *from, const void **out) {
    enum sol_dtype to = widen(t->dtype);
    size_t size;
    *out = from;
    TRY(find_bytes(t, symbols, &size));
    if (t->dtype == to) return SOL_OK;
    size_t n = size / (size_t)size_element(t->dtype);
    double *wide = arena_alloc_array(arena, sizeof *wide, n + 1);
    for (size_t i = 0; i < n; i++) wide[i] = ref_get_real(t->dtype, from, (int64_t)i);
    *out = wide;
    return SOL_OK;
}

/* A host layer's function expects the types that it was declared with. */
static enum sol_status refuse_hosts(const struct model *m) {
    for (int i = 0; i < m->layers.n; i++)
        if (m->layers.at[i]->kind == LAYER_host)
            return fail(SOL_EUNSUPPORTED, "host layers cannot run in double");
    return SOL_OK;
}

static enum sol_status run_double(struct arena *arena, const struct model *m,
                                  const int64_t *symbols, const void *const *inputs,
                                  const void *const *params, void *const *outputs) {
    int n_in = m->inputs.n;
    TRY(refuse_hosts(m));
    const void **values = ARENA_ARRAY(arena, const void *, n_in + m->params.n + 1);
    for (int i = 0; i < n_in; i++)
        TRY(widen_values(arena, m->inputs.at[i], symbols, inputs[i], &values[i]));
    for (int i = 0; i < m->params.n; i++)
        TRY(widen_values(arena, m->params.at[i], symbols, params[i], &values[n_in + i]));
    return ref_run(widen_model(arena, m), symbols, values, values + n_in, outputs);
}

enum sol_status ref_run_double(const struct model *m, const int64_t *symbols,
                               const void *const *inputs, const void *const *params,
                               void *const *outputs) {
    struct arena arena;
    arena_init(&arena);
    ARENA_BOUNDARY(&arena, {
        arena_fini(&arena);
        return fail(SOL_ENOMEM, "out of memory");
    });
    enum sol_status status = run_double(&arena, m, symbols, inputs, params, outputs);
    arena_fini(&arena);
    return status;
}

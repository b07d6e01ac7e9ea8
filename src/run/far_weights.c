/*
 * Weights on a far device: packed parameters, and copies of the parameters that calls read.
 *
 *   sol_weights_new -> far_alloc_weights: memory -> far_pack: copies parameters -> far_run_step for each step of PREPACK
 *
 * Parameters that only a phase of prepack reads are on the device while it runs: so the device has values once, packed. Parameters
 * that calls update have two places. Calls with the host's memory read and write the host's; enqueued calls those of the device, until
 * sol_weights_sync copies them.
 */
#include "run/far.h"

/* ---- Parameters ---- */

/* Parameters have known sizes. */
static size_t param_size(const struct sol_port *port) {
    size_t size = (size_t)size_element(port->dtype);
    for (int d = 0; d < port->rank; d++) size *= (size_t)port->dim[d];
    return size;
}

/* Sets the offsets of the parameters that steps of the list read or write. */
static void note_params(const struct step_list *list, size_t *offset, size_t value) {
    for (int i = 0; i < list->n; i++)
        for (int k = 0; k < list->at[i].n_ptr; k++)
            if (list->at[i].ptr[k].kind == BUFFER_PARAM) offset[list->at[i].ptr[k].index] = value;
}

/* Fills in the offsets of the parameters that a phase of prepack reads and no call, or (CALLS) that calls read; returns the
 * bytes of all. */
#define CALLS N_PHASES
static size_t place_params(const struct sol_program *p, enum phase phase, size_t *offset) {
    const size_t none = SIZE_MAX, some = 0, of_calls = phase == CALLS ? some : none;
    size_t size = 0;
    for (int i = 0; i < p->n_params; i++) offset[i] = none;
    if (phase != CALLS) note_params(&p->phase[phase], offset, some);
    note_params(&p->phase[FORWARD], offset, of_calls);
    note_params(&p->phase[BACKWARD], offset, of_calls);
    for (int i = 0; i < p->n_params; i++) {
        if (offset[i] == none) continue;
        offset[i] = size;
        size += (size_t)round_up((int64_t)param_size(&p->param[i]), 64);
    }
    return size;
}

sol_ptr far_param(const struct far_weights *w, const struct far_params *packing, int i) {
    const struct far_params *p = w->params.offset[i] == SIZE_MAX ? packing : &w->params;
    return p->at + p->offset[i];
}

/* Copies memory of the device at `at`, to or from the host's, by `kind`. */
static enum sol_status copy_at(const struct sol_weights *w, struct sol_queue *q,
                               enum transfer_kind kind, sol_ptr at, const void *host, size_t size,
                               bool is_call) {
    const bool is_up = kind == TRANSFER_TO_DEVICE;
    const struct transfer transfer = {.kind = kind,
                                      .to = is_up ? at : 0,
                                      .from = is_up ? 0 : at,
                                      .host = (void *)(uintptr_t)host,
                                      .size = size};
    return far_copy(w->program, q, &transfer, is_call);
}

static enum sol_status copy_params(const struct sol_weights *w, struct sol_queue *q,
                                   const struct far_params *params, enum transfer_kind kind,
                                   bool only_updated) {
    const struct sol_program *p = w->program;
    for (int i = 0; i < p->n_params; i++) {
        if (params->offset[i] == SIZE_MAX || (only_updated && !p->param[i].is_updated)) continue;
        TRY(copy_at(w, q, kind, params->at + params->offset[i], w->param[i],
                    param_size(&p->param[i]), only_updated));
    }
    return SOL_OK;
}

enum sol_status far_copy_updated(const struct sol_weights *w, struct sol_queue *q,
                                 enum transfer_kind kind) {
    return copy_params(w, q, &w->far->params, kind, true);
}

enum sol_status sol_weights_sync(struct sol_weights *w, struct sol_queue *q) {
    lock_acquire(queue_lock(q));
    enum sol_status status = far_check_program(w->program, q);
    if (!status) status = queue_wait(q);
    if (!status && w->far) {
        status = far_copy_updated(w, q, TRANSFER_TO_HOST);
        const enum sol_status waited = queue_wait(q);
        if (!status) status = waited;
    }
    lock_release(queue_lock(q));
    return status;
}

/* ---- Memory ---- */

static enum sol_status alloc_on_device(struct sol_weights *w, struct sol_queue *q) {
    const struct sol_program *p = w->program;
    const size_t packed = weights_place(p, w->packed.offset),
                 params = place_params(p, CALLS, w->far->params.offset);
    if (packed) TRY(queue_alloc(q, packed, &w->far->packed));
    return params ? queue_alloc(q, params, &w->far->params.at) : SOL_OK;
}

void far_free_weights(struct sol_weights *w) {
    struct sol_queue *q = NULL;
    if (!w->far) return;
    enum sol_status status = queue_take(w->program->far->device, &q);
    if (!status) status = queue_dealloc(q, w->far->packed);
    if (!status) status = queue_dealloc(q, w->far->params.at);
    if (q) queue_put_back(q);
    mem_free(w->far);
    w->far = NULL;
}

enum sol_status far_alloc_weights(struct sol_weights *w) {
    struct sol_program *p = (struct sol_program *)(uintptr_t)w->program;
    struct sol_queue *q;
    TRY(far_load(p));
    w->far = mem_alloc(sizeof *w->far + (size_t)p->n_params * sizeof(size_t), 16);
    if (!w->far) return fail(SOL_ENOMEM, "no memory for weights");
    w->far->params.offset = (size_t *)(void *)(w->far + 1);
    enum sol_status status = queue_take(p->far->device, &q);
    if (!status) {
        status = alloc_on_device(w, q);
        queue_put_back(q);
    }
    if (status) far_free_weights(w);
    return status;
}

/* ---- Weights that are packed already ---- */

/* All slots at once: on both sides they lie one behind the other. */
static enum sol_status copy_packed(const struct sol_weights *w, struct sol_queue *q,
                                   enum transfer_kind kind) {
    if (!w->packed.n) return SOL_OK;
    return copy_at(w, q, kind, w->far->packed, w->packed.slot[0], w->packed.offset[w->packed.n],
                   false);
}

static enum sol_status copy_weights(const struct sol_weights *w, bool with_params,
                                    enum transfer_kind kind) {
    struct sol_queue *q;
    TRY(queue_take(w->program->far->device, &q));
    enum sol_status status = copy_packed(w, q, kind);
    if (!status && with_params) status = copy_params(w, q, &w->far->params, kind, false);
    if (!status) status = queue_wait(q);
    queue_put_back(q);
    return status;
}

enum sol_status far_adopt(struct sol_weights *w) {
    TRY(far_alloc_weights(w));
    enum sol_status status = copy_weights(w, true, TRANSFER_TO_DEVICE);
    if (status) far_free_weights(w);
    return status;
}

enum sol_status far_fetch_packed(const struct sol_weights *w, char *memory) {
    for (int i = 0; i < w->packed.n; i++) w->packed.slot[i] = memory + w->packed.offset[i];
    return copy_weights(w, false, TRANSFER_TO_HOST);
}

/* ---- Packing ---- */

static enum sol_status pack_params(struct far_call *c, enum phase phase) {
    const struct sol_weights *w = c->weights;
    if (phase == PREPACK) TRY(copy_params(w, c->queue, &w->far->params, TRANSFER_TO_DEVICE, false));
    TRY(copy_params(w, c->queue, c->packing, TRANSFER_TO_DEVICE, false));
    return binding_walk(c->binding, 0, far_run_step, c);
}

/* With memory of its own, for intermediate values and the parameters of the phase, of which nothing is left. */
static enum sol_status pack_on(struct far_call *c, enum phase phase, struct far_params *packing) {
    const size_t arena = (size_t)round_up((int64_t)c->binding->arena_size, 64),
                 size = arena + place_params(c->program, phase, packing->offset);
    if (size) TRY(queue_alloc(c->queue, size, &c->arena));
    packing->at = c->arena + arena;
    const enum sol_status packed = pack_params(c, phase), freed = queue_dealloc(c->queue, c->arena),
                          waited = queue_wait(c->queue);
    return packed ? packed : freed ? freed : waited;
}

static enum sol_status pack_with(struct far_call *c, enum phase phase) {
    const size_t n = (size_t)c->program->n_params;
    struct far_params packing = {.offset = mem_alloc((n + 1) * sizeof(size_t), 16)};
    if (!packing.offset) return fail(SOL_ENOMEM, "no memory to pack parameters");
    c->packing = &packing;
    enum sol_status status = queue_take(c->program->far->device, &c->queue);
    if (!status) {
        status = pack_on(c, phase, &packing);
        queue_put_back(c->queue);
    }
    mem_free(packing.offset);
    return status;
}

enum sol_status far_pack(const struct sol_weights *w, enum phase phase) {
    struct far_call c = {.program = w->program, .weights = w};
    TRY(binding_new(w->program, phase, NULL, &c.binding));
    enum sol_status status = pack_with(&c, phase);
    binding_free(c.binding);
    return status;
}

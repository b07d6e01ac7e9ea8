/*
 * Calls with the device's memory: the interface of sol/queue.h for programs.
 *
 *   sol_program_enqueue, .. -> checks of the addresses -> far_run_step for each step, in the user's queue
 *
 * A program of the host runs at once, with the same addresses.
 */
#include "run/far.h"

/* ---- Checks ---- */

enum sol_status far_check_program(const struct sol_program *p, const struct sol_queue *q) {
    const struct far_device *d = queue_device(q);
    if (p->far ? p->far->device == d : d->target == &host_target) return SOL_OK;
    return fail(SOL_EINVAL, "the program was not compiled for the queue's device, %s %d",
                d->target->name, d->number);
}

static enum sol_status check_memory(const struct far_call *c, const char *what, const char *name,
                                    sol_ptr at, size_t size) {
    if (!size) return SOL_OK;
    enum sol_status status = buffers_check(&queue_device(c->queue)->buffers, name, at, size);
    if (status) fail_prefix("%s", what);
    return status;
}

static enum sol_status check_port(const struct far_call *c, bool is_output, int i, sol_ptr at) {
    const struct sol_port *port = is_output ? &c->program->output[i] : &c->program->input[i];
    if (!request_has_port(port, c->binding->phase)) return SOL_OK;
    return check_memory(c, is_output ? "output " : "input ", port->name, at,
                        program_port_size(c->program, is_output, i, c->binding->symbol));
}

static enum sol_status check_addresses(const struct far_call *c) {
    int64_t saved = 0;
    for (int i = 0; i < c->program->n_inputs; i++) TRY(check_port(c, false, i, c->input[i]));
    for (int i = 0; i < c->program->n_outputs; i++) TRY(check_port(c, true, i, c->output[i]));
    TRY(program_place_saved(c->program, c->binding->symbol, NULL, &saved));
    return check_memory(c, "", "what the forward call saves", c->saved, (size_t)saved);
}

/* ---- Calls ---- */

static enum sol_status run_on_device(struct far_call *c, struct sol_weights *weights) {
    TRY(queue_keep(c->queue, weights));
    TRY(queue_arena(c->queue, c->binding->arena_size, &c->arena));
    return binding_walk(c->binding, 0, far_run_step, c);
}

static enum sol_status run_on_host(const struct far_call *c, struct sol_weights *w,
                                   const int64_t *symbols) {
    const struct sol_program *p = c->program;
    void *saved = (void *)(uintptr_t)c->saved;
    void **at = mem_alloc(sizeof *at * (size_t)(p->n_inputs + p->n_outputs + 1), 16);
    if (!at) return fail(SOL_ENOMEM, "no memory for a call");
    void **out = at + p->n_inputs;
    const void *const *in = (const void *const *)at;
    for (int i = 0; i < p->n_inputs; i++) at[i] = (void *)(uintptr_t)c->input[i];
    for (int i = 0; i < p->n_outputs; i++) out[i] = (void *)(uintptr_t)c->output[i];
    enum sol_status status = c->binding->phase == BACKWARD
                                 ? sol_program_backward(p, w, symbols, in, out, saved)
                                 : sol_program_forward(p, w, symbols, in, out, saved);
    mem_free(at);
    return status;
}

/* A call that fails halfway is an operation, too, as it has commands that use the weights. */
static enum sol_status add(struct far_call *c, struct sol_weights *weights,
                           const int64_t *symbols) {
    TRY(queue_check(c->queue));
    TRY(check_addresses(c));
    enum sol_status status =
        c->program->far ? run_on_device(c, weights) : run_on_host(c, weights, symbols);
    (void)queue_count(c->queue, SOL_OK);
    return status;
}

static enum sol_status enqueue(const struct sol_program *program, enum phase phase,
                               struct sol_weights *weights, struct sol_queue *queue,
                               const int64_t *symbols, const sol_ptr *inputs,
                               const sol_ptr *outputs, sol_ptr saved) {
    struct sol_program *p = (struct sol_program *)(uintptr_t)program;
    struct far_call c = {.program = p,
                         .weights = weights,
                         .queue = queue,
                         .input = inputs,
                         .output = outputs,
                         .saved = saved};
    TRY(far_check_program(p, queue));
    TRY(request_check_symbols(p, symbols));
    if (phase == BACKWARD) TRY(weights_pack_backward(weights));
    TRY(program_acquire(p, phase, symbols, 0, &c.binding, NULL));
    lock_acquire(queue_lock(queue));
    enum sol_status status = add(&c, weights, symbols);
    lock_release(queue_lock(queue));
    program_give_back(p, c.binding, NULL);
    return status;
}

/* ---- Interface ---- */

enum sol_status sol_program_enqueue(const struct sol_program *p, struct sol_weights *weights,
                                    struct sol_queue *queue, const int64_t *symbols,
                                    const sol_ptr *inputs, const sol_ptr *outputs) {
    if (p->phase[BACKWARD].n)
        return fail(SOL_EUNSUPPORTED,
                    "a network with a backward part is enqueued by "
                    "sol_program_enqueue_forward and sol_program_enqueue_backward");
    return sol_program_enqueue_forward(p, weights, queue, symbols, inputs, outputs, 0);
}

enum sol_status sol_program_enqueue_forward(const struct sol_program *p,
                                            struct sol_weights *weights, struct sol_queue *queue,
                                            const int64_t *symbols, const sol_ptr *inputs,
                                            const sol_ptr *outputs, sol_ptr saved) {
    return enqueue(p, FORWARD, weights, queue, symbols, inputs, outputs, saved);
}

enum sol_status sol_program_enqueue_backward(const struct sol_program *p,
                                             struct sol_weights *weights, struct sol_queue *queue,
                                             const int64_t *symbols, const sol_ptr *inputs,
                                             const sol_ptr *outputs, sol_ptr saved) {
    return enqueue(p, BACKWARD, weights, queue, symbols, inputs, outputs, saved);
}

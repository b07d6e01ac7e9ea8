/*
 * Calls of a far device: a launch for each step, in one queue.
 *
 *   sol_program_run -> far_run: copies inputs -> far_run_step for each step -> copies outputs -> waits
 *   sol_weights_new -> far_pack: copies parameters -> far_run_step for each step
 *   sol_program_enqueue: far_run_step for each step, with memory of the device
 *
 * The memory of a call, for intermediate values, inputs and outputs, is the queue's, as its calls run one after the other. What a forward
 * call saves for a backward call stays on the device: the caller's memory only names it.
 */
#include "run/bind.h"
#include "run/far.h"
#include "run/host.h"

#include <string.h>

static sol_ptr resolve(const struct far_call *c, const struct buffer_ref *ref) {
    const struct far_weights *w = c->weights->far;
    switch (ref->kind) {
    case BUFFER_INPUT: return c->input[ref->index];
    case BUFFER_OUTPUT: return c->output[ref->index];
    case BUFFER_PARAM: return far_param(w, c->packing, ref->index);
    case BUFFER_PACKED: return w->packed + c->weights->packed.offset[ref->index];
    case BUFFER_ARENA: return c->arena;
    case BUFFER_SAVED: return c->saved;
    case BUFFER_CONSTANT:
        return c->program->far->constants + c->program->far->constant_offset[ref->index];
    case BUFFER_ERROR: return queue_error_words(c->queue);
    case BUFFER_NONE: break;
    }
    return 0;
}

static void resolve_all(const struct far_call *c, int i, const struct micro_batch *micro_batch,
                        sol_ptr *ptr) {
    const struct binding *b = c->binding;
    const struct step *step = b->step[i];
    for (int p = 0; p < step->n_ptr; p++) {
        const int64_t offset =
            b->ptr_offset[i][p] + micro_batch->first * b->ptr_sample_stride[i][p];
        ptr[p] = resolve(c, &step->ptr[p]);
        if (ptr[p]) ptr[p] += (uint64_t)offset;
        if (step->ptr[p].kind == BUFFER_ERROR) queue_may_fail(c->queue);
    }
}

static enum sol_status copy(const struct far_call *c, const struct transfer *transfer) {
    return far_copy(c->program, c->queue, transfer, true);
}

/* ---- Steps ---- */

static enum sol_status launch_step(struct far_call *c, int i,
                                   const struct micro_batch *micro_batch) {
    const struct step *step = c->binding->step[i];
    const struct kernel *kernel = step->data;
    sol_ptr *ptr = queue_pointers(c->queue, step->n_ptr);
    if (!ptr && step->n_ptr) return fail(SOL_ENOMEM, "no memory for a launch");
    resolve_all(c, i, micro_batch, ptr);
    if (!phase_is_prepack(c->binding->phase))
        atomic_fetch_add(&c->program->far->counts.launches, 1);
    return queue_launch(c->queue, &(struct launch){.kind = LAUNCH_KERNEL,
                                                   .name = step->layers,
                                                   .code = kernel->far->code,
                                                   .n_tasks = micro_batch->bound->n_tasks[i],
                                                   .n_ptr = step->n_ptr,
                                                   .ptr = ptr,
                                                   .n_arg = step->n_arg,
                                                   .arg = micro_batch->bound->arg[i],
                                                   .scratch = step->scratch_size});
}

/* The bytes of each tensor of a host node, and their sum, with 64 bytes for each. */
static size_t measure(const struct host_step *host, const int64_t *arg, size_t *size) {
    const int64_t *dim = arg + host->n_symbols;
    size_t sum = 0;
    for (int i = 0; i < host->n_in + host->n_out; i++) {
        size[i] = (size_t)size_element(host->tensor[i].dtype);
        for (int d = 0; d < host->tensor[i].rank; d++) size[i] *= (size_t)*dim++;
        sum += (size_t)round_up((int64_t)size[i], 64) + 64;
    }
    return sum;
}

/* Copies the inputs of a host node to memory of the host, or its outputs from there. */
static enum sol_status copy_tensors(struct far_call *c, bool to_host, int begin, int end,
                                    const sol_ptr *device, void *const *host, const size_t *size) {
    for (int i = begin; i < end; i++)
        TRY(copy(c, &(struct transfer){.kind = to_host ? TRANSFER_TO_HOST : TRANSFER_TO_DEVICE,
                                       .to = to_host ? 0 : device[i],
                                       .from = to_host ? device[i] : 0,
                                       .host = host[i],
                                       .size = size[i]}));
    return queue_wait(c->queue);
}

static enum sol_status run_on_host(const struct step *step, void *const *host, const int64_t *arg,
                                   int64_t n_tasks) {
    void *scratch = mem_alloc(step->scratch_size + 1, 64);
    if (!scratch) return fail(SOL_ENOMEM, "%s: no memory for a function of the host", step->name);
    step->kind->run(step, host, arg, scratch, 0, n_tasks);
    mem_free(scratch);
    const enum sol_status status = exec_take_failure();
    return status;
}

/* `memory` has room for all tensors of the node and their addresses. */
static enum sol_status run_node(struct far_call *c, int i, const struct micro_batch *micro_batch,
                                char *memory) {
    const struct step *step = c->binding->step[i];
    const struct host_step *host = step->data;
    const int n = host->n_in + host->n_out;
    size_t *size = (size_t *)(void *)memory;
    void **at = (void **)(void *)(size + n);
    sol_ptr *device = (sol_ptr *)(void *)(at + n);
    const int64_t *arg = micro_batch->bound->arg[i];
    (void)measure(host, arg, size);
    memory += round_up((int64_t)((size_t)n * (sizeof *size + sizeof *at + sizeof *device)), 64);
    for (int k = 0; k < n; k++) {
        at[k] = memory;
        memory += round_up((int64_t)size[k], 64) + 64;
    }
    resolve_all(c, i, micro_batch, device);
    TRY(copy_tensors(c, true, 0, host->n_in, device, at, size));
    TRY(run_on_host(step, at, arg, micro_batch->bound->n_tasks[i]));
    return copy_tensors(c, false, host->n_in, n, device, at, size);
}

/* A function of the host, in the middle of a call: its tensors are copied there and back. */
static enum sol_status call_host(struct far_call *c, int i, const struct micro_batch *micro_batch) {
    const struct host_step *host = c->binding->step[i]->data;
    const size_t n = (size_t)(host->n_in + host->n_out);
    size_t *size = mem_alloc((n + 1) * sizeof *size, 16);
    const size_t tables = n * (sizeof(size_t) + sizeof(void *) + sizeof(sol_ptr)) + 128;
    char *memory =
        size ? mem_alloc(measure(host, micro_batch->bound->arg[i], size) + tables, 64) : NULL;
    enum sol_status status = memory ? run_node(c, i, micro_batch, memory)
                                    : fail(SOL_ENOMEM, "no memory for a function of the host");
    mem_free(size);
    mem_free(memory);
    return status;
}

enum sol_status far_run_step(void *user, int i, const struct micro_batch *micro_batch) {
    struct far_call *c = user;
    const struct step *step = c->binding->step[i];
    const double start = c->seconds ? os_now() : 0;
    if (!micro_batch->bound->n_tasks[i]) return SOL_OK;
    if (step->kind == &step_kernel) TRY(launch_step(c, i, micro_batch));
    else TRY(call_host(c, i, micro_batch));
    if (!c->seconds) return SOL_OK;
    TRY(queue_wait(c->queue));
    c->seconds[i] += os_now() - start;
    return SOL_OK;
}

/* ---- Calls with the host's memory ---- */

/* Where the inputs and outputs lie on the device: behind the intermediate values. NULL: a port that the call does not use. */
struct staged {
    sol_ptr *input, *output;
    size_t *input_size, *output_size;
    size_t size; /* of all memory of the call */
};

static void place_port(const struct request *r, struct staged *s, const int64_t *symbol,
                       bool is_output, int i) {
    const struct sol_port *port = is_output ? &r->program->output[i] : &r->program->input[i];
    const bool used = request_has_port(port, r->phase) &&
                      (is_output ? (const void *)r->outputs[i] : r->inputs[i]);
    const size_t size = used ? program_port_size(r->program, is_output, i, symbol) : 0;
    (is_output ? s->output : s->input)[i] = s->size;
    (is_output ? s->output_size : s->input_size)[i] = size;
    s->size += (size_t)round_up((int64_t)size, 64);
}

static enum sol_status copy_input(struct far_call *c, const struct request *r,
                                  const struct staged *s, int i) {
    return copy(c, &(struct transfer){.kind = TRANSFER_TO_DEVICE,
                                      .to = s->input[i],
                                      .host = (void *)(uintptr_t)r->inputs[i],
                                      .size = s->input_size[i]});
}

/* Does the call read this output? A backward call does not write those of the forward call, which the caller passes again. */
static bool is_read(const struct request *r, int output) {
    return r->phase == BACKWARD && !r->program->output[output].is_backward;
}

/* In front of the steps for those that the call reads, behind them for the others. */
static enum sol_status copy_output(struct far_call *c, const struct request *r,
                                   const struct staged *s, int i, bool is_front) {
    if (is_read(r, i) != is_front) return SOL_OK;
    return copy(c, &(struct transfer){.kind = is_front ? TRANSFER_TO_DEVICE : TRANSFER_TO_HOST,
                                      .to = is_front ? s->output[i] : 0,
                                      .from = is_front ? 0 : s->output[i],
                                      .host = r->outputs[i],
                                      .size = s->output_size[i]});
}

/* Memory on the device for what the caller's `saved` names. */
static enum sol_status find_saved(struct far_call *c, const struct request *r) {
    int64_t size = 0;
    if (!r->saved) return SOL_OK;
    TRY(program_place_saved(r->program, c->binding->symbol, NULL, &size));
    if (!size) return SOL_OK;
    return far_saved(queue_device(c->queue), c->queue, r->saved, (size_t)size, r->phase == FORWARD,
                     &c->saved);
}

static enum sol_status run_staged(struct far_call *c, const struct request *r, struct staged *s) {
    const struct sol_program *p = r->program;
    sol_ptr base;
    for (int i = 0; i < p->n_inputs; i++) place_port(r, s, c->binding->symbol, false, i);
    for (int i = 0; i < p->n_outputs; i++) place_port(r, s, c->binding->symbol, true, i);
    TRY(queue_arena(c->queue, s->size, &base));
    TRY(find_saved(c, r));
    c->arena = base, c->input = s->input, c->output = s->output;
    for (int i = 0; i < p->n_inputs; i++) s->input[i] += base;
    for (int i = 0; i < p->n_outputs; i++) s->output[i] += base;
    for (int i = 0; i < p->n_inputs; i++) TRY(copy_input(c, r, s, i));
    for (int i = 0; i < p->n_outputs; i++) TRY(copy_output(c, r, s, i, true));
    TRY(far_copy_updated(c->weights, c->queue, TRANSFER_TO_DEVICE));
    TRY(binding_walk(c->binding, 0, far_run_step, c));
    TRY(queue_wait(c->queue)); /* if it failed, outputs and parameters stay as they are */
    for (int i = 0; i < p->n_outputs; i++) TRY(copy_output(c, r, s, i, false));
    if (r->phase == FORWARD) TRY(far_copy_updated(c->weights, c->queue, TRANSFER_TO_HOST));
    return queue_wait(c->queue);
}

static enum sol_status stage(struct far_call *c, const struct request *r) {
    const size_t n = (size_t)(r->program->n_inputs + r->program->n_outputs);
    sol_ptr *at = mem_alloc((n + 1) * (sizeof *at + sizeof(size_t)), 16);
    if (!at) return fail(SOL_ENOMEM, "no memory for a call");
    struct staged s = {.input = at,
                       .output = at + r->program->n_inputs,
                       .input_size = (size_t *)(void *)(at + n),
                       .output_size = (size_t *)(void *)(at + n) + r->program->n_inputs,
                       .size = (size_t)round_up((int64_t)c->binding->arena_size, 64)};
    enum sol_status status = run_staged(c, r, &s);
    if (status) (void)queue_wait(c->queue); /* copies from the caller's memory may be running */
    mem_free(at);
    return status;
}

/* The device has no room for the whole batch: tries smaller and smaller micro-batches, as long as they need less memory. The message of
 * the last try remains. */
static enum sol_status stage_divided(struct far_call *c, const struct request *r) {
    struct binding *whole = c->binding;
    enum sol_status status = SOL_ENOMEM;
    size_t before = whole->arena_size;
    for (size_t cache = before / 2; status == SOL_ENOMEM && cache; cache /= 4) {
        TRY(binding_new_for(r->program, r->phase, r->symbols, (int64_t)cache, &c->binding));
        const bool is_smaller = c->binding->arena_size < before;
        if (is_smaller) {
            before = c->binding->arena_size;
            status = stage(c, r);
        }
        binding_free(c->binding);
        c->binding = whole;
    }
    return status;
}

enum sol_status far_run(const struct request *r, double *seconds) {
    struct sol_program *p = (struct sol_program *)(uintptr_t)r->program;
    struct far_call c = {.program = p, .weights = r->weights, .seconds = seconds};
    TRY(program_acquire(p, r->phase, r->symbols, 0, &c.binding, NULL));
    enum sol_status status = queue_take(p->far->device, &c.queue);
    if (!status) {
        status = stage(&c, r);
        if (status == SOL_ENOMEM) status = stage_divided(&c, r);
        queue_put_back(c.queue);
    }
    program_give_back(p, c.binding, NULL);
    return status;
}

/*
 * What lives on a far device longer than a call: the open devices, the code and constants of programs, the memory of weights.
 *
 *   far_attach (at compile time) -> first weights: far_load opens the device, loads kernels, copies constants
 *   sol_weights_new -> alloc_weights: copies the parameters that steps read, and has memory for packed ones -> far_pack fills it
 *
 * Invariant: a program is loaded at most once, into one device. All that it has there is freed with it.
 */
#include "run/far.h"

#include "run/bind.h"

#include <string.h>

/* ---- Open devices ---- */

static struct lock lock = LOCK_INITIALIZER;
static struct far_device *devices; /* guarded by the lock, with their n_users */

/* The device that is open, with one user more; NULL: none is. The caller holds the lock. */
static struct far_device *find(const struct target *target, int number) {
    struct far_device *d = devices;
    while (d && (d->target != target || d->number != number)) d = d->next;
    if (d) d->n_users++;
    return d;
}

static struct far_device *find_locked(const struct target *target, int number) {
    lock_acquire(&lock);
    struct far_device *d = find(target, number);
    lock_release(&lock);
    return d;
}

/* Memory of users; programs and weights free theirs before. */
static void report_leaks(const struct far_device *d) {
    size_t sum = 0;
    for (int i = 0; i < d->buffers.n; i++) sum += d->buffers.buffer[i].size;
    if (d->buffers.n)
        log_write(LOG_WARN, "device %s %d: %d allocations of %zu bytes have not been freed",
                  d->target->name, d->number, d->buffers.n, sum);
}

/* At the end of the process: devices that are still open. */
static __attribute__((destructor)) void report_all_leaks(void) {
    for (const struct far_device *d = devices; d; d = d->next) report_leaks(d);
}

static void close_device(struct far_device *d) {
    report_leaks(d);
    if (d->context) {
        queue_drop_idle(d);
        far_saved_drop(d);
        d->target->close(d->context);
    }
    buffers_fini(&d->buffers);
    lock_fini(&d->lock);
    mem_free(d);
}

/* Opening takes long, so it is done without the lock. If another thread was faster, its device is used. */
static struct far_device *enter(struct far_device *new) {
    lock_acquire(&lock);
    struct far_device *other = find(new->target, new->number);
    if (!other) {
        new->next = devices;
        devices = new;
    }
    lock_release(&lock);
    if (!other) return new;
    close_device(new);
    return other;
}

enum sol_status far_open(const struct target *target, int number, struct far_device **out) {
    if ((*out = find_locked(target, number))) return SOL_OK;
    struct far_device *new = mem_alloc(sizeof *new, 16);
    if (!new) return fail(SOL_ENOMEM, "no memory to open device %s %d", target->name, number);
    *new = (struct far_device){.target = target, .number = number, .n_users = 1};
    buffers_init(&new->buffers);
    lock_init(&new->lock);
    enum sol_status status = target->open(number, &new->context);
    if (status) close_device(new);
    else *out = enter(new);
    return status;
}

void far_close(struct far_device *d) {
    if (!d) return;
    lock_acquire(&lock);
    const bool is_last = --d->n_users == 0;
    struct far_device **at = &devices;
    while (is_last && *at != d) at = &(*at)->next;
    if (is_last) *at = d->next;
    lock_release(&lock);
    if (is_last) close_device(d);
}

/* ---- Programs ---- */

static enum sol_status load_kernels(struct far_program *far) {
    for (int i = 0; i < far->n_kernels; i++) {
        struct far_kernel *k = &far->kernel[i];
        TRY(far->target->load(far->device->context, k->image, k->size, k->symbol, &k->code));
    }
    return SOL_OK;
}

enum sol_status far_copy(const struct sol_program *p, struct sol_queue *q,
                         const struct transfer *transfer, bool is_call) {
    struct far_counts *counts = &p->far->counts;
    TRY(queue_copy(q, transfer));
    const bool to_host = transfer->kind == TRANSFER_TO_HOST;
    atomic_fetch_add(!is_call  ? &counts->weights
                     : to_host ? &counts->to_host
                               : &counts->to_device,
                     (int64_t)transfer->size);
    return SOL_OK;
}

static enum sol_status copy_constants(const struct sol_program *p, struct sol_queue *q) {
    const struct far_program *far = p->far;
    for (int i = 0; i < p->n_constants; i++) {
        const struct constant *c = &p->constant[i];
        const struct transfer transfer = {.kind = TRANSFER_TO_DEVICE,
                                          .to = far->constants + far->constant_offset[i],
                                          .host = (void *)(uintptr_t)c->at,
                                          .size = c->size};
        TRY(far_copy(p, q, &transfer, false));
    }
    return queue_wait(q);
}

static enum sol_status load_constants(const struct sol_program *p) {
    struct sol_queue *q;
    size_t size = 0;
    for (int i = 0; i < p->n_constants; i++) {
        p->far->constant_offset[i] = size;
        size += (size_t)round_up((int64_t)p->constant[i].size, 64);
    }
    if (!size) return SOL_OK;
    TRY(queue_take(p->far->device, &q));
    enum sol_status status = queue_alloc(q, size, &p->far->constants);
    if (!status) status = copy_constants(p, q);
    queue_put_back(q);
    return status;
}

static void unload(const struct sol_program *p) {
    struct far_program *far = p->far;
    struct sol_queue *q = NULL;
    if (!far->device) return;
    enum sol_status status = queue_take(far->device, &q);
    for (int i = 0; i < far->n_kernels && !status; i++)
        if (far->kernel[i].code)
            status = queue_launch(q, &(struct launch){.kind = LAUNCH_UNLOAD,
                                                      .name = "unload",
                                                      .code = far->kernel[i].code});
    if (!status) status = queue_dealloc(q, far->constants);
    if (q) queue_put_back(q);
    far_close(far->device);
    far->device = NULL, far->constants = 0;
    for (int i = 0; i < far->n_kernels; i++) far->kernel[i].code = 0;
}

static enum sol_status load(struct sol_program *p) {
    TRY(far_open(p->far->target, p->far->number, &p->far->device));
    enum sol_status status = load_kernels(p->far);
    if (!status) status = load_constants(p);
    if (status) unload(p);
    return status;
}

enum sol_status far_load(struct sol_program *p) {
    if (!lock_begin(&p->lock, &p->far->state)) return SOL_OK;
    enum sol_status status = load(p);
    lock_end(&p->lock, &p->far->state, !status);
    return status;
}

/* ---- Sizes ---- */

size_t far_port_size(const struct sol_program *p, bool is_output, int i, const int64_t *symbols) {
    const struct sol_port *port = is_output ? &p->output[i] : &p->input[i];
    const struct size *dim = is_output ? p->output_dim[i] : p->input_dim[i];
    size_t size = (size_t)size_element(port->dtype);
    for (int d = 0; d < port->rank; d++) size *= (size_t)size_eval(&dim[d], symbols);
    return size;
}

/* Parameters have known sizes. */
static size_t param_size(const struct sol_port *port) {
    size_t size = (size_t)size_element(port->dtype);
    for (int d = 0; d < port->rank; d++) size *= (size_t)port->dim[d];
    return size;
}

/* ---- Weights ---- */

/* Sets the offsets of the parameters that steps of the list read to 0. */
static void note_params(const struct step_list *list, size_t *offset) {
    for (int i = 0; i < list->n; i++)
        for (int k = 0; k < list->at[i].n_ptr; k++)
            if (list->at[i].ptr[k].kind == BUFFER_PARAM) offset[list->at[i].ptr[k].index] = 0;
}

/* Fills in the offsets of the parameters on the device; returns the bytes of all. */
static size_t place_params(const struct sol_program *p, size_t *offset) {
    size_t size = 0;
    for (int i = 0; i < p->n_params; i++) offset[i] = SIZE_MAX;
    for (int phase = 0; phase < N_PHASES; phase++) note_params(&p->phase[phase], offset);
    for (int i = 0; i < p->n_params; i++) {
        if (offset[i] == SIZE_MAX) continue;
        offset[i] = size;
        size += (size_t)round_up((int64_t)param_size(&p->param[i]), 64);
    }
    return size;
}

enum sol_status far_copy_params(const struct sol_weights *w, struct sol_queue *q,
                                enum transfer_kind kind, bool only_updated) {
    const struct sol_program *p = w->program;
    for (int i = 0; i < p->n_params; i++) {
        const size_t offset = w->far->param_offset[i];
        if (offset == SIZE_MAX || (only_updated && !p->param[i].is_updated)) continue;
        const sol_ptr at = w->far->params + offset;
        const struct transfer transfer = {.kind = kind,
                                          .to = kind == TRANSFER_TO_DEVICE ? at : 0,
                                          .from = kind == TRANSFER_TO_DEVICE ? 0 : at,
                                          .host = (void *)(uintptr_t)w->param[i],
                                          .size = param_size(&p->param[i])};
        TRY(far_copy(p, q, &transfer, only_updated));
    }
    return SOL_OK;
}

static enum sol_status alloc_on_device(struct sol_weights *w, struct sol_queue *q) {
    const struct sol_program *p = w->program;
    const size_t packed = weights_place(p, w->packed.offset),
                 params = place_params(p, w->far->param_offset);
    if (packed) TRY(queue_alloc(q, packed, &w->far->packed));
    return params ? queue_alloc(q, params, &w->far->params) : SOL_OK;
}

static void free_weights(struct sol_weights *w) {
    struct sol_queue *q = NULL;
    if (!w->far) return;
    enum sol_status status = queue_take(w->program->far->device, &q);
    if (!status) status = queue_dealloc(q, w->far->packed);
    if (!status) status = queue_dealloc(q, w->far->params);
    if (q) queue_put_back(q);
    mem_free(w->far);
    w->far = NULL;
}

static enum sol_status alloc_weights(struct sol_weights *w) {
    struct sol_program *p = (struct sol_program *)(uintptr_t)w->program;
    struct sol_queue *q;
    TRY(far_load(p));
    w->far = mem_alloc(sizeof *w->far + (size_t)p->n_params * sizeof(size_t), 16);
    if (!w->far) return fail(SOL_ENOMEM, "no memory for weights");
    w->far->param_offset = (size_t *)(void *)(w->far + 1);
    enum sol_status status = queue_take(p->far->device, &q);
    if (!status) {
        status = alloc_on_device(w, q);
        queue_put_back(q);
    }
    if (status) free_weights(w);
    return status;
}

/* ---- Weights that are packed already ---- */

/* All slots at once: on both sides they lie one behind the other. */
static enum sol_status copy_packed(const struct sol_weights *w, struct sol_queue *q,
                                   enum transfer_kind kind) {
    const bool is_up = kind == TRANSFER_TO_DEVICE;
    if (!w->packed.n) return SOL_OK;
    return far_copy(w->program, q,
                    &(struct transfer){.kind = kind,
                                       .to = is_up ? w->far->packed : 0,
                                       .from = is_up ? 0 : w->far->packed,
                                       .host = w->packed.slot[0],
                                       .size = w->packed.offset[w->packed.n]},
                    false);
}

static enum sol_status copy_weights(const struct sol_weights *w, bool with_params,
                                    enum transfer_kind kind) {
    struct sol_queue *q;
    TRY(queue_take(w->program->far->device, &q));
    enum sol_status status = copy_packed(w, q, kind);
    if (!status && with_params) status = far_copy_params(w, q, kind, false);
    if (!status) status = queue_wait(q);
    queue_put_back(q);
    return status;
}

static enum sol_status adopt(struct sol_weights *w) {
    TRY(alloc_weights(w));
    enum sol_status status = copy_weights(w, true, TRANSFER_TO_DEVICE);
    if (status) free_weights(w);
    return status;
}

enum sol_status far_fetch_packed(const struct sol_weights *w, char *memory) {
    for (int i = 0; i < w->packed.n; i++) w->packed.slot[i] = memory + w->packed.offset[i];
    return copy_weights(w, false, TRANSFER_TO_HOST);
}

/* ---- Attaching ---- */

static void free_saved(const struct sol_program *p, const void *saved) {
    if (p->far->device) far_saved_free(p->far->device, saved);
}

static void count(const struct sol_program *p, struct sol_transfers *out) {
    struct far_counts *counts = &p->far->counts;
    *out = (struct sol_transfers){.to_device = atomic_load(&counts->to_device),
                                  .to_host = atomic_load(&counts->to_host),
                                  .launches = atomic_load(&counts->launches),
                                  .weights = atomic_load(&counts->weights)};
}

const struct runner far_runner = {.run = far_run,
                                  .alloc = alloc_weights,
                                  .pack = far_pack,
                                  .adopt = adopt,
                                  .free = free_weights,
                                  .release = unload,
                                  .free_saved = free_saved,
                                  .count = count};

void far_attach(struct sol_program *p, const struct target *target, int number, int n_constants,
                int n_kernels, struct far_kernel *kernel) {
    p->far = arena_alloc(&p->arena, sizeof *p->far);
    *p->far =
        (struct far_program){.target = target,
                             .number = number,
                             .n_kernels = n_kernels,
                             .kernel = kernel,
                             .constant_offset = ARENA_ARRAY(&p->arena, size_t, n_constants + 1)};
    p->runner = &far_runner;
}

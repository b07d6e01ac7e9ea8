/*
 * What lives on a far device longer than a call: the open devices, the code and constants of programs. far_weights.c: weights.
 *
 *   far_attach (at compile time) -> first weights: far_load opens the device, loads kernels, copies constants
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
                                  .alloc = far_alloc_weights,
                                  .pack = far_pack,
                                  .adopt = far_adopt,
                                  .free = far_free_weights,
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

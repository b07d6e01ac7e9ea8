/*
 * Queues: one order for the commands of several calls, on the streams of a far device.
 *
 *   far_call.c, sol_copy_.., sol_alloc -> queue_launch, queue_copy -> struct target
 *
 * Kernels go to stream 0, copies between host and device to the last stream; with two streams they overlap, unless the queue needs
 * their order. Where a queue goes from one stream to the other, a command of the new stream waits for the last event of the old one. So a
 * queue needs no stream of its own, and any number of queues share the device.
 *
 * Invariants: last[s] is the queue's last event on stream s, and seen[s] the last event of the other stream that stream s waits for. A
 * queue that failed stays failed.
 */
#include "run/far.h"

#include <stdio.h>
#include <string.h>

/* Weights that calls use which may not be done. */
struct kept {
    struct kept *next;
    struct sol_weights *weights;
};

struct sol_queue {
    struct far_device *device;
    uint64_t last[2], seen[2];
    enum sol_status status; /* of the first failure */
    char message[512];
    sol_ptr arena, error; /* error: ERROR_WORDS words */
    size_t arena_size;
    bool may_fail;
    struct kept *kept;
    int n_pointers;
    sol_ptr *pointer;
    struct sol_queue *next; /* in the list of idle ones */
};

struct far_device *queue_device(const struct sol_queue *q) { return q->device; }
sol_ptr queue_error_words(const struct sol_queue *q) { return q->error; }
void queue_may_fail(struct sol_queue *q) { q->may_fail = true; }

/* ---- Failures ---- */

/* Remembers the failure whose message was set last. */
static enum sol_status note(struct sol_queue *q, enum sol_status status) {
    if (!status || q->status) return status;
    q->status = status;
    (void)snprintf(q->message, sizeof q->message, "%s", sol_error());
    return status;
}

static enum sol_status check(const struct sol_queue *q) {
    return q->status ? fail(q->status, "%s", q->message) : SOL_OK;
}

/* ---- Commands ---- */

static int copy_stream(const struct sol_queue *q) { return q->device->target->n_streams - 1; }

/* Lets stream `to` wait for what the queue has given to the other one. */
static enum sol_status order(struct sol_queue *q, int to) {
    const int from = !to;
    if (q->device->target->n_streams == 1 || q->last[from] <= q->seen[to]) return SOL_OK;
    const int64_t arg[] = {from, (int64_t)q->last[from]};
    const struct launch wait = {.kind = LAUNCH_WAIT, .name = "wait", .n_arg = 2, .arg = arg};
    TRY(q->device->target->launch(q->device->context, to, &wait, NULL));
    q->seen[to] = q->last[from];
    return SOL_OK;
}

enum sol_status queue_launch(struct sol_queue *q, const struct launch *launch) {
    TRY(check(q));
    const int stream = launch->kind == LAUNCH_HOST ? copy_stream(q) : 0;
    TRY(order(q, stream));
    return q->device->target->launch(q->device->context, stream, launch, &q->last[stream]);
}

enum sol_status queue_copy(struct sol_queue *q, const struct transfer *transfer) {
    TRY(check(q));
    if (!transfer->size) return SOL_OK;
    const int stream = transfer->kind == TRANSFER_ON_DEVICE ? 0 : copy_stream(q);
    TRY(order(q, stream));
    return q->device->target->copy(q->device->context, stream, transfer, &q->last[stream]);
}

/* An event behind which copies may use the memory, as commands before it may still use it for something else. */
static enum sol_status mark(struct sol_queue *q) {
    const struct launch none = {.kind = LAUNCH_WAIT, .name = "mark", .n_arg = 2, .arg = (int64_t[2]){0, 0}};
    if (q->device->target->n_streams == 1) return SOL_OK;
    return q->device->target->launch(q->device->context, 0, &none, &q->last[0]);
}

enum sol_status queue_alloc(struct sol_queue *q, size_t size, sol_ptr *out) {
    TRY(check(q));
    TRY(q->device->target->alloc(q->device->context, 0, size ? size : 1, out));
    return mark(q);
}

/* Copies that use the memory come first. */
enum sol_status queue_dealloc(struct sol_queue *q, sol_ptr at) {
    if (!at) return SOL_OK;
    if (!q->status) TRY(order(q, 0));
    return q->device->target->free(q->device->context, 0, at);
}

/* ---- Memory of calls ---- */

enum sol_status queue_arena(struct sol_queue *q, size_t size, sol_ptr *out) {
    if (size > q->arena_size || !q->arena) {
        TRY(queue_dealloc(q, q->arena));
        q->arena = 0, q->arena_size = 0;
        TRY(queue_alloc(q, size, &q->arena));
        q->arena_size = size;
    }
    *out = q->arena;
    return SOL_OK;
}

sol_ptr *queue_pointers(struct sol_queue *q, int n) {
    if (n <= q->n_pointers) return q->pointer;
    sol_ptr *larger = mem_alloc(sizeof *larger * (size_t)n, 16);
    if (!larger) return NULL;
    mem_free(q->pointer);
    q->pointer = larger;
    q->n_pointers = n;
    return larger;
}

enum sol_status queue_keep(struct sol_queue *q, struct sol_weights *weights) {
    if (q->kept && q->kept->weights == weights) return SOL_OK;
    struct kept *kept = mem_alloc(sizeof *kept, 16);
    if (!kept) return fail(SOL_ENOMEM, "no memory for a call");
    sol_weights_retain(weights);
    *kept = (struct kept){q->kept, weights};
    q->kept = kept;
    return SOL_OK;
}

static void release_kept(struct sol_queue *q) {
    for (struct kept *kept = q->kept, *next; kept; kept = next) {
        next = kept->next;
        sol_weights_release(kept->weights);
        mem_free(kept);
    }
    q->kept = NULL;
}

/* ---- Waiting ---- */

static enum sol_status wait_streams(struct sol_queue *q) {
    const struct target *target = q->device->target;
    for (int s = target->n_streams - 1; s >= 0; s--)
        if (q->last[s]) TRY(target->wait(q->device->context, s, q->last[s]));
    return SOL_OK;
}

/* The message refers to texts of programs, which are kept. */
static enum sol_status read_words(struct sol_queue *q) {
    int64_t words[ERROR_WORDS] = {0};
    if (!q->may_fail) return SOL_OK;
    q->may_fail = false;
    const struct transfer read = {
        .kind = TRANSFER_TO_HOST, .from = q->error, .host = words, .size = sizeof words};
    TRY(queue_copy(q, &read));
    TRY(wait_streams(q));
    return exec_check_words(words);
}

enum sol_status queue_wait(struct sol_queue *q) {
    enum sol_status status = check(q);
    if (!status) status = wait_streams(q);
    if (!status) status = read_words(q);
    (void)note(q, status);
    release_kept(q);
    return status ? check(q) : SOL_OK;
}

/* ---- Queues ---- */

static enum sol_status clear_words(struct sol_queue *q) {
    const int64_t arg[] = {0, ERROR_WORDS * (int64_t)sizeof(int64_t)};
    const struct launch fill = {
        .kind = LAUNCH_FILL, .name = "fill", .n_ptr = 1, .ptr = &q->error, .n_arg = 2, .arg = arg};
    return queue_launch(q, &fill);
}

/* The queue takes over the reference to the device. */
static enum sol_status make(struct far_device *device, struct sol_queue **out) {
    struct sol_queue *q = mem_alloc(sizeof *q, 16);
    if (!q) return fail(SOL_ENOMEM, "no memory for a queue");
    q->device = device;
    enum sol_status status = queue_alloc(q, ERROR_WORDS * sizeof(int64_t), &q->error);
    if (!status) status = clear_words(q);
    if (status) mem_free(q);
    else *out = q;
    return status;
}

/* Frees the queue, whose operations are done, without the device. */
static void drop(struct sol_queue *q) {
    const enum sol_status a = queue_dealloc(q, q->arena), b = queue_dealloc(q, q->error);
    (void)a, (void)b; /* of a broken device */
    release_kept(q);
    mem_free(q->pointer);
    mem_free(q);
}

enum sol_status queue_new(const struct target *target, int number, struct sol_queue **out) {
    struct far_device *device;
    TRY(far_open(target, number, &device));
    enum sol_status status = make(device, out);
    if (status) far_close(device);
    return status;
}

enum sol_status queue_take(struct far_device *device, struct sol_queue **out) {
    lock_acquire(&device->lock);
    struct sol_queue *q = device->idle;
    if (q) device->idle = q->next;
    lock_release(&device->lock);
    if (q) q->next = NULL;
    else TRY(make(device, &q));
    *out = q;
    return SOL_OK;
}

/* A queue that failed is not used again. */
void queue_put_back(struct sol_queue *q) {
    if (q->status) {
        drop(q);
        return;
    }
    lock_acquire(&q->device->lock);
    q->next = q->device->idle;
    q->device->idle = q;
    lock_release(&q->device->lock);
}

void queue_drop_idle(struct far_device *device) {
    for (struct sol_queue *q = device->idle, *next; q; q = next) {
        next = q->next;
        drop(q);
    }
    device->idle = NULL;
}

/* ---- Interface ---- */

enum sol_status sol_queue_sync(struct sol_queue *q) { return queue_wait(q); }

void sol_queue_free(struct sol_queue *q) {
    if (!q) return;
    struct far_device *device = q->device;
    const enum sol_status status = queue_wait(q);
    (void)status; /* the caller could have waited */
    drop(q);
    far_close(device);
}

enum sol_status sol_alloc(struct sol_queue *q, size_t size, sol_ptr *out) {
    TRY(queue_alloc(q, size, out));
    if (buffers_add(&q->device->buffers, *out, size ? size : 1)) return SOL_OK;
    TRY(queue_dealloc(q, *out));
    return fail(SOL_ENOMEM, "no memory for the table of allocations");
}

enum sol_status sol_free(struct sol_queue *q, sol_ptr at) {
    if (!at) return SOL_OK;
    TRY(check(q));
    if (!buffers_remove(&q->device->buffers, at))
        return fail(SOL_EINVAL, "no allocation of the device begins at %#llx",
                    (unsigned long long)at);
    return queue_dealloc(q, at);
}

static enum sol_status copy(struct sol_queue *q, const char *what, const struct transfer *t) {
    if (!t->size) return SOL_OK;
    if (t->to) TRY(buffers_check(&q->device->buffers, what, t->to, t->size));
    if (t->from) TRY(buffers_check(&q->device->buffers, what, t->from, t->size));
    if (t->kind == TRANSFER_TO_DEVICE ? !t->host || !t->to
                                      : !t->from || (t->kind == TRANSFER_TO_HOST ? !t->host : !t->to))
        return fail(SOL_EINVAL, "%s: a pointer is NULL", what);
    return queue_copy(q, t);
}

enum sol_status sol_copy_to_device(struct sol_queue *q, sol_ptr to, const void *from, size_t size) {
    return copy(q, "copy to the device",
                &(struct transfer){.kind = TRANSFER_TO_DEVICE,
                                   .to = to,
                                   .host = (void *)(uintptr_t)from,
                                   .size = size});
}

enum sol_status sol_copy_to_host(struct sol_queue *q, void *to, sol_ptr from, size_t size) {
    return copy(q, "copy to the host",
                &(struct transfer){
                    .kind = TRANSFER_TO_HOST, .from = from, .host = to, .size = size});
}

enum sol_status sol_copy_on_device(struct sol_queue *q, sol_ptr to, sol_ptr from, size_t size) {
    return copy(q, "copy on the device",
                &(struct transfer){
                    .kind = TRANSFER_ON_DEVICE, .to = to, .from = from, .size = size});
}

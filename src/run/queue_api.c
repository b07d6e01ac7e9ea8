/*
 * The interface of queues (sol/queue.h): checks what users pass, and takes the queue's lock, so that several threads may use a queue.
 *
 * Calls with the host's memory use queues of their own, which no other thread knows, without the lock.
 */
#include "run/far.h"

#define LOCKED(q, call)                              \
    do {                                             \
        lock_acquire(queue_lock(q));                 \
        const enum sol_status locked = (call);       \
        lock_release(queue_lock(q));                 \
        return locked;                               \
    } while (0)

enum sol_status sol_queue_sync(struct sol_queue *q) { LOCKED(q, queue_wait(q)); }

enum sol_status sol_queue_event(struct sol_queue *q, uint64_t *out) {
    *out = 0;
    LOCKED(q, queue_record(q, out));
}

enum sol_status sol_queue_sync_event(struct sol_queue *q, uint64_t event) {
    return queue_wait_event(q, event);
}

void sol_queue_free(struct sol_queue *q) {
    if (!q) return;
    const enum sol_status status = queue_wait(q);
    (void)status; /* the caller could have waited */
    queue_close(q);
}

/* Locks one after the other: a queue's commands so far stay what they are. */
enum sol_status sol_queue_wait(struct sol_queue *q, struct sol_queue *other, uint64_t event) {
    if (queue_device(q) != queue_device(other))
        return fail(SOL_EINVAL, "queues of two devices cannot wait for each other");
    if (q == other) LOCKED(q, queue_count(q, queue_order(q, q, event)));
    struct sol_queue *first = q < other ? q : other, *second = q < other ? other : q;
    lock_acquire(queue_lock(first));
    lock_acquire(queue_lock(second));
    const enum sol_status status = queue_count(q, queue_order(q, other, event));
    lock_release(queue_lock(second));
    lock_release(queue_lock(first));
    return status;
}

enum sol_status sol_queue_call(struct sol_queue *q, void (*function)(void *user), void *user) {
    const struct launch call = {
        .kind = LAUNCH_HOST, .name = "a function of the host", .function = function, .user = user};
    if (!function) return fail(SOL_EINVAL, "a call of the host: the function is NULL");
    LOCKED(q, queue_count(q, queue_launch(q, &call)));
}

/* ---- Memory ---- */

static enum sol_status alloc(struct sol_queue *q, size_t size, sol_ptr *out) {
    TRY(queue_alloc(q, size, out));
    if (buffers_add(&queue_device(q)->buffers, *out, size ? size : 1)) return SOL_OK;
    TRY(queue_dealloc(q, *out));
    return fail(SOL_ENOMEM, "no memory for the table of allocations");
}

enum sol_status sol_alloc(struct sol_queue *q, size_t size, sol_ptr *out) {
    *out = 0;
    LOCKED(q, queue_count(q, alloc(q, size, out)));
}

static enum sol_status free_buffer(struct sol_queue *q, sol_ptr at) {
    TRY(queue_check(q));
    if (!buffers_remove(&queue_device(q)->buffers, at))
        return fail(SOL_EINVAL, "no allocation of the device begins at %#llx",
                    (unsigned long long)at);
    return queue_dealloc(q, at);
}

enum sol_status sol_free(struct sol_queue *q, sol_ptr at) {
    if (!at) return SOL_OK;
    LOCKED(q, queue_count(q, free_buffer(q, at)));
}

/* ---- Copies ---- */

static enum sol_status copy(struct sol_queue *q, const char *what, const struct transfer *t) {
    struct buffers *buffers = &queue_device(q)->buffers;
    const bool to = t->kind != TRANSFER_TO_HOST, from = t->kind != TRANSFER_TO_DEVICE;
    if (!t->size) return SOL_OK;
    if (to) TRY(buffers_check(buffers, what, t->to, t->size));
    if (from) TRY(buffers_check(buffers, what, t->from, t->size));
    if ((!to || !from) && !t->host) return fail(SOL_EINVAL, "%s: the host's pointer is NULL", what);
    LOCKED(q, queue_count(q, queue_copy(q, t)));
}

enum sol_status sol_copy_to_device(struct sol_queue *q, sol_ptr to, const void *from, size_t size) {
    return copy(
        q, "copy to the device",
        &(struct transfer){
            .kind = TRANSFER_TO_DEVICE, .to = to, .host = (void *)(uintptr_t)from, .size = size});
}

enum sol_status sol_copy_to_host(struct sol_queue *q, void *to, sol_ptr from, size_t size) {
    return copy(
        q, "copy to the host",
        &(struct transfer){.kind = TRANSFER_TO_HOST, .from = from, .host = to, .size = size});
}

enum sol_status sol_copy_on_device(struct sol_queue *q, sol_ptr to, sol_ptr from, size_t size) {
    return copy(
        q, "copy on the device",
        &(struct transfer){.kind = TRANSFER_ON_DEVICE, .to = to, .from = from, .size = size});
}

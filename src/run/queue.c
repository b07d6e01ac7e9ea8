/*
 * Queues: one order for the commands of several calls, on the streams of a far device.
 *
 *   far_call.c, queue_api.c -> queue_launch, queue_copy -> small copies: pack.c -> struct target
 *
 * Kernels go to stream 0, copies between host and device to the last stream; with two streams they overlap, unless the queue needs
 * their order. Where a queue goes from one stream to the other, a command of the new stream waits for the last event of the old one. So a
 * queue needs no stream of its own, and any number of queues share the device. event.c waits for commands.
 */
#include "run/queue.h"

#include <stdio.h>

enum sol_status queue_check(const struct sol_queue *q) {
    return q->status ? fail(q->status, "%s", q->message) : SOL_OK;
}
struct lock *queue_lock(struct sol_queue *q) { return &q->lock; }
struct far_device *queue_device(const struct sol_queue *q) { return q->device; }
sol_ptr queue_error_words(const struct sol_queue *q) { return q->error; }
void queue_may_fail(struct sol_queue *q) { q->may_fail = true; }

/* ---- Failures ---- */

enum sol_status queue_note(struct sol_queue *q, enum sol_status status) {
    if (!status || q->status) return status;
    q->status = status;
    (void)snprintf(q->message, sizeof q->message, "%s", sol_error());
    return status;
}

/* ---- Commands ---- */

static int copy_stream(const struct sol_queue *q) { return q->device->target->n_streams - 1; }

enum sol_status queue_order_streams(struct sol_queue *q, int to) {
    const int from = !to;
    if (q->device->target->n_streams == 1 || q->last[from] <= q->seen[to]) return SOL_OK;
    const int64_t arg[] = {from, (int64_t)q->last[from]};
    const struct launch wait = {.kind = LAUNCH_WAIT, .name = "wait", .n_arg = 2, .arg = arg};
    TRY(q->device->target->launch(q->device->context, to, &wait, NULL));
    q->seen[to] = q->last[from];
    return SOL_OK;
}

static enum sol_status submit_launch(struct sol_queue *q, const struct launch *launch) {
    const int stream = launch->kind == LAUNCH_HOST ? copy_stream(q) : 0;
    TRY(queue_order_streams(q, stream));
    return q->device->target->launch(q->device->context, stream, launch, &q->last[stream]);
}

static enum sol_status submit_copy(struct sol_queue *q, const struct transfer *transfer) {
    const int stream = transfer->kind == TRANSFER_ON_DEVICE ? 0 : copy_stream(q);
    TRY(queue_order_streams(q, stream));
    return q->device->target->copy(q->device->context, stream, transfer, &q->last[stream]);
}

/* ---- Small copies ---- */

enum sol_status queue_flush(struct sol_queue *q) {
    struct pack *p = q->pack ? &q->pack[q->at_pack] : NULL;
    if (!p || !p->n || p->event) return SOL_OK;
    const bool up = p->kind == TRANSFER_TO_DEVICE;
    const struct transfer all = pack_transfer(p);
    const struct launch on_device = pack_launch(p), on_host = pack_host_launch(p);
    TRY(submit_launch(q, up ? &on_host : &on_device));
    TRY(submit_copy(q, &all));
    TRY(submit_launch(q, up ? &on_device : &on_host));
    p->event = q->last[copy_stream(q)];
    return SOL_OK;
}

static enum sol_status make_packs(struct sol_queue *q) {
    struct pack *packs = mem_alloc(PACKS * sizeof *packs, 64);
    char *data = mem_alloc(PACKS * PACK_BYTES, 4096);
    sol_ptr staged = 0;
    if (!packs || !data || queue_alloc(q, PACKS * PACK_BYTES, &staged)) {
        mem_free(packs);
        mem_free(data);
        return fail(SOL_ENOMEM, "no memory to collect small copies");
    }
    for (int i = 0; i < PACKS; i++) {
        packs[i].data = data + i * PACK_BYTES;
        packs[i].staged = staged + i * PACK_BYTES;
    }
    q->pack = packs;
    return SOL_OK;
}

/* The pack to fill next. If all are under way, waits for the oldest one. */
static enum sol_status next_pack(struct sol_queue *q) {
    TRY(queue_flush(q));
    q->at_pack = (q->at_pack + 1) % PACKS;
    struct pack *p = &q->pack[q->at_pack];
    if (!p->event) return SOL_OK;
    TRY(q->device->target->wait(q->device->context, copy_stream(q), p->event));
    pack_clear(p);
    return SOL_OK;
}

/* Without room for packs, all copies are on their own. */
static bool can_collect(struct sol_queue *q, const struct transfer *transfer) {
    if (!q->device->target->has_pieces || q->has_no_packs || !pack_fits(transfer)) return false;
    if (!q->pack && make_packs(q)) q->has_no_packs = true;
    return q->pack;
}

static enum sol_status collect(struct sol_queue *q, const struct transfer *transfer) {
    if (q->pack[q->at_pack].event || !pack_has_room(&q->pack[q->at_pack], transfer))
        TRY(next_pack(q));
    pack_add(&q->pack[q->at_pack], transfer);
    return SOL_OK;
}

static void free_packs(struct sol_queue *q) {
    if (!q->pack) return;
    const enum sol_status status = queue_dealloc(q, q->pack->staged);
    (void)status; /* of a broken device */
    mem_free(q->pack->data);
    mem_free(q->pack);
}

/* ---- Operations ---- */

enum sol_status queue_launch(struct sol_queue *q, const struct launch *launch) {
    TRY(queue_check(q));
    TRY(queue_flush(q));
    return submit_launch(q, launch);
}

enum sol_status queue_copy(struct sol_queue *q, const struct transfer *transfer) {
    TRY(queue_check(q));
    if (!transfer->size) return SOL_OK;
    if (can_collect(q, transfer)) return collect(q, transfer);
    TRY(queue_flush(q));
    return submit_copy(q, transfer);
}

/* An event behind which copies may use the memory, as commands before it may still use it for something else. */
static enum sol_status mark(struct sol_queue *q) {
    const struct launch none = {
        .kind = LAUNCH_WAIT, .name = "mark", .n_arg = 2, .arg = (int64_t[2]){0, 0}};
    if (q->device->target->n_streams == 1) return SOL_OK;
    return q->device->target->launch(q->device->context, 0, &none, &q->last[0]);
}

enum sol_status queue_alloc(struct sol_queue *q, size_t size, sol_ptr *out) {
    TRY(queue_check(q));
    TRY(queue_flush(q));
    TRY(q->device->target->alloc(q->device->context, 0, size ? size : 1, out));
    return mark(q);
}

/* Copies that use the memory come first. */
enum sol_status queue_dealloc(struct sol_queue *q, sol_ptr at) {
    if (!at) return SOL_OK;
    if (!q->status) TRY(queue_flush(q));
    if (!q->status) TRY(queue_order_streams(q, 0));
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
    if (!q->kept || q->kept->weights != weights) {
        struct kept *kept = mem_alloc(sizeof *kept, 16);
        if (!kept) return fail(SOL_ENOMEM, "no memory for a call");
        sol_weights_retain(weights);
        *kept = (struct kept){.next = q->kept, .weights = weights};
        q->kept = kept;
    }
    q->kept->event = q->n_operations + 1;
    return SOL_OK;
}

/* ---- Queues ---- */

static enum sol_status clear_words(struct sol_queue *q) {
    const int64_t arg[] = {0, ERROR_WORDS * (int64_t)sizeof(int64_t)};
    const struct launch fill = {
        .kind = LAUNCH_FILL, .name = "fill", .n_ptr = 1, .ptr = &q->error, .n_arg = 2, .arg = arg};
    return queue_launch(q, &fill);
}

/* Frees the queue, whose operations are done, without the device. */
static void drop(struct sol_queue *q) {
    const enum sol_status a = queue_dealloc(q, q->arena), b = queue_dealloc(q, q->error);
    (void)a, (void)b; /* of a broken device */
    free_packs(q);
    queue_release_kept(q, UINT64_MAX);
    lock_fini(&q->lock);
    mem_free(q->recorded);
    mem_free(q->pointer);
    mem_free(q);
}

/* The queue takes over the reference to the device. */
static enum sol_status make(struct far_device *device, struct sol_queue **out) {
    struct sol_queue *q = mem_alloc(sizeof *q, 16);
    if (!q) return fail(SOL_ENOMEM, "no memory for a queue");
    q->device = device;
    lock_init(&q->lock);
    enum sol_status status = queue_alloc(q, ERROR_WORDS * sizeof(int64_t), &q->error);
    if (!status) status = clear_words(q);
    if (status) drop(q);
    else *out = q;
    return status;
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

void queue_close(struct sol_queue *q) {
    struct far_device *device = q->device;
    drop(q);
    far_close(device);
}

void queue_drop_idle(struct far_device *device) {
    for (struct sol_queue *q = device->idle, *next; q; q = next) {
        next = q->next;
        drop(q);
    }
    device->idle = NULL;
}

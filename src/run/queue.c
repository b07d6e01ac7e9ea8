/*
 * Queues: one order for the commands of several calls, on the streams of a far device.
 *
 *   far_call.c, queue_api.c -> queue_launch, queue_copy -> small copies: pack.c -> struct target
 *
 * Kernels go to stream 0, copies between host and device to the last stream; with two streams they overlap, unless the queue needs
 * their order. Where a queue goes from one stream to the other, a command of the new stream waits for the last event of the old one. So a
 * queue needs no stream of its own, and any number of queues share the device.
 *
 * Invariants: last[s] is the queue's last event on stream s, and seen[s] the last event of the other stream that stream s waits for. A
 * queue that failed stays failed.
 */
#include "run/far.h"
#include "run/pack.h"

#include <stdio.h>
#include <string.h>

/* Weights that calls use which may not be done. */
struct kept {
    struct kept *next;
    struct sol_weights *weights;
};

struct sol_queue {
    struct lock lock; /* of the functions in queue_api.c */
    struct far_device *device;
    uint64_t last[2], seen[2];
    enum sol_status status; /* of the first failure */
    char message[512];
    sol_ptr arena, error; /* error: ERROR_WORDS words */
    size_t arena_size;
    bool may_fail;
    struct pack *pack; /* PACKS of them; NULL: not used yet */
    int at_pack;       /* the one that is being filled */
    bool has_no_packs; /* there was no memory for them */
    struct kept *kept;
    int n_pointers;
    sol_ptr *pointer;
    struct sol_queue *next; /* in the list of idle ones */
};

enum sol_status queue_check(const struct sol_queue *q) {
    return q->status ? fail(q->status, "%s", q->message) : SOL_OK;
}
struct lock *queue_lock(struct sol_queue *q) { return &q->lock; }
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

static enum sol_status submit_launch(struct sol_queue *q, const struct launch *launch) {
    const int stream = launch->kind == LAUNCH_HOST ? copy_stream(q) : 0;
    TRY(order(q, stream));
    return q->device->target->launch(q->device->context, stream, launch, &q->last[stream]);
}

static enum sol_status submit_copy(struct sol_queue *q, const struct transfer *transfer) {
    const int stream = transfer->kind == TRANSFER_ON_DEVICE ? 0 : copy_stream(q);
    TRY(order(q, stream));
    return q->device->target->copy(q->device->context, stream, transfer, &q->last[stream]);
}

/* ---- Small copies ---- */

/* Submits the pieces that are collected, if there are any. */
static enum sol_status flush(struct sol_queue *q) {
    struct pack *p = q->pack ? &q->pack[q->at_pack] : NULL;
    if (!p || !p->n || p->event) return SOL_OK;
    const struct transfer all = pack_transfer(p);
    const struct launch pieces = pack_launch(p);
    if (p->kind == TRANSFER_TO_HOST) TRY(submit_launch(q, &pieces));
    TRY(submit_copy(q, &all));
    p->event = q->last[copy_stream(q)];
    return p->kind == TRANSFER_TO_DEVICE ? submit_launch(q, &pieces) : SOL_OK;
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
    TRY(flush(q));
    q->at_pack = (q->at_pack + 1) % PACKS;
    struct pack *p = &q->pack[q->at_pack];
    if (!p->event) return SOL_OK;
    TRY(q->device->target->wait(q->device->context, copy_stream(q), p->event));
    pack_finish(p);
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

/* All copies are done. Downloads are finished in the order in which they were added. */
static void finish_packs(struct sol_queue *q) {
    for (int i = 1; q->pack && i <= PACKS; i++) pack_finish(&q->pack[(q->at_pack + i) % PACKS]);
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
    TRY(flush(q));
    return submit_launch(q, launch);
}

enum sol_status queue_copy(struct sol_queue *q, const struct transfer *transfer) {
    TRY(queue_check(q));
    if (!transfer->size) return SOL_OK;
    if (can_collect(q, transfer)) return collect(q, transfer);
    TRY(flush(q));
    return submit_copy(q, transfer);
}

enum sol_status queue_order(struct sol_queue *q, struct sol_queue *other) {
    TRY(queue_check(q));
    TRY(flush(q));
    TRY(flush(other));
    for (int to = 0; to < q->device->target->n_streams; to++) {
        const int from = !to;
        if (other->last[from] > q->last[from]) q->last[from] = other->last[from];
        TRY(order(q, to));
    }
    return SOL_OK;
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
    TRY(flush(q));
    TRY(q->device->target->alloc(q->device->context, 0, size ? size : 1, out));
    return mark(q);
}

/* Copies that use the memory come first. */
enum sol_status queue_dealloc(struct sol_queue *q, sol_ptr at) {
    if (!at) return SOL_OK;
    if (!q->status) TRY(flush(q));
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
    TRY(flush(q));
    for (int s = target->n_streams - 1; s >= 0; s--)
        if (q->last[s]) TRY(target->wait(q->device->context, s, q->last[s]));
    finish_packs(q);
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
    enum sol_status status = queue_check(q);
    if (!status) status = wait_streams(q);
    if (!status) status = read_words(q);
    (void)note(q, status);
    release_kept(q);
    return status ? queue_check(q) : SOL_OK;
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
    release_kept(q);
    lock_fini(&q->lock);
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

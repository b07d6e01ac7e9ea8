/*
 * Waiting for a queue: for all of it, or for its operations up to an event, on the host or in another queue.
 *
 *   sol_queue_event -> queue_record: what the streams have been given so far -> queue_order, queue_wait_event: only that
 *
 * An event is the number of an operation. What the streams had been given is known for those numbers that somebody has asked for. For
 * another number the operations up to the next one that is known are waited for, at most all that the queue has so far.
 *
 * Invariant: commands of a stream are done in their order, so when an event is done, all events before it are.
 */
#include "run/queue.h"

#include <string.h>

/* ---- Weights of calls ---- */

void queue_release_kept(struct sol_queue *q, uint64_t event) {
    struct kept **at = &q->kept;
    while (*at && (*at)->event > event) at = &(*at)->next;
    struct kept *kept = *at;
    *at = NULL;
    for (struct kept *next; kept; kept = next) {
        next = kept->next;
        sol_weights_release(kept->weights);
        mem_free(kept);
    }
}

/* ---- Recorded events ---- */

enum sol_status queue_count(struct sol_queue *q, enum sol_status added) {
    if (!added) q->n_operations++;
    return added;
}

static struct recorded *recorded_at(const struct sol_queue *q, int i) {
    return &q->recorded[(q->first_recorded + i) % EVENTS];
}

/* The first one that has operation `event`; NULL: none. */
static struct recorded *find(const struct sol_queue *q, uint64_t event) {
    for (int i = 0; i < q->n_recorded; i++)
        if (recorded_at(q, i)->number >= event) return recorded_at(q, i);
    return NULL;
}

/* Operations up to this one are done. */
static void forget(struct sol_queue *q, uint64_t event) {
    for (; q->n_recorded && recorded_at(q, 0)->number <= event; q->n_recorded--)
        q->first_recorded = (q->first_recorded + 1) % EVENTS;
    q->n_done = event;
    queue_release_kept(q, event);
}

static enum sol_status copy_words(struct sol_queue *q, int64_t *words) {
    const struct transfer read = {.kind = TRANSFER_TO_HOST,
                                  .from = q->error,
                                  .host = words,
                                  .size = ERROR_WORDS * sizeof *words};
    return queue_copy(q, &read);
}

static enum sol_status record(struct sol_queue *q) {
    struct recorded *r = recorded_at(q, q->n_recorded);
    *r = (struct recorded){.number = q->n_operations, .may_fail = q->may_fail};
    if (r->may_fail) TRY(copy_words(q, r->words));
    TRY(queue_flush(q));
    memcpy(r->last, q->last, sizeof r->last);
    q->n_recorded++;
    return SOL_OK;
}

/* ---- Waiting for some operations ---- */

static enum sol_status wait_for(const struct sol_queue *q, const uint64_t last[2]) {
    const struct target *target = q->device->target;
    enum sol_status status = SOL_OK;
    for (int s = target->n_streams - 1; s >= 0; s--) {
        const enum sol_status other =
            last[s] ? target->wait(q->device->context, s, last[s]) : SOL_OK;
        if (!status) status = other;
    }
    return status;
}

/* All streams, also after a failure: later copies must not use the host's memory any more. */
static enum sol_status wait_streams(struct sol_queue *q) {
    const enum sol_status flushed = queue_flush(q), status = wait_for(q, q->last);
    return flushed ? flushed : status;
}

/* The streams have been waited for up to this recorded event, with this status. Another thread may have been faster. */
static enum sol_status finish(struct sol_queue *q, uint64_t number, enum sol_status status) {
    if (number <= q->n_done) return queue_check(q);
    const struct recorded *r = find(q, number);
    if (!status && r->may_fail) status = exec_check_words(r->words);
    if (!status) {
        forget(q, number);
        return queue_check(q);
    }
    (void)queue_note(q, status);
    (void)wait_streams(q);
    forget(q, q->n_operations);
    return queue_check(q);
}

/* If all are recorded and not done, waits for the oldest one. */
static enum sol_status make_room(struct sol_queue *q) {
    if (!q->recorded) q->recorded = mem_alloc(EVENTS * sizeof *q->recorded, 64);
    if (!q->recorded) return fail(SOL_ENOMEM, "no memory for events");
    if (q->n_recorded < EVENTS) return SOL_OK;
    const struct recorded *oldest = recorded_at(q, 0);
    return finish(q, oldest->number, wait_for(q, oldest->last));
}

enum sol_status queue_record(struct sol_queue *q, uint64_t *out) {
    TRY(queue_check(q));
    *out = q->n_operations;
    if (q->n_operations <= q->n_done || find(q, q->n_operations)) return SOL_OK;
    TRY(make_room(q));
    return record(q);
}

/* *out: what is known of the operations up to `event`; NULL: they are done, or it failed. */
static enum sol_status seek(struct sol_queue *q, uint64_t event, struct recorded **out) {
    uint64_t last;
    *out = NULL;
    if (event > q->n_operations)
        return fail(SOL_EINVAL, "event %llu of a queue that has had %llu operations",
                    (unsigned long long)event, (unsigned long long)q->n_operations);
    if (event <= q->n_done) return SOL_OK;
    if (!find(q, event)) TRY(queue_record(q, &last));
    *out = find(q, event);
    return SOL_OK;
}

enum sol_status queue_order(struct sol_queue *q, struct sol_queue *other, uint64_t event) {
    struct recorded *r;
    TRY(queue_check(q));
    TRY(queue_flush(q));
    TRY(seek(other, event, &r));
    for (int to = 0; r && q != other && to < q->device->target->n_streams; to++) {
        const int from = !to;
        if (r->last[from] > q->last[from]) q->last[from] = r->last[from];
        TRY(queue_order_streams(q, to));
    }
    return SOL_OK;
}

/* The lock is free while the thread waits, so that others may add operations. */
enum sol_status queue_wait_event(struct sol_queue *q, uint64_t event) {
    struct recorded *r = NULL;
    uint64_t number = 0, last[2];
    lock_acquire(&q->lock);
    enum sol_status status = queue_check(q);
    if (!status) status = seek(q, event, &r);
    if (r) number = r->number, memcpy(last, r->last, sizeof last);
    lock_release(&q->lock);
    if (!r) return status;
    status = wait_for(q, last);
    lock_acquire(&q->lock);
    status = finish(q, number, status);
    lock_release(&q->lock);
    return status;
}

/* ---- Waiting for all ---- */

/* The message refers to texts of programs, which are kept. */
static enum sol_status read_words(struct sol_queue *q) {
    int64_t words[ERROR_WORDS] = {0};
    if (!q->may_fail) return SOL_OK;
    q->may_fail = false;
    const enum sol_status copied = copy_words(q, words), waited = wait_streams(q);
    if (copied || waited) return copied ? copied : waited;
    return exec_check_words(words);
}

enum sol_status queue_wait(struct sol_queue *q) {
    enum sol_status status = queue_check(q);
    if (!status) status = wait_streams(q);
    if (!status) status = read_words(q);
    (void)queue_note(q, status);
    forget(q, q->n_operations);
    return status ? queue_check(q) : SOL_OK;
}

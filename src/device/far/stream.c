/*
 * Streams of a far device: submitting commands, waiting for them, and the error that ends both.
 *
 *   far_submit -> record in the ring -> worker or engine -> `done` -> far_wait_event
 *
 * A submission costs a lock, a copy of some 100 bytes, and a system call only if the reader sleeps. When the ring is full, which is
 * some thousand commands, it waits for room: this is the only wait of a function that submits.
 *
 * Errors come from three sides: the worker ends (process.c), a command fails in the worker, or in the engine; both of the latter
 * are in shared memory. All are found by far_check. The first one stays.
 *
 * Invariant: after an error no command is computed, but the engine still takes all of them from its ring.
 */
#include "device/far/parts.h"

#include <stdio.h>
#include <string.h>

/* ---- Errors ---- */

void far_break(struct far *far, const char *format, ...) {
    va_list args;
    va_start(args, format);
    lock_acquire(&far->lock);
    if (!atomic_load(&far->broken)) {
        int n = snprintf(far->message, sizeof far->message, "far %d: ", far->number);
        (void)vsnprintf(far->message + n, sizeof far->message - (size_t)n, format, args);
        atomic_store(&far->broken, true);
    }
    lock_release(&far->lock);
    va_end(args);
    for (int i = 0; i < FAR_STREAMS; i++) far_wake(&far->shared->ring[i].done);
}

/* Only the first 2 is of interest: `failed` of 1 says that the message is being written. */
static bool has_failed(struct far *far) {
    return atomic_load_explicit(&far->shared->failed, memory_order_acquire) == 2;
}

enum sol_status far_check(struct far *far) {
    if (far->process != lock_process())
        return fail(SOL_EDEVICE, "device far %d was opened by the parent process", far->number);
    if (has_failed(far) && !atomic_load(&far->broken))
        far_break(far, "%.*s", FAR_MESSAGE - 1, far->shared->message);
    /* The message does not change any more. */
    return atomic_load(&far->broken) ? fail(SOL_EDEVICE, "%s", far->message) : SOL_OK;
}

/* ---- Submitting ---- */

static void write_record(char *at, const struct far_record *record, const uint64_t *pointers,
                         const int64_t *numbers, const char *name, size_t name_size) {
    const size_t pointers_size = sizeof *pointers * (size_t)record->n_ptr,
                 numbers_size = sizeof *numbers * (size_t)record->n_arg;
    memcpy(at, record, sizeof *record);
    at += sizeof *record;
    if (pointers_size) memcpy(at, pointers, pointers_size);
    at += pointers_size;
    if (numbers_size) memcpy(at, numbers, numbers_size);
    at += numbers_size;
    memcpy(at, name, name_size);
    at[name_size] = 0;
}

/* Bytes that a record needs: with what is left at the ring's end, if it is too little for the record. */
static uint64_t needed(uint64_t written, uint64_t size) {
    const uint64_t left = FAR_RING - written % FAR_RING;
    return left < size ? left + size : size;
}

/* Fills the end of the ring if needed, and returns where the record begins. */
static uint64_t skip_end(struct far_ring *ring, uint64_t written, uint64_t size) {
    const uint64_t left = needed(written, size) - size;
    if (!left) return written;
    struct far_record skip = {.size = (uint32_t)left, .kind = FAR_SKIP};
    /* Sizes are multiples of 16, so there is room for size and kind, which are first. */
    memcpy(ring->at + written % FAR_RING, &skip, offsetof(struct far_record, n_ptr));
    return written + left;
}

static bool has_room(struct far_ring *ring, uint64_t size) {
    const uint64_t written = atomic_load(&ring->written);
    return FAR_RING - (written - atomic_load(&ring->read)) >= needed(written, size);
}

/* Waits, with the lock held on entry and at the end, until the ring has room. */
static enum sol_status await_room(struct far *far, struct far_ring *ring, uint64_t size) {
    while (!has_room(ring, size)) {
        const uint64_t done = atomic_load(&ring->done);
        lock_release(&far->lock);
        enum sol_status status = far_check(far);
        /* `read` moves before `done`: had there been room since, `done` has changed or will. */
        if (!status) (void)far_await(&ring->done, &ring->waiting, done + 1, FAR_POLL_S);
        lock_acquire(&far->lock);
        if (status) return status;
    }
    return SOL_OK;
}

enum sol_status far_submit(struct far *far, int stream, struct far_record record,
                           const uint64_t *pointers, const int64_t *numbers, const char *name,
                           uint64_t *event) {
    struct far_ring *ring = &far->shared->ring[stream];
    const size_t name_size = strnlen(name, FAR_NAME - 1);
    const int64_t size = (int64_t)sizeof record + 8 * ((int64_t)record.n_ptr + record.n_arg) +
                         (int64_t)name_size + 1;
    if (size > FAR_RECORD_MAX)
        return fail(SOL_EINVAL, "far %d: %s has too many arguments", far->number, name);
    record.size = (uint32_t)round_up(size, 16);
    lock_acquire(&far->lock);
    enum sol_status status = await_room(far, ring, record.size);
    if (!status) {
        uint64_t at = skip_end(ring, atomic_load(&ring->written), record.size);
        write_record(ring->at + at % FAR_RING, &record, pointers, numbers, name, name_size);
        atomic_store(&ring->written, at + record.size);
        far->n_submitted[stream]++;
        if (event) *event = far->n_submitted[stream];
    }
    lock_release(&far->lock);
    if (!status && atomic_load(&ring->reader_sleeps)) far_wake(&ring->written);
    return status;
}

/* ---- Waiting ---- */

/* The last event of a stream. */
static uint64_t last_event(struct far *far, int stream) {
    lock_acquire(&far->lock);
    uint64_t event = far->n_submitted[stream];
    lock_release(&far->lock);
    return event;
}

enum sol_status far_wait_event(struct far *far, int stream, uint64_t event) {
    if (far->process != lock_process()) return far_check(far);
    struct far_ring *ring = &far->shared->ring[stream];
    const uint64_t last = last_event(far, stream);
    if (event > last)
        return fail(SOL_EINVAL, "far %d: stream %d has no event %llu yet", far->number, stream,
                    (unsigned long long)event);
    if (!event) event = last;
    while (!far_await(&ring->done, &ring->waiting, event, FAR_POLL_S))
        if (stream == 0) TRY(far_check(far));
    return far_check(far);
}

/*
 * The copy engine: a thread of the host that computes stream 1, copies and host functions.
 *
 * It accesses the device's memory by reading and writing the file, at the speed that $SOL_FAR gives. It never maps the memory: so
 * nothing else in this process can read it, by mistake or otherwise.
 *
 * Invariant: the engine never waits for something that may not come. It notices that the worker has ended, and that the device
 * is closed. Then it takes the rest of its commands without computing them.
 */
#include "device/far/parts.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define PIECE ((size_t)1 << 18) /* of a copy within the device: fits into the cache */

typedef ssize_t transfer_function(int fd, void *memory, size_t size, off_t offset);

static ssize_t write_part(int fd, void *memory, size_t size, off_t offset) {
    return pwrite(fd, memory, size, offset);
}

/* Reads or writes all bytes. False: an error; 0 bytes count as one, as the file has the device's size. */
static bool transfer_all(transfer_function *function, struct far *far, void *memory, size_t size,
                         uint64_t ptr) {
    char *at = memory;
    off_t offset = (off_t)(ptr - (uint64_t)(uintptr_t)far->base);
    while (size) {
        ssize_t n = function(far->memory, at, size, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        offset += n;
        size -= (size_t)n;
    }
    return true;
}

/* Copies within the device, by pieces. */
static bool copy_on_device(struct far *far, uint64_t to, uint64_t from, size_t size) {
    char *piece = mem_alloc(PIECE, 64);
    bool good = piece;
    for (size_t done = 0, n; good && done < size; done += n) {
        n = size - done < PIECE ? size - done : PIECE;
        good = transfer_all(pread, far, piece, n, from + done) &&
               transfer_all(write_part, far, piece, n, to + done);
    }
    mem_free(piece);
    return good;
}

static bool copy(struct far *far, const struct far_record *record) {
    void *host = (void *)(uintptr_t)record->argument;
    size_t size = (size_t)record->n_tasks;
    if (far->shared->settings.fail_copy && ++far->n_copies == far->shared->settings.fail_copy) {
        errno = 0;
        return false;
    }
    switch (record->kind) {
    case FAR_TO_DEVICE: return transfer_all(write_part, far, host, size, record->code);
    case FAR_TO_HOST: return transfer_all(pread, far, host, size, record->code);
    default: return copy_on_device(far, record->code, record->argument, size);
    }
}

/* The first error of the device: later commands of both streams are not computed. */
static void report(struct far_shared *shared, const struct far_record *record, int error) {
    if (!far_may_fail(shared)) return;
    (void)snprintf(shared->message, sizeof shared->message, "%s of %lld bytes: %s",
                   far_name(record), (long long)record->n_tasks,
                   error ? strerror(error) : "SOL_FAR lets this copy fail");
    atomic_store(&shared->failed, 2);
}

/* `arg`: of a wait for an event. */
static void await_event(struct far *far, const int64_t *arg) {
    struct far_ring *ring = &far->shared->ring[arg[0]];
    while (!far_await(&ring->done, &ring->waiting, (uint64_t)arg[1], FAR_POLL_S))
        if (atomic_load(&far->closing) || far_check(far)) return;
}

static void call(const struct far_record *record) {
    void (*function)(void *) = NULL;
    memcpy(&function, &record->code, sizeof function); /* ISO C has no such cast */
    function((void *)(uintptr_t)record->argument);
}

static void run(struct far *far, const struct far_record *record) {
    const struct far_settings *settings = &far->shared->settings;
    double start = far_now();
    if (record->kind == FAR_WAIT) {
        await_event(far, far_numbers(record));
        return;
    }
    if (record->kind == FAR_HOST) {
        call(record);
    } else {
        if (!copy(far, record)) report(far->shared, record, errno);
        far_pay(start, settings->latency_s + (double)record->n_tasks / settings->bandwidth);
    }
    far_add_trace(far->shared, 1, far_name(record), start);
}

static void *compute(void *argument) {
    struct far *far = argument;
    struct far_ring *ring = &far->shared->ring[1];
    while (!atomic_load(&far->closing)) {
        const struct far_record *record = far_next(ring, 0);
        if (!record) continue;
        if (!atomic_load(&far->closing) && !far_check(far)) run(far, record);
        far_finish(ring, record);
    }
    return NULL;
}

/* The thread blocks all signals: the host's handlers run on the host's threads. */
enum sol_status far_engine_start(struct far *far) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    far->has_engine = !pthread_create(&far->engine, NULL, compute, far);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!far->has_engine) return fail(SOL_EDEVICE, "far %d: cannot start a thread", far->number);
    pthread_setname_np(far->engine, "sol-far-copy");
    return SOL_OK;
}

/* A last command wakes the engine. If the ring has no room for it, the engine is awake. */
void far_engine_stop(struct far *far) {
    if (!far->has_engine) return;
    atomic_store(&far->closing, true);
    struct far_record record = {.kind = FAR_WAIT, .n_arg = 2};
    (void)far_submit(far, 1, record, NULL, (const int64_t[]){0, 0}, "close", NULL);
    pthread_join(far->engine, NULL);
    far->has_engine = false;
}

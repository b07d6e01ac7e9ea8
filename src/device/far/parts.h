/*
 * Internal interface of src/device/far, for its files only.
 *
 *   settings.c  $SOL_FAR
 *   memory.c    which parts of the device's memory are in use
 *   process.c   compiles and starts the worker, asks it, notices its end
 *   stream.c    submits commands, waits for events
 *   engine.c    the thread that computes stream 1
 *   target.c    struct target
 *   trace.c     what the streams did, as a file
 *
 * Locks: `lock` guards all members of struct far that change after it was opened, except those that are atomic; it is never held while
 * something is waited for.
 */
#ifndef SOL_FAR_PARTS_H
#define SOL_FAR_PARTS_H

#include "base/lock.h"
#include "device/far/far.h"
#include "device/far/shared.h"
#include "run/target.h"

#include <sys/types.h>

#define FAR_POLL_S 0.05 /* a waiting thread looks this often for the worker's end, although that also wakes it */

struct far_block;

/* An open device. */
struct far {
    int number, process; /* of the device; lock_process() when it was opened */
    struct far_shared *shared;
    char *base; /* reserved, never accessed: the device's memory has these addresses */
    size_t size;
    int memory, socket; /* descriptors: of the device's memory, to the worker; -1: none */
    pid_t worker;       /* 0: none */
    pthread_t watcher, engine;
    bool has_watcher, has_engine;
    _Atomic bool closing;
    _Atomic bool broken; /* `message` says why */
    struct lock lock;
    bool is_asking; /* a thread uses the socket */
    uint64_t n_submitted[FAR_STREAMS];
    int64_t n_allocs, n_copies;
    struct far_block *blocks; /* by address, without gaps */
    char message[FAR_MESSAGE + FAR_NAME];
    char trace[512]; /* path; "": none */
};

/* ---- settings.c ---- */

/* Reads $SOL_FAR. `trace` may be NULL. Returns the number of devices. */
int far_read_settings(struct far_settings *out, char *trace, size_t trace_size);

/* ---- memory.c ---- */

enum sol_status far_memory_init(struct far *far);
void far_memory_fini(struct far *far);
/* Takes memory for a stream, as an offset. ENOMEM: nothing is large enough now. `*pending`: something may be when the streams are
 * done with what they have. The caller holds the lock. */
enum sol_status far_memory_take(struct far *far, int stream, size_t size, uint64_t *offset,
                                bool *pending);
/* Gives it back: for others, once `event` of the stream is done. EINVAL: nothing begins there. The caller holds the lock. */
enum sol_status far_memory_give(struct far *far, int stream, uint64_t event, uint64_t offset);

/* ---- process.c ---- */

/* Starts the worker, and the thread that waits for its end; maps the device's memory. If it fails, the next two free what there is. */
enum sol_status far_start(struct far *far, const struct far_settings *settings);
/* Ends the worker and the watcher; in a child of the process that opened the device, nothing. */
void far_stop(struct far *far);
/* Frees memory and descriptors. */
void far_free(struct far *far);
/* Asks the worker and waits for its answer. `fd` goes with the question; -1: none. EDEVICE: it has ended. */
enum sol_status far_ask(struct far *far, struct far_message *message, int fd);

/* ---- stream.c ---- */

/* EDEVICE, with the reason, if the device cannot be used: it is broken, or was opened by the parent of this process. */
enum sol_status far_check(struct far *far);
/* From now on far_check fails with this message, unless it does already. */
void far_break(struct far *far, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes a command to a ring. If the ring is full, waits for room. `record` lacks its size. `pointers` and `numbers` follow it. */
enum sol_status far_submit(struct far *far, int stream, struct far_record record,
                           const uint64_t *pointers, const int64_t *numbers, const char *name,
                           uint64_t *event);
/* Waits for an event. Stream 1 is waited for also if the device is broken: then no copy uses the host's memory any more. */
enum sol_status far_wait_event(struct far *far, int stream, uint64_t event);

/* ---- engine.c ---- */

enum sol_status far_engine_start(struct far *far);
void far_engine_stop(struct far *far);

/* ---- trace.c ---- */

void far_write_trace(const struct far *far);

#endif

/*
 * What the host and the worker of a far device share: a block of memory with two rings of commands, and the settings.
 *
 *   target.c writes commands -> ring 0 -> worker.c computes them in the device's process
 *                            -> ring 1 -> engine.c computes them on a thread of the host
 *
 * A ring has one reader, and writers that take turns by a lock. Records lie behind each other and never wrap: where the end of
 * the ring is too near, a record without a command fills it. Positions count bytes since the start, so that written - read is
 * what the ring holds. A reader copies nothing: a record stays until the reader advances `read`, and it advances `done` after
 * that, so whoever waits for room or for an event watches `done` alone.
 *
 * Invariant: nobody sleeps on a word without being counted in the word beside it, and whoever changes the first reads the count
 * afterwards. All four accesses are sequentially consistent; so no wake-up is lost.
 *
 * The worker is compiled at run time: this text is part of it. So it includes nothing of SOL.
 */
#ifndef SOL_FAR_SHARED_H
#define SOL_FAR_SHARED_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "far_sleep takes the first half of a word of 64 bits for the lower one"
#endif

#define FAR_LINE 128           /* two lines of a cache: processors fetch them in pairs */
#define FAR_RING (1u << 20)    /* bytes; a power of two */
#define FAR_RECORD_MAX (FAR_RING / 4)
#define FAR_NAME 128           /* longer names of commands are cut */
#define FAR_MESSAGE 512
#define FAR_TRACES (1u << 16)  /* commands per stream that are traced; later ones are not */
#define FAR_STREAMS 2
#define FAR_SPIN_S 80e-6       /* about the time of two wake-ups: spinning costs at most a small multiple of sleeping */

/* Descriptors of the worker. */
enum { FAR_FD_SOCKET = 3, FAR_FD_SHARED, FAR_FD_MEMORY, FAR_FD_PROGRAM, FAR_FD_END };

/* The kinds of `struct launch` and the transfers, and what fills the end of the ring. */
enum far_kind {
    FAR_KERNEL,
    FAR_FILL,
    FAR_HOST,
    FAR_WAIT,
    FAR_UNLOAD,
    FAR_SCATTER,
    FAR_GATHER,
    FAR_TO_DEVICE,
    FAR_TO_HOST,
    FAR_ON_DEVICE,
    FAR_SKIP,
};

/* A record of a ring. Behind it: n_ptr addresses, n_arg numbers, the name with its NUL. A transfer has code: to, argument: from,
 * n_tasks: the size. */
struct far_record {
    uint32_t size; /* of all, a multiple of 16 */
    uint32_t kind;
    int32_t n_ptr, n_arg;
    uint64_t code, argument;
    int64_t n_tasks;
    uint64_t scratch;
};

struct far_ring {
    _Alignas(FAR_LINE) _Atomic uint64_t written;
    _Atomic uint32_t reader_sleeps;
    _Alignas(FAR_LINE) _Atomic uint64_t done; /* commands that are done: the last event */
    _Atomic uint64_t read;
    _Atomic uint32_t waiting; /* number of threads that sleep until `done` changes */
    _Alignas(FAR_LINE) char at[FAR_RING];
};

struct far_trace {
    char name[FAR_NAME / 2];
    double from, to; /* seconds of CLOCK_MONOTONIC, which all processes share */
};

/* Set by the host before the worker starts. The last four count from 1, 0 is never: which allocation, copy and kernel fails, and
 * at which kernel the worker kills itself. */
struct far_settings {
    double latency_s, bandwidth; /* of a command; bytes per second of a copy */
    uint64_t memory;             /* bytes */
    int32_t host, threads;       /* the host's process; threads of the worker */
    int64_t fail_alloc, fail_copy, fail_kernel, die;
    bool traces;
};

struct far_shared {
    struct far_settings settings;
    struct far_ring ring[FAR_STREAMS];
    /* The first error of a command, of either stream. `message` is complete once `failed` is 2. */
    _Alignas(FAR_LINE) _Atomic uint32_t failed;
    char message[FAR_MESSAGE];
    char running[FAR_NAME]; /* the command that stream 0 computes; "": none */
    _Atomic uint32_t n_traces[FAR_STREAMS];
    struct far_trace trace[FAR_STREAMS][FAR_TRACES]; /* untouched memory costs nothing */
};

/* Over the socket: the host asks, the worker answers. MAP: maps the device's memory at `address`. LOAD: the module is in the
 * descriptor that comes with the message; `address` of the answer is that of the symbol. */
enum far_question { FAR_MAP, FAR_LOAD };
struct far_message {
    uint32_t question;
    uint32_t is_error; /* the answer's `text` says what is wrong */
    uint64_t address;
    char text[FAR_MESSAGE]; /* the symbol; the error */
};

static inline double far_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void far_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word == value, at most `seconds` (0: without limit). May return early, so callers test again. */
static inline void far_sleep_word(_Atomic uint32_t *word, uint32_t value, double seconds) {
    struct timespec limit = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    syscall(SYS_futex, word, FUTEX_WAIT, value, seconds > 0 ? &limit : NULL, NULL, 0);
}

static inline void far_wake_word(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* The same for counters. It suffices to compare the lower half: no counter moves by 2^32 while a thread falls asleep. */
static inline void far_sleep(_Atomic uint64_t *word, uint64_t value, double seconds) {
    far_sleep_word((_Atomic uint32_t *)(void *)word, (uint32_t)value, seconds);
}
static inline void far_wake(_Atomic uint64_t *word) {
    far_wake_word((_Atomic uint32_t *)(void *)word);
}

/* Spins until *word >= least, for FAR_SPIN_S at most. */
static inline bool far_spin(_Atomic uint64_t *word, uint64_t least) {
    for (double end = 0, now;;) {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) >= least) return true;
            far_relax();
        }
        now = far_now();
        if (end == 0) end = now + FAR_SPIN_S;
        if (now >= end) return false;
    }
}

/* Waits until *word >= least, or for `seconds` (0: without limit). `sleepers` counts those who sleep on the word. */
static inline bool far_await(_Atomic uint64_t *word, _Atomic uint32_t *sleepers, uint64_t least,
                             double seconds) {
    if (far_spin(word, least)) return true;
    atomic_fetch_add(sleepers, 1);
    uint64_t value = atomic_load(word);
    if (value < least) far_sleep(word, value, seconds);
    atomic_fetch_sub(sleepers, 1);
    return atomic_load(word) >= least;
}

/* Waits as long as a command that began at `start` is to last. Sleeping is exact to some 60 us; the rest is spun. */
static inline void far_pay(double start, double seconds) {
    double end = start + seconds, left;
    while ((left = end - far_now()) > 0) {
        if (left < 200e-6) {
            far_relax();
            continue;
        }
        left -= 100e-6;
        struct timespec t = {(time_t)left, (long)(1e9 * (left - (double)(time_t)left))};
        nanosleep(&t, NULL);
    }
}

static inline const uint64_t *far_pointers(const struct far_record *record) {
    return (const uint64_t *)(const void *)(record + 1);
}
static inline const int64_t *far_numbers(const struct far_record *record) {
    return (const int64_t *)(far_pointers(record) + record->n_ptr);
}
static inline const char *far_name(const struct far_record *record) {
    return (const char *)(far_numbers(record) + record->n_arg);
}

/* The ring's next record, without waiting; NULL: there is none. */
static inline const struct far_record *far_peek(struct far_ring *ring) {
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    if (atomic_load_explicit(&ring->written, memory_order_acquire) == read) return NULL;
    const struct far_record *record = (const void *)(ring->at + read % FAR_RING);
    if (record->kind != FAR_SKIP) return record;
    atomic_store(&ring->read, read + record->size); /* a command follows always */
    return (const void *)ring->at;
}

/* Waits for the ring's next record, or for `seconds` (0: without limit). */
static inline const struct far_record *far_next(struct far_ring *ring, double seconds) {
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    (void)far_await(&ring->written, &ring->reader_sleeps, read + 1, seconds);
    return far_peek(ring);
}

/* The record is done. */
static inline void far_finish(struct far_ring *ring, const struct far_record *record) {
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    atomic_store(&ring->read, read + record->size);
    atomic_fetch_add(&ring->done, 1);
    if (atomic_load(&ring->waiting)) far_wake(&ring->done);
}

/* May the caller write the device's error message? Then it sets `failed` to 2 afterwards. Only the first error counts. */
static inline bool far_may_fail(struct far_shared *shared) {
    uint32_t none = 0;
    return atomic_compare_exchange_strong(&shared->failed, &none, 1);
}

static inline void far_add_trace(struct far_shared *shared, int stream, const char *name,
                                 double from) {
    uint32_t n = atomic_load(&shared->n_traces[stream]);
    if (!shared->settings.traces || n == FAR_TRACES) return;
    struct far_trace *trace = &shared->trace[stream][n];
    size_t i = 0;
    for (; name[i] && i + 1 < sizeof trace->name; i++) trace->name[i] = name[i];
    trace->name[i] = 0;
    trace->from = from;
    trace->to = far_now();
    atomic_store(&shared->n_traces[stream], n + 1);
}

#endif

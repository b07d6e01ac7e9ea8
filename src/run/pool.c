/*
 * The thread pool: hands the tasks of one job at a time to the caller and to workers that wait for
 * it.
 *
 *   caller:  describe job -> open gate ---------> take chunks -> close gate -> wait for the joined
 *   worker:  spin or sleep -> gate open: join -> take chunks -> leave -> spin or sleep
 *
 * The gate is one word: a sequence number, a bit for "open", and how many workers have joined. A
 * worker that comes too late finds the gate closed and has missed nothing, so the caller never
 * waits for somebody who still sleeps: a job that the caller finishes alone costs it no more than
 * one thread would.
 *
 * Invariants: the job is written only while the gate is closed and nobody is joined; only the owner
 * of the pool opens and closes the gate; everything is in static memory, so a late look is always
 * legal.
 */
#include "run/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_THREADS 1024
#define CACHE_LINE 128 /* two lines: processors fetch them in pairs */

/* Spinning about as long as a sleeper takes to wake, some 50 us on a virtual machine, is never
 * worse than twice the best choice. While somebody holds the pool the next step comes soon, and the
 * time is burnt within a call that computes anyway. */
#define SPIN_S 50e-6
#define SPIN_HELD_S 1e-3
#define PAUSES_PER_LOOK 64 /* pauses between two looks at the clock: 1 to 3 us */

/* A job comes in about this many chunks per thread: enough for a slow thread to be made up for by
 * others, few enough for the shared counter not to matter. */
#define CHUNKS_PER_THREAD 16

#define GATE_OPEN 0x8000u
#define GATE_JOINED 0x7fffu
#define GATE_SEQUENCE 0x10000u /* the upper half counts jobs; if it wraps, a worker misses one */

struct job {
    pool_task *task;
    void *user;
    uint64_t n, chunk;
    int n_shares;
    pool_guard *guard; /* evaluated by the owner before it takes chunks; NULL: none */
    void *guard_user;
};

/* A part of the job that one thread begins with, and others help with when their own is done. */
struct share {
    _Alignas(
        CACHE_LINE) _Atomic uint64_t next; /* first task that nobody has taken; may exceed end */
    uint64_t end;
};

static struct {
    _Alignas(CACHE_LINE) _Atomic uint32_t gate;
    _Alignas(CACHE_LINE) struct job job;

    _Alignas(CACHE_LINE) _Atomic uint32_t
        owner_sleeps;     /* the owner waits for the joined to leave */
    _Atomic int sleepers; /* workers that sleep, or are about to */
    _Atomic bool owned;
    _Atomic bool held;     /* owned from pool_begin to pool_end */
    _Atomic bool stop;     /* workers shall end */
    _Atomic bool may_spin; /* false when there are more threads than cores */
    _Atomic int wanted;    /* threads that were asked for; 0: not known yet */

    /* For the owner only. */
    int built_for;   /* the value of `wanted` for which there are workers */
    int n_workers;   /* less than built_for - 1 when the system refused a thread */
    bool knows_fork; /* after_fork is registered */
    pthread_t workers[MAX_THREADS];
    struct share share[MAX_THREADS];
} pool;

static _Thread_local bool holds;   /* this thread is between pool_begin and pool_end */
static _Thread_local bool in_task; /* this thread runs a task: pool_run in it runs alone */

/* ---- Waiting ---- */

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word == value. May return early; callers look again. */
static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

typedef bool gate_test(uint32_t gate, uint32_t seen);

/* Spins until `done` accepts the gate, for `seconds` at most. */
static inline void spin(gate_test *done, uint32_t seen, double seconds) {
    double deadline = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (done(atomic_load_explicit(&pool.gate, memory_order_acquire), seen)) return;
            relax();
        }
        double now = os_now();
        if (deadline == 0) deadline = now + seconds; /* short waits never ask for the time */
        if (now >= deadline) return;
    }
}

static bool has_changed(uint32_t gate, uint32_t seen) { return (gate & ~GATE_JOINED) != seen; }

static bool is_empty(uint32_t gate, uint32_t unused) {
    (void)unused;
    return !(gate & GATE_JOINED);
}

static double spin_time(void) {
    if (!atomic_load_explicit(&pool.may_spin, memory_order_relaxed)) return 0;
    return atomic_load_explicit(&pool.held, memory_order_relaxed) ? SPIN_HELD_S : SPIN_S;
}

/* ---- Doing a job ---- */

/* Takes chunks until none is left: the thread's own share first, which is about the same part of each job, so that it finds
 * in its caches what it wrote there. The job stays as it is until this thread has left the gate. */
static void take_chunks(int thread) {
    const struct job job = pool.job;
    in_task = true;
    for (int i = 0; i < job.n_shares; i++) {
        struct share *share = &pool.share[(thread + i) % job.n_shares];
        for (;;) {
            uint64_t begin =
                atomic_fetch_add_explicit(&share->next, job.chunk, memory_order_relaxed);
            if (begin >= share->end) break;
            uint64_t end = share->end - begin > job.chunk ? begin + job.chunk : share->end;
            job.task(job.user, thread, (int64_t)begin, (int64_t)end);
        }
    }
    in_task = false;
}

static void set_shares(const struct job *job) {
    const uint64_t chunks = (job->n + job->chunk - 1) / job->chunk;
    for (int i = 0; i < job->n_shares; i++) {
        const uint64_t begin = chunks * (uint64_t)i / (uint64_t)job->n_shares * job->chunk;
        const uint64_t end = chunks * (uint64_t)(i + 1) / (uint64_t)job->n_shares * job->chunk;
        atomic_store_explicit(&pool.share[i].next, begin, memory_order_relaxed);
        pool.share[i].end = end < job->n ? end : job->n;
    }
}

/* Work that the guard itself starts runs alone, since the pool already holds this job. */
static bool run_guard(const struct job *job) {
    if (!job->guard) return true;
    bool before = in_task;
    in_task = true;
    bool answer = job->guard(job->guard_user);
    in_task = before;
    return answer;
}

/* Runs the whole range on this thread. */
static void run_alone(const struct job *job) {
    if (!run_guard(job)) return;
    bool before = in_task;
    in_task = true;
    job->task(job->user, 0, 0, (int64_t)job->n);
    in_task = before;
}

/* ---- Workers ---- */

/* Waits until the gate is no longer as `seen` (its joined do not count) or workers shall end. */
static uint32_t await_change(uint32_t seen) {
    spin(has_changed, seen, spin_time());
    uint32_t gate = atomic_load(&pool.gate);
    if (has_changed(gate, seen)) return gate;
    /* The owner first changes the gate and then looks for sleepers; here it is the other way round.
     * So in any order of the four, this worker sees the change or the owner sees this worker. */
    atomic_fetch_add(&pool.sleepers, 1);
    while (!has_changed(gate = atomic_load(&pool.gate), seen) && !atomic_load(&pool.stop))
        sleep_on(&pool.gate, gate);
    atomic_fetch_sub(&pool.sleepers, 1);
    return gate;
}

/* `*gate` is what was seen last, before and after. */
static bool join(uint32_t *gate) {
    while (*gate & GATE_OPEN)
        if (atomic_compare_exchange_weak(&pool.gate, gate, *gate + 1)) return true;
    return false;
}

static void leave(void) {
    uint32_t gate = atomic_fetch_sub(&pool.gate, 1) - 1;
    if (gate & (GATE_OPEN | GATE_JOINED)) return;
    if (atomic_exchange(&pool.owner_sleeps, 0)) wake(&pool.owner_sleeps, 1);
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    uint32_t seen = 0;
    while (!atomic_load_explicit(&pool.stop, memory_order_acquire)) {
        uint32_t gate = await_change(seen);
        if (join(&gate)) {
            take_chunks(thread);
            leave();
        }
        seen = gate & ~GATE_JOINED;
    }
    return NULL;
}

/* Everything that follows until pool_set_threads is for the owner. */

static void stop_workers(void) {
    atomic_store(&pool.stop, true);
    atomic_fetch_add(&pool.gate, GATE_SEQUENCE); /* ends the spinning */
    wake(&pool.gate, INT_MAX);
    for (int i = 0; i < pool.n_workers; i++) pthread_join(pool.workers[i], NULL);
    pool.n_workers = 0;
    pool.built_for = 0;
    atomic_store(&pool.stop, false);
}

/* In the child of a fork there are no workers, and whoever owned the pool is gone too. The next job
 * builds it anew. (A fork from inside a task cannot finish its job in the child; nothing could.) */
static void after_fork(void) {
    atomic_store(&pool.gate, 0);
    atomic_store(&pool.owner_sleeps, 0);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.held, false);
    atomic_store(&pool.stop, false);
    pool.n_workers = 0;
    pool.built_for = 0;
    holds = false;
    atomic_store(&pool.owned, false);
}

/* Workers take no signals: handlers of the host run on threads of the host. */
static void start_workers(int n) {
    if (!pool.knows_fork) pool.knows_fork = !pthread_atfork(NULL, NULL, after_fork);
    if (!pool.knows_fork) return; /* out of memory: one thread is better than a child that hangs */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool.n_workers < n) {
        pthread_t *worker = &pool.workers[pool.n_workers];
        if (pthread_create(worker, NULL, work, (void *)(intptr_t)(pool.n_workers + 1))) break;
        pthread_setname_np(*worker, "sol-worker");
        pool.n_workers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pool.n_workers < n)
        LOG_ONCE(LOG_WARN, "the system refused a thread: SOL runs on %d", pool.n_workers + 1);
}

static int default_threads(void) { return (int)min_i64(os_threads(), MAX_THREADS); }

static int wanted_threads(void) {
    int n = atomic_load_explicit(&pool.wanted, memory_order_relaxed);
    if (n) return n;
    int first = default_threads();
    return atomic_compare_exchange_strong(&pool.wanted, &n, first) ? first : n;
}

/* Makes the workers as many as were asked for. */
static void prepare(void) {
    int threads = wanted_threads();
    if (pool.built_for == threads) return;
    if (pool.n_workers) stop_workers();
    atomic_store(&pool.may_spin, threads <= os_cores());
    if (threads > 1) start_workers(threads - 1);
    pool.built_for = threads;
}

static bool acquire(void) {
    return !atomic_load_explicit(&pool.owned, memory_order_relaxed) &&
           !atomic_exchange(&pool.owned, true);
}

static void release(void) { atomic_store(&pool.owned, false); }

static void await_joined(void) {
    spin(is_empty, 0, spin_time());
    for (;;) {
        /* Set again in each round: a worker that left the job before may clear it only now. */
        atomic_store(&pool.owner_sleeps, 1);
        if (is_empty(atomic_load(&pool.gate), 0)) break;
        sleep_on(&pool.owner_sleeps, 1);
    }
    atomic_store(&pool.owner_sleeps, 0);
}

static void dispatch(const struct job *job) {
    pool.job = *job;
    set_shares(job);
    uint32_t sequence = atomic_load(&pool.gate) & ~(GATE_SEQUENCE - 1);
    atomic_store(&pool.gate, (sequence + GATE_SEQUENCE) | GATE_OPEN);
    if (atomic_load(&pool.sleepers)) {
        uint64_t helpers =
            (job->n - 1) / job->chunk; /* chunks, less the one that the owner takes */
        wake(&pool.gate, helpers < MAX_THREADS ? (int)helpers : MAX_THREADS);
    }
    if (run_guard(job)) take_chunks(0);
    else
        for (int i = 0; i < job->n_shares; i++) atomic_store(&pool.share[i].next, job->n);
    if (!is_empty(atomic_fetch_and(&pool.gate, ~GATE_OPEN), 0)) await_joined();
}

/* ---- For everybody ---- */

int pool_threads(void) { return holds ? pool.n_workers + 1 : wanted_threads(); }

void pool_set_threads(int n) {
    if (n <= 0) n = default_threads();
    atomic_store(&pool.wanted, (int)min_i64(n, MAX_THREADS));
    /* Threads that are no longer wanted end now; new ones start with the next job. If the pool is
     * in use, both happen when it is taken next. */
    if (!acquire()) return;
    if (pool.n_workers && pool.built_for != wanted_threads()) stop_workers();
    release();
}

bool pool_begin(void) {
    if (in_task || holds || !acquire()) return false;
    holds = true;
    atomic_store(&pool.held, true);
    prepare();
    return true;
}

void pool_end(void) {
    if (!holds) return;
    holds = false;
    atomic_store(&pool.held, false);
    release();
}

static void run_owned(struct job *job, int64_t grain) {
    if (!pool.n_workers) {
        run_alone(job);
        return;
    }
    job->n_shares = pool.n_workers + 1;
    uint64_t shares = (uint64_t)(pool.n_workers + 1) * CHUNKS_PER_THREAD;
    uint64_t grains = job->n / (uint64_t)grain / shares;
    job->chunk = (uint64_t)grain * (grains ? grains : 1);
    dispatch(job);
}

static void run_job(struct job *job, int64_t grain) {
    int64_t n = (int64_t)job->n;
    /* The upper limit keeps `next` from wrapping when each thread adds a chunk of almost n. */
    bool alone = in_task || n <= grain || n > INT64_MAX / MAX_THREADS;
    if (!alone && holds) {
        run_owned(job, grain);
    } else if (!alone && acquire()) {
        prepare();
        run_owned(job, grain);
        release();
    } else {
        run_alone(job);
    }
}

void pool_run(int64_t n, int64_t grain, pool_task *task, void *user) {
    pool_run_speculative(NULL, NULL, n, grain, task, user);
}

void pool_run_speculative(pool_guard *guard, void *guard_user, int64_t n, int64_t grain,
                          pool_task *task, void *user) {
    struct job job = {.task = task,
                      .user = user,
                      .n = n > 0 ? (uint64_t)n : 0,
                      .guard = guard,
                      .guard_user = guard_user};
    if (n > 0) run_job(&job, grain < 1 ? 1 : grain);
    else run_guard(&job);
}

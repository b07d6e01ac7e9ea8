/*
 * The thread pool: one job at a time, computed by the calling thread and by workers.
 *
 *   caller:  write job -> open gate ------------> take chunks -> close gate -> wait for joined workers
 *   worker:  spin or sleep -> gate open: join -> take chunks -> leave -> spin or sleep
 *
 * The gate is one word: a sequence number, a bit for "open", and the number of workers that have joined. A
 * worker that is late finds the gate closed and skips the job. So the caller waits only for workers that have
 * joined, never for one that sleeps: a short job that the caller finishes alone is as fast as with one thread.
 *
 * Invariants: the job is written only while the gate is closed and no worker is joined; only the owner
 * of the pool opens and closes the gate; all data is in static memory, so workers may read the gate at any
 * time.
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

/* A worker spins for about the time of a wake-up, some 50 us on a virtual machine, before it sleeps: this costs at most twice the
 * time of the best choice. It spins longer between pool_begin and pool_end, when the next step comes soon. */
#define SPIN_S 50e-6
#define SPIN_HELD_S 1e-3
#define PAUSES_PER_LOOK 64 /* pauses between two reads of the clock: 1 to 3 us */

/* About the largest number of chunks per thread of a job: enough to balance the load if a thread is slow, few enough for atomic
 * counters to cost little. */
#define CHUNKS_PER_THREAD 16

#define GATE_OPEN 0x8000u
#define GATE_JOINED 0x7fffu
#define GATE_SEQUENCE 0x10000u /* the upper half counts jobs; if it wraps, a worker misses one */

struct job {
    pool_task *task;
    void *user;
    uint64_t n, chunk;
    int n_shares;      /* one per thread */
    pool_guard *guard; /* evaluated by the owner before it takes chunks; NULL: none */
    void *guard_user;
};

/* A part of the job. Its thread takes chunks of it first; other threads do when their own share is done. */
struct share {
    _Alignas(CACHE_LINE) _Atomic uint64_t next; /* the first task not taken; may exceed `end` */
    uint64_t end;
};

static struct {
    _Alignas(CACHE_LINE) _Atomic uint32_t gate;
    _Alignas(CACHE_LINE) struct job job;

    _Alignas(CACHE_LINE) _Atomic uint32_t
        owner_sleeps;     /* the owner sleeps until joined workers have left */
    _Atomic int sleepers; /* number of workers that sleep, or are about to */
    _Atomic bool owned;
    _Atomic bool held;     /* owned from pool_begin to pool_end */
    _Atomic bool stop;     /* workers must end */
    _Atomic bool may_spin; /* false if there are more threads than cores */
    _Atomic int wanted;    /* requested number of threads; 0: not set yet */

    /* Used by the owner only. */
    int built_for;   /* the value of `wanted` for which workers were started */
    int n_workers;   /* less than built_for - 1 if the system refused a thread */
    bool knows_fork; /* after_fork is registered */
    pthread_t workers[MAX_THREADS];
    struct share share[MAX_THREADS];
} pool;

static _Thread_local bool holds; /* this thread is between pool_begin and pool_end */
static _Thread_local bool
    in_task; /* this thread runs a task or guard: pool_run uses no other thread */

/* ---- Waiting ---- */

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word == value. May return early, so callers test again. */
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
        if (deadline == 0) deadline = now + seconds; /* a short wait never reads the clock */
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

/* ---- Running a job ---- */

/* Runs chunks until none is left. A thread begins with its own share, which is about the same part of each job, so that the
 * data it wrote in the previous job is in its caches. The job does not change until this thread has left the gate. */
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

/* Evaluates the guard, if there is one. in_task is set, as the pool is busy with this job: a pool_run inside the guard uses
 * this thread only. */
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

/* Waits until the gate differs from `seen` (not counting joined workers) or workers must end. */
static uint32_t await_change(uint32_t seen) {
    spin(has_changed, seen, spin_time());
    uint32_t gate = atomic_load(&pool.gate);
    if (has_changed(gate, seen)) return gate;
    /* The owner changes the gate, then reads `sleepers`. The worker changes `sleepers`, then reads the gate.
     * So in any order of the four, the worker sees the change or the owner sees the worker: no wake-up is lost. */
    atomic_fetch_add(&pool.sleepers, 1);
    while (!has_changed(gate = atomic_load(&pool.gate), seen) && !atomic_load(&pool.stop))
        sleep_on(&pool.gate, gate);
    atomic_fetch_sub(&pool.sleepers, 1);
    return gate;
}

/* Joins if the gate is open. `*gate` is the last value read, and is updated. */
static bool join(uint32_t *gate) {
    while (*gate & GATE_OPEN)
        if (atomic_compare_exchange_weak(&pool.gate, gate, *gate + 1)) return true;
    return false;
}

/* The last worker to leave a closed gate wakes the owner. */
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

/* ---- The owner ---- */

static void stop_workers(void) {
    atomic_store(&pool.stop, true);
    atomic_fetch_add(&pool.gate, GATE_SEQUENCE); /* ends the spinning */
    wake(&pool.gate, INT_MAX);
    for (int i = 0; i < pool.n_workers; i++) pthread_join(pool.workers[i], NULL);
    pool.n_workers = 0;
    pool.built_for = 0;
    atomic_store(&pool.stop, false);
}

/* The child of a fork has no workers, and no other thread owns the pool. The next job
 * starts new workers. (A job that forks from inside a task cannot be finished in the child.) */
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

/* Starts workers until there are n. They block all signals, so that the host's signal handlers run on the host's threads. */
static void start_workers(int n) {
    if (!pool.knows_fork) pool.knows_fork = !pthread_atfork(NULL, NULL, after_fork);
    if (!pool.knows_fork) return; /* out of memory: without the handler a forked child would hang */
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

/* Starts or ends workers, until there are as many as requested. */
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
        /* Set again in each round: a worker that left the previous job may clear it late. */
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
            (job->n - 1) / job->chunk; /* number of chunks, without the one that the owner takes */
        wake(&pool.gate, helpers < MAX_THREADS ? (int)helpers : MAX_THREADS);
    }
    if (run_guard(job)) take_chunks(0);
    else
        for (int i = 0; i < job->n_shares; i++) atomic_store(&pool.share[i].next, job->n);
    if (!is_empty(atomic_fetch_and(&pool.gate, ~GATE_OPEN), 0)) await_joined();
}

/* ---- Interface ---- */

int pool_threads(void) { return holds ? pool.n_workers + 1 : wanted_threads(); }

void pool_set_threads(int n) {
    if (n <= 0) n = default_threads();
    atomic_store(&pool.wanted, (int)min_i64(n, MAX_THREADS));
    /* All workers end now if the number changes; the next job starts new ones. If the pool is
     * in use, both happen at the next job. */
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
    /* The upper limit of n prevents that `next` overflows when each thread adds a chunk of almost n. */
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

/*
 * Steps of time on all threads.
 *
 *   dnn_recurrent_walk -> pool_run, once -> run_steps on each thread -> the caller's task
 *
 * The tasks of a step are divided into one share per thread, the same ones at all steps, so that the weights of a share
 * stay in the caches of its thread. If they do not fit, every second step takes them in the opposite order: it begins with those that the
 * step before has used last. A thread that is done with its share takes tasks of others, so any number of threads computes all
 * steps, and a thread that begins late finds its place by the counters of the shares.
 *
 * Invariant: a step begins when all tasks of the step before are done. This file is part of deployed libraries.
 */
#include "dnn/recurrent_walk.h"

#include "dnn/dnn.h"
#include "run/pool.h"

#include <sched.h>
#include <stdatomic.h>

/* Multiply-adds of a step of time below which waking other threads costs more than they save, about a microsecond. */
#define ALONE ((int64_t)1 << 16)

/* Most shares, for threads beyond that there are none; and pauses of a waiting thread before it offers its core to others, some 20 us. */
#define SHARES 64
#define PAUSES 500

/* A part of the tasks of each step of time. `next` counts the tasks that were taken at all steps: task next % n of step next / n is the
 * next one. */
struct share {
    _Alignas(128) _Atomic int64_t next;
    int64_t begin, n;
};

struct walk {
    int64_t n_steps, n_tasks;
    dnn_recurrent_task *task;
    void *user;
    int n_shares;
    struct share share[SHARES];
    _Alignas(128) _Atomic int64_t done; /* tasks of all steps */
};

/* Takes a task of the share at step number `step`. -1: there is none left. */
static int64_t take_task(struct share *share, int64_t step) {
    int64_t next = atomic_load_explicit(&share->next, memory_order_relaxed);
    do
        if (next >= (step + 1) * share->n) return -1;
    while (!atomic_compare_exchange_weak_explicit(&share->next, &next, next + 1,
                                                  memory_order_relaxed, memory_order_relaxed));
    const int64_t i = next - step * share->n;
    return share->begin + (step % 2 ? share->n - 1 - i : i);
}

/* Computes all tasks of a step that nobody has taken, those of the own share first. Returns their number. */
static int64_t run_step(struct walk *w, int own, int64_t step) {
    int64_t n = 0;
    for (int i = 0; i < w->n_shares; i++) {
        struct share *share = &w->share[(own + i) % w->n_shares];
        for (int64_t task; (task = take_task(share, step)) >= 0; n++) w->task(w->user, step, task);
    }
    return n;
}

/* Waits until `n` tasks of all steps are done. */
static void await_tasks(struct walk *w, int64_t n) {
    for (int64_t i = 0; atomic_load_explicit(&w->done, memory_order_acquire) < n; i++) {
#if defined __x86_64__
        __builtin_ia32_pause();
#elif defined __aarch64__
        __asm__ volatile("yield");
#endif
        if (i % PAUSES == PAUSES - 1) sched_yield();
    }
}

/* All steps on one thread, with the share `begin`. The tasks of a step need the states of all units: it waits for those that others have
 * taken. These are running, so the wait ends. */
static void run_steps(void *user, int thread, int64_t begin, int64_t end) {
    struct walk *w = user;
    (void)thread, (void)end;
    for (int64_t step = 0; step < w->n_steps; step++) {
        const int64_t n = run_step(w, (int)begin, step);
        if (n) atomic_fetch_add_explicit(&w->done, n, memory_order_acq_rel);
        await_tasks(w, (step + 1) * w->n_tasks);
    }
}

void dnn_recurrent_walk(int64_t n_steps, int64_t n_tasks, int64_t work, dnn_recurrent_task *task,
                        void *user) {
    struct walk w = {.n_steps = n_steps, .n_tasks = n_tasks, .task = task, .user = user};
    const int64_t n = work < ALONE ? 1 : min_i64(min_i64(pool_threads(), SHARES), n_tasks);
    w.n_shares = (int)n;
    for (int i = 0; i < w.n_shares; i++) {
        struct share *share = &w.share[i];
        share->begin = dnn_split(n_tasks, i, n);
        share->n = dnn_split(n_tasks, i + 1, n) - share->begin;
        atomic_init(&share->next, 0);
    }
    atomic_init(&w.done, 0);
    pool_run(w.n_shares, 1, run_steps, &w);
}

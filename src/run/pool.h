/*
 * The thread pool: one per process. The calling thread computes, too; with one thread there are no workers.
 *
 *   exec.c -> pool_begin -> a pool_run per step: tasks [0, n) on caller and workers -> pool_end
 *
 * Workers spin for a bounded time before they sleep. So they are awake for the next step of a program, and an idle process
 * uses no processor time.
 */
#ifndef SOL_POOL_H
#define SOL_POOL_H

#include "base/base.h"

/* All deployed libraries of a process share one pool: the functions are weak symbols, of which the linker takes one
 * definition. The number in their names is the version of this interface. */
#ifdef POOL_SHARED
#define pool_run sol_pool_1_run
#define pool_run_speculative sol_pool_1_run_after
#define pool_threads sol_pool_1_threads
#define pool_set_threads sol_pool_1_set_threads
#define pool_begin sol_pool_1_begin
#define pool_end sol_pool_1_end
#define POOL_API __attribute__((weak, visibility("default")))
#else
#define POOL_API
#endif

/* Computes tasks [0, n) by calls of `task(user, thread, begin, end)`, and returns when all are done. Threads take ranges
 * dynamically, of at least `grain` tasks. `thread` < pool_threads() selects the scratch memory. If the pool is busy, or
 * the caller is inside a task, all tasks run on the calling thread with thread == 0, so each caller needs scratch memory of its
 * own. After a fork the child starts new workers. Never fails: if threads cannot be created, fewer take part. */
typedef void pool_task(void *user, int thread, int64_t begin, int64_t end);
POOL_API void pool_run(int64_t n, int64_t grain, pool_task *task, void *user);

/* As pool_run, but the calling thread first evaluates a guard, while the workers already run tasks.
 * Without workers the guard is evaluated before any task. If it returns false, tasks that
 * have not begun are skipped. */
typedef bool pool_guard(void *user);
POOL_API void pool_run_speculative(pool_guard *guard, void *guard_user, int64_t n, int64_t grain,
                                   pool_task *task, void *user);

POOL_API int pool_threads(void);       /* the caller included, >= 1 */
POOL_API void pool_set_threads(int n); /* 0: $SOL_NUM_THREADS or all cores */
/* Between begin and end the calling thread owns the pool, and workers spin longer between jobs. pool_begin returns false if a
 * thread already owns the pool, or in a task: then do not call pool_end. Without the pool, pool_run still works, on one thread. */
POOL_API bool pool_begin(void);
POOL_API void pool_end(void);

#endif

/*
 * The thread pool: one per process, the caller's thread takes part, none at one thread.
 *
 * A job is a range [0, n) of tasks. Workers spin for a bounded time before they park, so that the steps of one
 * program find them awake, and an idle process costs nothing.
 */
#ifndef SOL_POOL_H
#define SOL_POOL_H

#include "base/base.h"

/* Deployed libraries of one process share the pool of the first of them: the linker takes one definition of each of these
 * functions. The number in the names changes with the interface. */
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

/* Runs `task(user, thread, begin, end)` until all of [0, n) is done; ranges are handed out dynamically in chunks of
 * `grain` tasks or more. `thread` < pool_threads() tells scratch memory apart. A second caller that finds the pool busy, and a call from
 * inside a task, run alone on their own thread (thread == 0: their scratch is their own). After fork the child builds a new pool.
 * Never fails: if threads cannot be created it runs with those it has. */
typedef void pool_task(void *user, int thread, int64_t begin, int64_t end);
POOL_API void pool_run(int64_t n, int64_t grain, pool_task *task, void *user);

/* As pool_run, but the caller's thread first evaluates a guard, while the workers wake and begin;
 * without workers it evaluates the guard before any task. If the guard returns false, tasks that
 * have not begun are skipped. */
typedef bool pool_guard(void *user);
POOL_API void pool_run_speculative(pool_guard *guard, void *guard_user, int64_t n, int64_t grain,
                                   pool_task *task, void *user);

POOL_API int pool_threads(void);       /* threads that take part, >= 1 */
POOL_API void pool_set_threads(int n); /* 0: $SOL_NUM_THREADS or all cores */
/* Between begin and end the caller keeps the pool for itself and its workers spin between steps. Nests never; returns false when
 * another thread has it (then pool_run runs alone, which is right, only slower). */
POOL_API bool pool_begin(void);
POOL_API void pool_end(void);

#endif

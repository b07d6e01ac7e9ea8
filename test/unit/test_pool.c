/*
 * src/run/pool: every task runs exactly once, for any caller, and two threads never have the same number at a time.
 *
 * Also run it under -fsanitize=thread. `test_pool time` measures the cost of an empty job.
 */
#include "check.h"
#include "run/pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child of a fork starts its own threads, which test_fork tests; ThreadSanitizer would end it. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }

#define MAX_TASKS 5000
#define MAX_THREADS 16

struct count {
    unsigned char done[MAX_TASKS]; /* not atomic: tasks are disjoint, so elements are not shared */
    int64_t busy[MAX_THREADS];     /* not atomic: one thread per number at a time */
    atomic_int calls;
};

static void count_tasks(void *user, int thread, int64_t begin, int64_t end) {
    struct count *count = user;
    for (int64_t i = begin; i < end; i++) count->done[i]++;
    count->busy[thread] += end - begin;
    atomic_fetch_add(&count->calls, 1);
}

/* Runs n tasks and returns whether each ran once. */
static bool runs_once(int64_t n, int64_t grain) {
    struct count count = {0};
    pool_run(n, grain, count_tasks, &count);
    int64_t busy = 0;
    for (int i = 0; i < MAX_THREADS; i++) busy += count.busy[i];
    for (int64_t i = 0; i < n; i++)
        if (count.done[i] != 1) return false;
    return busy == n && atomic_load(&count.calls) <= ceil_div(n, max_i64(grain, 1));
}

struct guard {
    bool answer;
    int n_calls;
    pthread_t thread;
};

static bool run_guard(void *user) {
    struct guard *guard = user;
    guard->n_calls++;
    guard->thread = pthread_self();
    CHECK(runs_once(50, 1)); /* the pool is busy with the outer call */
    return guard->answer;
}

/* The guard is evaluated once, on this thread; if it fails, no task runs twice, and few run at
 * all. */
static void test_guard(int64_t n, int64_t grain, bool answer) {
    struct count count = {0};
    struct guard guard = {.answer = answer};
    pool_run_speculative(run_guard, &guard, n, grain, count_tasks, &count);
    CHECK(guard.n_calls == 1 && pthread_equal(guard.thread, pthread_self()));
    for (int64_t i = 0; i < n; i++) CHECK(answer ? count.done[i] == 1 : count.done[i] <= 1);
}

static void test_guards(void) {
    for (int threads = 1; threads <= 5; threads++) {
        pool_set_threads(threads);
        for (int64_t n = 0; n < 40; n += 3)
            for (int held = 0; held < 2; held++) {
                if (held) CHECK(pool_begin());
                test_guard(n, 1, true), test_guard(n, 1, false), test_guard(n, 50, false);
                if (held) pool_end();
            }
        CHECK(runs_once(MAX_TASKS, 1));
    }
}

static void test_ranges(void) {
    for (int threads = 1; threads <= 5; threads++) {
        pool_set_threads(threads);
        CHECK(pool_threads() == threads);
        for (int64_t n = 0; n < 40; n++)
            for (int64_t grain = 0; grain < 12; grain++) CHECK(runs_once(n, grain));
        CHECK(runs_once(MAX_TASKS, 1) && runs_once(MAX_TASKS, 7) &&
              runs_once(MAX_TASKS, INT64_MAX / 2));
        CHECK(pool_begin() && !pool_begin());
        for (int i = 0; i < 300; i++) CHECK(runs_once(100, 1));
        CHECK(pool_threads() == threads);
        pool_end();
        pool_end(); /* does nothing */
    }
}

/* Both threads take part, even if the workers sleep: each of the two tasks waits for the other. */
static void meet(void *user, int thread, int64_t begin, int64_t end) {
    (void)thread;
    atomic_int *present = user;
    atomic_fetch_add(present, (int)(end - begin));
    double deadline = os_now() + 5;
    while (atomic_load(present) < 2 && os_now() < deadline) sched_yield();
    CHECK(atomic_load(present) == 2);
}

static void test_sleepers(void) {
    pool_set_threads(2);
    for (int i = 0; i < 20; i++) {
        atomic_int present = 0;
        pool_run(2, 1, meet, &present);
        usleep(i % 2 ? 5000 : 30); /* asleep, or about to sleep */
    }
}

/* ---- Overlapping calls ---- */

static void nest(void *user, int thread, int64_t begin, int64_t end) {
    (void)thread;
    CHECK(!pool_begin());
    for (int64_t i = begin; i < end; i++) {
        struct count inner = {0};
        pool_run(10, 1, count_tasks, &inner);
        CHECK(inner.busy[0] == 10 && atomic_load(&inner.calls) == 1);
        atomic_fetch_add((atomic_int *)user, 1);
    }
}

static void *call_often(void *user) {
    for (int i = 0; i < 200; i++) {
        bool mine = i % 3 == 0 && pool_begin();
        for (int step = 0; step < 3; step++) CHECK(runs_once(64, 1));
        if (mine) pool_end();
        if (user && i % 50 == 0) pool_set_threads(1 + i / 50);
    }
    return NULL;
}

static void test_callers(void) {
    pool_set_threads(4);
    atomic_int nested = 0;
    pool_run(30, 1, nest, &nested);
    CHECK(atomic_load(&nested) == 30);

    pthread_t callers[4];
    for (int i = 0; i < COUNT(callers); i++)
        REQUIRE(!pthread_create(&callers[i], NULL, call_often, i ? NULL : callers));
    for (int i = 0; i < COUNT(callers); i++) pthread_join(callers[i], NULL);
}

static void test_fork(void) {
    if (check_is_emulated("fork")) return;
    pool_set_threads(3);
    CHECK(runs_once(100, 1));
    CHECK(pool_begin());
    pid_t pid = fork();
    if (!pid) {
        bool right = runs_once(100, 1) && runs_once(1000, 3);
        pool_end(); /* the child has not called pool_begin */
        right = right && pool_begin() && pool_threads() == 3 && runs_once(1000, 3);
        _exit(right ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(runs_once(100, 1));
    pool_end();
}

static int count_threads(void) {
    FILE *file = fopen("/proc/self/status", "r");
    int n = -1;
    char line[256];
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Threads: %d", &n) == 1) break;
    if (file) fclose(file);
    return n;
}

static void test_threads(int before) {
    pool_set_threads(1);
    CHECK(runs_once(100, 1));
    CHECK(count_threads() == before);
    pool_set_threads(3);
    CHECK(runs_once(100, 1));
    CHECK(count_threads() == before + 2);
    pool_set_threads(1);
    setenv("SOL_NUM_THREADS", "7", 1);
    pool_set_threads(0);
    CHECK(pool_threads() == 7);
    setenv("SOL_NUM_THREADS", "x", 1);
    pool_set_threads(0);
    CHECK(pool_threads() == os_cores());
    unsetenv("SOL_NUM_THREADS");
    pool_set_threads(1 << 30);
    CHECK(pool_threads() > 1);
    pool_set_threads(1);
}

/* ---- Cost ---- */

static void do_nothing(void *user, int thread, int64_t begin, int64_t end) {
    (void)user, (void)thread, (void)begin, (void)end;
}

/* Each task takes about `user` nanoseconds. */
static void do_some(void *user, int thread, int64_t begin, int64_t end) {
    (void)thread;
    double until = os_now() + 1e-9 * (double)(intptr_t)user * (double)(end - begin);
    while (os_now() < until) continue;
}

static double time_of_job(int rounds, int64_t n, pool_task *task, intptr_t user) {
    pool_run(n, 1, task, (void *)user);
    double before = os_now();
    for (int i = 0; i < rounds; i++) pool_run(n, 1, task, (void *)user);
    return 1e6 * (os_now() - before) / rounds;
}

static void measure(int threads) {
    pool_set_threads(threads);
    pool_begin();
    printf("%d threads: %.3f us for an empty job", threads,
           time_of_job(200000, threads, do_nothing, 0));
    for (intptr_t us = 1; us <= 100; us *= 10)
        printf(", %.1f us for %d x %d us", time_of_job(2000, threads, do_some, 1000 * us), threads,
               (int)us);
    printf("\n");
    pool_end();
}

static void *end_at_once(void *unused) { return unused; }

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "time")) {
        for (int n = 1; n <= os_cores(); n *= 2) measure(n);
        return 0;
    }
    /* A sanitizer starts its own thread together with the first thread of the process. */
    pthread_t first;
    REQUIRE(!pthread_create(&first, NULL, end_at_once, NULL));
    pthread_join(first, NULL);
    int before = count_threads();
    test_threads(before);
    test_ranges();
    test_guards();
    test_sleepers();
    test_callers();
    test_fork();
    pool_set_threads(1);
    return check_done();
}

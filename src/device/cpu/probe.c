/*
 * The machine's own limits, measured: the rates that no kernel exceeds, with the threads that SOL would use.
 *
 *   sol_measure_* -> pool, every thread repeats its part -> the best of many short rounds
 *
 * Other work on the machine only makes a round slower, so the best one counts. A second caller that finds the pool busy
 * measures one thread.
 */
#include "dnn/probe.h"
#include "device/cpu/cpu.h"
#include "dnn/kernels.h"
#include "run/pool.h"

#include <sol/sol.h>

#define ROUNDS 20
#define MULTIPLY_ROUNDS 40000             /* about 0.2 ms per task: longer than a wake-up, shorter than a time slice */
#define TASK_FLOATS (64 << 10)            /* what a thread reads at a time: 256 KiB */
#define MIN_SECONDS 2e-3                  /* of reading; small buffers are read again and again */
#define MAX_BYTES ((size_t)1 << 30)       /* larger than any cache; more would only take longer */
#define MAX_LANES 16

static const struct dnn_probe_kernels *probe_kernels(void) { return cpu_isa()->kernels->probe; }

/* Seconds of the fastest of ROUNDS runs of all tasks. */
static double time_best(int64_t n, int64_t grain, pool_task *task, void *user) {
    double best = 1e9;
    bool has_pool = pool_begin();
    for (int i = 0; i < ROUNDS; i++) {
        double start = os_now();
        pool_run(n, grain, task, user);
        double seconds = os_now() - start;
        if (seconds < best) best = seconds;
    }
    if (has_pool) pool_end();
    return best;
}

/* ---- Multiply-adds ---- */

static void multiply(void *user, int thread, int64_t begin, int64_t end) {
    float out[MAX_LANES];
    (void)user, (void)thread;
    for (int64_t i = begin; i < end; i++) probe_kernels()->multiply(MULTIPLY_ROUNDS, out);
}

double sol_measure_flops(void) {
    float out[MAX_LANES];
    double task = probe_kernels()->multiply(MULTIPLY_ROUNDS, out);
    int64_t n = 4 * pool_threads(); /* a thread that came late leaves its tasks to the others */
    return task * (double)n / time_best(n, 1, multiply, NULL);
}

/* ---- Reading ---- */

struct reading {
    const float *at;
    int64_t n_tasks; /* of TASK_FLOATS each; tasks beyond begin again at the start */
};

static void read_tasks(void *user, int thread, int64_t begin, int64_t end) {
    const struct reading *r = user;
    float out[MAX_LANES];
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        probe_kernels()->read(r->at + i % r->n_tasks * TASK_FLOATS, TASK_FLOATS, out);
}

/* How often a buffer is to be read for a round to last MIN_SECONDS, from one round's time. */
static int64_t count_repeats(struct reading *r) {
    double seconds = time_best(r->n_tasks, 1, read_tasks, r);
    return seconds < MIN_SECONDS ? 1 + (int64_t)(MIN_SECONDS / seconds) : 1;
}

double sol_measure_bandwidth(size_t size) {
    size_t bytes = size < MAX_BYTES ? size : MAX_BYTES, task = TASK_FLOATS * sizeof(float);
    struct reading r = {.n_tasks = (int64_t)((bytes + task - 1) / task)};
    if (r.n_tasks < pool_threads()) r.n_tasks = pool_threads();
    float *memory =
        mem_alloc((size_t)r.n_tasks * task, 4096); /* comes zeroed: its pages are there */
    if (!memory) return 0;
    r.at = memory;
    int64_t n = r.n_tasks * count_repeats(&r);
    double seconds = time_best(n, 1, read_tasks, &r);
    mem_free(memory);
    return (double)n * (double)task / seconds;
}

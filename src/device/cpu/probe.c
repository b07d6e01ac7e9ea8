/*
 * Measures the machine's peak floating point rate and bandwidth, with SOL's threads: upper bounds for all kernels.
 *
 *   sol_measure_* -> short rounds on the pool -> the rate of the fastest round
 *
 * The fastest round counts, as other processes on the machine can only make a round slower. If the pool is busy, one
 * thread is measured.
 */
#include "device/cpu/cpu.h"
#include "dnn/list.h"
#include "run/pool.h"

#include <sol/sol.h>

#define MEASURE_SECONDS 0.1       /* of all rounds: likely contains one without disturbance by other processes */
#define MULTIPLY_ROUNDS 40000     /* about 0.1 ms per task: longer than a wake-up, shorter than a time slice */
#define TASK_FLOATS (64 << 10)    /* floats that a task reads: 256 KiB */
#define READ_SECONDS 1e-3         /* least time of a round; small buffers are read several times */
#define MAX_BYTES ((size_t)1 << 29) /* of the buffer: larger than all caches */
#define MAX_LANES 16

static const struct dnn_probe_kernels *probe_kernels(void) { return cpu_isa()->kernels->probe; }

/* The time of the fastest round, in seconds. A round runs all tasks. The first one wakes the threads and is not measured. */
static double time_best(int64_t n, pool_task *task, void *user) {
    double best = 1e9;
    bool has_pool = pool_begin();
    pool_run(n, 1, task, user);
    for (double stop = os_now() + MEASURE_SECONDS, start; (start = os_now()) < stop;) {
        pool_run(n, 1, task, user);
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
    int64_t n = 4 * pool_threads(); /* several per thread: others can do those of a late thread */
    return task * (double)n / time_best(n, multiply, NULL);
}

/* ---- Reading ---- */

struct reading {
    const float *at;
    int64_t n_tasks; /* tasks that read the buffer once; task i reads part i % n_tasks */
};

static void read_tasks(void *user, int thread, int64_t begin, int64_t end) {
    const struct reading *r = user;
    float out[MAX_LANES];
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        probe_kernels()->read(r->at + i % r->n_tasks * TASK_FLOATS, TASK_FLOATS, out);
}

/* The number of reads of the buffer in a round of READ_SECONDS, estimated from the time of one thread's second read. */
static int64_t count_repeats(struct reading *r) {
    read_tasks(r, 0, 0, r->n_tasks);
    double start = os_now();
    read_tasks(r, 0, 0, r->n_tasks);
    return 1 + (int64_t)(READ_SECONDS * pool_threads() / (os_now() - start + 1e-9));
}

double sol_measure_bandwidth(size_t size) {
    size_t bytes = size < MAX_BYTES ? size : MAX_BYTES, task = TASK_FLOATS * sizeof(float);
    struct reading r = {.n_tasks = (int64_t)((bytes + task - 1) / task)};
    if (r.n_tasks < pool_threads()) r.n_tasks = pool_threads();
    float *memory = mem_alloc((size_t)r.n_tasks * task, 4096); /* zeroed, so all pages are mapped */
    if (!memory) return 0;
    r.at = memory;
    int64_t n = r.n_tasks * count_repeats(&r);
    double seconds = time_best(n, read_tasks, &r);
    mem_free(memory);
    return (double)n * (double)task / seconds;
}

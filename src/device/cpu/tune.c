/*
 * Autotuning: if several implementations have nearly equal cost, it runs and times them.
 *
 *   candidates of one problem -> timed in turns on memory of the problem's sizes -> the best time of each -> the winner's index
 *
 * The winner is stored in the cache folder under a key that describes the whole problem, so that a machine times each
 * problem once. Large weights are evicted from the caches before each run, as the other layers of a network would do.
 */
#include "device/cpu/tune.h"

#include "jit/jit.h"
#include "run/pool.h"
#include "run/program.h"

#include <fcntl.h>
#include <math.h>
#include <sol/sol.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TUNE_ROUNDS 6
#define TUNE_EVICT_ABOVE (1 << 20)   /* bytes of packed weights, above which L2 would not keep them */
#define TUNE_EVICT_SIZE (64 << 20)   /* bytes read to evict them: more than a few cores' part of L3 */
#define TUNE_EVICT_PIECE (64 << 10)
#define TUNE_SPREAD 1.2 /* largest ratio of the winner's second best to best time; above it the times are noisy */
#define TUNE_AGAIN_NS 50000000 /* time per process to repeat noisy measurements */
#define TUNE_MARGIN 0.97 /* a vendor's library wins only if it is faster by more than the error of timing */

/* ---- The cache of winners ---- */

/* SOL's version, the instruction set, the problem, and the candidates with the versions of their libraries. */
const char *cpu_tune_key(struct arena *arena, const struct dnn_plan *plans, int n) {
    struct text key;
    bool available;
    text_init(&key, arena);
    text_add(&key, "sol %s %s ", sol_version(), dnn_find_isa(plans[0].kernels)->name);
    dnn_print_problem(&key, &plans[0].problem);
    for (int i = 0; i < n; i++)
        text_add(&key, " %s(%s)", plans[i].impl->name,
                 plans[i].impl->probe ? plans[i].impl->probe(&available) : "");
    return key.at;
}

static bool choice_path(const char *key, char *path, size_t size) {
    char folder[3072];
    if (jit_cache_dir(folder, sizeof folder)) return false;
    int n = snprintf(path, size, "%s/%016llx.choice", folder,
                     (unsigned long long)hash_bytes(0, key, strlen(key)));
    return n > 0 && (size_t)n < size;
}

/* The stored winner's index, UNKNOWN, or NOISY if its times were noisy. The file contains the key, a newline, and the winner's
 * name or NOISY_NAME. */
enum { UNKNOWN = -1, NOISY = -2 };
#define NOISY_NAME "?"
static int recall(const char *key, const struct dnn_plan *plans, int n) {
    char path[4096], *text;
    size_t size, length = strlen(key);
    int found = UNKNOWN;
    if (!choice_path(key, path, sizeof path) || access(path, R_OK) || os_read(path, &text, &size))
        return UNKNOWN;
    if (size > length && !strncmp(text, key, length) && text[length] == '\n') {
        if (!strcmp(text + length + 1, NOISY_NAME)) found = NOISY;
        for (int i = 0; i < n; i++)
            if (!strcmp(text + length + 1, plans[i].impl->name)) found = i;
    }
    mem_free(text);
    return found;
}

/* Stores a winner. Failures are ignored: the next process times the problem again. */
static void remember(const char *key, const char *winner) {
    char path[4096], temporary[4200];
    if (!choice_path(key, path, sizeof path)) return;
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    bool written = dprintf(fd, "%s\n%s", key, winner) > 0;
    close(fd);
    if (!written || rename(temporary, path)) unlink(temporary);
}

/* ---- Timing ---- */

struct trial {
    const struct dnn_plan *plan;
    struct dnn_call call;
    char *scratch;
    size_t scratch_stride;
    atomic_bool failed;
};

static void run_trial(void *user, int thread, int64_t begin, int64_t end) {
    struct trial *t = user;
    t->plan->impl->run(t->plan, &t->call, t->scratch + (size_t)thread * t->scratch_stride, begin,
                       end);
    if (exec_take_failure()) atomic_store(&t->failed, true);
}

/* The time of one run, in seconds; infinite if the implementation fails. */
static double time_once(struct trial *t) {
    int64_t n = t->plan->impl->n_tasks(t->plan, t->call.batch);
    double start = os_now();
    pool_run(n, max_i64(1, n / (4 * pool_threads())), run_trial, t);
    return atomic_load(&t->failed) ? INFINITY : os_now() - start;
}

/* All memory that candidates read and write. `all` is one block that contains the others. */
struct memory {
    float *x, *y, *residual, *bias, *scale, *shift, *packed, *evict;
    char *scratch, *all;
};

static size_t largest(const struct dnn_plan *plans, int n, bool scratch) {
    size_t size = 0;
    for (int i = 0; i < n; i++) {
        size_t s = scratch ? plans[i].scratch_size : plans[i].packed_size;
        if (s > size) size = s;
    }
    return (size_t)round_up((int64_t)size + 1, 4096);
}

static bool take_memory(const struct dnn_plan *plans, int n, struct memory *m) {
    const struct dnn_problem *p = &plans[0].problem;
    size_t x = (size_t)p->batch_hint * (size_t)p->c * (size_t)p->h * (size_t)p->w + 64;
    size_t y = (size_t)p->batch_hint * (size_t)p->k * (size_t)p->oh * (size_t)p->ow + 64;
    size_t packed = largest(plans, n, false) / 4, evict = TUNE_EVICT_SIZE / 4;
    size_t floats = x + 2 * y + 2 * (size_t)p->c + (size_t)p->k + 64 + packed + evict;
    m->all = mem_alloc(floats * 4 + largest(plans, n, true) * (size_t)pool_threads() + 8192, 4096);
    if (!m->all) return false;
    float *at = (float *)(void *)m->all;
    m->x = at, at += x, m->y = at, at += y, m->residual = at, at += y;
    m->bias = at, at += p->k, m->scale = at, at += p->c, m->shift = at, at += p->c + 64;
    m->packed = at, at += packed, m->evict = at, at += evict;
    /* Writes to all pages: reads of untouched memory would be of one shared page of zeros, and too fast. */
    for (float *f = m->x; f < m->evict + evict; f++) *f = 0.001f;
    m->scratch = (char *)(uintptr_t)round_up((int64_t)(uintptr_t)at, 4096);
    return true;
}

static void read_pieces(void *user, int thread, int64_t begin, int64_t end) {
    const float *at = user;
    volatile float sum = 0;
    (void)thread;
    for (int64_t i = begin * TUNE_EVICT_PIECE / 4; i < end * TUNE_EVICT_PIECE / 4; i += 16)
        sum += at[i];
}

/* Reads other memory with all threads, as each core has caches of its own. */
static void evict_weights(const struct memory *m) {
    pool_run(TUNE_EVICT_SIZE / TUNE_EVICT_PIECE, 8, read_pieces, m->evict);
}

static struct trial make_trial(const struct dnn_plan *plan, const struct memory *m,
                               size_t scratch_stride) {
    const struct dnn_problem *p = &plan->problem;
    struct dnn_call call = {.x = m->x,
                            .packed = m->packed,
                            .weight = m->packed,
                            .bias = p->bias ? m->bias : NULL,
                            .residual = p->residual ? m->residual : NULL,
                            .scale = p->prologue ? m->scale : NULL,
                            .shift = p->prologue ? m->shift : NULL,
                            .y = m->y,
                            .batch = p->batch_hint,
                            .x_stride = (int64_t)p->c * p->h * p->w,
                            .y_stride = (int64_t)p->k * p->oh * p->ow,
                            .residual_stride = (int64_t)p->k * p->oh * p->ow};
    return (struct trial){plan, call, m->scratch, scratch_stride, false};
}

/* The two best times of each candidate. */
struct times {
    double best, second;
};

static void note_time(struct times *times, double seconds) {
    if (seconds < times->best) times->second = times->best, times->best = seconds;
    else if (seconds < times->second) times->second = seconds;
}

/* The fastest plan. A vendor's library is compared with a penalty of TUNE_MARGIN. */
static int find_winner(const struct dnn_plan *plans, int n, const struct times *times) {
    int winner = 0;
    double min = INFINITY;
    for (int i = 0; i < n; i++) {
        double penalized = times[i].best / (plans[i].impl->probe ? TUNE_MARGIN : 1);
        if (penalized >= min) continue;
        min = penalized;
        winner = i;
    }
    return winner;
}

/* Times all candidates and returns the winner's index. They run in turns, so that a slow phase of the machine affects all. */
static int time_all(const struct dnn_plan *plans, int n, const struct memory *m, bool *is_noisy) {
    struct times times[DNN_N_IMPLS];
    size_t stride = largest(plans, n, true);
    for (int i = 0; i < n; i++) times[i] = (struct times){INFINITY, INFINITY};
    for (int round = 0; round < TUNE_ROUNDS; round++)
        for (int i = 0; i < n; i++) {
            struct trial trial = make_trial(&plans[i], m, stride);
            if (largest(plans, n, false) > TUNE_EVICT_ABOVE) evict_weights(m);
            note_time(&times[i], time_once(&trial));
        }
    const int winner = find_winner(plans, n, times);
    *is_noisy = times[winner].second > TUNE_SPREAD * times[winner].best;
    return winner;
}

/* Times and stores the winner. If the times are noisy, returns 0, the cheapest by the cost model. */
static int time_and_remember(const char *key, const struct dnn_plan *plans, int n) {
    struct memory memory;
    bool is_noisy;
    if (!take_memory(plans, n, &memory)) return 0;
    int winner = time_all(plans, n, &memory, &is_noisy);
    mem_free(memory.all);
    remember(key, is_noisy ? NOISY_NAME : plans[winner].impl->name);
    return is_noisy ? 0 : winner;
}

/* Returns 0, the cheapest by the cost model, if another thread has the pool, as times of one thread are not those of a call.
 * On a busy machine times may stay noisy: a process spends about TUNE_AGAIN_NS on repeating such measurements. */
int cpu_tune(struct arena *arena, const struct dnn_plan *plans, int n) {
    static atomic_llong again_ns;
    const char *key = cpu_tune_key(arena, plans, n);
    int winner = recall(key, plans, n);
    if (winner >= 0) return winner;
    if (winner == NOISY && atomic_load(&again_ns) > TUNE_AGAIN_NS) return 0;
    if (!pool_begin()) return 0;
    double start = os_now();
    bool was_noisy = winner == NOISY;
    winner = time_and_remember(key, plans, n);
    if (was_noisy) atomic_fetch_add(&again_ns, (long long)((os_now() - start) * 1e9));
    pool_end();
    return winner;
}

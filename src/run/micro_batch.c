/*
 * Choosing micro-batches: a shortest path through the steps, by dynamic programming. A node is (step, micro-batch); the cost is
 * bytes of memory traffic.
 *
 *   struct traffic of all steps -> find_path -> a micro-batch per step
 *
 * bind.c calls it with the batch of a call. plan/micro_batch.c calls it at compile time with the hinted batch, so that kernels
 * are planned for the number of samples that they will compute at a time.
 */
#include "run/micro_batch.h"

#include <math.h>
#include <string.h>

int64_t micro_batch_cache = (int64_t)8 << 20, micro_batch_step = (int64_t)128 << 10;
#define MICRO_BATCH_CHOICES 8 /* 1, 2, 4, .. 64, and the batch */

/* Formulas of sizes that a call will refuse may be too large; sums of many limited ones do not overflow. */
static int64_t limit(int64_t bytes) { return min_i64(bytes, INT64_MAX >> 16); }

int64_t micro_batch_per_sample(struct size size, const int64_t *none, const int64_t *one) {
    return limit(size_eval(&size, one)) - limit(size_eval(&size, none));
}

struct traffic micro_batch_traffic(struct size bytes, bool by_sample, const int64_t *none,
                                   const int64_t *one) {
    return (struct traffic){.per_sample = micro_batch_per_sample(bytes, none, one),
                            .shared = limit(size_eval(&bytes, none)),
                            .by_sample = by_sample};
}

void micro_batch_note_life(struct traffic *step, int first, int last, int64_t per_sample) {
    for (int i = first + 1; i <= last; i++) step[i].live += per_sample;
}

static int list_choices(int64_t batch, int64_t *choice) {
    int n = 0;
    for (int64_t p = 1; p < batch && n < MICRO_BATCH_CHOICES - 1; p *= 2) choice[n++] = p;
    choice[n++] = batch;
    return n;
}

/* The part of the traffic that does not fit into the caches, in bytes. */
static double missed(int64_t cache, int64_t samples, int64_t bytes) {
    return fmax(0, (double)samples * (double)bytes - (double)cache);
}

static double step_cost(int64_t cache, const struct traffic *step, int64_t batch,
                        int64_t micro_batch) {
    if (micro_batch < batch && !step->by_sample) return INFINITY;
    const double runs = (double)ceil_div(batch, micro_batch);
    return runs * (missed(cache, micro_batch, step->per_sample) +
                   (double)(step->shared + micro_batch_step));
}

/* The cost of a border between two sections: values that are live there are written and read for the whole batch. */
static double border_cost(int64_t cache, const struct traffic *after, int64_t batch) {
    return 2 * missed(cache, batch, after->live) + (double)micro_batch_step;
}

/* The cost of the cheapest path to `step` with micro-batch number `to`, without the step itself; `*from`: the micro-batch
 * number of the step before. */
static double reach(int64_t cache, const struct traffic *step, int64_t batch, int n,
                    const double *cost, int to, uint8_t *from) {
    const double border = border_cost(cache, step, batch);
    double best = cost[to];
    *from = (uint8_t)to;
    for (int c = 0; c < n; c++)
        if (cost[c] + border < best) {
            best = cost[c] + border;
            *from = (uint8_t)c;
        }
    return best;
}

/* Fills from[step * MICRO_BATCH_CHOICES + choice] with the previous step's choice, and returns the last step's choice. */
static int find_path(int64_t cache, int n_steps, const struct traffic *step, int64_t batch,
                     const int64_t *choice, int n, uint8_t *from) {
    double cost[MICRO_BATCH_CHOICES] = {0}, next[MICRO_BATCH_CHOICES];
    for (int i = 0; i < n_steps; i++, from += MICRO_BATCH_CHOICES) {
        for (int c = 0; c < n; c++) {
            next[c] = i ? reach(cache, step + i, batch, n, cost, c, &from[c]) : 0;
            next[c] += step_cost(cache, step + i, batch, choice[c]);
        }
        memcpy(cost, next, sizeof cost);
    }
    int last = n - 1;
    for (int c = 0; c < n; c++)
        if (cost[c] < cost[last]) last = c;
    return last;
}

/* If the tables get no memory, the batch is not divided. */
void micro_batch_choose(int64_t cache, int n, const struct traffic *step, int64_t batch,
                        int64_t *micro_batch) {
    int64_t choice[MICRO_BATCH_CHOICES] = {batch};
    const int n_choices = cache ? list_choices(batch, choice) : 1;
    uint8_t *from = n_choices > 1 ? mem_alloc((size_t)n * MICRO_BATCH_CHOICES + 1, 16) : NULL;
    int c = from ? find_path(cache, n, step, batch, choice, n_choices, from) : n_choices - 1;
    for (int i = n - 1; i >= 0; i--) {
        micro_batch[i] = choice[c];
        if (from && i) c = from[i * MICRO_BATCH_CHOICES + c];
    }
    mem_free(from);
}

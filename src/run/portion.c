/*
 * Choosing portions: the cheapest path through the steps, where a node is (step, portion) and the cost is bytes from memory.
 *
 * bind.c asks for the batch of a call, the compiler beforehand for the batch that was hinted at, so that kernels are planned for
 * the number of images that they will see.
 */
#include "run/portion.h"

#include <math.h>
#include <string.h>

int64_t portion_cache = (int64_t)8 << 20, portion_step = (int64_t)128 << 10;
#define PORTION_CHOICES 8 /* 1, 2, 4, .. 64, and the batch */

static int64_t per_image(const struct size *bytes) {
    const int64_t none[SIZE_SYMBOLS] = {0}, one[SIZE_SYMBOLS] = {1};
    return size_eval(bytes, one) - size_eval(bytes, none);
}

struct traffic portion_traffic(struct size bytes, bool by_image) {
    const int64_t none[SIZE_SYMBOLS] = {0};
    return (struct traffic){
        .image = per_image(&bytes), .shared = size_eval(&bytes, none), .by_image = by_image};
}

void portion_note_life(struct traffic *step, int first, int last, struct size size) {
    for (int i = first + 1; i <= last; i++) step[i].live += per_image(&size);
}

static int list_choices(int64_t batch, int64_t *choice) {
    int n = 0;
    for (int64_t p = 1; p < batch && n < PORTION_CHOICES - 1; p *= 2) choice[n++] = p;
    choice[n++] = batch;
    return n;
}

static double missed(int64_t images, int64_t bytes) {
    return fmax(0, (double)images * (double)bytes - (double)portion_cache);
}

static double step_cost(const struct traffic *step, int64_t batch, int64_t portion) {
    if (portion < batch && !step->by_image) return INFINITY;
    const double runs = (double)ceil_div(batch, portion);
    return runs * (missed(portion, step->image) + (double)(step->shared + portion_step));
}

/* What is live between two sections is written and read for the whole batch. */
static double border_cost(const struct traffic *after, int64_t batch) {
    return 2 * missed(batch, after->live) + (double)portion_step;
}

/* The cheapest way to reach `step` with portion `to`: its cost, and the portion of the step before. */
static double reach(const struct traffic *step, int64_t batch, int n, const double *cost, int to,
                    uint8_t *from) {
    const double border = border_cost(step, batch);
    double best = cost[to];
    *from = (uint8_t)to;
    for (int c = 0; c < n; c++)
        if (cost[c] + border < best) {
            best = cost[c] + border;
            *from = (uint8_t)c;
        }
    return best;
}

/* Fills from[step * PORTION_CHOICES + choice], and returns the last step's choice. */
static int find_path(int n_steps, const struct traffic *step, int64_t batch, const int64_t *choice,
                     int n, uint8_t *from) {
    double cost[PORTION_CHOICES] = {0}, next[PORTION_CHOICES];
    for (int i = 0; i < n_steps; i++, from += PORTION_CHOICES) {
        for (int c = 0; c < n; c++) {
            next[c] = i ? reach(step + i, batch, n, cost, c, &from[c]) : 0;
            next[c] += step_cost(step + i, batch, choice[c]);
        }
        memcpy(cost, next, sizeof cost);
    }
    int last = n - 1;
    for (int c = 0; c < n; c++)
        if (cost[c] < cost[last]) last = c;
    return last;
}

/* Without memory to think the batch stays whole. */
void portion_choose(int n, const struct traffic *step, int64_t batch, int64_t *portion) {
    int64_t choice[PORTION_CHOICES];
    const int n_choices = list_choices(batch, choice);
    uint8_t *from = n_choices > 1 ? mem_alloc((size_t)n * PORTION_CHOICES + 1, 16) : NULL;
    int c = from ? find_path(n, step, batch, choice, n_choices, from) : n_choices - 1;
    for (int i = n - 1; i >= 0; i--) {
        portion[i] = choice[c];
        if (from && i) c = from[i * PORTION_CHOICES + c];
    }
    mem_free(from);
}

/*
 * Products of many rows: plan (division of the work, cost), packing.
 *
 *   emit.c -> dnn_refuse_linear, plan;  step.c -> pack;  run/exec.c -> run, on ranges of tasks (product_kernel.c)
 */
#include "dnn/product.h"

#include "dnn/list.h"

#include <math.h>

/* Cost model for cores of 3 GHz: share of the peak, bandwidth of one core, and of all cores together. */
static const double efficiency = 0.9;
static const double core_bytes_per_s = 45e9;
static const double memory_bytes_per_s = 60e9;

/* ---- Plan ---- */

/* A task computes at least this many products, or reads at least this many weights: about 5 us on a core with AVX-512, so that
 * scheduling it costs little. */
enum { TASK_PRODUCTS = 512 << 10, TASK_WEIGHTS = 32 << 10 };
enum { MAX_OUTPUTS = 1024 }; /* of a task: its part of y stays in L2 */

/*
 * Estimated time of a division, in quarters of the time that one tile takes for one panel: threads take whole tasks. To read a
 * panel costs about a quarter of a tile more per task, to copy the rows of x half a panel.
 */
static int64_t estimate(const struct product_division *by, int64_t panels, int64_t threads) {
    const int64_t rounds = ceil_div(by->row_parts * by->panel_parts, threads);
    const int64_t tiles = ceil_div(by->tiles, by->row_parts);
    return rounds * (4 * tiles + 1) * (2 * ceil_div(panels, by->panel_parts) + 1) / 2;
}

/* Tries some more parts than `least`, which are the fewest; the sizes of the parts may then be nearly equal. */
static void balance(struct product_division *least, int64_t panels, int64_t threads) {
    struct product_division by = *least, best = *least;
    int64_t cost = estimate(&best, panels, threads);
    for (int64_t i = 0; i < 16; i++) {
        by.row_parts = min_i64(least->row_parts + i / 4, by.tiles);
        by.panel_parts = min_i64(least->panel_parts + i % 4, max_i64(1, panels / by.streams));
        const int64_t other = estimate(&by, panels, threads);
        if (other < cost) cost = other, best = by;
    }
    *least = best;
}

/*
 * Four tasks per thread, if they are large enough: a thread that is held up then takes fewer of them. Rows are divided before
 * panels, as each task copies its rows of x; but a task has two tiles or more, as it reads each of its panels once for all of
 * them. A task of a few rows has several panels (WIDE in product_kernel.c).
 */
struct product_division product_divide(const struct dnn_plan *plan, int64_t rows, int64_t panels,
                                       int64_t inputs) {
    const int64_t values = plan->kernels->values, width = 2 * plan->problem.lanes;
    const int64_t weights = panels * width * max_i64(inputs, 1), threads = plan->problem.threads;
    const int64_t most = max_i64(weights * rows / TASK_PRODUCTS, weights / TASK_WEIGHTS);
    const int64_t tasks = max_i64(1, min_i64(4 * threads, most));
    struct product_division by = {.tiles = max_i64(1, ceil_div(rows, values)),
                                  .panel_parts = max_i64(1, ceil_div(panels * width, MAX_OUTPUTS)),
                                  .streams = rows <= PRODUCT_FEW ? PRODUCT_WIDE : 1};
    by.row_parts = min_i64(ceil_div(tasks, by.panel_parts), by.tiles / 2);
    by.row_parts = max_i64(by.row_parts, ceil_div(by.tiles, PRODUCT_MAX_ROWS / values));
    by.panel_parts =
        max_i64(by.panel_parts, min_i64(ceil_div(tasks, by.row_parts), panels / by.streams));
    balance(&by, panels, threads);
    return by;
}

static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    const int64_t step = plan->kernels->step, rows = max_i64(1, p->batch_hint);
    param[PRODUCT_DEPTH] = PRODUCT_MAX_DEPTH;
    param[PRODUCT_PARTS] = max_i64(1, ceil_div(p->c, PRODUCT_MAX_DEPTH));
    param[PRODUCT_PANELS] = ceil_div(p->k, 2 * p->lanes);
    plan->packed_size = (size_t)(round_up(p->c, step) * param[PRODUCT_PANELS] * 2 * p->lanes) *
                        sizeof(float);
    plan->n_pack_tasks = param[PRODUCT_PANELS];
    plan->scratch_size = PRODUCT_MAX_ROWS * PRODUCT_STRIDE * sizeof(float);

    const double threads = p->threads, products = 2.0 * (double)(rows * p->c) * p->k;
    const double bytes_per_s = fmin(threads * core_bytes_per_s, memory_bytes_per_s);
    const double rate = efficiency * dnn_flops_per_s(plan->kernels) * threads;
    plan->cost = fmax((double)plan->packed_size / bytes_per_s, products / rate);
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    if (!batch) return 0;
    const struct product_division by =
        product_divide(plan, batch, plan->param[PRODUCT_PANELS], plan->problem.c);
    return by.row_parts * by.panel_parts;
}

/* ---- Packing ---- */

/* Pack task: a panel, all its parts. */
static void pack(const struct dnn_plan *plan, const float *weight, float *packed, int64_t task) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t width = 2 * p->lanes, step = plan->kernels->step;
    for (int64_t c = 0; c < p->c; c += plan->param[PRODUCT_DEPTH]) {
        const int64_t depth = min_i64(plan->param[PRODUCT_DEPTH], p->c - c);
        const int64_t stored = round_up(depth, step);
        float *to = packed + (c * plan->param[PRODUCT_PANELS] + task * stored) * width;
        for (int64_t i = 0; i < stored; i++)
            for (int64_t j = 0; j < width; j++) {
                const int64_t k = task * width + j;
                to[i * width + j] = i < depth && k < p->k ? weight[k * p->c + c + i] : 0;
            }
    }
}

/* ---- Run ---- */

DNN_RUN(product)

const struct dnn_impl dnn_product = {.name = "product",
                                     .refuse = dnn_refuse_linear,
                                     .plan = make_plan,
                                     .pack = pack,
                                     .n_tasks = n_tasks,
                                     .run = run_product};

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

/* Does a task of this many products take much longer than scheduling it (about 20 us at AVX-512's peak)? */
static const int64_t task_products = 2 << 20;
/* A task with fewer panels copies rows of x for too few products. */
enum { MIN_PANELS = 4, MIN_TILES = 2 };

/*
 * Four tasks per thread, if they are large enough: threads that are held up then take fewer of them. Rows are divided first
 * (each task reads its panels once for all of its rows), down to MIN_TILES, then panels.
 */
struct product_division product_divide(const struct dnn_plan *plan, int64_t rows, int64_t panels,
                                       int64_t inputs) {
    const int64_t values = plan->kernels->values, width = 2 * plan->problem.lanes;
    const int64_t most = PRODUCT_MAX_ROWS / values, wanted = 4 * plan->problem.threads;
    struct product_division by = {.tiles = max_i64(1, ceil_div(rows, values))};
    const int64_t products = rows * panels * width * max_i64(inputs, 1);
    const int64_t tasks = max_i64(1, min_i64(wanted, products / task_products));
    by.row_parts = ceil_div(by.tiles, most);
    if (by.row_parts < tasks)
        by.row_parts = max_i64(by.row_parts, min_i64(tasks, by.tiles / MIN_TILES));
    by.row_parts = max_i64(1, by.row_parts);
    by.panel_parts = max_i64(1, ceil_div(panels * width, 512));
    if (by.row_parts * by.panel_parts < tasks)
        by.panel_parts = max_i64(by.panel_parts, min_i64(ceil_div(tasks, by.row_parts), panels));
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

/*
 * The gradient of a convolution's weight by Winograd's transforms: refusal and plan.
 *
 *   emit.c -> refuse, plan;  run/exec.c -> run, on ranges of tasks;  run/exec.c -> join of conv_weight.c
 *
 * winograd_weight.h explains the algorithm. Plain sums (conv_weight.c) are as fast where there are few tiles: each task ends with a transform of
 * all its sums.
 */
#include "dnn/winograd_weight.h"

#include "base/size.h"

/*
 * Cost model for cores of 3 GHz, and the division of the work.
 *   all_sums    bytes of the sums of a task. M is 4 times as large: a part of a core's L2
 *   transforms  bytes of V and W, another part of it
 */
static const double efficiency = 0.55, transform_bytes_per_s = 100e9, task_s = 1e-6;
static const int64_t all_sums = 150 << 10, transforms = 512 << 10, most_tiles = 64;

static const char *refuse(const struct dnn_problem *p) {
    if (p->kind != DNN_CONV_WEIGHT) return "not the gradient of a weight";
    if (p->kh != 3 || p->kw != 3) return "kernel is not 3x3";
    if (p->sh != 1 || p->sw != 1) return "stride is not 1";
    if (p->dh != 1 || p->dw != 1) return "dilation";
    if (p->groups != 1) return "more than one group";
    if (p->h < 1 || p->w < 1 || p->oh < 1 || p->ow < 1) return "empty image";
    if (p->x_plain || p->y_plain) return "x or dy is not blocked";
    return NULL;
}

/* ---- Plan ---- */

/* A transform accesses all points of a tile. At an odd number of cache lines apart they map to different cache sets. */
static int64_t spread(int64_t floats) {
    const int64_t line = 64 / (int64_t)sizeof(float);
    return (ceil_div(floats, line) | 1) * line;
}

/* Channels of x and of dy that a task has at most. */
static int64_t task_c(const struct dnn_plan *plan) {
    return plan->param[WEIGHT_TASK_UNITS] * plan->problem.lanes;
}
static int64_t task_k(const struct dnn_plan *plan) {
    return plan->param[WEIGHT_TASK_BUNDLES] * plan->param[WEIGHT_VECTORS] * plan->problem.lanes;
}

static void set_tiles(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    const int64_t tile_bytes = 4 * WINOGRAD_WEIGHT_POINTS * (task_c(plan) + task_k(plan));
    param[WEIGHT_TILE_ROWS] = ceil_div(p->oh, WINOGRAD_WEIGHT_OUT);
    param[WEIGHT_TILE_COLUMNS] = ceil_div(p->ow, WINOGRAD_WEIGHT_OUT);
    param[WEIGHT_CHUNK_TILES] = max_i64(8, min_i64(most_tiles, transforms / tile_bytes));
    param[WINOGRAD_WEIGHT_V] = spread(param[WEIGHT_CHUNK_TILES] * task_c(plan));
    param[WINOGRAD_WEIGHT_W] = spread(param[WEIGHT_CHUNK_TILES] * task_k(plan));
    param[WINOGRAD_WEIGHT_M] = spread(task_c(plan) * task_k(plan));
}

/* Tasks of the same bundles transform x again, tasks of the same units dy. */
static double estimate(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const double tiles = (double)conv_weight_tiles(plan, p->batch_hint);
    const int64_t tasks = conv_weight_tasks(plan), unit_tasks = conv_weight_unit_tasks(plan);
    const int64_t shares = conv_weight_used_shares(plan, p->batch_hint);
    const double flops = 2.0 * WINOGRAD_WEIGHT_POINTS * tiles * p->c * p->k;
    const double values = tiles * (double)(p->c * (tasks / unit_tasks) + p->k * unit_tasks) +
                          (double)(shares * p->c * p->k);
    return (flops / (efficiency * dnn_flops_per_s(plan->kernels)) +
            values * 4 * 2 * WINOGRAD_WEIGHT_POINTS / transform_bytes_per_s) /
               p->threads +
           task_s * (double)tasks;
}

static void make_plan(struct dnn_plan *plan) {
    const int64_t *param = plan->param;
    dnn_conv_weight_divide(plan, all_sums);
    set_tiles(plan);
    const int64_t shares = param[WEIGHT_SHARES], sums = 4 * conv_weight_task_floats(plan);
    plan->partial_size = shares > 1 ? (size_t)(shares * conv_weight_tasks(plan) * sums) : 0;
    plan->scratch_size = (size_t)((shares > 1 ? 0 : sums) +
                                  4 * WINOGRAD_WEIGHT_POINTS *
                                      (param[WINOGRAD_WEIGHT_V] + param[WINOGRAD_WEIGHT_W] +
                                       param[WINOGRAD_WEIGHT_M]));
    plan->cost = estimate(plan);
}

DNN_RUN(winograd_weight)

const struct dnn_impl dnn_winograd_weight = {.name = "winograd_weight",
                                             .refuse = refuse,
                                             .plan = make_plan,
                                             .n_tasks = dnn_conv_weight_tasks,
                                             .run = run_winograd_weight,
                                             .n_parts = dnn_conv_weight_parts,
                                             .join = dnn_conv_weight_join,
                                             .approximate = true};

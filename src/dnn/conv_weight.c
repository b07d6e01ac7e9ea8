/*
 * The gradient of a convolution's weight: refusal, plan (division of the work, cost), and the last sums.
 *
 *   emit.c -> refuse, plan;  run/exec.c -> run, on ranges of tasks;  run/exec.c -> join, on ranges of bundles and units
 *
 * conv_weight.h explains the terms and the layouts; conv_weight_kernel.c computes. Groups that share blocks are
 * conv_weight_grouped.c's.
 */
#include "dnn/conv_weight.h"

#include "base/size.h"

/*
 * Cost model for cores of 3 GHz, and the division of the work.
 *   all_sums     bytes of the sums of a task: a part of a core's L2
 *   n_tasks      enough for many threads. Shares make up for what a small weight lacks
 *   n_pixels     of a chunk: its dy of one bundle fits into L1
 */
static const double efficiency = 0.6;
static const double task_s = 1e-6;
static const int64_t all_sums = 80 << 10, wanted_tasks = 32, most_shares = 32, n_pixels = 128;

static const char *refuse(const struct dnn_problem *p) {
    if (p->kind != DNN_CONV_WEIGHT) return "not the gradient of a weight";
    if (p->h < 1 || p->w < 1 || p->oh < 1 || p->ow < 1) return "empty image";
    if (p->y_plain) return "dy is not blocked";
    if (p->x_plain && p->c >= p->lanes) return "many channels of a plain x";
    const int block = p->groups * p->lanes;
    if (p->x_plain && p->groups > 1) return "groups of a plain x";
    if (p->k % block || (!p->x_plain && p->c % block))
        return "channels do not fill a group's blocks";
    if (!dnn_keeps_groups(p->c_map, p->c, p->c_model, p->groups) ||
        !dnn_keeps_groups(p->k_map, p->k, p->k_model, p->groups))
        return "stored channels mix groups";
    return NULL;
}

/* ---- Plan ---- */

static void set_units(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t taps = (int64_t)p->kh * p->kw, rows = conv_weight_rows(plan->kernels);
    int64_t *param = plan->param;
    param[WEIGHT_VECTORS] = conv_weight_vectors(plan->kernels);
    param[WEIGHT_CHANNELS] = rows;
    param[WEIGHT_UNITS] = p->x_plain ? 1 : p->c / p->lanes / p->groups;
    param[WEIGHT_K_BLOCKS] = p->k / p->lanes / p->groups;
    param[WEIGHT_UNIT_ROWS] = p->x_plain ? round_up(p->c * taps, rows) : p->lanes * taps;
    param[WEIGHT_BUNDLES] = ceil_div(param[WEIGHT_K_BLOCKS], param[WEIGHT_VECTORS]);
}

/* Units and bundles of a task: as many as its sums have room for, of both about as many channels; then as equal as possible. */
static void set_tasks(struct dnn_plan *plan, int64_t task_bytes) {
    int64_t *param = plan->param, units = 1, bundles = 1;
    const int64_t most = task_bytes / 4 / conv_weight_unit_floats(plan);
    for (bool grows = true; grows;) {
        const bool more_units =
            units < param[WEIGHT_UNITS] &&
            (units <= bundles * param[WEIGHT_VECTORS] || bundles >= param[WEIGHT_BUNDLES]);
        const int64_t u = more_units ? units + 1 : units, b = more_units ? bundles : bundles + 1;
        grows = b <= param[WEIGHT_BUNDLES] && u * b <= most;
        if (grows) units = u, bundles = b;
    }
    param[WEIGHT_TASK_UNITS] = ceil_div(param[WEIGHT_UNITS], ceil_div(param[WEIGHT_UNITS], units));
    param[WEIGHT_TASK_BUNDLES] =
        ceil_div(param[WEIGHT_BUNDLES], ceil_div(param[WEIGHT_BUNDLES], bundles));
    const int64_t tasks = conv_weight_tasks(plan);
    param[WEIGHT_SHARES] = max_i64(1, min_i64(most_shares, wanted_tasks / tasks));
}

void dnn_conv_weight_divide(struct dnn_plan *plan, int64_t task_bytes) {
    set_units(plan);
    set_tasks(plan, task_bytes);
}

static void set_chunks(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    const int64_t rows = max_i64(1, min_i64(p->oh, n_pixels / p->ow)), n = ceil_div(p->oh, rows);
    param[WEIGHT_CHUNK_ROWS] = ceil_div(p->oh, n);
    param[WEIGHT_CHUNK_IMAGES] =
        n > 1 || p->x_plain ? 1 : max_i64(1, n_pixels / ((int64_t)p->oh * p->ow));
    param[WEIGHT_PANEL_ROWS] =
        (param[WEIGHT_CHUNK_ROWS] - 1) * p->sh + (int64_t)(p->kh - 1) * p->dh + 1;
    param[WEIGHT_PANEL_COLUMNS] = (int64_t)(p->ow - 1) * p->sw + (int64_t)(p->kw - 1) * p->dw + 1;
}

static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param;
    dnn_conv_weight_divide(plan, all_sums);
    set_chunks(plan);
    const int64_t shares = param[WEIGHT_SHARES], sums = 4 * conv_weight_task_floats(plan),
                  panel = p->x_plain
                              ? 4 * p->c * param[WEIGHT_PANEL_ROWS] * param[WEIGHT_PANEL_COLUMNS]
                              : 0;
    plan->partial_size = shares > 1 ? (size_t)(shares * conv_weight_tasks(plan) * sums) : 0;
    plan->scratch_size = (size_t)((shares > 1 ? 0 : sums) + panel);
    const double flops = 2.0 * (double)p->batch_hint * p->oh * p->ow * p->k *
                         (double)(param[WEIGHT_UNITS] * param[WEIGHT_UNIT_ROWS]);
    plan->cost = flops / (efficiency * dnn_flops_per_s(plan->kernels) * p->threads) +
                 task_s * (double)conv_weight_tasks(plan);
}

/* ---- The last sums ---- */

/* The sums of channel `lane` of the bundle are a column of the unit's rows; it becomes a row of dw. */
static void store_blocked(const struct dnn_plan *plan, const float *sums, int64_t group,
                          int64_t unit, float *y) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t block = group * plan->param[WEIGHT_UNITS] + unit,
                  first = group * p->c_model / p->groups;
    const int64_t taps = (int64_t)p->kh * p->kw, step = plan->param[WEIGHT_VECTORS] * p->lanes;
    for (int64_t i = 0; i < p->lanes; i++, sums += step) {
        const int64_t c = dnn_model_channel(p->c_map, block * p->lanes + i) - first;
        for (int64_t tap = 0; tap < taps && c >= 0; tap++)
            y[c * taps + tap] = sums[tap * p->lanes * step];
    }
}

static void store_plain(const struct dnn_plan *plan, const float *sums, float *y) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t n = (int64_t)p->c * p->kh * p->kw, step = plan->param[WEIGHT_VECTORS] * p->lanes;
    for (int64_t i = 0; i < n; i++) y[i] = sums[i * step];
}

/* One bundle and unit of dw. */
static void store_unit(const struct dnn_plan *plan, const float *sums, int64_t group,
                       int64_t bundle, int64_t unit, float *y) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t size = plan->param[WEIGHT_VECTORS] * p->lanes,
                  in_group = plan->param[WEIGHT_K_BLOCKS] * p->lanes,
                  n = min_i64(size, in_group - bundle * size),
                  filter = (int64_t)(p->c_model / p->groups) * p->kh * p->kw;
    for (int64_t i = 0; i < n; i++) {
        const int k = dnn_model_channel(p->k_map, group * in_group + bundle * size + i);
        if (k < 0) continue;
        if (p->x_plain) store_plain(plan, sums + i, y + k * filter);
        else store_blocked(plan, sums + i, group, unit, y + k * filter);
    }
}

void dnn_conv_weight_store(const struct dnn_plan *plan, const struct conv_weight_task *task,
                           float *sums, float *y) {
    for (int64_t b = 0; b < task->n_bundles; b++)
        for (int64_t u = 0; u < task->n_units; u++)
            store_unit(plan, conv_weight_find_sums(plan, sums, b, u), task->group, task->bundle + b,
                       task->unit + u, y);
}

/* Part of the last sums: one bundle and unit. The sum is kept in the place of the first share. */
void dnn_conv_weight_join(const struct dnn_plan *plan, int64_t batch, float *partial, float *y,
                          int64_t part) {
    const int64_t *param = plan->param, unit = part % param[WEIGHT_UNITS],
                  bundle = part / param[WEIGHT_UNITS] % param[WEIGHT_BUNDLES],
                  group = part / param[WEIGHT_UNITS] / param[WEIGHT_BUNDLES],
                  n = conv_weight_unit_floats(plan);
    const int64_t task = group * conv_weight_group_tasks(plan) +
                         bundle / param[WEIGHT_TASK_BUNDLES] * conv_weight_unit_tasks(plan) +
                         unit / param[WEIGHT_TASK_UNITS];
    const int64_t place = bundle % param[WEIGHT_TASK_BUNDLES] * param[WEIGHT_TASK_UNITS] +
                          unit % param[WEIGHT_TASK_UNITS];
    const int64_t share = conv_weight_tasks(plan) * conv_weight_task_floats(plan);
    float *sums = partial + task * conv_weight_task_floats(plan) + place * n;
    for (int64_t s = 1; s < conv_weight_used_shares(plan, batch); s++)
        for (int64_t i = 0; i < n; i++) sums[i] += sums[s * share + i];
    store_unit(plan, sums, group, bundle, unit, y);
}

int64_t dnn_conv_weight_parts(const struct dnn_plan *plan) {
    return plan->problem.groups * plan->param[WEIGHT_BUNDLES] * plan->param[WEIGHT_UNITS];
}

/* ---- Run ---- */

int64_t dnn_conv_weight_tasks(const struct dnn_plan *plan, int64_t batch) {
    (void)batch;
    return plan->param[WEIGHT_SHARES] * conv_weight_tasks(plan);
}

DNN_RUN(conv_weight)

const struct dnn_impl dnn_conv_weight = {.name = "conv_weight",
                                         .refuse = refuse,
                                         .plan = make_plan,
                                         .n_tasks = dnn_conv_weight_tasks,
                                         .run = run_conv_weight,
                                         .n_parts = dnn_conv_weight_parts,
                                         .join = dnn_conv_weight_join};

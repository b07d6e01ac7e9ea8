/*
 * Depthwise convolutions of plain images: refusal, plan (division of the work, cost).
 *
 *   emit.c -> refuse, plan;  run/exec.c -> run, on ranges of tasks. The weight is read in place.
 *
 * depthwise.h explains the algorithm; depthwise_kernel.c computes.
 */
#include "dnn/depthwise.h"

#include "dnn/list.h"

/* Cost model for cores of 3 GHz, measured by `python -m sol.bench --layers`. */
static const double efficiency = 0.5;
static const double cache_bytes_per_s = 20e9;
static const double task_s = 0.2e-6;

/* The panel of a task should leave room in L1 for the rows of y. */
enum { PANEL_SIZE = 16 << 10 };

static const char *refuse(const struct dnn_problem *p) {
    if (p->kind != DNN_CONV) return "not a convolution";
    if (p->transposed || p->turned) return "transposed";
    if (p->groups != p->c_model || p->groups != p->k_model) return "not depthwise";
    if (!p->x_plain || !p->y_plain) return "x or y is not plain";
    if (p->h < 1 || p->w < 1 || p->oh < 1 || p->ow < 1) return "empty image";
    if (p->sw > DEPTHWISE_MAX_STRIDE) return "large stride";
    if (p->residual) return "has a residual";
    return p->prologue ? "has a prologue" : NULL;
}

/* ---- Plan ---- */

static void set_runs(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    const bool is_apart = p->dh % p->sh == 0, is_split = p->sh % p->dh == 0;
    param[DEPTHWISE_ROW_STEP] = is_apart ? p->dh / p->sh : 1;
    param[DEPTHWISE_RUN_STEP] = !is_apart && is_split ? p->sh / p->dh : 1;
    param[DEPTHWISE_MOST] = is_apart || is_split ? DEPTHWISE_RUN : 1;
}

/* A row has whole vectors of y's pixels, also if y is narrower than a vector. */
static void set_panel(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    const int64_t reach = (int64_t)(p->kw - 1) * p->dw;
    param[DEPTHWISE_PHASES] = p->dw == 1 ? min_i64(p->kw, p->sw) : p->sw;
    const int64_t read = max_i64(p->ow, p->lanes) + reach / p->sw;
    /* The image's columns of a phase, as whole vectors behind the padding. */
    const int64_t copied = round_up(ceil_div(p->w, p->sw), p->lanes) + ceil_div(p->pl, p->sw);
    param[DEPTHWISE_PHASE] = p->sw == 2 ? max_i64(read, copied) : round_up(read, p->lanes);
    param[DEPTHWISE_OFFSETS] = round_up(p->kw * (int64_t)sizeof(int64_t), 64);
}

static int64_t row_size(const struct dnn_plan *plan) {
    return plan->param[DEPTHWISE_PHASES] * plan->param[DEPTHWISE_PHASE] * (int64_t)sizeof(float);
}

/* Rows of the panel for n rows of y. */
static int64_t count_rows(const struct dnn_problem *p, int64_t n) {
    return (n - 1) * p->sh + (int64_t)(p->kh - 1) * p->dh + 1;
}

/* Rows of y whose panel fits, but at least as many as make few rows of x be copied twice; then chunks of nearly equal size. */
static void set_rows(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t size = row_size(plan) * plan->param[DEPTHWISE_KD];
    const int64_t fit = (PANEL_SIZE / size - count_rows(p, 1)) / p->sh + 1;
    const int64_t least = 4 * plan->param[DEPTHWISE_ROW_STEP] + count_rows(p, 1) / p->sh;
    const int64_t chunks = ceil_div(p->oh, max_i64(fit, least));
    plan->param[DEPTHWISE_ROWS] = ceil_div(p->oh, chunks);
    plan->param[DEPTHWISE_CHUNKS] = ceil_div(p->oh, plan->param[DEPTHWISE_ROWS]);
    plan->param[DEPTHWISE_PLANE] = count_rows(p, plan->param[DEPTHWISE_ROWS]) *
                                   plan->param[DEPTHWISE_PHASES] * plan->param[DEPTHWISE_PHASE];
}

static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const double pixels = (double)p->oh * p->ow;
    int64_t *param = plan->param;
    param[DEPTHWISE_D] = max_i64(1, p->d), param[DEPTHWISE_OD] = max_i64(1, p->od);
    param[DEPTHWISE_KD] = max_i64(1, p->kd);
    const double planes = (double)max_i64(1, p->batch_hint) * p->c * (double)param[DEPTHWISE_OD];
    set_runs(plan);
    set_panel(plan);
    set_rows(plan);
    plan->packed_size = 0;
    plan->scratch_size =
        (size_t)(param[DEPTHWISE_OFFSETS] +
                 param[DEPTHWISE_KD] * param[DEPTHWISE_PLANE] * (int64_t)sizeof(float));
    const double lanes = (double)round_up(p->ow, p->lanes) / p->ow;
    const double multiply = 2 * pixels * lanes * (double)param[DEPTHWISE_KD] * p->kh * p->kw /
                            (efficiency * dnn_flops_per_s(plan->kernels));
    const double read = (double)param[DEPTHWISE_KD] * p->h * p->w;
    const double move = sizeof(float) * (read + pixels) / cache_bytes_per_s;
    plan->cost =
        planes * (multiply + move + (double)plan->param[DEPTHWISE_CHUNKS] * task_s) / p->threads;
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    return batch * plan->problem.c * plan->param[DEPTHWISE_OD] * plan->param[DEPTHWISE_CHUNKS];
}

DNN_RUN(depthwise)

const struct dnn_impl dnn_depthwise = {.name = "depthwise",
                                       .refuse = refuse,
                                       .plan = make_plan,
                                       .n_tasks = n_tasks,
                                       .run = run_depthwise,
                                       .volumes = true};

/*
 * The gradient of the weight of a depthwise convolution, or of another one with few channels per group: refusal, plan, and the last sums.
 *
 *   emit.c -> refuse, plan;  run/exec.c -> run, on ranges of tasks;  run/exec.c -> join, on ranges of channel blocks
 *
 * conv_weight_grouped.h explains the algorithm and the layouts; conv_weight_grouped_kernel.c computes.
 */
#include "dnn/conv_weight_grouped.h"

#include "base/size.h"

/* Cost model for cores of 3 GHz, and the division of the work: see conv_weight.c. */
static const double efficiency = 0.3;
static const double task_s = 1e-6;
static const int64_t wanted_tasks = 32, most_shares = 32, n_pixels = 128;

/* Are x and dy stored alike, with whole groups in order? The shuffles assume it. */
static const char *refuse_maps(const struct dnn_problem *p, int size) {
    if (!p->c_map != !p->k_map) return "channels of x and dy are stored differently";
    for (int i = 0; i < p->c && p->c_map; i++) {
        const int first = p->c_map[i - i % size];
        if (p->c_map[i] != p->k_map[i]) return "channels of x and dy are stored differently";
        const bool fits =
            p->c_map[i] < 0 ? first < 0 : first % size == 0 && p->c_map[i] == first + i % size;
        if (!fits) return "a group is split by padding";
    }
    return p->c_map || p->c == p->c_model ? NULL : "channels are padded without a map";
}

static const char *refuse(const struct dnn_problem *p) {
    if (p->kind != DNN_CONV_WEIGHT) return "not the gradient of a weight";
    if (p->c_model != p->k_model || p->c != p->k) return "channels of x and dy differ";
    if (p->groups == 1 || p->c_model % p->groups) return "channels are not divided by groups";
    const int size = p->c_model / p->groups;
    if (size >= p->lanes || p->lanes % size) return "groups are no parts of a block";
    if (p->h < 1 || p->w < 1 || p->oh < 1 || p->ow < 1) return "empty image";
    if (p->x_plain || p->y_plain) return "x or dy is not blocked";
    if (p->c % p->lanes) return "channels do not fill blocks";
    return refuse_maps(p, size);
}

static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    const int64_t blocks = p->c / p->lanes, rows = max_i64(1, min_i64(p->oh, n_pixels / p->ow));
    param[WEIGHT_SIZE] = p->c_model / p->groups;
    param[WEIGHT_N_SHARES] = max_i64(1, min_i64(most_shares, wanted_tasks / blocks));
    param[WEIGHT_ROWS] = ceil_div(p->oh, ceil_div(p->oh, rows));
    const int64_t shares = param[WEIGHT_N_SHARES], sums = 4 * conv_weight_grouped_floats(plan);
    plan->partial_size = shares > 1 ? (size_t)(shares * blocks * sums) : 0;
    plan->scratch_size = shares > 1 ? 0 : (size_t)sums;
    const double flops = 2.0 * (double)p->batch_hint * p->oh * p->ow * (double)(blocks * sums / 4);
    plan->cost = flops / (efficiency * dnn_flops_per_s(plan->kernels) * p->threads) +
                 task_s * (double)blocks;
}

/* ---- The last sums ---- */

/* Writes the filters of a channel block: dw is [k][channel of the group][kernel row][kernel column]. */
static void store(const struct dnn_plan *plan, const float *sums, int64_t block, float *y) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t size = plan->param[WEIGHT_SIZE];
    for (int64_t r = 0; r < p->kh; r++)
        for (int64_t j = 0; j < size; j++)
            for (int64_t s = 0; s < p->kw; s++)
                for (int64_t i = 0; i < p->lanes; i++, sums++) {
                    const int64_t k = dnn_model_channel(p->k_map, block * p->lanes + i);
                    if (k >= 0) y[((k * size + j) * p->kh + r) * p->kw + s] = *sums;
                }
}

static void join(const struct dnn_plan *plan, int64_t batch, float *partial, float *y,
                 int64_t part) {
    const int64_t n = conv_weight_grouped_floats(plan),
                  share = plan->problem.c / plan->problem.lanes * n;
    float *sums = partial + part * n;
    for (int64_t s = 1; s < conv_weight_grouped_shares(plan, batch); s++)
        for (int64_t i = 0; i < n; i++) sums[i] += sums[s * share + i];
    store(plan, sums, part, y);
}

/* The sums of a block that has one share are in scratch: the task itself writes them. */
static void run_one(const struct dnn_plan *plan, const struct dnn_call *call, void *scratch,
                    int64_t block) {
    plan->kernels->conv_weight_grouped(plan, call, scratch, block, block + 1);
    store(plan, scratch, block, call->y);
}

static int64_t n_parts(const struct dnn_plan *plan) {
    return plan->problem.c / plan->problem.lanes;
}

/* ---- Run ---- */

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    (void)batch;
    return plan->param[WEIGHT_N_SHARES] * (plan->problem.c / plan->problem.lanes);
}

static void run(const struct dnn_plan *plan, const struct dnn_call *call, void *scratch,
                int64_t begin, int64_t end) {
    if (plan->partial_size) plan->kernels->conv_weight_grouped(plan, call, scratch, begin, end);
    else
        for (int64_t block = begin; block < end; block++) run_one(plan, call, scratch, block);
}

const struct dnn_impl dnn_conv_weight_grouped = {.name = "conv_weight_grouped",
                                                 .refuse = refuse,
                                                 .plan = make_plan,
                                                 .n_tasks = n_tasks,
                                                 .run = run,
                                                 .n_parts = n_parts,
                                                 .join = join};

/*
 * Depthwise convolutions, and others with few channels per group: refusal, plan (division of the work, cost), packing.
 *
 *   emit.c -> refuse, plan;  run/exec.c -> pack, once per version of the parameters;  run/exec.c -> run, on ranges of tasks
 *
 * grouped.h explains the algorithm and the layout; grouped_kernel.c computes. Groups that fill full vectors are direct.c's.
 */
#include "dnn/grouped.h"

#include "base/size.h"
#include "dnn/list.h"

/*
 * Cost model for cores of 3 GHz, measured by bench/conv.c. Image edges and short sums make the multiplications less efficient
 * than direct's. Depthwise convolutions are mostly bound by the bandwidth for x and y.
 */
static const double efficiency = 0.6;
static const double cache_bytes_per_s = 40e9;
static const double task_s = 0.5e-6;

/* True if stored channel i has its place in a group: the `size` stored channels from i - i % size on must be one group of the
 * model in order, or all padding. The kernel's shuffles assume it. */
static bool is_in_place(const int *map, int i, int size) {
    const int first = map[i - i % size];
    if (map[i] < 0) return first < 0;
    return first >= 0 && first % size == 0 && map[i] == first + i % size;
}

static const char *refuse_maps(const struct dnn_problem *p, int size) {
    if (!p->c_map && !p->k_map)
        return p->c == p->c_model ? NULL : "channels are padded without a map";
    if (!p->c_map || !p->k_map) return "channels in and out are stored differently";
    for (int i = 0; i < p->c; i++) {
        if (p->c_map[i] != p->k_map[i]) return "channels in and out are stored differently";
        if (!is_in_place(p->c_map, i, size)) return "a group is split by padding";
    }
    return NULL;
}

/* Products of a u8 and an i8 whose sum is exact in f32, which has 24 bits. */
static const int64_t exact_products = (1 << 24) / (255 * 128);

static const char *refuse_types(const struct dnn_problem *p) {
    if (p->x_type == SOL_F32 && p->w_type == SOL_F32)
        return p->y_type == SOL_F32 ? NULL : "y is not f32";
    if ((p->x_type != SOL_U8 && p->x_type != SOL_I8) || p->w_type != SOL_I8)
        return "element types of x and the weight";
    if (p->residual || p->act) return "something is fused";
    return (int64_t)p->kh * p->kw * (p->c_model / p->groups) > exact_products
               ? "a long sum of 8 bits"
               : NULL;
}

static const char *refuse(const struct dnn_problem *problem) {
    if (problem->kind != DNN_CONV) return "not a convolution";
    const char *reason = refuse_types(problem);
    if (reason) return reason;
    if (problem->turned) return "a turned weight";
    if (problem->transposed && problem->x_type != SOL_F32) return "transposed with 8 bits";
    if (problem->transposed && problem->kh * problem->kw > GROUPED_MAX_TAPS)
        return "transposed with a large kernel";
    if (problem->c_model != problem->k_model || problem->c != problem->k)
        return "channels in and out differ";
    if (problem->c_model % problem->groups) return "channels are not divided by groups";
    const int size = problem->c_model / problem->groups;
    if (size < 1 || size >= problem->lanes || problem->lanes % size)
        return "groups are no parts of a block";
    if (problem->h < 1 || problem->w < 1 || problem->oh < 1 || problem->ow < 1)
        return "empty image";
    if (problem->x_plain || problem->y_plain) return "x or y is not blocked";
    if (problem->residual && problem->residual_plain) return "residual is not blocked";
    if (problem->prologue) return "has a prologue";
    if (problem->c % problem->lanes) return "channels do not fill blocks";
    return refuse_maps(problem, size);
}

/* ---- Plan ---- */

static int64_t block_weights(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    return (int64_t)p->kh * p->kw * plan->param[GROUPED_SIZE] * p->lanes;
}

/* Seconds of one core for one sample: the larger of the time to multiply and the time to transfer x, y and residual. */
static double image_cost(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const double plane = (double)p->oh * p->ow, blocks = p->c / p->lanes;
    const double points = p->transposed ? (double)p->h * p->w : plane;
    const double flops = 2 * blocks * points * (double)block_weights(plan);
    const double x = (double)p->h * p->w * (double)size_element(p->x_type);
    const double y = (p->residual ? 2 : 1) * plane * (double)size_element(p->y_type);
    const double bytes = p->c * (x + y);
    const double multiply = flops / (efficiency * dnn_flops_per_s(plan->kernels));
    const double move = bytes / cache_bytes_per_s;
    return multiply > move ? multiply : move;
}

/* A task is a channel block of a sample. Rows are divided too only if that gives fewer than 8 tasks per thread, as neighbouring
 * chunks of rows read some rows of x twice. */
static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t images = max_i64(1, p->batch_hint), blocks = images * (p->c / p->lanes);
    plan->param[GROUPED_SIZE] = p->c_model / p->groups;
    const double seconds = image_cost(plan);
    const int64_t wanted = ceil_div(8 * p->threads, max_i64(1, blocks));
    const int64_t worth = (int64_t)(seconds * (double)images / (double)blocks / (4 * task_s));
    const int64_t chunks = max_i64(1, min_i64(min_i64(wanted, worth), p->oh));
    plan->param[GROUPED_ROWS] = max_i64(1, ceil_div(p->oh, chunks));
    plan->param[GROUPED_CHUNKS] = ceil_div(p->oh, plan->param[GROUPED_ROWS]);
    plan->packed_size = (size_t)(p->c / p->lanes * block_weights(plan)) * sizeof(float);
    plan->n_pack_tasks = p->c / p->lanes;

    const int64_t tasks = max_i64(1, blocks * plan->param[GROUPED_CHUNKS]);
    const double task = seconds * (double)images / (double)tasks + task_s;
    plan->cost = (double)ceil_div(tasks, p->threads) * task;
}

/* ---- Packing ---- */

/* The filter of output channel k and input channel j of its group. */
static int64_t find_filter(const struct dnn_problem *p, int64_t k, int64_t j, int64_t size) {
    return p->transposed ? (k - k % size + j) * size + k % size : k * size + j;
}

/* Pack task: a channel block. */
static void pack(const struct dnn_plan *plan, const float *weight, float *packed, int64_t block) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t taps = (int64_t)p->kh * p->kw, size = plan->param[GROUPED_SIZE];
    float *to = packed + block * block_weights(plan);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t j = 0; j < size; j++)
            for (int64_t lane = 0; lane < p->lanes; lane++) {
                const int64_t stored = block * p->lanes + lane;
                const int64_t k = dnn_model_channel(p->k_map, stored);
                const int64_t at = find_filter(p, k, j, size) * taps + tap;
                *to++ = k < 0 ? 0 : p->w_type == SOL_I8 ? ((const int8_t *)weight)[at] : weight[at];
            }
}

/* ---- Run ---- */

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    return batch * (plan->problem.c / plan->problem.lanes) * plan->param[GROUPED_CHUNKS];
}

DNN_RUN(grouped)

const struct dnn_impl dnn_grouped = {.name = "grouped",
                                     .refuse = refuse,
                                     .plan = make_plan,
                                     .pack = pack,
                                     .n_tasks = n_tasks,
                                     .run = run_grouped,
                                     .any_type = true};

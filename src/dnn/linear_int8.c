/*
 * Quantized linear layers: plan (division of the work, cost), and packing of weights.
 *
 *   emit.c -> refuse, plan;  run/exec.c -> pack, once per version of the parameters;  run/exec.c -> run, on ranges of tasks
 *
 * linear_int8.h explains tasks and the packed weight, int8.h the arithmetic. The division does not depend on the number of threads; the
 * sums are exact, so results depend on nothing but the numbers.
 */
#include "dnn/linear_int8.h"

#include "dnn/list.h"

#include <math.h>

/* Cost model for cores of 3 GHz: one step has four times the products of a step in f32. */
static const double efficiency = 0.7;
static const double core_bytes_per_s = 45e9;
static const double memory_bytes_per_s = 60e9;
static const int64_t task_products = 1 << 20;

static const char *refuse(const struct dnn_problem *problem) {
    if (problem->kind != DNN_LINEAR) return "not a linear layer";
    if (problem->w_type != SOL_I8) return "no weights of 8 bits";
    if (problem->x_type != SOL_U8 && problem->x_type != SOL_I8) return "x is not of 8 bits";
    if (problem->groups != 1) return "more than one group";
    if (problem->c_map || problem->k_map) return "padded channels";
    if (problem->prologue || problem->residual || problem->act) return "something is fused";
    return NULL;
}

/* A task has about task_products products, so that it takes much longer than to begin it. */
static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t rows = max_i64(1, p->batch_hint), pairs = ceil_div(p->k, 2 * p->lanes);
    const int64_t most = 8 * plan->kernels->values, parts = ceil_div(rows, most);
    const int64_t per_pair = min_i64(rows, most) * p->c * 2 * p->lanes;
    plan->param[LINEAR_INT8_ROWS] =
        rows <= most ? most : round_up(ceil_div(rows, parts), plan->kernels->values);
    plan->param[LINEAR_INT8_PAIRS] = max_i64(1, min_i64(pairs, task_products / per_pair));
    plan->param[LINEAR_INT8_SIZE] = 2 * p->lanes * 4 * (1 + linear_int8_quads(plan));
    plan->packed_size = (size_t)(pairs * plan->param[LINEAR_INT8_SIZE]);
    plan->n_pack_tasks = pairs;

    const double threads = p->threads, products = 2.0 * (double)(rows * p->c) * p->k;
    const double bytes_per_s = fmin(threads * core_bytes_per_s, memory_bytes_per_s);
    plan->cost = (double)plan->packed_size / bytes_per_s +
                 products / (4 * efficiency * dnn_flops_per_s(plan->kernels) * threads);
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    const int64_t pairs = ceil_div(plan->problem.k, 2 * plan->problem.lanes);
    return ceil_div(batch, plan->param[LINEAR_INT8_ROWS]) *
           ceil_div(pairs, plan->param[LINEAR_INT8_PAIRS]);
}

/* Pack task: a pair. */
static void pack(const struct dnn_plan *plan, const float *weight, float *packed, int64_t task) {
    const int64_t c = plan->problem.c, k = plan->problem.k, width = 2 * plan->problem.lanes;
    const int8_t *w = (const int8_t *)weight;
    int32_t *sums = (int32_t *)((char *)packed + task * plan->param[LINEAR_INT8_SIZE]);
    int8_t *to = (int8_t *)(sums + width);
    for (int64_t i = 0; i < width; i++) {
        const int64_t output = task * width + i;
        sums[i] = 0;
        for (int64_t j = 0; j < 4 * linear_int8_quads(plan); j++) {
            const int8_t value = output < k && j < c ? w[output * c + j] : 0;
            to[(j / 4 * width + i) * 4 + j % 4] = value;
            sums[i] += value;
        }
    }
}

DNN_RUN(linear_int8)

const struct dnn_impl dnn_linear_int8 = {.name = "linear_int8",
                                         .refuse = refuse,
                                         .plan = make_plan,
                                         .pack = pack,
                                         .n_tasks = n_tasks,
                                         .run = run_linear_int8,
                                         .any_type = true};

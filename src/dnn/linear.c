/*
 * Linear layers: plan (division of the work, cost).
 *
 *   emit.c -> dnn_refuse_linear, plan;  run/exec.c -> run, on ranges of tasks (linear_kernel.c)
 *
 * The weight is read in place, as the framework holds it: at small batches the time is that of reading the weight once, and
 * a packed copy would double the memory.
 */
#include "dnn/linear.h"

#include "dnn/list.h"

#include <math.h>

/*
 * Cost model for cores of 3 GHz: bandwidth of one core, and of all cores together. With several rows of x per tile, reading
 * weights and multiplying overlap little, so their times are added.
 */
static const double multiply_efficiency = 0.7;
static const double core_bytes_per_s = 45e9;
static const double memory_bytes_per_s = 60e9;

/*
 * Neither the sizes nor the order of a sum depend on the number of threads, so results do not either. A task has 64 KiB of
 * weights, but at most 64 outputs: then the cost of scheduling it is small.
 */
static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *problem = &plan->problem;
    const int64_t row = problem->c * (int64_t)sizeof(float);
    const int64_t batch = max_i64(1, problem->batch_hint);
    plan->param[LINEAR_OUTPUTS] = min_i64(64, round_up(ceil_div(64 << 10, max_i64(row, 1)), 8));
    plan->param[LINEAR_BATCH] = 48;
    plan->param[LINEAR_X_SIZE] = (128 << 10) / (int64_t)sizeof(float);
    plan->param[LINEAR_DEPTH] = 1024;

    const double threads = problem->threads, weights = (double)(row * problem->k);
    const double bytes_per_s = fmin(threads * core_bytes_per_s, memory_bytes_per_s);
    const double passes = (double)ceil_div(batch, plan->param[LINEAR_BATCH]);
    const double products = 2.0 * (double)(batch * problem->c) * problem->k;
    const double rate = multiply_efficiency * dnn_flops_per_s(plan->kernels) * threads;
    plan->cost = weights * passes / bytes_per_s + products / rate;
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    return batch ? ceil_div(plan->problem.k, plan->param[LINEAR_OUTPUTS]) : 0;
}

DNN_RUN(linear)

const struct dnn_impl dnn_linear = {.name = "linear",
                                    .refuse = dnn_refuse_linear,
                                    .plan = make_plan,
                                    .n_tasks = n_tasks,
                                    .run = run_linear};

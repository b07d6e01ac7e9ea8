/*
 * Linear layers: what is accepted, how the work is divided, what it costs.
 *
 * Place: as winograd.c. The weight is used in place, as the framework holds it, so nothing is
 * packed: at small batches the time is that of reading the weights once, and a packed copy would
 * double the memory. The work itself is in linear_kernel.c.
 */
#include "dnn/linear.h"

#include "dnn/list.h"

#include <math.h>

/*
 * Cost model: cores of 3 GHz; memory gives one core so much, and all together no more than the
 * second. Waiting for weights and multiplying do not overlap much when several rows of x share a
 * tile, so their times are added.
 */
static const double multiply_efficiency = 0.7;
static const double core_bytes_per_s = 45e9;
static const double memory_bytes_per_s = 60e9;

/*
 * Sizes do not depend on the number of threads, nor does a sum's order, hence neither do the
 * results. A task has at least 64 KiB of weights, so that handing it out costs nothing beside it.
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

/*
 * Linear layers: what is accepted, how the work is divided, what it costs.
 *
 * Place: as winograd.c. The weight is used in place, as the framework holds it, so nothing is
 * packed: at small batches the time is that of reading the weights once, and a packed copy would
 * double the memory. The work itself is in linear_kernel.c.
 */
#include "dnn/linear.h"

#include "dnn/kernels.h"

#include <math.h>

/*
 * Cost model: cores of 3 GHz; memory gives one core so much, and all together no more than the
 * second. Waiting for weights and multiplying do not overlap much when several rows of x share a
 * tile, so their times are added.
 */
static const double clock_hz = 3e9;
static const double multiply_efficiency = 0.7;
static const double core_bytes_per_s = 45e9;
static const double memory_bytes_per_s = 60e9;

static const char *refuse(const struct dnn_problem *problem) {
    if (problem->kind != DNN_LINEAR) return "not a linear layer";
    if (problem->groups != 1) return "more than one group";
    if (!problem->x_plain || !problem->y_plain) return "x or y is not plain";
    if (problem->residual && !problem->residual_plain) return "residual is not plain";
    if (problem->prologue) return "has a prologue";
    if (problem->c_map || problem->k_map)
        return "channels are rearranged, the weight is used in place";
    return NULL;
}

static double flops_per_s(const struct dnn_kernels *kernels) {
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++)
        if (isa->kernels == kernels) return isa->flops_per_cycle * clock_hz;
    return 8 * clock_hz;
}

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
    plan->packed_size = 0;
    plan->scratch_size = 0;

    const double threads = problem->threads, weights = (double)(row * problem->k);
    const double bytes_per_s = fmin(threads * core_bytes_per_s, memory_bytes_per_s);
    const double passes = (double)ceil_div(batch, plan->param[LINEAR_BATCH]);
    const double products = 2.0 * (double)(batch * problem->c) * problem->k;
    const double rate = multiply_efficiency * flops_per_s(plan->kernels) * threads;
    plan->cost = weights * passes / bytes_per_s + products / rate;
}

/* The weight is used in place. */
static int64_t n_pack_tasks(const struct dnn_plan *plan) {
    (void)plan;
    return 0;
}

static void pack(const struct dnn_plan *plan, const float *weight, const float *scale_k,
                 float *packed, int64_t begin, int64_t end) {
    (void)plan, (void)weight, (void)scale_k, (void)packed, (void)begin, (void)end;
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    return batch ? ceil_div(plan->problem.k, plan->param[LINEAR_OUTPUTS]) : 0;
}

static void run(const struct dnn_plan *plan, const struct dnn_call *call, void *scratch,
                int64_t begin, int64_t end) {
    (void)scratch;
    plan->kernels->linear->run(plan, call, begin, end);
}

extern const struct dnn_impl dnn_linear;
const struct dnn_impl dnn_linear = {"linear", refuse, make_plan, n_pack_tasks, pack,
                                    n_tasks,  run,    false,     NULL};

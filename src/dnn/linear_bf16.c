/*
 * Linear layers whose factors may be rounded to bf16: plan (division of the work, cost) and packing.
 *
 *   emit.c -> refuse, plan;  run/exec.c -> pack (prepack), run on ranges of tasks (linear_bf16_kernel.c)
 *
 * The packed weight has half the bytes of an f32 weight, so few rows of x take half the time to read it. With AVX512_BF16 an
 * instruction multiplies pairs of bf16 and adds them to f32 sums, at twice the rate of f32. Other processors widen the weight
 * in registers and multiply in f32.
 */
#include "dnn/linear_bf16.h"

#include "dnn/list.h"

#include <math.h>
#include <string.h>

/* The cost model has the form of product.c's: the times of reading the weight and of multiplying. */
static const double multiply_efficiency = 0.85;
static const double core_bytes_per_s = 45e9, widening_bytes_per_s = 30e9;
static const double memory_bytes_per_s = 60e9;

static const char *refuse(const struct dnn_problem *problem) {
    if (problem->factors != SOL_BF16) return "factors must not be rounded to bf16";
    return dnn_refuse_linear(problem);
}

static int64_t panel_outputs(const struct dnn_problem *problem) { return 2 * problem->lanes; }
static int64_t n_panels(const struct dnn_problem *problem) {
    return ceil_div(problem->k, panel_outputs(problem));
}
static int64_t n_pairs(const struct dnn_problem *problem) { return ceil_div(problem->c, 2); }

static bool has_pairs(const struct dnn_plan *plan) {
    return plan->problem.lanes == 16 && !strcmp(dnn_find_isa(plan->kernels)->name, "avx512") &&
           BF16_HAS_PAIRS;
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    if (!batch) return 0;
    return bf16_parts(batch, plan->param[BF16_ROWS]) *
           ceil_div(n_panels(&plan->problem), plan->param[BF16_PANELS]);
}

/*
 * A task rounds its rows of x, so it should have many outputs: at 256 outputs rounding takes 1/30 of the time of the products.
 * But each thread needs some tasks, and a task of few rows should not read much more than 64 KiB of weights. The depth
 * limits the copied rows to what half of a small L2 holds. The order of a sum depends on the number of inputs alone.
 */
static void plan_tasks(struct dnn_plan *plan) {
    const struct dnn_problem *problem = &plan->problem;
    const int64_t batch = max_i64(1, problem->batch_hint), panels = n_panels(problem);
    const int64_t wanted = problem->threads > 1 ? 2 * (int64_t)problem->threads : 1;
    const int64_t bytes = 4 * panel_outputs(problem) * n_pairs(problem);
    plan->param[BF16_ROWS] = has_pairs(plan) ? 144 : 72;
    int64_t most = 256 / panel_outputs(problem);
    if (batch <= plan->kernels->values) most = min_i64(most, ceil_div(64 << 10, bytes));
    const int64_t row_blocks = bf16_parts(batch, plan->param[BF16_ROWS]);
    while (most > 1 && row_blocks * ceil_div(panels, most) < wanted) most--;
    plan->param[BF16_PANELS] = ceil_div(panels, ceil_div(panels, most));
}

static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *problem = &plan->problem;
    plan_tasks(plan);
    plan->n_pack_tasks = n_panels(problem);
    plan->packed_size = (size_t)(n_panels(problem) * n_pairs(problem) * panel_outputs(problem) * 4);
    plan->scratch_size = (size_t)(plan->param[BF16_ROWS] * BF16_STRIDE * 4);

    const double threads = problem->threads, batch = (double)max_i64(1, problem->batch_hint);
    const double bytes_per_s = fmin(
        threads * (has_pairs(plan) ? core_bytes_per_s : widening_bytes_per_s), memory_bytes_per_s);
    const double rate = multiply_efficiency * dnn_flops_per_s(plan->kernels) * threads;
    const double products = 2.0 * batch * problem->c * problem->k;
    plan->cost =
        (double)plan->packed_size / bytes_per_s + products / (has_pairs(plan) ? 2 * rate : rate);
}

/* Rounds to the nearest bf16, in the middle to the even one. */
static uint32_t round_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Packs panel `task`. */
static void pack(const struct dnn_plan *plan, const float *weight, float *packed, int64_t task) {
    const struct dnn_problem *problem = &plan->problem;
    const int64_t outputs = panel_outputs(problem), pairs = n_pairs(problem), c = problem->c;
    uint32_t *to = (uint32_t *)(void *)packed + task * outputs * pairs;
    for (int64_t o = 0; o < outputs; o++) {
        const int64_t k = task * outputs + o;
        const float *row = weight + k * c;
        for (int64_t p = 0; p < pairs; p++)
            if (k >= problem->k) to[p * outputs + o] = 0;
            else
                to[p * outputs + o] =
                    round_bf16(row[2 * p]) | (2 * p + 1 < c ? round_bf16(row[2 * p + 1]) << 16 : 0);
    }
}

DNN_RUN(linear_bf16)

const struct dnn_impl dnn_linear_bf16 = {.name = "linear_bf16",
                                         .refuse = refuse,
                                         .plan = make_plan,
                                         .pack = pack,
                                         .n_tasks = n_tasks,
                                         .run = run_linear_bf16};

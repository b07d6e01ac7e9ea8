/*
 * Winograd convolution: refusal, and plan (division of the work, cost).
 *
 *   emit.c -> refuse, plan;  run/exec.c -> run, on ranges of tasks
 *
 * winograd.h explains the terms and layouts; winograd_kernel.c has the transforms and products, winograd_pack.c the transform of weights.
 *
 * Compared to direct convolution, F(4x4,3x3) saves up to 3/4 of the multiplications, F(2x2,3x3) up to 5/9. The costs: two
 * transforms; weights that are 4 (1.8) times larger; for F(4x4,3x3) an rms rounding error about twice that of plain sums (for
 * F(2x2,3x3) it is not larger). An infinity in x makes its tile NaN. So Winograd is faster on large images, and slower where
 * reading the weights takes most of the time.
 */
#include "dnn/winograd.h"

#include "dnn/list.h"

#include <math.h>

/*
 * Cost model for cores of 3 GHz with 1 MiB of L2; bench/winograd.c measures the ratios. All threads together read the weights
 * from memory once per call. Then each block of tiles streams them from the shared cache, in parallel with the products:
 * the larger of the two times counts. Weights that exceed the shared cache are read from memory for each block.
 */
static const double multiply_efficiency = 0.9;
static const double transform_bytes_per_s = 100e9;
static const double stream_bytes_per_s = 60e9;
static const double memory_bytes_per_s = 50e9;
static const int64_t l2_size = 1 << 20;
static const int64_t shared_cache_size = 16 << 20;

/* Products that are added up one after the other where rounding errors are kept small. They are fewer than in direct convolutions, as the
 * transform back multiplies their errors. n channels in parts of p have errors like sqrt(p + n / p), so more channels have longer parts. */
static int64_t part_terms(int64_t channels) { return channels <= 128 ? 16 : 32; }

static const char *refuse(const struct dnn_problem *problem) {
    if (problem->kind != DNN_CONV) return "not a convolution";
    if (problem->transposed) return "transposed";
    if (problem->kh != 3 || problem->kw != 3) return "kernel is not 3x3";
    if (problem->sh != 1 || problem->sw != 1) return "stride is not 1";
    if (problem->groups != 1) return "more than one group";
    if (problem->x_plain || problem->y_plain) return "x or y is not blocked";
    if (problem->residual && problem->residual_plain) return "residual is not blocked";
    if (problem->pt < 0 || problem->pt > 2 * (int64_t)problem->dh || problem->pl < 0 ||
        problem->pl > 2 * (int64_t)problem->dw)
        return "padding beyond the window";
    if (problem->c % problem->lanes || problem->k % problem->lanes)
        return "channels do not fill blocks";
    return NULL;
}

/* ---- Plan ---- */

/* Bytes of transformed weights of one k pair. */
static int64_t pair_size(const struct dnn_plan *plan) {
    return winograd_points(plan) * plan->problem.c * 2 * plan->problem.lanes *
           (int64_t)sizeof(float);
}

/*
 * As few blocks as the scratch allows, as each block streams all weights again. They are increased to give all threads the
 * same number of tasks, if a block then still has at least half of a tile of the inner loop (VALUES / 2).
 */
int64_t dnn_winograd_blocks(const struct dnn_plan *plan, int64_t batch) {
    const int64_t tiles = winograd_tiles(plan, batch), groups = plan->param[WINOGRAD_GROUPS];
    const int64_t rows = plan->kernels->values;
    const int64_t blocks = ceil_div(tiles, plan->param[WINOGRAD_BLOCK]);
    int64_t even = 1; /* least number of blocks whose tasks are a multiple of the threads */
    while (even * groups % plan->problem.threads) even++;
    const int64_t balanced = round_up(blocks, even);
    return balanced && tiles / balanced >= rows / 2 ? balanced : blocks;
}

/* Estimated seconds of a call, for the division in the plan's parameters. */
static double estimate(const struct dnn_plan *plan, int64_t batch) {
    const struct dnn_problem *problem = &plan->problem;
    const int64_t *param = plan->param, out_points = param[WINOGRAD_OUT] * param[WINOGRAD_OUT];
    const int64_t blocks = dnn_winograd_blocks(plan, batch), groups = param[WINOGRAD_GROUPS];
    /* Of one task: */
    const int64_t tiles = ceil_div(winograd_tiles(plan, batch), blocks);
    const int64_t pairs = ceil_div(param[WINOGRAD_PAIRS], groups), k = pairs * 2 * problem->lanes;

    const double products = 2.0 * (double)(winograd_points(plan) * tiles * problem->c * k);
    const double multiply = products / (multiply_efficiency * dnn_flops_per_s(plan->kernels));
    const double stream = (double)(pairs * pair_size(plan)) / stream_bytes_per_s;
    const bool dilated = problem->dh > 1 || problem->dw > 1; /* then patches are copied first */
    const double values =
        (double)(tiles * (problem->c + k) * (winograd_points(plan) + out_points)) +
        (dilated ? 2.0 * (double)(tiles * problem->c * winograd_points(plan)) : 0);
    const double transform = values * sizeof(float) / transform_bytes_per_s;
    const int64_t rounds = ceil_div(blocks * groups, problem->threads);
    const int64_t size = param[WINOGRAD_PAIRS] * pair_size(plan);
    const int64_t reads =
        size > shared_cache_size ? size * blocks : size - problem->threads * l2_size;
    return (double)rounds * (fmax(multiply, stream) + transform) +
           (double)max_i64(0, reads) / memory_bytes_per_s;
}

/* Chooses the number of groups of k pairs with the least cost: with few tiles the threads divide k, otherwise tiles only. */
static void choose_groups(struct dnn_plan *plan) {
    int64_t best = 1;
    plan->cost = INFINITY;
    for (int64_t groups = 1; groups <= plan->param[WINOGRAD_PAIRS]; groups++) {
        plan->param[WINOGRAD_GROUPS] = groups;
        double cost = estimate(plan, max_i64(1, plan->problem.batch_hint));
        if (cost >= plan->cost) continue;
        plan->cost = cost;
        best = groups;
    }
    plan->param[WINOGRAD_GROUPS] = best;
}

/*
 * Tiles per block, a multiple of VALUES. V should fit half of L2; but at least 2 * VALUES, or 4 * VALUES if each block reads
 * the weights from memory, or else the weights are streamed too often.
 */
static int64_t choose_block(const struct dnn_plan *plan) {
    const int64_t rows = plan->kernels->values;
    const int64_t tile_size = winograd_points(plan) * plan->problem.c * (int64_t)sizeof(float);
    const int64_t fit = l2_size / 2 / (tile_size * rows);
    const bool large = plan->param[WINOGRAD_PAIRS] * pair_size(plan) > shared_cache_size;
    return rows * max_i64(large ? 4 : 2, min_i64(fit, 8));
}

static void make_plan(struct dnn_plan *plan, int64_t out) {
    const struct dnn_problem *problem = &plan->problem;
    const int64_t lanes = problem->lanes, line = 64 / (int64_t)sizeof(float);
    int64_t *param = plan->param;
    param[WINOGRAD_OUT] = out;
    const int64_t rows = min_i64(problem->dh, problem->oh); /* phases that are not empty */
    const int64_t columns = min_i64(problem->dw, problem->ow);
    param[WINOGRAD_PHASE_H] = ceil_div(ceil_div(problem->oh, problem->dh), out);
    param[WINOGRAD_PHASE_W] = ceil_div(ceil_div(problem->ow, problem->dw), out);
    param[WINOGRAD_TILES_H] = rows * param[WINOGRAD_PHASE_H];
    param[WINOGRAD_TILES_W] = columns * param[WINOGRAD_PHASE_W];
    param[WINOGRAD_PAIRS] = ceil_div(problem->k, 2 * lanes);
    param[WINOGRAD_BLOCK] = choose_block(plan);
    /* A transform accesses all points of a tile. At an odd number of cache lines apart they map to different cache sets. */
    param[WINOGRAD_V_POINT] = (ceil_div(param[WINOGRAD_BLOCK] * problem->c, line) | 1) * line;
    param[WINOGRAD_M_POINT] = (ceil_div(param[WINOGRAD_BLOCK] * 2 * lanes, line) | 1) * line;
    param[WINOGRAD_PART] =
        problem->trained ? ceil_div(part_terms(problem->c), lanes) : problem->c / lanes;
    choose_groups(plan);
    plan->packed_size = (size_t)(param[WINOGRAD_PAIRS] * pair_size(plan));
    plan->n_pack_tasks = param[WINOGRAD_PAIRS] * (problem->c / lanes);
    plan->scratch_size =
        (size_t)(winograd_points(plan) * (param[WINOGRAD_V_POINT] + param[WINOGRAD_M_POINT])) *
        sizeof(float);
}

/* ---- Run ---- */

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    return dnn_winograd_blocks(plan, batch) * plan->param[WINOGRAD_GROUPS];
}

#define WINOGRAD(out)                                                      \
    static void plan##out(struct dnn_plan *plan) { make_plan(plan, out); } \
    DNN_RUN(winograd##out)                                                 \
    const struct dnn_impl dnn_winograd##out = {.name = "winograd" #out,    \
                                               .refuse = refuse,           \
                                               .plan = plan##out,          \
                                               .pack = dnn_winograd_pack,  \
                                               .n_tasks = n_tasks,         \
                                               .run = run_winograd##out,   \
                                               .approximate = true};
WINOGRAD(4)
WINOGRAD(2)

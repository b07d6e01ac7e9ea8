/*
 * Direct convolution: what it accepts, how it divides the work, what that costs, and the packing of
 * weights.
 *
 * Place: emit.c asks refuse and plan; run/exec.c packs once per version of the weights and calls
 * run on ranges of tasks. The work itself is in direct_kernel.c; direct.h has the layouts and
 * the idea.
 *
 * It is the implementation that others are compared with: any kernel size, stride, dilation and
 * padding, and rounding errors of a plain sum.
 */
#include "dnn/direct.h"

#include "dnn/list.h"

#include <math.h>

/*
 * Cost model: seconds and bytes of a core of 3 GHz with 1 MiB of L2, measured by bench/conv.c. x
 * comes in pieces, to and from a panel that the core's caches hold (near) or not (far); weights
 * come in one stream beside the multiplications. A thread that comes late delays all others by part
 * of its last tasks (held_up).
 */
static const double efficiency = 0.85;
static const double near_bytes_per_s = 25e9;
static const double far_bytes_per_s = 5e9;
static const double stream_bytes_per_s = 25e9;
static const double memory_bytes_per_s = 20e9;
static const double task_s = 0.5e-6;
static const double held_up = 0.1;
static const int64_t l2_size = 1 << 20, cache_size = 4 << 20;

/* Does each group's run of stored channels hold that group's channels of the model? */
static bool keeps_groups(const int *map, int stored, int model, int groups) {
    const int stored_group = stored / groups, model_group = model / groups;
    if (model % groups) return false;
    if (!map) return stored == model;
    for (int i = 0; i < stored; i++)
        if (map[i] >= 0 && map[i] / model_group != i / stored_group) return false;
    return true;
}

static const char *refuse(const struct dnn_problem *problem) {
    const int block = problem->groups * problem->lanes;
    if (problem->kind != DNN_CONV) return "not a convolution";
    if (problem->h < 1 || problem->w < 1 || problem->oh < 1 || problem->ow < 1)
        return "empty image";
    if (problem->y_plain) return "y is not blocked";
    if (problem->residual && problem->residual_plain) return "residual is not blocked";
    if (problem->c % (problem->x_plain ? problem->groups : block))
        return "channels in do not fill a group's blocks";
    if (problem->k % block) return "channels out do not fill a group's blocks";
    if (!keeps_groups(problem->c_map, problem->c, problem->c_model, problem->groups) ||
        !keeps_groups(problem->k_map, problem->k, problem->k_model, problem->groups))
        return "stored channels mix groups";
    return NULL;
}

/* ---- Plan: geometry ---- */

/*
 * Which of the kernel's rows (or columns) meet the image for some row of y; at least one is kept.
 * Small images with generous padding or dilation leave out most of the work; all that would add is
 * products with zero.
 */
static void clip_kernel(int64_t size, int64_t out, int64_t kernel, int64_t step, int64_t padding,
                        int64_t dilation, int64_t *first, int64_t *n) {
    const int64_t begin = ceil_div(max_i64(0, padding - (out - 1) * step), dilation);
    const int64_t end = min_i64(kernel, ceil_div(max_i64(0, size + padding), dilation));
    *first = min_i64(begin, kernel - 1);
    *n = max_i64(1, end - *first);
}

/* Clips the kernel; what is cut off at its beginning no longer needs padding. */
static void set_kernel(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    clip_kernel(p->h, p->oh, p->kh, p->sh, p->pt, p->dh, &param[DIRECT_KERNEL_ROW],
                &param[DIRECT_KH]);
    clip_kernel(p->w, p->ow, p->kw, p->sw, p->pl, p->dw, &param[DIRECT_KERNEL_COLUMN],
                &param[DIRECT_KW]);
    param[DIRECT_PT] = p->pt - param[DIRECT_KERNEL_ROW] * p->dh;
    param[DIRECT_PL] = p->pl - param[DIRECT_KERNEL_COLUMN] * p->dw;
}

/* Is x copied? A column stride would break the constant distance of neighbouring pixels. */
static bool needs_panel(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param;
    return p->prologue || param[DIRECT_PT] || param[DIRECT_PL] || p->sw != 1 ||
           (p->oh - 1) * p->sh + (param[DIRECT_KH] - 1) * p->dh >= p->h ||
           (p->ow - 1) + (param[DIRECT_KW] - 1) * p->dw >= p->w;
}

/* A 1x1 convolution that maps pixel to pixel: the image may as well be one long row. */
static bool is_pixelwise(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param;
    return param[DIRECT_KH] == 1 && param[DIRECT_KW] == 1 && p->sh == 1 && p->sw == 1 &&
           !param[DIRECT_PT] && !param[DIRECT_PL] && p->oh == p->h && p->ow == p->w;
}

/*
 * Phases beyond the kernel's last row are not read and need no place: a 1x1 convolution of stride 2
 * copies a quarter of x. With a dilation any phase may be read.
 */
static int64_t n_phases(int64_t kernel, int64_t stride, int64_t dilation) {
    return dilation == 1 ? min_i64(kernel, stride) : stride;
}

/* Products per output channel of the channel blocks before `c_block`. */
static int64_t count_products(const struct dnn_plan *plan, int64_t c_block) {
    int64_t n = 0;
    for (int64_t c = 0; c < c_block; c++) n += direct_channels(plan, c);
    return n * plan->param[DIRECT_KH] * plan->param[DIRECT_KW];
}

static void set_geometry(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    set_kernel(plan);
    const bool pixelwise = is_pixelwise(plan);
    param[DIRECT_H] = pixelwise ? 1 : p->h;
    param[DIRECT_W] = pixelwise ? (int64_t)p->h * p->w : p->w;
    param[DIRECT_OH] = pixelwise ? 1 : p->oh;
    param[DIRECT_OW] = pixelwise ? (int64_t)p->oh * p->ow : p->ow;
    param[DIRECT_BLOCK] = p->x_plain ? 1 : p->lanes;
    param[DIRECT_STEP] = plan->kernels->step;
    param[DIRECT_C_BLOCKS] = p->c / p->groups / param[DIRECT_BLOCK];
    param[DIRECT_PAIRS] = ceil_div(p->k / p->groups, 2 * p->lanes);
    param[DIRECT_PANEL] = needs_panel(plan);
    param[DIRECT_COLUMN_PHASES] = n_phases(param[DIRECT_KW], p->sw, p->dw);
    param[DIRECT_TABLE] = round_up(direct_taps(plan) * (int64_t)sizeof(struct direct_tap), 64);
    param[DIRECT_PAIR] = count_products(plan, param[DIRECT_C_BLOCKS]) * 2 * p->lanes;
}

/* Where x is read in place its rows are the phases: stride times as far apart is the next row. */
static void set_image_strides(struct dnn_plan *plan) {
    int64_t *param = plan->param;
    param[DIRECT_COLUMN_PHASE] = 0;
    param[DIRECT_ROW_SPLIT] = false;
    param[DIRECT_ROW_PHASE] = param[DIRECT_W] * param[DIRECT_BLOCK];
    param[DIRECT_ROW_STRIDE] = plan->problem.sh * param[DIRECT_ROW_PHASE];
    param[DIRECT_C_STRIDE] = param[DIRECT_H] * param[DIRECT_ROW_PHASE];
}

/* For blocks of the plan's size. Of two ways to store rows the one with fewer of them is taken. */
static void set_panel_strides(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    const int64_t line = 64 / (int64_t)sizeof(float);
    const int64_t phases = n_phases(param[DIRECT_KH], p->sh, p->dh);
    param[DIRECT_ROW_SPLIT] = false;
    const int64_t rows = param[DIRECT_ROWS] + direct_more_rows(plan);
    param[DIRECT_ROW_SPLIT] = param[DIRECT_KH] * param[DIRECT_ROWS] < phases * rows;
    param[DIRECT_ROW_PHASES] = param[DIRECT_ROW_SPLIT] ? param[DIRECT_KH] : phases;
    param[DIRECT_COLUMN_PHASE] =
        (param[DIRECT_COLUMNS] + direct_more_columns(plan)) * param[DIRECT_BLOCK];
    param[DIRECT_ROW_STRIDE] = param[DIRECT_COLUMN_PHASES] * param[DIRECT_COLUMN_PHASE];
    param[DIRECT_ROW_PHASE] =
        (param[DIRECT_ROWS] + direct_more_rows(plan)) * param[DIRECT_ROW_STRIDE];
    /* Tiles read all channel blocks of a pixel: an odd number of lines apart, in different sets. */
    param[DIRECT_C_STRIDE] =
        (ceil_div(param[DIRECT_ROW_PHASES] * param[DIRECT_ROW_PHASE], line) | 1) * line;
}

/* ---- Plan: division of the work ---- */

/* Bytes of packed weights of one pair. */
static int64_t pair_size(const struct dnn_plan *plan) {
    return plan->param[DIRECT_PAIR] * (int64_t)sizeof(float);
}

/* A last pair that is half empty is stored whole: all pairs then are equally far apart. */
static int64_t weights_size(const struct dnn_plan *plan) {
    return plan->problem.groups * plan->param[DIRECT_PAIRS] * pair_size(plan);
}

static int64_t panel_size(const struct dnn_plan *plan) {
    return plan->param[DIRECT_PANEL] * plan->param[DIRECT_C_BLOCKS] * plan->param[DIRECT_C_STRIDE] *
           (int64_t)sizeof(float);
}

/* Bytes of x that the tiles of one block read again for each pair. */
static int64_t block_size(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t rows =
        (plan->param[DIRECT_ROWS] - 1) * p->sh + (plan->param[DIRECT_KH] - 1) * p->dh + 1;
    if (plan->param[DIRECT_PANEL]) return panel_size(plan);
    return rows * (plan->param[DIRECT_COLUMNS] + direct_more_columns(plan)) * (p->c / p->groups) *
           (int64_t)sizeof(float);
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    const int64_t *param = plan->param;
    return batch * ceil_div(param[DIRECT_OH], param[DIRECT_ROWS]) *
           ceil_div(param[DIRECT_OW], param[DIRECT_COLUMNS]) * plan->problem.groups *
           param[DIRECT_SHARES];
}

/*
 * Steps of the inner loop for the pixels of one pair, counted in multiplications of two vectors. A
 * tile of less than four pixels waits for the result of each addition before it can add the next.
 */
static double pixel_steps(const struct dnn_plan *plan) {
    const int64_t pixels = plan->kernels->values, columns = plan->param[DIRECT_COLUMNS];
    const int64_t parts = ceil_div(columns, pixels), rows = plan->param[DIRECT_ROWS];
    const int64_t in_tile = ceil_div(columns, parts), at_once = 2 * in_tile <= pixels ? 2 : 1;
    return (double)(parts * ceil_div(rows, at_once)) *
               (double)max_i64(in_tile * min_i64(rows, at_once), 4) +
           0.25 * (double)parts;
}

/*
 * Estimated seconds of a call for the division that the plan's parameters describe. Tasks are
 * handed out in portions as run/exec.c does; within a portion the shares of a block use one panel,
 * otherwise each fills its own. Small blocks copy more rows twice and read the weights more often;
 * large ones leave threads without work or fall out of the caches. One formula weighs all of it.
 */
static double estimate(const struct dnn_plan *plan, int64_t batch) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param, pairs = ceil_div(param[DIRECT_PAIRS], param[DIRECT_SHARES]);
    const int64_t n = n_tasks(plan, batch), portion = max_i64(1, n / (4 * p->threads));
    const double fills =
        param[DIRECT_SHARES] == 1 ? 1 : 1 / (double)min_i64(portion, param[DIRECT_SHARES]);
    const double step = 4.0 * p->lanes / (efficiency * dnn_flops_per_s(plan->kernels));
    const double taps = (double)(param[DIRECT_PAIR] / (2 * p->lanes));
    double multiply = (double)pairs * pixel_steps(plan) * taps * step;
    if (weights_size(plan) + block_size(plan) > l2_size)
        multiply = fmax(multiply, (double)(pairs * pair_size(plan)) / stream_bytes_per_s);
    double task = task_s + multiply;
    const double x_bytes_per_s = block_size(plan) > cache_size ? far_bytes_per_s : near_bytes_per_s;
    task += fills * (double)panel_size(plan) / x_bytes_per_s;
    if (block_size(plan) + pair_size(plan) > l2_size)
        task += (double)(pairs * block_size(plan)) / x_bytes_per_s;
    const double portions = (double)ceil_div(ceil_div(n, portion), p->threads);
    return (portions + held_up) * (double)portion * task;
}

/* Keeps the division if it is better than what the plan's cost stands for. */
static void try_division(struct dnn_plan *plan, struct dnn_plan *best, int64_t rows,
                         int64_t columns) {
    const int64_t batch = max_i64(1, plan->problem.batch_hint), pairs = plan->param[DIRECT_PAIRS];
    plan->param[DIRECT_ROWS] = rows, plan->param[DIRECT_COLUMNS] = columns;
    if (plan->param[DIRECT_PANEL]) set_panel_strides(plan);
    else set_image_strides(plan);
    for (int64_t parts = 1; parts <= pairs && parts <= 4 * plan->problem.threads; parts++) {
        plan->param[DIRECT_SHARES] = parts;
        plan->cost = estimate(plan, batch);
        if (plan->cost < best->cost) *best = *plan;
    }
}

/* Blocks of whole rows, ever fewer, are tried, and pieces of one row that are whole tiles. */
static void choose_division(struct dnn_plan *plan) {
    const int64_t pixels = plan->kernels->values;
    const int64_t height = plan->param[DIRECT_OH], width = plan->param[DIRECT_OW];
    struct dnn_plan best = *plan;
    best.cost = INFINITY;
    try_division(plan, &best, 1, width);
    for (int64_t rows = height; rows > 1 && height / rows <= 64;) {
        try_division(plan, &best, rows, width);
        rows = min_i64(rows - 1, ceil_div(height, ceil_div(height, rows) + 1));
    }
    for (int64_t columns = width; columns > pixels;) {
        columns = round_up(ceil_div(columns, 2), pixels);
        try_division(plan, &best, 1, min_i64(columns, width));
        if (columns == pixels) break;
    }
    *plan = best;
}

/* Nothing can be faster than memory, from which x, y, the residual and the weights come once. */
static double bytes_moved(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const double x = (double)p->c * p->h * p->w, y = (double)p->k * p->oh * p->ow;
    const double images = (double)max_i64(1, p->batch_hint);
    return (double)weights_size(plan) + images * (x + (p->residual ? 2 : 1) * y) * sizeof(float);
}

static void make_plan(struct dnn_plan *plan) {
    set_geometry(plan);
    choose_division(plan);
    plan->packed_size = (size_t)weights_size(plan);
    plan->n_pack_tasks =
        plan->problem.groups * plan->param[DIRECT_PAIRS] * plan->param[DIRECT_C_BLOCKS];
    plan->scratch_size = (size_t)(plan->param[DIRECT_TABLE] + panel_size(plan));
    const double memory =
        bytes_moved(plan) / memory_bytes_per_s / min_i64(2, plan->problem.threads);
    if (memory > plan->cost) plan->cost = memory;
}

/* ---- Packing ---- */

/* Writes the taps of stored channels c and k, or zeros for padding (k < 0 too), `step` apart. */
static void pack_channels(const struct dnn_plan *plan, const float *weight, int64_t c, int64_t k,
                          float *to, int64_t step) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param, c_group = p->c_model / p->groups;
    const int c_model = dnn_model_channel(p->c_map, c);
    const int k_model = k < 0 ? -1 : dnn_model_channel(p->k_map, k);
    const bool padding = c_model < 0 || k_model < 0;
    for (int64_t r = 0; r < param[DIRECT_KH]; r++)
        for (int64_t s = 0; s < param[DIRECT_KW]; s++, to += step) {
            const int64_t row = param[DIRECT_KERNEL_ROW] + r;
            const int64_t column = param[DIRECT_KERNEL_COLUMN] + s;
            const int64_t pair = k_model * c_group + c_model % c_group;
            *to = padding ? 0 : weight[(pair * p->kh + row) * p->kw + column];
        }
}

/* A task is a (group, pair, channel block). */
static void pack(const struct dnn_plan *plan, const float *weight, float *packed, int64_t task) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param, size = param[DIRECT_BLOCK], width = 2 * p->lanes;
    const int64_t pair = task / param[DIRECT_C_BLOCKS] % param[DIRECT_PAIRS];
    const int64_t k_group = p->k / p->groups;
    const int64_t group = task / param[DIRECT_C_BLOCKS] / param[DIRECT_PAIRS];
    const int64_t c_block = task % param[DIRECT_C_BLOCKS];
    const int64_t c = (group * param[DIRECT_C_BLOCKS] + c_block) * size;
    const int64_t n = direct_channels(plan, c_block);
    float *to = packed + task / param[DIRECT_C_BLOCKS] * param[DIRECT_PAIR] +
                count_products(plan, c_block) * width;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            const int64_t in_group = pair * width + j;
            const int64_t k = in_group < k_group ? group * k_group + in_group : -1;
            pack_channels(plan, weight, c + i, k, to + i * width + j, n * width);
        }
}

/* ---- Run ---- */

DNN_RUN(direct)

const struct dnn_impl dnn_direct = {.name = "direct",
                                    .refuse = refuse,
                                    .plan = make_plan,
                                    .pack = pack,
                                    .n_tasks = n_tasks,
                                    .run = run_direct};

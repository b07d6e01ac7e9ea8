/*
 * Direct convolution: refusal, and plan (division of the work, cost).
 *
 *   emit.c -> refuse, plan;  run/exec.c -> run, on ranges of tasks
 *
 * direct.h explains the terms (block, pair, tile, tap, panel, phase) and the layouts; direct_kernel.c computes.
 *
 * It is the general implementation: any kernel size, stride, dilation and padding, with the rounding errors of a plain sum.
 */
#include "dnn/direct.h"

#include "base/size.h"
#include "dnn/list.h"

#include <math.h>

/*
 * Cost model for cores of 3 GHz with 1 MiB of L2, measured by bench/conv.c.
 *   near, far   copying x into the panel and reading it again, if one block's x fits the core's caches (cache_size) or not
 *   stream      reading packed weights, in parallel with the multiplications
 *   held_up     part of a range of tasks that the others wait for the slowest thread at the end of a step
 */
static const double efficiency = 0.85;
static const double near_bytes_per_s = 25e9;
static const double far_bytes_per_s = 5e9;
static const double stream_bytes_per_s = 25e9;
static const double memory_bytes_per_s = 20e9;
static const double task_s = 0.5e-6;
static const double held_up = 0.1;
static const int64_t l2_size = 1 << 20, cache_size = 4 << 20;

/* Products that are added up one after the other where rounding errors are kept small. n products in parts of p have errors like
 * sqrt(p + n / p), and each part reads and writes all sums of a tile: twice the root of n is nearly as accurate as the root itself. */
static int64_t part_terms(int64_t products) {
    return products <= 1024 ? 64 : products <= 4096 ? 128 : 256;
}

static const char *refuse_types(const struct dnn_problem *problem) {
    const bool is_float = problem->x_type == SOL_F32 && problem->w_type == SOL_F32;
    if (is_float) return problem->y_type == SOL_F32 ? NULL : "y is not f32";
    if ((problem->x_type != SOL_U8 && problem->x_type != SOL_I8) || problem->w_type != SOL_I8)
        return "element types of x and the weight";
    if (problem->x_plain && problem->groups > 1) return "groups with a plain x of 8 bits";
    if (problem->prologue || problem->residual || problem->act) return "something is fused";
    return problem->transposed ? "a transposed convolution of 8 bits" : NULL;
}

/* A plain y: each tile is transposed when it is stored, and what is fused is that of a blocked tile. */
static const char *refuse_plain(const struct dnn_problem *problem) {
    if (problem->transposed) return "transposed with a plain y";
    if (problem->x_type != SOL_F32) return "8 bits with a plain y";
    return problem->residual ? "residual of a plain y" : NULL;
}

static const char *refuse(const struct dnn_problem *problem) {
    const int block = problem->groups * problem->lanes;
    if (problem->kind != DNN_CONV) return "not a convolution";
    const char *reason = refuse_types(problem);
    if (reason) return reason;
    if (problem->kd && (problem->transposed || !problem->x_plain || !problem->y_plain))
        return "volumes that are not plain";
    if (problem->h < 1 || problem->w < 1 || problem->oh < 1 || problem->ow < 1)
        return "empty image";
    if (problem->y_plain) reason = refuse_plain(problem);
    if (reason) return reason;
    if (problem->transposed && problem->groups > 1) return "transposed with groups";
    if (problem->transposed && (int64_t)problem->sh * problem->sw > DIRECT_MAX_PHASES)
        return "transposed with a large stride";
    if (problem->residual && problem->residual_plain) return "residual is not blocked";
    if (problem->c % (problem->x_plain ? problem->groups : block))
        return "channels in do not fill a group's blocks";
    if (problem->k % block && !problem->y_plain) return "channels out do not fill a group's blocks";
    if (!dnn_keeps_groups(problem->c_map, problem->c, problem->c_model, problem->groups) ||
        !dnn_keeps_groups(problem->k_map, problem->k, problem->k_model, problem->groups))
        return "stored channels mix groups";
    return NULL;
}

/* ---- Plan: geometry ---- */

/*
 * Finds kernel rows (or columns) [*first, *first + *n) outside of which all reads hit padding, for every row of y; keeps at
 * least one. Rows outside multiply zeros only. For small images with large padding or dilation these are most of the work.
 */
static void clip_kernel(int64_t size, int64_t out, int64_t kernel, int64_t step, int64_t padding,
                        int64_t dilation, int64_t *first, int64_t *n) {
    const int64_t begin = ceil_div(max_i64(0, padding - (out - 1) * step), dilation);
    const int64_t end = min_i64(kernel, ceil_div(max_i64(0, size + padding), dilation));
    *first = min_i64(begin, kernel - 1);
    *n = max_i64(1, end - *first);
}

/* Finds the first and the last row of x that a point of a transposed convolution reads, counted from the point's own row:
 * *padding becomes the rows before that row, *reach the distance between the two. For columns alike. */
static void find_reach(int64_t kernel, int64_t step, int64_t dilation, int64_t *padding,
                       int64_t *reach) {
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (int64_t phase = 0; phase < step; phase++)
        for (int64_t r = 0; r < kernel; r++) {
            const int64_t at = phase + *padding - r * dilation;
            if (at % step) continue;
            first = min_i64(first, at / step);
            last = max_i64(last, at / step);
        }
    *padding = -first;
    *reach = last - first;
}

static void set_transposed(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    param[DIRECT_SH] = param[DIRECT_SW] = param[DIRECT_DH] = param[DIRECT_DW] = 1;
    param[DIRECT_UP_H] = p->sh, param[DIRECT_UP_W] = p->sw;
    find_reach(p->kh, p->sh, p->dh, &param[DIRECT_PT], &param[DIRECT_REACH_H]);
    find_reach(p->kw, p->sw, p->dw, &param[DIRECT_PL], &param[DIRECT_REACH_W]);
}

/* Clips the kernel, unless the image's size is open: the packed weight has the clipped kernel. Rows and columns that are cut off
 * at its beginning reduce the padding. */
static void set_kernel(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    param[DIRECT_KH] = p->kh, param[DIRECT_KW] = p->kw;
    param[DIRECT_PT] = p->pt, param[DIRECT_PL] = p->pl;
    param[DIRECT_KERNEL_ROW] = param[DIRECT_KERNEL_COLUMN] = 0;
    if (p->open || p->transposed) return;
    clip_kernel(p->h, p->oh, p->kh, p->sh, p->pt, p->dh, &param[DIRECT_KERNEL_ROW],
                &param[DIRECT_KH]);
    clip_kernel(p->w, p->ow, p->kw, p->sw, p->pl, p->dw, &param[DIRECT_KERNEL_COLUMN],
                &param[DIRECT_KW]);
    param[DIRECT_PT] = p->pt - param[DIRECT_KERNEL_ROW] * p->dh;
    param[DIRECT_PL] = p->pl - param[DIRECT_KERNEL_COLUMN] * p->dw;
}

/* The steps in x and the output phases. */
static void set_steps(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    param[DIRECT_SH] = p->sh, param[DIRECT_SW] = p->sw;
    param[DIRECT_DH] = p->dh, param[DIRECT_DW] = p->dw;
    param[DIRECT_UP_H] = param[DIRECT_UP_W] = 1;
    param[DIRECT_REACH_H] = (param[DIRECT_KH] - 1) * p->dh;
    param[DIRECT_REACH_W] = (param[DIRECT_KW] - 1) * p->dw;
    if (p->transposed) set_transposed(plan);
}

/* True if x must be copied into a panel: for padding, a prologue, quads of a plain x, or reads beyond the image; and for a column
 * stride, as tiles read neighbouring pixels DIRECT_BLOCK floats apart. */
static bool needs_panel(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param;
    const bool leaves = (int64_t)(p->od - 1) * p->sd + (int64_t)(p->kd - 1) * p->dd - p->pd >= p->d;
    return p->prologue || (p->x_plain && direct_unit(plan) > 1) || (p->kd && (p->pd || leaves)) ||
           param[DIRECT_PT] || param[DIRECT_PL] || param[DIRECT_SW] != 1 ||
           (param[DIRECT_OH] - 1) * param[DIRECT_SH] + param[DIRECT_REACH_H] >= param[DIRECT_H] ||
           (param[DIRECT_OW] - 1) + param[DIRECT_REACH_W] >= param[DIRECT_W];
}

/* True for a (clipped) 1x1 kernel without stride and padding: pixel i of y depends on pixel i of x alone, so the image is
 * treated as one long row. */
static bool is_pixelwise(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param;
    return !p->transposed && param[DIRECT_KH] == 1 && param[DIRECT_KW] == 1 && p->sh == 1 &&
           p->sw == 1 && !param[DIRECT_PT] && !param[DIRECT_PL] && p->oh == p->h && p->ow == p->w;
}

/*
 * Number of phases that the kernel reads. Without dilation kernel row r reads phase r % stride, so a kernel smaller than the
 * stride leaves phases unread, and they are not stored: a 1x1 convolution of stride 2 copies a quarter of x. With a dilation
 * any phase may be read.
 */
static int64_t n_phases(int64_t kernel, int64_t stride, int64_t dilation) {
    return dilation == 1 ? min_i64(kernel, stride) : stride;
}

/* Are sums of weights packed in front of the weights? */
static int64_t count_sums(const struct dnn_plan *plan) { return direct_unit(plan) > 1; }

void dnn_direct_phases(const struct dnn_plan *plan, struct direct_phase *phase) {
    const int64_t *param = plan->param;
    const int64_t channels = direct_count_channels(plan, param[DIRECT_C_BLOCKS]);
    int64_t positions = 0, offset;
    for (int64_t i = 0; i < direct_phases(plan); i++, phase++) {
        phase->row = i / param[DIRECT_UP_W], phase->column = i % param[DIRECT_UP_W];
        int64_t rows = 0, columns = 0;
        for (int64_t r = 0; r < param[DIRECT_KH]; r++)
            rows += direct_row(plan, phase->row, r, &offset);
        for (int64_t s = 0; s < param[DIRECT_KW]; s++)
            columns += direct_column(plan, phase->column, s, &offset);
        rows *= param[DIRECT_KD];
        phase->tap = positions * param[DIRECT_C_BLOCKS];
        phase->n_taps = rows * columns * param[DIRECT_C_BLOCKS];
        phase->weights = (count_sums(plan) + positions * channels) * 2 * plan->problem.lanes;
        positions += rows * columns;
    }
}

static void set_geometry(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    int64_t *param = plan->param;
    set_kernel(plan);
    set_steps(plan);
    const bool pixelwise = is_pixelwise(plan);
    param[DIRECT_D] = max_i64(1, p->d), param[DIRECT_OD] = max_i64(1, p->od);
    param[DIRECT_KD] = max_i64(1, p->kd);
    param[DIRECT_H] = pixelwise ? 1 : p->h;
    param[DIRECT_W] = pixelwise ? (int64_t)p->h * p->w : p->w;
    param[DIRECT_Y_H] = pixelwise ? 1 : p->oh;
    param[DIRECT_Y_W] = pixelwise ? (int64_t)p->oh * p->ow : p->ow;
    param[DIRECT_OH] = ceil_div(param[DIRECT_Y_H], param[DIRECT_UP_H]);
    param[DIRECT_OW] = ceil_div(param[DIRECT_Y_W], param[DIRECT_UP_W]);
    param[DIRECT_BLOCK] = p->x_plain ? 1 : p->lanes / direct_unit(plan);
    param[DIRECT_STEP] = direct_unit(plan) > 1 ? 1 : plan->kernels->step;
    param[DIRECT_C_BLOCKS] = ceil_div(p->c / p->groups, param[DIRECT_BLOCK] * direct_unit(plan));
    param[DIRECT_PAIRS] = ceil_div(p->k / p->groups, 2 * p->lanes);
    const int64_t taps = direct_taps(plan), block = param[DIRECT_BLOCK];
    param[DIRECT_PART] = p->trained ? ceil_div(part_terms(taps * block), block) : max_i64(1, taps);
    param[DIRECT_PANEL] = needs_panel(plan);
    param[DIRECT_COLUMN_PHASES] = n_phases(param[DIRECT_KW], param[DIRECT_SW], param[DIRECT_DW]);
    param[DIRECT_TABLE] = round_up(direct_phases(plan) * (int64_t)sizeof(struct direct_phase) +
                                       direct_taps(plan) * (int64_t)sizeof(struct direct_tap),
                                   64);
    param[DIRECT_PAIR] =
        (count_sums(plan) + direct_count_channels(plan, param[DIRECT_C_BLOCKS]) * param[DIRECT_KD] *
                                param[DIRECT_KH] * param[DIRECT_KW]) *
        2 * p->lanes;
}

/* Strides for x read in place. Each image row is a phase (neighbouring phases are one row apart); consecutive rows of y read
 * rows that are sh apart. */
static void set_image_strides(struct dnn_plan *plan) {
    int64_t *param = plan->param;
    param[DIRECT_COLUMN_PHASE] = 0;
    param[DIRECT_ROW_SPLIT] = false;
    param[DIRECT_ROW_PHASE] = param[DIRECT_W] * param[DIRECT_BLOCK];
    param[DIRECT_ROW_STRIDE] = param[DIRECT_SH] * param[DIRECT_ROW_PHASE];
    param[DIRECT_PLANE] = plan->problem.dd * param[DIRECT_H] * param[DIRECT_ROW_PHASE];
    param[DIRECT_C_STRIDE] = param[DIRECT_D] * param[DIRECT_H] * param[DIRECT_ROW_PHASE];
}

/* Strides of a panel for blocks of the plan's size. Its rows are stored by phase of the stride or by kernel row
 * (DIRECT_ROW_SPLIT), whichever stores fewer rows. */
static void set_panel_strides(struct dnn_plan *plan) {
    int64_t *param = plan->param;
    const int64_t line = 64 / (int64_t)sizeof(float);
    const int64_t phases = n_phases(param[DIRECT_KH], param[DIRECT_SH], param[DIRECT_DH]);
    param[DIRECT_ROW_SPLIT] = false;
    const int64_t rows = param[DIRECT_ROWS] + direct_more_rows(plan);
    param[DIRECT_ROW_SPLIT] =
        !plan->problem.transposed && param[DIRECT_KH] * param[DIRECT_ROWS] < phases * rows;
    param[DIRECT_ROW_PHASES] = param[DIRECT_ROW_SPLIT] ? param[DIRECT_KH] : phases;
    param[DIRECT_COLUMN_PHASE] =
        (param[DIRECT_COLUMNS] + direct_more_columns(plan)) * param[DIRECT_BLOCK];
    param[DIRECT_ROW_STRIDE] = param[DIRECT_COLUMN_PHASES] * param[DIRECT_COLUMN_PHASE];
    param[DIRECT_ROW_PHASE] =
        (param[DIRECT_ROWS] + direct_more_rows(plan)) * param[DIRECT_ROW_STRIDE];
    param[DIRECT_PLANE] = param[DIRECT_ROW_PHASES] * param[DIRECT_ROW_PHASE];
    /* A tile reads all channel blocks of a pixel. At an odd number of cache lines apart they map to different cache sets. */
    param[DIRECT_C_STRIDE] = (ceil_div(param[DIRECT_KD] * param[DIRECT_PLANE], line) | 1) * line;
}

/* ---- Plan: division of the work ---- */

/* Bytes of packed weights of one pair. */
static int64_t pair_size(const struct dnn_plan *plan) {
    return plan->param[DIRECT_PAIR] * (int64_t)sizeof(float);
}

/* Bytes of all packed weights. A half empty last pair is padded, so that all pairs have one size. */
static int64_t weights_size(const struct dnn_plan *plan) {
    return plan->problem.groups * plan->param[DIRECT_PAIRS] * pair_size(plan);
}

static int64_t panel_size(const struct dnn_plan *plan) {
    return plan->param[DIRECT_PANEL] * plan->param[DIRECT_C_BLOCKS] * plan->param[DIRECT_C_STRIDE] *
           (int64_t)sizeof(float);
}

/* Bytes of x (in the panel or in place) that one block of y reads; it reads them once per pair. */
static int64_t block_size(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t rows =
        (plan->param[DIRECT_ROWS] - 1) * plan->param[DIRECT_SH] + plan->param[DIRECT_REACH_H] + 1;
    if (plan->param[DIRECT_PANEL]) return panel_size(plan);
    return rows * plan->param[DIRECT_KD] *
           (plan->param[DIRECT_COLUMNS] + direct_more_columns(plan)) * (p->c / p->groups) *
           (int64_t)sizeof(float) / direct_unit(plan);
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    const int64_t *param = plan->param;
    return batch * param[DIRECT_OD] * ceil_div(param[DIRECT_OH], param[DIRECT_ROWS]) *
           ceil_div(param[DIRECT_OW], param[DIRECT_COLUMNS]) * plan->problem.groups *
           param[DIRECT_SHARES];
}

/*
 * Steps of the inner loop per channel of a tap, for one block of y and one pair. A step multiplies one pixel by two vectors
 * of weights. A tile of fewer than four pixels costs as much as four: each addition waits for the previous one.
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
 * Estimated seconds of a call for the block size and the shares in the plan's parameters. As in run/exec.c, a thread takes
 * ranges of `portion` tasks. Consecutive tasks of one block within a range fill the panel once (`fills` per task). The
 * formula weighs: small blocks copy more halo rows and read the weights more often; large blocks leave threads without work
 * or exceed the caches.
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

/* Estimates blocks of this size with every number of shares. *best becomes the cheapest plan so far. */
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

/* Chooses the block size with the least cost: blocks of full rows, from the image's height down to one, and parts of one row
 * whose width is a multiple of a tile. */
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

/* Bytes that a call transfers at least: packed weights, x, y and the residual, once each. */
static double bytes_moved(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const double x = (double)p->c * (double)plan->param[DIRECT_D] * p->h * p->w;
    const double y = (double)p->k * (double)plan->param[DIRECT_OD] * p->oh * p->ow;
    const double images = (double)max_i64(1, p->batch_hint);
    return (double)weights_size(plan) +
           images * (x * (double)size_element(p->x_type) +
                     (p->residual ? 2 : 1) * y * (double)size_element(p->y_type));
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

/* ---- Run ---- */

DNN_RUN(direct)

const struct dnn_impl dnn_direct = {.name = "direct",
                                    .refuse = refuse,
                                    .plan = make_plan,
                                    .pack = dnn_direct_pack,
                                    .n_tasks = n_tasks,
                                    .run = run_direct,
                                    .any_type = true,
                                    .volumes = true};

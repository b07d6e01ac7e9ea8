/*
 * Products: plans (division of the work, cost), packing.
 *
 *   emit.c -> refuse, plan;  step.c -> pack;  run/exec.c -> run, on ranges of tasks (product_kernel.c)
 */
#include "dnn/product.h"

#include "dnn/list.h"

#include <math.h>
#include <string.h>

/* Cost model for cores of 3 GHz: share of the peak, bandwidth of one core, and of all cores together. */
static const double efficiency = 0.9;
static const double core_bytes_per_s = 45e9;
static const double memory_bytes_per_s = 60e9;

/* A task computes at least this many products, or reads at least this many weights: about 5 us on a core with AVX-512, so that
 * scheduling it costs little. */
enum { TASK_PRODUCTS = 512 << 10, TASK_WEIGHTS = 32 << 10 };
enum { MAX_OUTPUTS = 1024 }; /* of a task of a linear layer: its part of y stays in L2 */

/* Outputs of a panel. */
static int64_t panel_width(const struct dnn_plan *plan) {
    return (int64_t)plan->kernels->product_vectors * plan->problem.lanes;
}
static int64_t count_panels(const struct dnn_plan *plan) {
    return ceil_div(plan->problem.k, panel_width(plan));
}
/* Panels of b that a task of a matmul packs at a time, at most. */
static int64_t most_packed(const struct dnn_plan *plan) {
    return PRODUCT_MAX_PACKED / panel_width(plan);
}
static int64_t count_tiles(const struct dnn_plan *plan, int64_t rows) {
    return max_i64(1, ceil_div(rows, plan->kernels->product_values));
}

static void set_parts(struct dnn_plan *plan) {
    plan->param[PRODUCT_PARTS] = max_i64(1, ceil_div(plan->problem.c, PRODUCT_DEPTH));
    plan->param[PRODUCT_PANELS] = count_panels(plan);
}

/* Never 0, which would mean that nothing is packed: a call may have more inputs and outputs than are expected. */
static size_t packed_size(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t inputs = round_up(max_i64(1, p->c), plan->kernels->step);
    const int64_t outputs = round_up(max_i64(1, p->k), p->lanes);
    return (size_t)(inputs * outputs) * sizeof(float);
}

/* ---- Division of a linear layer ---- */

/*
 * Estimated time of a division, in eighths of the time that one tile takes for one panel: threads take whole tasks. To read a
 * panel costs about a quarter of a tile more per task, to copy the rows of x half a panel.
 */
static int64_t estimate(const struct product_division *by, int64_t panels, int64_t n,
                        int64_t threads) {
    const int64_t rounds = ceil_div(n * by->row_parts * by->panel_parts, threads);
    const int64_t tiles = ceil_div(by->tiles, by->row_parts);
    return rounds * (4 * tiles + 1) * (2 * ceil_div(panels, by->panel_parts) + 1);
}

/* Tries some more parts than `least`, which are the fewest; the sizes of the parts may then be nearly equal. */
static struct product_division balance(const struct product_division *least, int64_t panels,
                                       int64_t most_panel_parts, int64_t n, int64_t threads) {
    struct product_division by = *least, best = *least;
    int64_t cost = estimate(&best, panels, n, threads);
    for (int64_t i = 0; i < 16; i++) {
        by.row_parts = min_i64(least->row_parts + i / 4, by.tiles);
        by.panel_parts = min_i64(least->panel_parts + i % 4, most_panel_parts);
        const int64_t other = estimate(&by, panels, n, threads);
        if (other < cost) cost = other, best = by;
    }
    return best;
}

/*
 * Four tasks per thread, if they are large enough: a thread that is held up then takes fewer of them. Rows are divided before
 * panels, as each task copies its rows of x; but a task has four tiles or more, as it reads each of its panels once for all of
 * them. A task of a few rows reads a long run of panels.
 */
struct product_division product_divide(const struct dnn_plan *plan, int64_t rows, int64_t n) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t panels = plan->param[PRODUCT_PANELS], width = panel_width(plan);
    const int64_t weights = panels * width * max_i64(p->c, 1);
    const int64_t most = max_i64(weights * rows / TASK_PRODUCTS, weights / TASK_WEIGHTS);
    const int64_t tasks = max_i64(1, min_i64(ceil_div(4 * p->threads, n), most));
    const int64_t run = rows <= PRODUCT_FEW ? PRODUCT_WIDE : 1;
    const int64_t panel_parts = max_i64(1, panels / run);
    struct product_division by = {.tiles = count_tiles(plan, rows),
                                  .panel_parts = max_i64(1, ceil_div(panels * width, MAX_OUTPUTS))};
    by.row_parts = min_i64(ceil_div(tasks, by.panel_parts), by.tiles / 4);
    by.row_parts =
        max_i64(by.row_parts, ceil_div(by.tiles, PRODUCT_MAX_ROWS / plan->kernels->product_values));
    by.panel_parts = max_i64(by.panel_parts, min_i64(ceil_div(tasks, by.row_parts), panel_parts));
    return balance(&by, panels, max_i64(by.panel_parts, panel_parts), n, p->threads);
}

/* ---- Linear layers ---- */

static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const double threads = p->threads, rows = (double)max_i64(1, p->batch_hint);
    const double bytes_per_s = fmin(threads * core_bytes_per_s, memory_bytes_per_s);
    const double rate = efficiency * dnn_flops_per_s(plan->kernels) * threads;
    set_parts(plan);
    plan->packed_size = packed_size(plan);
    plan->n_pack_tasks = count_panels(plan);
    plan->scratch_size = PRODUCT_MAX_ROWS * PRODUCT_STRIDE * sizeof(float);
    plan->cost = fmax((double)plan->packed_size / bytes_per_s, 2 * rows * p->c * p->k / rate);
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    if (!batch) return 0;
    const struct product_division by = product_divide(plan, batch, 1);
    return by.row_parts * by.panel_parts;
}

/* Packs the inputs [begin, end) of a panel with n outputs, at most a cache line of each output's row: other rows may displace it. */
static void pack_line(const struct dnn_problem *p, const float *weight, int64_t n, int64_t width,
                      int64_t begin, int64_t end, float *to) {
    for (int64_t j = 0; j < n; j++, weight += p->c)
        for (int64_t i = begin; i < end; i++) to[i * width + j] = weight[i];
    for (int64_t j = n; j < width; j++)
        for (int64_t i = begin; i < end; i++) to[i * width + j] = 0;
}

/* Pack task: a panel, all its parts. */
static void pack(const struct dnn_plan *plan, const float *weight, float *packed, int64_t task) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t whole = panel_width(plan), step = plan->kernels->step, line = 16;
    const int64_t n = min_i64(whole, p->k - task * whole), width = round_up(n, p->lanes);
    weight += task * whole * p->c;
    for (int64_t c = 0; c < p->c; c += PRODUCT_DEPTH) {
        const int64_t depth = min_i64(PRODUCT_DEPTH, p->c - c), stored = round_up(depth, step);
        float *to = packed + c * round_up(p->k, p->lanes) + task * stored * whole;
        for (int64_t i = 0; i < depth; i += line)
            pack_line(p, weight + c, n, width, i, min_i64(i + line, depth), to);
        memset(to + depth * width, 0, (size_t)((stored - depth) * width) * sizeof *to);
    }
}

DNN_RUN(product)

const struct dnn_impl dnn_product = {.name = "product",
                                     .refuse = dnn_refuse_linear,
                                     .plan = make_plan,
                                     .pack = pack,
                                     .n_tasks = n_tasks,
                                     .run = run_product};

/* ---- Matmuls ---- */

/*
 * As `estimate`, for n products: to copy the rows of x for a task costs three quarters of a panel (measured: 12% of a task of 6
 * panels), to pack a panel of b as much of a tile. A quarter of a round is lost at the end, when some threads have no more tasks.
 */
static int64_t estimate_products(const struct product_division *by, int64_t panels, int64_t n,
                                 int64_t threads) {
    const int64_t rounds = ceil_div(n * by->row_parts * by->panel_parts, threads);
    const int64_t tiles = ceil_div(by->tiles, by->row_parts);
    const int64_t part = ceil_div(panels, by->panel_parts);
    return (4 * rounds + 1) * (4 * tiles * part + 3 * tiles + 3 * part + 2);
}

/* The division of each of n products: the cheapest one of those that keep a task's panels of b in scratch. */
static struct product_division divide_products(const struct dnn_plan *plan, int64_t rows,
                                               int64_t n) {
    static const int counts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
    const int64_t panels = plan->param[PRODUCT_PANELS], threads = plan->problem.threads;
    const int64_t least = ceil_div(panels, most_packed(plan));
    struct product_division by = {count_tiles(plan, rows), 1, least}, best = by;
    int64_t cost = estimate_products(&by, panels, n, threads);
    for (size_t r = 0; r < COUNT(counts) && counts[r] <= by.tiles && n < 8 * threads; r++)
        for (size_t k = 0; k < COUNT(counts) && counts[k] * least <= panels; k++) {
            by.row_parts = counts[r], by.panel_parts = counts[k] * least;
            const int64_t other = estimate_products(&by, panels, n, threads);
            if (other < cost) cost = other, best = by;
        }
    return best;
}

struct product_matrices product_count(const struct dnn_plan *plan, int64_t batch) {
    const struct dnn_problem *p = &plan->problem;
    struct product_matrices of = {.n = 1, .rows = batch};
    while (of.n_dims < DNN_MAX_DIMS && p->matrix[DNN_DIMS + of.n_dims * DNN_DIM_FIELDS])
        of.n_dims++;
    if (of.n_dims) of.rows = p->matrix[DNN_ROWS], of.n = batch / of.rows;
    of.by = p->packs_b ? product_divide(plan, of.rows, of.n) : divide_products(plan, of.rows, of.n);
    of.tasks = of.n * of.by.row_parts * of.by.panel_parts;
    if (!p->packs_b) of.tasks = min_i64(of.tasks, max_i64(1, batch * p->k * p->c / TASK_PRODUCTS));
    return of;
}

static const char *refuse_matmul(const struct dnn_problem *p) {
    return p->kind != DNN_MATMUL ? "not a matmul" : NULL;
}

static void plan_matmul(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const double products = 2.0 * (double)max_i64(1, p->batch_hint) * p->c * p->k;
    const int64_t depth = round_up(min_i64(PRODUCT_DEPTH, p->c), plan->kernels->step);
    set_parts(plan);
    const int64_t packed =
        min_i64(count_panels(plan), most_packed(plan)) * panel_width(plan) * depth;
    plan->packed_size = p->packs_b ? packed_size(plan) : 0;
    plan->n_pack_tasks = p->packs_b ? count_panels(plan) : 0;
    plan->scratch_size = PRODUCT_MAX_ROWS * PRODUCT_STRIDE * sizeof(float);
    if (!p->packs_b) plan->scratch_size += (size_t)packed * sizeof(float);
    plan->cost = products / (efficiency * dnn_flops_per_s(plan->kernels) * p->threads);
}

static int64_t n_matmul_tasks(const struct dnn_plan *plan, int64_t batch) {
    return batch && plan->problem.k ? product_count(plan, batch).tasks : 0;
}

static void pack_matmul(const struct dnn_plan *plan, const float *b, float *packed, int64_t task) {
    plan->kernels->pack_matmul(plan, b, packed, task);
}

DNN_RUN(matmul)

const struct dnn_impl dnn_matmul = {.name = "matmul",
                                    .refuse = refuse_matmul,
                                    .plan = plan_matmul,
                                    .pack = pack_matmul,
                                    .n_tasks = n_matmul_tasks,
                                    .run = run_matmul};

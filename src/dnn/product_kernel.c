/*
 * Products of many rows: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_product, on a range of tasks -> run_part -> find_rows, run_panels -> multiply_tile (product_tile.h)
 *
 * product.h explains parts, panels and tiles.
 *
 * Invariant: it accesses nothing outside the tensors, except by prefetch.
 */
#include "dnn/product_copy.h"
#include "dnn/product_tile.h"

#define AHEAD 4 /* tiles of a task that prefetch */

/* ---- Parts ---- */

/* One product, and the tiles and panels of it that are computed next: rows of tiles [tile, tile_end) of `tiles`. */
struct task {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    const float *x, *residual; /* of the product's first row */
    float *y;
    int64_t x_row, x_column, y_row, residual_row; /* strides */
    int64_t rows, first; /* of the product; first: its first row among those of the call */
    int64_t tiles, tile, tile_end, panel, panel_end;
    float *block;      /* for copies of x */
    const float *part; /* the tiles' rows of x, of the current part; their stride */
    int64_t part_stride;
};

/* The first row of tile i. */
static inline int64_t first_row(const struct task *task, int64_t i) {
    return dnn_split(task->rows, i, task->tiles);
}

/*
 * Is x read in place? Else its rows are copied to a block:
 * - columns that are not dense
 * - if too many rows of a tile share a set of L1: of 64 sets of 8 lines in most processors, of which weights need one
 * - short rows for many panels. A tile waits for each line of them, as they end before the processor prefetches.
 */
static bool reads_in_place(const struct task *task, int64_t depth) {
    const int64_t bytes = task->x_row * (int64_t)sizeof(float), sets = 4096, ways = 8;
    const int64_t distance = min_i64(bytes & -bytes, sets); /* of the nearest two sets */
    if (task->x_column != 1 || depth % STEP || PRODUCT_VALUES * distance > (ways - 1) * sets)
        return false;
    return task->plan->param[PRODUCT_PARTS] > 1 || task->panel_end - task->panel <= PRODUCT_NARROW;
}

/* Sets the tiles' rows of x, of `depth` inputs: in place, or copied. Inputs up to a multiple of STEP become zeros. */
static void find_rows(struct task *task, int64_t c, int64_t depth) {
    const int64_t row = first_row(task, task->tile), end = first_row(task, task->tile_end);
    const float *x = task->x + row * task->x_row + c * task->x_column;
    task->part = x, task->part_stride = task->x_row;
    if (reads_in_place(task, depth)) return;
    product_copy(x, task->x_row, task->x_column, end - row, depth, task->block, PRODUCT_STRIDE,
                 round_up(depth, STEP));
    task->part = task->block, task->part_stride = PRODUCT_STRIDE;
}

/*
 * The task's first tiles prefetch the next panel, each the same part of it, several lines at a time from places far apart: evenly in time
 * they delay loads the least. Panels that the task has packed are in L2 already.
 */
static inline void set_ahead(const struct task *task, struct tile *tile, int64_t i) {
    const int64_t tiles = min_i64(AHEAD, task->tile_end - task->tile);
    const int64_t lines = ceil_div(GROUP_LINES, tiles), first = i * lines;
    const bool is_in_cache = !task->plan->packed_size;
    tile->n_ahead = is_in_cache ? 0 : max_i64(0, min_i64(lines, GROUP_LINES - first));
    tile->ahead = tile->weights + tile->panel + first * tile->run;
}

/* Computes all tiles of the task for one panel, or for WIDE(rows) of them. */
static void run_panels(const struct task *task, struct tile *tile, int64_t panel, bool is_wide) {
    const float *bias = task->call->bias;
    const int64_t k = panel * WIDTH, row = first_row(task, task->tile);
    tile->outputs = task->plan->problem.k - k;
    tile->bias = bias ? bias + k : NULL;
    for (int64_t i = task->tile; i < task->tile_end; i++) {
        const int64_t n = first_row(task, i), rows = first_row(task, i + 1) - n;
        tile->x = task->part + (n - row) * task->part_stride;
        tile->y = task->y + n * task->y_row + k;
        if (task->residual) tile->residual = task->residual + n * task->residual_row + k;
        set_ahead(task, tile, i - task->tile);
        if (is_wide) wide[rows](tile);
        else multiply[rows][min_i64(ceil_div(tile->outputs, LANES), PRODUCT_VECTORS) - 1](tile);
    }
}

/*
 * Are the rows of y written past the caches? If y is larger than they are, and written once: then no line of it is read before it is
 * written. The gradient of 411 MB of a linear layer of VGG takes a third of the time.
 */
static bool streams(const struct task *task) {
    const struct dnn_plan *plan = task->plan;
    return task->rows * plan->problem.k >= PRODUCT_STREAMED && plan->param[PRODUCT_PARTS] == 1 &&
           !task->residual && !task->call->epilogue && task->y_row % LANES == 0 &&
           (uintptr_t)task->y % sizeof(vec) == 0;
}

/* Computes part `part` of the inputs. `weights`: its packed panels from the task's first one on. */
static void run_part(struct task *task, int64_t part, const float *weights) {
    const struct dnn_plan *plan = task->plan;
    const int64_t c = part * PRODUCT_DEPTH, depth = min_i64(PRODUCT_DEPTH, plan->problem.c - c);
    const int64_t rows = first_row(task, task->tile_end) - first_row(task, task->tile);
    struct tile tile = {.depth = round_up(depth, STEP),
                        .panel = round_up(depth, STEP) * WIDTH,
                        .run = depth / (GROUP * STEP) * LINE,
                        .y_stride = task->y_row,
                        .residual_stride = task->residual_row,
                        .is_first = part == 0,
                        .is_last = part + 1 == plan->param[PRODUCT_PARTS],
                        .streams = streams(task),
                        .problem = &plan->problem};
    find_rows(task, c, depth);
    tile.x_stride = task->part_stride;
    for (int64_t panel = task->panel; panel < task->panel_end;) {
        const bool is_wide =
            rows <= PRODUCT_FEW && panel + WIDE(rows) <= task->panel_end &&
            (WIDE(rows) == 1 || plan->problem.k > (panel + WIDE(rows)) * WIDTH - LANES);
        tile.weights = weights + (panel - task->panel) * tile.panel;
        run_panels(task, &tile, panel, is_wide);
        panel += is_wide ? WIDE(rows) : 1;
    }
    if (tile.streams) simd_fence();
}

/* Calls the epilogue for all rows of the tiles [tile, tile_end). */
static void finish_rows(const struct task *task) {
    const struct dnn_call *call = task->call;
    const int64_t k = task->panel * WIDTH, end = first_row(task, task->tile_end);
    const int64_t outputs = min_i64(task->panel_end * WIDTH, task->plan->problem.k) - k;
    if (!call->epilogue) return;
    for (int64_t n = first_row(task, task->tile); n < end; n++)
        call->epilogue(call->epilogue_user, task->first + n, 0, k, (int)outputs);
}

/* ---- Linear layers ---- */

/* Sets the tiles and panels of part i of a division. */
static void set_range(struct task *task, const struct product_division *by, int64_t i) {
    const int64_t rows = i / by->panel_parts, part = i % by->panel_parts;
    const int64_t panels = task->plan->param[PRODUCT_PANELS];
    task->tile = dnn_split(by->tiles, rows, by->row_parts);
    task->tile_end = dnn_split(by->tiles, rows + 1, by->row_parts);
    task->panel = dnn_split(panels, part, by->panel_parts);
    task->panel_end = dnn_split(panels, part + 1, by->panel_parts);
}

/* Where a packed weight has its part `part` of a panel. */
static int64_t find_panel(const struct dnn_plan *plan, int64_t part, int64_t panel) {
    const int64_t c = part * PRODUCT_DEPTH, depth = min_i64(PRODUCT_DEPTH, plan->problem.c - c);
    return c * round_up(plan->problem.k, LANES) + panel * round_up(depth, STEP) * WIDTH;
}

/* Computes the tiles and panels of the task, which are packed. */
static void run_packed(struct task *task) {
    const struct dnn_plan *plan = task->plan;
    for (int64_t part = 0; part < plan->param[PRODUCT_PARTS]; part++)
        run_part(task, part, task->call->packed + find_panel(plan, part, task->panel));
    finish_rows(task);
}

/* All rows of a call. The strides of x and y are missing. */
static struct task make_task(const struct dnn_plan *plan, const struct dnn_call *call,
                             void *scratch) {
    return (struct task){.plan = plan,
                         .call = call,
                         .x = call->x,
                         .residual = call->residual,
                         .y = call->y,
                         .residual_row = call->residual_stride,
                         .rows = call->batch,
                         .block = scratch};
}

dnn_run_fn ISA_NAME(dnn_run_product);
void ISA_NAME(dnn_run_product)(const struct dnn_plan *plan, const struct dnn_call *call,
                               void *scratch, int64_t begin, int64_t end) {
    struct task task = make_task(plan, call, scratch);
    const struct product_division by = product_divide(plan, task.rows, 1);
    task.x_row = call->x_stride, task.x_column = 1, task.y_row = call->y_stride;
    task.tiles = by.tiles;
    for (int64_t i = begin; i < end; i++) {
        set_range(&task, &by, i);
        run_packed(&task);
    }
}

/* ---- Matmuls ---- */

/* Moves to product i of the call: the position in each dim of products, last one fastest. Returns its b. */
static const float *find_product(struct task *task, const struct product_matrices *of, int64_t i) {
    const int64_t *matrix = task->plan->problem.matrix;
    const float *b = task->call->weight;
    task->x = task->call->x, task->y = task->call->y;
    task->first = i * of->rows;
    task->residual = task->call->residual;
    if (task->residual) task->residual += task->first * task->residual_row;
    for (int d = of->n_dims; d-- > 0;) {
        const int64_t *dim = matrix + DNN_DIMS + d * DNN_DIM_FIELDS;
        const int64_t at = d ? i % dim[DNN_DIM_SIZE] : i;
        if (d) i /= dim[DNN_DIM_SIZE];
        task->x += at * dim[DNN_DIM_A], b += at * dim[DNN_DIM_B], task->y += at * dim[DNN_DIM_Y];
    }
    return b;
}

/* Packs part `part` of a panel of b. Returns the end. */
static float *pack_panel(const struct dnn_problem *p, const float *b, int64_t part, int64_t panel,
                         float *to) {
    const int64_t row = p->matrix[DNN_B_ROW], column = p->matrix[DNN_B_COLUMN];
    const int64_t c = part * PRODUCT_DEPTH, depth = min_i64(PRODUCT_DEPTH, p->c - c);
    const int64_t k = panel * WIDTH, outputs = min_i64(WIDTH, p->k - k);
    const int64_t width = round_up(outputs, LANES), zeros = (round_up(depth, STEP) - depth) * width;
    product_copy(b + c * row + k * column, row, column, depth, outputs, to, width, width);
    memset(to + depth * width, 0, (size_t)zeros * sizeof *to);
    return to + depth * width + zeros;
}

/* Packs the task's panels of one part of b. */
static void pack_part(const struct task *task, const float *b, int64_t part, float *to) {
    for (int64_t panel = task->panel; panel < task->panel_end; panel++)
        to = pack_panel(&task->plan->problem, b, part, panel, to);
}

dnn_pack_fn ISA_NAME(dnn_pack_matmul);
void ISA_NAME(dnn_pack_matmul)(const struct dnn_plan *plan, const float *b, float *packed,
                               int64_t panel) {
    for (int64_t part = 0; part < plan->param[PRODUCT_PARTS]; part++)
        pack_panel(&plan->problem, b, part, panel, packed + find_panel(plan, part, panel));
}

/* Computes the tiles and panels of the task: b is packed once per part, for all rows; x is copied in blocks of rows. */
static void run_matmul(struct task *task, const float *b, float *packed) {
    const int64_t tile = task->tile, end = task->tile_end, most = PRODUCT_MAX_ROWS / PRODUCT_VALUES;
    const int64_t parts = task->plan->param[PRODUCT_PARTS], blocks = ceil_div(end - tile, most);
    for (int64_t part = 0; part < parts; part++) {
        pack_part(task, b, part, packed);
        for (int64_t i = 0; i < blocks; i++) {
            task->tile = tile + dnn_split(end - tile, i, blocks);
            task->tile_end = tile + dnn_split(end - tile, i + 1, blocks);
            run_part(task, part, packed);
            if (part + 1 == parts) finish_rows(task);
        }
    }
}

dnn_run_fn ISA_NAME(dnn_run_matmul);
void ISA_NAME(dnn_run_matmul)(const struct dnn_plan *plan, const struct dnn_call *call,
                              void *scratch, int64_t begin, int64_t end) {
    const int64_t *matrix = plan->problem.matrix;
    struct task task = make_task(plan, call, scratch);
    task.x_row = matrix[DNN_A_ROW], task.x_column = matrix[DNN_A_COLUMN];
    task.y_row = matrix[DNN_Y_ROW];
    const struct product_matrices of = product_count(plan, call->batch);
    const int64_t in_product = of.by.row_parts * of.by.panel_parts, n = of.n * in_product;
    task.rows = of.rows, task.tiles = of.by.tiles;
    for (int64_t i = dnn_split(n, begin, of.tasks); i < dnn_split(n, end, of.tasks); i++) {
        const float *b = find_product(&task, &of, i / in_product);
        set_range(&task, &of.by, i % in_product);
        if (plan->problem.packs_b) run_packed(&task);
        else run_matmul(&task, b, task.block + PRODUCT_MAX_ROWS * PRODUCT_STRIDE);
    }
}

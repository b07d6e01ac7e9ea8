/*
 * Products of many rows: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_product, on a range of tasks -> run_part -> find_rows, run_panels -> multiply_tile
 *
 * product.h explains parts, panels and tiles. A tile of n rows loads PRODUCT_VECTORS vectors of weights and n values of x per
 * input. A few rows read each weight once and compute little with it, so memory or a far cache limits them: their tile
 * has no prefetches, as the processor's own are faster along a panel (50 GB/s from memory instead of 36 to 40).
 *
 * Invariant: it accesses nothing outside the tensors, except by prefetch.
 */
#include "dnn/product.h"
#include "dnn/product_copy.h"
#include "dnn/simd.h"

#define WIDTH (PRODUCT_VECTORS * LANES) /* outputs of a whole panel */
/* A loop's iteration multiplies GROUP * STEP inputs. Where STEP is 1, this saves additions to pointers. */
#define GROUP (STEP > 1 ? 1 : 4)
/* Cache lines of a group's weights. */
#define GROUP_LINES (GROUP * STEP * WIDTH / LINE)
#define AHEAD 4 /* tiles of a task that prefetch */
#define CEIL_5(n) (((n) + 4) / 5)
/* The compiler knows nothing about the integer variable x from here on. */
#define HIDE(x) __asm__("" : "+r"(x))

/* Panels of a tile of up to PRODUCT_FEW rows. One panel at a time is read the fastest. But if its two vectors are short, two sums
 * per row do not hide the latency of an addition: then several panels, whose sums and one weight must fit into the registers. */
#if LANES > 4
#define WIDE(rows) 1
#elif REGISTERS == 32
#define WIDE(rows) PRODUCT_WIDE
#else
#define WIDE(rows) ((rows) == 1 ? PRODUCT_WIDE : 2)
#endif

/* One tile: its rows of x, a part of the inputs, and one panel, or WIDE(rows). */
struct tile {
    const float *x, *weights;
    int64_t x_stride; /* of x's rows */
    int64_t depth;    /* inputs */
    int64_t panel;    /* floats from one panel to the next */
    /* Weights that are prefetched: n_ahead lines for each group of inputs, which are `run` floats apart. */
    const float *ahead;
    int64_t n_ahead, run;
    int64_t outputs; /* of y from the tile's first one on */
    float *y;
    const float *bias, *residual; /* NULL: none */
    int64_t y_stride, residual_stride;
    bool is_first, is_last; /* of the parts of the inputs */
    const struct dnn_problem *problem;
};

/* ---- The end of a tile ---- */

/*
 * Stores the sums of one vector of outputs, `k` behind the tile's first. From the second part on it adds y, which holds the
 * sums of the earlier parts; after the last part it adds bias and residual, and applies the activation. n < LANES: the
 * outputs that exist. The sums of row r are sum[r * step].
 */
INLINE void finish_vector(int rows, int step, const struct tile *tile, int64_t k, int64_t n,
                          vec *sum) {
    const bool is_whole = n == LANES, is_last = tile->is_last;
    const enum dnn_act act = is_last ? tile->problem->act : DNN_ACT_NONE;
    const float *bias = is_last ? tile->bias : NULL, *residual = is_last ? tile->residual : NULL;
    const int64_t y_stride = tile->y_stride, residual_stride = tile->residual_stride;
    float *y = tile->y + k;
    if (!tile->is_first) {
        UNROLL
        for (int r = 0; r < rows; r++)
            sum[r * step] += is_whole ? vec_load(y + r * y_stride) : load_some(y + r * y_stride, n);
    }
    if (bias) {
        const vec v = is_whole ? vec_load(bias + k) : load_some(bias + k, n);
        UNROLL
        for (int r = 0; r < rows; r++) sum[r * step] += v;
    }
    if (residual) {
        UNROLL
        for (int r = 0; r < rows; r++) {
            const float *from = residual + k + r * residual_stride;
            sum[r * step] += is_whole ? vec_load(from) : load_some(from, n);
        }
    }
    if (act != DNN_ACT_NONE) {
        const vec low = vec_set(act == DNN_ACT_CLAMP ? tile->problem->act_min : 0);
        UNROLL
        for (int r = 0; r < rows; r++) sum[r * step] = vec_max(sum[r * step], low);
    }
    if (act == DNN_ACT_CLAMP) {
        const vec high = vec_set(tile->problem->act_max);
        UNROLL
        for (int r = 0; r < rows; r++) sum[r * step] = vec_min(sum[r * step], high);
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        if (is_whole) vec_store(y + r * y_stride, sum[r * step]);
        else store_some(y + r * y_stride, sum[r * step], n);
}

/* The last outputs of a row, which do not fill a vector: a loop, as it would be long code in each of the tiles without masks. */
static __attribute__((noinline)) void finish_some(int rows, int step, const struct tile *tile,
                                                  int64_t k, int64_t n, vec *sum) {
    struct tile row = *tile;
    for (int r = 0; r < rows; r++) {
        finish_vector(1, 1, &row, k, n, sum + r * step);
        row.y += row.y_stride;
        if (row.residual) row.residual += row.residual_stride;
    }
}

/* Stores all vectors of a tile. */
INLINE void finish_tile(int rows, int vectors, const struct tile *tile, vec *sum) {
    UNROLL
    for (int v = 0; v < vectors; v++) {
        const int64_t k = (int64_t)v * LANES, n = tile->outputs - k;
        if (n >= LANES) {
            finish_vector(rows, vectors, tile, k, LANES, sum + v);
        } else if (n > 0 && HAS_MASKS) {
            finish_vector(rows, vectors, tile, k, n, sum + v);
        } else if (n > 0) {
            vec some[PRODUCT_VALUES];
            UNROLL
            for (int r = 0; r < rows; r++) some[r] = sum[r * vectors + v];
            finish_some(rows, 1, tile, k, n, some);
        }
    }
}

/* ---- Tiles ---- */

/* The lines of y that the tile will write come into L2 during its products; stores that miss L2 would hold up the next tile. Not into
 * L1: rows whose stride is a power of two would displace x there. A row at a time: all rows at once would fill the queue of misses. */
INLINE void fetch_row(int vectors, const float *y) {
    for (int i = 0; i < vectors * LANES; i += LINE) __builtin_prefetch(y + i, 0, 2);
}

/* Every fifth row of x has a pointer; the rows behind it are 1, 2, 3 and 4 strides away, which a load's address can have. */
struct rows {
    const char *row[CEIL_5(PRODUCT_VALUES)];
    int64_t stride, three_strides; /* bytes */
};

INLINE struct rows begin_rows(int rows, const struct tile *tile) {
    struct rows x;
    x.stride = tile->x_stride * (int64_t)sizeof(float);
    x.three_strides = 3 * x.stride;
    UNROLL
    for (int r = 0; r < rows; r += 5) x.row[r / 5] = (const char *)tile->x + r * x.stride;
    /* Else the compiler would use one pointer per row, which are more than there are registers. */
    HIDE(x.stride);
    HIDE(x.three_strides);
    return x;
}

/* sum = 0, for rows x PRODUCT_VECTORS sums. One loop over all would be too long to be unrolled, so the sums would not be in registers. */
INLINE void clear(int rows, int vectors, vec *sum) {
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) sum[r * vectors + v] = (vec){0};
    }
}

/* Multiplies the next n * STEP inputs. */
INLINE void multiply_steps(int n, int rows, int vectors, struct rows *x, const float *weights,
                           vec *sum) {
    UNROLL
    for (int i = 0; i < n * STEP; i += STEP) {
        const float *at[PRODUCT_VALUES];
        UNROLL
        for (int r = 0; r < rows; r++)
            at[r] = i + (const float *)(x->row[r / 5] +
                                        (r % 5 == 3 ? x->three_strides : r % 5 * x->stride));
        simd_multiply_at(STEP, rows, vectors, vectors, at, weights + i * vectors * LANES, sum);
    }
    UNROLL
    for (int r = 0; r < rows; r += 5) x->row[r / 5] += n * STEP * sizeof(float);
}

/* When this is inlined, the number of rows is a constant: `sum` stays in registers. */
INLINE void multiply_tile(int rows, int vectors, const struct tile *tile) {
    struct rows x = begin_rows(rows, tile);
    const float *weights = tile->weights;
    const float *ahead = tile->ahead, *y = tile->y;
    const int64_t n_ahead = tile->n_ahead, run = tile->run, y_stride = tile->y_stride;
    int left = rows; /* of y, to be fetched */
    int64_t c = 0;
    vec sum[PRODUCT_VALUES * PRODUCT_VECTORS];
    clear(rows, vectors, sum);
    for (; c + GROUP * STEP <= tile->depth; c += GROUP * STEP) {
        for (int64_t i = 0; i < n_ahead; i++) __builtin_prefetch(ahead + i * run, 0, 2);
        ahead += LINE;
        if (left > 0) {
            fetch_row(vectors, y);
            y += y_stride, left--;
        }
        multiply_steps(GROUP, rows, vectors, &x, weights, sum);
        weights += GROUP * STEP * vectors * LANES;
    }
    for (; c < tile->depth; c += STEP, weights += STEP * vectors * LANES)
        multiply_steps(1, rows, vectors, &x, weights, sum);
    finish_tile(rows, vectors, tile, sum);
}

/* A few rows, and the `vectors` of a panel, or of several whole ones. */
INLINE void multiply_some(int rows, int vectors, const struct tile *tile) {
    const float *x = tile->x, *weights = tile->weights;
    const int64_t panel = tile->panel, x_stride = tile->x_stride;
    const int of_panel = vectors < PRODUCT_VECTORS ? vectors : PRODUCT_VECTORS;
    vec sum[PRODUCT_FEW * PRODUCT_VECTORS * PRODUCT_WIDE];
    clear(rows, vectors, sum);
    for (int64_t c = 0; c < tile->depth; c++, x++, weights += of_panel * LANES) {
        vec value[PRODUCT_FEW];
        UNROLL
        for (int r = 0; r < rows; r++) value[r] = vec_set(x[r * x_stride]);
        UNROLL
        for (int v = 0; v < vectors; v++) {
            const vec w = vec_load(weights + v / of_panel * panel + v % of_panel * LANES);
            UNROLL
            for (int r = 0; r < rows; r++) sum[r * vectors + v] += value[r] * w;
        }
    }
    finish_tile(rows, vectors, tile, sum);
}

/* WIDE(rows) whole panels, or the last one. */
INLINE void multiply_wide(int rows, const struct tile *tile) {
    if (tile->outputs > WIDTH - LANES) multiply_some(rows, PRODUCT_VECTORS * WIDE(rows), tile);
    else if (tile->outputs > LANES) multiply_some(rows, 2, tile);
    else multiply_some(rows, 1, tile);
}

typedef void multiply_fn(const struct tile *tile);

#define MULTIPLY_ONE(rows, vectors)                                 \
    static void multiply##rows##_##vectors(const struct tile *tile) { \
        multiply_tile(rows, vectors, tile);                         \
    }
#if PRODUCT_VECTORS == 3
#define MULTIPLY(rows) MULTIPLY_ONE(rows, 1) MULTIPLY_ONE(rows, 2) MULTIPLY_ONE(rows, 3)
#define ENTRY(rows)    {multiply##rows##_1, multiply##rows##_2, multiply##rows##_3},
#else
#define MULTIPLY(rows) MULTIPLY_ONE(rows, 1) MULTIPLY_ONE(rows, 2)
#define ENTRY(rows)    {multiply##rows##_1, multiply##rows##_2},
#endif
#define MULTIPLY_WIDE(rows) \
    static void wide##rows(const struct tile *tile) { multiply_wide(rows, tile); }
SIMD_UP_TO(PRODUCT_VALUES, MULTIPLY)
SIMD_UP_TO(PRODUCT_FEW, MULTIPLY_WIDE)

/* multiply[rows][vectors - 1], wide[rows] */
#define ENTRY_WIDE(rows) wide##rows,
static multiply_fn *const multiply[PRODUCT_VALUES + 1][PRODUCT_VECTORS] = {
    {NULL}, SIMD_UP_TO(PRODUCT_VALUES, ENTRY)};
static multiply_fn *const wide[PRODUCT_FEW + 1] = {NULL, SIMD_UP_TO(PRODUCT_FEW, ENTRY_WIDE)};

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

/* Computes tasks [begin, end) of a product whose panels are packed. */
static void run_packed(struct task *task, int64_t begin, int64_t end) {
    const struct dnn_plan *plan = task->plan;
    const struct product_division by = product_divide(plan, task->rows);
    task->tiles = by.tiles;
    for (int64_t i = begin; i < end; i++) {
        set_range(task, &by, i);
        for (int64_t part = 0; part < plan->param[PRODUCT_PARTS]; part++)
            run_part(task, part, task->call->packed + find_panel(plan, part, task->panel));
        finish_rows(task);
    }
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
    task.x_row = call->x_stride, task.x_column = 1, task.y_row = call->y_stride;
    run_packed(&task, begin, end);
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
    if (plan->packed_size) {
        run_packed(&task, begin, end);
        return;
    }
    const struct product_matrices of = product_count(plan, call->batch);
    const int64_t in_product = of.by.row_parts * of.by.panel_parts, n = of.n * in_product;
    task.rows = of.rows, task.tiles = of.by.tiles;
    for (int64_t i = dnn_split(n, begin, of.tasks); i < dnn_split(n, end, of.tasks); i++) {
        const float *b = find_product(&task, &of, i / in_product);
        set_range(&task, &of.by, i % in_product);
        run_matmul(&task, b, task.block + PRODUCT_MAX_ROWS * PRODUCT_STRIDE);
    }
}

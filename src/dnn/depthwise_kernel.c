/*
 * Depthwise convolutions of plain images: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_depthwise, on a range of tasks -> fill_plane, run_rows -> run_tile -> multiply
 *
 * depthwise.h explains panels, tiles and runs. The last tile of a row, and the last rows of a task, begin earlier instead of being
 * narrower, and compute some points of y again: to the same bits.
 *
 * Invariant: it accesses nothing outside x, y, the weight and the bias.
 */
#include "dnn/depthwise.h"
#include "dnn/simd_transpose.h"

#include <math.h>

/* Rows of a tile of one vector, if there are so many: its sums, the weights of a run and a vector of x must fit into the registers. The
 * more rows, the more products per vector of x that is loaded, which mostly is in two cache lines. */
#if REGISTERS == 32
#define TALL 8
#else
#define TALL 4
#endif
/* Vectors of a tile of one row. */
#define ROW_WIDE 4

struct tile {
    const float *x, *weight; /* of the first row of the tile and of the run */
    const int64_t *offset;   /* floats to each kernel column */
    int64_t
        x_row; /* floats of the panel from the row of one kernel row of a run to that of the next */
    int64_t weight_row, n_columns;
    float *y, bias;
    int64_t y_row;          /* floats from one row of the tile to the next */
    int64_t n;              /* pixels of a row that exist */
    bool is_first, is_last; /* of the runs */
    const struct dnn_problem *problem;
};

/* Adds the bias, applies the activation, and stores the tile: whole vectors, or a part of one. */
INLINE void finish(int rows, int vectors, const struct tile *tile, vec sum[TALL][ROW_WIDE]) {
    const struct dnn_problem *p = tile->problem;
    const bool is_clamp = p->act == DNN_ACT_CLAMP, is_act = p->act != DNN_ACT_NONE;
    const vec low = vec_set(is_clamp ? p->act_min : is_act ? 0 : -INFINITY);
    const vec high = vec_set(is_clamp ? p->act_max : INFINITY), bias = vec_set(tile->bias);
    float *y = tile->y;
    UNROLL
    for (int i = 0; i < rows; i++, y += tile->y_row) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            const vec value = vec_min(vec_max(sum[i][v] + bias, low), high);
            if (vectors > 1 || tile->n >= LANES) vec_store(y + v * LANES, value);
            else store_some(y, value, tile->n);
        }
    }
}

/* Adds the products of a run of n kernel rows to the sums. Row q of the panel is that of kernel row j for row q - j of the tile. Between
 * two runs, `sums` holds the sums. */
INLINE void multiply(int rows, int vectors, int n, const struct tile *tile, vec *sums) {
    vec sum[TALL][ROW_WIDE];
    UNROLL
    for (int i = 0; i < rows * vectors; i++)
        sum[i / vectors][i % vectors] = tile->is_first ? (vec){0} : sums[i];
    for (int64_t s = 0; s < tile->n_columns; s++) {
        const float *x = tile->x + tile->offset[s];
        vec w[DEPTHWISE_RUN];
        UNROLL
        for (int j = 0; j < n; j++) w[j] = vec_set(tile->weight[j * tile->weight_row + s]);
        UNROLL
        for (int q = 0; q < rows + n - 1; q++, x += tile->x_row) {
            UNROLL
            for (int v = 0; v < vectors; v++) {
                const vec value = vec_keep(vec_load(x + v * LANES));
                UNROLL
                for (int j = 0; j < n; j++)
                    if (q - j >= 0 && q - j < rows) sum[q - j][v] += value * w[j];
            }
        }
    }
    if (tile->is_last) {
        finish(rows, vectors, tile, sum);
        return;
    }
    UNROLL
    for (int i = 0; i < rows * vectors; i++) sums[i] = sum[i / vectors][i % vectors];
}

typedef void multiply_fn(const struct tile *tile, vec *sums);

#define DEFINE(n)                                                                            \
    static void tall_##n(const struct tile *t, vec *s) { multiply(TALL, 1, n, t, s); }       \
    static void row_##n(const struct tile *t, vec *s) { multiply(1, 1, n, t, s); }           \
    static void wide_##n(const struct tile *t, vec *s) { multiply(1, ROW_WIDE, n, t, s); }
SIMD_UP_TO(7, DEFINE)

/* The shapes of a tile, and the functions by kernel rows. */
enum shape { TALL_TILE, ROW_TILE, WIDE_TILE };
#define ENTRY(n) [TALL_TILE][n] = tall_##n, [ROW_TILE][n] = row_##n, [WIDE_TILE][n] = wide_##n,
static multiply_fn *const runs[3][DEPTHWISE_RUN + 1] = {SIMD_UP_TO(7, ENTRY)};

/* ---- Panel ---- */

/* A task: rows [row, row + n_rows) of a plane of one channel. */
struct work {
    const struct dnn_plan *plan;
    float *panel;
    const int64_t *offset;
    const float *x, *weight; /* of the channel */
    float *y, bias;
    int64_t plane, row, n_rows;
    /* What each tile prefetches: the rows of x behind those of the panel, which the next task reads. Else memory would wait for the
     * products, and the products for memory. */
    const float *ahead;
    int64_t n_ahead; /* lines */
};

static void copy_line(const float *from, float *to, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vec_store(to + i, vec_load(from + i));
    if (i < n) store_some(to + i, load_some(from + i, n - i), n - i);
}

#define EVEN(bit, l) (2 * (l) + (bit))

/* Copies every second value, n in all. Vectors end with the last of them, as the tensor may. */
static void copy_even(const float *from, float *to, int64_t n) {
    int64_t i = 0;
    for (; i + LANES < n; i += LANES) {
        const vec a = vec_load(from + 2 * i), b = vec_load(from + 2 * i + LANES);
        vec_store(to + i, pick_lanes(a, b, ALL_LANES(EVEN, 0)));
    }
    if (i >= n) return;
    const int64_t left = 2 * (n - i) - 1;
    const vec a = load_some(from + 2 * i, min_i64(LANES, left));
    const vec b = left > LANES ? load_some(from + 2 * i + LANES, left - LANES) : (vec){0};
    store_some(to + i, pick_lanes(a, b, ALL_LANES(EVEN, 0)), n - i);
}

#define ODD(bit, l) (2 * (l) + 1 + (bit))

/* Copies a row of the image by two phases: each vector is loaded once for both. There is room for whole vectors, and lanes behind the
 * image are zero. */
INLINE void split_row(const struct dnn_problem *p, int64_t phase, const float *x, float *to) {
    const int64_t parity = p->pl & 1, before = p->pl >> 1, vectors = p->w / (2 * LANES);
    float *even = to + parity * phase + before, *odd = to + (1 - parity) * phase + before + parity;
    for (int64_t i = 0; i < vectors; i++, x += 2 * LANES, even += LANES, odd += LANES) {
        const vec a = vec_load(x), b = vec_load(x + LANES);
        vec_store(even, pick_lanes(a, b, ALL_LANES(EVEN, 0)));
        vec_store(odd, pick_lanes(a, b, ALL_LANES(ODD, 0)));
    }
    const int64_t left = p->w - vectors * 2 * LANES;
    if (!left) return;
    const vec a = left < LANES ? load_some(x, left) : vec_load(x);
    const vec b = left > LANES ? load_some(x + LANES, left - LANES) : (vec){0};
    vec_store(even, pick_lanes(a, b, ALL_LANES(EVEN, 0)));
    vec_store(odd, pick_lanes(a, b, ALL_LANES(ODD, 0)));
}

/* Copies a row of the image. The columns outside of it stay zero. */
static void fill_row(const struct dnn_plan *plan, const float *x, float *to) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t n = plan->param[DEPTHWISE_PHASE];
    if (p->sw == 2 && plan->param[DEPTHWISE_PHASES] == 2) {
        split_row(p, n, x, to);
        return;
    }
    for (int64_t phase = 0; phase < plan->param[DEPTHWISE_PHASES]; phase++, to += n) {
        const int64_t column = phase - p->pl;
        const int64_t begin = column < 0 ? (p->sw == 1 ? -column : ceil_div(-column, p->sw)) : 0;
        const int64_t left = p->w - column;
        const int64_t end = min_i64(n, p->sw == 1 ? left : ceil_div(max_i64(0, left), p->sw));
        const float *from = x + column + begin * p->sw;
        if (p->sw == 1) copy_line(from, to + begin, end - begin);
        else if (p->sw == 2) copy_even(from, to + begin, end - begin);
        else
            for (int64_t i = begin; i < end; i++, from += p->sw) to[i] = *from;
    }
}

/* Plane `q` of those that the task reads; it may lie outside of x. */
static int64_t find_plane(const struct work *work, int64_t q) {
    const struct dnn_problem *p = &work->plan->problem;
    return work->plane * p->sd - p->pd + q * p->dd;
}

/* Fills a plane of the panel, which holds zeros and rows of earlier tasks. If a task has all rows of y, the same rows lie outside of the
 * image. */
static void fill_plane(const struct work *work, int64_t q) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t line = work->plan->param[DEPTHWISE_PHASES] * work->plan->param[DEPTHWISE_PHASE];
    const int64_t n = (work->n_rows - 1) * p->sh + (int64_t)(p->kh - 1) * p->dh + 1;
    const int64_t plane = find_plane(work, q);
    const bool exists = plane >= 0 && plane < work->plan->param[DEPTHWISE_D];
    const float *x = work->x + (exists ? plane : 0) * p->h * p->w;
    float *to = work->panel + q * work->plan->param[DEPTHWISE_PLANE];
    for (int64_t i = 0; i < n; i++, to += line) {
        const int64_t row = work->row * p->sh + i - p->pt;
        if (exists && row >= 0 && row < p->h) fill_row(work->plan, x + row * p->w, to);
        else if (!exists || work->plan->param[DEPTHWISE_CHUNKS] > 1)
            memset(to, 0, (size_t)line * sizeof *to);
    }
}

/* ---- Tiles ---- */

/* Divides the rows of x that the next task reads among the tiles of this one: of the last plane, as it has read the others. */
static void plan_ahead(struct work *work) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t rows = work->n_rows * p->sh, behind = (work->row + work->n_rows) * p->sh;
    const int64_t tiles = ceil_div(work->n_rows, TALL) * ceil_div(p->ow, LANES);
    const int64_t *param = work->plan->param;
    const int64_t last = find_plane(work, param[DEPTHWISE_KD] - 1);
    const int64_t plane = max_i64(0, min_i64(last, param[DEPTHWISE_D] - 1));
    work->ahead = work->x + (plane * p->h + min_i64(behind, p->h)) * p->w;
    work->n_ahead = ceil_div(min_i64(rows, p->h) * p->w, tiles * LINE);
}

/* Adds the products of plane `q` of the kernel to a tile. */
static void run_plane(const struct work *work, int64_t q, int64_t row, int64_t column,
                      enum shape shape, struct tile *tile, vec *sums) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t *param = work->plan->param, step = param[DEPTHWISE_RUN_STEP];
    const int64_t line = param[DEPTHWISE_PHASES] * param[DEPTHWISE_PHASE];
    const float *panel = work->panel + q * param[DEPTHWISE_PLANE] + column;
    const bool is_last = q + 1 == param[DEPTHWISE_KD];
    for (int64_t first = 0; first < step && first < p->kh; first++)
        for (int64_t r = first, n; r < p->kh; r += n * step) {
            n = step == 1 ? p->kh - r : ceil_div(p->kh - r, step);
            n = min_i64(param[DEPTHWISE_MOST], n);
            tile->x = panel + (row * p->sh + r * p->dh) * line;
            tile->weight = work->weight + (q * p->kh + r) * p->kw;
            tile->is_last =
                is_last && r + n * step >= p->kh && (first + 1 == step || first + 1 == p->kh);
            runs[shape][n](tile, sums);
            tile->is_first = false;
        }
}

/* Computes a tile, whose first row is number `row` of the task. */
static void run_tile(struct work *work, int64_t row, int64_t column, enum shape shape) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t *param = work->plan->param, step = param[DEPTHWISE_RUN_STEP];
    const int64_t line = param[DEPTHWISE_PHASES] * param[DEPTHWISE_PHASE];
    struct tile tile = {.offset = work->offset,
                        .x_row = param[DEPTHWISE_ROW_STEP] * p->sh * line,
                        .weight_row = step * p->kw,
                        .n_columns = p->kw,
                        .y = work->y + (work->row + row) * p->ow + column,
                        .bias = work->bias,
                        .y_row = param[DEPTHWISE_ROW_STEP] * p->ow,
                        .n = p->ow - column,
                        .is_first = true,
                        .problem = p};
    vec sums[TALL * ROW_WIDE];
    for (int64_t i = 0; i < work->n_ahead; i++, work->ahead += LINE)
        __builtin_prefetch(work->ahead, 0, 2);
    for (int64_t q = 0; q < param[DEPTHWISE_KD]; q++)
        run_plane(work, q, row, column, shape, &tile, sums);
}

/* Computes one row of tiles. */
static void run_rows(struct work *work, int64_t row, bool tall) {
    const int64_t width = work->plan->problem.ow, most = LANES * ROW_WIDE;
    for (int64_t column = 0, n; column < width; column += n) {
        const bool wide = !tall && width >= most && 2 * (width - column) > most;
        n = wide ? most : LANES;
        column = max_i64(0, min_i64(column, width - n));
        run_tile(work, row, column, tall ? TALL_TILE : wide ? WIDE_TILE : ROW_TILE);
    }
}

/* Rows of a tile are some rows apart, so the task's rows form as many sets. */
static void run_task(struct work *work) {
    const int64_t step = work->plan->param[DEPTHWISE_ROW_STEP];
    for (int64_t first = 0; first < min_i64(step, work->n_rows); first++) {
        const int64_t n = ceil_div(work->n_rows - first, step);
        for (int64_t i = 0, taken; i < n; i += taken) {
            const bool tall = n >= TALL && n - i > 2;
            taken = tall ? TALL : 1;
            i = min_i64(i, n - taken);
            run_rows(work, first + i * step, tall);
        }
    }
}

static void fill_offsets(const struct dnn_plan *plan, int64_t *offset) {
    const struct dnn_problem *p = &plan->problem;
    for (int64_t s = 0; s < p->kw; s++)
        offset[s] = s * p->dw % p->sw * plan->param[DEPTHWISE_PHASE] + s * p->dw / p->sw;
}

dnn_run_fn ISA_NAME(dnn_run_depthwise);
void ISA_NAME(dnn_run_depthwise)(const struct dnn_plan *plan, const struct dnn_call *call,
                                 void *scratch, int64_t begin, int64_t end) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param;
    const int64_t chunks = param[DEPTHWISE_CHUNKS], rows = param[DEPTHWISE_ROWS];
    const int64_t planes = param[DEPTHWISE_OD], plane = (int64_t)p->oh * p->ow;
    const int64_t volume = param[DEPTHWISE_D] * p->h * p->w;
    struct work work = {.plan = plan,
                        .offset = scratch,
                        .panel = (float *)((char *)scratch + plan->param[DEPTHWISE_OFFSETS])};
    fill_offsets(plan, scratch);
    memset(work.panel, 0, plan->scratch_size - (size_t)plan->param[DEPTHWISE_OFFSETS]);
    for (int64_t task = begin; task < end; task++) {
        const int64_t c = task / chunks / planes % p->c, n = task / chunks / planes / p->c;
        work.plane = task / chunks % planes;
        work.row = task % chunks * rows;
        work.n_rows = min_i64(rows, p->oh - work.row);
        work.x = call->x + n * call->x_stride + c * volume;
        work.y = call->y + n * call->y_stride + (c * planes + work.plane) * plane;
        work.weight = call->weight + c * param[DEPTHWISE_KD] * p->kh * p->kw;
        work.bias = call->bias ? call->bias[c] : 0;
        for (int64_t q = 0; q < param[DEPTHWISE_KD]; q++) fill_plane(&work, q);
        plan_ahead(&work);
        run_task(&work);
    }
}

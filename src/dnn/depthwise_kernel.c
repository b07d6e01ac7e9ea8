/*
 * Depthwise convolutions of plain images: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_depthwise, on a range of tasks -> fill_panel, run_rows -> run_tile -> multiply
 *
 * depthwise.h explains panels, tiles and runs. The last tile of a row, and the last rows of a task, begin earlier instead of being
 * narrower, and compute some points of y again: to the same bits.
 *
 * Invariant: it accesses nothing outside x, y, the weight and the bias.
 */
#include "dnn/depthwise.h"
#include "dnn/simd_transpose.h"

#define TALL 4 /* rows of a tile, if there are so many */

/* Vectors of a tile of TALL rows, and of one row. Sums, weights of a run and a vector of x must fit into the registers. */
#if REGISTERS == 32
#define TALL_WIDE 2
#else
#define TALL_WIDE 1
#endif
#define ROW_WIDE 4

struct tile {
    const float *x, *weight; /* of the first row of the tile and of the run */
    const int64_t *offset;   /* floats to each kernel column */
    int64_t x_row;           /* floats of the panel from the row of one kernel row of a run to that of the next */
    int64_t weight_row, n_columns;
};

/* sum[row][vector] += the products of a run of n kernel rows. Row q of the panel is that of kernel row j for row q - j of the tile. */
INLINE void multiply(int rows, int vectors, int n, const struct tile *tile, vec *sums) {
    vec sum[TALL][ROW_WIDE];
    UNROLL
    for (int i = 0; i < rows * vectors; i++) sum[i / vectors][i % vectors] = sums[i];
    for (int64_t s = 0; s < tile->n_columns; s++) {
        const float *x = tile->x + tile->offset[s];
        vec w[DEPTHWISE_RUN];
        UNROLL
        for (int j = 0; j < n; j++) w[j] = vec_set(tile->weight[j * tile->weight_row + s]);
        UNROLL
        for (int q = 0; q < rows + n - 1; q++, x += tile->x_row) {
            UNROLL
            for (int v = 0; v < vectors; v++) {
                const vec value = vec_load(x + v * LANES);
                UNROLL
                for (int j = 0; j < n; j++)
                    if (q - j >= 0 && q - j < rows) sum[q - j][v] += value * w[j];
            }
        }
    }
    UNROLL
    for (int i = 0; i < rows * vectors; i++) sums[i] = sum[i / vectors][i % vectors];
}

typedef void multiply_fn(const struct tile *tile, vec *sums);

#define DEFINE(n)                                                                           \
    static void tall_one_##n(const struct tile *t, vec *s) { multiply(TALL, 1, n, t, s); }  \
    static void tall_wide_##n(const struct tile *t, vec *s) {                               \
        multiply(TALL, TALL_WIDE, n, t, s);                                                 \
    }                                                                                       \
    static void row_one_##n(const struct tile *t, vec *s) { multiply(1, 1, n, t, s); }      \
    static void row_wide_##n(const struct tile *t, vec *s) { multiply(1, ROW_WIDE, n, t, s); }
SIMD_UP_TO(7, DEFINE)

/* runs[tall][wide][kernel rows] */
#define ENTRY(n)                               \
    [0][0][n] = row_one_##n, [0][1][n] = row_wide_##n, [1][0][n] = tall_one_##n, \
    [1][1][n] = tall_wide_##n,
static multiply_fn *const runs[2][2][DEPTHWISE_RUN + 1] = {SIMD_UP_TO(7, ENTRY)};

/* ---- Panel ---- */

/* A task: rows [row, row + n_rows) of one channel. */
struct work {
    const struct dnn_plan *plan;
    float *panel;
    const int64_t *offset;
    const float *x, *weight; /* of the channel */
    float *y, bias;
    int64_t row, n_rows;
};

/* Copies every `step`-th value, n in all. */
static void copy_line(const float *from, float *to, int64_t n, int64_t step) {
    if (step == 1) {
        memcpy(to, from, (size_t)n * sizeof(float));
    } else if (step == 2) { /* a constant step lets the compiler use shuffles */
        for (int64_t i = 0; i < n; i++) to[i] = from[i * 2];
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = from[i * step];
    }
}

/* Writes one row of the panel. x: the row of the image, NULL outside. */
static void fill_row(const struct dnn_plan *plan, const float *x, float *to) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t n = plan->param[DEPTHWISE_PHASE];
    for (int64_t phase = 0; phase < plan->param[DEPTHWISE_PHASES]; phase++, to += n) {
        const int64_t column = phase - p->pl;
        int64_t begin = column < 0 ? ceil_div(-column, p->sw) : 0;
        int64_t end = x && column < p->w ? min_i64(n, ceil_div(p->w - column, p->sw)) : 0;
        begin = min_i64(begin, n), end = max_i64(begin, end);
        memset(to, 0, (size_t)begin * sizeof(float));
        if (begin < end) copy_line(x + column + begin * p->sw, to + begin, end - begin, p->sw);
        memset(to + end, 0, (size_t)(n - end) * sizeof(float));
    }
}

static void fill_panel(const struct work *work) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t line = work->plan->param[DEPTHWISE_PHASES] * work->plan->param[DEPTHWISE_PHASE];
    const int64_t n = (work->n_rows - 1) * p->sh + (int64_t)(p->kh - 1) * p->dh + 1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = work->row * p->sh + i - p->pt;
        const float *x = row >= 0 && row < p->h ? work->x + row * p->w : NULL;
        fill_row(work->plan, x, work->panel + i * line);
    }
}

/* ---- Tiles ---- */

/* Adds the bias, applies the activation, and stores n pixels of one row: whole vectors, or a part of one. */
static void store_row(const struct work *work, vec *sum, float *y, int64_t n) {
    const struct dnn_problem *p = &work->plan->problem;
    for (int64_t i = 0; i < n; i += LANES, sum++) {
        vec v = *sum + work->bias;
        if (p->act) v = vec_max(v, vec_set(p->act == DNN_ACT_CLAMP ? p->act_min : 0));
        if (p->act == DNN_ACT_CLAMP) v = vec_min(v, vec_set(p->act_max));
        if (n - i >= LANES) vec_store(y + i, v);
        else store_some(y + i, v, n - i);
    }
}

/* Computes a tile, whose first row is number `row` of the task. */
static void run_tile(const struct work *work, int64_t row, int64_t column, bool tall, bool wide) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t *param = work->plan->param, step = param[DEPTHWISE_RUN_STEP];
    const int64_t line = param[DEPTHWISE_PHASES] * param[DEPTHWISE_PHASE];
    const int64_t vectors = !wide ? 1 : tall ? TALL_WIDE : ROW_WIDE, rows = tall ? TALL : 1;
    struct tile tile = {.offset = work->offset,
                        .x_row = param[DEPTHWISE_ROW_STEP] * p->sh * line,
                        .weight_row = step * p->kw,
                        .n_columns = p->kw};
    vec sums[TALL * ROW_WIDE];
    for (int64_t i = 0; i < rows * vectors; i++) sums[i] = (vec){0};
    for (int64_t first = 0; first < step; first++)
        for (int64_t r = first, n; r < p->kh; r += n * step) {
            n = min_i64(param[DEPTHWISE_MOST], ceil_div(p->kh - r, step));
            tile.x = work->panel + (row * p->sh + r * p->dh) * line + column;
            tile.weight = work->weight + r * p->kw;
            runs[tall][wide][n](&tile, sums);
        }
    for (int64_t i = 0; i < rows; i++) {
        const int64_t at = work->row + row + i * param[DEPTHWISE_ROW_STEP];
        store_row(work, sums + i * vectors, work->y + at * p->ow + column,
                  min_i64(vectors * LANES, p->ow - column));
    }
}

/* Computes one row of tiles. */
static void run_rows(const struct work *work, int64_t row, bool tall) {
    const int64_t width = work->plan->problem.ow, most = LANES * (tall ? TALL_WIDE : ROW_WIDE);
    for (int64_t column = 0, n; column < width; column += n) {
        const bool wide = width >= most && 2 * (width - column) > most;
        n = wide ? most : LANES;
        column = max_i64(0, min_i64(column, width - n));
        run_tile(work, row, column, tall, wide);
    }
}

/* Rows of a tile are some rows apart, so the task's rows form as many sets. */
static void run_task(const struct work *work) {
    const int64_t step = work->plan->param[DEPTHWISE_ROW_STEP];
    for (int64_t first = 0; first < min_i64(step, work->n_rows); first++) {
        const int64_t n = ceil_div(work->n_rows - first, step);
        for (int64_t i = 0, taken; i < n; i += taken) {
            const bool tall = n >= TALL && n - i > 1;
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
    const int64_t chunks = plan->param[DEPTHWISE_CHUNKS], rows = plan->param[DEPTHWISE_ROWS];
    const int64_t x_plane = (int64_t)p->h * p->w, y_plane = (int64_t)p->oh * p->ow;
    struct work work = {.plan = plan,
                        .offset = scratch,
                        .panel = (float *)((char *)scratch + plan->param[DEPTHWISE_OFFSETS])};
    fill_offsets(plan, scratch);
    for (int64_t task = begin; task < end; task++) {
        const int64_t c = task / chunks % p->c, n = task / chunks / p->c;
        work.row = task % chunks * rows;
        work.n_rows = min_i64(rows, p->oh - work.row);
        work.x = call->x + n * call->x_stride + c * x_plane;
        work.y = call->y + n * call->y_stride + c * y_plane;
        work.weight = call->weight + c * p->kh * p->kw;
        work.bias = call->bias ? call->bias[c] : 0;
        fill_panel(&work);
        run_task(&work);
    }
}

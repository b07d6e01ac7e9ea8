/*
 * Depthwise convolutions, and others with few channels per group: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_grouped, on a range of tasks -> run_row -> run_tiles -> multiply_tile
 *
 * grouped.c has planned sizes and packed the weights; grouped.h explains the algorithm. A task is some rows of y of one
 * channel block and sample. A row is divided into tiles of up to PIXELS pixels (PIXELS_WINDOW for kernels of three, five or seven columns),
 * whose sums stay in registers.
 *
 * Edges: kernel rows outside the image are skipped. Columns outside count as zero: tiles at the left or right edge check
 * each load, the other tiles check none. Kernels of three, five or seven columns with stride and dilation 1 have loops of their own,
 * which use each loaded (and shuffled) vector of x for all pixels that need it. Without them the loads would take more time than the
 * multiply-adds.
 *
 * Quantized numbers become floats when they are loaded, without their zero point. Their sums are exact in f32 (grouped.c), and become
 * values of y as int8.h says.
 *
 * Invariants: it accesses nothing outside x, y, the residual and the packed weights. The order of a sum (kernel rows, then
 * columns and channels of the group) does not depend on tile, task or thread. Padding channels of y become zero, as their
 * weights and bias are zero.
 */
#include "dnn/grouped.h"
#include "dnn/int8.h"

/*
 * Most pixels of a tile. PIXELS_WINDOW sums fit into the vector registers together with the weights of a kernel row, a vector of x and
 * one shuffle (with 16 registers most weights are operands in memory). PIXELS, for other kernels, is 8 everywhere: with a stride known only at run time, each pixel needs an address
 * register.
 */
#if REGISTERS == 32
#define PIXELS_WINDOW 14
#else
#define PIXELS_WINDOW 8
#endif
#define PIXELS 8
#define WINDOW_MAX 7
#define UNROLL_WINDOW _Pragma("GCC unroll 32")
/* The epilogue is called for full rows of at least so many pixels together: a quarter of L1, and enough to make the cost of a
 * call small. */
enum { SHOWN = 128 };

/* Neighbouring pixels of one row of y, in one channel block. */
struct tile {
    const char *x;        /* column 0 of the row that the first kernel row in the image reads */
    const float *weights; /* of that kernel row */
    int64_t n_rows;       /* kernel rows inside the image */
    int64_t column;       /* that the first pixel's first kernel column reads; may lie outside */
    const ivec *shuffles; /* [channel of the group] */
    int64_t size;         /* channels per group */
    struct simd_output out;
    /* Quantized numbers: instead of `out`, but for its problem */
    const struct int8_outputs *outputs;
    struct int8_place place;
    i8vec flip; /* 0x80 in each byte if x is of i8, else 0 */
    vec zero;   /* the zero point of the flipped x */
};

/* The values of one pixel at `at`; `bytes`: quantized ones. */
INLINE vec load_values(bool bytes, const struct tile *tile, const char *at) {
    if (!bytes) return vec_load((const float *)at);
    return __builtin_convertvector(int8_widen(*(const i8vec *)at ^ tile->flip), vec) - tile->zero;
}

/*
 * Loads the vector of x at column tile->column + ahead; at the `edge`, zero if that lies outside the image. `row` points to
 * column 0 if edge, else to tile->column.
 */
INLINE vec load_pixel(bool bytes, bool edge, const struct tile *tile, const char *row,
                      int64_t ahead) {
    const int64_t size = LANES * (bytes ? 1 : 4), column = tile->column + ahead;
    if (!edge) return load_values(bytes, tile, row + ahead * size);
    return (uint64_t)column < (uint64_t)tile->out.problem->w
               ? load_values(bytes, tile, row + column * size)
               : (vec){0};
}

/* Moves channel j of each lane's group into the lane. many: more than one channel per group. */
INLINE vec pick_channel(bool many, const struct tile *tile, vec x, int64_t j) {
    return many ? vec_shuffle(x, tile->shuffles[j]) : x;
}

/*
 * One kernel row of `window` columns, stride and dilation 1. The loop runs over columns q of x; still each pixel adds its kernel
 * columns from left to right, so its sum does not depend on its position in the tile.
 */
INLINE void multiply_window(int n, int window, bool many, bool bytes, bool edge,
                            const struct tile *tile, const char *row, const float *weights,
                            vec *sum) {
    const int64_t size = many ? tile->size : 1;
    for (int64_t j = 0; j < size; j++, weights += LANES) {
        vec w[WINDOW_MAX];
        UNROLL
        for (int s = 0; s < window; s++) w[s] = vec_load(weights + s * size * LANES);
        UNROLL_WINDOW
        for (int q = 0; q < n + window - 1; q++) {
            const vec x = pick_channel(many, tile, load_pixel(bytes, edge, tile, row, q), j);
            UNROLL
            for (int s = 0; s < window; s++)
                if (q - s >= 0 && q - s < n) sum[q - s] += x * w[s];
        }
    }
}

/* One kernel row of any size. */
INLINE void multiply_row(int n, bool many, bool bytes, bool edge, const struct tile *tile,
                         const char *row, const float *weights, vec *sum) {
    const int64_t size = many ? tile->size : 1;
    const int64_t step = tile->out.problem->sw, dilation = tile->out.problem->dw;
    for (int64_t s = 0; s < tile->out.problem->kw; s++)
        for (int64_t j = 0; j < size; j++, weights += LANES) {
            const vec w = vec_load(weights);
            UNROLL
            for (int i = 0; i < n; i++) {
                const vec x = load_pixel(bytes, edge, tile, row, s * dilation + i * step);
                sum[i] += pick_channel(many, tile, x, j) * w;
            }
        }
}

/* Stores the sums of quantized numbers. */
INLINE void finish_bytes(int n, const struct tile *tile, const vec *sum) {
    ivec whole[PIXELS_WINDOW][2];
    UNROLL
    for (int i = 0; i < n; i++) whole[i][0] = __builtin_convertvector(sum[i], ivec);
    int8_finish(1, n, 1, tile->outputs, tile->place, whole);
}

INLINE void multiply_tile(int n, bool many, int window, bool bytes, bool edge,
                          const struct tile *tile) {
    const struct dnn_problem *problem = tile->out.problem;
    const int64_t size = LANES * (bytes ? 1 : 4),
                  row_size = (int64_t)problem->dh * problem->w * size;
    const int64_t weights_size = problem->kw * (many ? tile->size : 1) * LANES;
    const char *row = tile->x + (edge ? 0 : tile->column * size);
    const float *weights = tile->weights;
    vec sum[PIXELS_WINDOW];
    UNROLL
    for (int i = 0; i < n; i++) sum[i] = (vec){0};
    for (int64_t r = 0; r < tile->n_rows; r++, row += row_size, weights += weights_size) {
        if (window) multiply_window(n, window, many, bytes, edge, tile, row, weights, sum);
        else multiply_row(n, many, bytes, edge, tile, row, weights, sum);
    }
    if (bytes) finish_bytes(n, tile, sum);
    else simd_finish(1, n, 1, 1, LANES, &tile->out, sum);
}

typedef void multiply_fn(const struct tile *tile);

/* n: pixels; many: more than one channel per group; window: 3, 5, 7, or 0 for other kernels; bytes: quantized numbers; edge: tile at the
 * left or right edge. Windows of 5 and 7 columns with more than one channel per group are rare, and are other kernels. */
#define MULTIPLY_ONE(n, many, window, bytes, edge)                                       \
    static void multiply_##n##_##many##window##bytes##edge(const struct tile *tile) {    \
        multiply_tile(n, many, window, bytes, edge, tile);                               \
    }
#define MULTIPLY(n, many, window)                                                        \
    MULTIPLY_ONE(n, many, window, 0, 0) MULTIPLY_ONE(n, many, window, 0, 1)              \
    MULTIPLY_ONE(n, many, window, 1, 0) MULTIPLY_ONE(n, many, window, 1, 1)
#define MULTIPLY_ANY(n) MULTIPLY(n, 0, 0) MULTIPLY(n, 1, 0)
#define MULTIPLY_WINDOW(n) MULTIPLY(n, 0, 3) MULTIPLY(n, 1, 3) MULTIPLY(n, 0, 5) MULTIPLY(n, 0, 7)
SIMD_UP_TO(PIXELS, MULTIPLY_ANY)
SIMD_UP_TO(PIXELS_WINDOW, MULTIPLY_WINDOW)

/* multiply[window / 2][pixels][many][bytes][edge] */
#define VARIANTS(n, many, window)                                                        \
    {{multiply_##n##_##many##window##00, multiply_##n##_##many##window##01},             \
     {multiply_##n##_##many##window##10, multiply_##n##_##many##window##11}}
#define ENTRY_ANY(n) [0][n] = {VARIANTS(n, 0, 0), VARIANTS(n, 1, 0)},
#define ENTRY_WINDOW(n)                                                                  \
    [1][n] = {VARIANTS(n, 0, 3), VARIANTS(n, 1, 3)},                                     \
    [2][n] = {VARIANTS(n, 0, 5)}, [3][n] = {VARIANTS(n, 0, 7)},
static multiply_fn *const multiply[WINDOW_MAX / 2 + 1][PIXELS_WINDOW + 1][2][2][2] = {
    SIMD_UP_TO(PIXELS, ENTRY_ANY) SIMD_UP_TO(PIXELS_WINDOW, ENTRY_WINDOW)};

/* 0: the kernel has no loop of its own. */
static int find_window(const struct dnn_problem *p, int64_t size) {
    if (p->sw != 1 || p->dw != 1) return 0;
    return p->kw == 3 || (size == 1 && (p->kw == 5 || p->kw == 7)) ? p->kw : 0;
}

/* ---- Transposed convolutions ---- */

/* A tap of a row and phase of y: the row of x, the column that the phase's first point reads, and the weights. */
struct spread_tap {
    const float *row, *weights;
    int64_t column;
};

/* Neighbouring points of a phase. `first`: its first point's number in the phase. */
struct spread {
    int64_t n_taps, first, size;
    struct spread_tap tap[GROUPED_MAX_TAPS];
    const ivec *shuffles;
    struct simd_output out;
};

/* at: the column of x that point 0 of the tile reads. */
INLINE void add_spread(int n, bool many, const struct spread *t, const struct spread_tap *tap,
                       int64_t at, bool edge, vec *sum) {
    for (int64_t j = 0; j < (many ? t->size : 1); j++) {
        const vec w = vec_load(tap->weights + j * LANES);
        UNROLL
        for (int i = 0; i < n; i++) {
            vec x = {0};
            if (!edge || (uint64_t)(at + i) < (uint64_t)t->out.problem->w)
                x = vec_load(tap->row + (at + i) * LANES);
            if (many) x = vec_shuffle(x, t->shuffles[j]);
            sum[i] += x * w;
        }
    }
}

INLINE void spread_tile(int n, bool many, const struct spread *t) {
    vec sum[PIXELS];
    UNROLL
    for (int i = 0; i < n; i++) sum[i] = (vec){0};
    for (int64_t k = 0; k < t->n_taps; k++) {
        const int64_t at = t->first + t->tap[k].column;
        const bool edge = at < 0 || at + n > t->out.problem->w;
        if (edge) add_spread(n, many, t, &t->tap[k], at, true, sum);
        else add_spread(n, many, t, &t->tap[k], at, false, sum);
    }
    simd_finish(1, n, 1, 1, t->out.pixel, &t->out, sum);
}

typedef void spread_fn(const struct spread *tile);
#define SPREAD(n)                                                                \
    static void spread_##n##_one(const struct spread *t) { spread_tile(n, false, t); } \
    static void spread_##n##_many(const struct spread *t) { spread_tile(n, true, t); }
#define ENTRY_SPREAD(n) [n] = {spread_##n##_one, spread_##n##_many},
SIMD_UP_TO(PIXELS, SPREAD)
static spread_fn *const spreads[PIXELS + 1][2] = {SIMD_UP_TO(PIXELS, ENTRY_SPREAD)};

/* ---- Rows ---- */

/* What all rows of one task use. image: the sample. */
struct work {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    int64_t image, block;
    int64_t x_size, y_size; /* bytes of a value */
    ivec shuffles[LANES];
    struct int8_outputs outputs; /* of the block, for quantized numbers */
};

/* Computes one row of y. Its columns are divided into tiles of nearly equal size: a last tile of few pixels would wait for the
 * latency of its sums. */
static void run_tiles(const struct work *work, struct tile *tile, int64_t row) {
    const struct dnn_problem *p = tile->out.problem;
    const int window = find_window(p, tile->size);
    const int64_t plane = (int64_t)p->oh * p->ow;
    const int64_t parts = ceil_div(p->ow, window ? PIXELS_WINDOW : PIXELS);
    for (int64_t part = 0, begin = 0, n; part < parts; part++, begin += n) {
        n = p->ow / parts + (part < p->ow % parts);
        const int64_t pixel = row * p->ow + begin, at = (work->block * plane + pixel) * LANES;
        tile->column = begin * p->sw - p->pl;
        char *y = (char *)work->call->y + (work->image * work->call->y_stride + at) * work->y_size;
        tile->out.y = (float *)y, tile->place.y = y;
        if (p->residual)
            tile->out.residual =
                work->call->residual + work->image * work->call->residual_stride + at;
        const bool edge =
            tile->column < 0 || tile->column + (n - 1) * p->sw + (p->kw - 1) * p->dw >= p->w;
        multiply[window / 2][n][tile->size > 1][p->x_type != SOL_F32][edge](tile);
    }
}

/* Of a quantized x: how sums of this block become values of y. Padding channels are masked. */
static void prepare_bytes(struct work *work) {
    static const int32_t none[2 * LANES];
    const int64_t k = work->block * LANES;
    const struct dnn_problem *p = &work->plan->problem;
    int8_prepare(work->plan, work->call, work->call->scale + k, work->call->bias + k, none, LANES,
                 &work->outputs);
    for (int i = 0; p->k_map && i < LANES; i++)
        if (p->k_map[k + i] < 0) work->outputs.valid[0][i] = 0;
}

/* What tiles of quantized numbers have besides. */
static void set_bytes(const struct work *work, struct tile *tile) {
    const bool is_signed = tile->out.problem->x_type == SOL_I8;
    tile->outputs = &work->outputs;
    tile->place.pixel = LANES * work->y_size;
    tile->flip = (i8vec){0} + (int8_t)(is_signed ? -128 : 0);
    tile->zero = vec_set((float)(*work->call->zero + (is_signed ? 128 : 0)));
}

/* Computes one row of y: finds the kernel rows [begin, end) that lie inside the image. */
static void run_row(const struct work *work, int64_t row) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t size = work->plan->param[GROUPED_SIZE], top = row * p->sh - p->pt;
    const int64_t begin = top < 0 ? min_i64(p->kh, ceil_div(-top, p->dh)) : 0;
    const int64_t end = top < p->h ? min_i64(p->kh, ceil_div(p->h - top, p->dh)) : 0;
    const int64_t row_weights = p->kw * size * LANES, first = end > begin ? top + begin * p->dh : 0;
    const int64_t at =
        work->image * work->call->x_stride + (work->block * p->h + first) * p->w * LANES;
    struct tile tile = {.x = (const char *)work->call->x + at * work->x_size,
                        .weights = work->call->packed + (work->block * p->kh + begin) * row_weights,
                        .n_rows = end - begin,
                        .shuffles = work->shuffles,
                        .size = size,
                        .out.bias =
                            work->call->bias ? work->call->bias + work->block * LANES : NULL,
                        .out.problem = p};
    if (p->x_type != SOL_F32) set_bytes(work, &tile);
    run_tiles(work, &tile, row);
}

/* Is kernel row (or column) `tap` read at point `at` of y? *out: the row of x. */
static bool find_source(int64_t at, int64_t pad, int64_t tap, int64_t dilation, int64_t stride,
                        int64_t *out) {
    const int64_t from = at + pad - tap * dilation;
    *out = from / stride;
    return from % stride == 0;
}

/* Lists the taps of phase `u` of row `row` of y. */
static void find_taps(const struct work *work, int64_t row, int64_t u, struct spread *t) {
    const struct dnn_problem *p = &work->plan->problem;
    const float *x = work->call->x + work->image * work->call->x_stride +
                     work->block * p->h * p->w * LANES,
                *weights = work->call->packed + work->block * p->kh * p->kw * t->size * LANES;
    int64_t from, column;
    t->n_taps = 0;
    for (int64_t r = 0; r < p->kh; r++) {
        if (!find_source(row, p->pt, r, p->dh, p->sh, &from) || from < 0 || from >= p->h) continue;
        for (int64_t s = 0; s < p->kw; s++)
            if (find_source(u, p->pl, s, p->dw, p->sw, &column))
                t->tap[t->n_taps++] = (struct spread_tap){
                    x + from * p->w * LANES, weights + (r * p->kw + s) * t->size * LANES, column};
    }
}

/* Computes one row of y of a transposed convolution. */
static void spread_row(const struct work *work, int64_t row) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t block = work->block * p->oh * p->ow * LANES;
    struct spread t = {.size = work->plan->param[GROUPED_SIZE],
                       .shuffles = work->shuffles,
                       .out.problem = p,
                       .out.pixel = (int64_t)p->sw * LANES,
                       .out.bias =
                           work->call->bias ? work->call->bias + work->block * LANES : NULL};
    for (int64_t u = 0; u < min_i64(p->sw, p->ow); u++) {
        const int64_t points = ceil_div(p->ow - u, p->sw), parts = ceil_div(points, PIXELS);
        find_taps(work, row, u, &t);
        for (int64_t part = 0, n; part < parts; part++) {
            t.first = dnn_split(points, part, parts);
            n = dnn_split(points, part + 1, parts) - t.first;
            const int64_t at = block + (row * p->ow + u + t.first * p->sw) * LANES;
            t.out.y = work->call->y + work->image * work->call->y_stride + at;
            if (p->residual)
                t.out.residual =
                    work->call->residual + work->image * work->call->residual_stride + at;
            spreads[n][t.size > 1](&t);
        }
    }
}

dnn_run_fn ISA_NAME(dnn_run_grouped);
void ISA_NAME(dnn_run_grouped)(const struct dnn_plan *plan, const struct dnn_call *call,
                               void *scratch, int64_t begin, int64_t end) {
    (void)scratch;
    const int64_t blocks = plan->problem.c / LANES, chunks = plan->param[GROUPED_CHUNKS];
    const int size = (int)plan->param[GROUPED_SIZE], width = plan->problem.ow;
    const bool is_float = plan->problem.x_type == SOL_F32;
    struct work work = {.plan = plan,
                        .call = call,
                        .x_size = is_float ? 4 : 1,
                        .y_size = plan->problem.y_type == SOL_F32 ? 4 : 1};
    for (int j = 0; j < size; j++)
        for (int lane = 0; lane < LANES; lane++) work.shuffles[j][lane] = lane / size * size + j;
    for (int64_t task = begin; task < end; task++) {
        work.block = task / chunks % blocks, work.image = task / chunks / blocks;
        if (!is_float) prepare_bytes(&work);
        const int64_t row = task % chunks * plan->param[GROUPED_ROWS];
        const int64_t last = min_i64(row + plan->param[GROUPED_ROWS], plan->problem.oh);
        for (int64_t i = row, shown = row; i < last; i++) {
            if (plan->problem.transposed) spread_row(&work, i);
            else run_row(&work, i);
            if (!call->epilogue || (i + 1 < last && (i + 1 - shown) * width < SHOWN)) continue;
            dnn_call_epilogue(call, work.image, work.block, shown * width, i + 1 - shown, width,
                              width);
            shown = i + 1;
        }
    }
}

/*
 * The gradient of the weight of a depthwise convolution, or of another one with few channels per group: the computation of tasks,
 * compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_conv_weight_grouped, on a range of tasks -> run_chunk -> run_row -> multiply
 *
 * conv_weight_grouped.c has planned all sizes; conv_weight_grouped.h explains the terms. Where a tap leaves the image, rows and columns
 * of dy are left out. The columns at which all taps of a tile are in the image share their loads of dy.
 *
 * Invariants: it accesses nothing outside x, dy and its sums. The order of a sum does not depend on threads.
 */
#include "dnn/conv_weight_grouped.h"
#include "dnn/simd.h"

/* Kernel columns of a tile. With few of them, two sums per column hide the latency of the additions. */
#define WEIGHT_TILE 7
#define WEIGHT_FEW  4

/* The rows of dy whose window has one kernel row in the image. Strides are in floats. */
struct pass {
    const float *x, *dy; /* column 0 of the first row */
    int64_t rows, x_row, dy_row;
    int64_t x_pixel, tap; /* in x, to the next pixel of dy and to the next kernel column */
    int64_t first;        /* in x, from column 0 to what pixel 0 and the first kernel column read */
    int64_t begin[WEIGHT_TILE], end[WEIGHT_TILE]; /* columns of dy, of each kernel column */
    ivec shuffle;
    float *sums;
};

INLINE vec load_x(bool many, const struct pass *p, const float *at) {
    const vec x = vec_load(at);
    return many ? vec_shuffle(x, p->shuffle) : x;
}

/* sum[tap i] += x * dy over columns [begin, end) of one row. */
INLINE vec sum_columns(bool many, const struct pass *p, int i, const float *x, const float *dy,
                       int64_t begin, int64_t end, vec sum) {
    for (int64_t q = begin; q < end; q++)
        sum += load_x(many, p, x + q * p->x_pixel + i * p->tap) * vec_load(dy + q * LANES);
    return sum;
}

/* One row of dy: first the columns at which all taps are in the image, [low, high), then the others. */
INLINE void multiply_row(int taps, bool many, const struct pass *p, const float *x, const float *dy,
                         int64_t low, int64_t high, vec (*sum)[WEIGHT_TILE]) {
    const int64_t x_pixel = p->x_pixel, tap = p->tap;
    const int chains = taps <= WEIGHT_FEW ? 2 : 1;
    int64_t q = low;
    for (; q + chains <= high; q += chains) {
        const float *at = x + q * x_pixel, *from = dy + q * LANES;
        UNROLL
        for (int u = 0; u < chains; u++) {
            const vec d = vec_load(from + u * LANES);
            UNROLL
            for (int i = 0; i < taps; i++)
                sum[u][i] += load_x(many, p, at + u * x_pixel + i * tap) * d;
        }
    }
    UNROLL
    for (int i = 0; i < taps; i++) {
        sum[0][i] = sum_columns(many, p, i, x, dy, q, high, sum[0][i]);
        sum[0][i] = sum_columns(many, p, i, x, dy, p->begin[i], min_i64(low, p->end[i]), sum[0][i]);
        sum[0][i] =
            sum_columns(many, p, i, x, dy, max_i64(high, p->begin[i]), p->end[i], sum[0][i]);
    }
}

INLINE void multiply(int taps, bool many, const struct pass *p) {
    vec sum[2][WEIGHT_TILE];
    int64_t low = p->begin[0], high = p->end[0];
    UNROLL
    for (int i = 0; i < taps; i++) {
        sum[0][i] = sum[1][i] = (vec){0};
        low = max_i64(low, p->begin[i]), high = min_i64(high, p->end[i]);
    }
    high = max_i64(low, high);
    for (int64_t row = 0; row < p->rows; row++)
        multiply_row(taps, many, p, p->x + row * p->x_row + p->first, p->dy + row * p->dy_row, low,
                     high, sum);
    UNROLL
    for (int i = 0; i < taps; i++) {
        float *at = p->sums + i * LANES;
        if (taps <= WEIGHT_FEW) sum[0][i] += sum[1][i];
        vec_store(at, vec_load(at) + sum[0][i]);
    }
}

typedef void multiply_fn(const struct pass *p);
#define MULTIPLY(n)                                                              \
    static void multiply_##n##_one(const struct pass *p) { multiply(n, false, p); } \
    static void multiply_##n##_many(const struct pass *p) { multiply(n, true, p); }
#define ENTRY(n) [n] = {multiply_##n##_one, multiply_##n##_many},
SIMD_UP_TO(WEIGHT_TILE, MULTIPLY)
static multiply_fn *const multiplies[WEIGHT_TILE + 1][2] = {SIMD_UP_TO(WEIGHT_TILE, ENTRY)};

/* ---- Chunks ---- */

/* What all chunks of a task use: its channel block, and its sums. */
struct work {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    int64_t block;
    float *sums;
};

/* Rows (or columns) [*begin, *end) of dy, of those given, whose window has `tap` in the image. */
static void clip(int64_t size, int64_t stride, int64_t pad, int64_t tap, int64_t *begin,
                 int64_t *end) {
    const int64_t before = pad - tap, behind = size + pad - tap;
    *begin = max_i64(*begin, before > 0 ? ceil_div(before, stride) : 0);
    *end = max_i64(*begin, min_i64(*end, behind > 0 ? ceil_div(behind, stride) : 0));
}

/* Kernel columns from `s` on, as many as a tile has, and channel j of the groups. */
static void run_tile(struct pass *pass, const struct dnn_problem *p, int64_t s, int64_t n,
                     int64_t size, int64_t j) {
    for (int64_t i = 0; i < n; i++) {
        pass->begin[i] = 0, pass->end[i] = p->ow;
        clip(p->w, p->sw, p->pl, (s + i) * p->dw, &pass->begin[i], &pass->end[i]);
    }
    for (int lane = 0; lane < LANES; lane++)
        pass->shuffle[lane] = (int32_t)(lane / size * size + j);
    pass->first = (s * p->dw - p->pl) * LANES;
    multiplies[n][size > 1](pass);
}

/* Kernel row r, on rows [row, last) of dy of an image. `sums`: the kernel row's. */
static void run_row(const struct work *work, int64_t image, int64_t r, int64_t row, int64_t last,
                    float *sums) {
    const struct dnn_problem *p = &work->plan->problem;
    const struct dnn_call *call = work->call;
    const int64_t size = work->plan->param[WEIGHT_SIZE];
    clip(p->h, p->sh, p->pt, r * p->dh, &row, &last);
    if (row >= last) return;
    const int64_t from = work->block * p->h + row * p->sh + r * p->dh - p->pt;
    struct pass pass = {.x = call->x + image * call->x_stride + from * p->w * LANES,
                        .dy = call->weight + image * call->y_stride +
                              (work->block * p->oh + row) * p->ow * LANES,
                        .rows = last - row,
                        .x_row = (int64_t)p->sh * p->w * LANES,
                        .dy_row = (int64_t)p->ow * LANES,
                        .x_pixel = (int64_t)p->sw * LANES,
                        .tap = (int64_t)p->dw * LANES};
    for (int64_t j = 0; j < size; j++)
        for (int64_t s = 0; s < p->kw; s += WEIGHT_TILE) {
            const int64_t n = min_i64(WEIGHT_TILE, p->kw - s);
            pass.sums = sums + (j * p->kw + s) * LANES;
            run_tile(&pass, p, s, n, size, j);
        }
}

static void run_chunk(const struct work *work, int64_t image, int64_t row, int64_t last) {
    const struct dnn_problem *p = &work->plan->problem;
    for (int64_t r = 0; r < p->kh; r++)
        run_row(work, image, r, row, last,
                work->sums + r * work->plan->param[WEIGHT_SIZE] * p->kw * LANES);
}

/* All chunks of share `share`. */
static void run_share(const struct work *work, int64_t share) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t rows = work->plan->param[WEIGHT_ROWS], chunks = ceil_div(p->oh, rows),
                  n = conv_weight_grouped_chunks(work->plan, work->call->batch),
                  shares = conv_weight_grouped_shares(work->plan, work->call->batch);
    if (share >= shares) return;
    memset(work->sums, 0, (size_t)conv_weight_grouped_floats(work->plan) * sizeof(float));
    for (int64_t i = dnn_split(n, share, shares); i < dnn_split(n, share + 1, shares); i++) {
        const int64_t row = i % chunks * rows;
        run_chunk(work, i / chunks, row, min_i64(row + rows, p->oh));
    }
}

dnn_run_fn ISA_NAME(dnn_run_conv_weight_grouped);
void ISA_NAME(dnn_run_conv_weight_grouped)(const struct dnn_plan *plan, const struct dnn_call *call,
                                           void *scratch, int64_t begin, int64_t end) {
    const int64_t blocks = plan->problem.c / LANES, n = conv_weight_grouped_floats(plan);
    struct work work = {.plan = plan, .call = call};
    for (int64_t task = begin; task < end; task++) {
        work.block = task % blocks;
        work.sums = plan->partial_size ? call->y + task * n : scratch;
        run_share(&work, task / blocks);
    }
}

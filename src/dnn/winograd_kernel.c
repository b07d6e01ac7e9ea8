/*
 * Winograd convolution F(4x4,3x3) and F(2x2,3x3): the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_winograd4 or dnn_run_winograd2, on a range of tasks -> per block of tiles: transform_channels (V)
 *       -> per k pair: multiply_points (M), finish_pair (y, epilogue)
 *
 * winograd.c has planned sizes and packed the weights (U); winograd.h explains the terms and layouts.
 *
 * Algorithm: Y = A^T [(G g G^T) * (B^T d B)] A (Winograd 1980; for convolutions Lavin & Gray 2015), with the Toom-Cook
 * matrices for the points 0, +-a, +-b, inf where a = 2/3 and b = 3/2; for tiles of 2: 0, +-1, inf. As a*b = 1 and all
 * four are near 1, the powers in A and B stay small, and so does the rounding error.
 *
 * Invariants: it accesses nothing outside x, y, the residual and the packed weights, except by prefetch: a tile that reads
 * beyond the image's edge goes through a copy with zeros, and pixels outside y are not stored. Padding channels of y become
 * zero, as their weights and bias are zero.
 */
#include "dnn/winograd.h"
#include "dnn/winograd_points.h"

/* The current block of tiles and its scratch. One per call of run. */
struct work {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    float *v, *m;
    int64_t first, count; /* tiles */
};

/* The first tile of the block, and the next one. */
static struct place first_place(const struct work *work) {
    const int64_t *param = work->plan->param;
    return place_of(param[WINOGRAD_TILES_H], param[WINOGRAD_TILES_W], work->first);
}
static inline void next_place(const struct work *work, struct place *place) {
    const int64_t *param = work->plan->param;
    place_step(param[WINOGRAD_TILES_H], param[WINOGRAD_TILES_W], place);
}

/* The first row and column of y in a tile. Further ones are dh rows and dw columns apart. */
static inline int64_t first_row(int out, const struct dnn_plan *plan, const struct place *place) {
    const int64_t n = plan->param[WINOGRAD_PHASE_H], step = plan->problem.dh;
    return step == 1 ? place->row * out : place->row / n + place->row % n * out * step;
}

static inline int64_t first_column(int out, const struct dnn_plan *plan,
                                   const struct place *place) {
    const int64_t n = plan->param[WINOGRAD_PHASE_W], step = plan->problem.dw;
    return step == 1 ? place->column * out : place->column / n + place->column % n * out * step;
}

/* ---- Input: V = B^T d B ---- */

/*
 * Copies a patch of x that lies partly outside the image, needs the prologue or is dilated. Values outside are zero; the prologue is not
 * applied to them.
 */
static void copy_patch(const struct work *work, int in, const float *plane, int64_t top,
                       int64_t left, int64_t c_block, float *patch) {
    const struct dnn_problem *problem = &work->plan->problem;
    const bool prologue = problem->prologue;
    const vec scale = prologue ? vec_load(work->call->scale + c_block * LANES) : vec_set(1);
    const vec shift = prologue ? vec_load(work->call->shift + c_block * LANES) : vec_set(0);
    const vec low = vec_set(problem->prologue_min);
    for (int64_t i = 0; i < in; i++)
        for (int64_t j = 0; j < in; j++) {
            int64_t row = top + i * problem->dh, column = left + j * problem->dw;
            vec value = {0};
            if (row >= 0 && row < problem->h && column >= 0 && column < problem->w) {
                value = vec_load(plane + (row * problem->w + column) * LANES);
                if (prologue) value = vec_max(value * scale + shift, low);
            }
            vec_store(patch + (i * in + j) * LANES, value);
        }
}

/* Writes V of one channel block of x, for all tiles of the current block. */
INLINE void transform_channels(int out, const struct work *work, int64_t c_block) {
    const struct dnn_problem *problem = &work->plan->problem;
    const int64_t v_point = work->plan->param[WINOGRAD_V_POINT], in = out + 2;
    const int64_t plane_size = (int64_t)problem->h * problem->w * LANES;
    float *v = work->v + c_block * work->count * LANES;
    const bool dilated = problem->dh > 1 || problem->dw > 1;
    float patch[IN_MAX * IN_MAX * LANES];
    struct place place = first_place(work);
    for (int64_t tile = 0; tile < work->count; tile++, next_place(work, &place)) {
        const float *plane =
            work->call->x + place.image * work->call->x_stride + c_block * plane_size;
        int64_t top = first_row(out, work->plan, &place) - problem->pt;
        int64_t left = first_column(out, work->plan, &place) - problem->pl;
        bool inside = top >= 0 && left >= 0 && top + in <= problem->h && left + in <= problem->w;
        const float *from = patch;
        int64_t row = in * LANES;
        if (inside && !problem->prologue && !dilated) {
            from = plane + (top * problem->w + left) * LANES;
            row = (int64_t)problem->w * LANES;
        } else {
            copy_patch(work, (int)in, plane, top, left, c_block, patch);
        }
        transform_patch(out, from, row, v + tile * LANES, v_point);
    }
}

/* ---- Products: M = V U at each point ---- */

/*
 * M of `rows` tiles and one k pair at one point: sums over all channels, `part` blocks of them at a time. In V the tiles of a channel
 * block are contiguous, so values have constant offsets from one pointer. It prefetches `ahead`, one half of the next point's weights.
 */
INLINE void multiply_rows(int rows, const float *v, const float *u, int64_t c_blocks, int64_t part,
                          float *m, int64_t tiles, const float *ahead) {
    for (int64_t first = 0; first < c_blocks; first += part) {
        const int64_t end = min_i64(c_blocks, first + part);
        vec sum[VALUES][2];
        simd_clear(rows, sum);
        for (int64_t c = first; c < end; c++, v += tiles * LANES)
            for (int lane = 0; lane < LANES;
                 lane += STEP, u += STEP * 2 * LANES, ahead += STEP * LANES) {
                __builtin_prefetch(ahead, 0, 2);
                simd_multiply(STEP, 1, rows, 2, LANES, v + lane, NULL, u, sum);
            }
        if (first) simd_add_parts(rows, 2, LANES, tiles * LANES, m, sum);
        simd_store_parts(rows, 2, LANES, tiles * LANES, m, sum);
    }
}

typedef void multiply_fn(const float *v, const float *u, int64_t c_blocks, int64_t part, float *m,
                         int64_t tiles, const float *ahead);

/* `rows` is a constant in each function, or else the sums would not stay in registers. */
#define MULTIPLY(rows)                                                                             \
    static void multiply##rows(const float *v, const float *u, int64_t c_blocks, int64_t part,     \
                               float *m, int64_t tiles, const float *ahead) {                      \
        multiply_rows(rows, v, u, c_blocks, part, m, tiles, ahead);                                \
    }
SIMD_UP_TO(VALUES, MULTIPLY)

#define ENTRY(rows) multiply##rows,
static multiply_fn *const multiply[VALUES + 1] = {NULL, SIMD_UP_TO(VALUES, ENTRY)};

/*
 * M of one k pair at all points. The tiles are divided evenly into parts of up to VALUES: 8 + 7 tiles are faster than 14 + 1,
 * as a part of one tile waits for the latency of its sums.
 */
INLINE void multiply_points(int out, const struct work *work, int64_t pair) {
    const int64_t *param = work->plan->param, points = (out + 2) * (out + 2);
    const int64_t c = work->plan->problem.c, parts = ceil_div(work->count, VALUES);
    const float *u = work->call->packed + pair * points * c * 2 * LANES;
    for (int64_t point = 0; point < points; point++, u += c * 2 * LANES)
        for (int64_t part = 0; part < parts; part++) {
            int64_t at = dnn_split(work->count, part, parts);
            int64_t rows = dnn_split(work->count, part + 1, parts) - at;
            const float *v = work->v + point * param[WINOGRAD_V_POINT] + at * LANES;
            float *m = work->m + point * param[WINOGRAD_M_POINT] + at * LANES;
            multiply[rows](v, u, c / LANES, param[WINOGRAD_PART], m, work->count,
                           u + (2 + min_i64(part, 1)) * c * LANES);
        }
}

/* ---- Output: Y = A^T M A, then bias, residual and activation ---- */

/* Adds bias and residual (NULL: none), applies the activation and stores one row of a tile; only its first `width` pixels lie
 * inside y. step: floats between two pixels, in y and residual. */
INLINE void finish_row(int out, const struct dnn_problem *problem, int64_t step, int64_t width,
                       vec bias, const vec *sum, const float *residual, float *y) {
    const vec low = vec_set(problem->act == DNN_ACT_CLAMP ? problem->act_min : 0);
    const vec high = vec_set(problem->act_max);
    UNROLL
    for (int j = 0; j < out; j++) {
        if (j >= width) break;
        vec value = sum[j] + bias;
        if (residual) value += vec_load(residual + j * step);
        if (problem->act != DNN_ACT_NONE) value = vec_max(value, low);
        if (problem->act == DNN_ACT_CLAMP) value = vec_min(value, high);
        vec_store(y + j * step, value);
    }
}

/* Transforms one tile of one channel block back and stores the pixels that lie inside y. */
INLINE void finish_tile(int out, const struct work *work, const float *m, const struct place *place,
                        int64_t k_block) {
    const struct dnn_problem *problem = &work->plan->problem;
    const struct dnn_call *call = work->call;
    const int64_t m_point = work->plan->param[WINOGRAD_M_POINT];
    const int64_t plane = (int64_t)problem->oh * problem->ow;
    const vec bias = call->bias ? vec_load(call->bias + k_block * LANES) : vec_set(0);
    const int in = out + 2;
    vec half[OUT_MAX * IN_MAX], p[IN_MAX], y[OUT_MAX];
    UNROLL
    for (int j = 0; j < in; j++) {
        UNROLL
        for (int i = 0; i < in; i++) p[i] = vec_load(m + (i * in + j) * m_point);
        from_points(out, p, y);
        UNROLL
        for (int i = 0; i < out; i++) half[i * in + j] = y[i];
    }
    const int64_t dh = problem->dh, dw = problem->dw;
    const int64_t top = first_row(out, work->plan, place), below = problem->oh - top;
    const int64_t left = first_column(out, work->plan, place), beside = problem->ow - left;
    const int64_t height = min_i64(out, dh == 1 ? below : ceil_div(below, dh));
    const int64_t width = min_i64(out, dw == 1 ? beside : ceil_div(beside, dw));
    for (int64_t i = 0; i < height; i++) {
        const int64_t pixel = (top + i * dh) * problem->ow + left;
        const int64_t at = (k_block * plane + pixel) * LANES;
        const float *residual = NULL;
        if (problem->residual)
            residual = call->residual + place->image * call->residual_stride + at;
        from_points(out, half + i * in, y);
        float *to = call->y + place->image * call->y_stride + at;
        if (dw == 1) finish_row(out, problem, LANES, width, bias, y, residual, to);
        else finish_row(out, problem, dw * LANES, width, bias, y, residual, to);
    }
}

/* Calls the epilogue for the pixels of one dilated tile, whose columns are no neighbours. */
static void show_dilated(int out, const struct work *work, const struct place *place,
                         int64_t k_block) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t top = first_row(out, work->plan, place);
    const int64_t left = first_column(out, work->plan, place);
    const int64_t bottom = min_i64(p->oh, top + (int64_t)out * p->dh);
    const int64_t right = min_i64(p->ow, left + (int64_t)out * p->dw);
    for (int64_t row = top; row < bottom; row += p->dh)
        for (int64_t column = left; column < right; column += p->dw)
            dnn_call_epilogue(work->call, place->image, k_block, row * p->ow + column, 1, 1, p->ow);
}

/* Calls the epilogue for all tiles of the current block in one channel block: once per row of tiles rather than per tile, as
 * fewer and longer calls cost less. */
static void show_block(int64_t out, const struct work *work, int64_t k_block) {
    const struct dnn_problem *problem = &work->plan->problem;
    struct place place = first_place(work);
    if (problem->dh > 1 || problem->dw > 1) {
        for (int64_t tile = 0; tile < work->count; tile++, next_place(work, &place))
            show_dilated((int)out, work, &place, k_block);
        return;
    }
    for (int64_t tile = 0, n; tile < work->count; tile += n) {
        n = min_i64(work->count - tile, work->plan->param[WINOGRAD_TILES_W] - place.column);
        const int64_t top = place.row * out, left = place.column * out;
        dnn_call_epilogue(work->call, place.image, k_block, top * problem->ow + left,
                          min_i64(out, problem->oh - top), min_i64(n * out, problem->ow - left),
                          problem->ow);
        place.column += n - 1;
        next_place(work, &place);
    }
}

INLINE void finish_pair(int out, const struct work *work, int64_t pair) {
    const int64_t blocks = min_i64(2, work->plan->problem.k / LANES - 2 * pair);
    for (int64_t b = 0; b < blocks; b++) {
        struct place place = first_place(work);
        const float *m = work->m + b * work->count * LANES;
        for (int64_t tile = 0; tile < work->count; tile++, next_place(work, &place))
            finish_tile(out, work, m + tile * LANES, &place, 2 * pair + b);
        if (work->call->epilogue) show_block(out, work, 2 * pair + b);
    }
}

/* ---- Tasks ---- */

/* Task: (block, group), the group fastest, so that consecutive tasks of a range use one transformed input. */
INLINE void run(int out, const struct dnn_plan *plan, const struct dnn_call *call, float *scratch,
                int64_t begin, int64_t end) {
    const int64_t *param = plan->param, groups = param[WINOGRAD_GROUPS];
    const int64_t tiles = winograd_tiles(plan, call->batch);
    const int64_t blocks = dnn_winograd_blocks(plan, call->batch);
    struct work work = {.plan = plan, .call = call, .v = scratch, .first = -1};
    work.m = scratch + (out + 2) * (out + 2) * param[WINOGRAD_V_POINT];
    for (int64_t task = begin; task < end; task++) {
        const int64_t block = task / groups, group = task % groups;
        const int64_t first = dnn_split(tiles, block, blocks);
        if (first != work.first) {
            work.first = first;
            work.count = dnn_split(tiles, block + 1, blocks) - first;
            for (int64_t c = 0; c < plan->problem.c / LANES; c++) transform_channels(out, &work, c);
        }
        int64_t pair = dnn_split(param[WINOGRAD_PAIRS], group, groups);
        for (; pair < dnn_split(param[WINOGRAD_PAIRS], group + 1, groups); pair++) {
            multiply_points(out, &work, pair);
            finish_pair(out, &work, pair);
        }
    }
}

#define RUN(out)                                                                                   \
    dnn_run_fn ISA_NAME(dnn_run_winograd##out);                                                    \
    void ISA_NAME(dnn_run_winograd##out)(const struct dnn_plan *plan, const struct dnn_call *call, \
                                         void *scratch, int64_t begin, int64_t end) {              \
        run(out, plan, call, scratch, begin, end);                                                 \
    }
RUN(4)
RUN(2)

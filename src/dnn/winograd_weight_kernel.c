/*
 * The gradient of a convolution's weight by Winograd's transforms: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_winograd_weight, on a range of tasks -> per chunk: transform_x (V), transform_dy (W), multiply_points (M)
 *       -> finish (sums)
 *
 * winograd_weight.c has planned all sizes; winograd_weight.h explains the algorithm and the layouts.
 *
 * Invariants: it accesses nothing outside x, dy, dw and the partial results: a tile that reads beyond an edge goes through a copy
 * with zeros. The order of a sum does not depend on threads.
 */
#include "dnn/winograd_weight.h"

#include "dnn/conv_weight_tile.h"
#include "dnn/winograd_points.h"

enum { OUT = WINOGRAD_WEIGHT_OUT, IN = OUT + 2, POINTS = WINOGRAD_WEIGHT_POINTS };

/* What all chunks of a task use. The tiles are those of the current chunk. */
struct work {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    struct conv_weight_task task;
    float *v, *w, *m, *sums;
    int64_t first_tile, n_tiles;
};

/* ---- V and W ---- */

/* The first tile of the chunk, and the next one. */
static struct place first_place(const struct work *work) {
    const int64_t *param = work->plan->param;
    return place_of(param[WEIGHT_TILE_ROWS], param[WEIGHT_TILE_COLUMNS], work->first_tile);
}
static inline void next_place(const struct work *work, struct place *place) {
    const int64_t *param = work->plan->param;
    place_step(param[WEIGHT_TILE_ROWS], param[WEIGHT_TILE_COLUMNS], place);
}

/* Copies size x size pixels of an image, with zeros for those outside. */
static void copy_pixels(const float *image, int64_t h, int64_t w, int64_t top, int64_t left,
                        int64_t size, float *to) {
    for (int64_t i = top; i < top + size; i++)
        for (int64_t j = left; j < left + size; j++, to += LANES) {
            const bool is_inside = i >= 0 && i < h && j >= 0 && j < w;
            vec_store(to, is_inside ? vec_load(image + (i * w + j) * LANES) : (vec){0});
        }
}

/* size x size pixels of an image; if some are outside, a copy of them in `copy`. *row: floats between rows. */
static const float *find_pixels(const float *image, int64_t h, int64_t w, int64_t top, int64_t left,
                                int64_t size, float *copy, int64_t *row) {
    *row = w * LANES;
    if (top >= 0 && left >= 0 && top + size <= h && left + size <= w)
        return image + (top * w + left) * LANES;
    *row = size * LANES;
    copy_pixels(image, h, w, top, left, size, copy);
    return copy;
}

/* V of one unit, for all tiles of the chunk. */
static void transform_x(const struct work *work, int64_t unit) {
    const struct dnn_problem *p = &work->plan->problem;
    const float *x = work->call->x + (work->task.unit + unit) * p->h * p->w * LANES;
    float *v = work->v + unit * work->n_tiles * LANES, copy[IN * IN * LANES];
    struct place at = first_place(work);
    int64_t row;
    for (int64_t i = 0; i < work->n_tiles; i++, v += LANES, next_place(work, &at)) {
        const float *from =
            find_pixels(x + at.image * work->call->x_stride, p->h, p->w, at.row * OUT - p->pt,
                        at.column * OUT - p->pl, IN, copy, &row);
        transform_patch(OUT, from, row, v, work->plan->param[WINOGRAD_WEIGHT_V]);
    }
}

/* w = A d. The columns of +-a are divided by a, those of +-b by b, as in from_points4, whose transpose this is. */
INLINE void from_pixels(const vec *d, vec *w) {
    const vec a = vec_set(2.0f / 3), b = vec_set(1.5f), a2 = vec_set(4.0f / 9), b2 = vec_set(2.25f);
    const vec even_a = b * d[0] + a * d[2], odd_a = d[1] + a2 * d[3];
    const vec even_b = a * d[0] + b * d[2], odd_b = d[1] + b2 * d[3];
    w[0] = d[0];
    w[1] = even_a + odd_a;
    w[2] = even_a - odd_a;
    w[3] = even_b + odd_b;
    w[4] = even_b - odd_b;
    w[5] = d[3];
}

INLINE void transform_tile(const float *dy, int64_t row, float *w, int64_t w_point) {
    vec half[IN * OUT], d[OUT], p[IN];
    UNROLL
    for (int j = 0; j < OUT; j++) {
        UNROLL
        for (int i = 0; i < OUT; i++) d[i] = vec_load(dy + i * row + j * LANES);
        from_pixels(d, p);
        UNROLL
        for (int i = 0; i < IN; i++) half[i * OUT + j] = p[i];
    }
    UNROLL
    for (int i = 0; i < IN; i++) {
        from_pixels(half + i * OUT, p);
        UNROLL
        for (int j = 0; j < IN; j++) vec_store(w + (i * IN + j) * w_point, p[j]);
    }
}

/* The channel blocks of dy of the task's bundles. */
static int64_t count_blocks(const struct work *work) {
    return min_i64(work->task.n_bundles * TILE_VECTORS,
                   work->plan->param[WEIGHT_K_BLOCKS] - work->task.bundle * TILE_VECTORS);
}

/* W of one channel block of dy, for all tiles of the chunk. */
static void transform_dy(const struct work *work, int64_t block) {
    const struct dnn_problem *p = &work->plan->problem;
    const float *dy =
        work->call->weight + (work->task.bundle * TILE_VECTORS + block) * p->oh * p->ow * LANES;
    float *w = work->w + block * work->n_tiles * LANES, copy[OUT * OUT * LANES];
    struct place at = first_place(work);
    int64_t row;
    for (int64_t i = 0; i < work->n_tiles; i++, w += LANES, next_place(work, &at)) {
        const float *from = find_pixels(dy + at.image * work->call->y_stride, p->oh, p->ow,
                                        at.row * OUT, at.column * OUT, OUT, copy, &row);
        transform_tile(from, row, w, work->plan->param[WINOGRAD_WEIGHT_W]);
    }
}

/* ---- M += W V ---- */

/* A tile of sums (conv_weight_tile.h) at one point, over n transformed tiles. */
INLINE void multiply(int vectors, const float *v, const float *w, int64_t n, float *m) {
    vec sum[TILE_ROWS][TILE_VECTORS];
    clear_tile(vectors, sum);
    add_pixels(vectors, v, LANES, NULL, w, w + n * LANES, n * LANES, w, 0, sum);
    add_tile(vectors, m, sum);
}

typedef void multiply_fn(const float *v, const float *w, int64_t n, float *m);
#define MULTIPLY(vectors)                                                            \
    static void multiply_##vectors(const float *v, const float *w, int64_t n, float *m) { \
        multiply(vectors, v, w, n, m);                                               \
    }
#define ENTRY(vectors) [vectors] = multiply_##vectors,
#ifdef BY_LANE
SIMD_UP_TO(4, MULTIPLY)
static multiply_fn *const multiplies[TILE_VECTORS + 1] = {SIMD_UP_TO(4, ENTRY)};
#else
SIMD_UP_TO(2, MULTIPLY)
static multiply_fn *const multiplies[TILE_VECTORS + 1] = {SIMD_UP_TO(2, ENTRY)};
#endif

/* One bundle at one point. */
static void multiply_bundle(const struct work *work, int64_t bundle, const float *v, const float *w,
                            float *m) {
    const int64_t n = work->n_tiles * LANES;
    const int64_t vectors = conv_weight_count_vectors(work->plan, work->task.bundle + bundle);
    for (int64_t unit = 0; unit < work->task.n_units; unit++, v += n)
        for (int64_t i = 0; i < LANES; i += TILE_ROWS, m += TILE_ROWS * TILE_VECTORS * LANES)
            multiplies[vectors](v + i, w, work->n_tiles, m);
}

static void multiply_points(const struct work *work) {
    const int64_t *param = work->plan->param,
                  bundle_size = work->task.n_units * LANES * TILE_VECTORS * LANES;
    for (int64_t point = 0; point < POINTS; point++)
        for (int64_t b = 0; b < work->task.n_bundles; b++)
            multiply_bundle(work, b, work->v + point * param[WINOGRAD_WEIGHT_V],
                            work->w + point * param[WINOGRAD_WEIGHT_W] +
                                b * TILE_VECTORS * work->n_tiles * LANES,
                            work->m + point * param[WINOGRAD_WEIGHT_M] + b * bundle_size);
}

/* ---- sums = G^T M G ---- */

/*
 * g = G^T m: the row of G for point p is (1, p, p^2) / M'(p), for inf (0, 0, 1), with the factor |p| that A omits (make_g). With ab = 1:
 * b / (2 (a^2 - b^2)) for +-a, a / (2 (b^2 - a^2)) for +-b.
 */
INLINE void to_taps(const vec *m, vec *g) {
    const vec a = vec_set(-27.0f / 65), b = vec_set(12.0f / 65), odd = vec_set(18.0f / 65);
    const vec a2 = vec_set(-12.0f / 65), b2 = vec_set(27.0f / 65);
    const vec sum_a = m[1] + m[2], sum_b = m[3] + m[4];
    g[0] = m[0] + (a * sum_a + b * sum_b);
    g[1] = odd * ((m[3] - m[4]) - (m[1] - m[2]));
    g[2] = m[5] + (a2 * sum_a + b2 * sum_b);
}

/* One vector: the taps are `step` floats apart. */
INLINE void finish_vector(const float *m, int64_t m_point, float *sums, int64_t step) {
    vec half[3 * IN], p[IN], g[3];
    UNROLL
    for (int j = 0; j < IN; j++) {
        UNROLL
        for (int i = 0; i < IN; i++) p[i] = vec_load(m + (i * IN + j) * m_point);
        to_taps(p, g);
        UNROLL
        for (int i = 0; i < 3; i++) half[i * IN + j] = g[i];
    }
    UNROLL
    for (int i = 0; i < 3; i++) {
        to_taps(half + i * IN, g);
        UNROLL
        for (int j = 0; j < 3; j++) vec_store(sums + (i * 3 + j) * step, g[j]);
    }
}

/* The sums of one bundle and unit: a row for each tap and channel. */
static void finish_unit(const float *m, int64_t m_point, float *sums) {
    const int64_t size = LANES * TILE_VECTORS * LANES;
    for (int64_t i = 0; i < size; i += LANES) finish_vector(m + i, m_point, sums + i, size);
}

static void finish(const struct work *work) {
    const int64_t size = LANES * TILE_VECTORS * LANES;
    const float *m = work->m;
    for (int64_t b = 0; b < work->task.n_bundles; b++)
        for (int64_t u = 0; u < work->task.n_units; u++, m += size)
            finish_unit(m, work->plan->param[WINOGRAD_WEIGHT_M],
                        conv_weight_find_sums(work->plan, work->sums, b, u));
}

/* ---- Tasks ---- */

static void run_chunk(struct work *work, int64_t chunk) {
    const int64_t size = work->plan->param[WEIGHT_CHUNK_TILES],
                  all = conv_weight_tiles(work->plan, work->call->batch);
    work->first_tile = chunk * size;
    work->n_tiles = min_i64(size, all - chunk * size);
    for (int64_t u = 0; u < work->task.n_units; u++) transform_x(work, u);
    for (int64_t b = 0; b < count_blocks(work); b++) transform_dy(work, b);
    multiply_points(work);
}

static void run_share(struct work *work) {
    const struct dnn_plan *plan = work->plan;
    const int64_t n = conv_weight_batch_chunks(plan, work->call->batch),
                  shares = conv_weight_used_shares(plan, work->call->batch),
                  share = work->task.share;
    if (share >= shares) return;
    memset(work->m, 0, (size_t)(POINTS * plan->param[WINOGRAD_WEIGHT_M]) * sizeof(float));
    for (int64_t i = dnn_split(n, share, shares); i < dnn_split(n, share + 1, shares); i++)
        run_chunk(work, i);
    finish(work);
}

dnn_run_fn ISA_NAME(dnn_run_winograd_weight);
void ISA_NAME(dnn_run_winograd_weight)(const struct dnn_plan *plan, const struct dnn_call *call,
                                       void *scratch, int64_t begin, int64_t end) {
    const int64_t *param = plan->param, size = conv_weight_task_floats(plan);
    const bool is_shared = param[WEIGHT_SHARES] > 1;
    struct work work = {.plan = plan, .call = call, .v = scratch};
    work.w = work.v + POINTS * param[WINOGRAD_WEIGHT_V];
    work.m = work.w + POINTS * param[WINOGRAD_WEIGHT_W];
    for (int64_t i = begin; i < end; i++) {
        work.task = conv_weight_find_task(plan, i);
        work.sums = is_shared ? call->y + i * size : work.m + POINTS * param[WINOGRAD_WEIGHT_M];
        run_share(&work);
        if (!is_shared) dnn_conv_weight_store(plan, &work.task, work.sums, call->y);
    }
}

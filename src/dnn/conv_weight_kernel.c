/*
 * The gradient of a convolution's weight: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_conv_weight, on a range of tasks -> run_chunk -> run_unit or run_panel -> multiply
 *
 * conv_weight.c has planned all sizes; conv_weight.h explains the terms. The inner loop runs over the pixels of a row of dy: it loads the
 * vectors of a bundle, and broadcasts the x of each row of the tile. Where a tap leaves the image, rows and columns of dy are left out,
 * so a blocked x needs no padded copy.
 *
 * Invariants: it accesses nothing outside x, dy, dw and the partial results. The order of a sum does not depend on threads.
 */
#include "dnn/conv_weight.h"
#include "dnn/conv_weight_tile.h"
#include "dnn/simd_transpose.h"

/* What a pass fetches into L2, line by line with its pixels. Strides are in floats. */
struct fetch {
    const float *from;
    int64_t image, row, pixel;
};

/* The pixels of a chunk that a tap reads, and where the tile's sums are. Strides are in floats. */
struct pass {
    const float *x, *dy; /* of the first pixel */
    int64_t images, rows, columns;
    int64_t x_image, x_row, x_pixel; /* from one pixel of dy to the next, in x */
    int64_t dy_image, dy_row, dy_block;
    struct fetch fetch;
    const int64_t *offset; /* of a panel: of each of the tile's rows */
    float *sums;
};

/* Adds the products of all pixels to one tile's sums. */
INLINE void multiply(int vectors, bool panel, const struct pass *p) {
    const int64_t block = p->dy_block, x_pixel = p->x_pixel;
    vec sum[TILE_ROWS][TILE_VECTORS];
    int64_t offset[TILE_ROWS];
    clear_tile(vectors, sum);
    UNROLL
    for (int i = 0; i < TILE_ROWS; i++) offset[i] = panel ? p->offset[i] : i;
    for (int64_t image = 0; image < p->images; image++)
        for (int64_t row = 0; row < p->rows; row++) {
            const float *x = p->x + image * p->x_image + row * p->x_row;
            const float *dy = p->dy + image * p->dy_image + row * p->dy_row;
            add_pixels(vectors, x, x_pixel, panel ? offset : NULL, dy, dy + p->columns * LANES,
                       block, p->fetch.from + image * p->fetch.image + row * p->fetch.row,
                       p->fetch.pixel, sum);
        }
    add_tile(vectors, p->sums, sum);
}

typedef void multiply_fn(const struct pass *p);
#define MULTIPLY(n)                                                                  \
    static void multiply_##n##_blocked(const struct pass *p) { multiply(n, false, p); } \
    static void multiply_##n##_panel(const struct pass *p) { multiply(n, true, p); }
#define ENTRY(n) [n] = {multiply_##n##_blocked, multiply_##n##_panel},
#ifdef BY_LANE
SIMD_UP_TO(4, MULTIPLY)
static multiply_fn *const multiplies[TILE_VECTORS + 1][2] = {SIMD_UP_TO(4, ENTRY)};
#else
SIMD_UP_TO(2, MULTIPLY)
static multiply_fn *const multiplies[TILE_VECTORS + 1][2] = {SIMD_UP_TO(2, ENTRY)};
#endif

/* ---- Chunks ---- */

/* What all chunks of a task use: its bundles and units, and its sums. */
struct work {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    struct conv_weight_task task;
    float *sums, *panel;
};

struct chunk {
    int64_t image, n_images, row, n_rows; /* of dy */
};

/* The chunk that comes next. While a core adds the products of a chunk, it fetches the next one's x and dy, as it would wait for them else:
 * the products of one tap take little longer than to read them. */
struct ahead {
    struct chunk chunk;
    int64_t pass, n_passes; /* pass of this chunk; passes for each channel block of the next one */
};

/* Rows (or columns) [*begin, *end) of dy, of those given, whose window has `tap` in the image. */
static void clip(int64_t size, int64_t stride, int64_t pad, int64_t tap, int64_t *begin,
                 int64_t *end) {
    const int64_t before = pad - tap, behind = size + pad - tap;
    *begin = max_i64(*begin, before > 0 ? ceil_div(before, stride) : 0);
    *end = min_i64(*end, behind > 0 ? ceil_div(behind, stride) : 0);
}

/* Rows without gaps between them, in x and in dy, are one long row. */
static void merge_rows(struct pass *p) {
    if (p->x_row != p->columns * p->x_pixel || p->dy_row != p->columns * LANES) return;
    p->columns *= p->rows;
    p->rows = 1;
}

/* The first pixel of dy in row `row` and column `column` of the chunk's first image. */
static const float *find_dy(const struct work *work, const struct chunk *chunk, int64_t bundle,
                            int64_t row, int64_t column) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t block =
        work->task.group * work->plan->param[WEIGHT_K_BLOCKS] + bundle * TILE_VECTORS;
    return work->call->weight + chunk->image * work->call->y_stride +
           ((block * p->oh + row) * p->ow + column) * LANES;
}

/* Have all channels of x from `first` on, as many as a tile has rows, no values? */
static bool is_padding(const struct dnn_problem *p, int64_t first) {
    bool padding = p->c_map != NULL;
    for (int64_t i = first; i < first + TILE_ROWS && padding; i++) padding = p->c_map[i] < 0;
    return padding;
}

/* ---- What comes next ---- */

static struct ahead look_ahead(const struct work *work, const struct chunk *next) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t n_units = work->task.n_units, n_bundles = work->task.n_bundles,
                  passes = n_units * n_bundles * p->kh * p->kw * (LANES / TILE_ROWS);
    return (struct ahead){
        .chunk = *next, .n_passes = min_i64(LANES, passes / (n_units + n_bundles * TILE_VECTORS))};
}

/* Of the first pixel of channel block `i` of those that the task reads: first the units' ones, then the bundles'. */
static struct fetch find_block(const struct work *work, const struct chunk *chunk, int64_t i) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t n_units = work->task.n_units,
                  unit = work->task.group * work->plan->param[WEIGHT_UNITS] + work->task.unit + i;
    if (i >= n_units)
        return (struct fetch){find_dy(work, chunk, work->task.bundle, chunk->row, 0) +
                                  (i - n_units) * p->oh * p->ow * LANES,
                              work->call->y_stride, (int64_t)p->ow * LANES, LANES};
    return (struct fetch){work->call->x + chunk->image * work->call->x_stride +
                              (unit * p->h + chunk->row * p->sh) * p->w * LANES,
                          work->call->x_stride, (int64_t)p->sh * p->w * LANES,
                          (int64_t)p->sw * LANES};
}

/* Several passes share a block: each fetches a part of its rows. The last chunk, and tasks of few passes, fetch the line that they read
 * first. */
static void set_fetch(const struct work *work, struct ahead *ahead, struct pass *pass) {
    const int64_t parts = ahead->n_passes, i = ahead->pass++;
    const int64_t blocks =
        work->task.n_units + (work->task.n_bundles - 1) * TILE_VECTORS +
        conv_weight_count_vectors(work->plan, work->task.bundle + work->task.n_bundles - 1);
    pass->fetch = (struct fetch){.from = pass->dy};
    if (ahead->chunk.n_images < pass->images || !parts || i / parts >= blocks) return;
    pass->fetch = find_block(work, &ahead->chunk, i / parts);
    pass->fetch.pixel /= parts;
    pass->fetch.from += i % parts * pass->columns * pass->fetch.pixel;
}

/* One tap (r, s) of channel block `block` of a blocked x, on a chunk. `sums`: the tap's. */
static void run_tap(const struct work *work, const struct chunk *chunk, int64_t bundle,
                    int64_t block, int64_t r, int64_t s, struct ahead *ahead, float *sums) {
    const struct dnn_problem *p = &work->plan->problem;
    int64_t row = chunk->row, last = chunk->row + chunk->n_rows, column = 0, end = p->ow;
    clip(p->h, p->sh, p->pt, r * p->dh, &row, &last);
    clip(p->w, p->sw, p->pl, s * p->dw, &column, &end);
    if (row >= last || column >= end) return;
    const int64_t from = (block * p->h + row * p->sh + r * p->dh - p->pt) * p->w + column * p->sw +
                         s * p->dw - p->pl;
    struct pass pass = {.dy = find_dy(work, chunk, bundle, row, column),
                        .images = chunk->n_images,
                        .rows = last - row,
                        .columns = end - column,
                        .x_image = work->call->x_stride,
                        .x_row = (int64_t)p->sh * p->w * LANES,
                        .x_pixel = (int64_t)p->sw * LANES,
                        .dy_image = work->call->y_stride,
                        .dy_row = (int64_t)p->ow * LANES,
                        .dy_block = (int64_t)p->oh * p->ow * LANES};
    merge_rows(&pass);
    for (int64_t i = 0; i < LANES; i += TILE_ROWS) {
        if (is_padding(p, block * LANES + i)) continue;
        pass.x = work->call->x + chunk->image * work->call->x_stride + from * LANES + i;
        pass.sums = sums + i * TILE_VECTORS * LANES;
        set_fetch(work, ahead, &pass);
        multiplies[conv_weight_count_vectors(work->plan, bundle)][0](&pass);
    }
}

static void run_unit(const struct work *work, const struct chunk *chunk, int64_t bundle,
                     int64_t unit, struct ahead *ahead, float *sums) {
    const struct dnn_problem *p = &work->plan->problem;
    for (int64_t r = 0; r < p->kh; r++)
        for (int64_t s = 0; s < p->kw; s++, sums += LANES * TILE_VECTORS * LANES)
            run_tap(work, chunk, bundle, work->task.group * work->plan->param[WEIGHT_UNITS] + unit,
                    r, s, ahead, sums);
}

/* ---- A plain x ---- */

/* Copies row `row` of an image to `to`, with `left` zeros or columns to cut off in front. */
static void copy_row(const float *from, int64_t width, int64_t left, int64_t n, float *to) {
    const int64_t begin = min_i64(n, max_i64(0, left)),
                  end = max_i64(begin, min_i64(n, width + left));
    memset(to, 0, (size_t)begin * sizeof *to);
    memcpy(to + begin, from + begin - left, (size_t)(end - begin) * sizeof *to);
    memset(to + end, 0, (size_t)(n - end) * sizeof *to);
}

static void fill_panel(const struct work *work, const struct chunk *chunk) {
    const struct dnn_problem *p = &work->plan->problem;
    const int64_t rows = work->plan->param[WEIGHT_PANEL_ROWS],
                  columns = work->plan->param[WEIGHT_PANEL_COLUMNS];
    const float *x = work->call->x + chunk->image * work->call->x_stride;
    float *to = work->panel;
    for (int64_t c = 0; c < p->c; c++)
        for (int64_t i = 0; i < rows; i++, to += columns) {
            const int64_t row = chunk->row * p->sh - p->pt + i;
            if (row < 0 || row >= p->h) memset(to, 0, (size_t)columns * sizeof *to);
            else copy_row(x + (c * p->h + row) * p->w, p->w, p->pl, columns, to);
        }
}

/* Where row `i` of a plain unit, a channel and a tap, begins in the panel. Rows that fill up the last tile read anything. */
static int64_t find_offset(const struct dnn_plan *plan, int64_t i) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t taps = (int64_t)p->kh * p->kw, c = i / taps, tap = i % taps;
    if (c >= p->c) return 0;
    return (c * plan->param[WEIGHT_PANEL_ROWS] + tap / p->kw * p->dh) *
               plan->param[WEIGHT_PANEL_COLUMNS] +
           tap % p->kw * p->dw;
}

static void run_panel(const struct work *work, const struct chunk *chunk, int64_t bundle,
                      float *sums) {
    const struct dnn_problem *p = &work->plan->problem;
    int64_t offset[TILE_ROWS];
    struct pass pass = {.x = work->panel,
                        .dy = find_dy(work, chunk, bundle, chunk->row, 0),
                        .images = 1,
                        .rows = chunk->n_rows,
                        .columns = p->ow,
                        .x_row = p->sh * work->plan->param[WEIGHT_PANEL_COLUMNS],
                        .x_pixel = p->sw,
                        .dy_row = (int64_t)p->ow * LANES,
                        .dy_block = (int64_t)p->oh * p->ow * LANES,
                        .fetch = {.from = work->panel},
                        .offset = offset};
    for (int64_t i = 0; i < work->plan->param[WEIGHT_UNIT_ROWS]; i += TILE_ROWS) {
        for (int k = 0; k < TILE_ROWS; k++) offset[k] = find_offset(work->plan, i + k);
        pass.sums = sums + i * TILE_VECTORS * LANES;
        multiplies[conv_weight_count_vectors(work->plan, bundle)][1](&pass);
    }
}

/* ---- Tasks ---- */

/* next: the chunk that comes then; without images: none. */
static void run_chunk(const struct work *work, const struct chunk *chunk,
                      const struct chunk *next) {
    struct ahead ahead = look_ahead(work, next);
    const bool is_plain = work->plan->problem.x_plain;
    if (is_plain) fill_panel(work, chunk);
    for (int64_t b = 0; b < work->task.n_bundles; b++)
        for (int64_t u = 0; u < work->task.n_units; u++) {
            float *sums = conv_weight_find_sums(work->plan, work->sums, b, u);
            if (is_plain) run_panel(work, chunk, work->task.bundle + b, sums);
            else run_unit(work, chunk, work->task.bundle + b, work->task.unit + u, &ahead, sums);
        }
}

/* Chunk number i of the whole batch. */
static struct chunk find_chunk(const struct work *work, int64_t i) {
    const int64_t *param = work->plan->param, n = conv_weight_chunks(work->plan),
                  image = i / n * param[WEIGHT_CHUNK_IMAGES],
                  row = i % n * param[WEIGHT_CHUNK_ROWS];
    return (struct chunk){
        .image = image,
        .n_images = min_i64(param[WEIGHT_CHUNK_IMAGES], work->call->batch - image),
        .row = row,
        .n_rows = min_i64(param[WEIGHT_CHUNK_ROWS], work->plan->problem.oh - row)};
}

/* All chunks of share `share`. */
static void run_share(const struct work *work) {
    const int64_t n = conv_weight_batch_chunks(work->plan, work->call->batch),
                  shares = conv_weight_used_shares(work->plan, work->call->batch),
                  share = work->task.share;
    if (share >= shares) return;
    memset(work->sums, 0, (size_t)conv_weight_task_floats(work->plan) * sizeof(float));
    const int64_t end = dnn_split(n, share + 1, shares);
    for (int64_t i = dnn_split(n, share, shares); i < end; i++) {
        const struct chunk chunk = find_chunk(work, i),
                           next = i + 1 < end ? find_chunk(work, i + 1) : (struct chunk){0};
        run_chunk(work, &chunk, &next);
    }
}

/* Is dw a matrix of whole channel blocks? */
static bool is_matrix(const struct dnn_problem *p) {
    return p->kh == 1 && p->kw == 1 && !p->x_plain && p->groups == 1 && !p->c_map && !p->k_map;
}

/* One bundle and unit of a dw that is a matrix [k][c]: its blocks are transposed in registers. */
static void store_matrix(const struct work *work, const float *sums, int64_t bundle, int64_t unit) {
    const int64_t c = work->plan->problem.c, n = conv_weight_count_vectors(work->plan, bundle);
    for (int64_t v = 0; v < n; v++) {
        float *y = work->call->y + (bundle * TILE_VECTORS + v) * LANES * c + unit * LANES;
        vec row[LANES];
        UNROLL
        for (int i = 0; i < LANES; i++) row[i] = vec_load(sums + (i * TILE_VECTORS + v) * LANES);
        transpose(row);
        UNROLL
        for (int i = 0; i < LANES; i++) vec_store(y + i * c, row[i]);
    }
}

static void store(const struct work *work) {
    const struct conv_weight_task *task = &work->task;
    if (!is_matrix(&work->plan->problem)) {
        dnn_conv_weight_store(work->plan, task, work->sums, work->call->y);
        return;
    }
    for (int64_t b = 0; b < task->n_bundles; b++)
        for (int64_t u = 0; u < task->n_units; u++)
            store_matrix(work, conv_weight_find_sums(work->plan, work->sums, b, u),
                         task->bundle + b, task->unit + u);
}

dnn_run_fn ISA_NAME(dnn_run_conv_weight);
void ISA_NAME(dnn_run_conv_weight)(const struct dnn_plan *plan, const struct dnn_call *call,
                                   void *scratch, int64_t begin, int64_t end) {
    const int64_t size = conv_weight_task_floats(plan);
    const bool is_shared = plan->param[WEIGHT_SHARES] > 1;
    for (int64_t i = begin; i < end; i++) {
        const struct work work = {.plan = plan,
                                  .call = call,
                                  .task = conv_weight_find_task(plan, i),
                                  .sums = is_shared ? call->y + i * size : scratch,
                                  .panel = (float *)scratch + (is_shared ? 0 : size)};
        run_share(&work);
        if (!is_shared) store(&work);
    }
}

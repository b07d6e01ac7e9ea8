/*
 * Direct convolution: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_direct, on a range of tasks -> enter_block, fill_panel -> run_pair -> run_tile -> multiply_tile
 *
 * direct.c has planned sizes and packed the weights; direct.h explains the terms and layouts. A task fills the panel of its
 * block (or reads x in place), then loops over its pairs, and over all tiles of the block for each pair: the weights of a pair
 * stay in L1 or L2 while the pixels are streamed.
 *
 * Invariants: it accesses nothing outside x, y, the residual and the packed weights, except by prefetch, since the panel
 * supplies the zeros outside the image. The order of a sum (taps, then channels) does not depend on tile, task or thread.
 * Padding channels of y become zero, as their weights and bias are zero.
 *
 * Tiles of a plain y are computed as those of a blocked y, some neighbours in a small buffer, and then transposed: this takes less time
 * than a copy of y.
 */
#include "dnn/direct.h"
#include "dnn/int8.h"
#include "dnn/simd_transpose.h"

/* One tile: up to VALUES pixels in one row or two, times one or two channel blocks of y. */
struct tile {
    const float *x;       /* input of the first pixel, to which a tap's offset is added */
    const float *weights; /* [tap][channel][2*LANES] */
    const struct direct_tap *taps;
    int64_t n_taps, part; /* part: DIRECT_PART */
    float *total;         /* the sums of parts, [VALUES][2*LANES] */
    int64_t x_row;        /* floats between the inputs of the tile's two rows */
    struct simd_output out;
    struct turned *turned; /* of a plain y, where `out` is; else NULL */
    /* Quantized numbers: instead of `out` */
    const struct int8_outputs *outputs;
    struct int8_place place;
    ivec flip;
    const float *ahead; /* weights of the next pair; this tile prefetches n_ahead lines per tap */
    int64_t n_ahead;
};

/* ---- Tile ---- */

/*
 * Prefetches the x of the next tap; at the last tap, the x that the pixels behind this tile read at the first tap. It lies one
 * channel block away, where hardware prefetchers do not look, so that 1x1 convolutions would wait for L2. Gains 1 to 5% of
 * mobilenet_v1's time, and 1 to 3% of resnet50's.
 */
INLINE void fetch_next(int rows, int columns, int block, const struct tile *tile, int64_t tap) {
    const bool is_last = tap + 1 == tile->n_taps;
    const float *next =
        tile->x + tile->taps[is_last ? 0 : tap + 1].offset + (is_last ? columns * block : 0);
    UNROLL
    for (int i = 0; i < rows * columns; i++)
        __builtin_prefetch(next + (i < columns ? 0 : tile->x_row) + i % columns * block, 0, 3);
}

/*
 * The inner loop: per channel it loads two vectors of weights and one value per pixel, for 2 * pixels multiply-adds.
 * When this is inlined, all sizes except the numbers of taps and channels are constants: `sum` stays in registers, and
 * pixels have constant offsets from one pointer.
 */
INLINE void multiply_tile(int rows, int columns, int vectors, int block, const struct tile *tile) {
    const int pixels = rows * columns, step = block < STEP ? 1 : STEP;
    const float *weights = tile->weights, *ahead = tile->ahead;
    int64_t end = tile->part;
    vec sum[VALUES][2];
    simd_clear(pixels, sum);
    for (int64_t tap = 0; tap < tile->n_taps; tap++) {
        if (tap == end) {
            if (tap > tile->part)
                simd_add_parts(pixels, vectors, 2 * LANES, LANES, tile->total, sum);
            simd_store_parts(pixels, vectors, 2 * LANES, LANES, tile->total, sum);
            simd_clear(pixels, sum);
            end += tile->part;
        }
        const float *first = tile->x + tile->taps[tap].offset, *second = first + tile->x_row;
        const int n = block == 1 ? 1 : (int)tile->taps[tap].n_channels;
        for (int64_t i = 0; i < tile->n_ahead; i++, ahead += LINE) __builtin_prefetch(ahead, 0, 2);
        if (block > 1) fetch_next(rows, columns, block, tile, tap);
        for (int c = 0; c < n; c += step, weights += step * 2 * LANES)
            simd_multiply(step, rows, columns, vectors, block, first + c, second + c, weights, sum);
    }
    if (end > tile->part) simd_add_parts(pixels, vectors, 2 * LANES, LANES, tile->total, sum);
    simd_finish(rows, columns, vectors, 2, tile->out.pixel, &tile->out, sum[0]);
}

/* The same for quads, `block` per pixel, of which several pixels are in a line. */
INLINE void fetch_next_quads(int rows, int columns, int block, const struct tile *tile,
                             int64_t tap) {
    const bool is_last = tap + 1 == tile->n_taps;
    const float *next =
        tile->x + tile->taps[is_last ? 0 : tap + 1].offset + (is_last ? columns * block : 0);
    UNROLL
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < columns * block; i += LINE)
            __builtin_prefetch(next + (r ? tile->x_row : 0) + i, 0, 3);
}

/* The same for quads of quantized numbers. */
INLINE void multiply_int8(bool dot, int rows, int columns, int vectors, int block,
                          const struct tile *tile) {
    const int pixels = rows * columns;
    const float *weights = tile->weights, *ahead = tile->ahead;
    ivec sum[VALUES][2];
    UNROLL
    for (int i = 0; i < pixels; i++)
        sum[i][0] = tile->outputs->start[0], sum[i][1] = tile->outputs->start[1];
    for (int64_t tap = 0; tap < tile->n_taps; tap++) {
        const float *first = tile->x + tile->taps[tap].offset, *second = first + tile->x_row;
        const int64_t n = block == 1 ? 1 : tile->taps[tap].n_channels;
        for (int64_t i = 0; i < tile->n_ahead; i++, ahead += LINE) __builtin_prefetch(ahead, 0, 2);
        if (block > 1) fetch_next_quads(rows, columns, block, tile, tap);
        for (int64_t c = 0; c < n; c++, weights += 2 * LANES)
            int8_multiply(dot, rows, columns, vectors, 4 * block, (const char *)(first + c),
                          (const char *)(second + c), tile->flip, (const ivec *)weights, sum);
    }
    int8_finish(rows, columns, vectors, tile->outputs, tile->place, sum);
}

typedef void multiply_fn(const struct tile *tile);

/* What a tile multiplies: floats of a plain or a blocked x, or quads of either, each without or with an instruction for them. */
enum { PLAIN, BLOCKED, QUADS, QUADS_DOT, PLAIN_QUADS, PLAIN_QUADS_DOT, N_WAYS };

/* The variants of one tile: what it multiplies, times one or two channel blocks of y. */
#define INT8_ONE(rows, columns, kind, block, dot, vectors)                                   \
    static void multiply_##rows##x##columns##_##kind##dot##vectors(const struct tile *tile) { \
        multiply_int8(dot, rows, columns, vectors, block, tile);                             \
    }
#define INT8(rows, columns, kind, block)                                                     \
    INT8_ONE(rows, columns, kind, block, 0, 1) INT8_ONE(rows, columns, kind, block, 0, 2)    \
    INT8_ONE(rows, columns, kind, block, 1, 1) INT8_ONE(rows, columns, kind, block, 1, 2)
#define MULTIPLY_ONE(rows, columns, kind, block, vectors)                                    \
    static void multiply_##rows##x##columns##_##kind##vectors(const struct tile *tile) {     \
        multiply_tile(rows, columns, vectors, block, tile);                                  \
    }
#define MULTIPLY(rows, columns)                                                              \
    MULTIPLY_ONE(rows, columns, blocked, LANES, 1) MULTIPLY_ONE(rows, columns, blocked, LANES, 2) \
    MULTIPLY_ONE(rows, columns, plain, 1, 1) MULTIPLY_ONE(rows, columns, plain, 1, 2)        \
    INT8(rows, columns, quads, LANES / 4) INT8(rows, columns, plain_quads, 1)
#define VARIANTS(rows, columns)                                                              \
    {{multiply_##rows##x##columns##_plain1, multiply_##rows##x##columns##_plain2},           \
     {multiply_##rows##x##columns##_blocked1, multiply_##rows##x##columns##_blocked2},       \
     {multiply_##rows##x##columns##_quads01, multiply_##rows##x##columns##_quads02},         \
     {multiply_##rows##x##columns##_quads11, multiply_##rows##x##columns##_quads12},         \
     {multiply_##rows##x##columns##_plain_quads01, multiply_##rows##x##columns##_plain_quads02}, \
     {multiply_##rows##x##columns##_plain_quads11, multiply_##rows##x##columns##_plain_quads12}}

#define TILES(one, two) SIMD_UP_TO(VALUES, one) SIMD_UP_TO(HALF_VALUES, two)

#define DEFINE_ONE(columns) MULTIPLY(1, columns)
#define DEFINE_TWO(columns) MULTIPLY(2, columns)
TILES(DEFINE_ONE, DEFINE_TWO)

/* multiply[rows - 1][columns][PLAIN ..][channel blocks of y - 1] */
#define ENTRY_ONE(columns) [0][columns] = VARIANTS(1, columns),
#define ENTRY_TWO(columns) [1][columns] = VARIANTS(2, columns),
static multiply_fn *const multiply[2][VALUES + 1][N_WAYS][2] = {TILES(ENTRY_ONE, ENTRY_TWO)};

/* ---- Panel ---- */

/* The current block of y and its input. One per call of dnn_run_direct. */
struct block {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    const struct direct_tap *taps;
    float *panel;
    const struct direct_phase *phases;
    const float *x;   /* input of the block's first pixel, in panel or image */
    int way;          /* PLAIN .. */
    int padding;      /* each byte of values outside of the image */
    int64_t y_size;   /* bytes of a value of y */
    int64_t x_stride; /* floats from one sample of x to the next */
    int64_t image, plane, group, row, column, n_rows, n_columns; /* image: the sample */
};

/* Copies every sw-th pixel of one channel block, n in all, and applies the prologue. Padding channels stay zero: their scale
 * and shift are zero, and prologue_min <= 0. */
static void copy_blocked(const struct block *block, int64_t channel, const float *from, float *to,
                         int64_t n) {
    const struct dnn_problem *problem = &block->plan->problem;
    const int64_t step = block->plan->param[DIRECT_SW] * LANES;
    if (problem->prologue) {
        const vec scale = vec_load(block->call->scale + channel);
        const vec shift = vec_load(block->call->shift + channel);
        const vec low = vec_set(problem->prologue_min);
        for (int64_t i = 0; i < n; i++)
            vec_store(to + i * LANES, vec_max(vec_load(from + i * step) * scale + shift, low));
    } else if (step == LANES) {
        memcpy(to, from, (size_t)(n * LANES) * sizeof(float));
    } else {
        for (int64_t i = 0; i < n; i++) vec_store(to + i * LANES, vec_load(from + i * step));
    }
}

/* The same for one channel of a plain x. */
static void copy_plain(const struct block *block, int64_t channel, const float *from, float *to,
                       int64_t n) {
    const struct dnn_problem *problem = &block->plan->problem;
    const int64_t step = block->plan->param[DIRECT_SW];
    if (problem->prologue) {
        const float scale = block->call->scale[channel], shift = block->call->shift[channel];
        for (int64_t i = 0; i < n; i++) {
            const float value = from[i * step] * scale + shift;
            to[i] = value < problem->prologue_min ? problem->prologue_min : value;
        }
    } else if (step == 2) { /* a constant step lets the compiler use shuffles */
        for (int64_t i = 0; i < n; i++) to[i] = from[i * 2];
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = from[i * step];
    }
}

/* The same for quads of a channel block, LANES bytes per pixel. */
static void copy_quads(const struct block *block, const float *from, float *to, int64_t n) {
    const int64_t step = block->plan->problem.sw;
    if (step == 1) memcpy(to, from, (size_t)(n * LANES));
    else
        for (int64_t i = 0; i < n; i++) ((i8vec *)to)[i] = ((const i8vec *)from)[i * step];
}

/* The same for a plain x: joins the bytes of four channels, or those that are left. `from` is in the first one. */
static void join_quads(const struct block *block, int64_t channel, const uint8_t *from, int32_t *to,
                       int64_t n) {
    const struct dnn_plan *plan = block->plan;
    const int64_t step = plan->problem.sw, plane = plan->param[DIRECT_H] * plan->param[DIRECT_W];
    const int64_t n_channels = min_i64(4, plan->problem.c - channel);
    memset(to, 0, (size_t)n * sizeof *to);
    for (int c = 0; c < n_channels; c++, from += plane) {
        const int shift = 8 * c;
        if (step == 1) /* constant steps let the compiler use vectors */
            for (int64_t i = 0; i < n; i++) to[i] |= (int32_t)((uint32_t)from[i] << shift);
        else if (step == 2)
            for (int64_t i = 0; i < n; i++) to[i] |= (int32_t)((uint32_t)from[2 * i] << shift);
        else
            for (int64_t i = 0; i < n; i++) to[i] |= (int32_t)((uint32_t)from[step * i] << shift);
    }
}

/* Writes n pixels of one row of one column phase: every sw-th pixel of image row x, from `column` on (may be negative). Pixels
 * outside the image become zero, the others get the prologue. x NULL: the row lies outside the image. */
static void fill_line(const struct block *block, int64_t channel, const float *x, int64_t column,
                      float *to, int64_t n) {
    const int64_t *param = block->plan->param, step = block->plan->param[DIRECT_SW];
    const int64_t width = param[DIRECT_W], size = param[DIRECT_BLOCK];
    int64_t begin = column < 0 ? ceil_div(-column, step) : 0;
    int64_t end = column < width ? ceil_div(width - column, step) : 0;
    end = x ? min_i64(end, n) : 0;
    begin = min_i64(begin, end);
    memset(to, block->padding, (size_t)(begin * size) * sizeof(float));
    if (begin < end && block->way >= PLAIN_QUADS)
        join_quads(block, 4 * channel, (const uint8_t *)x + column + begin * step,
                   (int32_t *)to + begin, end - begin);
    else if (begin < end && block->way >= QUADS)
        copy_quads(block, x + (column + begin * step) * size, to + begin * size, end - begin);
    else if (begin < end)
        (size == 1 ? copy_plain : copy_blocked)(block, channel, x + (column + begin * step) * size,
                                                to + begin * size, end - begin);
    memset(to + end * size, block->padding, (size_t)((n - end) * size) * sizeof(float));
}

/* Writes one row of the panel in all column phases. `plane` and `row` are those of x; they may lie outside. */
static void fill_row(const struct block *block, int64_t c_block, int64_t plane, int64_t row,
                     float *to) {
    const struct dnn_plan *plan = block->plan;
    const int64_t *param = plan->param, size = param[DIRECT_BLOCK];
    const int64_t channel = (block->group * param[DIRECT_C_BLOCKS] + c_block) * size;
    const int64_t first = block->column * param[DIRECT_SW] - param[DIRECT_PL];
    const float *image = block->call->x + block->image * block->x_stride, *x = NULL;
    const bool is_inside =
        row >= 0 && row < param[DIRECT_H] && plane >= 0 && plane < param[DIRECT_D];
    if (is_inside && block->way >= PLAIN_QUADS)
        x = (const float *)((const char *)block->call->x + block->image * block->call->x_stride +
                            (4 * channel * param[DIRECT_H] + row) * param[DIRECT_W]);
    else if (is_inside)
        x = image +
            ((channel * param[DIRECT_D] + plane) * param[DIRECT_H] + row * size) * param[DIRECT_W];
    for (int64_t phase = 0; phase < param[DIRECT_COLUMN_PHASES]; phase++)
        fill_line(block, channel, x, first + phase, to + phase * param[DIRECT_COLUMN_PHASE],
                  block->n_columns + direct_more_columns(plan));
}

/* Fills the part of the panel that a plane of the kernel reads. */
static void fill_plane(const struct block *block, int64_t c, int64_t q) {
    const struct dnn_problem *problem = &block->plan->problem;
    const int64_t *param = block->plan->param;
    const int64_t plane = block->plane * problem->sd - problem->pd + q * problem->dd;
    float *panel = block->panel + c * param[DIRECT_C_STRIDE] + q * param[DIRECT_PLANE];
    const int64_t n_rows = block->n_rows + direct_more_rows(block->plan);
    const int64_t step = param[DIRECT_ROW_SPLIT] ? param[DIRECT_DH] : 1;
    for (int64_t phase = 0; phase < param[DIRECT_ROW_PHASES]; phase++)
        for (int64_t i = 0; i < n_rows; i++) {
            const int64_t row =
                (block->row + i) * param[DIRECT_SH] + phase * step - param[DIRECT_PT];
            fill_row(block, c, plane, row,
                     panel + phase * param[DIRECT_ROW_PHASE] + i * param[DIRECT_ROW_STRIDE]);
        }
}

/* Fills the panel for the block. Planes, rows and columns outside of x become zeros. */
static void fill_panel(const struct block *block) {
    const int64_t *param = block->plan->param;
    for (int64_t c = 0; c < param[DIRECT_C_BLOCKS]; c++)
        for (int64_t q = 0; q < param[DIRECT_KD]; q++) fill_plane(block, c, q);
}

/* ---- Plain y ---- */

/* Tiles of a plain y before they are stored: a strip of neighbours in one row, or one tile of two rows. Whole vectors of pixels are
 * transposed and stored, so a strip is a multiple of them, and there is room behind two rows. `column`: the strip's first point.
 * sums: [vector][pixel][LANES]. bias: of the pair, with zeros behind the last channel. */
enum { STRIP_TILES = 8, STRIP = STRIP_TILES * VALUES };
struct turned {
    float sums[2][STRIP][LANES], bias[2 * LANES];
    int64_t column;
};
_Static_assert(STRIP % LANES == 0 && 2 * HALF_VALUES + LANES <= STRIP, "strips of whole vectors");

/* Stores n pixels of one vector of channels; `plane`: floats from one channel of y to the next. */
static void store_channels(float (*sums)[LANES], int64_t n, int64_t n_channels, float *y,
                           int64_t plane) {
    for (int64_t i = 0; i < n; i += LANES) {
        vec v[LANES];
        float *to = y + i;
        UNROLL
        for (int j = 0; j < LANES; j++) v[j] = vec_load(sums[i + j]);
        transpose(v);
        if (i + LANES <= n && n_channels == LANES) {
            UNROLL
            for (int c = 0; c < LANES; c++) vec_store(to + c * plane, v[c]);
        } else {
            for (int c = 0; c < n_channels; c++)
                store_some(to + c * plane, v[c], min_i64(LANES, n - i));
        }
    }
}

/* The channels of y from number `k` on that are of the block's group. */
static int64_t count_left(const struct block *block, int64_t k) {
    const struct dnn_problem *problem = &block->plan->problem;
    return (block->group + 1) * (problem->k / problem->groups) - k;
}

/* Stores a strip or a tile, from this row on. */
static void store_turned(const struct block *block, struct turned *turned, int64_t k, int vectors,
                         int64_t row, int rows, int64_t columns) {
    const int64_t *param = block->plan->param, plane = param[DIRECT_Y_H] * param[DIRECT_Y_W];
    const int64_t volume = param[DIRECT_OD] * plane;
    const struct dnn_call *call = block->call;
    for (int v = 0; v < vectors; v++, k += LANES) {
        const int64_t n_channels = min_i64(LANES, count_left(block, k));
        float *y = call->y + block->image * call->y_stride + k * volume + block->plane * plane;
        for (int r = 0; r < rows; r++)
            store_channels(turned->sums[v] + r * columns, columns, n_channels,
                           y + (row + r) * param[DIRECT_Y_W] + turned->column, volume);
    }
}

/* Makes the sums and the bias of the tile those in `turned`. */
static void turn_tile(const struct block *block, int64_t k, struct turned *turned,
                      struct tile *tile) {
    const int64_t n = min_i64(2 * LANES, count_left(block, k));
    tile->turned = turned;
    tile->out.pixel = LANES;
    tile->out.block = STRIP * LANES;
    if (!tile->out.bias) return;
    memset(turned->bias, 0, sizeof turned->bias);
    memcpy(turned->bias, tile->out.bias, (size_t)n * sizeof(float));
    tile->out.bias = turned->bias;
}

/* ---- Block ---- */

/* Computes one tile, whose first pixel is point (row, column) of the output phase. */
static void run_tile(const struct block *block, const struct direct_phase *phase, struct tile *tile,
                     int64_t k, int vectors, int64_t row, int64_t column, int rows, int columns) {
    const int64_t *param = block->plan->param;
    const struct dnn_call *call = block->call;
    const int64_t y_row = row * param[DIRECT_UP_H] + phase->row;
    const int64_t y_column = column * param[DIRECT_UP_W] + phase->column;
    const int64_t plane = param[DIRECT_Y_H] * param[DIRECT_Y_W];
    const int64_t at = k * plane + (y_row * param[DIRECT_Y_W] + y_column) * LANES;
    tile->x = block->x + (row - block->row) * param[DIRECT_ROW_STRIDE] +
              (column - block->column) * param[DIRECT_BLOCK];
    if (block->way >= QUADS)
        tile->place.y = (char *)call->y + (block->image * call->y_stride + at) * block->y_size;
    else if (tile->turned)
        tile->out.y = tile->turned->sums[0][column - tile->turned->column],
        tile->out.row = columns * LANES;
    else tile->out.y = call->y + block->image * call->y_stride + at;
    if (tile->out.problem->residual)
        tile->out.residual = call->residual + block->image * call->residual_stride + at;
    multiply[rows - 1][columns][block->way][vectors - 1](tile);
}

/* The fields that are equal in all tiles of one pair and output phase. k: the first channel of the pair. */
static struct tile make_tile(const struct block *block, const struct direct_phase *phase,
                             int64_t pair, int64_t k, float *total) {
    const int64_t *param = block->plan->param;
    const struct dnn_call *call = block->call;
    const int64_t before = (block->group * param[DIRECT_PAIRS] + pair) * param[DIRECT_PAIR];
    return (struct tile){
        .weights = call->packed + before + phase->weights,
        .taps = block->taps + phase->tap,
        .n_taps = phase->n_taps,
        .part = param[DIRECT_PART],
        .total = total,
        .x_row = param[DIRECT_ROW_STRIDE],
        .out.pixel = param[DIRECT_UP_W] * LANES,
        .out.row = param[DIRECT_UP_H] * param[DIRECT_Y_W] * LANES,
        .out.block = param[DIRECT_Y_H] * param[DIRECT_Y_W] * LANES,
        .out.bias = call->bias ? call->bias + k : NULL,
        .out.problem = &block->plan->problem,
    };
}

/* The same for quantized numbers. Padding channels of y are masked. */
static void make_int8(const struct block *block, int64_t k, int vectors,
                      struct int8_outputs *outputs, struct tile *tile) {
    const struct dnn_call *call = block->call;
    const struct dnn_problem *problem = &block->plan->problem;
    const int64_t size = block->y_size;
    const int32_t *sums = (const int32_t *)tile->weights - 2 * LANES;
    int8_prepare(block->plan, call, call->scale + k, call->bias + k, sums, vectors * LANES,
                 outputs);
    for (int64_t i = 0; problem->k_map && i < vectors * LANES; i++)
        if (problem->k_map[k + i] < 0) outputs->valid[i / LANES][i % LANES] = 0;
    tile->outputs = outputs;
    tile->flip = int8_set(problem->x_type == SOL_I8 ? (int32_t)0x80808080 : 0);
    tile->place = (struct int8_place){
        .pixel = LANES * size, .row = tile->out.row * size, .block = tile->out.block * size};
}

/* Sets which weights tile `index` of n prefetches: the second half of the tiles prefetches those of the next output phase or
 * pair, in equal parts. This is early enough for the bandwidth of memory, and late enough that L2 holds little more than one pair.
 * size: floats of the weights of this output phase. */
static void fetch_ahead(struct tile *tile, int64_t size, int64_t index, int64_t n) {
    const int64_t lines = ceil_div(size, LINE), first = n / 2, share = index - first;
    const int64_t begin = dnn_split(lines, max_i64(0, share), n - first);
    const int64_t end = dnn_split(lines, max_i64(0, share + 1), n - first);
    tile->n_ahead = ceil_div(end - begin, max_i64(1, tile->n_taps));
    tile->ahead = tile->weights + size + begin * LINE;
}

/* Points of an output phase, in one direction of the block: `n` from `first` on, without those beyond the end of y. */
static int64_t clip_points(int64_t first, int64_t n, int64_t phase, int64_t phases, int64_t end) {
    return min_i64(n, ceil_div(end - phase, phases) - first);
}

/* Columns [*begin, *end) of one of the parts of a row. Columns are divided evenly, as a tile of few pixels waits for the latency of
 * its sums; in strips all tiles but the last one of a row are full. */
static void find_columns(const struct tile *tile, int64_t n_columns, int64_t part, int64_t parts,
                         int64_t *begin, int64_t *end) {
    *begin = tile->turned ? part * VALUES : dnn_split(n_columns, part, parts);
    *end =
        tile->turned ? min_i64(n_columns, *begin + VALUES) : dnn_split(n_columns, part + 1, parts);
}

/*
 * Computes all tiles of one pair and output phase: one part of the columns after the other, in strips one row after the other. Tiles that
 * fill at most half of VALUES take two rows.
 */
static void run_phase(const struct block *block, const struct direct_phase *phase, int64_t pair,
                      int64_t k, int vectors) {
    const int64_t *param = block->plan->param;
    const int64_t n_rows =
        clip_points(block->row, block->n_rows, phase->row, param[DIRECT_UP_H], param[DIRECT_Y_H]);
    const int64_t n_columns = clip_points(block->column, block->n_columns, phase->column,
                                          param[DIRECT_UP_W], param[DIRECT_Y_W]);
    const int64_t parts = ceil_div(n_columns, VALUES);
    const bool is_last = phase + 1 == block->phases + direct_phases(block->plan);
    const int64_t size = (is_last ? param[DIRECT_PAIR] : phase[1].weights) - phase->weights;
    const int64_t step = n_columns > 0 && 2 * ceil_div(n_columns, parts) <= VALUES ? 2 : 1;
    const int64_t n_tiles = parts * ceil_div(n_rows, step);
    float total[VALUES * 2 * LANES];
    struct tile tile = make_tile(block, phase, pair, k, total);
    struct int8_outputs outputs;
    struct turned turned;
    if (block->plan->problem.y_plain) turn_tile(block, k, &turned, &tile);
    if (block->way >= QUADS) make_int8(block, k, vectors, &outputs, &tile);
    for (int64_t index = 0, part = 0, row = 0; index < n_tiles; index++) {
        const int rows = (int)min_i64(step, n_rows - row);
        int64_t begin, end;
        find_columns(&tile, n_columns, part, parts, &begin, &end);
        if (part % STRIP_TILES == 0) turned.column = block->column + begin;
        fetch_ahead(&tile, size, index, n_tiles);
        run_tile(block, phase, &tile, k, vectors, block->row + row, block->column + begin, rows,
                 (int)(end - begin));
        if (!tile.turned) {
            if ((row += step) >= n_rows) part++, row = 0;
        } else if (++part == parts || part % STRIP_TILES == 0) {
            store_turned(block, &turned, k, vectors, block->row + row, rows,
                         block->column + end - turned.column);
            if (part == parts) part = 0, row += step;
        }
    }
}

/* Computes one pair, all output phases one after the other, then calls the epilogue for the block. */
static void run_pair(const struct block *block, int64_t pair) {
    const struct dnn_problem *problem = &block->plan->problem;
    const int64_t *param = block->plan->param;
    const int64_t k = block->group * (problem->k / problem->groups) + pair * 2 * LANES;
    const int vectors = (int)min_i64(2, ceil_div(count_left(block, k), LANES));
    for (int64_t i = 0; i < direct_phases(block->plan); i++)
        run_phase(block, &block->phases[i], pair, k, vectors);
    const int64_t row = block->row * param[DIRECT_UP_H],
                  column = block->column * param[DIRECT_UP_W];
    const int64_t rows = min_i64(block->n_rows * param[DIRECT_UP_H], param[DIRECT_Y_H] - row);
    const int64_t columns =
        min_i64(block->n_columns * param[DIRECT_UP_W], param[DIRECT_Y_W] - column);
    for (int v = 0; v < vectors; v++)
        dnn_call_epilogue(block->call, block->image, k / LANES + v,
                          row * param[DIRECT_Y_W] + column, rows, columns, param[DIRECT_Y_W]);
}

/* Sets the block to number `index` of (sample, plane, rows, columns, group), the last one fastest, and fills its panel. */
static void enter_block(struct block *block, int64_t index) {
    const int64_t *param = block->plan->param;
    const struct dnn_problem *problem = &block->plan->problem;
    const int64_t columns = ceil_div(param[DIRECT_OW], param[DIRECT_COLUMNS]);
    const int64_t rows = ceil_div(param[DIRECT_OH], param[DIRECT_ROWS]);
    block->group = index % problem->groups, index /= problem->groups;
    block->column = index % columns * param[DIRECT_COLUMNS], index /= columns;
    block->row = index % rows * param[DIRECT_ROWS], index /= rows;
    block->plane = index % param[DIRECT_OD], block->image = index / param[DIRECT_OD];
    block->n_rows = min_i64(param[DIRECT_ROWS], param[DIRECT_OH] - block->row);
    block->n_columns = min_i64(param[DIRECT_COLUMNS], param[DIRECT_OW] - block->column);
    if (param[DIRECT_PANEL]) {
        block->x = block->panel;
        fill_panel(block);
    } else {
        block->x = block->call->x + block->image * block->x_stride +
                   block->group * param[DIRECT_C_BLOCKS] * param[DIRECT_C_STRIDE] +
                   block->plane * problem->sd * param[DIRECT_H] * param[DIRECT_ROW_PHASE] +
                   block->row * param[DIRECT_ROW_STRIDE] + block->column * param[DIRECT_BLOCK];
    }
}

/* Floats to the input that lies `row` rows of x, or `column` columns, behind that of a point's first tap, in panel or image. */
static int64_t row_offset(const struct dnn_plan *plan, int64_t row) {
    const int64_t *param = plan->param, step = param[DIRECT_SH];
    if (param[DIRECT_ROW_SPLIT]) return row / param[DIRECT_DH] * param[DIRECT_ROW_PHASE];
    return row % step * param[DIRECT_ROW_PHASE] + row / step * param[DIRECT_ROW_STRIDE];
}

static int64_t column_offset(const struct dnn_plan *plan, int64_t column) {
    const int64_t step = plan->param[DIRECT_SW];
    return column % step * plan->param[DIRECT_COLUMN_PHASE] +
           column / step * plan->param[DIRECT_BLOCK];
}

/* Fills in the taps of one output phase. With a list, one loop in multiply_tile serves all kernel sizes; filling it costs little
 * compared to one tile. */
static void fill_taps(const struct dnn_plan *plan, const struct direct_phase *phase,
                      struct direct_tap *tap) {
    const int64_t *param = plan->param;
    int64_t row, column;
    for (int64_t c = 0; c < param[DIRECT_C_BLOCKS]; c++) {
        const int64_t n_channels = direct_channels(plan, c);
        for (int64_t q = 0; q < param[DIRECT_KD] * param[DIRECT_KH]; q++)
            for (int64_t s = 0; s < param[DIRECT_KW]; s++) {
                if (!direct_row(plan, phase->row, q % param[DIRECT_KH], &row) ||
                    !direct_column(plan, phase->column, s, &column))
                    continue;
                tap->offset = c * param[DIRECT_C_STRIDE] +
                              q / param[DIRECT_KH] * param[DIRECT_PLANE] + row_offset(plan, row) +
                              column_offset(plan, column);
                tap->n_channels = n_channels;
                tap++;
            }
    }
}

static void set_way(struct block *block) {
    const struct dnn_plan *plan = block->plan;
    const bool is_float = plan->problem.x_type == SOL_F32;
    const bool is_plain = plan->problem.x_plain;
    block->way =
        is_float ? (is_plain ? PLAIN : BLOCKED) : (is_plain ? PLAIN_QUADS : QUADS) + int8_has_dot();
    block->padding = is_float ? 0 : *block->call->zero & 255;
    block->x_stride = block->call->x_stride / direct_unit(plan);
    block->y_size = plan->problem.y_type == SOL_F32 ? 4 : 1;
}

/* Fills in the lists at the beginning of the scratch, and returns a block without a place. */
static struct block make_block(const struct dnn_plan *plan, const struct dnn_call *call,
                               void *scratch) {
    struct direct_phase *phases = scratch;
    struct direct_tap *taps = (struct direct_tap *)(phases + direct_phases(plan));
    dnn_direct_phases(plan, phases);
    for (int64_t i = 0; i < direct_phases(plan); i++)
        fill_taps(plan, &phases[i], taps + phases[i].tap);
    struct block block = {.plan = plan,
                          .call = call,
                          .phases = phases,
                          .taps = taps,
                          .panel = (float *)((char *)scratch + plan->param[DIRECT_TABLE])};
    set_way(&block);
    return block;
}

/* Task: (block, share), the share fastest, so that consecutive tasks of a range use one panel. */
dnn_run_fn ISA_NAME(dnn_run_direct);
void ISA_NAME(dnn_run_direct)(const struct dnn_plan *plan, const struct dnn_call *call,
                              void *scratch, int64_t begin, int64_t end) {
    const int64_t shares = plan->param[DIRECT_SHARES], pairs = plan->param[DIRECT_PAIRS];
    struct block block = make_block(plan, call, scratch);
    for (int64_t task = begin, index = -1; task < end; task++) {
        if (task / shares != index) enter_block(&block, index = task / shares);
        const int64_t share = task % shares, last = dnn_split(pairs, share + 1, shares);
        for (int64_t pair = dnn_split(pairs, share, shares); pair < last; pair++)
            run_pair(&block, pair);
    }
}

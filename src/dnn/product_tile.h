/*
 * For product_kernel.c: tiles, some rows of y for one panel of weights, and the functions that compute one, by its size.
 *
 * A tile of n rows loads PRODUCT_VECTORS vectors of weights and n values of x per input. A few rows read each weight once and compute
 * little with it, so memory or a far cache limits them: their tile has no prefetches, as the processor's own are faster along a panel
 * (50 GB/s from memory instead of 36 to 40).
 */
#ifndef SOL_DNN_PRODUCT_TILE_H
#define SOL_DNN_PRODUCT_TILE_H

#include "dnn/product.h"
#include "dnn/simd.h"

#define WIDTH (PRODUCT_VECTORS * LANES) /* outputs of a whole panel */
/* A loop's iteration multiplies GROUP * STEP inputs. Where STEP is 1, this saves additions to pointers. */
#define GROUP (STEP > 1 ? 1 : 4)
/* Cache lines of a group's weights. */
#define GROUP_LINES (GROUP * STEP * WIDTH / LINE)
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
    bool streams;           /* y is written past the caches */
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
    if (is_whole && tile->streams) {
        UNROLL
        for (int r = 0; r < rows; r++) vec_stream(y + r * y_stride, sum[r * step]);
        return;
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
    int left = tile->streams ? 0 : rows; /* of y, to be fetched */
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

#endif

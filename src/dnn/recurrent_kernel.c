/*
 * Recurrent layers: the computation of a tile of units at one step of time, compiled once per instruction set.
 *
 *   recurrent.c, run_task -> dnn_recurrent -> compute_rows: products, then the cell of its kind
 *
 * A tile loops over the units of the state before (recurrent_product.h). Then x is added and the functions of the gates are applied.
 *
 * Invariant: it accesses nothing outside of the tensors, except by prefetch: the last tile's vectors of x, bias and y are loaded and
 * stored in part.
 */
#include "dnn/list.h"
#include "dnn/recurrent.h"
#include "dnn/recurrent_product.h"
#include "dnn/simd_math.h"

/* ---- Cells ---- */

/* The tile's place: units [unit, unit + n) of `units`. */
struct place {
    int64_t units, unit, n;
};

/* Gate `g` of x at the tile's units. */
INLINE vec load_gate(const struct place *at, const float *x, int g) {
    return load_part(x + g * at->units + at->unit, at->n);
}

/* Keeps a column of the tile's units, if a gradient reads it. */
INLINE void keep(const struct place *at, const struct recurrent_row *row, int column, vec v) {
    if (row->kept) store_part(row->kept + column * at->units + at->unit, v, at->n);
}

INLINE void finish_lstm(const struct place *at, const struct recurrent_row *row, const vec *sum) {
    float *cell = row->cell + at->unit;
    const vec take = sigmoid(load_gate(at, row->x, 0) + sum[0]),
              stay = sigmoid(load_gate(at, row->x, 1) + sum[1]),
              now = tangent(load_gate(at, row->x, 2) + sum[2]),
              show = sigmoid(load_gate(at, row->x, 3) + sum[3]);
    const vec c = stay * load_part(cell, at->n) + take * now;
    store_part(cell, c, at->n);
    store_part(row->y + at->unit, show * tangent(c), at->n);
    keep(at, row, 0, take);
    keep(at, row, 1, stay);
    keep(at, row, 2, now);
    keep(at, row, 3, show);
    keep(at, row, 4, c);
}

INLINE void finish_gru(const struct place *at, const struct recurrent_row *row, const float *bias,
                       const vec *sum) {
    const vec reset = sigmoid(load_gate(at, row->x, 0) + sum[0]),
              stay = sigmoid(load_gate(at, row->x, 1) + sum[1]),
              inner = sum[2] + load_part(bias + at->unit, at->n),
              now = tangent(load_gate(at, row->x, 2) + reset * inner),
              before = load_part(row->h + at->unit, at->n);
    store_part(row->y + at->unit, stay * (before - now) + now, at->n);
    keep(at, row, 0, reset);
    keep(at, row, 1, stay);
    keep(at, row, 2, inner);
    keep(at, row, 3, now);
}

INLINE void finish_simple(const struct place *tile, const struct recurrent_row *row, bool is_relu,
                          const vec *sum) {
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
        const struct place at = {tile->units, tile->unit + v * LANES, tile->n - v * LANES};
        if (at.n <= 0) return;
        const vec x = load_gate(&at, row->x, 0) + sum[v];
        const vec y = is_relu ? vec_max(x, (vec){0}) : tangent(x);
        store_part(row->y + at.unit, y, at.n);
        keep(&at, row, 0, y);
    }
}

/* ---- The product ---- */

/* The functions of gates are no part of the unrolled code, as there is a copy of it for each number of rows. */
static void finish_row(int64_t kind, const struct place *at, const float *bias,
                       const struct recurrent_row *row, const vec *sum) {
    if (kind == RECURRENT_LSTM) finish_lstm(at, row, sum);
    else if (kind == RECURRENT_GRU) finish_gru(at, row, bias, sum);
    else finish_simple(at, row, kind == RECURRENT_RELU, sum);
}

/* The lines that a row's cell reads and writes come into the caches during the products: of x and of what is kept the first VECTORS, of the
 * state the first one. With the lstm's fifth column, which is written last, the walk takes longer. */
static void fetch_row(int64_t kind, const struct place *at, const struct recurrent_row *row) {
    const int64_t stride = dnn_recurrent_gates(kind) > 1 ? at->units : LANES;
    for (int64_t v = 0, i = at->unit; v < dnn_recurrent_vectors(kind); v++, i += stride)
        __builtin_prefetch(row->x + i);
    for (int64_t v = 0, i = at->unit; v < VECTORS && row->kept; v++, i += stride)
        __builtin_prefetch(row->kept + i, 1);
    __builtin_prefetch(row->y + at->unit, 1);
    if (kind == RECURRENT_LSTM) __builtin_prefetch(row->cell + at->unit, 1);
}

INLINE void compute_rows(int rows, int vectors, int64_t kind, const struct place *at,
                         const float *weight, const float *bias, const struct recurrent_row *row) {
    vec sum[ROWS][VECTORS];
    const float *h[ROWS];
    UNROLL
    for (int i = 0; i < rows; i++) {
        h[i] = row[i].h;
        fetch_row(kind, at, row + i);
    }
    multiply_tile(rows, vectors, at->units, weight, h, sum);
    for (int i = 0; i < rows; i++) finish_row(kind, at, bias, row + i, sum[i]);
}

typedef void multiply_fn(int64_t kind, const struct place *at, const float *weight,
                         const float *bias, const struct recurrent_row *row);

#define MULTIPLY(rows)                                                                            \
    static void multiply##rows(int64_t kind, const struct place *at, const float *weight,         \
                              const float *bias, const struct recurrent_row *row) {              \
        if (kind == RECURRENT_GRU) compute_rows(rows, 3, kind, at, weight, bias, row);           \
        else compute_rows(rows, 4, kind, at, weight, bias, row);                                 \
    }
SIMD_UP_TO(ROWS, MULTIPLY)

#define ENTRY(rows) multiply##rows,
static multiply_fn *const multiply_rows[ROWS + 1] = {NULL, SIMD_UP_TO(ROWS, ENTRY)};

dnn_recurrent_fn ISA_NAME(dnn_recurrent);
void ISA_NAME(dnn_recurrent)(int64_t kind, int64_t units, int64_t unit, const float *weight,
                             const float *bias, int n, const struct recurrent_row *row) {
    const struct place at = {units, unit, units - unit};
    const int parts = (int)ceil_div(n, ROWS);
    for (int part = 0; part < parts; part++) {
        const int from = (int)dnn_split(n, part, parts), to = (int)dnn_split(n, part + 1, parts);
        multiply_rows[to - from](kind, &at, weight, bias, row + from);
    }
}

/*
 * Gradients of recurrent layers: a tile of units of a step back in time. Compiled once per instruction set.
 *
 *   recurrent_grad.c, run_task -> dnn_recurrent_grad -> multiply: products, then the gradients of the gates
 *
 * A tile loops over all values of g, with a vector of sums per row and vector of units. All sums stay in registers, and a weight that
 * was loaded is used for all rows.
 *
 * Invariant: it accesses nothing outside of the tensors, except by prefetch: the last vectors are loaded and stored in part.
 */
#include "dnn/list.h"
#include "dnn/recurrent_grad.h"
#include "dnn/recurrent_product.h"
#include "dnn/simd_math.h"

/* A vector of units: `n` of them from `unit` on, of `units`. */
struct place {
    int64_t units, unit, n;
};

INLINE vec load_at(const struct place *at, const float *from) {
    return load_part(from + at->unit, at->n);
}
INLINE vec load_gate(const struct place *at, const float *from, int gate) {
    return load_part(from + gate * at->units + at->unit, at->n);
}
INLINE void store_gate(const struct place *at, float *to, int gate, vec v) {
    store_part(to + gate * at->units + at->unit, v, at->n);
}

/* ---- The gradients of the gates: dh is that of the state behind the step ---- */

INLINE void finish_lstm(const struct place *at, const struct recurrent_grad_row *row, vec dh) {
    const vec take = load_gate(at, row->gates, 0), keep = load_gate(at, row->gates, 1),
              now = load_gate(at, row->gates, 2), show = load_gate(at, row->gates, 3);
    const vec shown = tangent(load_gate(at, row->gates, 4));
    const vec dc = load_at(at, row->carry) + dh * show * (1.0f - shown * shown);
    store_gate(at, row->out, 0, dc * now * take * (1.0f - take));
    store_gate(at, row->out, 1, dc * load_at(at, row->before) * keep * (1.0f - keep));
    store_gate(at, row->out, 2, dc * take * (1.0f - now * now));
    store_gate(at, row->out, 3, dh * shown * show * (1.0f - show));
    store_part(row->carry + at->unit, dc * keep, at->n);
}

INLINE void finish_gru(const struct place *at, const struct recurrent_grad_row *row, vec dh) {
    const vec reset = load_gate(at, row->gates, 0), keep = load_gate(at, row->gates, 1),
              inner = load_gate(at, row->gates, 2), now = load_gate(at, row->gates, 3);
    const vec dx = dh * (1.0f - keep) * (1.0f - now * now);
    store_gate(at, row->out, 0, dx * inner * reset * (1.0f - reset));
    store_gate(at, row->out, 1, dh * (load_at(at, row->before) - now) * keep * (1.0f - keep));
    store_gate(at, row->out, 2, dx * reset);
    store_gate(at, row->out, 3, dx);
    store_part(row->carry + at->unit, dh * keep, at->n);
}

/* No gradient passes where relu's result is 0. The gradient of the first state stays as it is. */
INLINE void finish_simple(const struct place *at, const struct recurrent_grad_row *row,
                          int64_t kind, vec dh) {
    const vec y = row->gates ? load_at(at, row->gates) : (vec){0};
    if (kind == RECURRENT_RELU) dh = pick(y <= 0.0f, (vec){0}, dh);
    if (kind == RECURRENT_TANH) dh *= 1.0f - y * y;
    store_gate(at, row->out, 0, dh);
}

static void finish_row(int64_t kind, const struct place *tile, const struct recurrent_grad_row *row,
                       const vec *sum) {
    for (int v = 0; v < VECTORS && tile->n > v * LANES; v++) {
        const struct place at = {tile->units, tile->unit + v * LANES, tile->n - v * LANES};
        vec dh = sum[v];
        if (row->dy) dh += load_at(&at, row->dy);
        if (row->more) dh += load_at(&at, row->more);
        if (kind == RECURRENT_LSTM) finish_lstm(&at, row, dh);
        else if (kind == RECURRENT_GRU) finish_gru(&at, row, dh);
        else finish_simple(&at, row, kind, dh);
    }
}

/* ---- The product ---- */

/* The lines of the row that finish_row reads and writes come into the caches during the product. */
static void fetch_row(int64_t kind, const struct place *tile,
                      const struct recurrent_grad_row *row) {
    const int columns = kind == RECURRENT_FIRST ? 1 : dnn_recurrent_columns(kind);
    const int kept = row->gates ? dnn_recurrent_kept(kind) : 0;
    for (int64_t i = tile->unit; i < tile->unit + VECTORS * LANES; i += LINE) {
        for (int c = 0; c < kept; c++) __builtin_prefetch(row->gates + c * tile->units + i);
        for (int c = 0; c < columns; c++) __builtin_prefetch(row->out + c * tile->units + i, 1);
        if (row->dy) __builtin_prefetch(row->dy + i);
        if (row->before) __builtin_prefetch(row->before + i);
        __builtin_prefetch(row->carry + i, 1);
    }
}

typedef void multiply_fn(int64_t kind, const struct place *tile, int64_t inner, const float *weight,
                         const struct recurrent_grad_row *row);

#define MULTIPLY(rows)                                                                           \
    static void multiply##rows(int64_t kind, const struct place *tile, int64_t inner,            \
                               const float *weight, const struct recurrent_grad_row *row) {      \
        vec sum[ROWS][VECTORS];                                                                  \
        const float *g[ROWS];                                                                    \
        UNROLL                                                                                   \
        for (int i = 0; i < rows; i++) {                                                         \
            g[i] = row[i].after;                                                                 \
            fetch_row(kind, tile, row + i);                                                      \
        }                                                                                        \
        multiply_tile(rows, VECTORS, inner, weight, g, sum);                                     \
        for (int i = 0; i < rows; i++) finish_row(kind, tile, row + i, sum[i]);                  \
    }
SIMD_UP_TO(ROWS, MULTIPLY)

#define ENTRY(rows) multiply##rows,
static multiply_fn *const multiply_rows[ROWS + 1] = {NULL, SIMD_UP_TO(ROWS, ENTRY)};

dnn_recurrent_grad_fn ISA_NAME(dnn_recurrent_grad);
void ISA_NAME(dnn_recurrent_grad)(int64_t kind, int64_t units, int64_t unit, int64_t inner,
                                  const float *weight, int n,
                                  const struct recurrent_grad_row *row) {
    const struct place tile = {units, unit, units - unit};
    const int parts = (int)ceil_div(n, ROWS);
    for (int part = 0; part < parts; part++) {
        const int from = (int)dnn_split(n, part, parts), to = (int)dnn_split(n, part + 1, parts);
        multiply_rows[to - from](kind, &tile, inner, weight, row + from);
    }
}

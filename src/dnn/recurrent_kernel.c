/*
 * Recurrent layers: the computation of a tile of units at one step of time, compiled once per instruction set.
 *
 *   recurrent.c, run_task -> dnn_recurrent -> compute_rows: products, then the cell of its kind
 *
 * A tile loops over the units of the state before, with a vector of sums per row and vector of the tile. All sums stay in
 * registers, and a weight that was loaded is used for all rows. Then x is added and the functions of the gates are applied.
 *
 * Invariant: it accesses nothing outside of the tensors: the last tile's vectors of x, bias and y are loaded and stored in part.
 */
#include "dnn/list.h"
#include "dnn/recurrent.h"
#include "dnn/simd.h"

/* ROWS * VECTORS sums must fit into the registers together with VECTORS weights and a state. */
#if REGISTERS == 32
#define ROWS 6
#else
#define ROWS 2
#endif
enum { VECTORS = 4 };

typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* ---- Functions: exp and tanh with the formulas of dfp/vector.h, so that a gate is as accurate as a generated kernel ---- */

INLINE vec pick(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }

/* exp(x) = 2^n * exp(r), |r| <= ln(2)/2. Adding 1.5 * 2^23 rounds to an integer; 2^n is applied as two factors. */
INLINE vec exponential(vec x) {
    vec c = pick(x > 89.0f, vec_set(89.0f), x);
    c = pick(c < -104.0f, vec_set(-104.0f), c);
    const vec t = c * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
    const ivec e = (ivec)((uvec)t - 0x4b400000u);
    vec r = c - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    vec p = r * 1.3888889e-3f + 8.3333333e-3f;
    p = p * r + 4.1666668e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const uvec half = (uvec)(e >> 1);
    return p * (vec)((half + 127) << 23) * (vec)(((uvec)e - half + 127) << 23);
}

/* Near zero an odd polynomial, elsewhere 1 - 2 / (exp(2 |x|) + 1) with the sign of x. */
INLINE vec tangent(vec x) {
    const vec a = (vec)((ivec)x & 0x7fffffff), s = x * x;
    vec p = -5.70498872745e-3f * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    vec far = 1.0f - 2.0f / (exponential(a + a) + 1.0f);
    far = (vec)((ivec)far | ((ivec)x & (int32_t)0x80000000));
    return pick(a < 0.625f, p * s * x + x, far);
}

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }

/* ---- Memory: n <= 0 lanes are none ---- */

INLINE vec load_part(const float *at, int64_t n) {
    vec v = {0};
    if (n >= LANES) return vec_load(at);
    for (int64_t i = 0; i < n; i++) v[i] = at[i];
    return v;
}

INLINE void store_part(float *at, vec v, int64_t n) {
    if (n >= LANES) vec_store(at, v);
    else
        for (int64_t i = 0; i < n; i++) at[i] = v[i];
}

/* ---- Cells ---- */

/* The tile's place: units [unit, unit + n) of `units`. */
struct place {
    int64_t units, unit, n;
};

/* Gate `g` of x at the tile's units. */
INLINE vec load_gate(const struct place *at, const float *x, int g) {
    return load_part(x + g * at->units + at->unit, at->n);
}

INLINE void finish_lstm(const struct place *at, const struct recurrent_row *row, const vec *sum) {
    float *cell = row->cell + at->unit;
    const vec take = sigmoid(load_gate(at, row->x, 0) + sum[0]),
              keep = sigmoid(load_gate(at, row->x, 1) + sum[1]),
              now = tangent(load_gate(at, row->x, 2) + sum[2]),
              show = sigmoid(load_gate(at, row->x, 3) + sum[3]);
    const vec c = keep * load_part(cell, at->n) + take * now;
    store_part(cell, c, at->n);
    store_part(row->y + at->unit, show * tangent(c), at->n);
}

INLINE void finish_gru(const struct place *at, const struct recurrent_row *row, const float *bias,
                       const vec *sum) {
    const vec reset = sigmoid(load_gate(at, row->x, 0) + sum[0]),
              keep = sigmoid(load_gate(at, row->x, 1) + sum[1]),
              inner = sum[2] + load_part(bias + at->unit, at->n),
              now = tangent(load_gate(at, row->x, 2) + reset * inner),
              before = load_part(row->h + at->unit, at->n);
    store_part(row->y + at->unit, keep * (before - now) + now, at->n);
}

INLINE void finish_simple(const struct place *at, const struct recurrent_row *row, bool is_relu,
                          const vec *sum) {
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
        const int64_t n = at->n - v * LANES;
        if (n <= 0) return;
        const vec x = load_part(row->x + at->unit + v * LANES, n) + sum[v];
        store_part(row->y + at->unit + v * LANES, is_relu ? vec_max(x, (vec){0}) : tangent(x), n);
    }
}

/* ---- The product ---- */

INLINE void add_products(int rows, int vectors, int64_t units, const float *weight,
                         const struct recurrent_row *row, vec (*sum)[VECTORS]) {
    const float *h[ROWS];
    vec w[VECTORS];
    UNROLL
    for (int i = 0; i < rows; i++) {
        h[i] = row[i].h;
        UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = (vec){0};
    }
    for (int64_t k = 0; k < units; k++, weight += vectors * LANES) {
        UNROLL
        for (int v = 0; v < vectors; v++) w[v] = vec_load(weight + v * LANES);
        UNROLL
        for (int i = 0; i < rows; i++) {
            const vec x = vec_set(h[i][k]);
            UNROLL
            for (int v = 0; v < vectors; v++) sum[i][v] += x * w[v];
        }
    }
}

/* The functions of gates are no part of the unrolled code, as there is a copy of it for each number of rows. */
static void finish_row(int64_t kind, const struct place *at, const float *bias,
                       const struct recurrent_row *row, const vec *sum) {
    if (kind == RECURRENT_LSTM) finish_lstm(at, row, sum);
    else if (kind == RECURRENT_GRU) finish_gru(at, row, bias, sum);
    else finish_simple(at, row, kind == RECURRENT_RELU, sum);
}

INLINE void compute_rows(int rows, int vectors, int64_t kind, const struct place *at,
                         const float *weight, const float *bias, const struct recurrent_row *row) {
    vec sum[ROWS][VECTORS];
    add_products(rows, vectors, at->units, weight, row, sum);
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

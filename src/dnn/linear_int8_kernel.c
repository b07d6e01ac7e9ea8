/*
 * Quantized linear layers: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_linear_int8, on a range of tasks -> run_pair -> multiply_tile
 *
 * A tile is up to VALUES rows times one pair of outputs, whose sums stay in registers. The weights of a pair are read once per
 * tile, from L1 or L2.
 *
 * Invariants: it accesses nothing outside x, y and the packed weights. The last quad of a row, if it is not whole, is loaded byte by byte.
 */
#include "dnn/linear_int8.h"

#include "dnn/int8.h"

struct tile {
    const char *x;       /* the first row */
    int64_t c;           /* inputs, also bytes to the next row */
    const ivec *weights; /* [quad][2] */
    ivec flip;
    const struct int8_outputs *out;
    struct int8_place to;
};

/* The last n < 4 inputs of each row as whole quads, [row] of i32. */
static void load_rest(const struct tile *tile, int rows, int64_t n, int32_t *quads) {
    for (int i = 0; i < rows; i++) {
        quads[i] = 0;
        memcpy(&quads[i], tile->x + (i + 1) * tile->c - n, (size_t)n);
    }
}

INLINE void multiply_tile(bool dot, int rows, int vectors, const struct tile *tile) {
    const int64_t c = tile->c, whole = c / 4;
    const ivec *weights = tile->weights, flip = tile->flip;
    const char *x = tile->x;
    ivec sum[VALUES][2];
    UNROLL
    for (int i = 0; i < rows; i++) sum[i][0] = tile->out->start[0], sum[i][1] = tile->out->start[1];
    for (int64_t quad = 0; quad < whole; quad++, x += 4, weights += 2)
        int8_multiply(dot, 1, rows, vectors, c, x, x, flip, weights, sum);
    if (c % 4) {
        int32_t rest[VALUES];
        load_rest(tile, rows, c % 4, rest);
        int8_multiply(dot, 1, rows, vectors, 4, (const char *)rest, NULL, flip, weights, sum);
    }
    int8_finish(1, rows, vectors, tile->out, tile->to, sum);
}

typedef void multiply_fn(const struct tile *tile);

#define MULTIPLY_ONE(rows, dot, vectors)                                                     \
    static void multiply##rows##_##dot##_##vectors(const struct tile *tile) {                \
        multiply_tile(dot, rows, vectors, tile);                                             \
    }
#define MULTIPLY(rows)                                                                       \
    MULTIPLY_ONE(rows, 0, 1) MULTIPLY_ONE(rows, 0, 2) MULTIPLY_ONE(rows, 1, 1)               \
    MULTIPLY_ONE(rows, 1, 2)
SIMD_UP_TO(VALUES, MULTIPLY)

/* multiply[rows][by int8_dot][vectors - 1] */
#define ENTRY(rows)                                                                          \
    [rows] = {{multiply##rows##_0_1, multiply##rows##_0_2},                                  \
              {multiply##rows##_1_1, multiply##rows##_1_2}},
static multiply_fn *const multiply[VALUES + 1][2][2] = {SIMD_UP_TO(VALUES, ENTRY)};

/* Computes rows [n, n_end) of one pair, then calls the epilogue for them. */
static void run_pair(const struct dnn_plan *plan, const struct dnn_call *call, int64_t pair,
                     int64_t n, int64_t n_end) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t k = pair * 2 * LANES, size = p->y_type == SOL_F32 ? 4 : 1;
    const int64_t left = min_i64(2 * LANES, p->k - k), parts = ceil_div(n_end - n, VALUES);
    const char *packed = (const char *)call->packed + pair * plan->param[LINEAR_INT8_SIZE];
    struct int8_outputs out;
    int8_prepare(plan, call, call->scale + k, call->bias + k, (const int32_t *)packed, left, &out);
    struct tile tile = {.c = p->c,
                        .weights = (const ivec *)packed + 2,
                        .flip = int8_set(p->x_type == SOL_I8 ? (int32_t)0x80808080 : 0),
                        .out = &out,
                        .to = {.pixel = p->k * size, .block = LANES * size}};
    for (int64_t part = 0; part < parts; part++) {
        const int64_t row = n + dnn_split(n_end - n, part, parts);
        const int64_t end = n + dnn_split(n_end - n, part + 1, parts);
        tile.x = (const char *)call->x + row * p->c;
        tile.to.y = (char *)call->y + (row * p->k + k) * size;
        multiply[end - row][int8_has_dot()][left > LANES](&tile);
    }
}

dnn_run_fn ISA_NAME(dnn_run_linear_int8);
void ISA_NAME(dnn_run_linear_int8)(const struct dnn_plan *plan, const struct dnn_call *call,
                                   void *scratch, int64_t begin, int64_t end) {
    (void)scratch;
    const int64_t pairs = ceil_div(plan->problem.k, 2 * LANES),
                  step = plan->param[LINEAR_INT8_PAIRS];
    const int64_t shares = ceil_div(pairs, step), rows = plan->param[LINEAR_INT8_ROWS];
    for (int64_t task = begin; task < end; task++) {
        const int64_t n = task / shares * rows, n_end = min_i64(n + rows, call->batch);
        const int64_t first = task % shares * step, last = min_i64(first + step, pairs);
        const int64_t k = first * 2 * LANES, k_end = min_i64(last * 2 * LANES, plan->problem.k);
        for (int64_t pair = first; pair < last; pair++) run_pair(plan, call, pair, n, n_end);
        for (int64_t row = n; call->epilogue && row < n_end; row++)
            call->epilogue(call->epilogue_user, row, 0, k, (int)(k_end - k));
    }
}

/*
 * Linear layers: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_linear, on a range of tasks -> run_rows -> multiply_tile
 *
 * linear.c has planned sizes. A task computes LINEAR_OUTPUTS outputs for all rows of x. In x and in the weight the summed
 * dimension (the inputs) is innermost. A tile of `rows` x OUTPUTS sums loops over the inputs, with one vector of partial sums
 * per sum; at the end the lanes of each vector are added. Each loaded vector is used in several products, and a weight is
 * read from memory once per LINEAR_BATCH rows of x.
 *
 * Invariants: it accesses nothing outside the tensors, except by prefetch (the last inputs that do not fill a vector are
 * loaded one by one). The order of a sum does not depend on tile, task or number of threads; it depends on the number of rows
 * of x only if these exceed LINEAR_X_SIZE.
 */
#include "dnn/linear.h"
#include "dnn/simd.h"

/*
 * ROWS * OUTPUTS sums must fit into the registers together with ROWS vectors of x and OUTPUTS vectors of weights, as the
 * compiler loads all of these first. AHEAD: distance of the prefetch.
 */
#if REGISTERS == 32
#define ROWS 5
#else
#define ROWS 2
#endif
enum { OUTPUTS = 4, AHEAD = 256 /* floats */ };

typedef float quad __attribute__((vector_size(4 * OUTPUTS), aligned(4), may_alias));
typedef int32_t iquad __attribute__((vector_size(4 * OUTPUTS), aligned(4), may_alias));

/* Part of a task: rows of x from n on, outputs [k, k + OUTPUTS), inputs [c, c + depth). */
struct tile {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    int64_t n, k, c, depth;
};

static inline vec load_rest(const float *at, int64_t n) {
    vec v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = at[i];
    return v;
}

/* Adds neighbouring lanes: the lower half of the result has the sums of pairs of a's lanes, the upper half those of b's. */
INLINE vec add_pairs(vec a, vec b) {
    ivec even, odd;
    UNROLL
    for (int i = 0; i < LANES; i++) even[i] = 2 * i, odd[i] = 2 * i + 1;
    return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
}

/* Lane i of the result, for i < 4, is the sum of all lanes of v[i]. */
INLINE vec add_lanes(const vec *v) {
    vec sum = add_pairs(add_pairs(v[0], v[1]), add_pairs(v[2], v[3]));
    UNROLL
    for (int lanes = LANES; lanes > 4; lanes /= 2) sum = add_pairs(sum, sum);
    return sum;
}

INLINE void multiply_vectors(int rows, const vec *x, const vec *w, vec (*sum)[OUTPUTS]) {
    UNROLL
    for (int o = 0; o < OUTPUTS; o++) {
        UNROLL
        for (int r = 0; r < rows; r++) sum[r][o] += x[r] * w[o];
    }
}

/* Loads and stores n <= OUTPUTS values: the last tile of a layer may have fewer outputs than a quad. */
static inline quad load_quad(const float *at, int64_t n) {
    quad v = {0};
    if (n == OUTPUTS) return *(const quad *)at;
    for (int64_t i = 0; i < n; i++) v[i] = at[i];
    return v;
}

static inline void store_quad(float *at, quad v, int64_t n) {
    if (n == OUTPUTS) *(quad *)at = v;
    else
        for (int64_t i = 0; i < n; i++) at[i] = v[i];
}

static inline quad select_quad(iquad mask, float a, quad b) {
    return (quad)(((iquad)(a - (quad){0}) & mask) | ((iquad)b & ~mask));
}

/*
 * Stores the sums of one row. From the second part of the inputs on, it adds y, which holds the sums of the earlier parts;
 * with the last part, it adds bias and residual and applies the activation.
 */
static inline void finish_row(const struct tile *tile, int64_t n, vec sums) {
    const struct dnn_problem *problem = &tile->plan->problem;
    const struct dnn_call *call = tile->call;
    const int64_t outputs = min_i64(OUTPUTS, problem->k - tile->k);
    float *y = call->y + n * call->y_stride + tile->k;
    quad sum = __builtin_shufflevector(sums, sums, 0, 1, 2, 3);
    if (tile->c) sum += load_quad(y, outputs);
    if (tile->c + tile->depth == problem->c) {
        const float low = problem->act == DNN_ACT_CLAMP ? problem->act_min : 0;
        if (call->bias) sum += load_quad(call->bias + tile->k, outputs);
        if (problem->residual)
            sum += load_quad(call->residual + n * call->residual_stride + tile->k, outputs);
        /* As in vec_max: a NaN is not below any bound and stays. */
        if (problem->act != DNN_ACT_NONE) sum = select_quad(sum < low, low, sum);
        if (problem->act == DNN_ACT_CLAMP)
            sum = select_quad(sum > problem->act_max, problem->act_max, sum);
    }
    store_quad(y, sum, outputs);
}

INLINE void multiply_tile(int rows, const struct tile *tile) {
    const int64_t c_stride = tile->plan->problem.c, last = tile->plan->problem.k - 1;
    const int64_t x_stride = tile->call->x_stride, whole = tile->depth / LANES * LANES;
    const float *x = tile->call->x + tile->n * x_stride + tile->c, *w[OUTPUTS];
    /* Outputs beyond the last one compute the last one again and are not stored. */
    for (int o = 0; o < OUTPUTS; o++)
        w[o] = tile->call->weight + min_i64(tile->k + o, last) * c_stride + tile->c;

    vec sum[ROWS][OUTPUTS], xs[ROWS], ws[OUTPUTS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int o = 0; o < OUTPUTS; o++) sum[r][o] = (vec){0};
    }
    for (int64_t c = 0; c < whole; c += LANES) {
        UNROLL
        for (int r = 0; r < rows; r++) xs[r] = vec_load(x + r * x_stride + c);
        UNROLL
        for (int o = 0; o < OUTPUTS; o++) {
            ws[o] = vec_load(w[o] + c);
            /* Gains 10%; with one row of x the hardware's prefetcher does better. */
            if (rows > 1) __builtin_prefetch(w[o] + c + AHEAD);
        }
        multiply_vectors(rows, xs, ws, sum);
    }
    if (whole < tile->depth) {
        const int64_t rest = tile->depth - whole;
        for (int r = 0; r < rows; r++) xs[r] = load_rest(x + r * x_stride + whole, rest);
        for (int o = 0; o < OUTPUTS; o++) ws[o] = load_rest(w[o] + whole, rest);
        multiply_vectors(rows, xs, ws, sum);
    }
    UNROLL
    for (int r = 0; r < rows; r++) finish_row(tile, tile->n + r, add_lanes(sum[r]));
}

typedef void multiply_fn(const struct tile *tile);

#define MULTIPLY(rows) \
    static void multiply##rows(const struct tile *tile) { multiply_tile(rows, tile); }
SIMD_UP_TO(ROWS, MULTIPLY)

#define ENTRY(rows) multiply##rows,
static multiply_fn *const multiply[ROWS + 1] = {NULL, SIMD_UP_TO(ROWS, ENTRY)};

/*
 * Computes outputs [begin, end) for rows [n, n_end) of x. If these rows exceed LINEAR_X_SIZE, the sums are computed in parts
 * of LINEAR_DEPTH inputs, so that a part of x stays in L2.
 */
static void run_rows(const struct dnn_plan *plan, const struct dnn_call *call, int64_t n,
                     int64_t n_end, int64_t begin, int64_t end) {
    const int64_t c = plan->problem.c, parts = ceil_div(n_end - n, ROWS);
    const int64_t depth =
        (n_end - n) * c <= plan->param[LINEAR_X_SIZE] ? c : plan->param[LINEAR_DEPTH];
    struct tile tile = {plan, call, n, begin, 0, depth};
    for (tile.c = 0; tile.c < c; tile.c += depth) {
        tile.depth = min_i64(depth, c - tile.c);
        for (tile.k = begin; tile.k < end; tile.k += OUTPUTS)
            for (int64_t part = 0; part < parts; part++) {
                tile.n = n + dnn_split(n_end - n, part, parts);
                multiply[n + dnn_split(n_end - n, part + 1, parts) - tile.n](&tile);
            }
    }
    if (!call->epilogue) return;
    for (; n < n_end; n++) call->epilogue(call->epilogue_user, n, 0, begin, (int)(end - begin));
}

dnn_run_fn ISA_NAME(dnn_run_linear);
void ISA_NAME(dnn_run_linear)(const struct dnn_plan *plan, const struct dnn_call *call,
                              void *scratch, int64_t begin, int64_t end) {
    (void)scratch;
    const int64_t outputs = plan->param[LINEAR_OUTPUTS], step = plan->param[LINEAR_BATCH];
    for (int64_t task = begin; task < end; task++) {
        const int64_t k_end = min_i64((task + 1) * outputs, plan->problem.k);
        for (int64_t n = 0; n < call->batch; n += step)
            run_rows(plan, call, n, min_i64(n + step, call->batch), task * outputs, k_end);
    }
}

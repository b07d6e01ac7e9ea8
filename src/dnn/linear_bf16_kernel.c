/*
 * Linear layers whose factors may be rounded to bf16: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_linear_bf16, on a range of tasks -> run_task -> per part of the inputs: round_rows, multiply_part
 *
 * linear_bf16.h describes the packed weight and the tasks. A tile of up to VALUES rows x 2 vectors of outputs keeps its sums in
 * registers while it loops over pairs of inputs. There are two versions of it. The one with multiply-adds of pairs reads rows
 * that round_rows has rounded to bf16; the other one widens the weights to f32 and reads x itself.
 *
 * Invariants: it reads nothing outside the tensors. The order of a sum depends on the number of inputs alone: not on rows,
 * tasks or threads. Outputs that fill up the last panel are computed and not stored.
 */
#include "dnn/linear_bf16.h"

#include "dnn/simd.h"

enum { OUTPUTS = 2 * LANES };

#if LANES == 16 && defined __AVX512F__
#define PAIRS 1 /* the version with multiply-adds of pairs exists; BF16_HAS_PAIRS tells whether the processor has them */
#define WITH_PAIRS __attribute__((target("avx512bf16")))
#else
#define PAIRS 0
#endif

/* Part of a task: rows [n, n + rows) of x, outputs [k, k + OUTPUTS), inputs [c, c + depth). */
struct tile {
    const struct dnn_plan *plan;
    const struct dnn_call *call;
    const uint16_t
        *rounded; /* the rows' inputs of the part as bf16, `stride` apart; unused without pairs */
    int64_t stride;
    int64_t n, k, c, depth;
};

/* The weights of the tile's first pair of inputs. */
static inline const float *find_weights(const struct tile *tile) {
    const int64_t pairs = ceil_div(tile->plan->problem.c, 2);
    return tile->call->packed + (tile->k / OUTPUTS * pairs + tile->c / 2) * OUTPUTS;
}

/* ---- The end of a sum ---- */

/* n < OUTPUTS values; the others are 0. */
static inline void load_some(vec *v, const float *at, int64_t n) {
    float all[OUTPUTS] = {0};
    memcpy(all, at, (size_t)n * sizeof *at);
    v[0] = vec_load(all), v[1] = vec_load(all + LANES);
}

/* v += the first `outputs` values at `at`. */
INLINE void add_values(vec *v, const float *at, int64_t outputs) {
    vec other[2];
    if (outputs >= OUTPUTS) other[0] = vec_load(at), other[1] = vec_load(at + LANES);
    else load_some(other, at, outputs);
    v[0] += other[0], v[1] += other[1];
}

INLINE void activate(const struct dnn_problem *problem, vec *v) {
    const vec low = vec_set(problem->act == DNN_ACT_CLAMP ? problem->act_min : 0);
    for (int i = 0; i < 2 && problem->act != DNN_ACT_NONE; i++) {
        v[i] = vec_max(v[i], low);
        if (problem->act == DNN_ACT_CLAMP) v[i] = vec_min(v[i], vec_set(problem->act_max));
    }
}

/* Stores the sums of one row. From the second part on it adds y, which holds the sums of the earlier parts; with the last part
 * it adds bias and residual and applies the activation. */
INLINE void finish_row(const struct tile *tile, int64_t n, vec *v) {
    const struct dnn_problem *problem = &tile->plan->problem;
    const struct dnn_call *call = tile->call;
    const int64_t outputs = problem->k - tile->k;
    float *y = call->y + n * call->y_stride + tile->k;
    if (tile->c) add_values(v, y, outputs);
    if (tile->c + tile->depth == problem->c) {
        if (call->bias) add_values(v, call->bias + tile->k, outputs);
        if (problem->residual)
            add_values(v, call->residual + n * call->residual_stride + tile->k, outputs);
        activate(problem, v);
    }
    if (outputs >= OUTPUTS) vec_store(y, v[0]), vec_store(y + LANES, v[1]);
    else memcpy(y, v, (size_t)outputs * sizeof *y);
}

/* ---- Products in f32 ---- */

typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* sum[r] += x[row r][input] * w, for two vectors of weights */
INLINE void multiply_input(int rows, const float *x, int64_t stride, const vec *w, vec (*sum)[2]) {
    UNROLL
    for (int r = 0; r < rows; r++) {
        const vec value = vec_set(x[r * stride]);
        sum[r][0] += value * w[0];
        sum[r][1] += value * w[1];
    }
}

/* The first bf16 of a pair is in the lower half of a word. */
INLINE void multiply_wide(int rows, const struct tile *tile) {
    const float *weights = find_weights(tile);
    const int64_t stride = tile->call->x_stride;
    const float *x = tile->call->x + tile->n * stride + tile->c;
    vec sum[VALUES][2];
    UNROLL
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vec){0};
    for (int64_t c = 0; c < tile->depth; c += 2, weights += OUTPUTS) {
        const uvec pair0 = *(const uvec *)weights, pair1 = *(const uvec *)(weights + LANES);
        const vec first[2] = {(vec)(pair0 << 16), (vec)(pair1 << 16)};
        multiply_input(rows, x + c, stride, first, sum);
        if (c + 1 == tile->depth) break;
        const vec second[2] = {(vec)(pair0 & 0xffff0000), (vec)(pair1 & 0xffff0000)};
        multiply_input(rows, x + c + 1, stride, second, sum);
    }
    UNROLL
    for (int r = 0; r < rows; r++) finish_row(tile, tile->n + r, sum[r]);
}

typedef void multiply_fn(const struct tile *tile);
#define MULTIPLY_WIDE(rows) \
    static void multiply_wide##rows(const struct tile *tile) { multiply_wide(rows, tile); }
SIMD_UP_TO(VALUES, MULTIPLY_WIDE)
#define ENTRY_WIDE(rows) multiply_wide##rows,
static multiply_fn *const multiply_wides[VALUES + 1] = {NULL, SIMD_UP_TO(VALUES, ENTRY_WIDE)};

/* ---- Products of pairs ---- */

#if PAIRS
WITH_PAIRS INLINE void multiply_pairs(int rows, const struct tile *tile) {
    const float *weights = find_weights(tile);
    const uint16_t *x = tile->rounded;
    __m512 sum[VALUES][2];
    UNROLL
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < ceil_div(tile->depth, 2); p++, x += 2, weights += OUTPUTS) {
        const __m512bh w0 = (__m512bh)_mm512_loadu_ps(weights);
        const __m512bh w1 = (__m512bh)_mm512_loadu_ps(weights + LANES);
        UNROLL
        for (int r = 0; r < rows; r++) {
            int pair;
            memcpy(&pair, x + r * tile->stride, sizeof pair);
            const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
            sum[r][0] = _mm512_dpbf16_ps(sum[r][0], w0, value);
            sum[r][1] = _mm512_dpbf16_ps(sum[r][1], w1, value);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        vec sums[2] = {(vec)sum[r][0], (vec)sum[r][1]};
        finish_row(tile, tile->n + r, sums);
    }
}

#define MULTIPLY_PAIRS(rows) \
    WITH_PAIRS static void multiply_pairs##rows(const struct tile *tile) { multiply_pairs(rows, tile); }
SIMD_UP_TO(VALUES, MULTIPLY_PAIRS)
#define ENTRY_PAIRS(rows) multiply_pairs##rows,
static multiply_fn *const multiply_pair[VALUES + 1] = {NULL, SIMD_UP_TO(VALUES, ENTRY_PAIRS)};

/* Rounds inputs [c, c + depth) of a row to bf16. An odd number of inputs gets a zero, so that the last pair is whole. */
WITH_PAIRS static void round_row(const float *x, int64_t depth, uint16_t *to) {
    int64_t c = 0;
    for (; c + LANES <= depth; c += LANES)
        _mm256_storeu_si256((__m256i *)(void *)(to + c),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + c)));
    if (c == depth) return;
    const __mmask16 rest = (__mmask16)((1u << (depth - c)) - 1);
    const __mmask16 stored = (__mmask16)((1u << ((depth - c + 1) & ~1)) - 1);
    _mm256_mask_storeu_epi16(to + c, stored,
                             (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(rest, x + c)));
}
#endif

/* ---- Tasks ---- */

/* Rounds the tile's inputs of rows [n, n_end) into scratch. */
static void round_rows(struct tile *tile, int64_t n_end, bool has_pairs, void *scratch) {
    tile->rounded = scratch;
    tile->stride = round_up(tile->depth, 2);
#if PAIRS
    const struct dnn_call *call = tile->call;
    for (int64_t n = tile->n; has_pairs && n < n_end; n++)
        round_row(call->x + n * call->x_stride + tile->c, tile->depth,
                  (uint16_t *)scratch + (n - tile->n) * tile->stride);
#else
    (void)n_end, (void)has_pairs;
#endif
}

/* Rows [n, n_end) in equal tiles, for panels [k, k_end) one after the other: a panel stays in L1 or L2 meanwhile. */
static void multiply_part(struct tile tile, int64_t n_end, int64_t k_end, multiply_fn *const *fn) {
    const int64_t n = tile.n, parts = ceil_div(n_end - n, VALUES);
    const uint16_t *rounded = tile.rounded;
    for (; tile.k < k_end; tile.k += OUTPUTS)
        for (int64_t part = 0; part < parts; part++) {
            tile.n = n + dnn_split(n_end - n, part, parts);
            tile.rounded = rounded + (tile.n - n) * tile.stride;
            fn[n + dnn_split(n_end - n, part + 1, parts) - tile.n](&tile);
        }
}

/* Outputs [k, k_end) of rows [n, n_end). */
static void run_task(struct tile tile, int64_t n_end, int64_t k_end, void *scratch) {
    const struct dnn_call *call = tile.call;
    const int64_t c = tile.plan->problem.c, depth = tile.plan->param[BF16_DEPTH];
    const bool has_pairs = PAIRS && BF16_HAS_PAIRS;
    multiply_fn *const *fn = multiply_wides;
#if PAIRS
    if (has_pairs) fn = multiply_pair;
#endif
    for (tile.c = 0; tile.c < c; tile.c += depth) {
        tile.depth = min_i64(depth, c - tile.c);
        round_rows(&tile, n_end, has_pairs, scratch);
        multiply_part(tile, n_end, k_end, fn);
    }
    for (int64_t n = tile.n; call->epilogue && n < n_end; n++)
        call->epilogue(call->epilogue_user, n, 0, tile.k, (int)(k_end - tile.k));
}

dnn_run_fn ISA_NAME(dnn_run_linear_bf16);
void ISA_NAME(dnn_run_linear_bf16)(const struct dnn_plan *plan, const struct dnn_call *call,
                                   void *scratch, int64_t begin, int64_t end) {
    const int64_t outputs = plan->param[BF16_PANELS] * OUTPUTS, k = plan->problem.k;
    const int64_t blocks = ceil_div(k, outputs);
    const int64_t row_blocks = bf16_parts(call->batch, plan->param[BF16_ROWS]);
    for (int64_t task = begin; task < end; task++) {
        const int64_t row = task / blocks, block = task % blocks;
        const struct tile tile = {.plan = plan,
                                  .call = call,
                                  .n = dnn_split(call->batch, row, row_blocks),
                                  .k = block * outputs};
        run_task(tile, dnn_split(call->batch, row + 1, row_blocks),
                 min_i64(k, (block + 1) * outputs), scratch);
    }
}

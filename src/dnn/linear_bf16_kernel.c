/*
 * Linear layers whose factors may be rounded to bf16: the computation of tasks, compiled once per instruction set.
 *
 *   run/exec.c -> dnn_run_linear_bf16, on a range of tasks -> run_task -> per part of the inputs: copy_rows, multiply_part
 *
 * linear_bf16.h describes the packed weight and the tasks. A tile of up to ROWS rows x 2 vectors of outputs keeps its sums in
 * registers while it loops over pairs of inputs. There are two versions of it: one has multiply-adds of pairs of bf16, the other
 * one widens the weights to f32. Both read copies of the rows of x, which are BF16_STRIDE values apart: with a constant distance
 * no register holds the address of a row. The copies are bf16 in the first version, f32 in the second.
 *
 * Invariants: it reads nothing outside the tensors. The order of a sum depends on the number of inputs alone: not on rows,
 * tasks or threads. Outputs that fill up the last panel are computed and not stored.
 */
#include "dnn/linear_bf16.h"
#include "dnn/list.h"
#include "dnn/simd.h"

/* Most rows of a tile: its 2 * ROWS sums must fit into the registers together with the weights, two of them widened twice, and one
 * value of x. With two rows more, gcc 12 stores sums to memory in the loop: 0.8 times the speed. */
#if REGISTERS == 32
#define ROWS 12
#else
#define ROWS 5
#endif
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
    const void *x; /* copies of the rows' inputs of the part */
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

/* sum[r] += x[row r] * w, for two vectors of weights */
INLINE void multiply_input(int rows, const float *x, const vec *w, vec (*sum)[2]) {
    UNROLL
    for (int r = 0; r < rows; r++) {
        const vec value = vec_set(x[r * BF16_STRIDE]);
        sum[r][0] += value * w[0];
        sum[r][1] += value * w[1];
    }
}

/* The first bf16 of a pair is in the lower half of a word. */
INLINE void multiply_wide(int rows, const struct tile *tile) {
    const float *weights = find_weights(tile), *x = tile->x;
    vec sum[ROWS][2];
    UNROLL
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vec){0};
    for (int64_t c = 0; c < tile->depth; c += 2, weights += OUTPUTS) {
        const uvec pair0 = *(const uvec *)weights, pair1 = *(const uvec *)(weights + LANES);
        const vec first[2] = {(vec)(pair0 << 16), (vec)(pair1 << 16)};
        multiply_input(rows, x + c, first, sum);
        const vec second[2] = {(vec)(pair0 & 0xffff0000), (vec)(pair1 & 0xffff0000)};
        multiply_input(rows, x + c + 1, second, sum);
    }
    UNROLL
    for (int r = 0; r < rows; r++) finish_row(tile, tile->n + r, sum[r]);
}

typedef void multiply_fn(const struct tile *tile);
#define MULTIPLY_WIDE(rows) \
    static void multiply_wide##rows(const struct tile *tile) { multiply_wide(rows, tile); }
SIMD_UP_TO(ROWS, MULTIPLY_WIDE)
#define ENTRY_WIDE(rows) multiply_wide##rows,
static multiply_fn *const multiply_wides[ROWS + 1] = {NULL, SIMD_UP_TO(ROWS, ENTRY_WIDE)};

/* ---- Products of pairs ---- */

#if PAIRS
WITH_PAIRS INLINE void multiply_pairs(int rows, const struct tile *tile) {
    const float *weights = find_weights(tile);
    const uint16_t *x = tile->x;
    __m512 sum[ROWS][2];
    UNROLL
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < ceil_div(tile->depth, 2); p++, x += 2, weights += OUTPUTS) {
        const __m512bh w0 = (__m512bh)_mm512_loadu_ps(weights);
        const __m512bh w1 = (__m512bh)_mm512_loadu_ps(weights + LANES);
        UNROLL
        for (int r = 0; r < rows; r++) {
            int pair;
            memcpy(&pair, x + r * BF16_STRIDE, sizeof pair);
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
SIMD_UP_TO(ROWS, MULTIPLY_PAIRS)
#define ENTRY_PAIRS(rows) multiply_pairs##rows,
static multiply_fn *const multiply_pair[ROWS + 1] = {NULL, SIMD_UP_TO(ROWS, ENTRY_PAIRS)};

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

/* An odd number of inputs gets a zero, so that the last pair is whole. */
static void copy_row(const float *x, int64_t depth, float *to) {
    memcpy(to, x, (size_t)depth * sizeof *x);
    if (depth % 2) to[depth] = 0;
}

/* Copies the tile's inputs of rows [n, n_end) to scratch. */
static void copy_rows(struct tile *tile, int64_t n_end, bool has_pairs, void *scratch) {
    const struct dnn_call *call = tile->call;
    tile->x = scratch;
    for (int64_t n = tile->n, to = 0; n < n_end; n++, to += BF16_STRIDE) {
        const float *x = call->x + n * call->x_stride + tile->c;
#if PAIRS
        if (has_pairs) {
            round_row(x, tile->depth, (uint16_t *)scratch + to);
            continue;
        }
#endif
        copy_row(x, tile->depth, (float *)scratch + to);
    }
    (void)has_pairs;
}

/* Rows [n, n_end) in equal tiles, for panels [k, k_end) one after the other: a panel stays in L1 or L2 meanwhile. A copied row
 * has row_size bytes. */
static void multiply_part(struct tile tile, int64_t n_end, int64_t k_end, multiply_fn *const *fn,
                          int64_t row_size) {
    const int64_t n = tile.n, parts = ceil_div(n_end - n, ROWS);
    const char *x = tile.x;
    for (; tile.k < k_end; tile.k += OUTPUTS)
        for (int64_t part = 0; part < parts; part++) {
            const int64_t first = dnn_split(n_end - n, part, parts);
            tile.n = n + first;
            tile.x = x + first * row_size;
            fn[dnn_split(n_end - n, part + 1, parts) - first](&tile);
        }
}

/* Outputs [k, k_end) of rows [n, n_end). */
static void run_task(struct tile tile, int64_t n_end, int64_t k_end, void *scratch) {
    const struct dnn_call *call = tile.call;
    const int64_t c = tile.plan->problem.c, depth = BF16_DEPTH;
    const bool has_pairs = PAIRS && BF16_HAS_PAIRS;
    multiply_fn *const *fn = multiply_wides;
#if PAIRS
    if (has_pairs) fn = multiply_pair;
#endif
    for (tile.c = 0; tile.c < c; tile.c += depth) {
        tile.depth = min_i64(depth, c - tile.c);
        copy_rows(&tile, n_end, has_pairs, scratch);
        multiply_part(tile, n_end, k_end, fn, BF16_STRIDE * (has_pairs ? 2 : 4));
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

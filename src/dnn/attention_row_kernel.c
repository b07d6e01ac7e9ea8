/*
 * Attention of few rows: of the next word, in a text that is generated. Compiled once per instruction set.
 *
 *   attention_kernel.c -> dnn_attention_rows -> per row: scores of a block of keys -> softmax -> sums of v
 *
 * With few rows, vectors of rows (attention_kernel.c) would be nearly empty. So lanes are values of q and k, then keys, then values of
 * v, and k and v are read once per row, as fast as memory is.
 *
 * The order of each sum depends on the sizes of k and v alone.
 */
#include "dnn/attention.h"
#include "dnn/list.h"
#include "dnn/simd_math.h"

#include <float.h>

/* Vectors of v that are summed at once. */
enum { VECTORS = 4 };

struct row {
    const struct attention_block *b;
    int64_t index;     /* of the row in the block */
    float *scores, *y; /* [ATTENTION_KEYS], [e] */
    float top, total;
};

INLINE float add_lanes(vec x) {
    float sum = 0;
    UNROLL
    for (int l = 0; l < LANES; l++) sum += x[l];
    return sum;
}

/* ---- Scores ---- */

/* The sums of LANES vectors. */
INLINE vec add_each(vec x[LANES]) {
    simd_exchange(x);
    UNROLL
    for (int s = LANES / 2; s; s /= 2) UNROLL
    for (int i = 0; i < s; i++) x[i] += x[i + s];
    return x[0];
}

/* Scores of LANES keys. */
INLINE vec score_keys(const struct attention_block *b, const float *q, const float *k) {
    vec sum[LANES] = {{0}};
    int64_t d = 0;
    for (; d + LANES <= b->d; d += LANES) {
        const vec x = vec_load(q + d);
        UNROLL
        for (int i = 0; i < LANES; i++) sum[i] += x * vec_load(k + i * b->k_row + d);
    }
    if (d < b->d) {
        const vec x = load_part(q + d, b->d - d);
        UNROLL
        for (int i = 0; i < LANES; i++) sum[i] += x * load_part(k + i * b->k_row + d, b->d - d);
    }
    return add_each(sum);
}

static float score_key(const struct attention_block *b, const float *q, const float *k) {
    vec sum = {0};
    for (int64_t d = 0; d < b->d; d += LANES)
        sum += load_part(q + d, b->d - d) * load_part(k + d, b->d - d);
    return add_lanes(sum);
}

/* Scores up to a whole number of vectors: -infinity behind the last key. */
static void score(const struct row *r, int64_t key, int64_t keys) {
    const struct attention_block *b = r->b;
    const float *q = b->q + r->index * b->q_row, *k = b->k + key * b->k_row;
    int64_t i = 0;
    for (; i + LANES <= keys; i += LANES)
        vec_store(r->scores + i, score_keys(b, q, k + i * b->k_row) * b->scale);
    for (; i < keys; i++) r->scores[i] = score_key(b, q, k + i * b->k_row) * b->scale;
    for (; i % LANES; i++) r->scores[i] = 0;
    for (int64_t c = 0; b->cap != 0 && c < i; c += LANES)
        vec_store(r->scores + c, tangent(vec_load(r->scores + c) / b->cap) * b->cap);
    for (int64_t c = 0; b->mask && c < keys; c++)
        r->scores[c] += attention_read_mask(b, r->index, key + c);
    for (i = keys; i % LANES; i++) r->scores[i] = -__builtin_inff();
}

/* ---- Softmax and sums ---- */

static float one_exponential(float x) { return exponential_of_negative(vec_set(x))[0]; }

/* Scores become weights. Returns the factor of the sums up to now. */
static float weigh(struct row *r, int64_t keys) {
    vec top = vec_set(r->top), sum = {0};
    float most = r->top;
    for (int64_t i = 0; i < keys; i += LANES) top = vec_max(vec_load(r->scores + i), top);
    for (int l = 0; l < LANES; l++) most = top[l] > most || top[l] != top[l] ? top[l] : most;
    for (int64_t i = 0; i < keys; i += LANES) {
        const vec weight = exponential_of_negative(vec_load(r->scores + i) - most);
        vec_store(r->scores + i, weight);
        sum += weight;
    }
    const float factor = one_exponential(r->top - most);
    r->total = r->total * factor + add_lanes(sum);
    r->top = most;
    return factor;
}

/* y = y * factor + the sum of weights * v, for values [c, c + vectors * LANES) of v. Two sums per value, of even and odd keys. */
INLINE void add_values(int vectors, const struct row *r, int64_t key, int64_t keys, int64_t c,
                       float factor) {
    const float *v = r->b->v + key * r->b->v_row + c;
    vec sum[2][VECTORS] = {{{0}}};
    for (int64_t i = 0; i < keys; i++, v += r->b->v_row) {
        const vec weight = vec_set(r->scores[i]);
        UNROLL
        for (int n = 0; n < vectors; n++) sum[0][n] += weight * vec_load(v + n * LANES);
        if (++i == keys) break;
        v += r->b->v_row;
        const vec odd = vec_set(r->scores[i]);
        UNROLL
        for (int n = 0; n < vectors; n++) sum[1][n] += odd * vec_load(v + n * LANES);
    }
    UNROLL
    for (int n = 0; n < vectors; n++) {
        float *y = r->y + c + n * LANES;
        vec_store(y, vec_load(y) * factor + (sum[0][n] + sum[1][n]));
    }
}

static void add_last_values(const struct row *r, int64_t key, int64_t keys, int64_t c,
                            float factor) {
    const float *v = r->b->v + key * r->b->v_row + c;
    const int64_t n = r->b->e - c;
    vec sum = {0};
    for (int64_t i = 0; i < keys; i++)
        sum += vec_set(r->scores[i]) * load_part(v + i * r->b->v_row, n);
    store_part(r->y + c, load_part(r->y + c, n) * factor + sum, n);
}

static void add_keys(struct row *r, int64_t key, int64_t keys) {
    const int64_t e = r->b->e;
    int64_t c = 0;
    score(r, key, keys);
    const float factor = weigh(r, keys);
    for (; c + VECTORS * LANES <= e; c += VECTORS * LANES)
        add_values(VECTORS, r, key, keys, c, factor);
    for (; c + LANES <= e; c += LANES) add_values(1, r, key, keys, c, factor);
    if (c < e) add_last_values(r, key, keys, c, factor);
}

static void compute_row(struct row *r) {
    const struct attention_block *b = r->b;
    const int64_t parts = ceil_div(b->keys, ATTENTION_KEYS);
    const int64_t seen = b->is_causal ? min_i64(b->keys, b->row + r->index + 1) : b->keys;
    memset(r->y, 0, sizeof(float) * (size_t)b->e);
    for (int64_t part = 0; part < parts; part++) {
        const int64_t key = dnn_split(b->keys, part, parts),
                      end = min_i64(dnn_split(b->keys, part + 1, parts), seen);
        if (key < end) add_keys(r, key, end - key);
    }
    const float total = r->total, least = b->is_strict || total > 1 || total != total ? total : 1;
    for (int64_t c = 0; c < b->e; c++) r->y[c] /= least;
}

dnn_attention_fn ISA_NAME(dnn_attention_rows);
void ISA_NAME(dnn_attention_rows)(const struct attention_block *b, float *scratch) {
    for (int64_t i = 0; i < b->rows; i++) {
        struct row r = {
            .b = b, .index = i, .scores = scratch, .y = b->y + i * b->y_row, .top = -FLT_MAX};
        compute_row(&r);
    }
}

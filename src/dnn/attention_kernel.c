/*
 * Attention of a block of rows, compiled once per instruction set.
 *
 *   attention.c -> dnn_attention -> per block of keys: scores -> maxima, weights -> sums of v -> at the end: y = sums / weights
 *
 * Lanes are rows of q. So q is transposed into scratch memory, and scores, weights and sums of v lie there as [key][row] and
 * [value][row]: both products multiply vectors of rows by single values of k and v, which are read in place whatever their
 * strides and sizes are; the softmax needs no operation across lanes; and the order of each sum depends on the sizes
 * of k and v alone, never on the division of rows into tasks.
 *
 * If both factors of a product may be rounded to bf16, and the processor multiplies pairs of them, vectors of rows and values of k and v
 * are words, which hold pairs (bf16.h): the sums have half as many steps. Scores and sums stay f32.
 *
 * A block of keys computes exp(score - maximum), with the maximum of all keys up to now. If a later block has a larger
 * one, the sums are multiplied by exp(old maximum - new one).
 *
 * Invariants: nothing outside of the tensors is accessed. Lanes beyond the last row compute on zeros.
 */
#include "dnn/attention.h"
#include "dnn/bf16.h"
#include "dnn/list.h"
#include "dnn/simd_math.h"

#include <float.h>

/* A tile has 1 to VECTORS vectors of rows, times up to N_TILE_<vectors> keys or values: its sums stay in registers, together with
 * the vectors and one more. */
#if REGISTERS == 32
enum { VECTORS = 4 };
#define N_TILE_4 6
#define N_TILE_3 8
#define N_TILE_2 12
#define N_TILE_1 12
#define IF_WIDE(...) __VA_ARGS__
#else
enum { VECTORS = 2 };
#define N_TILE_2 6
#define N_TILE_1 12
#define IF_WIDE(...)
#endif

/* ---- Products ---- */

/* y[i][row] = sum over k of x[i * x_i + k * x_k] * rows[k][row], for n values i; plus y[i][row] * factor[row], unless `factor`
 * is NULL. `width`: floats of a row of `rows` and y. is_paired: x and rows are words, and the sum is multiplied by `scale`. */
struct product {
    const float *x, *rows, *factor;
    float *y, scale;
    int64_t x_i, x_k, depth, width;
    bool is_paired;
};

INLINE vec multiply_add(bool is_paired, vec sum, vec x, vec y) {
    if (is_paired) return bf16_multiply(sum, x, y);
    return sum + x * y;
}

INLINE void multiply_tile(bool is_paired, int n, int vectors, const struct product *p,
                          int64_t first, int64_t at) {
    const int64_t x_i = p->x_i, x_k = p->x_k, width = p->width;
    const float *x[12], *rows = p->rows + at;
    vec sum[12][4];
    UNROLL
    for (int i = 0; i < n; i++) {
        x[i] = p->x + (first + i) * x_i;
        UNROLL
        for (int v = 0; v < vectors; v++) sum[i][v] = (vec){0};
    }
    for (int64_t left = p->depth, k = 0; left; left--, k += x_k, rows += width) {
        vec row[4];
        UNROLL
        for (int v = 0; v < vectors; v++) row[v] = vec_load(rows + v * LANES);
        UNROLL
        for (int i = 0; i < n; i++) {
            const vec value = bf16_spread(x[i] + k);
            UNROLL
            for (int v = 0; v < vectors; v++)
                sum[i][v] = multiply_add(is_paired, sum[i][v], value, row[v]);
        }
    }
    float *y = p->y + first * width + at;
    UNROLL
    for (int v = 0; v < vectors; v++) {
        const vec factor = p->factor ? vec_load(p->factor + at + v * LANES) : (vec){0};
        UNROLL
        for (int i = 0; i < n; i++) {
            if (is_paired) sum[i][v] *= p->scale;
            if (p->factor) sum[i][v] += factor * vec_load(y + i * width + v * LANES);
            vec_store(y + i * width + v * LANES, sum[i][v]);
        }
    }
}

typedef void tile_fn(const struct product *p, int64_t first, int64_t at);
#define TILE_OF(kind, is_paired, n, vectors)                                                     \
    static void kind##_##n##_##vectors(const struct product *p, int64_t first, int64_t at) {    \
        multiply_tile(is_paired, n, vectors, p, first, at);                                     \
    }
#if BF16_PAIRS
#define TILE(n, vectors) TILE_OF(tile, false, n, vectors) TILE_OF(pair, true, n, vectors)
#else
#define TILE(n, vectors) TILE_OF(tile, false, n, vectors)
#endif
#define TILE_1(n) TILE(n, 1)
#define TILE_2(n) TILE(n, 2)
#define TILE_3(n) TILE(n, 3)
#define TILE_4(n) TILE(n, 4)
#define ENTRY_1(n) tile_##n##_1,
#define ENTRY_2(n) tile_##n##_2,
#define ENTRY_3(n) tile_##n##_3,
#define ENTRY_4(n) tile_##n##_4,
#define PAIR_1(n) pair_##n##_1,
#define PAIR_2(n) pair_##n##_2,
#define PAIR_3(n) pair_##n##_3,
#define PAIR_4(n) pair_##n##_4,
SIMD_UP_TO(N_TILE_1, TILE_1)
SIMD_UP_TO(N_TILE_2, TILE_2)
IF_WIDE(SIMD_UP_TO(N_TILE_3, TILE_3) SIMD_UP_TO(N_TILE_4, TILE_4))

/* tiles[is_paired][vectors][n] */
static tile_fn *const tiles[2][VECTORS + 1][13] = {
    {{NULL},
     {NULL, SIMD_UP_TO(N_TILE_1, ENTRY_1)},
     {NULL, SIMD_UP_TO(N_TILE_2, ENTRY_2)},
     IF_WIDE({NULL, SIMD_UP_TO(N_TILE_3, ENTRY_3)}, {NULL, SIMD_UP_TO(N_TILE_4, ENTRY_4)})},
#if BF16_PAIRS
    {{NULL},
     {NULL, SIMD_UP_TO(N_TILE_1, PAIR_1)},
     {NULL, SIMD_UP_TO(N_TILE_2, PAIR_2)},
     {NULL, SIMD_UP_TO(N_TILE_3, PAIR_3)},
     {NULL, SIMD_UP_TO(N_TILE_4, PAIR_4)}},
#endif
};
static const int n_tile[] = {0, N_TILE_1, N_TILE_2, IF_WIDE(N_TILE_3, N_TILE_4)};

/* Values i in [0, n): x of a tile stays in L1 while all vectors of rows are computed. */
static void multiply(const struct product *p, int64_t n) {
    const int64_t lanes = p->width / LANES, columns = ceil_div(lanes, VECTORS);
    const int64_t parts = ceil_div(n, n_tile[ceil_div(lanes, columns)]);
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = dnn_split(n, part, parts), end = dnn_split(n, part + 1, parts);
        for (int64_t c = 0; c < columns; c++) {
            const int64_t from = dnn_split(lanes, c, columns),
                          to = dnn_split(lanes, c + 1, columns);
            tiles[p->is_paired][to - from][end - first](p, first, from * LANES);
        }
    }
}

/* ---- Transposing ---- */

/* LANES rows of LANES floats; `row` and to_row: floats from row to row. */
INLINE void transpose_full(const float *from, int64_t row, float *to, int64_t to_row) {
    vec x[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++) x[i] = vec_load(from + i * row);
    simd_exchange(x);
    UNROLL
    for (int i = 0; i < LANES; i++) vec_store(to + i * to_row, x[i]);
}

/* The same for `rows` rows of `columns` floats, each at most LANES. Of `to`, `columns` rows of n_to floats are written; those beyond
 * `rows` are zero. */
static void transpose_part(const float *from, int64_t row, int64_t rows, int64_t columns, float *to,
                           int64_t to_row, int64_t n_to) {
    float in[LANES * LANES] = {0}, out[LANES * LANES];
    for (int64_t i = 0; i < rows; i++)
        memcpy(in + i * LANES, from + i * row, sizeof(float) * (size_t)columns);
    transpose_full(in, LANES, out, LANES);
    for (int64_t i = 0; i < columns; i++)
        memcpy(to + i * to_row, out + i * LANES, sizeof(float) * (size_t)n_to);
}

/* to[c][r] = from[r][c] for r < rows and c < columns. to[c] has n_to floats, zeros behind the last row. */
static void transpose(const float *from, int64_t row, int64_t rows, int64_t columns, float *to,
                      int64_t to_row, int64_t n_to) {
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
            const float *part = from + r * row + c;
            float *to_part = to + c * to_row + r;
            const int64_t n = min_i64(rows - r, LANES), width = min_i64(columns - c, LANES);
            if (n == LANES && width == LANES) transpose_full(part, row, to_part, to_row);
            else transpose_part(part, row, n, width, to_part, to_row, min_i64(n_to - r, LANES));
        }
}

/* ---- The block ---- */

struct state {
    const struct attention_block *b;
    int64_t width;                              /* rows of the block, as whole vectors */
    float *q, *scores, *mask, *y, *top, *total; /* [d or key or e][width], [width] */
    float *factor;                              /* of the sums up to now; [width] */
    bool is_paired;                             /* q, and scores that are weights, are words */
    float *words;                               /* those of a block of k or v; NULL: none */
};

/* q^T, scaled. Pairs are not scaled, as that would round them once more. */
static void load_q(const struct state *s) {
    const struct attention_block *b = s->b;
    if (s->is_paired) {
        const int64_t words = ceil_div(b->d, 2);
        bf16_round_rows(b->q, b->q_row, b->rows, b->d, s->words);
        transpose(s->words, words, b->rows, words, s->q, s->width, s->width);
        return;
    }
    transpose(b->q, b->q_row, b->rows, b->d, s->q, s->width, s->width);
    for (int64_t i = 0; b->scale != 1 && i < b->d * s->width; i += LANES)
        vec_store(s->q + i, vec_load(s->q + i) * b->scale);
}

static void begin(struct state *s, const struct attention_block *b, float *scratch) {
    *s = (struct state){.b = b, .width = round_up(b->rows, LANES), .q = scratch};
    s->scores = s->q + b->d * s->width;
    s->mask = s->scores + ATTENTION_KEYS * s->width;
    s->y = s->mask + ATTENTION_KEYS * s->width;
    s->top = s->y + b->e * s->width;
    s->total = s->top + s->width;
    s->factor = s->total + s->width;
    s->is_paired = b->may_round && bf16_has_pairs();
    s->words = s->factor + s->width;
    load_q(s);
    memset(s->y, 0, sizeof(float) * (size_t)(b->e * s->width));
    for (int64_t i = 0; i < s->width; i++) s->top[i] = -FLT_MAX, s->total[i] = 0;
}

/* scores = limit * tanh(scores / limit) */
static void cap_scores(const struct state *s, int64_t keys) {
    const float cap = s->b->cap, inverse = 1 / cap;
    for (int64_t i = 0; i < keys * s->width; i += LANES)
        vec_store(s->scores + i, tangent(vec_load(s->scores + i) * inverse) * cap);
}

/* ---- Masks ---- */

/* Rows [r, r + n) of a mask of bools whose keys are dense: as floats, then transposed. n <= LANES. */
static void fill_bools(const struct state *s, int64_t key, int64_t keys, int64_t r, int64_t n) {
    const struct attention_block *b = s->b;
    float values[LANES * ATTENTION_KEYS];
    for (int64_t l = 0; l < n; l++) {
        const uint8_t *from = (const uint8_t *)b->mask + (r + l) * b->mask_row + key;
        float *to = values + l * ATTENTION_KEYS;
        for (int64_t i = 0; i < keys; i++) to[i] = from[i] ? 0 : -__builtin_inff();
    }
    transpose(values, ATTENTION_KEYS, n, keys, s->mask + r, s->width, LANES);
}

/* s->mask [key][row]. Its rows are dense, or it is read value by value. */
static void fill_mask(const struct state *s, int64_t key, int64_t keys) {
    const struct attention_block *b = s->b;
    if (b->mask_key == 1) {
        for (int64_t r = 0; b->is_bool && r < b->rows; r += LANES)
            fill_bools(s, key, keys, r, min_i64(LANES, b->rows - r));
        if (!b->is_bool)
            transpose((const float *)b->mask + key, b->mask_row, b->rows, keys, s->mask, s->width,
                      s->width);
        return;
    }
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t i = 0; i < keys; i++)
            s->mask[i * s->width + r] = attention_read_mask(b, r, key + i);
    for (int64_t i = 0; i < keys; i++)
        for (int64_t r = b->rows; r < s->width; r++) s->mask[i * s->width + r] = 0;
}

/* Is nothing hidden by a mask of bools, whose keys are dense or all alike? */
static bool shows_all(const struct attention_block *b, int64_t key, int64_t keys) {
    const uint8_t *row = (const uint8_t *)b->mask + key * b->mask_key;
    const int64_t rows = b->mask_row ? b->rows : 1;
    if (!b->is_bool || b->mask_key > 1) return false;
    for (int64_t r = 0; r < rows; r++, row += b->mask_row)
        if (memchr(row, 0, b->mask_key ? (size_t)keys : 1)) return false;
    return true;
}

static void apply_mask(const struct state *s, int64_t key, int64_t keys) {
    const bool by_row = s->b->mask_row && s->b->rows > 1;
    const int64_t row = s->b->mask_key ? s->width : 0; /* one row, if it is the same for all keys */
    if (shows_all(s->b, key, keys)) return;
    if (by_row) fill_mask(s, key, row ? keys : 1);
    for (int64_t i = 0; i < keys; i++) {
        const vec same = vec_set(by_row ? 0 : attention_read_mask(s->b, 0, key + i));
        for (int64_t r = 0; r < s->width; r += LANES) {
            float *at = s->scores + i * s->width + r;
            vec_store(at, vec_load(at) + (by_row ? vec_load(s->mask + i * row + r) : same));
        }
    }
}

/* A row sees the keys up to its own number. */
static void hide_later(const struct state *s, int64_t key, int64_t keys) {
    ivec lane;
    for (int l = 0; l < LANES; l++) lane[l] = l;
    for (int64_t i = max_i64(0, s->b->row + 1 - key); i < keys; i++)
        for (int64_t r = 0; r < s->width; r += LANES) {
            float *at = s->scores + i * s->width + r;
            const ivec hidden = lane < (int32_t)(key + i - s->b->row - r);
            vec_store(at, pick(hidden, vec_set(-__builtin_inff()), vec_load(at)));
        }
}

/* ---- Softmax ---- */

/* The maximum and the sum of `vectors` vectors of rows; the scores become weights. The maximum is at least the least finite number:
 * so if a row is masked as a whole, its weights are exp(-infinity) = 0. */
INLINE void weigh_tile(int vectors, const struct state *s, int64_t keys, int64_t at) {
    float *scores = s->scores + at;
    const int64_t width = s->width;
    vec top[4], sum[4];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        top[v] = vec_load(s->top + at + v * LANES);
        sum[v] = (vec){0};
    }
    for (int64_t i = 0; i < keys; i++) UNROLL
    for (int v = 0; v < vectors; v++)
        top[v] = vec_max(vec_load(scores + i * width + v * LANES), top[v]);
    for (int64_t i = 0; i < keys; i++) UNROLL
    for (int v = 0; v < vectors; v++) {
        float *score = scores + i * width + v * LANES;
        const vec weight = exponential_of_negative(vec_load(score) - top[v]);
        vec_store(score, weight);
        sum[v] += weight;
    }
    UNROLL
    for (int v = 0; v < vectors; v++) {
        const int64_t i = at + v * LANES;
        const vec factor = exponential_of_negative(vec_load(s->top + i) - top[v]);
        vec_store(s->factor + i, factor);
        vec_store(s->total + i, vec_load(s->total + i) * factor + sum[v]);
        vec_store(s->top + i, top[v]);
    }
}

static void weigh(const struct state *s, int64_t keys) {
    int64_t at = 0;
    for (; at + 4 * LANES <= s->width; at += 4 * LANES) weigh_tile(4, s, keys, at);
    for (; at < s->width; at += LANES) weigh_tile(1, s, keys, at);
}

/* ---- All keys ---- */

/* Scores of keys [key, key + keys), before caps and masks. */
static void score_keys(const struct state *s, int64_t key, int64_t keys) {
    const struct attention_block *b = s->b;
    struct product p = {.x = b->k + key * b->k_row,
                        .x_i = b->k_row,
                        .x_k = 1,
                        .rows = s->q,
                        .depth = b->d,
                        .y = s->scores,
                        .width = s->width};
    if (s->is_paired) {
        bf16_round_rows(p.x, b->k_row, keys, b->d, s->words);
        p.is_paired = true;
        p.scale = b->scale;
        p.x = s->words;
        p.x_i = p.depth = ceil_div(b->d, 2);
    }
    multiply(&p, keys);
}

/* Adds v of these keys, by their weights, to the sums. */
static void add_values(const struct state *s, int64_t key, int64_t keys, bool is_first) {
    const struct attention_block *b = s->b;
    struct product p = {.x = b->v + key * b->v_row,
                        .x_i = 1,
                        .x_k = b->v_row,
                        .rows = s->scores,
                        .depth = keys,
                        .y = s->y,
                        .factor = is_first ? NULL : s->factor,
                        .width = s->width};
    if (s->is_paired) {
        bf16_join_rows(p.x, b->v_row, keys, b->e, s->words);
        bf16_join_rows(s->scores, s->width, keys, s->width, s->scores);
        p.is_paired = true;
        p.scale = 1;
        p.x = s->words;
        p.x_k = b->e;
        p.depth = ceil_div(keys, 2);
    }
    multiply(&p, b->e);
}

static void add_keys(const struct state *s, int64_t key, int64_t keys, bool is_first) {
    const struct attention_block *b = s->b;
    score_keys(s, key, keys);
    if (b->cap != 0) cap_scores(s, keys);
    if (b->mask) apply_mask(s, key, keys);
    if (b->is_causal && key + keys > b->row + 1) hide_later(s, key, keys);
    weigh(s, keys);
    add_values(s, key, keys, is_first);
}

/* The sum of a row's weights is at least 1, the weight of its maximum; or 0, if the row is masked as a whole: then y is 0, or, if the
 * layer is strict, 0 / 0. */
static void finish(const struct state *s) {
    const struct attention_block *b = s->b;
    for (int64_t r = 0; r < s->width; r += LANES) {
        const vec total = vec_load(s->total + r);
        const vec factor = 1.0f / (b->is_strict ? total : vec_max(total, vec_set(1)));
        for (int64_t c = 0; c < b->e; c++)
            vec_store(s->y + c * s->width + r, vec_load(s->y + c * s->width + r) * factor);
    }
    transpose(s->y, s->width, b->e, b->rows, b->y, b->y_row, b->e);
}

/* Up to this many rows, the kernel for single rows is faster. */
enum { FEW_ROWS = LANES / 4 };

dnn_attention_fn ISA_NAME(dnn_attention), ISA_NAME(dnn_attention_rows);
void ISA_NAME(dnn_attention)(const struct attention_block *b, float *scratch) {
    struct state s;
    if (b->total_rows <= FEW_ROWS) {
        ISA_NAME(dnn_attention_rows)(b, scratch);
        return;
    }
    begin(&s, b, scratch);
    const int64_t parts = ceil_div(b->keys, ATTENTION_KEYS);
    const int64_t seen = b->is_causal ? min_i64(b->keys, b->row + b->rows) : b->keys;
    for (int64_t part = 0; part < parts; part++) {
        const int64_t key = dnn_split(b->keys, part, parts),
                      end = min_i64(dnn_split(b->keys, part + 1, parts), seen);
        if (key < end) add_keys(&s, key, end - key, part == 0);
    }
    finish(&s);
}

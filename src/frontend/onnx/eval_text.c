/*
 * Operators on strings: concatenation, splitting, normalization, counting of n-grams.
 *
 * An element is an address and a length; its bytes belong to the file, the caller or this call. Pieces of a string point into it,
 * without copies. Strings are UTF-8, but only ASCII letters change their case.
 */
#include "eval.h"

#include <ctype.h>
#include <string.h>

static const struct bytes *text_at(const struct array *x, int64_t i) {
    return (const struct bytes *)x->data + i;
}

/* Input `i`, which must be a tensor of strings. */
static struct array *text_in(struct eval *e, int i) {
    struct array *x = eval_in(e, i);
    eval_check(e, x->type == TYPE_STRING, "an input that is no text");
    return x;
}

/* Compares bytes; `ignores_case` is for ASCII letters. */
static bool is_same(const struct bytes *a, const struct bytes *b, bool ignores_case) {
    if (a->size != b->size) return false;
    for (size_t i = 0; i < a->size; i++) {
        int p = a->at[i], q = b->at[i];
        if (ignores_case ? tolower(p) != tolower(q) : p != q) return false;
    }
    return true;
}

/* Sets output 0 to an array of the shape to which inputs 0 and 1, both strings, are broadcast. */
static struct array *broadcast_texts(struct eval *e, enum type type, struct array *x[2],
                                     struct walk *walk) {
    int64_t dim[SOL_MAX_RANK];
    for (int i = 0; i < 2; i++) x[i] = text_in(e, i);
    int rank = eval_broadcast(e, 2, x, dim);
    walk_init(walk, rank, dim);
    for (int i = 0; i < 2; i++) walk_broadcast(walk, i, x[i]);
    return eval_out(e, 0, type, rank, dim);
}

/* Equal of strings. */
void run_string_equal(struct eval *e) {
    struct array *x[2];
    struct walk walk;
    struct array *y = broadcast_texts(e, TYPE_BOOL, x, &walk);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk))
        ((uint8_t *)y->data)[i] =
            is_same(text_at(x[0], walk.offset[0]), text_at(x[1], walk.offset[1]), false);
}

/* Concatenates element by element, with broadcasting. */
void run_string_concat(struct eval *e) {
    struct array *x[2];
    struct walk walk;
    struct array *y = broadcast_texts(e, TYPE_STRING, x, &walk);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk)) {
        const struct bytes *a = text_at(x[0], walk.offset[0]), *b = text_at(x[1], walk.offset[1]);
        uint8_t *joined = SPACE_ARRAY(e->space, uint8_t, (int64_t)(a->size + b->size));
        if (a->size) memcpy(joined, a->at, a->size);
        if (b->size) memcpy(joined + a->size, b->at, b->size);
        ((struct bytes *)y->data)[i] = (struct bytes){joined, a->size + b->size};
    }
}

/* ---- Cutting ---- */

static bool is_blank(uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Removes the next piece from `left`: up to a delimiter, or to white space if `delimiter` is empty. `is_last`: the piece is the
 * whole rest. False when there is no piece. */
static bool next_piece(struct bytes *left, const struct bytes *delimiter, bool is_last,
                       struct bytes *out) {
    size_t at = 0, skip = delimiter->size;
    if (!left->at) return false;
    while (!delimiter->size && left->size && is_blank(*left->at))
        *left = (struct bytes){left->at + 1, left->size - 1};
    if (!delimiter->size && !left->size) return false;
    while (at < left->size && (delimiter->size ? at + skip > left->size ||
                                                     memcmp(left->at + at, delimiter->at, skip) != 0
                                               : !is_blank(left->at[at])))
        at++;
    bool is_end = is_last || at >= left->size;
    *out = (struct bytes){left->at, is_end ? left->size : at};
    if (!delimiter->size && is_last)
        while (out->size && is_blank(out->at[out->size - 1])) out->size--;
    *left = is_end ? (struct bytes){NULL, 0}
                   : (struct bytes){left->at + at + skip, left->size - at - skip};
    return true;
}

/* Splits at most `max` times; returns the number of pieces, and stores them in `out` unless it is NULL. */
static int64_t count_pieces(struct bytes left, const struct bytes *delimiter, int64_t max,
                            struct bytes *out) {
    struct bytes piece;
    int64_t n = 0;
    while (next_piece(&left, delimiter, n == max, &piece)) {
        if (out) out[n] = piece;
        n++;
    }
    return n;
}

/* The new last dim has the length of the longest list of pieces; shorter lists are padded with empty strings. */
void run_string_split(struct eval *e) {
    static const uint8_t empty[1];
    const struct array *x = text_in(e, 0);
    const char *text = eval_string(e, "delimiter", "");
    struct bytes delimiter = {(const uint8_t *)text, strlen(text)};
    int64_t max = eval_int(e, "maxsplit", INT64_MAX), widest = 0, dim[SOL_MAX_RANK + 1];
    struct array *counts = eval_out(e, 1, TYPE_I64, x->rank, x->dim);
    if (max < 0) max = INT64_MAX;
    struct bytes *all = SPACE_ARRAY(e->space, struct bytes, x->n);
    for (int64_t i = 0; i < x->n; i++) {
        all[i] = *text_at(x, i);
        if (!all[i].at) all[i].at = empty;
        int64_t n = count_pieces(all[i], &delimiter, max, NULL);
        array_set_int(counts, i, n);
        widest = max_i64(widest, n);
    }
    memcpy(dim, x->dim, sizeof x->dim);
    dim[x->rank] = widest;
    struct array *y = eval_out(e, 0, TYPE_STRING, x->rank + 1, dim);
    for (int64_t i = 0; i < x->n; i++)
        count_pieces(all[i], &delimiter, max, (struct bytes *)y->data + i * widest);
}

/* ---- Normalizing ---- */

static bool is_stopword(const struct onnx_attribute *words, const struct bytes *text,
                        bool ignores_case) {
    for (int i = 0; words && i < words->strings.n; i++)
        if (is_same(ITEM(words->strings, struct bytes, i), text, ignores_case)) return true;
    return false;
}

/* Bytes above 127 are part of other characters and do not change. */
static struct bytes change_case(struct eval *e, const struct bytes *text, int (*change)(int)) {
    uint8_t *copy = SPACE_ARRAY(e->space, uint8_t, (int64_t)text->size);
    for (size_t i = 0; i < text->size; i++)
        copy[i] = (uint8_t)(text->at[i] < 128 ? change(text->at[i]) : text->at[i]);
    return (struct bytes){copy, text->size};
}

/* Drops stopwords, then changes case. */
void run_string_normalizer(struct eval *e) {
    const struct array *x = text_in(e, 0);
    const char *action = eval_string(e, "case_change_action", "NONE");
    const struct onnx_attribute *words = eval_attribute(e, "stopwords");
    bool ignores_case = !eval_int(e, "is_case_sensitive", 0);
    eval_check(e, x->rank == 1 || (x->rank == 2 && x->dim[0] == 1), "neither [C] nor [1, C]");
    struct bytes *kept = SPACE_ARRAY(e->space, struct bytes, x->n + 1);
    int64_t n = 0;
    for (int64_t i = 0; i < x->n; i++) {
        if (is_stopword(words, text_at(x, i), ignores_case)) continue;
        kept[n] = *text_at(x, i);
        if (!strcmp(action, "LOWER")) kept[n] = change_case(e, &kept[n], tolower);
        if (!strcmp(action, "UPPER")) kept[n] = change_case(e, &kept[n], toupper);
        n++;
    }
    if (!n) n = 1; /* one empty string */
    int64_t dim[2] = {x->rank == 2 ? 1 : n, n};
    struct array *y = eval_out(e, 0, TYPE_STRING, x->rank, dim);
    memcpy(y->data, kept, (size_t)n * sizeof *kept);
}

/* ---- Counting n-grams ---- */

/* The n-grams to count, one after the other, and the columns of their counts. */
struct pool {
    const struct onnx_attribute *texts;
    const int64_t *ints, *starts, *indexes;
    int n_ints, n_starts, n_indexes;
};

/* Is item `at` of the pool equal to element `i` of x? */
static bool is_item(const struct pool *pool, int64_t at, const struct array *x, int64_t i) {
    if (pool->texts)
        return is_same(ITEM(pool->texts->strings, struct bytes, at), text_at(x, i), false);
    return pool->ints[at] == array_int(x, i);
}

/* How often the n-gram at `at` of the pool occurs in [first, first + n) of x, with `skip` other items between two of its items. */
static int64_t count_grams(const struct pool *pool, int64_t at, int64_t length,
                           const struct array *x, int64_t first, int64_t n, int64_t skip) {
    int64_t count = 0;
    for (int64_t i = 0; i + (length - 1) * (skip + 1) < n; i++) {
        int64_t k = 0;
        while (k < length && is_item(pool, at + k, x, first + i + k * (skip + 1))) k++;
        count += k == length;
    }
    return count;
}

/* The pool has strings or integers, as x has. `starts` is checked where it is used. */
static struct pool read_pool(struct eval *e, const struct array *x) {
    struct pool pool = {.texts = eval_attribute(e, "pool_strings")};
    pool.n_ints = eval_ints(e, "pool_int64s", &pool.ints);
    pool.n_starts = eval_ints(e, "ngram_counts", &pool.starts);
    pool.n_indexes = eval_ints(e, "ngram_indexes", &pool.indexes);
    eval_check(e,
               (x->rank == 1 || x->rank == 2) && (x->type == TYPE_STRING) == (pool.texts != NULL),
               "an input of another rank or type than the pool");
    for (int i = 0; i < pool.n_indexes; i++)
        eval_check(e, pool.indexes[i] >= 0 && pool.indexes[i] < INT32_MAX, "an index out of range");
    return pool;
}

/* The pool has all n-grams of length 1, then those of length 2, and so on. [*at, *end) are those of `length`. */
static void find_grams(struct eval *e, const struct pool *pool, int64_t length, int64_t *at,
                       int64_t *end) {
    int64_t total = pool->texts ? pool->texts->strings.n : pool->n_ints;
    *at = pool->starts[length - 1];
    *end = length < pool->n_starts ? pool->starts[length] : total;
    eval_check(e, *at >= 0 && *at <= *end && *end <= total && (*end - *at) % length == 0,
               "ngram_counts");
}

/* TF: the count; IDF: the weight if the count is above 0; TFIDF: count * weight. */
static double weigh(struct eval *e, double count, int gram) {
    const float *weights;
    int n = eval_floats(e, "weights", &weights);
    double weight = gram < n ? (double)weights[gram] : 1;
    if (eval_is(e, "mode", "TF")) return count;
    return eval_is(e, "mode", "IDF") ? (count > 0) * weight : count * weight;
}

/* The count of one n-gram in row `r`, summed over 0 to `skips` skipped items. */
static double count_in_row(const struct pool *pool, int64_t at, int64_t length,
                           const struct array *x, int64_t r, int64_t n, int64_t skips) {
    double count = 0;
    for (int64_t s = 0; s <= (length > 1 ? min_i64(skips, n) : 0); s++)
        count += (double)count_grams(pool, at, length, x, r * n, n, s);
    return count;
}

/* The count of each n-gram goes to the column of its index. */
void run_tf_idf(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    struct pool pool = read_pool(e, x);
    int64_t min = eval_int(e, "min_gram_length", 1), max = eval_int(e, "max_gram_length", 1);
    int64_t skips = eval_int(e, "max_skip_count", 0), size = 0, at, end;
    for (int i = 0; i < pool.n_indexes; i++) size = max_i64(size, pool.indexes[i] + 1);
    int64_t rows = x->rank == 2 ? x->dim[0] : 1, n = rows ? x->n / rows : 0;
    struct array *y =
        eval_out(e, 0, TYPE_F32, x->rank, (int64_t[]){x->rank == 2 ? rows : size, size});
    int gram = 0;
    for (int64_t length = 1; length <= pool.n_starts; length++) {
        for (find_grams(e, &pool, length, &at, &end); at < end; at += length, gram++) {
            eval_check(e, gram < pool.n_indexes, "ngram_indexes");
            for (int64_t r = 0; r < rows && length >= min && length <= max; r++) {
                double count = count_in_row(&pool, at, length, x, r, n, skips);
                array_set_double(y, r * size + pool.indexes[gram], weigh(e, count, gram));
            }
        }
    }
}

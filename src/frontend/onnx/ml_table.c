/*
 * Tables of ai.onnx.ml: categories as numbers and back, one-hot vectors; features that are selected, joined or compared.
 */
#include "ml.h"

#include <stdio.h>
#include <string.h>

/* 1 above the threshold, else 0. */
void run_binarizer(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    double limit = eval_float(e, "threshold", 0), *v = array_doubles(e->space, x);
    struct array *y = eval_out(e, 0, x->type, x->rank, x->dim);
    for (int64_t i = 0; i < x->n; i++) array_set_double(y, i, v[i] > limit);
}

/* Selects positions of the last dim. */
void run_array_feature_extractor(struct eval *e) {
    const struct array *x = eval_in(e, 0), *index = eval_in(e, 1);
    int64_t dim[SOL_MAX_RANK], n = x->rank ? x->dim[x->rank - 1] : 1;
    memcpy(dim, x->dim, sizeof dim);
    if (x->rank == 1) dim[0] = 1;
    int rank = x->rank == 1 ? 2 : x->rank;
    eval_check(e, x->rank > 0 && is_integer(index->type),
               "a scalar, or an index that is no integer");
    dim[rank - 1] = index->n;
    struct array *y = eval_out(e, 0, x->type, rank, dim);
    for (int64_t i = 0; i < y->n; i++) {
        int64_t from = i / index->n * n + eval_index(e, array_int(index, i % index->n), n);
        memcpy(array_at(y, i), array_at(x, from), types[x->type].size);
    }
}

/* Joins the features of all inputs, as f32. inputdimensions says how many features an input has: more are cut off, and those that
 * are missing are 0. */
void run_feature_vectorizer(struct eval *e) {
    const int64_t *width;
    const int n = eval_ints(e, "inputdimensions", &width);
    int64_t total = 0, rows = -1, at = 0;
    eval_check(e, n == e->n_in, "inputdimensions does not have a number per input");
    for (int i = 0; i < n; i++) {
        const struct array *x = eval_in(e, i);
        const int64_t own = x->rank ? x->dim[0] : -1;
        eval_check(e, x->rank == 1 || x->rank == 2, "an input that is neither a row nor a matrix");
        eval_check(e, rows < 0 || own == rows, "inputs with different numbers of rows");
        eval_check(e, width[i] >= 0 && !__builtin_add_overflow(total, width[i], &total),
                   "inputdimensions");
        rows = own;
    }
    struct array *y = eval_out(e, 0, TYPE_F32, 2, (int64_t[]){rows, total});
    for (int i = 0; i < n; at += width[i++]) {
        const struct array *x = e->in[i];
        const int64_t own = x->rank == 1 ? 1 : x->dim[1];
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < min_i64(own, width[i]); k++)
                array_set_double(y, r * total + at + k, array_double(x, r * own + k));
    }
}

/* ---- Categories ---- */

/* Integers become strings, and strings integers: the lists cats_int64s and cats_strings are parallel. */
void run_category_mapper(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    const bool is_text = x->type == TYPE_STRING;
    const struct ml_labels texts = ml_labels(e, "", "cats_strings"),
                           ints = ml_labels(e, "cats_int64s", "");
    eval_check(e, texts.list && ints.list && texts.list->n == ints.list->n,
               "cats_int64s and cats_strings have different lengths");
    eval_check(e, is_text || x->type == TYPE_I64, "an input that is neither text nor int64");
    const char *word = eval_string(e, "default_string", "_Unused");
    const struct bytes other = {(const uint8_t *)word, strlen(word)};
    struct array *y = eval_out(e, 0, is_text ? TYPE_I64 : TYPE_STRING, x->rank, x->dim);
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t k = ml_find_label(is_text ? &texts : &ints, x, i);
        if (k >= 0) ml_set_label(e, y, i, is_text ? &ints : &texts, k);
        else if (is_text) array_set_int(y, i, eval_int(e, "default_int64", -1));
        else ((struct bytes *)y->data)[i] = other;
    }
}

/* A new last dim with 1 at the category. Numbers are compared as integers. */
void run_one_hot_encoder(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    const struct ml_labels labels = ml_labels(e, "cats_int64s", "cats_strings");
    const bool allows_none = eval_int(e, "zeros", 1) != 0;
    int64_t dim[SOL_MAX_RANK + 1];
    eval_check(e, labels.list && (labels.type == TYPE_STRING) == (x->type == TYPE_STRING),
               "the categories have another type than the input");
    eval_check(e, x->rank < SOL_MAX_RANK, "an input of the greatest rank");
    memcpy(dim, x->dim, sizeof x->dim);
    dim[x->rank] = labels.list->n;
    struct array *y = eval_out(e, 0, TYPE_F32, x->rank + 1, dim);
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t k = ml_find_label(&labels, x, i);
        eval_check(e, k >= 0 || allows_none, "a value that is no category, with zeros=0");
        if (k >= 0) array_set_double(y, i * labels.list->n + k, 1);
    }
}

/* The list in attribute NAME_tensor, NAME_strings, NAME_int64s or NAME_floats, as an array; NULL when there is none. */
static struct array *find_list(struct eval *e, const char *name) {
    static const struct {
        const char *end;
        enum type type;
    } rows[] = {{"_strings", TYPE_STRING}, {"_int64s", TYPE_I64}, {"_floats", TYPE_F32}};
    char full[64];
    snprintf(full, sizeof full, "%s_tensor", name);
    struct array *array = eval_tensor(e, full);
    for (int i = 0; i < COUNT(rows) && !array; i++) {
        snprintf(full, sizeof full, "%s%s", name, rows[i].end);
        const struct onnx_attribute *a = eval_attribute(e, full);
        if (!a) continue;
        const struct list *list = i == 0 ? &a->strings : i == 1 ? &a->ints : &a->floats;
        array = eval_new(e, rows[i].type, 1, &(int64_t){list->n});
        if (list->n) memcpy(array->data, list->at, (size_t)list->n * types[array->type].size);
    }
    return array;
}

/* The result for a value that is no key. */
static struct array *default_label(struct eval *e, enum type type) {
    struct array *y = eval_tensor(e, "default_tensor");
    if (y) return y;
    y = eval_new(e, type, 1, &(int64_t){1});
    if (type == TYPE_STRING) {
        const char *text = eval_string(e, "default_string", "_Unused");
        *(struct bytes *)y->data = (struct bytes){(const uint8_t *)text, strlen(text)};
    } else if (type == TYPE_F32) {
        array_set_double(y, 0, eval_float(e, "default_float", -0.0));
    } else {
        array_set_int(y, 0, eval_int(e, "default_int64", -1));
    }
    return y;
}

/* Is element `i` of x equal to key `k`? NaN equals NaN here. */
static bool is_key(const struct array *keys, int64_t k, const struct array *x, int64_t i) {
    const struct bytes *a = (const struct bytes *)keys->data + k,
                       *b = (const struct bytes *)x->data + i;
    if (keys->type == TYPE_STRING)
        return a->size == b->size && (!a->size || !memcmp(a->at, b->at, a->size));
    double p = array_double(keys, k), q = array_double(x, i);
    return p == q || (p != p && q != q);
}

/* Maps keys to values; of equal keys, the first one is used. */
void run_label_encoder(struct eval *e) {
    const struct array *x = eval_in(e, 0), *keys = find_list(e, "keys"),
                       *values = find_list(e, "values");
    eval_check(e, keys && values && keys->n == values->n && keys->type == x->type,
               "keys or values");
    const struct array *default_value = default_label(e, values->type);
    eval_check(e, default_value->n == 1 && default_value->type == values->type, "the default");
    struct array *y = eval_out(e, 0, values->type, x->rank, x->dim);
    for (int64_t i = 0; i < x->n; i++) {
        int64_t k = 0;
        while (k < keys->n && !is_key(keys, k, x, i)) k++;
        memcpy(array_at(y, i), k < keys->n ? array_at(values, k) : default_value->data,
               types[y->type].size);
    }
}

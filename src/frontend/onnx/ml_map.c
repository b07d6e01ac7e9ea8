/*
 * Maps of ai.onnx.ml. A map is a list of two tensors of equal length, keys and values (TYPE_MAP). Only these operators, the
 * caller's inputs and the results have maps.
 */
#include "ml.h"

#include <string.h>

/* A map of each row's scores, with the labels as keys. The result is a sequence, also for a single row. */
void run_zip_map(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    const struct ml_rows rows = ml_rows(e);
    const struct ml_labels labels = ml_labels(e, "classlabels_int64s", "classlabels_strings");
    eval_check(e, labels.list && labels.list->n == rows.width,
               "the number of labels is not the number of scores");
    struct array *keys = eval_new(e, labels.type, 1, &rows.width), *list = eval_sequence(e, rows.n);
    for (int64_t k = 0; k < rows.width; k++) ml_set_label(e, keys, k, &labels, k);
    for (int64_t r = 0; r < rows.n; r++) {
        struct array *map = eval_sequence(e, 2);
        map->type = TYPE_MAP;
        eval_items(map)[0] = keys;
        eval_items(map)[1] =
            eval_from_doubles(e, TYPE_F32, 1, &rows.width, rows.values + r * rows.width);
        eval_items(list)[r] = map;
    }
    eval_check(e, x->type == TYPE_F32, "scores that are not f32");
    eval_set_output(e, 0, list);
}

/* The values of the keys in the vocabulary, as one row; a key that the map does not have is 0, or "". */
void run_dict_vectorizer(struct eval *e) {
    const struct ml_labels labels = ml_labels(e, "int64_vocabulary", "string_vocabulary");
    eval_check(e, eval_has(e, 0) && e->in[0]->type == TYPE_MAP, "an input that is no map");
    const struct array *keys = eval_items(e->in[0])[0], *values = eval_items(e->in[0])[1];
    eval_check(e,
               is_tensor(keys) && is_tensor(values) && keys->rank == 1 && values->rank == 1 &&
                   keys->n == values->n,
               "a map whose keys and values do not fit");
    /* A map without keys has no type of its own. */
    eval_check(e, labels.list && (keys->type == labels.type || !keys->n),
               "the vocabulary has another type than the keys");
    struct array *y = eval_out(e, 0, values->type, 2, (int64_t[]){1, labels.list->n});
    for (int64_t i = 0; i < keys->n; i++) {
        const int64_t k = ml_find_label(&labels, keys, i);
        if (k >= 0) memcpy(array_at(y, k), array_at(values, i), types[y->type].size);
    }
}

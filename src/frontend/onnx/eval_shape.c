/* Sources of values, of all element types, and Identity, also of sequences. */
#include "eval.h"

#include <string.h>

/* ---- Sources ---- */

static void output_strings(struct eval *e, const struct list *list, int rank) {
    struct array *y = eval_out(e, 0, TYPE_STRING, rank, &(int64_t){list->n});
    if (y->n) memcpy(y->data, list->at, (size_t)y->n * sizeof(struct bytes));
}

static void output_floats(struct eval *e, const float *values, int64_t n, int rank) {
    struct array *y = eval_out(e, 0, TYPE_F32, rank, &n);
    if (y->n) memcpy(y->data, values, (size_t)y->n * sizeof *values);
}

static void output_ints(struct eval *e, const int64_t *values, int64_t n, int rank) {
    array_fill_ints(eval_out(e, 0, TYPE_I64, rank, &n), values);
}

/* Exactly one of seven attributes has the value. */
void run_constant(struct eval *e) {
    eval_check(e, e->node->attributes.n == 1, "it has no value, or several");
    const struct onnx_attribute *a = ITEM(e->node->attributes, struct onnx_attribute, 0);
    const char *kind = !strncmp(a->name, "value", 5) ? a->name + 5 : "?";
    const float *floats;
    const int64_t *ints;
    if (!*kind) eval_set_output(e, 0, eval_tensor(e, a->name));
    else if (!strcmp(kind, "_float")) output_floats(e, &a->f, 1, 0);
    else if (!strcmp(kind, "_int")) output_ints(e, &a->i, 1, 0);
    else if (!strcmp(kind, "_floats")) {
        int n = eval_floats(e, a->name, &floats);
        output_floats(e, floats, n, 1);
    } else if (!strcmp(kind, "_ints")) {
        int n = eval_ints(e, a->name, &ints);
        output_ints(e, ints, n, 1);
    } else if (!strcmp(kind, "_strings")) {
        output_strings(e, &a->strings, 1);
    } else if (!strcmp(kind, "_string") && a->s) {
        *(struct bytes *)eval_out(e, 0, TYPE_STRING, 0, NULL)->data = *a->s;
    } else {
        eval_stop(e, fail(SOL_EUNSUPPORTED, "attribute \"%.32s\" is not known", a->name));
    }
}

/* Zeros of f32 unless the node has a value. */
void run_constant_of_shape(struct eval *e) {
    int64_t *dim;
    int rank = eval_in_ints(e, 0, &dim);
    const struct array *value = eval_tensor(e, "value");
    struct array *y = eval_out(e, 0, value ? value->type : TYPE_F32, rank, dim);
    eval_check(e, !value || value->n == 1, "its value has not one element");
    for (int64_t i = 0; value && i < y->n; i++)
        memcpy(array_at(y, i), value->data, types[y->type].size);
}

/* ---- The same values ---- */

void run_identity(struct eval *e) { eval_set_output(e, 0, e->in[0]); }

/*
 * Operators that make tensors from shapes and numbers, or give the same values another shape.
 *
 * A reshaped tensor is a view of the same data, since complete tensors never change. Shapes are checked when the node runs, since
 * they may be computed: two dims of -1, products that overflow, or axes that occur twice are errors of the node.
 */
#include "eval.h"

#include <math.h>
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

/* Dims from `start` to `end`, both clamped to the rank. */
void run_shape(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t start = eval_int(e, "start", 0), end = eval_int(e, "end", x->rank);
    start = max_i64(0, min_i64(start < 0 ? start + x->rank : start, x->rank));
    end = max_i64(start, min_i64(end < 0 ? end + x->rank : end, x->rank));
    output_ints(e, x->dim + start, end - start, 1);
}

void run_size(struct eval *e) { output_ints(e, &eval_in(e, 0)->n, 1, 0); }

/* start, start + step, .. up to, not including, the limit. */
void run_range(struct eval *e) {
    enum type type = eval_in(e, 0)->type;
    double start = eval_in_double(e, 0, 0), step = eval_in_double(e, 2, 0);
    double n = ceil((eval_in_double(e, 1, 0) - start) / step);
    eval_check(e, step != 0 && n == n, "a step of 0, or no number");
    eval_check(e, n < 1e15, "too many numbers");
    struct array *y = eval_out(e, 0, type, 1, &(int64_t){n > 0 ? (int64_t)n : 0});
    int64_t first = array_int(e->in[0], 0), by = array_int(e->in[2], 0);
    for (int64_t i = 0; i < y->n; i++) {
        if (is_float(type)) array_set_double(y, i, start + (double)i * step);
        else array_set_int(y, i, (int64_t)((uint64_t)first + (uint64_t)i * (uint64_t)by));
    }
}

/* Ones on diagonal k. */
void run_eye_like(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t type = eval_int(e, "dtype", x->type), k = eval_int(e, "k", 0);
    eval_check(e, x->rank == 2 && type_is_known(type) && type != TYPE_STRING, "rank or type");
    struct array *y = eval_out(e, 0, (enum type)type, 2, x->dim);
    for (int64_t i = 0; i < x->dim[0]; i++)
        if (k < x->dim[1] && k > -x->dim[0] && i + k >= 0 && i + k < x->dim[1])
            array_set_double(y, i * x->dim[1] + i + k, 1);
}

/* Adds an axis of `depth`, with the on-value at the position that the index gives, else the off-value. */
void run_one_hot(struct eval *e) {
    const struct array *index = eval_in(e, 0), *values = eval_in(e, 2);
    int64_t depth = eval_in_int(e, 1, 0), dim[SOL_MAX_RANK];
    int axis = eval_axis(e, eval_int(e, "axis", -1), index->rank + 1);
    eval_check(e, depth >= 0 && values->n == 2, "a depth below 0, or values that are not two");
    eval_check(e, index->rank < SOL_MAX_RANK, "too many dims");
    for (int d = 0; d <= index->rank; d++)
        dim[d] = d < axis ? index->dim[d] : d == axis ? depth : index->dim[d - 1];
    struct array *y = eval_out(e, 0, values->type, index->rank + 1, dim);
    int64_t inner = product(index->rank - axis, index->dim + axis);
    size_t size = types[y->type].size;
    for (int64_t i = 0; i < y->n; i++) {
        int64_t at = i / inner / depth * inner + i % inner, want = array_int(index, at);
        bool is_on = i / inner % depth == (want < 0 ? want + depth : want);
        memcpy(array_at(y, i), array_at(values, is_on), size);
    }
}

/* ---- The same values ---- */

void run_identity(struct eval *e) { eval_set_output(e, 0, e->in[0]); }

/* The result is the input. Training mode is supported only with ratio 0, since dropped values would be random. */
void run_dropout(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    bool trains = eval_in_int(e, 2, 0);
    if (trains && eval_in_double(e, 1, 0.5) != 0)
        eval_stop(e, fail(SOL_EUNSUPPORTED, "training_mode: numbers that nobody can predict"));
    eval_set_output(e, 0, e->in[0]);
    struct array *mask = eval_out(e, 1, TYPE_BOOL, x->rank, x->dim);
    memset(mask->data, 1, (size_t)mask->n);
}

/* A 0 keeps the input's dim, unless allowzero is set; one -1 is inferred. */
void run_reshape(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t *dim, known = 1;
    int rank = eval_in_ints(e, 1, &dim), open = -1;
    bool keeps_zero = eval_int(e, "allowzero", 0);
    for (int d = 0; d < rank; d++) {
        eval_check(e, dim[d] >= -1, "a dim below -1");
        if (dim[d] == 0 && !keeps_zero) {
            eval_check(e, d < x->rank, "a dim that the input does not have");
            dim[d] = x->dim[d];
        }
        if (dim[d] == -1) eval_check(e, open < 0, "two dims are -1");
        if (dim[d] == -1) open = d;
        else eval_check(e, !__builtin_mul_overflow(known, dim[d], &known), "the shape overflows");
    }
    if (open >= 0) eval_check(e, known > 0 && x->n % known == 0, "the shape does not fit");
    if (open >= 0) dim[open] = x->n / known;
    eval_set_output(e, 0, array_view(e->space, x, rank, dim));
}

/* To [product of the dims before axis, product of the dims from axis on]. */
void run_flatten(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t axis = eval_int(e, "axis", 1);
    eval_check(e, axis >= -x->rank && axis <= x->rank, "an axis outside of the rank");
    if (axis < 0) axis += x->rank;
    int64_t dim[2] = {product((int)axis, x->dim), product(x->rank - (int)axis, x->dim + axis)};
    eval_set_output(e, 0, array_view(e->space, x, 2, dim));
}

/* Marks the axes in `named`; returns their number. */
static int read_axes(struct eval *e, int rank, bool named[SOL_MAX_RANK]) {
    const int64_t *axes;
    int n = eval_list(e, 1, "axes", &axes);
    for (int i = 0; i < n; i++) eval_axis_of_list(e, axes[i], rank, named);
    return n;
}

/* Without axes, removes all dims of 1. */
void run_squeeze(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    bool named[SOL_MAX_RANK] = {false};
    int64_t dim[SOL_MAX_RANK];
    int n = read_axes(e, x->rank, named), rank = 0;
    for (int d = 0; d < x->rank; d++) {
        eval_check(e, !named[d] || x->dim[d] == 1, "a dim that is not 1");
        if (!(n ? named[d] : x->dim[d] == 1)) dim[rank++] = x->dim[d];
    }
    eval_set_output(e, 0, array_view(e->space, x, rank, dim));
}

/* Axes are those of the result. */
void run_unsqueeze(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    bool named[SOL_MAX_RANK] = {false};
    int64_t dim[SOL_MAX_RANK];
    const int64_t *axes;
    int rank = x->rank + eval_list(e, 1, "axes", &axes);
    if (rank > SOL_MAX_RANK) eval_stop(e, fail(SOL_EUNSUPPORTED, "rank %d", rank));
    read_axes(e, rank, named);
    for (int d = 0, from = 0; d < rank; d++) dim[d] = named[d] ? 1 : x->dim[from++];
    eval_set_output(e, 0, array_view(e->space, x, rank, dim));
}

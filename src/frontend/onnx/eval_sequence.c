/*
 * Sequences and optionals; and moving elements of any type, including strings, as bytes.
 *
 * A sequence shares its tensors with other values, since complete tensors never change.
 */
#include "eval.h"

#include <string.h>

/* An array of `dim` whose element at `index` is element offset + sum(index[d] * stride[d]) of x. */
struct array *move_strided(struct eval *e, const struct array *x, int rank, const int64_t *dim,
                           int64_t offset, const int64_t *stride) {
    struct array *y = eval_new(e, x->type, rank, dim);
    size_t size = types[x->type].size;
    struct walk walk;
    walk_init(&walk, rank, dim);
    memcpy(walk.stride[0], stride, (size_t)rank * sizeof *stride);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk))
        memcpy(array_at(y, i), array_at(x, offset + walk.offset[0]), size);
    return y;
}

/* Dim d of the result is dim axes[d] of the input, with its stride. */
struct array *move_permute(struct eval *e, const struct array *x, const int64_t *axes) {
    int64_t own[SOL_MAX_RANK], dim[SOL_MAX_RANK], stride[SOL_MAX_RANK];
    bool named[SOL_MAX_RANK] = {false};
    array_strides(x, own);
    for (int d = 0; d < x->rank; d++) {
        int from = eval_axis_of_list(e, axes[d], x->rank, named);
        dim[d] = x->dim[from];
        stride[d] = own[from];
    }
    return move_strided(e, x, x->rank, dim, 0, stride);
}

/* ---- Parts ---- */

/* Part [start, start + n) of an axis. */
static struct array *part(struct eval *e, const struct array *x, int axis, int64_t start,
                          int64_t n) {
    int64_t dim[SOL_MAX_RANK], stride[SOL_MAX_RANK];
    memcpy(dim, x->dim, sizeof dim);
    array_strides(x, stride);
    dim[axis] = n;
    return move_strided(e, x, x->rank, dim, start * stride[axis], stride);
}

/* The dims from the axis on are contiguous in each input, so they are copied in one piece. */
static struct array *concat(struct eval *e, int n, struct array *const *x, int axis) {
    int64_t dim[SOL_MAX_RANK], outer = product(axis, x[0]->dim), at = 0;
    memcpy(dim, x[0]->dim, sizeof dim);
    for (int i = 1; i < n; i++) {
        bool fits = x[i]->rank == x[0]->rank && x[i]->type == x[0]->type;
        for (int d = 0; fits && d < x[0]->rank; d++)
            fits = d == axis || x[i]->dim[d] == x[0]->dim[d];
        eval_check(e, fits, "inputs of shapes or types that do not fit");
        dim[axis] += x[i]->dim[axis];
    }
    struct array *y = eval_new(e, x[0]->type, x[0]->rank, dim);
    size_t size = types[y->type].size;
    for (int64_t o = 0; o < outer; o++) {
        for (int i = 0; i < n; i++) {
            int64_t length = x[i]->n / outer;
            memcpy(array_at(y, at), array_at(x[i], o * length), (size_t)length * size);
            at += length;
        }
    }
    return y;
}

/* ---- Sequences of tensors ---- */

/* Concatenates the items along an axis, or stacks them along a new one. */
void run_concat_from_sequence(struct eval *e) {
    const struct array *list = e->in[0];
    bool is_new = eval_int(e, "new_axis", 0);
    eval_check(e, list->type == TYPE_SEQUENCE && list->n > 0, "no sequence with tensors");
    struct array **x = SPACE_ARRAY(e->space, struct array *, list->n);
    memcpy(x, list->data, (size_t)list->n * sizeof *x);
    for (int64_t i = 0; i < list->n; i++)
        eval_check(e, is_tensor(x[i]), "items that are no tensors");
    int axis = eval_axis(e, eval_int(e, "axis", 0), x[0]->rank + is_new);
    for (int64_t i = 0; i < list->n && is_new; i++) {
        int64_t dim[SOL_MAX_RANK + 1];
        for (int d = 0; d <= x[i]->rank; d++)
            dim[d] = d < axis ? x[i]->dim[d] : d == axis ? 1 : x[i]->dim[d - 1];
        x[i] = array_view(e->space, x[i], x[i]->rank + 1, dim);
    }
    eval_set_output(e, 0, concat(e, (int)list->n, x, axis));
}

/* Splits into parts of one size, or of given sizes; without input 1 into single positions, whose axis keepdims 0 removes. */
void run_split_to_sequence(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t *sizes, at = 0;
    int axis = eval_axis(e, eval_int(e, "axis", 0), x->rank), found = eval_in_ints(e, 1, &sizes);
    bool is_each = !eval_has(e, 1) || e->in[1]->rank == 0, vanishes = !eval_has(e, 1);
    int64_t each = eval_has(e, 1) && is_each ? sizes[0] : 1, size = x->dim[axis];
    eval_check(e, each > 0, "parts of no size");
    struct array *list = eval_sequence(e, is_each ? ceil_div(size, each) : found);
    for (int64_t i = 0; i < list->n; i++) {
        int64_t n = is_each ? min_i64(each, size - at) : sizes[i];
        eval_check(e, n >= 0 && n <= size - at, "parts that do not fit the axis");
        struct array *item = part(e, x, axis, at, n);
        if (vanishes && !eval_int(e, "keepdims", 1)) {
            for (int d = axis; d + 1 < item->rank; d++) item->dim[d] = item->dim[d + 1];
            item->rank--;
        }
        ((struct array **)list->data)[i] = item;
        at += n;
    }
    eval_check(e, at == size, "parts that do not fill the axis");
    eval_set_output(e, 0, list);
}

/* ---- Sequences ---- */

void run_sequence_empty(struct eval *e) { eval_set_output(e, 0, eval_sequence(e, 0)); }

/* A sequence shares its tensors with other values, since complete tensors never change. */
void run_sequence_construct(struct eval *e) {
    struct array *list = eval_sequence(e, e->n_in);
    for (int i = 0; i < e->n_in; i++) eval_items(list)[i] = eval_in(e, i);
    eval_set_output(e, 0, list);
}

/* Inserts before the item at a position, which counts from the end below 0; without a position, at the end. */
void run_sequence_insert(struct eval *e) {
    const struct array *from = eval_sequence_in(e, 0);
    int64_t at = eval_in_int(e, 2, from->n);
    eval_check(e, at >= -from->n && at <= from->n, "a place outside of the sequence");
    if (at < 0) at += from->n;
    struct array *list = eval_sequence(e, from->n + 1);
    for (int64_t i = 0; i < list->n; i++)
        eval_items(list)[i] = i == at ? eval_in(e, 1) : eval_items(from)[i - (i > at)];
    eval_set_output(e, 0, list);
}

/* Erases the last item when no position is given. */
void run_sequence_erase(struct eval *e) {
    const struct array *from = eval_sequence_in(e, 0);
    int64_t at = eval_index(e, eval_in_int(e, 1, -1), from->n);
    struct array *list = eval_sequence(e, from->n - 1);
    for (int64_t i = 0; i < list->n; i++) eval_items(list)[i] = eval_items(from)[i + (i >= at)];
    eval_set_output(e, 0, list);
}

/* The item itself, not a copy. */
void run_sequence_at(struct eval *e) {
    const struct array *list = eval_sequence_in(e, 0);
    eval_set_output(e, 0, eval_items(list)[eval_index(e, eval_in_int(e, 1, 0), list->n)]);
}

void run_sequence_length(struct eval *e) {
    eval_set_output(e, 0, eval_number(e, TYPE_I64, eval_sequence_in(e, 0)->n));
}

/* ---- Optionals ---- */

/* Without an input, the optional is empty; its type attribute is ignored. */
void run_optional(struct eval *e) {
    struct array *none = SPACE_ARRAY(e->space, struct array, 1);
    eval_set_output(e, 0, eval_has(e, 0) ? e->in[0] : none);
}

/* Since opset 18, a plain tensor is an optional with a value, and a missing input one without. */
void run_optional_has(struct eval *e) {
    bool has = eval_has(e, 0) && e->in[0]->type != TYPE_NONE;
    eval_set_output(e, 0, eval_number(e, TYPE_BOOL, has));
}

/* An optional with a value is that value. */
void run_optional_get(struct eval *e) {
    eval_check(e, e->in[0]->type != TYPE_NONE, "an optional without a value");
    eval_set_output(e, 0, e->in[0]);
}

/* Operators that compare elements: TopK, Unique, NonZero. TopK sees a tensor as [outer, n, inner] around its axis. */
#include "eval.h"

#include <stdlib.h>
#include <string.h>

/* ---- Along one axis ---- */

/* [outer, n, inner] around an axis. */
struct split {
    int axis;
    int64_t outer, n, inner;
};

static struct split split_at(const struct array *x, int axis) {
    return (struct split){axis, product(axis, x->dim), x->dim[axis],
                          product(x->rank - axis - 1, x->dim + axis + 1)};
}

/* Compares two elements: below 0, 0 or above 0. Signed integers are not compared as doubles, in which those of 64 bits lose
 * digits. */
static int compare(const struct array *x, int64_t i, int64_t k) {
    if (is_integer(x->type) && x->type != TYPE_U64) {
        int64_t a = array_int(x, i), b = array_int(x, k);
        return (a > b) - (a < b);
    }
    double a = array_double(x, i), b = array_double(x, k);
    return (a > b) - (a < b);
}

/* ---- Sorting ---- */

/* An item of qsort: element `at` of x, at position `index` of its line; `sign` -1 sorts in descending order. */
struct place {
    const struct array *x;
    int64_t at, index;
    int sign;
};

/* Equal values are ordered by position, which makes the sort stable; qsort is not. */
static int by_value(const void *left, const void *right) {
    const struct place *a = left, *b = right;
    int order = a->sign * compare(a->x, a->at, b->at);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

/* Sorts each line completely, which is simple; lines are short. */
void run_top_k(struct eval *e) {
    struct array *x = eval_in(e, 0);
    int axis = eval_axis(e, eval_int(e, "axis", -1), x->rank);
    int64_t k = eval_in_int(e, 1, eval_int(e, "k", 0)), dim[SOL_MAX_RANK];
    int sign = eval_int(e, "largest", 1) ? -1 : 1;
    struct split s = split_at(x, axis);
    if (k < 0 || k > s.n || x->type == TYPE_STRING)
        eval_stop(e, fail(SOL_EINVAL, "the first %lld of %lld", (long long)k, (long long)s.n));
    memcpy(dim, x->dim, sizeof dim);
    dim[axis] = k;
    struct array *y = eval_out(e, 0, x->type, x->rank, dim),
                 *index = eval_out(e, 1, TYPE_I64, x->rank, dim);
    struct place *places = SPACE_ARRAY(e->space, struct place, s.n);
    for (int64_t i = 0; i < s.outer * s.inner; i++) {
        int64_t base = i / s.inner * s.n * s.inner + i % s.inner;
        int64_t to = i / s.inner * k * s.inner + i % s.inner;
        for (int64_t j = 0; j < s.n; j++)
            places[j] = (struct place){x, base + j * s.inner, j, sign};
        qsort(places, (size_t)s.n, sizeof *places, by_value);
        for (int64_t j = 0; j < k; j++) {
            memcpy(array_at(y, to + j * s.inner), array_at(x, places[j].at), types[x->type].size);
            array_set_int(index, to + j * s.inner, places[j].index);
        }
    }
}

/* ---- Unique ---- */

/* Slice `index` of x along its first axis. */
struct slice {
    const struct array *x; /* [n, inner] */
    int64_t index, inner;
};

/* Compares bytes, which orders UTF-8 by code points. */
static int compare_text(const struct bytes *a, const struct bytes *b) {
    size_t n = a->size < b->size ? a->size : b->size;
    int order = n ? memcmp(a->at, b->at, n) : 0;
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

/* Compares element by element, the order of rows in NumPy. */
static int compare_slices(const void *left, const void *right) {
    const struct slice *a = left, *b = right;
    for (int64_t i = 0; i < a->inner; i++) {
        int64_t p = a->index * a->inner + i, q = b->index * b->inner + i;
        const struct bytes *text = a->x->data;
        int order =
            a->x->type == TYPE_STRING ? compare_text(text + p, text + q) : compare(a->x, p, q);
        if (order) return order;
    }
    return 0;
}

static int by_slice(const void *left, const void *right) {
    const struct slice *a = left, *b = right;
    int order = compare_slices(a, b);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

/* The order of the first occurrence. */
static int by_index(const void *left, const void *right) {
    const struct slice *a = left, *b = right;
    return (a->index > b->index) - (a->index < b->index);
}

/* Groups `n` sorted slices by equality; returns the number of groups. `first`: the first slice of each group, sorted or by first
 * occurrence; `inverse`: the group of each slice; `counts`: the size of each group. */
static int64_t group(struct eval *e, struct slice *sorted, int64_t n, struct slice *first,
                     bool is_sorted, int64_t *inverse, int64_t *counts) {
    int64_t groups = 0, *owner = SPACE_ARRAY(e->space, int64_t, n);
    for (int64_t i = 0; i < n; i++) {
        if (!i || compare_slices(&sorted[i - 1], &sorted[i])) first[groups++] = sorted[i];
        owner[sorted[i].index] = first[groups - 1].index; /* the first slice of the group */
    }
    if (!is_sorted) qsort(first, (size_t)groups, sizeof *first, by_index);
    int64_t *number = SPACE_ARRAY(e->space, int64_t, n);
    for (int64_t g = 0; g < groups; g++) number[first[g].index] = g;
    for (int64_t i = 0; i < n; i++) {
        inverse[i] = number[owner[i]];
        counts[inverse[i]]++;
    }
    return groups;
}

static void output_list(struct eval *e, int i, int64_t n, const int64_t *list) {
    array_fill_ints(eval_out(e, i, TYPE_I64, 1, &n), list);
}

/* Unique values, or with an axis unique slices. */
void run_unique(struct eval *e) {
    struct array *x = eval_in(e, 0);
    const struct onnx_attribute *has_axis = eval_attribute(e, "axis");
    int axis = has_axis ? eval_axis(e, eval_int(e, "axis", 0), x->rank) : 0;
    int64_t order[SOL_MAX_RANK], dim[SOL_MAX_RANK];
    if (!has_axis) x = array_view(e->space, x, 1, &x->n);
    for (int d = 0; d < x->rank; d++) order[d] = d == 0 ? axis : d <= axis ? d - 1 : d;
    struct array *turned = move_permute(e, x, order);
    int64_t n = turned->dim[0], inner = n ? x->n / n : 0;
    struct slice *sorted = SPACE_ARRAY(e->space, struct slice, n),
                 *first = SPACE_ARRAY(e->space, struct slice, n);
    int64_t *inverse = SPACE_ARRAY(e->space, int64_t, n),
            *counts = SPACE_ARRAY(e->space, int64_t, n);
    for (int64_t i = 0; i < n; i++) sorted[i] = (struct slice){turned, i, inner};
    qsort(sorted, (size_t)n, sizeof *sorted, by_slice);
    int64_t groups = group(e, sorted, n, first, eval_int(e, "sorted", 1), inverse, counts);
    memcpy(dim, turned->dim, sizeof dim);
    dim[0] = groups;
    struct array *y = eval_new(e, x->type, x->rank, dim);
    int64_t *indices = SPACE_ARRAY(e->space, int64_t, groups), back[SOL_MAX_RANK];
    size_t row = (size_t)inner * types[x->type].size;
    for (int64_t g = 0; g < groups; g++) {
        indices[g] = first[g].index;
        memcpy((char *)y->data + (size_t)g * row, array_at(turned, indices[g] * inner), row);
    }
    for (int d = 0; d < x->rank; d++) back[order[d]] = d;
    eval_set_output(e, 0, move_permute(e, y, back));
    output_list(e, 1, groups, indices);
    output_list(e, 2, n, inverse);
    output_list(e, 3, groups, counts);
}

/* ---- Others ---- */

/* -0 is zero, too. */
static bool is_zero(const struct array *x, int64_t i) {
    return is_float(x->type) ? array_double(x, i) == 0 : array_int(x, i) == 0;
}

/* The result has one column of coordinates per value that is not 0. */
void run_non_zero(struct eval *e) {
    struct array *x = eval_in(e, 0);
    int64_t n = 0, at = 0;
    struct walk walk;
    walk_init(&walk, x->rank, x->dim);
    eval_check(e, x->type != TYPE_STRING, "strings");
    for (int64_t i = 0; i < x->n; i++) n += !is_zero(x, i);
    struct array *y = eval_out(e, 0, TYPE_I64, 2, (int64_t[]){x->rank, n});
    for (int64_t i = 0; i < x->n; i++, walk_next(&walk)) {
        if (is_zero(x, i)) continue;
        for (int d = 0; d < x->rank; d++) array_set_int(y, d * n + at, walk.at[d]);
        at++;
    }
}

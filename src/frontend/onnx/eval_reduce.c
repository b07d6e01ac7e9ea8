/*
 * Operators along axes: reductions, cumulative sums, ArgMax, sorting, softmax.
 *
 * A reduction walks the input in order. The strides of the result are 0 for the reduced dims, so the walk gives the result
 * element that each input element is combined into, and no transposition is needed. Operators along one axis see a tensor as
 * [outer, n, inner]. The result of a reduction over no elements is the neutral element; for a maximum, the least value of the
 * type.
 */
#include "eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reductions ---- */

/* Marks the dims to reduce. Without axes all are, or none with noop_with_empty_axes; then it returns false. */
static bool read_axes(struct eval *e, int rank, bool named[SOL_MAX_RANK]) {
    const int64_t *axes;
    int n = eval_list(e, 1, "axes", &axes);
    for (int i = 0; i < n; i++) eval_axis_of_list(e, axes[i], rank, named);
    bool is_nothing = !n && eval_int(e, "noop_with_empty_axes", 0);
    for (int d = 0; d < rank; d++) named[d] |= !n && !is_nothing;
    return !is_nothing;
}

/* A walk over the input; offset[0] is the offset in the result. */
static void walk_result(const struct array *x, const bool named[SOL_MAX_RANK], struct walk *walk) {
    int64_t n = 1;
    walk_init(walk, x->rank, x->dim);
    for (int d = x->rank - 1; d >= 0; d--) {
        walk->stride[0][d] = named[d] ? 0 : n;
        n *= named[d] ? 1 : x->dim[d];
    }
}

/* A new output 0. With keepdims, reduced dims become 1; otherwise they are removed. */
static struct array *new_result(struct eval *e, const struct array *x,
                                const bool named[SOL_MAX_RANK]) {
    int64_t dim[SOL_MAX_RANK];
    int rank = 0;
    bool keeps = eval_int(e, "keepdims", 1);
    for (int d = 0; d < x->rank; d++)
        if (keeps || !named[d]) dim[rank++] = named[d] ? 1 : x->dim[d];
    return eval_out(e, 0, x->type, rank, dim);
}

/* The neutral element as a value of the type. */
static int64_t int_start(enum type type, double start) {
    /* 0 or 1 for sums and products; the least or greatest value of the type for a maximum or minimum. */
    if (!isinf(start)) return (int64_t)start;
    bool is_unsigned = types[type].kind == KIND_UNSIGNED;
    int bits = type == TYPE_BOOL ? 1 : 8 * (int)types[type].size;
    if (start < 0) return is_unsigned ? 0 : INT64_MIN >> (64 - bits);
    return is_unsigned ? (int64_t)(UINT64_MAX >> (64 - bits)) : INT64_MAX >> (64 - bits);
}

/* Sums wrap at 64 bits and are truncated to the type at the end. */
static void reduce_ints(struct eval *e, const struct array *x, struct walk *walk, struct array *y) {
    int64_t *sum = SPACE_ARRAY(e->space, int64_t, y->n);
    e->is_unsigned = x->type == TYPE_U64;
    for (int64_t i = 0; i < y->n; i++) sum[i] = int_start(x->type, e->op->start);
    for (int64_t i = 0; i < walk->n; i++, walk_next(walk))
        sum[walk->offset[0]] = e->op->int_binary(e, sum[walk->offset[0]], array_int(x, i));
    array_fill_ints(y, sum);
}

/* Combines elements in the order of the input, in double. `n`: the number of results. */
static double *reduce_doubles(struct eval *e, const double *x, struct walk walk, int64_t n,
                              double start, double (*join)(double, double)) {
    double *sum = SPACE_ARRAY(e->space, double, n);
    for (int64_t i = 0; i < n; i++) sum[i] = start;
    for (int64_t i = 0; i < walk.n; i++, walk_next(&walk))
        sum[walk.offset[0]] = join(sum[walk.offset[0]], x[i]);
    return sum;
}

/* log(sum(exp(x - max))) + max, so that nothing overflows. Overwrites x. */
static double *log_sum_exp(struct eval *e, double *x, const struct walk *walk, int64_t n) {
    double *top = reduce_doubles(e, x, *walk, n, -INFINITY, fmax);
    struct walk at = *walk;
    /* An infinite maximum becomes 0, since infinity - infinity is NaN. */
    for (int64_t i = 0; i < n; i++) top[i] = isinf(top[i]) ? 0 : top[i];
    for (int64_t i = 0; i < at.n; i++, walk_next(&at)) x[i] = exp(x[i] - top[at.offset[0]]);
    double *sum = reduce_doubles(e, x, *walk, n, 0, e->op->float_binary);
    for (int64_t i = 0; i < n; i++) sum[i] = log(sum[i]) + top[i];
    return sum;
}

/* With noop_with_empty_axes and no axes, each value is reduced alone. */
void run_reduce(struct eval *e) {
    bool named[SOL_MAX_RANK] = {false};
    struct array *x = eval_in(e, 0);
    struct walk walk;
    read_axes(e, x->rank, named);
    walk_result(x, named, &walk);
    struct array *y = new_result(e, x, named);
    if (is_integer(x->type) && e->op->int_binary) {
        reduce_ints(e, x, &walk, y);
        return;
    }
    double *v = array_doubles(e->space, x), *sum;
    if (e->op->choice == 2) sum = log_sum_exp(e, v, &walk, y->n);
    else sum = reduce_doubles(e, v, walk, y->n, e->op->start, e->op->float_binary);
    for (int64_t i = 0; i < y->n; i++) {
        if (e->op->choice == 1) sum[i] /= (double)x->n / (double)y->n;
        if (e->op->float_unary) sum[i] = e->op->float_unary(sum[i]);
    }
    array_fill_doubles(y, sum);
}

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

/* choice 1: ArgMax, -1: ArgMin. Of equal values, the first one is selected, or the last with select_last_index. */
void run_arg_extreme(struct eval *e) {
    struct array *x = eval_in(e, 0);
    bool takes_last = eval_int(e, "select_last_index", 0), named[SOL_MAX_RANK] = {false};
    int axis = eval_axis(e, eval_int(e, "axis", 0), x->rank);
    struct split s = split_at(x, axis);
    named[axis] = true;
    struct array *y = new_result(e, x, named);
    eval_check(e, s.n > 0 && x->type != TYPE_STRING, "no values to choose from");
    y = eval_out(e, 0, TYPE_I64, y->rank, y->dim);
    for (int64_t i = 0; i < s.outer * s.inner; i++) {
        int64_t base = i / s.inner * s.n * s.inner + i % s.inner, best = 0;
        for (int64_t k = 1; k < s.n; k++) {
            int order = e->op->choice * compare(x, base + k * s.inner, base + best * s.inner);
            if (order > 0 || (order == 0 && takes_last)) best = k;
        }
        array_set_int(y, i, best);
    }
}

/* The cumulative sum or product of one line of `n` values; a negative `step` goes backwards. */
static void cumulate_line(struct eval *e, const struct array *x, struct array *y, int64_t base,
                          int64_t n, int64_t step, bool is_exclusive) {
    double as_double = e->op->start;
    int64_t as_int = (int64_t)e->op->start;
    for (int64_t k = 0; k < n; k++) {
        int64_t at = base + k * step;
        double next = e->op->float_binary(as_double, array_double(x, at));
        int64_t next_int = is_float(x->type) ? 0 : e->op->int_binary(e, as_int, array_int(x, at));
        if (is_float(x->type)) array_set_double(y, at, is_exclusive ? as_double : next);
        else array_set_int(y, at, is_exclusive ? as_int : next_int);
        as_double = next;
        as_int = next_int;
    }
}

/* With reverse, each line begins at its last position and goes backwards. */
void run_cumulate(struct eval *e) {
    struct array *x = eval_in(e, 0);
    struct split s = split_at(x, eval_axis(e, eval_in_int(e, 1, 0), x->rank));
    struct array *y = eval_out(e, 0, x->type, x->rank, x->dim);
    bool is_exclusive = eval_int(e, "exclusive", 0), is_reverse = eval_int(e, "reverse", 0);
    eval_check(e, x->type != TYPE_STRING, "strings");
    for (int64_t i = 0; i < s.outer * s.inner && s.n; i++) {
        int64_t base = i / s.inner * s.n * s.inner + i % s.inner;
        if (is_reverse) base += (s.n - 1) * s.inner;
        cumulate_line(e, x, y, base, s.n, is_reverse ? -s.inner : s.inner, is_exclusive);
    }
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

/* exp(x) / sum(exp(x)) along the middle dim of [outer, n, inner], in place. The maximum is subtracted first, so that nothing
 * overflows. */
void softmax_rows(double *x, int64_t outer, int64_t n, int64_t inner) {
    for (int64_t i = 0; i < outer * inner; i++) {
        double *row = x + i / inner * n * inner + i % inner, top = -INFINITY, sum = 0;
        for (int64_t k = 0; k < n; k++) top = fmax(top, row[k * inner]);
        for (int64_t k = 0; k < n; k++) sum += row[k * inner] = exp(row[k * inner] - top);
        for (int64_t k = 0; k < n; k++) row[k * inner] /= sum;
    }
}

/* x - max - log(sum(exp(x - max))). The logarithm of the softmax would lose digits. */
static void log_softmax_rows(double *x, const struct split *s) {
    for (int64_t i = 0; i < s->outer * s->inner; i++) {
        double *row = x + i / s->inner * s->n * s->inner + i % s->inner, top = -INFINITY, sum = 0;
        for (int64_t k = 0; k < s->n; k++) top = fmax(top, row[k * s->inner]);
        for (int64_t k = 0; k < s->n; k++) sum += exp(row[k * s->inner] - top);
        for (int64_t k = 0; k < s->n; k++) row[k * s->inner] -= top + log(sum);
    }
}

/* 1 for the first maximum, 0 for all other values. */
static void hardmax_rows(double *x, const struct split *s) {
    for (int64_t i = 0; i < s->outer * s->inner; i++) {
        double *row = x + i / s->inner * s->n * s->inner + i % s->inner;
        int64_t best = 0;
        for (int64_t k = 1; k < s->n; k++)
            if (row[k * s->inner] > row[best * s->inner]) best = k;
        for (int64_t k = 0; k < s->n; k++) row[k * s->inner] = k == best;
    }
}

/* Before opset 13, the softmax is over all dims from `axis` on. */
void run_softmax(struct eval *e) {
    struct array *x = eval_in(e, 0);
    bool is_old = e->opset < 13;
    int axis = eval_axis(e, eval_int(e, "axis", is_old ? 1 : -1), x->rank);
    struct split s = split_at(x, axis);
    double *v = array_doubles(e->space, x);
    if (is_old) s = (struct split){axis, s.outer, s.n * s.inner, 1};
    if (!x->n) s.outer = 0;
    if (e->op->choice == 0) softmax_rows(v, s.outer, s.n, s.inner);
    else if (e->op->choice == 1) log_softmax_rows(v, &s);
    else hardmax_rows(v, &s);
    eval_set_output_doubles(e, 0, x->type, x->rank, x->dim, v);
}

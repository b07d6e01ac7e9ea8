/*
 * Operators that read or write elements at indices.
 *
 * An index below 0 counts from the end. Each index is checked, since indices are data of the call; one out of range stops the
 * call with a message. Operators that write do so in a copy of the input, since other nodes may read it.
 */
#include "eval.h"

#include "scalar.h"

#include <string.h>

/* Element `i` of `index`, as a position in a dim of `size`; stops when it is out of range. All indices are read with this
 * function. */
static int64_t index_at(struct eval *e, const struct array *index, int64_t i, int64_t size) {
    return eval_index(e, array_int(index, i), size);
}

/* Input `i`, which must be of an integer type. */
static struct array *index_in(struct eval *e, int i) {
    struct array *index = eval_in(e, i);
    eval_check(e, is_integer(index->type), "an index that is no integer");
    return index;
}

/* The dims of the index replace dim `axis` of x. */
void run_gather(struct eval *e) {
    const struct array *x = eval_in(e, 0), *index = index_in(e, 1);
    int axis = eval_axis(e, eval_int(e, "axis", 0), x->rank), rank = x->rank - 1 + index->rank;
    int64_t dim[2 * SOL_MAX_RANK];
    for (int d = 0; d < rank; d++)
        dim[d] = d < axis                 ? x->dim[d]
                 : d < axis + index->rank ? index->dim[d - axis]
                                          : x->dim[d - index->rank + 1];
    struct array *y = eval_out(e, 0, x->type, rank, dim);
    int64_t outer = product(axis, x->dim), n = x->dim[axis], inner = 1, at = 0;
    for (int d = axis + 1; d < x->rank; d++) inner *= x->dim[d];
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t i = 0; i < index->n; i++, at += inner) {
            int64_t from = (o * n + index_at(e, index, i, n)) * inner;
            memcpy(array_at(y, at), array_at(x, from), (size_t)inner * types[x->type].size);
        }
    }
}

/* The offset in `x` of the point of `walk`, but with `index` as the position along `axis`. */
static int64_t place_along(const struct array *x, const struct walk *walk, int axis,
                           int64_t index) {
    int64_t stride[SOL_MAX_RANK], at = 0;
    array_strides(x, stride);
    for (int d = 0; d < x->rank; d++) at += (d == axis ? index : walk->at[d]) * stride[d];
    return at;
}

/* The index of GatherElements and ScatterElements has the rank of the data; its dims are not larger, except along the axis. */
static void check_within(struct eval *e, const struct array *x, const struct array *index,
                         int axis) {
    bool fits = x->rank == index->rank;
    for (int d = 0; fits && d < x->rank; d++) fits = d == axis || index->dim[d] <= x->dim[d];
    eval_check(e, fits, "an index of a shape that does not fit");
}

/* y[i][j] = x[index[i][j]][j] for axis 0 of two. */
void run_gather_elements(struct eval *e) {
    const struct array *x = eval_in(e, 0), *index = index_in(e, 1);
    int axis = eval_axis(e, eval_int(e, "axis", 0), x->rank);
    check_within(e, x, index, axis);
    struct array *y = eval_out(e, 0, x->type, index->rank, index->dim);
    struct walk walk;
    walk_init(&walk, index->rank, index->dim);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk)) {
        int64_t from = place_along(x, &walk, axis, index_at(e, index, i, x->dim[axis]));
        memcpy(array_at(y, i), array_at(x, from), types[x->type].size);
    }
}

/* ---- Tuples of indices ---- */

/* The offset in x for a tuple: the `k` elements of `index` from `at` on, as positions in the dims from `first` on. */
static int64_t tuple_offset(struct eval *e, const struct array *x, const struct array *index,
                            int64_t at, int first, int k) {
    int64_t stride[SOL_MAX_RANK], offset = 0;
    array_strides(x, stride);
    for (int d = 0; d < k; d++)
        offset += index_at(e, index, at + d, x->dim[first + d]) * stride[first + d];
    return offset;
}

/* The number of indices per tuple: the last dim of `index`. A tuple selects in as many dims after the batch dims. */
static int tuple_size(struct eval *e, const struct array *x, const struct array *index, int batch) {
    eval_check(e, index->rank > 0 && batch >= 0 && batch < index->rank && batch < x->rank + 1,
               "batch_dims, or an index without dims");
    int64_t k = index->dim[index->rank - 1];
    eval_check(e, k >= 0 && k <= x->rank - batch, "an index of too many numbers");
    return (int)k;
}

/* One slice of x per tuple of indices. Leading batch dims are common to data and index. */
void run_gather_nd(struct eval *e) {
    const struct array *x = eval_in(e, 0), *index = index_in(e, 1);
    int batch = (int)min_i64(SOL_MAX_RANK, max_i64(-1, eval_int(e, "batch_dims", 0)));
    int k = tuple_size(e, x, index, batch), rank = index->rank - 1;
    int64_t dim[2 * SOL_MAX_RANK], rows = 1;
    memcpy(dim, index->dim, sizeof index->dim);
    for (int d = batch + k; d < x->rank; d++) dim[rank++] = x->dim[d];
    struct array *y = eval_out(e, 0, x->type, rank, dim);
    int64_t inner = product(x->rank - batch - k, x->dim + batch + k);
    int64_t batches = product(batch, x->dim), tuples = product(index->rank - 1, index->dim);
    for (int d = 0; d < batch; d++)
        eval_check(e, index->dim[d] == x->dim[d], "batch dims that do not fit");
    /* Tuples per batch entry; 0 without batch entries, to avoid a division by 0. */
    rows = batches ? tuples / batches : 0;
    for (int64_t t = 0; t < tuples && inner; t++) {
        int64_t from = t / rows * (x->n / batches) + tuple_offset(e, x, index, t * k, batch, k);
        memcpy(array_at(y, t * inner), array_at(x, from), (size_t)inner * types[x->type].size);
    }
}

/* ---- Writing ---- */

/* Sets output 0 to a copy of x, which the caller then changes. */
static struct array *copy(struct eval *e, const struct array *x) {
    struct array *y = eval_out(e, 0, x->type, x->rank, x->dim);
    memcpy(y->data, x->data, (size_t)x->n * types[x->type].size);
    return y;
}

/* How an update is combined with the old value: it replaces it (NULL), or add, mul, min, max. */
struct meeting {
    double (*on_float)(double, double);
    int64_t (*on_int)(struct eval *, int64_t, int64_t);
};

/* With "none", the last of several updates of an element stays; ONNX does not define which one. */
static struct meeting read_meeting(struct eval *e) {
    static const struct {
        const char *name;
        struct meeting meeting;
    } rows[] = {{"none", {NULL, NULL}},
                {"add", {add, int_add}},
                {"mul", {mul, int_mul}},
                {"min", {smaller, int_smaller}},
                {"max", {larger, int_larger}}};
    const char *name = eval_string(e, "reduction", "none");
    for (int i = 0; i < COUNT(rows); i++)
        if (!strcmp(rows[i].name, name)) return rows[i].meeting;
    eval_stop(e, fail(SOL_EUNSUPPORTED, "reduction \"%.32s\"", name));
}

/* Combines element `i` of x into element `at` of y. The result is rounded to the type of y at each update. */
static void meet(struct eval *e, const struct meeting *meeting, struct array *y, int64_t at,
                 const struct array *x, int64_t i) {
    if (!meeting->on_float) memcpy(array_at(y, at), array_at(x, i), types[x->type].size);
    else if (is_integer(y->type))
        array_set_int(y, at, meeting->on_int(e, array_int(y, at), array_int(x, i)));
    else array_set_double(y, at, meeting->on_float(array_double(y, at), array_double(x, i)));
}

/* Input 2, which must have `n` elements of y's type: one per index, or per element of the selected slices. */
static struct array *updates_for(struct eval *e, const struct array *y, int64_t n) {
    struct array *updates = eval_in(e, 2);
    eval_check(e, updates->type == y->type && updates->n == n, "updates that do not fit");
    e->is_unsigned = y->type == TYPE_U64;
    return updates;
}

/* y[index[i][j]][j] = updates[i][j] for axis 0 of two. */
void run_scatter_elements(struct eval *e) {
    const struct array *index = index_in(e, 1);
    struct array *y = copy(e, eval_in(e, 0)), *updates = updates_for(e, y, index->n);
    int axis = eval_axis(e, eval_int(e, "axis", 0), y->rank);
    struct meeting meeting = read_meeting(e);
    struct walk walk;
    eval_check(e, y->type != TYPE_STRING || !meeting.on_float, "strings");
    check_within(e, y, index, axis);
    walk_init(&walk, index->rank, index->dim);
    for (int64_t i = 0; i < index->n; i++, walk_next(&walk)) {
        int64_t to = place_along(y, &walk, axis, index_at(e, index, i, y->dim[axis]));
        meet(e, &meeting, y, to, updates, i);
    }
}

/* One slice of updates per tuple. */
void run_scatter_nd(struct eval *e) {
    const struct array *index = index_in(e, 1);
    struct array *y = copy(e, eval_in(e, 0));
    int k = tuple_size(e, y, index, 0);
    int64_t tuples = product(index->rank - 1, index->dim), inner = product(y->rank - k, y->dim + k);
    const struct array *updates = updates_for(e, y, tuples * inner);
    struct meeting meeting = read_meeting(e);
    eval_check(e, y->type != TYPE_STRING || !meeting.on_float, "strings");
    for (int64_t t = 0; t < tuples; t++) {
        int64_t to = tuple_offset(e, y, index, t * k, 0, k);
        for (int64_t i = 0; i < inner; i++) meet(e, &meeting, y, to + i, updates, t * inner + i);
    }
}

/* Updates a cache of sequences at positions [start, start + n) of each; mode circular wraps around at the end. */
void run_tensor_scatter(struct eval *e) {
    struct array *y = copy(e, eval_in(e, 0));
    const struct array *updates = eval_in(e, 1);
    int axis = eval_axis(e, eval_int(e, "axis", -2), y->rank);
    bool is_circular = *eval_word(e, "mode", "linear", "linear circular") == 'c';
    eval_check(e, axis > 0 && updates->rank == y->rank && updates->type == y->type, "shapes");
    for (int d = 0; d < y->rank; d++)
        eval_check(e, d == axis ? updates->dim[d] <= y->dim[d] : updates->dim[d] == y->dim[d],
                   "updates that do not fit");
    eval_check(e, !eval_has(e, 2) || eval_in(e, 2)->n == y->dim[0], "as many places as sequences");
    struct walk walk;
    walk_init(&walk, updates->rank, updates->dim);
    for (int64_t i = 0; i < updates->n; i++, walk_next(&walk)) {
        int64_t start = eval_has(e, 2) ? array_int(e->in[2], walk.at[0]) : 0;
        eval_check(e, start >= 0 && start < INT32_MAX, "a place out of range");
        int64_t at = start + walk.at[axis];
        if (is_circular) at %= y->dim[axis];
        at = eval_index(e, at, y->dim[axis]);
        memcpy(array_at(y, place_along(y, &walk, axis, at)), array_at(updates, i),
               types[y->type].size);
    }
}

/* Keeps the slices whose condition holds. */
void run_compress(struct eval *e) {
    const struct array *x = eval_in(e, 0), *keep = eval_in(e, 1);
    bool is_flat = !eval_attribute(e, "axis");
    if (is_flat) x = array_view(e->space, x, 1, &x->n);
    int axis = is_flat ? 0 : eval_axis(e, eval_int(e, "axis", 0), x->rank);
    int64_t dim[SOL_MAX_RANK], n = 0, *from = SPACE_ARRAY(e->space, int64_t, keep->n);
    eval_check(e, keep->rank == 1 && keep->n <= x->dim[axis], "conditions that do not fit");
    for (int64_t i = 0; i < keep->n; i++)
        if (array_int(keep, i)) from[n++] = i;
    memcpy(dim, x->dim, sizeof dim);
    dim[axis] = n;
    struct array *y = eval_out(e, 0, x->type, x->rank, dim);
    int64_t inner = product(x->rank - axis - 1, x->dim + axis + 1);
    for (int64_t i = 0; i < y->n / max_i64(1, inner); i++) {
        int64_t at = i / n * x->dim[axis] + from[i % n];
        memcpy(array_at(y, i * inner), array_at(x, at * inner),
               (size_t)inner * types[x->type].size);
    }
}

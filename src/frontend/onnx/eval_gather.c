/*
 * Operators that read or write elements at indices.
 *
 * An index below 0 counts from the end. Each index is checked, since indices are data of the call; one out of range stops the
 * call with a message. Operators that write do so in a copy of the input, since other nodes may read it.
 */
#include "eval.h"

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

/* ---- Writing ---- */

/* Sets output 0 to a copy of x, which the caller then changes. */
static struct array *copy(struct eval *e, const struct array *x) {
    struct array *y = eval_out(e, 0, x->type, x->rank, x->dim);
    memcpy(y->data, x->data, (size_t)x->n * types[x->type].size);
    return y;
}

/* How an update is combined with the old value: it replaces it, or a sum, a product, or an extreme takes its place. */
enum meeting { REPLACE, SUM, PRODUCT, SMALLER, LARGER };

/* With "none", the last of several updates of an element stays; ONNX does not define which one. */
static enum meeting read_meeting(struct eval *e) {
    static const char *const names[] = {"none", "add", "mul", "min", "max"};
    const char *name = eval_string(e, "reduction", "none");
    for (int i = 0; i < COUNT(names); i++)
        if (!strcmp(names[i], name)) return (enum meeting)i;
    eval_stop(e, fail(SOL_EUNSUPPORTED, "reduction \"%.32s\"", name));
}

/* NaN if either is NaN, as in NumPy. */
static double meet_floats(enum meeting how, double a, double b) {
    if (how == SUM) return a + b;
    if (how == PRODUCT) return a * b;
    if (a != a || b != b) return a + b;
    return (how == SMALLER ? a < b : a > b) ? a : b;
}

/* Wraps at 64 bits. */
static int64_t meet_ints(enum meeting how, bool is_unsigned, int64_t a, int64_t b) {
    bool is_less = is_unsigned ? (uint64_t)a < (uint64_t)b : a < b;
    if (how == SUM) return (int64_t)((uint64_t)a + (uint64_t)b);
    if (how == PRODUCT) return (int64_t)((uint64_t)a * (uint64_t)b);
    return is_less == (how == SMALLER) ? a : b;
}

/* Combines element `i` of x into element `at` of y. The result is rounded to the type of y at each update. */
static void meet(enum meeting how, struct array *y, int64_t at, const struct array *x, int64_t i) {
    bool is_unsigned = y->type == TYPE_U64;
    if (how == REPLACE) memcpy(array_at(y, at), array_at(x, i), types[x->type].size);
    else if (is_integer(y->type))
        array_set_int(y, at, meet_ints(how, is_unsigned, array_int(y, at), array_int(x, i)));
    else array_set_double(y, at, meet_floats(how, array_double(y, at), array_double(x, i)));
}

/* Input 2, which must have `n` elements of y's type: one per index, or per element of the selected slices. */
static struct array *updates_for(struct eval *e, const struct array *y, int64_t n) {
    struct array *updates = eval_in(e, 2);
    eval_check(e, updates->type == y->type && updates->n == n, "updates that do not fit");
    return updates;
}

/* y[index[i][j]][j] = updates[i][j] for axis 0 of two. */
void run_scatter_elements(struct eval *e) {
    const struct array *index = index_in(e, 1);
    struct array *y = copy(e, eval_in(e, 0)), *updates = updates_for(e, y, index->n);
    int axis = eval_axis(e, eval_int(e, "axis", 0), y->rank);
    enum meeting how = read_meeting(e);
    struct walk walk;
    eval_check(e, y->type != TYPE_STRING || how == REPLACE, "strings");
    check_within(e, y, index, axis);
    walk_init(&walk, index->rank, index->dim);
    for (int64_t i = 0; i < index->n; i++, walk_next(&walk)) {
        int64_t to = place_along(y, &walk, axis, index_at(e, index, i, y->dim[axis]));
        meet(how, y, to, updates, i);
    }
}

/* One slice of updates per tuple. */
void run_scatter_nd(struct eval *e) {
    const struct array *index = index_in(e, 1);
    struct array *y = copy(e, eval_in(e, 0));
    int k = tuple_size(e, y, index, 0);
    int64_t tuples = product(index->rank - 1, index->dim), inner = product(y->rank - k, y->dim + k);
    const struct array *updates = updates_for(e, y, tuples * inner);
    enum meeting how = read_meeting(e);
    eval_check(e, y->type != TYPE_STRING || how == REPLACE, "strings");
    for (int64_t t = 0; t < tuples; t++) {
        int64_t to = tuple_offset(e, y, index, t * k, 0, k);
        for (int64_t i = 0; i < inner; i++) meet(how, y, to + i, updates, t * inner + i);
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

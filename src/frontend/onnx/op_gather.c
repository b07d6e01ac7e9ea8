/* Operators that select or repeat values: Gather, Tile. */
#include "import.h"

/* ---- Gather ---- */

/* Are the known indices start, start + step, ..? False also for values of one call only. Indices below 0 count from the end of a
 * dim of `size`. */
static bool find_run(const struct import_value *v, int64_t size, int64_t *start, int64_t *step,
                     int64_t *n) {
    *n = v->rank ? size_value(v->dim[0]) : 1;
    *step = 1;
    if (v->live || !v->shape_value || v->rank > 1 || *n < 1) return false;
    for (int64_t i = 0; i < *n; i++) {
        int64_t at = size_is_const(v->shape_value[i]) ? size_value(v->shape_value[i]) : size;
        if (at < 0) at += size;
        if (at < 0 || at >= size) return false;
        if (i == 0) *start = at;
        if (i == 1) *step = at - *start;
        if (*step < 1 || at != *start + i * *step) return false;
    }
    return true;
}

static sol_tensor drop_dim(struct op_call *c, sol_tensor x, int axis) {
    struct size dim[SOL_MAX_RANK];
    int rank = call_shape(c, x, dim);
    for (int d = axis; d + 1 < rank; d++) dim[d] = dim[d + 1];
    return call_reshape(c, x, rank - 1, dim);
}

/* Known indices with a constant step become a slice, which is cheaper than a gather, and often a view. */
enum sol_status op_gather(struct op_call *c) {
    const struct import_value *numbers = c->in[1];
    int axis = (int)call_axis(c, call_int(c, "axis", 0), call_rank(c, 0));
    int64_t start, step, n;
    sol_tensor x = call_tensor(c, 0);
    TRY(c->im->status);
    struct size size = c->in[0]->dim[axis];
    if (size.bad || !size_is_const(size) || !find_run(numbers, size_value(size), &start, &step, &n))
        return call_set_output(c, 0, LAYER2(c, "gather", x, call_tensor(c, 1), "axis=%d", axis));
    x = LAYER1(c, "slice", x, "axis=%d start=%lld step=%lld shape=[%lld]", axis, (long long)start,
               (long long)step, (long long)n);
    return call_set_output(c, 0, numbers->rank ? x : drop_dim(c, x, axis));
}

/* ---- Tile ---- */

/* To repeat a dim d k times, [1, d] is expanded to [k, d]. */
enum sol_status op_tile(struct op_call *c) {
    int64_t times[SOL_MAX_RANK];
    struct size before[2 * SOL_MAX_RANK], after[2 * SOL_MAX_RANK], dim[SOL_MAX_RANK];
    sol_tensor x = call_tensor(c, 0);
    int rank = call_shape(c, x, dim), n = 0;
    if (call_input_ints(c, 1, SOL_MAX_RANK, times) != rank)
        return c->im->status ? c->im->status : fail(SOL_EINVAL, "repeats do not fit rank %d", rank);
    for (int d = 0; d < rank; d++) {
        if (times[d] < 0) return fail(SOL_EINVAL, "%lld repeats", (long long)times[d]);
        if (times[d] != 1) before[n] = size_const(1), after[n++] = size_const(times[d]);
        before[n] = after[n] = dim[d];
        n++;
        dim[d] = size_scale(dim[d], times[d]);
    }
    if (n > SOL_MAX_RANK) return fail(SOL_EUNSUPPORTED, "repeats of %d dims", n - rank);
    x = call_expand(c, call_reshape(c, x, n, before), n, after);
    return call_set_output(c, 0, call_reshape(c, x, rank, dim));
}

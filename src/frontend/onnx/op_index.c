/*
 * Operators that read elements at computed positions: GatherElements, GatherND, OneHot, ReverseSequence, the losses of classes.
 *
 * The layer gather takes rows of a table. Here the table is x as one column of elements, or of slices, and the row numbers are
 * computed by integer layers: the position in each dim, times the stride of that dim, summed up.
 *
 * Invariant: indices are data of the call, so each one is checked against its own dim. A sum of positions could hide one that is
 * out of range; such an index makes the row number -2^53 instead, which gather refuses with a message, as it does not wrap here.
 */
#include "rows.h"

#include <string.h>

/* ---- Row numbers ---- */

/* `index`, where an index below 0 counts from the end of a dim of `size`. */
static sol_tensor from_end(struct op_call *c, sol_tensor index, int64_t size) {
    sol_tensor is_below = LAYER2(c, "less", index, call_scalar_of(c, 0, SOL_I64), "");
    sol_tensor end = LAYER2(c, "add", index, call_scalar_of(c, (double)size, SOL_I64), "");
    return call_where(c, is_below, end, index);
}

void rows_add(struct op_call *c, struct rows *rows, sol_tensor offset) {
    rows->sum = rows->sum < 0 ? offset : LAYER2(c, "add", rows->sum, offset, "");
}

/* Marks the rows of an index that is out of range. */
void rows_add_checked(struct op_call *c, struct rows *rows, sol_tensor index, int64_t size,
                      int64_t stride) {
    sol_tensor at = from_end(c, call_cast(c, index, SOL_I64), size);
    sol_tensor is_below = LAYER2(c, "less", at, call_scalar_of(c, 0, SOL_I64), ""),
               is_above = LAYER2(c, "less_equal", call_scalar_of(c, (double)size, SOL_I64), at, "");
    sol_tensor is_bad = LAYER2(c, "bit_or", is_below, is_above, "");
    rows->is_bad = rows->is_bad < 0 ? is_bad : LAYER2(c, "bit_or", rows->is_bad, is_bad, "");
    if (stride != 1) at = LAYER2(c, "mul", at, call_scalar_of(c, (double)stride, SOL_I64), "");
    rows_add(c, rows, at);
}

sol_tensor rows_take(struct op_call *c, const struct rows *rows, sol_tensor x, int n,
                     const struct size *dim) {
    struct size table[SOL_MAX_RANK] = {size_const(1)};
    sol_tensor row = rows->sum;
    for (int d = 0; d < n; d++) table[0] = size_mul(table[0], dim[d]);
    int rank = 1;
    struct size all[SOL_MAX_RANK];
    const int x_rank = call_shape(c, x, all);
    for (int d = n; d < x_rank; d++) table[rank++] = all[d];
    if (rows->is_bad >= 0)
        row = call_where(c, rows->is_bad, call_scalar_of(c, -0x1p53, SOL_I64), row);
    return LAYER2(c, "gather", call_reshape(c, x, rank, table), row, "axis=0 wraps=false");
}

/* ---- GatherElements ---- */

sol_tensor rows_gather_elements(struct op_call *c, sol_tensor x, sol_tensor index, int axis) {
    struct size dim[SOL_MAX_RANK], at[SOL_MAX_RANK];
    struct rows rows = NO_ROWS;
    const int rank = call_shape(c, x, dim);
    int64_t stride = 1;
    if (!call_fixed_shape(c, x, rank, dim) || !call_fixed_shape(c, index, rank, at)) return x;
    for (int d = rank - 1; d >= 0; d--) {
        const int64_t size = size_value(dim[d]);
        if (d == axis) rows_add_checked(c, &rows, index, size, stride);
        else if (size_value(at[d]) > size)
            call_fail(c, fail(SOL_EINVAL, "an index of a shape that does not fit"));
        else if (size_value(at[d]) > 1)
            rows_add(c, &rows, call_arange(c, at[d], stride, rank - 1 - d));
        stride *= size;
    }
    return rows_take(c, &rows, x, rank, dim);
}

enum sol_status op_gather_elements(struct op_call *c) {
    const int axis = (int)call_axis(c, call_int(c, "axis", 0), call_rank(c, 0));
    if (size_family(c->in[1]->dtype) != FAMILY_INTEGER)
        return fail(SOL_EINVAL, "an index that is no integer");
    return call_set_output(c, 0,
                           rows_gather_elements(c, call_tensor(c, 0), call_tensor(c, 1), axis));
}

/* ---- GatherND ---- */

/* Column `k` of the tuples [.., n] in `index`, as [..]. */
static sol_tensor column(struct op_call *c, sol_tensor index, int rank, int k) {
    struct size dim[SOL_MAX_RANK];
    sol_tensor x = LAYER1(c, "slice", index, "axis=-1 start=%d shape=[1]", k);
    call_shape(c, x, dim);
    return call_reshape(c, x, rank - 1, dim);
}

/* One slice of x per tuple of indices; the leading `batch` dims are common to both. */
enum sol_status op_gather_nd(struct op_call *c) {
    struct size dim[SOL_MAX_RANK], at[SOL_MAX_RANK];
    const int64_t batch = call_int(c, "batch_dims", 0);
    const int rank = call_rank(c, 0), tuples = call_rank(c, 1);
    sol_tensor x = call_tensor(c, 0), index = call_tensor(c, 1);
    struct rows rows = NO_ROWS;
    int64_t stride = 1;
    if (!call_fixed_shape(c, x, rank, dim) || !call_fixed_shape(c, index, tuples, at))
        return c->im->status;
    if (batch < 0 || batch >= tuples || size_value(at[tuples - 1]) > rank - batch ||
        size_value(at[tuples - 1]) < 1)
        return fail(SOL_EUNSUPPORTED, "tuples of another size, or batch_dims");
    const int n = (int)batch + (int)size_value(at[tuples - 1]);
    for (int d = n - 1; d >= 0; d--) {
        const int64_t size = size_value(dim[d]);
        if (d >= batch)
            rows_add_checked(c, &rows, column(c, index, tuples, d - (int)batch), size, stride);
        else if (!size_equal(dim[d], at[d])) return fail(SOL_EINVAL, "batch dims do not fit");
        else rows_add(c, &rows, call_arange(c, dim[d], stride, tuples - 2 - d));
        stride *= size;
    }
    return call_set_output(c, 0, rows_take(c, &rows, x, n, dim));
}

/* ---- OneHot ---- */

/* Element `i` of the two values in input 2. */
static sol_tensor choice(struct op_call *c, int i) {
    return call_reshape(c, LAYER1(c, "slice", call_tensor(c, 2), "start=%d shape=[1]", i), 0, NULL);
}

/* An index out of range selects no position. */
enum sol_status op_one_hot(struct op_call *c) {
    struct size dim[SOL_MAX_RANK];
    const int rank = call_rank(c, 0), axis = (int)call_axis(c, call_int(c, "axis", -1), rank + 1);
    const double wanted = call_input_float(c, 1);
    TRY(c->im->status);
    if (!(wanted >= 0)) return fail(SOL_EINVAL, "depth below 0");
    if (rank == SOL_MAX_RANK || wanted < 1 || wanted > 0x1p53)
        return fail(SOL_EUNSUPPORTED, "depth %g, rank %d", wanted, rank);
    const int64_t depth = (int64_t)wanted;
    sol_tensor index = from_end(c, call_cast(c, call_tensor(c, 0), SOL_I64), depth);
    call_shape(c, index, dim);
    memmove(dim + axis + 1, dim + axis, sizeof *dim * (size_t)(rank - axis));
    dim[axis] = size_const(1);
    sol_tensor is_on = LAYER2(c, "equal", call_reshape(c, index, rank + 1, dim),
                              call_arange(c, size_const(depth), 1, rank - axis), "");
    return call_set_output(c, 0, call_where(c, is_on, choice(c, 1), choice(c, 0)));
}

/* ---- ReverseSequence ---- */

/* The first length[b] elements along the time axis in reverse order, for each b of the batch axis. */
enum sol_status op_reverse_sequence(struct op_call *c) {
    struct size dim[SOL_MAX_RANK], full[SOL_MAX_RANK];
    const int64_t time = call_int(c, "time_axis", 0), batch = call_int(c, "batch_axis", 1);
    const int rank = call_rank(c, 0);
    sol_tensor x = call_tensor(c, 0), length = call_cast(c, call_tensor(c, 1), SOL_I64);
    if (!call_fixed_shape(c, x, rank, dim)) return c->im->status;
    if (rank < 2 || call_rank(c, 1) != 1 || time + batch != 1 || time * batch != 0 ||
        !size_equal(c->in[1]->dim[0], dim[batch]))
        return fail(SOL_EINVAL, "axes or lengths");
    for (int d = 0; d < rank; d++) full[d] = d == batch ? dim[d] : size_const(1);
    length = call_reshape(c, length, rank, full);
    sol_tensor at = call_arange(c, dim[time], 1, rank - 1 - (int)time);
    sol_tensor one = call_scalar_of(c, 1, SOL_I64), zero = call_scalar_of(c, 0, SOL_I64);
    sol_tensor back = LAYER2(c, "sub", LAYER2(c, "sub", length, one, ""), at, "");
    sol_tensor is_inside = LAYER2(c, "less", at, length, "");
    /* A length that does not fit selects a row that does not exist. */
    sol_tensor longest = call_scalar_of(c, (double)size_value(dim[time]), SOL_I64);
    sol_tensor is_bad = LAYER2(c, "bit_or", LAYER2(c, "less", longest, length, ""),
                               LAYER2(c, "less", length, zero, ""), "");
    at = call_where(c, is_bad, longest, call_where(c, is_inside, back, at));
    at = call_expand(c, at, rank, dim);
    return call_set_output(c, 0, rows_gather_elements(c, x, at, (int)time));
}

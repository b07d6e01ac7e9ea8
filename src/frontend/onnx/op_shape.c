/* Operators that change shapes or move values: reshape, transpose, concat, split, slice, expand, blocks of pixels. */
#include "import.h"

#include <string.h>

enum sol_status op_identity(struct op_call *c) {
    struct import_value same = *c->in[0];
    return call_set_output_value(c, 0, &same);
}

/* In inference, the result is the input. The mask is all ones; before opset 10 its type was f32. */
enum sol_status op_dropout(struct op_call *c) {
    struct import_value same = *c->in[0];
    double ratio = call_has(c, 1) ? call_input_float(c, 1) : 0.5;
    if (call_has(c, 2) && call_input_float(c, 2) != 0 && ratio != 0)
        return fail(SOL_EUNSUPPORTED, "training_mode: numbers that nobody can predict");
    TRY(call_set_output_value(c, 0, &same));
    if (c->n_out < 2 || !c->out[1]) return c->im->status;
    sol_tensor all = call_expand(c, call_scalar(c, 1), same.rank, same.dim);
    return call_set_output(c, 1, call_cast(c, all, c->im->opset < 10 ? SOL_F32 : SOL_BOOL));
}

/* Reads the new shape; returns its rank. A 0 is replaced by the input's dim, unless allowzero is set. A -1 stays: the reshape layer
 * infers it. */
static int read_shape(struct op_call *c, struct size *dim) {
    const struct import_value *x = c->in[0], *shape = c->in[1];
    bool keeps_zero = call_int(c, "allowzero", 0) != 0;
    if (!call_shape_value(c, 1) || shape->rank != 1 || size_value(shape->dim[0]) > SOL_MAX_RANK) {
        call_fail(c, fail(SOL_EUNSUPPORTED,
                          "the shape is not known before the call, or has too many dims"));
        return 0;
    }
    int n = (int)size_value(shape->dim[0]);
    for (int d = 0; d < n; d++) {
        dim[d] = shape->shape_value[d];
        if (!size_is(dim[d], 0) || keeps_zero) continue;
        if (d < x->rank) dim[d] = x->dim[d];
        else call_fail(c, fail(SOL_EINVAL, "dim %d is 0, and the input has only %d", d, x->rank));
    }
    return n;
}

enum sol_status op_reshape(struct op_call *c) {
    struct size dim[SOL_MAX_RANK];
    int n = read_shape(c, dim);
    return call_set_output(c, 0, call_reshape(c, call_tensor(c, 0), n, dim));
}

/* To [product of the dims before axis, product of the dims from axis on]. */
enum sol_status op_flatten(struct op_call *c) {
    int rank = call_rank(c, 0);
    int64_t axis = call_int(c, "axis", 1);
    struct size dim[2] = {size_const(1), size_const(1)};
    if (axis < -rank || axis > rank)
        return fail(SOL_EINVAL, "axis %lld of a tensor of rank %d", (long long)axis, rank);
    if (axis < 0) axis += rank;
    for (int d = 0; d < rank; d++) dim[d >= axis] = size_mul(dim[d >= axis], c->in[0]->dim[d]);
    return call_set_output(c, 0, call_reshape(c, call_tensor(c, 0), 2, dim));
}

/* Marks the dims that `axes` names, of a tensor of `rank`; false when there are none. An attribute before opset 13, an input
 * since. */
static bool read_axes(struct op_call *c, int rank, bool named[SOL_MAX_RANK]) {
    int64_t axes[SOL_MAX_RANK];
    int n = call_has(c, 1) ? call_input_ints(c, 1, SOL_MAX_RANK, axes)
                           : call_ints(c, "axes", SOL_MAX_RANK, axes);
    for (int i = 0; i < n; i++) call_axis_of_list(c, axes[i], rank, named);
    return n > 0;
}

/* Sets output 0 to input 0 with other dims: a reshape of a tensor, or a known value. */
static enum sol_status output_with_dims(struct op_call *c, int rank, const struct size *dim) {
    struct import_value same = *c->in[0];
    if (!same.shape_value && !(same.data && size_family(same.dtype) != FAMILY_FLOAT))
        return call_set_output(c, 0, call_reshape(c, call_tensor(c, 0), rank, dim));
    same.rank = rank;
    memcpy(same.dim, dim, sizeof *dim * (size_t)rank);
    same.tensor = -1; /* a tensor would have the old dims */
    return call_set_output_value(c, 0, &same);
}

/* Without axes, all dims of 1 are removed. They must be constants, since the rank must not depend on the batch. */
enum sol_status op_squeeze(struct op_call *c) {
    bool named[SOL_MAX_RANK] = {false};
    struct size dim[SOL_MAX_RANK];
    int rank = 0;
    bool is_any = !read_axes(c, call_rank(c, 0), named);
    for (int d = 0; d < call_rank(c, 0); d++) {
        bool is_one = size_is(c->in[0]->dim[d], 1);
        if (named[d] && !is_one) return fail(SOL_EINVAL, "dim %d is not 1", d);
        if (is_any && !size_is_const(c->in[0]->dim[d]))
            return fail(SOL_EUNSUPPORTED, "whether dim %d vanishes depends on the batch", d);
        if (!(is_any ? is_one : named[d])) dim[rank++] = c->in[0]->dim[d];
    }
    return output_with_dims(c, rank, dim);
}

enum sol_status op_unsqueeze(struct op_call *c) {
    bool named[SOL_MAX_RANK] = {false};
    struct size dim[SOL_MAX_RANK];
    int64_t axes[SOL_MAX_RANK];
    int n = call_has(c, 1) ? call_input_ints(c, 1, SOL_MAX_RANK, axes)
                           : call_ints(c, "axes", SOL_MAX_RANK, axes);
    int rank = call_rank(c, 0) + n;
    if (rank > SOL_MAX_RANK) return fail(SOL_EUNSUPPORTED, "rank %d", rank);
    read_axes(c, rank, named);
    for (int d = 0, from = 0; d < rank && !c->im->status; d++)
        dim[d] = named[d] ? size_const(1) : c->in[0]->dim[from++];
    return c->im->status ? c->im->status : output_with_dims(c, rank, dim);
}

/* Numbers of perm may not be negative, unlike axes. */
enum sol_status op_transpose(struct op_call *c) {
    int64_t perm[SOL_MAX_RANK];
    int rank = call_rank(c, 0), n = call_ints(c, "perm", SOL_MAX_RANK, perm);
    if (n && n != rank)
        return fail(SOL_EINVAL, "perm has %d values for a tensor of rank %d", n, rank);
    for (int d = 0; d < n; d++)
        if (perm[d] < 0) return fail(SOL_EINVAL, "perm has %lld", (long long)perm[d]);
    for (int d = 0; !n && d < rank; d++) perm[d] = rank - 1 - d;
    return call_set_output(c, 0, call_permute(c, call_tensor(c, 0), rank, perm));
}

enum sol_status op_concat(struct op_call *c) {
    sol_tensor *in = ARENA_ARRAY(c->im->arena, sol_tensor, c->n_in);
    int64_t axis = call_axis(c, call_int(c, "axis", 1), call_rank(c, 0));
    if (!call_attribute(c, "axis")) return fail(SOL_EINVAL, "axis is missing");
    for (int i = 0; i < c->n_in; i++) in[i] = call_tensor(c, i);
    return call_set_output(c, 0,
                           call_layer(c, "concat", c->n_in, in, "axis=%lld", (long long)axis));
}

/* ---- Parts ---- */

static sol_tensor slice(struct op_call *c, sol_tensor x, int axis, int64_t start, int64_t step,
                        int64_t n) {
    return LAYER1(c, "slice", x, "axis=%d start=%lld step=%lld shape=[%lld]", axis,
                  (long long)start, (long long)step, (long long)n);
}

/* Sizes of the `n` parts of a dim of `size`: those of the node, or equal ones, of which the last may be smaller. */
static void read_parts(struct op_call *c, int64_t size, int n, int64_t *part) {
    int found = call_has(c, 1) ? call_input_ints(c, 1, n, part) : call_ints(c, "split", n, part);
    int64_t sum = 0, each = ceil_div(size, n);
    for (int i = 0; !found && i < n; i++) part[i] = max_i64(0, min_i64(each, size - i * each));
    for (int i = 0; i < n; i++)
        sum = part[i] < 0 || part[i] > size ? -1 : sum < 0 ? sum : sum + part[i];
    if ((found && found != n) || sum != size)
        call_fail(c, fail(SOL_EINVAL, "%d parts do not make up the %lld values of the axis", found,
                          (long long)size));
}

enum sol_status op_split(struct op_call *c) {
    int n = (int)call_int(c, "num_outputs", c->n_out),
        axis = (int)call_axis(c, call_int(c, "axis", 0), call_rank(c, 0));
    if (n != c->n_out || n < 1)
        return fail(SOL_EINVAL, "num_outputs does not fit %d outputs", c->n_out);
    int64_t *part = ARENA_ARRAY(c->im->arena, int64_t, n), start = 0;
    sol_tensor x = call_tensor(c, 0);
    read_parts(c, call_dim(c, 0, axis), n, part);
    for (int i = 0; i < n && !c->im->status; start += part[i++])
        TRY(call_set_output(c, i, slice(c, x, axis, start, 1, part[i])));
    return c->im->status;
}

/* Starts, ends, axes, steps: attributes before opset 10, inputs since. Returns their count. */
static int read_slices(struct op_call *c, int64_t list[4][SOL_MAX_RANK]) {
    static const char *const names[] = {"starts", "ends", "axes"};
    int n[4] = {0};
    for (int i = 0; i < 4; i++) {
        if (call_has(c, 1 + i)) n[i] = call_input_ints(c, 1 + i, SOL_MAX_RANK, list[i]);
        else if (i < 3) n[i] = call_ints(c, names[i], SOL_MAX_RANK, list[i]);
    }
    for (int k = n[2]; k < n[0] && !n[2]; k++) list[2][k] = k;
    for (int k = 0; k < n[0] && !n[3]; k++) list[3][k] = 1;
    if (n[1] != n[0] || (n[2] && n[2] != n[0]) || (n[3] && n[3] != n[0]))
        call_fail(
            c, fail(SOL_EINVAL, "%d starts, %d ends, %d axes, %d steps", n[0], n[1], n[2], n[3]));
    return c->im->status ? 0 : n[0];
}

/* A bound counts from the end if it is below 0. Then it is clamped to [low, high]. */
static int64_t clamp_bound(int64_t bound, int64_t size, int64_t low, int64_t high) {
    if (bound < 0) bound = bound < -size ? low : bound + size;
    return min_i64(max_i64(bound, low), high);
}

/* Clamps the bounds as NumPy. A slice that goes backwards may end before the first value, at -1. Returns the number of values. */
static int64_t clamp_slice(int64_t size, int64_t *start, int64_t end, int64_t step) {
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    *start = clamp_bound(*start, size, low, high);
    end = clamp_bound(end, size, low, high);
    int64_t n = step > 0 ? ceil_div(end - *start, step) : ceil_div(*start - end, -step);
    if (n <= 0) *start = 0;
    return max_i64(n, 0);
}

/* An open dim: bounds that count from its ends are formulas. An end that counts from its beginning may be behind it. */
static sol_tensor slice_open(struct op_call *c, sol_tensor x, int axis, int64_t from, int64_t to,
                             int64_t step) {
    struct size dim = c->in[0]->dim[axis], start = size_const(from), end = dim;
    if (from < 0) start = size_add(dim, size_const(from));
    if (to < 0) end = size_add(dim, size_const(to));
    else if (to < INT32_MAX)
        call_fail(c, fail(SOL_EUNSUPPORTED, "values up to %lld of an open size", (long long)to));
    if (step < 1) call_fail(c, fail(SOL_EUNSUPPORTED, "a step of %lld", (long long)step));
    struct size length = size_add(size_sub(end, start), size_const(step - 1));
    if (step > 1) length = call_floor(c, length, step);
    return LAYER1(c, "slice", x, "axis=%d start=%s step=%lld shape=[%s]", axis,
                  call_format_size(c, start), (long long)step, call_format_size(c, length));
}

/* An open dim that is taken completely, from 0 to an end of at least INT32_MAX, needs no slice. */
enum sol_status op_slice(struct op_call *c) {
    int64_t list[4][SOL_MAX_RANK];
    bool named[SOL_MAX_RANK] = {false};
    int n = read_slices(c, list);
    sol_tensor x = call_tensor(c, 0);
    for (int i = 0; i < n; i++) {
        int axis = (int)call_axis_of_list(c, list[2][i], call_rank(c, 0), named);
        if (list[3][i] == 0) return fail(SOL_EINVAL, "a step of 0");
        if (list[0][i] == 0 && list[1][i] >= INT32_MAX && list[3][i] == 1) continue;
        int64_t start = list[0][i], step = max_i64(-INT32_MAX, min_i64(list[3][i], INT32_MAX));
        if (!size_is_const(c->in[0]->dim[axis])) {
            x = slice_open(c, x, axis, start, list[1][i], step);
            continue;
        }
        int64_t length = clamp_slice(call_dim(c, 0, axis), &start, list[1][i], step);
        x = slice(c, x, axis, start, step, length);
    }
    return call_set_output(c, 0, x);
}

/* The shape is broadcast with the input's shape, so a 1 keeps the input's dim. */
enum sol_status op_expand(struct op_call *c) {
    struct size dim[SOL_MAX_RANK], shape[SOL_MAX_RANK];
    const struct import_value *x = c->in[0], *wanted = c->in[1];
    if (!call_shape_value(c, 1) || wanted->rank != 1 || size_value(wanted->dim[0]) > SOL_MAX_RANK)
        return fail(SOL_EUNSUPPORTED, "the shape is not known before the call");
    int n = (int)size_value(wanted->dim[0]), rank = n > x->rank ? n : x->rank;
    for (int d = 0; d < rank; d++) {
        int at = d - (rank - x->rank), to = d - (rank - n);
        dim[d] = at >= 0 ? x->dim[at] : size_const(1);
        shape[d] = to < 0 || size_is(wanted->shape_value[to], 1) ? dim[d] : wanted->shape_value[to];
    }
    return call_set_output(c, 0, call_expand(c, call_tensor(c, 0), rank, shape));
}

/* ---- Blocks ---- */

/* One reshape to six dims, one permutation, one reshape back. */
static enum sol_status move_blocks(struct op_call *c, const struct size six[6],
                                   const int64_t axes[6], const struct size out[4]) {
    sol_tensor x = call_permute(c, call_reshape(c, call_tensor(c, 0), 6, six), 6, axes);
    return call_set_output(c, 0, call_reshape(c, x, 4, out));
}

static enum sol_status check_blocks(struct op_call *c, int64_t size) {
    if (call_rank(c, 0) != 4 || size < 1 || size > INT16_MAX)
        return fail(SOL_EINVAL, "blocksize %lld, rank %d", (long long)size, call_rank(c, 0));
    return SOL_OK;
}

/* DCR: channels are [block row, block column, channel]; CRD: [channel, block row, block column]. */
enum sol_status op_depth_to_space(struct op_call *c) {
    int64_t b = call_int(c, "blocksize", 0);
    bool is_crd = !strcmp(call_string(c, "mode"), "CRD");
    TRY(check_blocks(c, b));
    int64_t ch = call_dim(c, 0, 1), h = call_dim(c, 0, 2), w = call_dim(c, 0, 3);
    if (ch % (b * b))
        return fail(SOL_EINVAL, "%lld channels cannot be cut into blocks of %lld", (long long)ch,
                    (long long)b);
    struct size n = c->in[0]->dim[0], block = size_const(b), rest = size_const(ch / (b * b)),
                rows = size_const(h), columns = size_const(w);
    struct size dcr[6] = {n, block, block, rest, rows, columns},
                crd[6] = {n, rest, block, block, rows, columns};
    struct size out[4] = {n, rest, size_const(h * b), size_const(w * b)};
    static const int64_t dcr_axes[6] = {0, 3, 4, 1, 5, 2}, crd_axes[6] = {0, 1, 4, 2, 5, 3};
    return move_blocks(c, is_crd ? crd : dcr, is_crd ? crd_axes : dcr_axes, out);
}

enum sol_status op_space_to_depth(struct op_call *c) {
    int64_t b = call_int(c, "blocksize", 0);
    TRY(check_blocks(c, b));
    int64_t ch = call_dim(c, 0, 1), h = call_dim(c, 0, 2), w = call_dim(c, 0, 3);
    if (h % b || w % b)
        return fail(SOL_EINVAL, "%lld rows or %lld columns cannot be cut into blocks of %lld",
                    (long long)h, (long long)w, (long long)b);
    struct size n = c->in[0]->dim[0], block = size_const(b);
    struct size six[6] = {n, size_const(ch), size_const(h / b), block, size_const(w / b), block};
    struct size out[4] = {n, size_const(ch * b * b), size_const(h / b), size_const(w / b)};
    static const int64_t dcr[6] = {0, 3, 5, 1, 2, 4}, crd[6] = {0, 1, 3, 5, 2, 4};
    return move_blocks(c, six, strcmp(call_string(c, "mode"), "CRD") ? dcr : crd, out);
}

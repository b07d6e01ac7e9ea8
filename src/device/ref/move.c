/* The reference of layers that only move values, of any type, and of resample. */
#include "device/ref/eval.h"

#include <string.h>

void ref_eval_reshape(const struct layer_call *c) {
    if (c->shape.n) memcpy(c->out, c->in[0], (size_t)(c->shape.n * size_element(c->type)));
}

/* A copy changes layouts only, and here all are plain. */
void ref_eval_copy(const struct layer_call *c) { ref_eval_reshape(c); }
void ref_eval_stop(const struct layer_call *c) { ref_eval_reshape(c); }

/* Output dim i is input dim axes[i]. */
void ref_eval_permute(const struct layer_call *c) {
    struct shape xs = ref_get_shape(c, 0), moved = xs;
    int64_t at[SOL_MAX_RANK] = {0};
    for (int i = 0; i < xs.rank; i++)
        moved.stride[i] = xs.stride[ref_wrap_axis(c->attr->axes[i], xs.rank)];
    for (int64_t i = 0; i < c->shape.n; i++) {
        ref_move(c, i, 0, ref_find_offset(&moved, at));
        ref_step_point(&c->shape, at);
    }
}

void ref_eval_slice(const struct layer_call *c) {
    struct shape xs = ref_get_shape(c, 0);
    int axis = ref_wrap_axis(c->attr->axis, xs.rank);
    int64_t at[SOL_MAX_RANK] = {0},
            first = size_eval(&c->attr->start, c->symbols) * xs.stride[axis];
    xs.stride[axis] *= c->attr->step;
    for (int64_t i = 0; i < c->shape.n; i++) {
        ref_move(c, i, 0, first + ref_find_offset(&xs, at));
        ref_step_point(&c->shape, at);
    }
}

void ref_eval_place(const struct layer_call *c) {
    struct shape xs = ref_get_shape(c, 0), placed = c->shape;
    int axis = ref_wrap_axis(c->attr->axis, xs.rank);
    int64_t at[SOL_MAX_RANK] = {0},
            first = size_eval(&c->attr->start, c->symbols) * placed.stride[axis];
    placed.stride[axis] *= c->attr->step;
    if (c->shape.n) memset(c->out, 0, (size_t)(c->shape.n * size_element(c->type)));
    for (int64_t i = 0; i < xs.n; i++) {
        ref_move(c, first + ref_find_offset(&placed, at), 0, i);
        ref_step_point(&xs, at);
    }
}

void ref_eval_concat(const struct layer_call *c) {
    int axis = ref_wrap_axis(c->attr->axis, c->shape.rank);
    int64_t out = 0; /* where the current input's part begins */
    for (int k = 0; k < c->layer->n_in; k++) {
        struct shape xs = ref_get_shape(c, k);
        int64_t at[SOL_MAX_RANK] = {0};
        for (int64_t i = 0; i < xs.n; i++) {
            ref_move(c, out + ref_find_offset(&c->shape, at), k, i);
            ref_step_point(&xs, at);
        }
        out += xs.dim[axis] * c->shape.stride[axis];
    }
}

void ref_eval_expand(const struct layer_call *c) {
    struct shape xs = ref_get_shape(c, 0);
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        ref_move(c, i, 0, ref_find_broadcast(&xs, c->shape.rank, at));
        ref_step_point(&c->shape, at);
    }
}

/* Negative padding crops, as in PyTorch: a point is padding exactly when it is outside the
 * input. */
void ref_eval_pad(const struct layer_call *c) {
    struct shape xs = ref_get_shape(c, 0);
    int64_t h = xs.dim[xs.rank - 2], w = xs.dim[xs.rank - 1];
    int64_t rows = c->shape.dim[xs.rank - 2], cols = c->shape.dim[xs.rank - 1];
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t row = i / cols % rows - c->attr->pad[0], col = i % cols - c->attr->pad[1];
        bool inside = row >= 0 && row < h && col >= 0 && col < w;
        int64_t plane = i / (rows * cols);
        if (inside) ref_move(c, i, 0, (plane * h + row) * w + col);
        else ref_set_constant(c, i, c->attr->value);
    }
}

/* The row that index number `i` selects; -1, with the call's status set, if there is no such row. */
static int64_t read_row(const struct layer_call *c, int64_t i, int64_t rows) {
    const char *kind = layer_infos[c->layer->kind].name;
    int64_t row = ref_whole(c, 1, i);
    const int64_t least = c->attr->wraps ? -rows : 0;
    if (row >= least && row < rows) return row < 0 ? row + rows : row;
    *c->status = fail(SOL_EINDEX, "%s: number %lld, but there are %lld rows", kind, (long long)row,
                      (long long)rows);
    return -1;
}

void ref_eval_gather(const struct layer_call *c) {
    struct shape xs = ref_get_shape(c, 0), ns = ref_get_shape(c, 1);
    int axis = ref_wrap_axis(c->attr->axis, xs.rank);
    int64_t rows = xs.dim[axis], inner = xs.stride[axis];
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t outer = i / inner / ns.n, row = read_row(c, i / inner % ns.n, rows);
        if (row < 0) return;
        ref_move(c, i, 0, (outer * rows + row) * inner + i % inner);
    }
}

/* Writes the sum of the elements of x whose index, among the n numbers from `first` on, is `row`. */
static void sum_row(const struct layer_call *c, int64_t i, int64_t row, int64_t first, int64_t n) {
    const int64_t axis = c->attr->axis, rows = c->shape.dim[axis], inner = c->shape.stride[axis];
    double sum = 0;
    int64_t whole = 0;
    for (int64_t k = first; k < first + n; k++) {
        if (read_row(c, k, rows) != row) continue;
        if (c->is_real) sum += ref_real(c, 0, k * inner + i % inner);
        else whole = REF_WRAP(whole, +, ref_whole(c, 0, k * inner + i % inner));
    }
    if (c->is_real) ref_set_real(c, i, sum);
    else ref_set_whole(c, i, whole);
}

void ref_eval_scatter_sum(const struct layer_call *c) {
    const struct shape ns = ref_get_shape(c, 1);
    const int64_t axis = c->attr->axis, rows = c->shape.dim[axis], inner = c->shape.stride[axis];
    int64_t n = 1;
    for (int d = (int)axis; d < ns.rank; d++) n *= ns.dim[d];
    for (int64_t k = 0; k < ns.n; k++)
        if (read_row(c, k, rows) < 0) return;
    for (int64_t i = 0; i < c->shape.n; i++)
        sum_row(c, i, i / inner % rows, i / inner / rows * n, n);
}

/* Tap k of element i of a resampled dim: the element of x, and the weight. */
static int64_t read_tap(const struct layer_call *c, int input, int64_t k, int64_t i, int64_t size,
                        double *weight) {
    const struct shape taps = ref_get_shape(c, input);
    const int64_t at = ref_whole(c, input, k * taps.dim[1] + i);
    *weight *= ref_real(c, input + 1, k * taps.dim[1] + i);
    if (at >= 0 && at < size) return at;
    *c->status = fail(SOL_EINDEX, "resample: number %lld, but there are %lld elements",
                      (long long)at, (long long)size);
    return 0;
}

/* The output is [outer][rows][columns][inner]; with one dim to resample, there is one column. */
void ref_eval_resample(const struct layer_call *c) {
    const struct shape xs = ref_get_shape(c, 0);
    const int axis = ref_wrap_axis(c->attr->axis, xs.rank);
    const bool has_two = c->layer->n_in > 3;
    const int64_t inner = c->shape.stride[axis + has_two], rows = c->shape.dim[axis],
                  columns = has_two ? c->shape.dim[axis + 1] : 1;
    const int64_t row_taps = ref_get_shape(c, 1).dim[0],
                  column_taps = has_two ? ref_get_shape(c, 3).dim[0] : 1;
    for (int64_t i = 0; i < c->shape.n; i++) {
        const int64_t column = i / inner % columns, row = i / inner / columns % rows,
                      first = i / inner / columns / rows * xs.dim[axis] * xs.stride[axis];
        double sum = 0;
        for (int64_t k = 0; k < row_taps * column_taps; k++) {
            double weight = 1;
            int64_t at = read_tap(c, 1, k / column_taps, row, xs.dim[axis], &weight);
            at = first + at * xs.stride[axis] + i % inner;
            if (has_two)
                at += inner * read_tap(c, 3, k % column_taps, column, xs.dim[axis + 1], &weight);
            sum += weight * ref_real(c, 0, at);
        }
        ref_set_real(c, i, sum);
    }
}

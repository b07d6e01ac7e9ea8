/* Shape inference of layers that only move values. */
#include "ir/layer.h"
#include "run/program.h"

#include <string.h>

static bool is_wildcard(struct size s) { return size_is(s, -1); }

/* One dim may be -1: it is computed from the number of elements and replaced in the attribute. */
enum sol_status infer_reshape(struct layer *l) {
    struct attr *a = &l->attr;
    struct size known = size_const(1), all = ir_elements(l->in[0]);
    int open = -1;
    for (int i = 0; i < a->n_shape; i++) {
        if (is_wildcard(a->shape[i]) && open >= 0) return fail(SOL_EINVAL, "two dims are -1");
        if (is_wildcard(a->shape[i])) open = i;
        else known = size_mul(known, a->shape[i]);
    }
    bool fits = open >= 0 ? size_divide(all, known, &a->shape[open]) : size_equal(all, known);
    if (!fits)
        return fail(SOL_EINVAL, "input %s does not have the new shape's number of elements",
                    SHAPE_TEXT(l->in[0]));
    l->out[0]->rank = a->n_shape;
    memcpy(l->out[0]->dim, a->shape, sizeof *a->shape * (size_t)a->n_shape);
    return SOL_OK;
}

/* Output dim i is input dim axes[i], as PyTorch's permute: axes=[0,2,3,1] makes [n,h,w,c] of [n,c,h,w]. */
enum sol_status infer_permute(struct layer *l) {
    struct attr *a = &l->attr;
    bool seen[SOL_MAX_RANK] = {false};
    if (a->n_axes != l->in[0]->rank)
        return fail(SOL_EINVAL, "%d axes for a tensor of rank %d", a->n_axes, l->in[0]->rank);
    TRY(infer_axes(a, a->n_axes, seen));
    l->out[0]->rank = a->n_axes;
    for (int i = 0; i < a->n_axes; i++) l->out[0]->dim[i] = l->in[0]->dim[a->axes[i]];
    return SOL_OK;
}

void infer_steps(const struct attr *a, struct size count, struct size *least, struct size *most) {
    struct size last = size_scale(size_sub(count, size_const(1)), a->step);
    last = size_add(last, a->start);
    *least = a->step > 0 ? a->start : last;
    *most = a->step > 0 ? last : a->start;
}

/* Checks that `count` values, as `start` and `step` say, are inside of the axis of `whole`. Of an open dim, ir/condition.c has calls
 * refused in which they are not. */
static enum sol_status check_steps(const struct attr *a, struct size count,
                                   const struct tensor *whole) {
    struct size least, most;
    infer_steps(a, count, &least, &most);
    struct size left = size_sub(size_sub(whole->dim[a->axis], size_const(1)), most);
    bool is_outside = most.bad || least.bad || (size_is_const(left) && size_value(left) < 0) ||
                      (size_is_const(least) && size_value(least) < 0);
    if (is_outside && !size_is(count, 0))
        return fail(SOL_EINVAL, "%s values from %s by %lld leave axis %lld of %s",
                    SIZE_FORMAT(count), SIZE_FORMAT(a->start), (long long)a->step,
                    (long long)a->axis, SHAPE_TEXT(whole));
    return SOL_OK;
}

/* The attributes of slice and place. The output has the input's shape, with shape[0] along the axis. */
static enum sol_status infer_along(struct layer *l) {
    struct attr *a = &l->attr;
    TRY(infer_axis(&a->axis, l->in[0]->rank));
    if (a->n_shape != 1 || a->step == 0 || (size_is_const(a->start) && size_value(a->start) < 0))
        return fail(SOL_EINVAL, "needs start >= 0, a step and one length in shape");
    TRY(ir_check_symbols(l->model, a->start));
    infer_set_shape(l->out[0], l->in[0]);
    l->out[0]->dim[a->axis] = a->shape[0];
    return SOL_OK;
}

/* `shape` is the number of values, not an end: start=58 step=1 shape=[58] is the second half of 116 channels. A step below 0 goes
 * backwards. */
enum sol_status infer_slice(struct layer *l) {
    TRY(infer_along(l));
    return check_steps(&l->attr, l->attr.shape[0], l->in[0]);
}

/* Here `shape` is the size of the output: all values of x must have a place there. */
enum sol_status infer_place(struct layer *l) {
    TRY(infer_along(l));
    return check_steps(&l->attr, l->in[0]->dim[l->attr.axis], l->out[0]);
}

enum sol_status infer_concat(struct layer *l) {
    const struct tensor *first = l->in[0];
    struct tensor *out = l->out[0];
    TRY(infer_axis(&l->attr.axis, first->rank));
    infer_set_shape(out, first);
    for (int i = 0; i < l->n_in; i++) {
        if (!ir_same_shape(first, l->in[i], l->attr.axis))
            return fail(SOL_EINVAL, "shapes %s and %s differ in more than axis %lld",
                        SHAPE_TEXT(first), SHAPE_TEXT(l->in[i]), (long long)l->attr.axis);
        if (i)
            out->dim[l->attr.axis] = size_add(out->dim[l->attr.axis], l->in[i]->dim[l->attr.axis]);
    }
    return SOL_OK;
}

/* Dims are aligned at the end, as in broadcasting; new ones are in front. */
enum sol_status infer_expand(struct layer *l) {
    const struct attr *a = &l->attr;
    const struct tensor *in = l->in[0];
    if (a->n_shape < in->rank)
        return fail(SOL_EINVAL, "input %s has more dims than the new shape", SHAPE_TEXT(in));
    l->out[0]->rank = a->n_shape;
    for (int d = 0; d < a->n_shape; d++) {
        int from = d - (a->n_shape - in->rank);
        l->out[0]->dim[d] = a->shape[d];
        if (from >= 0 && !size_is(in->dim[from], 1) && !size_equal(in->dim[from], a->shape[d]))
            return fail(SOL_EINVAL, "dim %d of %s is not 1 and cannot be expanded", from,
                        SHAPE_TEXT(in));
    }
    return SOL_OK;
}

/* Pads the last two dims, with any leading dims. */
enum sol_status infer_pad(struct layer *l) {
    const struct attr *a = &l->attr;
    const struct tensor *in = l->in[0];
    if (in->rank < 2) return fail(SOL_EINVAL, "needs rows and columns");
    TRY(infer_bound(in->dtype, a->value));
    infer_set_shape(l->out[0], in);
    for (int i = 0; i < 2; i++) {
        if (a->pad[i] < 0 || a->pad[2 + i] < 0 || a->pad[i] > INT32_MAX ||
            a->pad[2 + i] > INT32_MAX)
            return fail(SOL_EUNSUPPORTED, "pads must be >= 0");
        int d = in->rank - 2 + i;
        l->out[0]->dim[d] = size_add(in->dim[d], size_const(a->pad[i] + a->pad[2 + i]));
    }
    return SOL_OK;
}

/* The output has the table's dims, with the dims of the indices in place of the axis. */
enum sol_status infer_gather(struct layer *l) {
    const struct tensor *x = l->in[0], *at = l->in[1];
    struct tensor *out = l->out[0];
    TRY(infer_axis(&l->attr.axis, x->rank));
    int axis = (int)l->attr.axis, rank = x->rank - 1 + at->rank;
    if (rank > SOL_MAX_RANK)
        return fail(SOL_EUNSUPPORTED, "the result has rank %d; at most %d is possible", rank,
                    SOL_MAX_RANK);
    out->rank = rank;
    for (int d = 0; d < axis; d++) out->dim[d] = x->dim[d];
    for (int d = 0; d < at->rank; d++) out->dim[axis + d] = at->dim[d];
    for (int d = axis + 1; d < x->rank; d++) out->dim[at->rank + d - 1] = x->dim[d];
    return SOL_OK;
}

/* The output has x's batches, the rows, and x's inner dims. */
enum sol_status infer_scatter_sum(struct layer *l) {
    const struct tensor *x = l->in[0], *at = l->in[1];
    struct tensor *out = l->out[0];
    const struct attr *a = &l->attr;
    if (a->n_shape != 1) return fail(SOL_EINVAL, "needs one number of rows in shape");
    if (a->axis < 0 || a->axis > at->rank)
        return fail(SOL_EINVAL, "%lld batch dims, but the indices %s have %d", (long long)a->axis,
                    SHAPE_TEXT(at), at->rank);
    if (x->rank < at->rank)
        return fail(SOL_EINVAL, "x %s has fewer dims than the indices", SHAPE_TEXT(x));
    for (int d = 0; d < at->rank; d++)
        if (!size_equal(x->dim[d], at->dim[d]))
            return fail(SOL_EINVAL, "the dims of indices %s are not the first ones of x %s",
                        SHAPE_TEXT(at), SHAPE_TEXT(x));
    const int rank = (int)a->axis + 1 + x->rank - at->rank;
    if (rank > SOL_MAX_RANK)
        return fail(SOL_EUNSUPPORTED, "the result has rank %d; at most %d is possible", rank,
                    SOL_MAX_RANK);
    out->rank = rank;
    for (int d = 0; d < a->axis; d++) out->dim[d] = x->dim[d];
    out->dim[a->axis] = a->shape[0];
    for (int d = at->rank; d < x->rank; d++) out->dim[a->axis + 1 + d - at->rank] = x->dim[d];
    return SOL_OK;
}

/* The taps of one dim: indices and weights [taps, n]. */
static enum sol_status resample_dim(struct layer *l, int axis, int input) {
    const struct tensor *x = l->in[0], *index = l->in[input], *weight = l->in[input + 1];
    if (axis >= x->rank) return fail(SOL_EINVAL, "x has no axis %d", axis);
    if (index->rank != 2 || weight->rank != 2 || !ir_same_shape(index, weight, -1))
        return fail(SOL_EINVAL, "input %d is %s and input %d is %s; both must be [taps, n]", input,
                    SHAPE_TEXT(index), input + 1, SHAPE_TEXT(weight));
    if (!size_is_const(index->dim[0]) || size_value(index->dim[0]) < 1 ||
        size_value(index->dim[0]) > RESAMPLE_TAPS)
        return fail(SOL_EUNSUPPORTED, "%s taps; at least 1 and at most %d are possible",
                    SIZE_FORMAT(index->dim[0]), RESAMPLE_TAPS);
    if (size_is(x->dim[axis], 0)) return fail(SOL_EINVAL, "axis %d of x is empty", axis);
    l->out[0]->dim[axis] = index->dim[1];
    return SOL_OK;
}

enum sol_status infer_resample(struct layer *l) {
    if (l->n_in == 4) return fail(SOL_EINVAL, "the second dim has no weights");
    TRY(infer_axis(&l->attr.axis, l->in[0]->rank));
    infer_set_shape(l->out[0], l->in[0]);
    TRY(resample_dim(l, (int)l->attr.axis, 1));
    return l->n_in > 3 ? resample_dim(l, (int)l->attr.axis + 1, 3) : SOL_OK;
}

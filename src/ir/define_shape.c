/* Layers that only move values, as point expressions: each loads the input point that an output point is copied from. */
#include "ir/define.h"

/* Position of a point in row-major order. */
static const struct index *flatten(struct define *d, const struct tensor *t) {
    const struct index *at = NUMBER(0);
    for (int i = 0; i < t->rank; i++) at = PLUS(TIMES(at, t->dim[i]), VAR(i));
    return at;
}

/* A value keeps its position in row-major order. The input's indices follow from it, from the last dim to the first:
 * index = position % dim; position = position / dim. The first dim needs no %, as its index is in range. */
struct expr *define_reshape(struct define *d) {
    const struct tensor *in = d->layer->in[0], *out = d->layer->out[0];
    const struct index **index = ARENA_ARRAY(d->arena, const struct index *, in->rank + 1);
    const struct index *rest = flatten(d, out);
    for (int i = in->rank - 1; i >= 0; i--) {
        index[i] = i ? index_mod(d->arena, rest, in->dim[i]) : rest;
        rest = index_div(d->arena, rest, in->dim[i]);
    }
    return define_load(d, 0, index, false, 0);
}

struct expr *define_permute(struct define *d) {
    const struct index **index = define_point(d, d->layer->out[0]->rank);
    for (int i = 0; i < d->layer->out[0]->rank; i++) index[d->layer->attr.axes[i]] = VAR(i);
    return define_load(d, 0, index, false, 0);
}

/* out[i] = in[start + i * step] along the axis; infer_slice has checked that this is inside. */
struct expr *define_slice(struct define *d) {
    const struct attr *a = &d->layer->attr;
    const struct index **index = define_point(d, d->layer->out[0]->rank);
    const struct index *scaled = TIMES(index[a->axis], size_const(a->step));
    index[a->axis] = PLUS(scaled, index_size(d->arena, a->start));
    return define_load(d, 0, index, false, 0);
}

/* Output point i has the value (i - start) / step of the input, if that is whole and inside; else 0. Counted from the end where
 * `step` is negative, as divisors are positive. */
struct expr *define_place(struct define *d) {
    const struct attr *a = &d->layer->attr;
    const struct index **index = define_point(d, d->layer->out[0]->rank);
    const int64_t sign = a->step < 0 ? -1 : 1;
    const struct index *far = PLUS(index[a->axis], index_size(d->arena, size_scale(a->start, -1)));
    const struct size step = size_const(sign * a->step);
    far = TIMES(far, size_const(sign));
    index[a->axis] = index_div(d->arena, far, step);
    struct expr *value = define_load(d, 0, index, true, 0);
    if (size_is(step, 1)) return value;
    const struct index *rest = index_mod(d->arena, far, step);
    return SELECT(define_range(d, rest, size_const(0), size_const(1)), value, C(0));
}

/* A chain of selects, built from the last part to the first: part i if the index is in its range, else the later parts. */
struct expr *define_concat(struct define *d) {
    const struct layer *l = d->layer;
    int64_t axis = l->attr.axis;
    struct size end = l->out[0]->dim[axis];
    struct expr *e = NULL;
    for (int i = l->n_in - 1; i >= 0; i--) {
        struct size start = size_sub(end, l->in[i]->dim[axis]);
        const struct index **index = define_point(d, l->out[0]->rank);
        index[axis] = PLUS(index[axis], index_size(d->arena, size_scale(start, -1)));
        struct expr *part = define_load(d, i, index, l->n_in > 1, 0);
        struct expr *here = define_range(d, VAR((int)axis), start, end);
        e = e ? SELECT(here, part, e) : part;
        end = start;
    }
    return e;
}

struct expr *define_expand(struct define *d) { return define_in(d, 0); }

/* Pads the last two dims. If all pads are 0, the load needs no check. */
struct expr *define_pad(struct define *d) {
    const struct attr *a = &d->layer->attr;
    int rank = d->layer->out[0]->rank;
    const struct index **index = define_point(d, rank);
    for (int i = 0; i < 2; i++) index[rank - 2 + i] = PLUS(index[rank - 2 + i], NUMBER(-a->pad[i]));
    bool outside = a->pad[0] || a->pad[1] || a->pad[2] || a->pad[3];
    return define_load(d, 0, index, outside, a->value);
}

/* Greater than every distance from a diagonal, but far from overflow. */
#define FAR ((int64_t)1 << 40)

/* x where 0 <= distance, else `value`. */
static struct expr *keep_where(struct define *d, const struct index *distance) {
    return SELECT(define_range(d, distance, size_const(0), size_const(FAR)), define_in(d, 0),
                  C(d->layer->attr.value));
}

/* Below the diagonal, row - column is greater than -diagonal. */
struct expr *define_tril(struct define *d) {
    int rank = d->layer->out[0]->rank;
    const struct index *left = PLUS(VAR(rank - 2), TIMES(VAR(rank - 1), size_const(-1)));
    return keep_where(d, PLUS(left, NUMBER(d->layer->attr.diagonal)));
}

struct expr *define_triu(struct define *d) {
    int rank = d->layer->out[0]->rank;
    const struct index *right = PLUS(VAR(rank - 1), TIMES(VAR(rank - 2), size_const(-1)));
    return keep_where(d, PLUS(right, NUMBER(-d->layer->attr.diagonal)));
}

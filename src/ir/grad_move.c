/* Gradients of layers that move values: the inverse movement, or sums where values were repeated. */
#include "ir/rule.h"

void grad_reshape(struct rule *r) { rule_give(r, 0, make_reshape(r->m, DY, X->rank, X->dim)); }

void grad_permute(struct rule *r) {
    int64_t inverse[SOL_MAX_RANK];
    for (int i = 0; i < X->rank; i++) inverse[r->layer->attr.axes[i]] = i;
    rule_give(r, 0, make_permute(r->m, DY, X->rank, inverse, r->layer->origin));
}

void grad_slice(struct rule *r) { rule_give_part(r, DY); }

/* The part of dy that input `in`, which begins at `start` of the result, has given. */
static struct tensor *part(struct rule *r, const struct tensor *in, struct size start) {
    struct attr attr = ir_default_attr();
    attr.axis = r->layer->attr.axis;
    attr.start = start;
    attr.n_shape = 1;
    attr.shape[0] = in->dim[attr.axis];
    return make_layer(r->m, LAYER_slice, 1, &DY, &attr, r->layer->origin);
}
void grad_concat(struct rule *r) {
    struct size start = size_const(0);
    for (int i = 0; i < r->layer->n_in; i++) {
        const struct tensor *in = r->layer->in[i];
        if (rule_wants(r, i)) rule_give(r, i, part(r, in, start));
        start = size_add(start, in->dim[r->layer->attr.axis]);
    }
}

void grad_expand(struct rule *r) { rule_give(r, 0, DY); }

void grad_pad(struct rule *r) {
    struct tensor *dx = DY;
    for (int i = 0; i < 2; i++) {
        const int axis = X->rank - 2 + i;
        dx = make_slice(r->m, dx, axis, r->layer->attr.pad[i], 1, X->dim[axis], r->layer->origin);
    }
    rule_give(r, 0, dx);
}

/* The values that were replaced have no part in y. */
void grad_triangle(struct rule *r) {
    struct attr attr = ir_default_attr();
    attr.diagonal = r->layer->attr.diagonal;
    rule_give(r, 0, make_layer(r->m, r->layer->kind, 1, &DY, &attr, r->layer->origin));
}

/* Its values, in their places, are those that the slice of dy reads. */
void grad_place(struct rule *r) {
    struct attr attr = r->layer->attr;
    attr.shape[0] = X->dim[attr.axis];
    rule_give(r, 0, make_layer(r->m, LAYER_slice, 1, &DY, &attr, r->layer->origin));
}

/* Moves the `n` dims that begin at `from` in front of all others. */
static struct tensor *move_dims(struct rule *r, struct tensor *x, int from, int n) {
    int64_t axes[SOL_MAX_RANK];
    if (!x || from == 0) return x;
    for (int d = 0; d < x->rank; d++) axes[d] = d < n ? from + d : d < n + from ? d - n : d;
    return make_permute(r->m, x, x->rank, axes, r->layer->origin);
}

/* dy without the rows that were taken from row number `padding`, whose dims begin at `axis`. */
static struct tensor *drop_padding(struct rule *r, struct tensor *dy, int axis) {
    struct tensor *index = r->layer->in[1];
    struct size dim[SOL_MAX_RANK];
    for (int d = 0; d < DY->rank - axis; d++)
        dim[d] = d < index->rank ? index->dim[d] : size_const(1);
    if (r->layer->attr.padding < 0) return dy;
    struct tensor *is_padding =
        make_with(r->m, LAYER_equal, index, (double)r->layer->attr.padding, r->layer->origin);
    return WHERE(make_reshape(r->m, is_padding, DY->rank - axis, dim), NUM(0), dy);
}

/* Rows of dy are added where the indices have taken them from. The rows' dims come first for this. */
void grad_gather(struct rule *r) {
    const int axis = (int)r->layer->attr.axis, n = r->layer->in[1]->rank;
    struct attr attr = ir_default_attr();
    attr.n_shape = 1;
    attr.shape[0] = X->dim[axis];
    attr.wraps = r->layer->attr.wraps;
    struct tensor *in[] = {move_dims(r, drop_padding(r, DY, axis), axis, n), r->layer->in[1]};
    struct tensor *rows = make_layer(r->m, LAYER_scatter_sum, 2, in, &attr, r->layer->origin);
    int64_t axes[SOL_MAX_RANK];
    for (int d = 0; d < X->rank; d++) axes[d] = d < axis ? d + 1 : d == axis ? 0 : d;
    if (rows && axis) rows = make_permute(r->m, rows, X->rank, axes, r->layer->origin);
    rule_give(r, 0, rows);
}

/* Where each of the batches begins among the rows of all of them, or with `next` the batch behind it: [batches, 1]. */
static struct tensor *batch_starts(struct rule *r, struct size batches, struct size rows,
                                   bool next) {
    const struct size dim[] = {size_add(batches, size_const(1)), rows};
    struct tensor *at = make_positions(r->m, SOL_I64, 1, 0, size_mul(dim[0], rows));
    at = make_reshape(r->m, at, 2, dim);
    at = make_slice(r->m, at, 1, 0, 1, size_const(1), r->layer->origin);
    return make_slice(r->m, at, 0, next, 1, batches, r->layer->origin);
}

/* Takes from a table whose first `axis` dims are batches the rows that `index` names, each index in its own batch: the shape of X. The
 * rows of all batches are numbered as those of one table; negative indices count from the next batch on if they wrap. */
static struct tensor *take_from_batches(struct rule *r, struct tensor *table, struct tensor *index,
                                        int axis, bool wraps) {
    const int n = index->rank;
    const struct size per_batch = table->dim[axis], batches = ir_count(X, 0, axis),
                      each[] = {batches, ir_count(X, axis, n)};
    struct size rows[SOL_MAX_RANK] = {size_mul(batches, per_batch)};
    for (int d = n; d < X->rank; d++) rows[1 + d - n] = X->dim[d];
    index = make_cast(r->m, make_reshape(r->m, index, 2, each), SOL_I64);
    struct tensor *start = batch_starts(r, batches, per_batch, false),
                  *zero = make_scalar(r->m, SOL_I64, 0);
    if (wraps)
        start = WHERE(BINARY(less, index, zero), batch_starts(r, batches, per_batch, true), start);
    struct tensor *in[] = {make_reshape(r->m, table, 1 + X->rank - n, rows), ADD(index, start)};
    struct tensor *dx = make_layer(r->m, LAYER_gather, 2, in, NULL, r->layer->origin);
    return make_reshape(r->m, dx, X->rank, X->dim);
}

/* It takes each row of dy back. */
void grad_scatter_sum(struct rule *r) {
    struct attr attr = ir_default_attr();
    struct tensor *in[] = {DY, r->layer->in[1]};
    const int axis = (int)r->layer->attr.axis;
    attr.wraps = r->layer->attr.wraps;
    if (axis) rule_give(r, 0, take_from_batches(r, DY, in[1], axis, attr.wraps));
    else rule_give(r, 0, make_layer(r->m, LAYER_gather, 2, in, &attr, r->layer->origin));
}

/* Each window takes back the value of its point. A window without one, of index -1, takes nothing. */
void grad_max_pool_grad(struct rule *r) {
    struct tensor *index = r->layer->in[1], *none = make_scalar(r->m, SOL_I32, 0);
    const struct size planes[] = {DY->dim[0], DY->dim[1], ir_count(DY, 2, 4)};
    struct tensor *taken = take_from_batches(r, make_reshape(r->m, DY, 3, planes),
                                             BINARY(maximum, index, none), 2, false);
    rule_give(r, 0, WHERE(BINARY(less, index, none), NUM(0), taken));
}

/* ---- Resampling, as a product with a matrix ---- */

/* matrix[i, h] is the weight of x[h] in y[i]. */
static struct tensor *matrix(struct rule *r, struct tensor *index, struct tensor *weight,
                             struct size n) {
    const struct size dim[] = {index->dim[0], index->dim[1], size_const(1)};
    static const int64_t taps = 0;
    index = make_reshape(r->m, index, 3, dim);
    weight = make_reshape(r->m, weight, 3, dim);
    struct tensor *hits =
        index ? BINARY(equal, index, make_positions(r->m, index->dtype, 1, 0, n)) : NULL;
    return make_reduce(r->m, LAYER_sum, WHERE(hits, weight, NUM(0)), 1, &taps, false, NULL);
}

/* Exchanges two axes. */
static struct tensor *swap(struct rule *r, struct tensor *x, int a, int b) {
    int64_t axes[SOL_MAX_RANK];
    if (!x || a == b) return x;
    for (int d = 0; d < x->rank; d++) axes[d] = d == a ? b : d == b ? a : d;
    return make_permute(r->m, x, x->rank, axes, r->layer->origin);
}

static struct tensor *resample_back(struct rule *r, struct tensor *dy, int axis, int input) {
    struct tensor *m = matrix(r, r->layer->in[input], r->layer->in[input + 1], X->dim[axis]);
    const int last = X->rank - 1;
    if (X->rank == 1) {
        const struct size row[] = {size_const(1), dy->dim[0]};
        dy = BINARY(matmul, make_reshape(r->m, dy, 2, row), m);
        return dy ? make_reshape(r->m, dy, 1, X->dim) : NULL;
    }
    return swap(r, BINARY(matmul, swap(r, dy, axis, last), m), axis, last);
}
void grad_resample(struct rule *r) {
    const int axis = (int)r->layer->attr.axis;
    struct tensor *dx = DY;
    if (r->layer->n_in > 3) dx = resample_back(r, dx, axis + 1, 3);
    rule_give(r, 0, resample_back(r, dx, axis, 1));
}

/* ---- Layers without a gradient ---- */

void grad_none(struct rule *r) { rule_refuse(r, "its values are no floats, or constants"); }
void grad_quant(struct rule *r) {
    rule_refuse(r, "products of quantized numbers have no gradient");
}
void grad_host(struct rule *r) {
    rule_refuse(r, "a function of the frontend computes it, and has no gradient here");
}

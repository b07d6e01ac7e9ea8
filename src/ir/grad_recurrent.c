/*
 * The gradients of recurrent layers: backpropagation through time.
 *
 *   gates, which the layer keeps  ->  lstm_grad: g, the gradients of the products of the states with the weight, from the last step to the
 *   first  ->  x: g    weight: g^T * states    bias of a gru: sums of g    first state and cell: the row of g behind the steps
 *
 * To compute the gates again takes longer than to write and read them. The states before all steps need no layer: they are y.
 *
 * Werbos, "Backpropagation Through Time: What It Does and How to Do It", Proceedings of the IEEE 78, 1990.
 */
#include "ir/rule.h"

#define AXIS   ((int)r->layer->attr.axis) /* of the steps */
#define STEPS  X->dim[AXIS]
#define WEIGHT r->layer->in[1]
#define UNITS  size_value(WEIGHT->dim[1])

static struct tensor *cut(struct rule *r, struct tensor *x, int axis, struct size start,
                          struct size n) {
    struct attr attr = ir_default_attr();
    if (!x || (size_is(start, 0) && size_equal(x->dim[axis], n))) return x;
    attr.axis = axis;
    attr.start = start;
    attr.n_shape = 1;
    attr.shape[0] = n;
    return make_layer(r->m, LAYER_slice, 1, &x, &attr, r->layer->origin);
}

/* Columns [from, from + n) of units. */
static struct tensor *columns(struct rule *r, struct tensor *x, int64_t from, int64_t n) {
    return cut(r, x, 2, size_const(from * UNITS), size_const(n * UNITS));
}

static struct tensor *join(struct rule *r, int axis, struct tensor *a, struct tensor *b) {
    struct attr attr = ir_default_attr();
    attr.axis = axis;
    return make_layer(r->m, LAYER_concat, 2, (struct tensor *[]){a, b}, &attr, r->layer->origin);
}

/* As dims of x: `steps` along the axis of the steps, n along that of the samples. */
static struct tensor *spread(struct rule *r, struct tensor *t, struct size steps, struct size n,
                             int64_t width) {
    struct size dim[3] = {steps, n, size_const(width)};
    if (AXIS) dim[0] = n, dim[1] = steps;
    return t ? make_reshape(r->m, t, 3, dim) : NULL;
}

/* ---- The states before all steps ---- */

/* Is this the step that a reversed layer computes first? [steps,1,1]; with lengths [steps,n,1]. */
static struct tensor *is_begin(struct rule *r) {
    struct tensor *length = ir_lengths(r->layer), *number;
    struct attr attr = ir_default_attr();
    attr.dtype = SOL_I64;
    attr.n_shape = 1;
    attr.shape[0] = STEPS;
    attr.start = length ? size_const(1) : size_sub(size_const(1), STEPS);
    number =
        spread(r, make_layer(r->m, LAYER_arange, 0, NULL, &attr, NULL), STEPS, size_const(1), 1);
    length = length ? spread(r, length, size_const(1), length->dim[0], 1)
                    : make_scalar(r->m, SOL_I64, 0);
    return BINARY(equal, number, length);
}

/* Beyond a sample's length they are some finite values. They belong to BACKWARD, so they are not saved. */
static struct tensor *states_before(struct rule *r) {
    struct tensor *first = r->layer->in[2], *states;
    first = spread(r, first, size_const(1), first->dim[0], UNITS);
    if (r->layer->attr.reverse)
        states = WHERE(is_begin(r), first, cut(r, Y, AXIS, size_const(1), STEPS));
    else states = join(r, AXIS, first, Y);
    if (states) ir_set_backward(states);
    return r->layer->attr.reverse ? states : cut(r, states, AXIS, size_const(0), STEPS);
}

/* ---- The gradients ---- */

static struct tensor *walk(struct rule *r, struct tensor *states) {
    struct tensor *in[5] = {ir_keep_gates(Y->producer), WEIGHT, DY};
    int n = 3;
    if (r->layer->kind == LAYER_lstm) in[n++] = r->layer->in[3];
    if (r->layer->kind == LAYER_gru) in[n++] = states;
    if (ir_lengths(r->layer)) in[n++] = ir_lengths(r->layer);
    return make_layer(r->m, ir_recurrent_grad(r->layer->kind), n, in, &r->layer->attr,
                      r->layer->origin);
}

/* [steps,n,width] -> [steps * n,width] */
static struct tensor *rows(struct rule *r, struct tensor *x) {
    return x ? make_reshape(r->m, x, 2, (struct size[]){ir_count(x, 0, 2), x->dim[2]}) : NULL;
}

/* The gradient of a first state or cell, which lies behind the steps. */
static void give_first(struct rule *r, int input, struct tensor *g, int64_t column) {
    const struct tensor *in = r->layer->in[input];
    g = columns(r, cut(r, g, AXIS, STEPS, size_const(1)), column, 1);
    rule_give(r, input, g ? make_reshape(r->m, g, 2, in->dim) : NULL);
}

static void give_bias(struct rule *r, struct tensor *g) {
    static const int64_t axes[] = {0, 1};
    rule_give(r, 3,
              make_reduce(r->m, LAYER_sum, columns(r, g, 2, 1), 2, axes, false, r->layer->origin));
}

void grad_recurrent(struct rule *r) {
    const int gates = ir_gates(r->layer->kind);
    if (Y != r->layer->out[0]) {
        rule_refuse(r, "the gates of a recurrent layer have no gradient");
        return;
    }
    const bool is_gru = r->layer->kind == LAYER_gru;
    struct tensor *states = states_before(r), *g = walk(r, states);
    struct tensor *steps = cut(r, g, AXIS, size_const(0), STEPS),
                  *products = columns(r, steps, 0, gates);
    if (rule_wants(r, 0))
        rule_give(r, 0,
                  is_gru ? join(r, 2, columns(r, steps, 0, 2), columns(r, steps, 3, 1)) : products);
    if (rule_wants(r, 1))
        rule_give(r, 1, BINARY(matmul, rule_transpose(r, rows(r, products)), rows(r, states)));
    if (rule_wants(r, 2)) give_first(r, 2, g, 0);
    if (r->layer->kind == LAYER_lstm && rule_wants(r, 3)) give_first(r, 3, g, 1);
    if (is_gru && rule_wants(r, 3)) give_bias(r, steps);
}

void grad_recurrent_grad(struct rule *r) {
    rule_refuse(r, "gradients of recurrent layers have no gradient");
}

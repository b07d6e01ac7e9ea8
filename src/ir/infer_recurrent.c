/*
 * Shape inference of recurrent layers and of their gradients.
 *
 *   x[steps,n,gates*h]  w[gates*h,h]  state[n,h]  cell[n,h] or bias[h]  lengths[n]  ->  [steps + 1 or 2,n,h], gates[steps,n,1, 5 or 4*h]
 *
 *   gates[steps,n,1, 5 or 4*h]  w[gates*h,h]  dy[steps + 1 or 2,n,h]  cell[n,h] or states[steps,n,h]  lengths[n]
 *                                                                              ->  [steps + 1,n,gates*h, or 4*h of a gru]
 *
 * With axis=1 the first two dims of tensors with steps are [n,steps]. The steps and n may be open, h is known.
 */
#include "ir/layer.h"

enum layer_kind ir_recurrent_kind(enum layer_kind kind) {
    return kind == LAYER_rnn_tanh_grad   ? LAYER_rnn_tanh
           : kind == LAYER_rnn_relu_grad ? LAYER_rnn_relu
           : kind == LAYER_lstm_grad     ? LAYER_lstm
           : kind == LAYER_gru_grad      ? LAYER_gru
                                         : kind;
}

enum layer_kind ir_recurrent_grad(enum layer_kind kind) {
    return kind == LAYER_lstm       ? LAYER_lstm_grad
           : kind == LAYER_gru      ? LAYER_gru_grad
           : kind == LAYER_rnn_relu ? LAYER_rnn_relu_grad
                                    : LAYER_rnn_tanh_grad;
}

bool ir_may_keep_gates(enum layer_kind kind) {
    return layer_infos[kind].traits & RECURRENT && ir_recurrent_kind(kind) == kind;
}

int ir_gates(enum layer_kind kind) {
    kind = ir_recurrent_kind(kind);
    return kind == LAYER_lstm ? 4 : kind == LAYER_gru ? 3 : 1;
}

int ir_last_states(enum layer_kind kind) { return ir_recurrent_kind(kind) == LAYER_lstm ? 2 : 1; }

/* Behind the gates, an lstm keeps its cell, a gru the product of its third gate. */
int ir_kept_columns(enum layer_kind kind) { return ir_gates(kind) + (ir_gates(kind) > 1); }

int ir_grad_columns(enum layer_kind kind) {
    return ir_gates(kind) + (ir_recurrent_kind(kind) == LAYER_gru);
}

void ir_set_gates(const struct layer *l, struct tensor *gates) {
    const int64_t units = size_value(l->in[1]->dim[1]);
    gates->dtype = l->in[0]->dtype;
    infer_set_shape(gates, l->in[0]);
    gates->dim[2] = size_const(ir_kept_columns(l->kind) * units);
}

struct tensor *ir_lengths(const struct layer *l) {
    return l->n_in == layer_infos[l->kind].max_in ? l->in[l->n_in - 1] : NULL;
}

/* Is the tensor [a,b], or [a] if b is 0? */
static bool is_shaped(const struct tensor *t, struct size a, int64_t b) {
    if (t->rank != 1 + (b > 0) || !size_equal(t->dim[0], a)) return false;
    return b == 0 || size_is(t->dim[1], b);
}

/* Is it as x, with `more` steps and `width` values per step? */
static bool has_steps(const struct layer *l, const struct tensor *t, int64_t more, int64_t width) {
    const struct tensor *x = l->in[0];
    const int64_t axis = l->attr.axis;
    return t->rank == 3 && size_equal(t->dim[axis], size_add(x->dim[axis], size_const(more))) &&
           size_equal(t->dim[1 - axis], x->dim[1 - axis]) && size_is(t->dim[2], width);
}

static enum sol_status fail_input(const struct layer *l, int i, const char *what,
                                  const struct tensor *w) {
    return fail(SOL_EINVAL, "the %s %s does not fit gates %s and weight %s", what,
                SHAPE_TEXT(l->in[i]), SHAPE_TEXT(l->in[0]), SHAPE_TEXT(w));
}

static enum sol_status check_lengths(const struct layer *l, const struct tensor *w) {
    const struct size n = l->in[0]->dim[1 - l->attr.axis];
    if (!ir_lengths(l) || is_shaped(ir_lengths(l), n, 0)) return SOL_OK;
    return fail_input(l, l->n_in - 1, "number of steps", w);
}

/* Checks the first input, which has `columns` values per unit, and the weight; *hidden: the units. */
static enum sol_status check_gates(struct layer *l, int columns, int64_t *hidden) {
    const struct tensor *x = l->in[0], *w = l->in[1];
    TRY(infer_axis(&l->attr.axis, 3));
    if (x->rank != 3 || l->attr.axis > 1)
        return fail(SOL_EINVAL, "gates %s with steps along axis %lld", SHAPE_TEXT(x),
                    (long long)l->attr.axis);
    *hidden = w->rank == 2 && size_is_const(w->dim[1]) ? size_value(w->dim[1]) : 0;
    const struct size gates = size_const(ir_gates(l->kind) * *hidden);
    if (*hidden < 1 || !is_shaped(w, gates, *hidden) || !size_is(x->dim[2], columns * *hidden))
        return fail(SOL_EINVAL, "gates %s do not fit weight %s", SHAPE_TEXT(x), SHAPE_TEXT(w));
    return SOL_OK;
}

static void set_output(struct layer *l, int64_t more, int64_t width) {
    infer_set_shape(l->out[0], l->in[0]);
    struct size *steps = &l->out[0]->dim[l->attr.axis];
    *steps = size_add(*steps, size_const(more));
    l->out[0]->dim[2] = size_const(width);
}

enum sol_status infer_recurrent(struct layer *l) {
    const struct tensor *w = l->in[1];
    int64_t hidden;
    TRY(check_gates(l, ir_gates(l->kind), &hidden));
    const struct size n = l->in[0]->dim[1 - l->attr.axis];
    if (!is_shaped(l->in[2], n, hidden)) return fail_input(l, 2, "state", w);
    if (l->kind == LAYER_lstm && !is_shaped(l->in[3], n, hidden))
        return fail_input(l, 3, "cell", w);
    if (l->kind == LAYER_gru && !is_shaped(l->in[3], size_const(hidden), 0))
        return fail_input(l, 3, "bias", w);
    TRY(check_lengths(l, w));
    set_output(l, ir_last_states(l->kind), hidden);
    return SOL_OK;
}

enum sol_status infer_recurrent_grad(struct layer *l) {
    const struct tensor *w = l->in[1];
    int64_t hidden;
    TRY(check_gates(l, ir_kept_columns(l->kind), &hidden));
    const struct size n = l->in[0]->dim[1 - l->attr.axis];
    if (!has_steps(l, l->in[2], ir_last_states(l->kind), hidden))
        return fail_input(l, 2, "gradient", w);
    if (l->kind == LAYER_lstm_grad && !is_shaped(l->in[3], n, hidden))
        return fail_input(l, 3, "cell", w);
    if (l->kind == LAYER_gru_grad && !has_steps(l, l->in[3], 0, hidden))
        return fail_input(l, 3, "states", w);
    TRY(check_lengths(l, w));
    set_output(l, 1, ir_grad_columns(l->kind) * hidden);
    return SOL_OK;
}

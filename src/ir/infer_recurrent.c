/*
 * Shape inference of recurrent layers.
 *
 *   x[steps,n,gates*h]  w[gates*h,h]  state[n,h]  cell[n,h] or bias[h]  lengths[n]  ->  [steps + 1 or 2,n,h]
 *
 * With axis=1 the first two dims of x and of the output are [n,steps]. The steps and n may be open, h is known.
 */
#include "ir/layer.h"

int ir_gates(enum layer_kind kind) { return kind == LAYER_lstm ? 4 : kind == LAYER_gru ? 3 : 1; }

int ir_last_states(enum layer_kind kind) { return kind == LAYER_lstm ? 2 : 1; }

struct tensor *ir_lengths(const struct layer *l) {
    return l->n_in == layer_infos[l->kind].max_in ? l->in[l->n_in - 1] : NULL;
}

/* Is the tensor [a,b], or [a] if b is 0? */
static bool is_shaped(const struct tensor *t, struct size a, int64_t b) {
    if (t->rank != 1 + (b > 0) || !size_equal(t->dim[0], a)) return false;
    return b == 0 || size_is(t->dim[1], b);
}

static enum sol_status check_input(const struct layer *l, int i, const char *what, struct size a,
                                   int64_t b) {
    if (is_shaped(l->in[i], a, b)) return SOL_OK;
    return fail(SOL_EINVAL, "the %s %s does not fit gates %s and weight %s", what,
                SHAPE_TEXT(l->in[i]), SHAPE_TEXT(l->in[0]), SHAPE_TEXT(l->in[1]));
}

enum sol_status infer_recurrent(struct layer *l) {
    const struct tensor *x = l->in[0], *w = l->in[1];
    TRY(infer_axis(&l->attr.axis, 3));
    if (x->rank != 3 || l->attr.axis > 1)
        return fail(SOL_EINVAL, "gates %s with steps along axis %lld", SHAPE_TEXT(x),
                    (long long)l->attr.axis);
    const int64_t hidden = w->rank == 2 && size_is_const(w->dim[1]) ? size_value(w->dim[1]) : 0;
    const struct size n = x->dim[1 - l->attr.axis], gates = size_const(ir_gates(l->kind) * hidden);
    if (hidden < 1 || !is_shaped(w, gates, hidden) || !size_equal(x->dim[2], gates))
        return fail(SOL_EINVAL, "gates %s do not fit weight %s", SHAPE_TEXT(x), SHAPE_TEXT(w));
    TRY(check_input(l, 2, "state", n, hidden));
    if (l->kind == LAYER_lstm) TRY(check_input(l, 3, "cell", n, hidden));
    if (l->kind == LAYER_gru) TRY(check_input(l, 3, "bias", size_const(hidden), 0));
    if (ir_lengths(l)) TRY(check_input(l, l->n_in - 1, "number of steps", n, 0));
    infer_set_shape(l->out[0], x);
    struct size *steps = &l->out[0]->dim[l->attr.axis];
    *steps = size_add(*steps, size_const(ir_last_states(l->kind)));
    l->out[0]->dim[2] = size_const(hidden);
    return SOL_OK;
}

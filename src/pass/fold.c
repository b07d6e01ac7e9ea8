/*
 * Per-channel products and sums after conv and linear move into their parameters:
 *
 *   conv(x, w, b) * s  ->  conv(x, w * s, b * s)       s: one value per output channel, from parameters only
 *   conv(x, w, b) + t  ->  conv(x, w, b + t)
 *
 * This is how an expanded batch norm disappears. The new parameters depend on parameters only, so they are
 * computed once per version of the weights. A conv with several readers stays as it is.
 */
#include "pass/pass.h"

static bool is_heavy(const struct layer *l) { return layer_infos[l->kind].traits & HEAVY; }
/* A conv gives [n,k,h,w], a linear layer [..,k]. */
static int channel_axis(const struct layer *heavy) {
    return heavy->kind == LAYER_conv ? 1 : heavy->out[0]->rank - 1;
}

/* Is `t` constant with one value per output channel of `y` (or one for all)? All other dims must be 1. */
static bool is_per_channel(const struct tensor *t, const struct tensor *y, int axis) {
    if (!t->is_constant || t->rank > y->rank) return false;
    for (int d = 0; d < t->rank; d++) {
        int y_dim = d + y->rank - t->rank;
        if (!size_is(t->dim[d], 1) && !(y_dim == axis && size_equal(t->dim[d], y->dim[axis])))
            return false;
    }
    return true;
}

/* `t` as [channels], or as a scalar. */
static struct tensor *flatten_channel(struct model *m, struct tensor *t) {
    struct size n = ir_elements(t);
    if (t->rank == 0) return t;
    return size_is(n, 1) ? pass_reshape(m, t, 0, NULL) : pass_reshape(m, t, 1, &n);
}

/* s as [channels, 1, 1, ..], to multiply a weight with. */
static struct tensor *scale_weight(struct model *m, struct tensor *w, struct tensor *s) {
    struct size dim[SOL_MAX_RANK];
    if (s->rank == 0) return pass_binary(m, LAYER_mul, w, s, NULL);
    for (int d = 0; d < w->rank; d++) dim[d] = size_const(1);
    dim[0] = s->dim[0];
    return pass_binary(m, LAYER_mul, w, pass_reshape(m, s, w->rank, dim), NULL);
}

/* A bias is a vector, even where one number was added to all channels. */
static struct tensor *expand_to(struct model *m, struct tensor *t, struct size n) {
    if (!t || t->rank == 1) return t;
    struct attr attr = ir_default_attr();
    attr.n_shape = 1;
    attr.shape[0] = n;
    return pass_add(m, LAYER_expand, 1, &t, &attr, NULL);
}

static struct tensor *rebuild(struct model *m, const struct layer *heavy, struct tensor *w,
                              struct tensor *b) {
    struct tensor *in[3] = {heavy->in[0], w, expand_to(m, b, w ? w->dim[0] : size_const(0))};
    return pass_add(m, heavy->kind, b ? 3 : 2, in, &heavy->attr, heavy->origin);
}

/* `kind`: mul, whose number goes into weight and bias, or add, whose number is the bias or goes into it. */
static struct tensor *fold_channel(struct model *m, const struct layer *heavy, enum layer_kind kind,
                                   struct tensor *t) {
    struct tensor *flat = flatten_channel(m, t), *w = heavy->in[1], *b = NULL;
    if (!flat) return NULL;
    if (heavy->n_in > 2) b = pass_binary(m, kind, heavy->in[2], flat, NULL);
    else if (kind == LAYER_add) b = flat;
    if (kind == LAYER_mul) w = scale_weight(m, w, flat);
    return rebuild(m, heavy, w, b);
}

/* The heavy layer that makes l's input `i` and is read by l alone, when the other input is per channel. */
static const struct layer *find_heavy(const struct model *m, const struct layer *l, int i) {
    const struct tensor *y = l->in[i];
    const struct layer *heavy = y->producer;
    if (!is_heavy(heavy) || y->is_constant || pass_single_reader(m, y) != l) return NULL;
    if (l->out[0]->rank != y->rank || !heavy->in[1]->is_constant) return NULL;
    return is_per_channel(l->in[1 - i], y, channel_axis(heavy)) ? heavy : NULL;
}

static enum sol_status fold_layer(struct model *m, struct layer *l) {
    if (l->kind != LAYER_mul && l->kind != LAYER_add) return SOL_OK;
    for (int i = 0; i < 2; i++) {
        const struct layer *heavy = find_heavy(m, l, i);
        if (!heavy) continue;
        struct tensor *out = fold_channel(m, heavy, l->kind, l->in[1 - i]);
        if (!out) return SOL_EBUG;
        ir_replace(m, l->out[0], out);
        return SOL_OK;
    }
    return SOL_OK;
}

/* In the list's order, so that one walk folds a chain: a sum finds the conv that the product before it went into. */
enum sol_status pass_fold(struct model *m) {
    for (int i = 0, n = m->layers.n; i < n; i++) TRY(fold_layer(m, m->layers.at[i]));
    return SOL_OK;
}

/*
 * Moves per-channel factors and sums after conv and linear into their parameters:
 *
 *   conv(x, w, b) * s  ->  conv(x, w * s, b * s)       s, t: constants with one value per output channel
 *   conv(x, w, b) + t  ->  conv(x, w, b + t)
 *
 * This removes decomposed batch norms. w * s, b * s and b + t are constant, so PREPACK computes them, once per version
 * of the parameters. A conv with several readers is not changed.
 */
#include "pass/pass.h"

/* Groups of several channels of a transposed conv have their output channels in no dim of the weight. */
static bool has_channel_axis(const struct layer *l) {
    return l->kind != LAYER_conv_transpose || l->attr.groups == 1 ||
           (size_is(l->in[0]->dim[1], l->attr.groups) && size_is(l->in[1]->dim[1], 1));
}
static bool is_anchor(const struct layer *l) {
    return (layer_infos[l->kind].traits & ANCHOR) && !ir_is_quantized(l) && has_channel_axis(l);
}
/* A conv gives [n,k,h,w], a linear layer [..,k]. The weight of a transposed one is [c,k,r,s], or depthwise [k,1,r,s]. */
static int channel_axis(const struct layer *anchor) {
    return ir_is_conv(anchor) ? 1 : anchor->out[0]->rank - 1;
}
static int weight_axis(const struct layer *anchor) {
    return anchor->kind == LAYER_conv_transpose && anchor->attr.groups == 1 ? 1 : 0;
}

/* Is `t` constant with one value per output channel of `y` (or one for all)? All other dims must be 1. */
static bool is_per_channel(const struct tensor *t, const struct tensor *y, int axis) {
    if (!ir_is_constant(t) || t->rank > y->rank) return false;
    for (int d = 0; d < t->rank; d++) {
        int y_dim = d + y->rank - t->rank;
        if (!size_is(t->dim[d], 1) && !(y_dim == axis && size_equal(t->dim[d], y->dim[axis])))
            return false;
    }
    return true;
}

/* Reshapes `t` to [channels], or to rank 0 if it has one element. */
static struct tensor *flatten_channel(struct model *m, struct tensor *t) {
    struct size n = ir_elements(t);
    if (t->rank == 0) return t;
    return size_is(n, 1) ? make_reshape(m, t, 0, NULL) : make_reshape(m, t, 1, &n);
}

/* w * s, with s of shape [channels] reshaped to [channels, 1, 1, ..], or to [1, channels, 1, 1]. */
static struct tensor *scale_weight(struct model *m, const struct layer *anchor, struct tensor *s) {
    struct tensor *w = anchor->in[1];
    struct size dim[SOL_MAX_RANK];
    if (s->rank == 0) return make_binary(m, LAYER_mul, w, s, NULL);
    for (int d = 0; d < w->rank; d++) dim[d] = size_const(1);
    dim[weight_axis(anchor)] = s->dim[0];
    return make_binary(m, LAYER_mul, w, make_reshape(m, s, w->rank, dim), NULL);
}

/* Expands a scalar to a vector of n elements, as a bias must be one. NULL stays NULL. */
static struct tensor *expand_to(struct model *m, struct tensor *t, struct size n) {
    if (!t || t->rank == 1) return t;
    struct attr attr = ir_default_attr();
    attr.n_shape = 1;
    attr.shape[0] = n;
    return make_layer(m, LAYER_expand, 1, &t, &attr, NULL);
}

static struct tensor *rebuild(struct model *m, const struct layer *anchor, struct tensor *w,
                              struct tensor *b) {
    struct tensor *in[3] = {anchor->in[0], w,
                            expand_to(m, b, w ? w->dim[weight_axis(anchor)] : size_const(0))};
    return make_layer(m, anchor->kind, b ? 3 : 2, in, &anchor->attr, anchor->origin);
}

static struct tensor *fold_product(struct model *m, const struct layer *anchor, struct tensor *s) {
    struct tensor *flat = flatten_channel(m, s);
    if (!flat) return NULL;
    struct tensor *b =
        anchor->n_in > 2 ? make_binary(m, LAYER_mul, anchor->in[2], flat, NULL) : NULL;
    return rebuild(m, anchor, scale_weight(m, anchor, flat), b);
}

static struct tensor *fold_sum(struct model *m, const struct layer *anchor, struct tensor *t) {
    struct tensor *flat = flatten_channel(m, t);
    if (!flat) return NULL;
    struct tensor *b =
        anchor->n_in > 2 ? make_binary(m, LAYER_add, anchor->in[2], flat, NULL) : flat;
    return rebuild(m, anchor, anchor->in[1], b);
}

/* The anchor that computes l's input `i`, if only l reads it and l's other input is per channel; else NULL. */
static const struct layer *find_anchor(const struct model *m, const struct layer *l, int i) {
    const struct tensor *y = l->in[i];
    const struct layer *anchor = y->producer;
    if (!is_anchor(anchor) || ir_is_constant(y) || pass_single_reader(m, y) != l) return NULL;
    if (l->out[0]->rank != y->rank || !ir_is_constant(anchor->in[1])) return NULL;
    return is_per_channel(l->in[1 - i], y, channel_axis(anchor)) ? anchor : NULL;
}

static struct tensor *fold_layer(struct model *m, const struct layer *l) {
    for (int i = 0; i < 2; i++) {
        const struct layer *anchor = find_anchor(m, l, i);
        if (anchor)
            return (l->kind == LAYER_mul ? fold_product : fold_sum)(m, anchor, l->in[1 - i]);
    }
    return l->out[0];
}

static const struct pass_rule rules[] = {{LAYER_mul, fold_layer}, {LAYER_add, fold_layer}};

/* One walk folds a chain: after a product is folded, the sum that follows it reads the new conv. */
enum sol_status pass_fold(struct model *m) { return pass_apply(m, rules, COUNT(rules)); }

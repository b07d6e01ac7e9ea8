/*
 * Removes layers without effect, and replaces layers by cheaper ones. Each rule returns a tensor of the same value that is
 * cheaper to compute, or the layer's own output.
 */
#include "pass/pass.h"

#include <math.h>

/* For layers that have no effect if the shape stays the same. An adaptive pool then has windows of one point. */
static struct tensor *drop_same_shape(struct model *m, const struct layer *l) {
    (void)m;
    return ir_same_shape(l->in[0], l->out[0], -1) ? l->in[0] : l->out[0];
}

/* Of slice and place. With a step of -1, a slice of the whole dim reverses it. */
static struct tensor *drop_slice(struct model *m, const struct layer *l) {
    return l->attr.step > 0 ? drop_same_shape(m, l) : l->out[0];
}

/* A stop acts on gradients only, which are added before all passes. */
static struct tensor *drop_stop(struct model *m, const struct layer *l) {
    (void)m;
    return l->in[0];
}

static struct tensor *drop_single_concat(struct model *m, const struct layer *l) {
    (void)m;
    return l->n_in == 1 ? l->in[0] : l->out[0];
}

/* Merges two permutations into one, and removes the identity. */
static struct tensor *merge_permute(struct model *m, const struct layer *l) {
    const struct layer *first = l->in[0]->producer;
    struct attr attr = l->attr;
    bool moves = false;
    for (int i = 0; i < attr.n_axes; i++) {
        if (first->kind == LAYER_permute) attr.axes[i] = first->attr.axes[l->attr.axes[i]];
        moves |= attr.axes[i] != i;
    }
    struct tensor *x = first->kind == LAYER_permute ? first->in[0] : l->in[0];
    if (moves && x == l->in[0]) return l->out[0];
    return moves ? make_layer(m, LAYER_permute, 1, &x, &attr, l->origin) : x;
}

/* If `l` is x * scalar: returns x and multiplies `*factor` by the scalar. Else NULL. */
static struct tensor *find_scaled(const struct layer *l, double *factor) {
    for (int i = 0; i < 2 && l->kind == LAYER_mul; i++) {
        if (l->in[i]->producer->kind != LAYER_scalar) continue;
        *factor *= l->in[i]->producer->attr.value;
        return l->in[1 - i];
    }
    return NULL;
}

/* matmul(a * s, b * t) -> matmul(a, b) * (s * t) for scalars s, t: a matmul reads each input value many times, and would repeat
 * the scaling. */
static struct tensor *scale_product(struct model *m, const struct layer *l) {
    struct tensor *in[2];
    double factor = 1;
    for (int i = 0; i < 2; i++) {
        in[i] = find_scaled(l->in[i]->producer, &factor);
        if (!in[i]) in[i] = l->in[i];
    }
    if (in[0] == l->in[0] && in[1] == l->in[1]) return l->out[0];
    struct tensor *product = make_layer(m, l->kind, 2, in, &l->attr, l->origin);
    if (!product) return NULL;
    return make_binary(m, LAYER_mul, product, make_scalar(m, product->dtype, factor), l->origin);
}

/* The transpose of a matrix; of one that is a transpose, the matrix itself. */
static struct tensor *turn(struct model *m, struct tensor *w, const char *origin) {
    const struct layer *l = w->producer;
    const bool is_turned = l->kind == LAYER_permute && l->attr.axes[0] == 1;
    return is_turned ? l->in[0] : make_transpose(m, w, origin);
}

/*
 * A matmul by a constant matrix becomes a linear layer, whose faster kernels pack the matrix once. A model that trains has other values
 * at each call: there a linear layer becomes a matmul, which reads the matrix in place.
 */
static struct tensor *simplify_product(struct model *m, const struct layer *l) {
    struct tensor *w = l->in[1];
    if (!ir_is_constant(w) || w->rank != 2 || size_is(w->dim[0], 0) || size_is(w->dim[1], 0) ||
        ir_has_backward(m))
        return scale_product(m, l);
    w = turn(m, w, l->origin);
    return make_layer(m, LAYER_linear, 2, (struct tensor *[]){l->in[0], w}, &l->attr, l->origin);
}

static struct tensor *unpack_linear(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0], *w = l->in[1], *y;
    if (!ir_has_backward(m) || ir_is_constant(x) || !ir_is_constant(w) || x->rank < 2 ||
        x->dtype != SOL_F32 || w->dtype != SOL_F32 || l->attr.factors != SOL_F32)
        return l->out[0];
    w = turn(m, w, l->origin);
    y = make_layer(m, LAYER_matmul, 2, (struct tensor *[]){x, w}, &l->attr, l->origin);
    return l->n_in > 2 ? make_binary(m, LAYER_add, y, l->in[2], l->origin) : y;
}

/* `l` divides the rows of a linear layer, whose input was reshaped as well: then its input gets these rows, so that layers which follow
 * in this shape, such as a residual sum, follow the linear layer itself. */
static bool divides_rows(const struct model *m, const struct layer *l) {
    const struct layer *linear = l->in[0]->producer;
    const struct tensor *out = l->out[0];
    return linear->kind == LAYER_linear && linear->in[0]->producer->kind == LAYER_reshape &&
           out->rank > 1 &&
           size_equal(out->dim[out->rank - 1], l->in[0]->dim[l->in[0]->rank - 1]) &&
           pass_single_reader(m, l->in[0]) == l;
}

static struct tensor *divide_rows(struct model *m, const struct layer *l) {
    const struct layer *linear = l->in[0]->producer;
    const struct tensor *out = l->out[0], *x = linear->in[0];
    struct tensor *in[] = {x->producer->in[0], linear->in[1],
                           linear->n_in > 2 ? linear->in[2] : NULL};
    struct size dim[SOL_MAX_RANK];
    for (int d = 0; d < out->rank; d++) dim[d] = out->dim[d];
    dim[out->rank - 1] = x->dim[x->rank - 1];
    struct tensor *rows = make_reshape(m, in[0], out->rank, dim);
    if (!rows) return NULL;
    if (!ir_same_shape(rows, in[0], -1)) in[0] = rows;
    return make_layer(m, LAYER_linear, linear->n_in, in, &linear->attr, linear->origin);
}

static struct tensor *merge_reshape(struct model *m, const struct layer *l) {
    struct layer *first = l->in[0]->producer;
    if (ir_same_shape(l->in[0], l->out[0], -1)) return l->in[0];
    if (divides_rows(m, l)) return divide_rows(m, l);
    if (first->kind != LAYER_reshape) return l->out[0];
    return make_reshape(m, first->in[0], l->out[0]->rank, l->out[0]->dim);
}

static struct tensor *drop_clamp(struct model *m, const struct layer *l) {
    (void)m;
    return l->attr.min == -INFINITY && l->attr.max == INFINITY ? l->in[0] : l->out[0];
}

static struct tensor *drop_relu(struct model *m, const struct layer *l) {
    (void)m;
    return l->in[0]->producer->kind == LAYER_relu ? l->in[0] : l->out[0];
}

/* x * 1, x / 1 and x - 0 are x. x + 0 is not: -0 + 0 is 0. */
static struct tensor *drop_neutral(struct model *m, const struct layer *l) {
    const double neutral = l->kind == LAYER_sub ? 0 : 1;
    (void)m;
    for (int i = 0; i < 2; i++) {
        const struct layer *scalar = l->in[1 - i]->producer;
        if (scalar->kind != LAYER_scalar || scalar->attr.value != neutral ||
            signbit(scalar->attr.value) || !ir_same_shape(l->in[i], l->out[0], -1))
            continue;
        if (i == 0 || l->kind == LAYER_mul) return l->in[i];
    }
    return l->out[0];
}

/* An operand that is repeated to the shape of the other one: the layer itself broadcasts it, without a tensor of that size. */
static struct tensor *drop_repetition(struct model *m, const struct layer *l) {
    for (int i = 0; i < 2; i++) {
        const struct layer *expand = l->in[i]->producer;
        struct tensor *in[] = {l->in[0], l->in[1]};
        if (expand->kind != LAYER_expand || expand->in[0]->rank != l->in[i]->rank ||
            !ir_same_shape(l->in[1 - i], l->out[0], -1))
            continue;
        in[i] = expand->in[0];
        return make_layer(m, l->kind, 2, in, &l->attr, l->origin);
    }
    return l->out[0];
}

/*
 * The gradient by the input x of a max_pool, with 0 where x <= limit, as behind a relu: the result of a window is the value at its
 * position, so dy can be 0 where the result is <= limit. dy is smaller than x, which the backward call does not read.
 */
static struct tensor *mask_windows(struct model *m, const struct layer *l) {
    const struct layer *mask = l->in[0]->producer, *grad = l->in[2]->producer;
    struct tensor *zero = l->in[1];
    if (mask->kind != LAYER_less_equal || mask->in[1]->producer->kind != LAYER_scalar ||
        zero->producer->kind != LAYER_scalar || zero->producer->attr.value != 0 ||
        grad->kind != LAYER_max_pool_grad || pass_single_reader(m, l->in[2]) != l)
        return l->out[0];
    const struct layer *index = grad->in[1]->producer;
    struct tensor *x = mask->in[0];
    if (index->kind != LAYER_max_pool_index || index->in[0] != x) return l->out[0];
    struct tensor *y = make_layer(m, LAYER_max_pool, 1, &x, &index->attr, grad->origin);
    struct tensor *below = make_binary(m, LAYER_less_equal, y, mask->in[1], mask->origin);
    struct tensor *in[] = {below, zero, grad->in[0]};
    struct tensor *dy = make_layer(m, LAYER_where, 3, in, &l->attr, l->origin);
    return make_layer(m, LAYER_max_pool_grad, 2, (struct tensor *[]){dy, index->out[0]},
                      &grad->attr, grad->origin);
}

static const struct pass_rule rules[] = {
    {LAYER_reshape, merge_reshape},
    {LAYER_stop, drop_stop},
    {LAYER_expand, drop_same_shape},
    {LAYER_concat, drop_single_concat},
    {LAYER_permute, merge_permute},
    {LAYER_clamp, drop_clamp},
    {LAYER_adaptive_avg_pool, drop_same_shape},
    {LAYER_slice, drop_slice},
    {LAYER_place, drop_slice},
    {LAYER_relu, drop_relu},
    {LAYER_where, mask_windows},
    {LAYER_matmul, simplify_product},
    {LAYER_linear, unpack_linear},
    {LAYER_mul, drop_neutral},
    {LAYER_div, drop_neutral},
    {LAYER_sub, drop_neutral},
    {LAYER_add, drop_repetition},
    {LAYER_sub, drop_repetition},
    {LAYER_mul, drop_repetition},
    {LAYER_div, drop_repetition},
};

/* What only rules of gradients read is reset, as they are applied already: layers that differ in it alone are equal. */
static void forget_choices(struct layer *l) {
    const struct attr unset = ir_default_attr();
    if (l->kind != LAYER_attention) l->attr.strict = unset.strict;
    l->attr.padding = unset.padding;
}

enum sol_status pass_simplify(struct model *m) {
    for (int i = 0; i < m->layers.n; i++) forget_choices(m->layers.at[i]);
    return pass_apply(m, rules, COUNT(rules));
}

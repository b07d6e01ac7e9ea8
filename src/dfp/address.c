/*
 * Addresses: indices become offsets, in elements, from the start of a tensor's memory, or from the start of
 * scratch.
 *
 *   nodes with an index per dim  ->  [this file]  ->  node->offset of loads, value->at of roots
 *
 * A channel index of a blocked tensor is split into block and position. For the usual index,
 * 16*block + lane, both are plain variables, so that the lane's stride is 1. Other indices
 * work, too, but are accessed lane by lane.
 */
#include "dfp/nest.h"

static void find_dense_strides(struct nest *nest, struct value *v) {
    const struct tensor *t = v->tensor;
    struct size *stride = ARENA_ARRAY(nest->arena, struct size, SOL_MAX_RANK);
    struct size step = size_const(v->is_blocked ? nest->lanes : 1);
    for (int d = t->rank - 1; d >= 0; d--) {
        stride[d] = step;
        step = size_mul(step, value_is_channel(v, d) ? size_const(t->layout.stored / nest->lanes)
                                                     : t->dim[d]);
    }
    v->stride = stride;
}

/*
 * Replaces a quotient (term q) and a remainder (term r) whose coefficients fit, as a reshape of a dense tensor gives them:
 *     B*d * (x / (a*d)) + B * ((x / a) % d)  =  B * (x / a)
 * NULL if they do not fit.
 */
static const struct affine *join_pair(struct nest *nest, const struct affine *sum, int q, int r) {
    const struct var *div = &nest->var[sum->term[q].var], *mod = &nest->var[sum->term[r].var];
    struct size coef = sum->term[r].coef, inner = size_const(1);
    const struct affine *x = mod->of;
    if (div->kind != VAR_DIV || mod->kind != VAR_MOD) return NULL;
    if (!size_equal(sum->term[q].coef, size_mul(coef, mod->divisor))) return NULL;
    if (x->n == 1 && nest->var[x->term[0].var].kind == VAR_DIV && size_is(x->base, 0) &&
        size_is(x->term[0].coef, 1)) {
        inner = nest->var[x->term[0].var].divisor;
        x = nest->var[x->term[0].var].of;
    }
    if (div->of != x || !size_equal(div->divisor, size_mul(inner, mod->divisor))) return NULL;
    const struct affine *rest = affine_without(nest, sum, sum->term[q].var);
    rest = affine_without(nest, rest, sum->term[r].var);
    return affine_add(nest, rest, affine_mul(nest, mod->of, coef));
}

/* Each joined pair leaves at least one term less, so the recursion ends. */
static const struct affine *join_pairs(struct nest *nest, const struct affine *sum) {
    for (int q = 0; q < sum->n; q++)
        for (int r = 0; r < sum->n; r++) {
            const struct affine *joined = join_pair(nest, sum, q, r);
            if (joined) return join_pairs(nest, joined);
        }
    return sum;
}

/* The offset of a point, in elements. Example: x[n][c / 16][h][w][16] at channel 16*b + l has
 * n * stride[0] + b * stride[1] + h * stride[2] + w * stride[3] + l. */
static const struct affine *find_offset(struct nest *nest, const struct value *v,
                                        const struct affine *const *index) {
    const struct affine *sum = affine_const(nest, size_const(v->scratch));
    if (value_has_margins(v))
        sum = affine_add(
            nest, sum,
            affine_const(nest, size_scale(v->stride[v->tensor->rank - 1], v->margins.before)));
    for (int d = 0; d < v->tensor->rank; d++) {
        const struct affine *x = index[d];
        if (value_is_single(v, d)) continue;
        if (value_is_channel(v, d)) {
            struct size block = size_const(nest->lanes);
            sum = affine_add(nest, sum, affine_mod(nest, x, block));
            x = affine_div(nest, x, block);
        }
        sum = affine_add(nest, sum, affine_mul(nest, x, v->stride[d]));
    }
    return join_pairs(nest, sum);
}

/* Does dim `d` of a value in scratch run over channel blocks? address_root refuses this for plain tensors. */
static bool is_scratch_in_blocks(const struct nest *nest, const struct value *v, int d) {
    return nest_in_scratch(v) && v->dim_class[d] >= 0 && nest->class_blocked[v->dim_class[d]];
}

static void address_root(struct nest *nest, struct value *v) {
    const struct affine *index[SOL_MAX_RANK] = {0};
    for (int d = 0; d < v->tensor->rank; d++) {
        index[d] = nest_class_index(nest, v->dim_class[d]);
        if (is_scratch_in_blocks(nest, v, d) && !v->is_blocked)
            nest_refuse(nest, "plain values among channel blocks");
    }
    v->at = find_offset(nest, v, index);
    if (v->is_output && !v->is_blocked && nest->lane_var >= 0 &&
        (affine_deps(nest, v->at) & var_bit(nest->lane_var)))
        nest_refuse(nest, "a plain output of channels in blocks");
}

void nest_address(struct nest *nest) {
    for (int i = 0; i < nest->values.n; i++) {
        struct value *v = &nest->values.at[i];
        if (!v->stride) find_dense_strides(nest, v);
        if (v->is_root) address_root(nest, v);
    }
    for (int i = 0; i < nest->nodes.n; i++) {
        struct node *n = nest->nodes.at[i];
        if (n->kind == NODE_LOAD) n->offset = find_offset(nest, n->from, n->index);
    }
}

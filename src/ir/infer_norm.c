/*
 * Shape inference of norms, composite reductions, attention and triangles.
 *
 * Weights, biases and masks broadcast to the tensor that they are applied to. They never enlarge it.
 */
#include "ir/layer.h"

#include <string.h>

/* Does `t` broadcast to the shape of `to` without changing it? */
static bool broadcasts_to(const struct tensor *t, const struct tensor *to) {
    struct tensor out = *to;
    return t->rank <= to->rank && infer_broadcast_into(&out, t, 0) && ir_same_shape(&out, to, -1);
}

/* x, and optionally a weight and a bias of any shapes that broadcast to it. */
enum sol_status infer_layer_norm(struct layer *l) {
    bool reduced[SOL_MAX_RANK] = {false};
    TRY(infer_reduced_axes(l, reduced));
    for (int i = 1; i < l->n_in; i++)
        if (!broadcasts_to(l->in[i], l->in[0]))
            return fail(SOL_EINVAL, "parameter %s does not broadcast to input %s",
                        SHAPE_TEXT(l->in[i]), SHAPE_TEXT(l->in[0]));
    return infer_same(l);
}

/* x[n,c,..], and optionally a weight[c] and a bias[c]. */
enum sol_status infer_group_norm(struct layer *l) {
    const struct tensor *x = l->in[0];
    int64_t groups = l->attr.groups;
    if (x->rank < 2 || !size_is_const(x->dim[1]))
        return fail(SOL_EINVAL, "input %s has no constant number of channels", SHAPE_TEXT(x));
    if (groups < 1 || size_value(x->dim[1]) % groups)
        return fail(SOL_EINVAL, "%lld groups do not divide %lld channels", (long long)groups,
                    (long long)size_value(x->dim[1]));
    for (int i = 1; i < l->n_in; i++)
        if (l->in[i]->rank != 1 || !size_equal(l->in[i]->dim[0], x->dim[1]))
            return fail(SOL_EINVAL, "parameter %s does not fit input %s", SHAPE_TEXT(l->in[i]),
                        SHAPE_TEXT(x));
    return infer_same(l);
}

/* ---- Reductions ---- */

enum sol_status infer_norm(struct layer *l) {
    return isnan(l->attr.p) ? fail(SOL_EINVAL, "p is NaN") : infer_reduce(l);
}

/* A correction needs the number of values, which becomes a constant. */
enum sol_status infer_variance(struct layer *l) {
    TRY(infer_reduce(l));
    for (int i = 0; i < l->attr.n_axes && l->attr.correction != 0; i++)
        if (!size_is_const(l->in[0]->dim[l->attr.axes[i]]))
            return fail(SOL_EUNSUPPORTED, "a correction over a dim of unknown size of %s",
                        SHAPE_TEXT(l->in[0]));
    return SOL_OK;
}

/* ---- Attention ---- */

/* The number of heads: dim -3, 1 without it; -1 if it is a formula. */
static int64_t count_heads(const struct tensor *t) {
    if (t->rank < 3) return 1;
    return size_is_const(t->dim[t->rank - 3]) ? size_value(t->dim[t->rank - 3]) : -1;
}

int64_t ir_head_group(const struct layer *l) {
    int64_t heads = count_heads(l->in[0]), kept = count_heads(l->in[1]);
    bool is_grouped = kept > 1 && heads > kept && heads % kept == 0;
    return is_grouped ? heads / kept : 1;
}

/* With grouped heads, all dims before the heads are equal, and there is room for one more dim. */
static bool groups_fit(const struct layer *l) {
    const struct tensor *q = l->in[0], *k = l->in[1], *v = l->in[2];
    bool fits = q->rank == k->rank && q->rank == v->rank && q->rank < SOL_MAX_RANK &&
                size_equal(k->dim[k->rank - 3], v->dim[v->rank - 3]);
    for (int d = 0; fits && d < q->rank - 3; d++)
        fits = size_equal(q->dim[d], k->dim[d]) && size_equal(q->dim[d], v->dim[d]);
    return fits;
}

/* Are the last two dims of q [m,d], of k [n,d], of v [n,e]? */
static bool matrices_fit(const struct tensor *q, const struct tensor *k, const struct tensor *v) {
    return q->rank >= 2 && k->rank >= 2 && v->rank >= 2 &&
           size_equal(q->dim[q->rank - 1], k->dim[k->rank - 1]) &&
           size_equal(k->dim[k->rank - 2], v->dim[v->rank - 2]);
}

/* The mask broadcasts to the scores [..,h,m,n]. */
static enum sol_status check_mask(const struct layer *l) {
    struct tensor scores = *l->out[0];
    const struct tensor *k = l->in[1];
    scores.dim[scores.rank - 1] = k->dim[k->rank - 2];
    if (broadcasts_to(l->in[3], &scores)) return SOL_OK;
    return fail(SOL_EINVAL, "mask %s does not broadcast to scores %s", SHAPE_TEXT(l->in[3]),
                SHAPE_TEXT(&scores));
}

/* The dims before the matrices broadcast as in matmul, or q has a multiple of the heads of k and v. */
static bool find_leading_dims(struct layer *l) {
    struct layer three = *l;
    three.n_in = 3;
    if (ir_head_group(l) > 1) {
        infer_set_shape(l->out[0], l->in[0]);
        return groups_fit(l);
    }
    infer_set_ones(&three);
    for (int i = 0; i < 3; i++)
        if (!infer_broadcast_into(l->out[0], l->in[i], 2)) return false;
    return true;
}

enum sol_status infer_attention(struct layer *l) {
    const struct tensor *q = l->in[0], *k = l->in[1], *v = l->in[2];
    struct tensor *out = l->out[0];
    if (!matrices_fit(q, k, v) || !find_leading_dims(l))
        return fail(SOL_EINVAL, "no attention of %s, %s and %s", SHAPE_TEXT(q), SHAPE_TEXT(k),
                    SHAPE_TEXT(v));
    if (size_is(k->dim[k->rank - 2], 0)) return fail(SOL_EINVAL, "there are no keys");
    out->dim[out->rank - 2] = q->dim[q->rank - 2];
    out->dim[out->rank - 1] = v->dim[v->rank - 1];
    return l->n_in > 3 ? check_mask(l) : SOL_OK;
}

/* ---- Triangles ---- */

enum sol_status infer_triangle(struct layer *l) {
    if (l->in[0]->rank < 2) return fail(SOL_EINVAL, "needs rows and columns");
    if (l->attr.diagonal < INT32_MIN || l->attr.diagonal > INT32_MAX)
        return fail(SOL_EINVAL, "diagonal %lld is too far away", (long long)l->attr.diagonal);
    TRY(infer_bound(l->in[0]->dtype, l->attr.value));
    return infer_same(l);
}

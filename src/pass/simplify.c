/*
 * Layers without effect go. Each rule answers with the tensor that can stand for the layer's output, or NULL.
 */
#include "pass/pass.h"

#include <math.h>

static bool same_shape(const struct tensor *a, const struct tensor *b) {
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (!size_equal(a->dim[i], b->dim[i])) return false;
    return true;
}

/* reshape, expand, permute of length-1 dims: nothing to do when the shape stays. */
static struct tensor *drop_same_shape(struct model *m, struct layer *l) {
    (void)m;
    return same_shape(l->in[0], l->out[0]) ? l->in[0] : NULL;
}

static struct tensor *drop_single_concat(struct model *m, struct layer *l) {
    (void)m;
    return l->n_in == 1 ? l->in[0] : NULL;
}

static struct tensor *drop_permute(struct model *m, struct layer *l) {
    (void)m;
    for (int i = 0; i < l->attr.n_axes; i++)
        if (l->attr.axes[i] != i) return NULL;
    return l->in[0];
}

static struct tensor *merge_reshape(struct model *m, struct layer *l) {
    struct layer *first = l->in[0]->producer;
    if (same_shape(l->in[0], l->out[0])) return l->in[0];
    if (first->kind != LAYER_reshape) return NULL;
    return pass_reshape(m, first->in[0], l->out[0]->rank, l->out[0]->dim);
}

static struct tensor *drop_clamp(struct model *m, struct layer *l) {
    (void)m;
    return l->attr.min == -INFINITY && l->attr.max == INFINITY ? l->in[0] : NULL;
}

/* Output equals input when every window is one point. */
static struct tensor *drop_adaptive(struct model *m, struct layer *l) {
    return drop_same_shape(m, l);
}

static struct tensor *drop_relu(struct model *m, struct layer *l) {
    (void)m;
    return l->in[0]->producer->kind == LAYER_relu ? l->in[0] : NULL;
}

static const struct {
    enum layer_kind kind;
    struct tensor *(*apply)(struct model *m, struct layer *l);
} rules[] = {
    {LAYER_reshape, merge_reshape},     {LAYER_expand, drop_same_shape},
    {LAYER_concat, drop_single_concat}, {LAYER_permute, drop_permute},
    {LAYER_clamp, drop_clamp},          {LAYER_adaptive_avg_pool, drop_adaptive},
    {LAYER_slice, drop_same_shape},     {LAYER_relu, drop_relu},
};

enum sol_status pass_simplify(struct model *m) {
    for (int i = 0, n = m->layers.n; i < n; i++) {
        struct layer *l = m->layers.at[i];
        for (int r = 0; r < COUNT(rules); r++) {
            if (l->kind != rules[r].kind) continue;
            struct tensor *out = rules[r].apply(m, l);
            if (out && out != l->out[0]) ir_replace(m, l->out[0], out);
        }
    }
    return SOL_OK;
}

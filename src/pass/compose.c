/*
 * Finds attention that is written as simple layers, and makes one attention layer of it.
 *
 *   matmul(softmax(matmul(q, k^T) * scale + mask), v)  ->  attention(q, k, v, mask) scale strict
 *
 * The walk goes from the softmax up to the product of q and k. Between them may be, in this order from below: sums with masks, and
 * `where` with a value that hides a score; cap * tanh(.. / cap); products with and quotients by numbers. Such factors may also be at q
 * and k. Only the next layer of the walk may read each value.
 *
 * Reshapes that keep the last two dims may be between masks, as Swin has them: one mask is for the heads, another one for the windows
 * of an image. The layer then has the finest leading dims of all.
 */
#include "pass/pass.h"

#include <math.h>
#include <string.h>

enum { MAX_MASKS = 4 };

/* Dims before the last two. */
struct lead {
    int n;
    struct size dim[SOL_MAX_RANK];
};

/* A mask: a float that is added to the scores, or a bool with the value of scores that it hides. */
struct mask {
    struct tensor *x;
    struct lead lead; /* of the scores that it is for */
    bool hides_true;  /* hides where x is true, not where it is false */
    double value;
};

struct pattern {
    struct model *m;
    const struct layer *product; /* of q and k; found at the end of the walk */
    double scale, cap;
    bool is_scaled; /* the walk has passed a factor: masks cannot follow */
    int n_masks;
    struct mask mask[MAX_MASKS];
    struct lead finest;
};

static struct lead lead_of(const struct tensor *t) {
    struct lead lead = {.n = t->rank - 2};
    memcpy(lead.dim, t->dim, sizeof lead.dim);
    return lead;
}

/* ---- The walk ---- */

static bool walk(struct pattern *p, struct tensor *t);

/* x * number or x / number: returns x and changes *factor. Else NULL. */
static struct tensor *find_factor(const struct layer *l, double *factor) {
    const bool is_div = l->kind == LAYER_div;
    for (int i = is_div; i < 2 && (l->kind == LAYER_mul || is_div); i++) {
        const struct layer *number = l->in[i]->producer;
        if (number->kind != LAYER_scalar || l->in[1 - i]->rank < l->out[0]->rank) continue;
        *factor = is_div ? *factor / number->attr.value : *factor * number->attr.value;
        return l->in[1 - i];
    }
    return NULL;
}

static bool walk_factor(struct pattern *p, const struct layer *l) {
    double factor = 1;
    struct tensor *x = find_factor(l, &factor), *inner;
    if (!x) return false;
    p->is_scaled = true;
    const struct layer *tanh = x->producer;
    if (tanh->kind == LAYER_tanh && p->cap == 0 && p->scale == 1 && factor > 0 &&
        pass_single_reader(p->m, x) && pass_single_reader(p->m, tanh->in[0])) {
        inner = find_factor(tanh->in[0]->producer, &p->scale);
        p->cap = factor;
        p->scale *= factor;
        return inner && walk(p, inner);
    }
    p->scale *= factor;
    return walk(p, x);
}

/* May another mask be below those that were found? Masks become a sum. A finite value that replaces a score hides what is below it, but
 * in a sum it would not: in a row that is hidden as a whole, the values would differ. */
static bool may_be_masked(const struct pattern *p) {
    const struct mask *above = p->n_masks ? &p->mask[p->n_masks - 1] : NULL;
    if (above && above->x->dtype == SOL_BOOL && isfinite(above->value)) return false;
    return !p->is_scaled && p->n_masks < MAX_MASKS;
}

/* The scores are one of the terms: the one from which the walk gets to the product. */
static bool walk_sum(struct pattern *p, const struct layer *l) {
    if (!may_be_masked(p)) return false;
    for (int i = 0; i < 2; i++) {
        struct pattern copy = *p;
        if (!ir_same_shape(l->in[i], l->out[0], -1)) continue;
        copy.mask[copy.n_masks++] = (struct mask){.x = l->in[1 - i], .lead = lead_of(l->out[0])};
        if (!walk(&copy, l->in[i])) continue;
        *p = copy;
        return true;
    }
    return false;
}

/* A finite value hides a score like -infinity if it is so low that adding it to any usual score gives this value again. */
static bool walk_where(struct pattern *p, const struct layer *l) {
    if (!may_be_masked(p)) return false;
    for (int i = 1; i < 3; i++) {
        const struct layer *number = l->in[3 - i]->producer;
        if (number->kind != LAYER_scalar || number->attr.value > -1e30) continue;
        p->mask[p->n_masks++] = (struct mask){.x = l->in[0],
                                              .lead = lead_of(l->out[0]),
                                              .hides_true = i == 2,
                                              .value = number->attr.value};
        return ir_same_shape(l->in[i], l->out[0], -1) && walk(p, l->in[i]);
    }
    return false;
}

static bool keeps_matrices(const struct layer *l) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    return in->rank >= 2 && out->rank >= 2 &&
           size_equal(in->dim[in->rank - 1], out->dim[out->rank - 1]) &&
           size_equal(in->dim[in->rank - 2], out->dim[out->rank - 2]);
}

static bool walk(struct pattern *p, struct tensor *t) {
    const struct layer *l = t->producer;
    if (!pass_single_reader(p->m, t)) return false;
    switch (l->kind) {
    case LAYER_matmul: p->product = l; return l->in[0]->rank >= 2 && l->in[1]->rank >= 2;
    case LAYER_cast: return l->in[0]->dtype == t->dtype && walk(p, l->in[0]);
    case LAYER_mul:
    case LAYER_div: return walk_factor(p, l);
    case LAYER_add: return walk_sum(p, l);
    case LAYER_where: return walk_where(p, l);
    case LAYER_reshape:
        if (!keeps_matrices(l)) return false;
        if (l->in[0]->rank - 2 > p->finest.n) p->finest = lead_of(l->in[0]);
        return walk(p, l->in[0]);
    default: return false;
    }
}

/* ---- Leading dims ---- */

/* Divides the leading dims of `t`, which broadcasts to `coarse`, as `fine` divides those of `coarse`. NULL: not possible. */
static struct tensor *refine(struct model *m, struct tensor *t, const struct lead *coarse,
                             const struct lead *fine) {
    struct size dim[SOL_MAX_RANK];
    int at = fine->n + 2, i = fine->n - 1;
    if (!t || t->rank <= 2 || coarse->n == fine->n) return t;
    for (int k = 1; k <= 2; k++) dim[--at] = t->dim[t->rank - k];
    for (int c = coarse->n - 1, d = t->rank - 3; c >= 0; c--, d--) {
        const bool is_one = d < 0 || size_is(t->dim[d], 1);
        struct size done = size_const(1);
        do {
            if (i < 0) return NULL;
            dim[--at] = is_one ? size_const(1) : fine->dim[i];
            done = size_mul(done, fine->dim[i--]);
        } while (!size_equal(done, coarse->dim[c]));
    }
    while (i-- >= 0) dim[--at] = size_const(1);
    return at ? NULL : make_reshape(m, t, fine->n + 2, dim);
}

/* ---- The new layer ---- */

static struct tensor *unscale(struct tensor *t, double *factor) {
    struct tensor *x;
    while ((x = find_factor(t->producer, factor))) t = x;
    return t;
}

/* k of k^T. */
static struct tensor *transpose(struct model *m, struct tensor *t, double *scale,
                                const char *origin) {
    struct attr attr = ir_default_attr();
    const struct layer *l;
    t = unscale(t, scale);
    l = t->producer;
    attr.n_axes = t->rank;
    for (int d = 0; d < t->rank; d++) attr.axes[d] = l->kind == LAYER_permute ? l->attr.axes[d] : d;
    const int64_t last = attr.axes[t->rank - 1];
    attr.axes[t->rank - 1] = attr.axes[t->rank - 2];
    attr.axes[t->rank - 2] = last;
    struct tensor *x = l->kind == LAYER_permute ? unscale(l->in[0], scale) : t;
    return make_layer(m, LAYER_permute, 1, &x, &attr, origin);
}

/* A mask as floats: 0, or the value that hides. */
static struct tensor *as_float(struct model *m, const struct mask *mask, struct tensor *x,
                               enum sol_dtype dtype) {
    if (x && x->dtype != SOL_BOOL) return x;
    struct tensor *zero = make_scalar(m, dtype, 0), *low = make_scalar(m, dtype, mask->value);
    struct tensor *in[] = {x, mask->hides_true ? low : zero, mask->hides_true ? zero : low};
    return make_layer(m, LAYER_where, 3, in, NULL, NULL);
}

/* One mask of all: a single bool stays, else their sum. */
static struct tensor *join_masks(struct pattern *p, enum sol_dtype dtype) {
    struct tensor *sum = NULL;
    for (int i = p->n_masks - 1; i >= 0; i--) {
        const struct mask *mask = &p->mask[i];
        struct tensor *x = refine(p->m, mask->x, &mask->lead, &p->finest);
        if (!x) return NULL;
        if (p->n_masks == 1 && x->dtype == SOL_BOOL && mask->value == -(double)INFINITY)
            return mask->hides_true ? make_layer(p->m, LAYER_bit_not, 1, &x, NULL, NULL) : x;
        x = as_float(p->m, mask, x, dtype);
        sum = sum ? make_binary(p->m, LAYER_add, sum, x, NULL) : x;
    }
    return sum;
}

static struct tensor *make_attention(struct pattern *p, const struct layer *l) {
    const struct lead scores = lead_of(p->product->out[0]), out = lead_of(l->out[0]);
    struct tensor *q = unscale(p->product->in[0], &p->scale),
                  *k = transpose(p->m, p->product->in[1], &p->scale, l->origin);
    struct tensor *in[4] = {refine(p->m, q, &scores, &p->finest),
                            refine(p->m, k, &scores, &p->finest),
                            refine(p->m, l->in[1], &out, &p->finest),
                            p->n_masks ? join_masks(p, l->out[0]->dtype) : NULL};
    struct attr attr = ir_default_attr();
    attr.scale = p->scale;
    attr.softcap = p->cap;
    attr.strict = true;
    if (p->product->attr.factors == l->attr.factors) attr.factors = l->attr.factors;
    return make_layer(p->m, LAYER_attention, p->n_masks ? 4 : 3, in, &attr, l->origin);
}

/* Finite scales only: a factor of 0 or infinity would give other NaNs. */
static bool is_usual(const struct pattern *p) {
    for (int i = 0; i < p->n_masks; i++)
        if (p->mask[i].x->dtype != SOL_BOOL && p->mask[i].x->dtype != p->product->out[0]->dtype)
            return false;
    return isfinite(p->scale) && p->scale != 0;
}

static struct tensor *compose_attention(struct model *m, const struct layer *l) {
    struct tensor *weights = l->in[0];
    const struct layer *softmax = weights->producer;
    while (softmax->kind == LAYER_cast && softmax->in[0]->dtype == weights->dtype &&
           pass_single_reader(m, softmax->in[0]))
        softmax = softmax->in[0]->producer;
    if (softmax->kind != LAYER_softmax || softmax->attr.axis != softmax->out[0]->rank - 1 ||
        !pass_single_reader(m, weights) || weights->rank < 2 || l->in[1]->rank < 2)
        return l->out[0];
    struct pattern p = {.m = m, .scale = 1, .finest = lead_of(weights)};
    if (!walk(&p, softmax->in[0]) || !is_usual(&p)) return l->out[0];
    if (p.finest.n < p.product->out[0]->rank - 2) p.finest = lead_of(p.product->out[0]);
    struct tensor *y = make_attention(&p, l);
    if (!y || (m->computes && !m->computes(y->producer, m->lanes)) ||
        !size_equal(ir_elements(y), ir_elements(l->out[0])))
        return l->out[0];
    if (ir_same_shape(y, l->out[0], -1)) return y;
    return make_reshape(m, y, l->out[0]->rank, l->out[0]->dim);
}

static const struct pass_rule rules[] = {{LAYER_matmul, compose_attention}};

enum sol_status pass_compose(struct model *m) { return pass_apply(m, rules, COUNT(rules)); }

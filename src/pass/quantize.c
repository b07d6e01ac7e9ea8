/*
 * Products of quantized numbers, which frontends write as products of the floats that these stand for, become products of
 * integers with exact sums:
 *
 *   quantize(clamp(conv(dequantize(x), dequantize(w), b)))  ->  quant_conv with a range: the result has 8 bits
 *   conv(dequantize(x), dequantize(w), b)                   ->  quant_conv: the result is f32
 *   cast(conv(x - zero, w)) of integers                     ->  quant_conv with scale 1
 *
 * and the same for linear. Of the sum of two quantized tensors, such as a residual, whose result is quantized, the scales are divided by that
 * of the result. dequantize is mul(cast(sub(cast(x), zero)), scale), where the sub is missing if the zero point is 0;
 * quantize is cast(clamp(add(round(div(y, scale)), zero))), or with a product by the scale's reciprocal. A movement between dequantize and product moves the integers instead.
 *
 * Scales may be computed at the call (dynamic quantization): then they are applied behind the product. What the rules do not know
 * stays as it is: zero points of weights, several zero points or scales of x, sums that could exceed 32 bits.
 */
#include "pass/pass.h"

#include <math.h>

#define MOST_PRODUCTS 65536 /* of 255 * 128, whose sum fits 32 bits */

/* ---- Reading quantized tensors ---- */

/* Stands for (x - zero) * scale. NULL: no zero point, or a scale of 1. */
struct quantized {
    struct tensor *x, *zero, *scale;
};

static bool is_one(const struct tensor *t) { return size_is(ir_elements(t), 1); }
static bool is_8_bits(const struct tensor *t) { return t->dtype == SOL_U8 || t->dtype == SOL_I8; }

/* Removes casts to wider integers, and to f32: they are exact. */
static struct tensor *skip_casts(struct tensor *t) {
    while (t->producer->kind == LAYER_cast && !is_8_bits(t) &&
           (t->dtype == SOL_F32 || size_family(t->dtype) == FAMILY_INTEGER) &&
           size_family(t->producer->in[0]->dtype) == FAMILY_INTEGER)
        t = t->producer->in[0];
    return t;
}

/* x, or x - zero, as integers or as f32. */
static bool match_integers(struct tensor *t, struct quantized *q) {
    t = skip_casts(t);
    if (t->producer->kind == LAYER_sub && t->dtype == SOL_I32) {
        q->zero = t->producer->in[1];
        t = skip_casts(t->producer->in[0]);
    }
    q->x = t;
    return is_8_bits(t) && (!q->zero || is_one(q->zero));
}

static bool match_dequantize(struct tensor *t, struct quantized *q) {
    *q = (struct quantized){0};
    if (t->producer->kind != LAYER_mul) return t->dtype == SOL_I32 && match_integers(t, q);
    for (int i = 0; i < 2; i++) {
        *q = (struct quantized){.scale = t->producer->in[i]};
        struct tensor *x = t->producer->in[1 - i];
        if (t->dtype == SOL_F32 && x->producer->kind == LAYER_cast && ir_same_shape(x, t, -1) &&
            match_integers(x, q))
            return true;
    }
    return false;
}

static bool is_movement(const struct layer *l) { return layer_infos[l->kind].traits & MOVEMENT; }

static struct tensor *again(struct model *m, const struct layer *l, struct tensor *x) {
    return make_layer(m, l->kind, 1, &x, &l->attr, l->origin);
}

/* The input of a product, with movements behind dequantize: they are repeated on the integers. */
static bool find_input(struct model *m, struct tensor *t, struct quantized *q) {
    if (match_dequantize(t, q)) return !q->scale || is_one(q->scale);
    if (!is_movement(t->producer) || !find_input(m, t->producer->in[0], q)) return false;
    return (q->x = again(m, t->producer, q->x)) != NULL;
}

/* Is `scale` one value, or one per row of w, with w's rank? */
static bool is_per_row(const struct tensor *scale, const struct tensor *w) {
    if (is_one(scale)) return true;
    for (int d = 0; d < scale->rank; d++)
        if (d ? !size_is(scale->dim[d], 1) : !size_equal(scale->dim[d], w->dim[0])) return false;
    return scale->rank == w->rank;
}

/* A constant weight of i8 without zero point. The movements of several scales are those of the weight: permutations, and reshapes
 * that keep the rows. */
static bool find_moved(struct model *m, struct tensor *t, struct quantized *q) {
    struct layer *l = t->producer;
    if (match_dequantize(t, q))
        return !q->scale || is_one(q->scale) || q->scale->rank == q->x->rank;
    if (!is_movement(l) || !find_moved(m, l->in[0], q)) return false;
    const bool several = q->scale && !is_one(q->scale);
    if (several && l->kind == LAYER_permute) q->scale = again(m, l, q->scale);
    else if (several) {
        struct size dim[SOL_MAX_RANK];
        for (int d = 0; d < t->rank; d++) dim[d] = d ? size_const(1) : t->dim[0];
        if (l->kind != LAYER_reshape || !is_per_row(q->scale, q->x) ||
            !size_equal(t->dim[0], q->x->dim[0]))
            return false;
        q->scale = make_reshape(m, q->scale, t->rank, dim);
    }
    q->x = again(m, l, q->x);
    return q->x && (!several || q->scale);
}

static bool find_weight(struct model *m, struct tensor *t, struct quantized *q) {
    if (!ir_is_constant(t) || !find_moved(m, t, q) || q->zero || q->x->dtype != SOL_I8)
        return false;
    return !q->scale || is_per_row(q->scale, q->x);
}

/* ---- Writing quantized tensors ---- */

/* What follows a product until it has 8 bits again. */
struct quantize {
    struct tensor *y;            /* before */
    struct tensor *scale, *zero; /* zero NULL: 0 */
    enum layer_kind scaling;     /* div, or mul if `scale` is the scale's reciprocal */
    double low, high;
    const struct layer *act;     /* relu or clamp, or NULL */
    const struct layer *reshape; /* between a linear and all this, or NULL; it keeps the last dim */
    struct tensor *bias;         /* a sum before the activation, or NULL */
};

/* The layer of this kind that computes `t`, if nothing else reads its result; else NULL. `reader` reads it. */
static const struct layer *made_by(const struct model *m, const struct tensor *t,
                                   enum layer_kind kind, const struct layer *reader) {
    const struct layer *l = t->producer;
    return l->kind == kind && pass_single_reader(m, t) == reader ? l : NULL;
}

/* Division by a scale, or multiplication by its reciprocal. */
static bool match_scaling(const struct layer *l, struct quantize *q) {
    if (l->kind != LAYER_div && l->kind != LAYER_mul) return false;
    const int i = l->kind == LAYER_div || is_one(l->in[1]) ? 1 : 0;
    q->scaling = l->kind;
    q->scale = l->in[i];
    q->y = l->in[1 - i];
    return is_one(q->scale) && ir_is_constant(q->scale);
}

/* Matches the layers from `cast` back to the value that is quantized. */
static bool match_quantize(const struct model *m, const struct layer *cast, struct quantize *q) {
    const struct layer *clamp = made_by(m, cast->in[0], LAYER_clamp, cast), *sum, *round, *scaling;
    *q = (struct quantize){0};
    if (!is_8_bits(cast->out[0]) || !clamp || clamp->out[0]->dtype != SOL_F32) return false;
    q->low = clamp->attr.min, q->high = clamp->attr.max;
    const bool is_signed = cast->out[0]->dtype == SOL_I8;
    if (q->low < (is_signed ? -128 : 0) || q->high > (is_signed ? 127 : 255)) return false;
    sum = made_by(m, clamp->in[0], LAYER_add, clamp);
    if (sum) q->zero = sum->in[1];
    round = made_by(m, (sum ? sum : clamp)->in[0], LAYER_round, sum ? sum : clamp);
    if (!round || pass_single_reader(m, round->in[0]) != round) return false;
    scaling = round->in[0]->producer;
    if (!match_scaling(scaling, q) || pass_single_reader(m, q->y) != scaling) return false;
    return !q->zero || (is_one(q->zero) && ir_is_constant(q->zero));
}

static int channel_axis(const struct layer *anchor) {
    return anchor->kind == LAYER_conv ? 1 : anchor->out[0]->rank - 1;
}

/* Is `t` a constant with one value per channel of the anchor's output, or one for all? */
static bool is_per_channel(const struct tensor *t, const struct layer *anchor) {
    const struct tensor *y = anchor->out[0];
    if (!ir_is_constant(t) || t->rank > y->rank || t->dtype != SOL_F32) return false;
    for (int d = 0; d < t->rank; d++) {
        const int at = d + y->rank - t->rank;
        const bool is_channel = at == channel_axis(anchor) && size_equal(t->dim[d], y->dim[at]);
        if (!size_is(t->dim[d], 1) && !is_channel) return false;
    }
    return true;
}

static bool is_product(const struct layer *l) {
    return l->kind == LAYER_conv || l->kind == LAYER_linear;
}

/* Frontends multiply matrices where the network has tensors of a higher rank: a reshape follows. */
static const struct layer *skip_reshape(const struct model *m, const struct layer *l,
                                        struct quantize *q) {
    if (l->kind != LAYER_reshape || l->in[0]->producer->kind != LAYER_linear) return l;
    const struct tensor *x = l->in[0], *y = l->out[0];
    const bool keeps = y->rank && size_equal(x->dim[x->rank - 1], y->dim[y->rank - 1]);
    if (!keeps || pass_single_reader(m, x) != l) return l;
    q->reshape = l;
    return x->producer;
}

/* The anchor whose result, with a bias and an activation, is q->y; else NULL. */
static const struct layer *find_anchor(const struct model *m, struct quantize *q) {
    const struct layer *l = q->y->producer;
    if (l->kind == LAYER_relu || l->kind == LAYER_clamp) {
        q->act = l;
        l = pass_single_reader(m, l->in[0]) == l ? l->in[0]->producer : l;
    }
    for (int i = 0; i < 2 && l->kind == LAYER_add; i++) {
        const struct layer *anchor = skip_reshape(m, l->in[i]->producer, q);
        if (!is_product(anchor) || pass_single_reader(m, l->in[i]) != l) continue;
        q->bias = l->in[1 - i];
        return is_per_channel(q->bias, anchor) ? anchor : NULL;
    }
    l = skip_reshape(m, l, q);
    return is_product(l) ? l : NULL;
}

/* ---- Building the product ---- */

/* `t` as a vector of n values: of one value n times. */
static struct tensor *flatten(struct model *m, struct tensor *t, struct size n) {
    struct attr attr = ir_default_attr();
    struct size one = size_const(1);
    if (!t) return NULL;
    if (!is_one(t)) return make_reshape(m, t, 1, &n);
    if (t->rank > 1) t = make_reshape(m, t, 1, &one);
    attr.n_shape = 1;
    attr.shape[0] = n;
    if (t && t->rank == 1 && size_is(n, 1)) return t;
    return t ? make_layer(m, LAYER_expand, 1, &t, &attr, NULL) : NULL;
}

static struct tensor *number(struct model *m, enum sol_dtype dtype, double value, struct size n) {
    return flatten(m, make_scalar(m, dtype, value), n);
}

static struct tensor *cast(struct model *m, struct tensor *t, enum sol_dtype to) {
    struct attr attr = ir_default_attr();
    attr.dtype = to;
    return !t || t->dtype == to ? t : make_layer(m, LAYER_cast, 1, &t, &attr, NULL);
}

/* The limit `value` of the quantized result, made narrower by the activation's limit. */
static struct tensor *limit(struct model *m, const struct quantize *q, double value, double act,
                            enum layer_kind narrower, struct tensor *scale, struct tensor *zero) {
    const struct size one = size_const(1);
    struct tensor *whole = number(m, SOL_F32, value, one);
    if (isinf(act) || !q->act) return whole;
    struct tensor *t = make_binary(m, q->scaling, number(m, SOL_F32, act, one), scale, NULL);
    t = make_layer(m, LAYER_round, 1, &t, NULL, NULL);
    return make_binary(m, narrower, make_binary(m, LAYER_add, t, zero, NULL), whole, NULL);
}

/* The zero point and the limits of the quantized result. */
static struct tensor *make_range(struct model *m, const struct quantize *q, struct tensor *scale) {
    const struct size one = size_const(1);
    struct tensor *zero =
        q->zero ? flatten(m, cast(m, q->zero, SOL_F32), one) : number(m, SOL_F32, 0, one);
    const bool is_relu = q->act && q->act->kind == LAYER_relu;
    const double low = is_relu  ? 0
                       : q->act ? q->act->attr.min
                                : -INFINITY,
                 high = is_relu || !q->act ? INFINITY : q->act->attr.max;
    struct tensor *in[3] = {zero, limit(m, q, q->low, low, LAYER_maximum, scale, zero),
                            limit(m, q, q->high, high, LAYER_minimum, scale, zero)};
    /* The lower limit holds if the activation's upper limit is below it, and the other way round. */
    if (q->act && in[1] && in[2]) {
        in[1] = make_binary(m, LAYER_minimum, in[1], number(m, SOL_F32, q->high, one), NULL);
        in[2] = make_binary(m, LAYER_maximum, in[2], number(m, SOL_F32, q->low, one), NULL);
    }
    return make_layer(m, LAYER_concat, 3, in, NULL, NULL);
}

/* A product of x and w, and the vectors that belong to it. */
struct product {
    const struct layer *anchor;
    struct quantized x, w;
    struct size k;
    struct tensor *scale, *bias;
};

/* Is the zero point certainly a value of x's type? Padding of images holds it. */
static bool fits_type(const struct quantized *x) {
    if (!x->zero || skip_casts(x->zero)->dtype == x->x->dtype) return true;
    const struct layer *l = skip_casts(x->zero)->producer;
    const double first = x->x->dtype == SOL_I8 ? -128 : 0;
    return l->kind == LAYER_scalar && l->attr.value >= first && l->attr.value <= first + 255;
}

static bool find_product(struct model *m, const struct layer *anchor, struct product *p) {
    *p = (struct product){.anchor = anchor};
    if (anchor->kind == LAYER_conv && anchor->in[0]->rank != 4) return false;
    const struct tensor *w = anchor->in[1];
    const struct size products = ir_count(w, 1, w->rank);
    p->k = w->dim[0];
    return size_value(products) <= MOST_PRODUCTS && find_weight(m, anchor->in[1], &p->w) &&
           find_input(m, anchor->in[0], &p->x) &&
           (anchor->kind == LAYER_linear || fits_type(&p->x));
}

/* Scales that are known, of x and of w. One of x that is computed at the call is not part of it. */
static void set_scale(struct model *m, struct product *p) {
    p->scale = p->w.scale ? flatten(m, p->w.scale, p->k) : number(m, SOL_F32, 1, p->k);
    if (p->x.scale && ir_is_constant(p->x.scale))
        p->scale = make_binary(m, LAYER_mul, p->scale, flatten(m, p->x.scale, size_const(1)), NULL);
}

static struct tensor *build(struct model *m, const struct product *p, struct tensor *range,
                            enum sol_dtype dtype) {
    struct tensor *zero = p->x.zero ? flatten(m, cast(m, p->x.zero, SOL_I32), size_const(1))
                                    : number(m, SOL_I32, 0, size_const(1));
    struct tensor *in[6] = {p->x.x, p->w.x, zero, p->scale, p->bias, range};
    struct attr attr = p->anchor->attr;
    attr.dtype = dtype;
    return make_layer(m, p->anchor->kind == LAYER_conv ? LAYER_quant_conv : LAYER_quant_linear,
                      range ? 6 : 5, in, &attr, p->anchor->origin);
}

/* The sum of the anchor's own bias and of `more`, which may be NULL. */
static struct tensor *add_biases(struct model *m, const struct product *p, struct tensor *more) {
    struct tensor *own = p->anchor->n_in > 2 ? p->anchor->in[2] : NULL;
    if (more) more = flatten(m, more, p->k);
    if (own && more) return make_binary(m, LAYER_add, own, more, NULL);
    return own ? own : more ? more : number(m, SOL_F32, 0, p->k);
}

/* ---- Rules ---- */

/* A product whose result is quantized. */
static struct tensor *fuse_quantize(struct model *m, const struct layer *l) {
    struct quantize q;
    struct product p;
    if (!match_quantize(m, l, &q)) return l->out[0];
    const struct layer *anchor = find_anchor(m, &q);
    if (!anchor || anchor->out[0]->dtype != SOL_F32 || !find_product(m, anchor, &p) || !p.x.scale ||
        !ir_is_constant(p.x.scale))
        return l->out[0];
    struct tensor *unit = flatten(m, q.scale, size_const(1));
    set_scale(m, &p);
    p.scale = make_binary(m, q.scaling, p.scale, unit, NULL);
    p.bias = make_binary(m, q.scaling, add_biases(m, &p, q.bias), unit, NULL);
    struct tensor *y = build(m, &p, make_range(m, &q, unit), l->out[0]->dtype);
    return y && q.reshape ? again(m, q.reshape, y) : y;
}

/* A bias in the shape that broadcasts with the anchor's output. */
static struct tensor *spread_bias(struct model *m, const struct layer *anchor) {
    struct size dim[3] = {anchor->in[1]->dim[0], size_const(1), size_const(1)};
    return make_reshape(m, anchor->in[2], anchor->kind == LAYER_conv ? 3 : 1, dim);
}

/* A product whose result is f32. If the scale of x is computed at the call, the product is scaled by it, and gets its bias, behind. */
static struct tensor *keep_float(struct model *m, const struct layer *l) {
    struct product p;
    if (l->out[0]->dtype != SOL_F32 || ir_is_constant(l->out[0]) || !find_product(m, l, &p) ||
        !p.x.scale)
        return l->out[0];
    const bool is_dynamic = !ir_is_constant(p.x.scale);
    set_scale(m, &p);
    p.bias = is_dynamic ? number(m, SOL_F32, 0, p.k) : add_biases(m, &p, NULL);
    struct tensor *y = build(m, &p, NULL, SOL_F32);
    if (!is_dynamic || !y) return y;
    y = make_binary(m, LAYER_mul, y, flatten(m, p.x.scale, size_const(1)), l->origin);
    return l->n_in < 3 || !y ? y : make_binary(m, LAYER_add, y, spread_bias(m, l), l->origin);
}

/* An integer product that is read as f32. */
static struct tensor *keep_integer(struct model *m, const struct layer *l) {
    const struct layer *anchor = l->in[0]->producer;
    struct product p;
    if (l->out[0]->dtype != SOL_F32 || !is_product(anchor) || ir_is_constant(l->out[0]) ||
        anchor->out[0]->dtype != SOL_I32 || anchor->n_in != 2 || !find_product(m, anchor, &p))
        return l->out[0];
    p.scale = number(m, SOL_F32, 1, p.k);
    p.bias = number(m, SOL_F32, 0, p.k);
    return build(m, &p, NULL, SOL_F32);
}

/* One term of a sum, (x * its scale) / unit, as x * (its scale / unit); NULL if it is not of quantized numbers. */
static struct tensor *divide_term(struct model *m, struct tensor *t, struct tensor *unit) {
    struct quantized q;
    if (!match_dequantize(t, &q) || !q.scale || !is_one(q.scale) || !ir_is_constant(q.scale))
        return NULL;
    const struct layer *product = t->producer;
    struct tensor *x = product->in[product->in[0] == q.scale];
    return make_binary(m, LAYER_mul, x, make_binary(m, LAYER_div, q.scale, unit, NULL),
                       product->origin);
}

/* round((a * scale + b * scale') / unit): the scales are divided instead, as they are constants. */
static struct tensor *divide_sum(struct model *m, const struct layer *l) {
    const struct layer *quotient = made_by(m, l->in[0], LAYER_div, l), *sum;
    if (!quotient || !is_one(quotient->in[1]) || !ir_is_constant(quotient->in[1])) return l->out[0];
    sum = made_by(m, quotient->in[0], LAYER_add, quotient);
    if (!sum || sum->out[0]->dtype != SOL_F32) return l->out[0];
    struct tensor *a = divide_term(m, sum->in[0], quotient->in[1]);
    struct tensor *b = a ? divide_term(m, sum->in[1], quotient->in[1]) : NULL;
    if (!b) return l->out[0];
    struct tensor *t = make_binary(m, LAYER_add, a, b, sum->origin);
    return make_layer(m, LAYER_round, 1, &t, NULL, l->origin);
}

static const struct pass_rule with_quantize[] = {{LAYER_cast, fuse_quantize},
                                                 {LAYER_round, divide_sum}};
static const struct pass_rule rest[] = {
    {LAYER_conv, keep_float}, {LAYER_linear, keep_float}, {LAYER_cast, keep_integer}};

/* Products whose results are quantized come first, as the other rules match them, too. */
enum sol_status pass_quantize(struct model *m) {
    TRY(pass_apply(m, with_quantize, COUNT(with_quantize)));
    return pass_apply(m, rest, COUNT(rest));
}

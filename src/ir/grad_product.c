/*
 * Gradients of products.
 *
 *   linear y = x W^T:   dx = dy W,             dW = dy^T x
 *   matmul y = a b:     da = dy b^T,           db = a^T dy
 *   conv y = x * w:     dx = conv_transpose(dy, w),   dw = conv_weight(x, dy);  volumes: see volume_input
 *
 * A transposed convolution is the gradient of a convolution by its input, and the other way round: both read the same weight.
 */
#include "ir/rule.h"

#define WEIGHT r->layer->in[1]

/* [.., c] -> [all others, c] */
static struct tensor *rows(struct rule *r, struct tensor *x) {
    const int last = x->rank - 1;
    const struct size dim[] = {ir_count(x, 0, last), x->dim[last]};
    return x->rank == 2 ? x : make_reshape(r->m, x, 2, dim);
}

void grad_linear(struct rule *r) {
    if (rule_wants(r, 0)) rule_give(r, 0, BINARY(linear, DY, rule_transpose(r, WEIGHT)));
    if (rule_wants(r, 1))
        rule_give(r, 1, BINARY(matmul, rule_transpose(r, rows(r, DY)), rows(r, X)));
    if (r->layer->n_in > 2) rule_give(r, 2, DY);
}

void grad_matmul(struct rule *r) {
    struct tensor *b = r->layer->in[1];
    if (rule_wants(r, 0)) rule_give(r, 0, BINARY(matmul, DY, rule_transpose(r, b)));
    if (rule_wants(r, 1)) rule_give(r, 1, BINARY(matmul, rule_transpose(r, X), DY));
}

/* ---- Convolutions ---- */

static void set_shape(struct attr *attr, const struct tensor *like) {
    attr->n_shape = like->rank;
    for (int d = 0; d < like->rank; d++) attr->shape[d] = like->dim[d];
}

/* The products of the planes of dy with all planes of the kernel, as images: [n,k,e,i,j] -> [n*e,c*q,h,w] -> [n,c,q,e,h,w]. */
static struct tensor *multiply_planes(struct rule *r) {
    const struct size *x = X->dim, *w = WEIGHT->dim, *y = DY->dim, images = size_mul(y[0], y[2]);
    const struct size shape[] = {images, size_mul(x[1], w[2]), x[3], x[4]};
    struct attr attr = r->layer->attr;
    attr.depth[0] = attr.depth[1] = 1, attr.depth[2] = attr.depth[3] = 0;
    attr.n_shape = 4;
    memcpy(attr.shape, shape, sizeof shape);
    attr.factors = SOL_F32;
    struct tensor *dy = make_permute(r->m, DY, 5, (int64_t[]){0, 2, 1, 3, 4}, r->layer->origin);
    dy = make_reshape(r->m, dy, 4, (struct size[]){images, y[1], y[3], y[4]});
    struct tensor *flat =
        make_reshape(r->m, WEIGHT, 4, (struct size[]){w[0], size_mul(w[1], w[2]), w[3], w[4]});
    struct tensor *t = make_layer(r->m, LAYER_conv_transpose, 2, (struct tensor *[]){dy, flat},
                                  &attr, r->layer->origin);
    t = make_reshape(r->m, t, 6, (struct size[]){y[0], y[2], x[1], w[2], x[3], x[4]});
    return make_permute(r->m, t, 6, (int64_t[]){0, 2, 3, 1, 4, 5}, r->layer->origin);
}

/* The products with plane `tap` of the kernel, each at the plane of the padded x that it has read. */
static struct tensor *place_planes(struct rule *r, struct tensor *products, int64_t tap) {
    const struct size *x = X->dim, planes = DY->dim[2];
    const int64_t *depth = r->layer->attr.depth;
    struct attr attr = ir_default_attr();
    attr.axis = 2;
    attr.start = size_const(tap * depth[1]);
    attr.step = depth[0];
    attr.n_shape = 1;
    attr.shape[0] = size_add(x[2], size_const(depth[2] + depth[3]));
    struct tensor *part = make_slice(r->m, products, 2, tap, 1, size_const(1), r->layer->origin);
    part = make_reshape(r->m, part, 5, (struct size[]){x[0], x[1], planes, x[3], x[4]});
    return make_layer(r->m, LAYER_place, 1, &part, &attr, r->layer->origin);
}

/* The inverse of pass/decompose_volume.c: a transposed convolution of images, and sums of its planes. */
static struct tensor *volume_input(struct rule *r) {
    struct tensor *products = multiply_planes(r), *dx = place_planes(r, products, 0);
    for (int64_t tap = 1; tap < size_value(WEIGHT->dim[2]); tap++)
        dx = ADD(dx, place_planes(r, products, tap));
    return make_slice(r->m, dx, 2, r->layer->attr.depth[2], 1, X->dim[2], r->layer->origin);
}

static struct tensor *conv_input(struct rule *r) {
    struct attr attr = r->layer->attr;
    if (X->rank != 4) return volume_input(r);
    set_shape(&attr, X);
    attr.factors = SOL_F32;
    return make_layer(r->m, LAYER_conv_transpose, 2, (struct tensor *[]){DY, WEIGHT}, &attr,
                      r->layer->origin);
}

/* The gradient by the weight of a convolution of x with these attributes. */
static struct tensor *conv_weight(struct rule *r, struct attr attr, struct tensor *x,
                                  struct tensor *dy) {
    set_shape(&attr, WEIGHT);
    attr.factors = SOL_F32;
    return make_layer(r->m, LAYER_conv_weight, 2, (struct tensor *[]){x, dy}, &attr,
                      r->layer->origin);
}

void grad_conv_weight(struct rule *r) { rule_refuse(r, "it is a gradient itself"); }

/* The sum of dy per channel. */
static void give_bias(struct rule *r) {
    int64_t axes[SOL_MAX_RANK];
    int n = 0;
    if (r->layer->n_in < 3 || !rule_wants(r, 2)) return;
    for (int d = 0; d < DY->rank; d++)
        if (d != 1) axes[n++] = d;
    rule_give(r, 2, make_reduce(r->m, LAYER_sum, DY, n, axes, false, r->layer->origin));
}

void grad_conv(struct rule *r) {
    if (rule_wants(r, 0)) rule_give(r, 0, conv_input(r));
    if (rule_wants(r, 1)) rule_give(r, 1, conv_weight(r, r->layer->attr, X, DY));
    give_bias(r);
}

/* Sets the padding behind with which a convolution of dy has x's size; `output_pad` takes from it. Rows and columns beyond all windows
 * are cut off dy. */
static struct tensor *fit_padding(struct rule *r, struct attr *attr) {
    struct tensor *dy = DY;
    for (int i = 0; i < 2 && !attr->n_shape; i++) {
        const int axis = X->rank - 2 + i;
        const int64_t behind = attr->pad[2 + i] - attr->output_pad[i];
        attr->pad[2 + i] = behind > 0 ? behind : 0;
        if (behind < 0)
            dy = make_slice(r->m, dy, axis, 0, 1, size_add(DY->dim[axis], size_const(behind)),
                            r->layer->origin);
    }
    attr->output_pad[0] = attr->output_pad[1] = 0;
    attr->n_shape = 0;
    return dy;
}

void grad_conv_transpose(struct rule *r) {
    struct attr attr = r->layer->attr;
    struct tensor *dy = fit_padding(r, &attr);
    if (rule_wants(r, 0))
        rule_give(r, 0,
                  make_layer(r->m, LAYER_conv, 2, (struct tensor *[]){dy, WEIGHT}, &attr,
                             r->layer->origin));
    if (rule_wants(r, 1)) rule_give(r, 1, conv_weight(r, attr, dy, X));
    give_bias(r);
}

/* ---- Attention ---- */

/* Gives input i its gradient, which has the shape of `like` after broadcasting. */
static void give_head(struct rule *r, int i, const struct tensor *like, struct tensor *dx) {
    const struct tensor *in = r->layer->in[i];
    dx = rule_sum_to(r, dx, like->rank, like->dim);
    rule_give(r, i, make_reshape(r->m, dx, in->rank, in->dim));
}

/* With P the weights and s the scores: dP = dy v^T, ds = P * (dP - sum(dP * P)). The weights are computed again. */
void grad_attention(struct rule *r) {
    const struct attr *attr = &r->layer->attr;
    struct attention a;
    make_attention_weights(r->m, r->layer, &a);
    if (!a.weights) {
        rule_give(r, 0, NULL);
        return;
    }
    const int64_t last = a.weights->rank - 1;
    struct size dim[SOL_MAX_RANK];
    for (int d = 0; d < last; d++) dim[d] = a.weights->dim[d];
    dim[last] = DY->dim[DY->rank - 1];
    struct tensor *dy = make_reshape(r->m, DY, a.weights->rank, dim);
    struct tensor *share = MUL(BINARY(matmul, dy, rule_transpose(r, a.v)), a.weights);
    struct tensor *total = make_reduce(r->m, LAYER_sum, share, 1, &last, true, r->layer->origin);
    struct tensor *ds = SUB(share, MUL(a.weights, total));
    if (r->layer->n_in > 3 && rule_wants(r, 3)) give_head(r, 3, a.mask, ds);
    if (attr->softcap != 0)
        ds = MUL(ds, SUB(NUM(1), SQUARE(MUL(a.scores, NUM(1 / attr->softcap)))));
    if (attr->scale != 1) ds = MUL(ds, NUM(attr->scale));
    give_head(r, 0, a.q, BINARY(matmul, ds, a.k));
    give_head(r, 1, a.k, BINARY(matmul, rule_transpose(r, ds), a.q));
    give_head(r, 2, a.v, BINARY(matmul, rule_transpose(r, a.weights), dy));
}

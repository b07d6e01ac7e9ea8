/*
 * Convolutions that are linear layers.
 *
 * Each value of y reads all of x, if the only window covers the image, as in the last layers of some networks; or one pixel of x, if
 * the image has no other and the padding around it makes more windows, as in the first layer of a generator (a transposed convolution).
 *
 *   y = linear(x, w as [k,c*h*w]): [n,c*h*w] -> [n,k]
 *   y = linear(x, w, turned, as [k*i*j,c]): [n,c] -> [n,k*i*j]
 *
 * A product reads its weights once for all samples, and has no products with padding.
 *
 * Windows that lie side by side -> a linear layer of patches, as in the first layer of a vision transformer.
 *
 *   x [n,c,i*r,j*s] -> [n,i*j,c*r*s], by a permute
 *   y = linear(x, w as [k,c*r*s]): [n,i*j,k] -> [n,k,i,j], by a permute
 *
 * No value of x takes part in two windows, so the patches are x in another order. A product of many inputs reads them in parts that stay in
 * the nearest cache; and networks that go on with a line of channels per patch need no permute of y.
 *
 * This costs a copy of x in pieces of one row of a window, so narrow windows stay. So do images that other convolutions have made, since
 * they are not plain, and convolutions that compute more than the sum, as a linear layer's epilogue sees other channels.
 */
#include "pass/pass.h"

/* Of a window, and of the inputs of a patch if y is not turned into lines of channels: else its permute takes more time than the product
 * saves. */
enum { LEAST_COLUMNS = 8, LEAST_INPUTS = 512 };
/* Outputs of the only window: x may have to be copied from blocks. */
enum { LEAST_OUTPUTS = 64 };

/* Is it a convolution of floats that a linear layer could compute? */
static bool is_plain_sum(const struct layer *l) {
    return l->attr.groups == 1 && l->in[0]->rank == 4 && l->in[0]->dtype == SOL_F32 &&
           !ir_is_constant(l->in[0]) && ir_is_constant(l->in[1]);
}

/* ---- One window, or one pixel ---- */

static bool covers_all(const struct layer *l, int i) {
    const struct attr *a = &l->attr;
    return size_equal(l->in[0]->dim[2 + i], l->in[1]->dim[2 + i]) &&
           size_is(l->out[0]->dim[2 + i], 1) && a->dilation[i] == 1 && !a->pad[i];
}

/* Is there one row or column, which all windows read, each by another row or column of the kernel? */
static bool has_pixel(const struct layer *l, int i) {
    const struct attr *a = &l->attr;
    const struct size y = l->out[0]->dim[2 + i];
    return size_is(l->in[0]->dim[2 + i], 1) && size_is_const(y) && a->stride[i] == 1 &&
           a->dilation[i] == 1 && a->pad[i] < size_value(l->in[1]->dim[2 + i]) &&
           size_value(y) <= a->pad[i] + 1;
}

static bool is_larger(const struct tensor *t) {
    return !size_is(t->dim[2], 1) || !size_is(t->dim[3], 1);
}

static struct tensor *multiply(struct model *m, const struct layer *l, struct tensor *x,
                               struct tensor *w, struct tensor *bias) {
    struct attr attr = ir_default_attr();
    attr.factors = l->attr.factors;
    return make_layer(m, LAYER_linear, l->n_in, (struct tensor *[]){x, w, bias}, &attr, l->origin);
}

static struct tensor *use_window(struct model *m, const struct layer *l) {
    const struct size *w = l->in[1]->dim;
    struct size inputs = size_mul(w[1], size_mul(w[2], w[3]));
    struct tensor *x = make_reshape(m, l->in[0], 2, (struct size[]){l->in[0]->dim[0], inputs});
    struct tensor *weight = make_reshape(m, l->in[1], 2, (struct size[]){w[0], inputs});
    x = multiply(m, l, x, weight, l->n_in > 2 ? l->in[2] : NULL);
    return x ? make_reshape(m, x, 4, l->out[0]->dim) : NULL;
}

static struct tensor *use_pixel(struct model *m, const struct layer *l) {
    const struct size *y = l->out[0]->dim, *x = l->in[0]->dim, pixels = size_mul(y[2], y[3]);
    struct tensor *w = l->in[1], *bias = l->n_in > 2 ? l->in[2] : NULL;
    for (int i = 0; i < 2; i++)
        w = make_slice(m, w, 2 + i, l->attr.pad[i], size_is(y[2 + i], 1) ? 1 : -1, y[2 + i],
                       l->origin);
    w = make_permute(m, w, 4, (int64_t[]){0, 2, 3, 1}, l->origin);
    if (w) w = make_reshape(m, w, 2, (struct size[]){size_mul(y[1], pixels), x[1]});
    if (bias) bias = make_repeat(m, bias, size_value(pixels), l->origin);
    w = multiply(m, l, make_reshape(m, l->in[0], 2, x), w, bias);
    return w ? make_reshape(m, w, 4, y) : NULL;
}

/* ---- Patches ---- */

/* Are its values only moved, or results of the model? */
static bool leaves(const struct model *m, const struct tensor *t) {
    for (int i = 0; i < m->layers.n; i++) {
        const struct layer *l = m->layers.at[i];
        for (int k = 0; k < l->n_in; k++)
            if (l->in[k] == t && !(layer_infos[l->kind].traits & MOVEMENT)) return false;
    }
    return true;
}

/* Does the next layer that is no reshape put other values side by side, such as the channels? */
static bool is_turned(const struct model *m, const struct tensor *t) {
    const struct layer *l = pass_single_reader(m, t);
    while (l && l->kind == LAYER_reshape) l = pass_single_reader(m, l->out[0]);
    return l && l->kind == LAYER_permute && l->attr.axes[l->attr.n_axes - 1] < l->attr.n_axes - 1;
}

/* Do the windows cover all rows, or all columns, exactly once? */
static bool is_divided(const struct layer *l, int i) {
    const struct size size = l->in[0]->dim[2 + i];
    const int64_t kernel = size_value(l->in[1]->dim[2 + i]);
    const struct attr *a = &l->attr;
    return size_is_const(size) && size_value(size) % kernel == 0 && a->stride[i] == kernel &&
           a->dilation[i] == 1 && !a->pad[i] && !a->pad[2 + i];
}

static bool has_patches(const struct model *m, const struct layer *l) {
    const struct tensor *x = l->in[0], *w = l->in[1];
    if (!is_divided(l, 0) || !is_divided(l, 1) || size_value(w->dim[3]) < LEAST_COLUMNS)
        return false;
    const int64_t inputs = size_value(w->dim[1]) * size_value(w->dim[2]) * size_value(w->dim[3]);
    return ir_is_input(x) && leaves(m, l->out[0]) &&
           (inputs >= LEAST_INPUTS || is_turned(m, l->out[0]));
}

static struct tensor *use_patches(struct model *m, const struct layer *l) {
    const struct size *x = l->in[0]->dim, *w = l->in[1]->dim, *y = l->out[0]->dim;
    struct size patches = size_mul(y[2], y[3]), inputs = size_mul(w[1], size_mul(w[2], w[3]));
    struct tensor *t =
        make_reshape(m, l->in[0], 6, (struct size[]){x[0], x[1], y[2], w[2], y[3], w[3]});
    t = make_permute(m, t, 6, (int64_t[]){0, 2, 4, 1, 3, 5}, l->origin);
    if (t) t = make_reshape(m, t, 3, (struct size[]){x[0], patches, inputs});
    struct tensor *weight = make_reshape(m, l->in[1], 2, (struct size[]){w[0], inputs});
    struct tensor *out = multiply(m, l, t, weight, l->n_in > 2 ? l->in[2] : NULL);
    out = make_permute(m, out, 3, (int64_t[]){0, 2, 1}, l->origin);
    return out ? make_reshape(m, out, 4, y) : NULL;
}

static struct tensor *use_linear(struct model *m, const struct layer *l) {
    if (!is_plain_sum(l)) return l->out[0];
    if (covers_all(l, 0) && covers_all(l, 1) && is_larger(l->in[0]) &&
        size_value(l->in[1]->dim[0]) >= LEAST_OUTPUTS)
        return use_window(m, l);
    if (has_pixel(l, 0) && has_pixel(l, 1) && is_larger(l->out[0])) return use_pixel(m, l);
    return has_patches(m, l) ? use_patches(m, l) : l->out[0];
}

static const struct pass_rule rules[] = {{LAYER_conv, use_linear}};

enum sol_status pass_patches(struct model *m) { return pass_apply(m, rules, COUNT(rules)); }

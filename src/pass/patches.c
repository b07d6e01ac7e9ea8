/*
 * A convolution whose windows lie side by side -> a linear layer of patches, as in the first layer of a vision transformer.
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
    if (l->attr.groups > 1 || x->dtype != SOL_F32 || ir_is_constant(x) || !ir_is_constant(w))
        return false;
    if (!is_divided(l, 0) || !is_divided(l, 1) || size_value(w->dim[3]) < LEAST_COLUMNS)
        return false;
    const int64_t inputs = size_value(w->dim[1]) * size_value(w->dim[2]) * size_value(w->dim[3]);
    return ir_is_input(x) && leaves(m, l->out[0]) &&
           (inputs >= LEAST_INPUTS || is_turned(m, l->out[0]));
}

static struct tensor *use_patches(struct model *m, const struct layer *l) {
    if (!has_patches(m, l)) return l->out[0];
    const struct size *x = l->in[0]->dim, *w = l->in[1]->dim, *y = l->out[0]->dim;
    struct size patches = size_mul(y[2], y[3]), inputs = size_mul(w[1], size_mul(w[2], w[3]));
    struct attr attr = ir_default_attr();
    attr.factors = l->attr.factors;
    struct tensor *in[3] = {NULL, NULL, l->n_in > 2 ? l->in[2] : NULL};
    in[0] = pass_reshape(m, l->in[0], 6, (struct size[]){x[0], x[1], y[2], w[2], y[3], w[3]});
    in[0] = pass_permute(m, in[0], 6, (int64_t[]){0, 2, 4, 1, 3, 5}, l->origin);
    if (in[0]) in[0] = pass_reshape(m, in[0], 3, (struct size[]){x[0], patches, inputs});
    in[1] = pass_reshape(m, l->in[1], 2, (struct size[]){w[0], inputs});
    struct tensor *out = pass_add(m, LAYER_linear, l->n_in, in, &attr, l->origin);
    out = pass_permute(m, out, 3, (int64_t[]){0, 2, 1}, l->origin);
    return out ? pass_reshape(m, out, 4, y) : NULL;
}

static const struct pass_rule rules[] = {{LAYER_conv, use_patches}};

enum sol_status pass_patches(struct model *m) { return pass_apply(m, rules, COUNT(rules)); }

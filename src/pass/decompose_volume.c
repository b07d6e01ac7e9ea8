/*
 * A convolution of volumes -> one of images, whose channels are the planes of the windows.
 *
 *   x [n,c,d,h,w] -> padded along d -> for each plane of the kernel a slice [n,c,1,e,h,w] -> [n,c*q,e,h,w] -> [n*e,c*q,h,w]
 *   y = conv(x, w as [k,c*q,r,s]): [n*e,k,i,j] -> [n,e,k,i,j] -> [n,k,e,i,j]
 *
 * This copies each plane once per plane of the kernel, and y. So convolutions that the device computes as they are stay; others gain
 * more than that, such as those with windows of 3 by 3 and many channels.
 */
#include "pass/decompose.h"

static struct tensor *pad_depth(struct model *m, const struct layer *l, struct tensor *x) {
    const struct size *dim = x->dim, pixels = size_mul(dim[3], dim[4]);
    const int64_t *depth = l->attr.depth;
    struct attr attr = ir_default_attr();
    if (!depth[2] && !depth[3]) return x;
    attr.pad[0] = depth[2], attr.pad[2] = depth[3];
    struct tensor *t = make_reshape(m, x, 4, (struct size[]){dim[0], dim[1], dim[2], pixels});
    t = make_layer(m, LAYER_pad, 1, &t, &attr, l->origin);
    if (!t) return NULL;
    return make_reshape(m, t, 5, (struct size[]){dim[0], dim[1], t->dim[2], dim[3], dim[4]});
}

/* [n*e,c*q,h,w], for y of e planes. */
static struct tensor *stack_windows(struct model *m, const struct layer *l) {
    const struct size *dim = l->in[0]->dim, planes = l->out[0]->dim[2], q = l->in[1]->dim[2];
    struct tensor *x = pad_depth(m, l, l->in[0]);
    struct tensor **part = ARENA_ARRAY(m->arena, struct tensor *, size_value(q));
    struct attr attr = ir_default_attr();
    const struct size one[] = {dim[0], dim[1], size_const(1), planes, dim[3], dim[4]};
    for (int64_t i = 0; i < size_value(q); i++) {
        part[i] = make_slice(m, x, 2, i * l->attr.depth[1], l->attr.depth[0], planes, l->origin);
        if (part[i]) part[i] = make_reshape(m, part[i], 6, one);
    }
    attr.axis = 2;
    x = make_layer(m, LAYER_concat, (int)size_value(q), part, &attr, l->origin);
    const struct size channels = size_mul(dim[1], q);
    if (x) x = make_reshape(m, x, 5, (struct size[]){dim[0], channels, planes, dim[3], dim[4]});
    x = make_permute(m, x, 5, (int64_t[]){0, 2, 1, 3, 4}, l->origin);
    const struct size images[] = {size_mul(dim[0], planes), channels, dim[3], dim[4]};
    return x ? make_reshape(m, x, 4, images) : NULL;
}

struct tensor *decompose_volume(struct model *m, const struct layer *l) {
    const struct size *w = l->in[1]->dim, *y = l->out[0]->dim;
    if (l->in[0]->rank == 4 || (m->computes && m->computes(l, m->lanes))) return l->out[0];
    struct attr attr = l->attr;
    attr.depth[0] = attr.depth[1] = 1, attr.depth[2] = attr.depth[3] = 0;
    struct tensor *in[3] = {stack_windows(m, l), NULL, l->n_in > 2 ? l->in[2] : NULL};
    in[1] = make_reshape(m, l->in[1], 4, (struct size[]){w[0], size_mul(w[1], w[2]), w[3], w[4]});
    struct tensor *t = make_layer(m, LAYER_conv, l->n_in, in, &attr, l->origin);
    if (t) t = make_reshape(m, t, 5, (struct size[]){y[0], y[2], y[1], y[3], y[4]});
    return make_permute(m, t, 5, (int64_t[]){0, 2, 1, 3, 4}, l->origin);
}

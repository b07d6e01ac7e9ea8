/*
 * conv_transpose -> a convolution for each phase, whose results are interleaved.
 *
 * Input point i adds its window to the result: out[i * stride + r - pad] += x[i] * w[r]. All points o with the same phase
 * t = (o + pad) mod stride get only the weights r = q * stride + t, so they are a convolution of x over q: with j =
 * (o + pad) div stride, out[o] is the sum over q of x[j - q] * w[q * stride + t]. The phases of all channels become the channels of
 * one convolution, with the weight reversed over q. No product with an inserted zero is computed, as it would be in a
 * convolution of x with stride - 1 zeros between its points.
 *
 * Layers that the device computes as a whole stay.
 *
 *   w[c,k,r,s] -> pad r, s to multiples of the stride -> [g,c/g,k,q,t,q',t'], reversed -> [g*k*t*t',c/g,q,q']
 *   y = conv(x, w): [n,k*t*t',j,j'] -> [n,k,j*t,j'*t'] -> cut to the result's size
 */
#include "pass/decompose.h"

/* What rows or columns need: `n` weights per phase; the convolution's padding; `skip`: points to cut off at the beginning. */
struct phases {
    int64_t stride, n, pad, pad_end, skip;
    struct size out;
};

/* How many more windows there are than points of x; of open sizes, which have the attribute `shape`, at most. Then x has
 * floor((out + pads - reach) / stride) + 1 points for ceil((out + skip) / stride) windows. */
static int64_t count_more(const struct layer *l, int i, const struct phases *p, int64_t reach,
                          struct size windows) {
    const struct size more = size_sub(windows, l->in[0]->dim[2 + i]);
    const int64_t pads = l->attr.pad[i] + l->attr.pad[2 + i];
    if (size_is_const(more)) return size_value(more);
    return (p->skip - pads + reach + 2 * (p->stride - 1)) / p->stride - 1;
}

/* The convolution's padding starts with n - 1 and absorbs as much of the layer's pad as it can. The end needs so many windows
 * that all results exist. Points that the input does not reach get padding, too. All that is independent of the input's size, which may
 * be open: the result has stride points more per input point. */
static struct phases plan_phases(struct model *m, const struct layer *l, int i) {
    const struct attr *a = &l->attr;
    int64_t reach = (size_value(l->in[1]->dim[2 + i]) - 1) * a->dilation[i] + 1;
    struct phases p = {.stride = a->stride[i], .out = l->out[0]->dim[2 + i]};
    p.n = ceil_div(reach, p.stride);
    p.pad = max_i64(0, p.n - 1 - a->pad[i] / p.stride);
    p.skip = a->pad[i] - (p.n - 1 - p.pad) * p.stride;
    struct size points = size_add(p.out, size_const(p.skip)),
                windows = size_ceil(&m->quotients, points, p.stride);
    int64_t more = count_more(l, i, &p, reach, windows);
    p.pad_end = max_i64(0, more + p.n - 1 - p.pad);
    return p;
}

static struct tensor *pad_end(struct model *m, const struct layer *l, struct tensor *x,
                              int64_t rows, int64_t columns) {
    struct attr attr = ir_default_attr();
    attr.pad[2] = rows;
    attr.pad[3] = columns;
    return rows || columns ? make_layer(m, LAYER_pad, 1, &x, &attr, l->origin) : x;
}

/* Puts dilation - 1 zeros behind each row and each column of [c,k,r,s]. */
static struct tensor *dilate(struct model *m, const struct layer *l, struct tensor *w) {
    struct size c = w->dim[0], k = w->dim[1], r = w->dim[2], s = w->dim[3];
    const int64_t *d = l->attr.dilation;
    if (d[0] == 1 && d[1] == 1) return w;
    w = make_reshape(m, w, 5, (struct size[]){c, k, r, s, size_const(1)});
    w = w ? pad_end(m, l, w, 0, d[1] - 1) : NULL;
    struct size columns = size_scale(s, d[1]);
    w = w ? make_reshape(m, w, 4, (struct size[]){c, size_mul(k, r), size_const(1), columns})
          : NULL;
    w = w ? pad_end(m, l, w, d[0] - 1, 0) : NULL;
    return w ? make_reshape(m, w, 4, (struct size[]){c, k, size_scale(r, d[0]), columns}) : NULL;
}

/* Cuts trailing zeros of dilate, or pads, to whole phases. */
static struct tensor *fit_weight(struct model *m, const struct layer *l, struct tensor *w,
                                 const struct phases p[2]) {
    for (int i = 0; i < 2 && w; i++) {
        int64_t has = size_value(w->dim[2 + i]), needs = p[i].n * p[i].stride;
        if (has > needs) w = make_slice(m, w, 2 + i, 0, 1, size_const(needs), l->origin);
        else w = pad_end(m, l, w, i ? 0 : needs - has, i ? needs - has : 0);
    }
    return w;
}

/* The weight of the convolution, [g*k*t*t', c/g, q, q']. */
static struct tensor *turn_weight(struct model *m, const struct layer *l,
                                  const struct phases p[2]) {
    struct tensor *w = fit_weight(m, l, dilate(m, l, l->in[1]), p);
    if (!w) return NULL;
    struct size groups = size_const(l->attr.groups), k = w->dim[1],
                c = size_const(size_value(w->dim[0]) / l->attr.groups), q[2], t[2];
    for (int i = 0; i < 2; i++) q[i] = size_const(p[i].n), t[i] = size_const(p[i].stride);
    w = make_reshape(m, w, 7, (struct size[]){groups, c, k, q[0], t[0], q[1], t[1]});
    w = make_slice(m, w, 3, p[0].n - 1, p[0].n > 1 ? -1 : 1, q[0], l->origin);
    w = make_slice(m, w, 5, p[1].n - 1, p[1].n > 1 ? -1 : 1, q[1], l->origin);
    w = make_permute(m, w, 7, (int64_t[]){0, 2, 4, 6, 1, 3, 5}, l->origin);
    struct size all = size_mul(size_mul(groups, k), size_mul(t[0], t[1]));
    return w ? make_reshape(m, w, 4, (struct size[]){all, c, q[0], q[1]}) : NULL;
}

/* [n,k*t*t',j,j'] to [n,k,j*t,j'*t']. */
static struct tensor *interleave(struct model *m, const struct layer *l, struct tensor *y,
                                 const struct phases p[2]) {
    struct size n = y->dim[0], k = l->out[0]->dim[1], rows = y->dim[2], columns = y->dim[3];
    struct size t = size_const(p[0].stride), u = size_const(p[1].stride);
    y = make_reshape(m, y, 6, (struct size[]){n, k, t, u, rows, columns});
    y = make_permute(m, y, 6, (int64_t[]){0, 1, 4, 2, 5, 3}, l->origin);
    struct size full[] = {n, k, size_mul(rows, t), size_mul(columns, u)};
    return y ? make_reshape(m, y, 4, full) : NULL;
}

struct tensor *decompose_conv_transpose(struct model *m, const struct layer *l) {
    if (m->computes && m->computes(l, m->lanes)) return l->out[0];
    struct phases p[2] = {plan_phases(m, l, 0), plan_phases(m, l, 1)};
    int64_t n_phases = p[0].stride * p[1].stride;
    struct attr attr = ir_default_attr();
    attr.groups = l->attr.groups;
    for (int i = 0; i < 2; i++) attr.pad[i] = p[i].pad, attr.pad[2 + i] = p[i].pad_end;
    struct tensor *in[3] = {l->in[0], turn_weight(m, l, p), NULL};
    if (l->n_in > 2)
        in[2] = n_phases > 1 ? make_repeat(m, l->in[2], n_phases, l->origin) : l->in[2];
    struct tensor *y = make_layer(m, LAYER_conv, l->n_in, in, &attr, l->origin);
    if (y && n_phases > 1) y = interleave(m, l, y, p);
    for (int i = 0; i < 2; i++) y = make_slice(m, y, 2 + i, p[i].skip, 1, p[i].out, l->origin);
    return y;
}

/* Gradients of layers that combine several input points, as point expressions. */
#include "ir/define.h"

/* Can a tap of a window leave x? Without padding all windows are inside. */
static bool has_padding(const struct layer *l) {
    const struct attr *a = &l->attr;
    const bool is_volume = l->in[0]->rank == 5;
    return a->pad[0] || a->pad[1] || a->pad[2] || a->pad[3] ||
           (is_volume && (a->depth[2] || a->depth[3]));
}

/* The channel of x for channels v0 and v1 of the weight: v1 counts those of v0's group. */
static const struct index *find_channel(struct define *d) {
    const struct layer *l = d->layer;
    const struct size k = l->in[1]->dim[1], size = l->out[0]->dim[1];
    const int64_t groups = l->attr.groups;
    if (groups == 1) return VAR(1);
    if (size_is(k, groups) && size_is(size, 1)) return VAR(0);
    const struct index *group = index_div(d->arena, VAR(0), size_const(size_value(k) / groups));
    return PLUS(TIMES(group, size), VAR(1));
}

/* The plane of x that plane `tap` of the kernel reads at plane `out` of dy. */
static const struct index *find_plane(struct define *d, int out, int tap) {
    const int64_t *depth = d->layer->attr.depth;
    const struct index *at = TIMES(VAR(out), size_const(depth[0]));
    return PLUS(PLUS(at, TIMES(VAR(tap), size_const(depth[1]))), NUMBER(-depth[2]));
}

/* A sum for each dim: over the images the sums over their rows, over the rows those over their columns. They are more accurate than one
 * long sum. Dims of the weight are those of x, with k instead of n; so dim d of x is read by tap v[d], at dim d of dy. */
struct expr *define_conv_weight(struct define *d) {
    const struct tensor *x = d->layer->in[0], *dy = d->layer->in[1];
    const int rank = x->rank;
    struct expr *images = define_reduce(d, COMBINE_ADD, 1, &dy->dim[0]), *inner = images;
    const struct index **from = define_point(d, rank), **at = define_point(d, rank);
    from[0] = at[0] = VAR(images->first_var);
    from[1] = find_channel(d), at[1] = VAR(0);
    for (int i = 2; i < rank; i++) {
        const int axis = i - (rank - 2);
        inner = inner->arg[0] = define_reduce(d, COMBINE_ADD, 1, &dy->dim[i]);
        at[i] = VAR(inner->first_var);
        from[i] = axis < 0 ? find_plane(d, inner->first_var, i)
                           : define_tap(d, axis, inner->first_var, i);
    }
    inner->arg[0] = BINARY(MUL, define_load(d, 0, from, has_padding(d->layer), 0),
                           define_load(d, 1, at, false, 0));
    return images;
}

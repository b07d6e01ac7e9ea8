/*
 * Norms, and reductions that are composites.
 *
 *   layer_norm(x, weight, bias) -> d / sqrt(mean(d^2) + eps) * weight + bias,  d = x - mean(x)
 *   rms_norm(x, weight) -> x / sqrt(mean(x^2) + eps) * weight
 *   group_norm -> layer_norm of each group of channels
 *   variance(x) -> sum(d^2) / (count - correction)
 *   sum, mean of images over the batch, rows and columns -> of each image, then over the batch
 *   norm(x) -> sum(|x|^p)^(1/p)
 *   logsumexp(x) -> log(sum(exp(x - top))) + top,  top = max(x)
 *
 * The variance is computed in two passes, from the differences to the mean. The mean of squares minus the square of the mean would
 * lose all digits where the mean is much larger than the differences.
 */
#include "pass/decompose.h"

#include <math.h>

/* x * weight + bias, as far as `l` has these inputs; `dim` is the shape in which they broadcast, NULL: their own. */
static struct tensor *scale_and_shift(struct model *m, const struct layer *l, struct tensor *x,
                                      int rank, const struct size *dim) {
    static const enum layer_kind kinds[] = {LAYER_mul, LAYER_add};
    for (int i = 1; i < l->n_in; i++) {
        struct tensor *t = dim ? make_reshape(m, l->in[i], rank, dim) : l->in[i];
        x = decompose_binary(m, l, kinds[i - 1], x, t);
    }
    return x;
}

/* x / sqrt(mean(x^2) + eps) */
static struct tensor *divide_by_root(struct model *m, const struct layer *l, struct tensor *x,
                                     int n, const int64_t *axes) {
    struct tensor *squares = decompose_unary(m, l, LAYER_square, x),
                  *mean = decompose_reduce(m, l, LAYER_mean, squares, n, axes, true);
    struct tensor *root =
        decompose_unary(m, l, LAYER_rsqrt, decompose_with(m, l, LAYER_add, mean, l->attr.eps));
    return decompose_binary(m, l, LAYER_mul, x, root);
}

static struct tensor *center(struct model *m, const struct layer *l, struct tensor *x, int n,
                             const int64_t *axes) {
    return decompose_binary(m, l, LAYER_sub, x,
                            decompose_reduce(m, l, LAYER_mean, x, n, axes, true));
}

struct tensor *decompose_layer_norm(struct model *m, const struct layer *l) {
    const struct attr *a = &l->attr;
    struct tensor *centered = center(m, l, l->in[0], a->n_axes, a->axes);
    return scale_and_shift(m, l, divide_by_root(m, l, centered, a->n_axes, a->axes), 0, NULL);
}

struct tensor *decompose_rms_norm(struct model *m, const struct layer *l) {
    const struct attr *a = &l->attr;
    return scale_and_shift(m, l, divide_by_root(m, l, l->in[0], a->n_axes, a->axes), 0, NULL);
}

/* One channel per group: x keeps its shape, and so its layout. */
static struct tensor *norm_each_channel(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0];
    struct size dim[SOL_MAX_RANK] = {x->dim[1]};
    int64_t axes[SOL_MAX_RANK];
    int n = x->rank - 2;
    for (int i = 0; i < n; i++) {
        axes[i] = 2 + i;
        dim[1 + i] = size_const(1);
    }
    struct tensor *y = divide_by_root(m, l, center(m, l, x, n, axes), n, axes);
    return scale_and_shift(m, l, y, n + 1, dim);
}

/* x becomes [n, groups, channels of a group, all other dims], and is normalized over the last two. */
struct tensor *decompose_group_norm(struct model *m, const struct layer *l) {
    struct tensor *x = l->in[0];
    int64_t groups = l->attr.groups, each = size_value(x->dim[1]) / groups;
    static const int64_t axes[] = {2, 3};
    if (each == 1 && x->rank > 2) return norm_each_channel(m, l);
    struct size whole[] = {x->dim[0], size_const(groups), size_const(each),
                           ir_count(x, 2, x->rank)},
                channel[] = {size_const(groups), size_const(each), size_const(1)};
    struct tensor *parts = make_reshape(m, x, 4, whole);
    if (!parts) return NULL;
    struct tensor *y = divide_by_root(m, l, center(m, l, parts, 2, axes), 2, axes);
    y = scale_and_shift(m, l, y, 3, channel);
    return y ? make_reshape(m, y, x->rank, x->dim) : NULL;
}

/* ---- Reductions ---- */

/* Over the axes of `l`, with its keepdim. */
static struct tensor *reduce(struct model *m, const struct layer *l, enum layer_kind kind,
                             struct tensor *x) {
    return decompose_reduce(m, l, kind, x, l->attr.n_axes, l->attr.axes, l->attr.keepdim);
}

/* The number of values that are reduced to one; infer_variance has checked that it is known. */
static double count_reduced(const struct layer *l) {
    double n = 1;
    for (int i = 0; i < l->attr.n_axes; i++)
        n *= (double)size_value(l->in[0]->dim[l->attr.axes[i]]);
    return n;
}

/* ---- Reductions over the batch and over rows and columns ---- */

/* The axes of `l` behind the channels, if it also reduces the batch, but not the channels; else 0. */
static int list_inner(const struct layer *l, int64_t inner[SOL_MAX_RANK]) {
    int n = 0;
    bool has_batch = false;
    for (int i = 0; i < l->attr.n_axes; i++) {
        if (l->attr.axes[i] == 1) return 0;
        if (l->attr.axes[i] == 0) has_batch = true;
        else inner[n++] = l->attr.axes[i];
    }
    return has_batch && !size_is(l->in[0]->dim[0], 1) ? n : 0;
}

/* Over rows and columns of each image, axis by axis: a sum of sums of rows has smaller rounding errors than one of all pixels. */
static struct tensor *reduce_image(struct model *m, const struct layer *l, enum layer_kind kind,
                                   struct tensor *x, int n, const int64_t *inner) {
    for (int i = n - 1; i >= 0; i--) x = decompose_reduce(m, l, kind, x, 1, inner + i, true);
    return x;
}

/*
 * sum and mean: first of each image, then over the batch. The first step keeps channel blocks (plan/layout.c), has tasks for each image
 * and channel, and can follow the layer before it in parts of the batch.
 */
struct tensor *decompose_reduction(struct model *m, const struct layer *l) {
    int64_t inner[SOL_MAX_RANK];
    const int n = list_inner(l, inner);
    if (!n) return l->out[0];
    return reduce(m, l, l->kind, reduce_image(m, l, l->kind, l->in[0], n, inner));
}

/*
 * The mean of squared distances from the mean of all images, of the mean mi and the variance vi of each image: that of vi + (mi - mean)^2.
 * T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979. An image
 * is read once from memory.
 */
static struct tensor *combine_variances(struct model *m, const struct layer *l, int n,
                                        const int64_t *inner) {
    struct tensor *x = l->in[0], *mean = reduce_image(m, l, LAYER_mean, x, n, inner);
    struct tensor *squares =
        decompose_unary(m, l, LAYER_square, decompose_binary(m, l, LAYER_sub, x, mean));
    struct tensor *own = reduce_image(m, l, LAYER_mean, squares, n, inner);
    struct tensor *apart =
        decompose_unary(m, l, LAYER_square, center(m, l, mean, 1, (const int64_t[]){0}));
    return reduce(m, l, LAYER_mean, decompose_binary(m, l, LAYER_add, own, apart));
}

/* If the correction leaves nothing, the divisor is 0, as in PyTorch. */
struct tensor *decompose_variance(struct model *m, const struct layer *l) {
    const struct attr *a = &l->attr;
    int64_t inner[SOL_MAX_RANK];
    const int n_inner = list_inner(l, inner);
    if (n_inner && a->correction == 0) return combine_variances(m, l, n_inner, inner);
    if (n_inner && count_reduced(l) > 0)
        return decompose_with(m, l, LAYER_div, combine_variances(m, l, n_inner, inner),
                              fmax(0, 1 - a->correction / count_reduced(l)));
    struct tensor *squares =
        decompose_unary(m, l, LAYER_square, center(m, l, l->in[0], a->n_axes, a->axes));
    if (a->correction == 0) return reduce(m, l, LAYER_mean, squares);
    return decompose_with(m, l, LAYER_div, reduce(m, l, LAYER_sum, squares),
                          fmax(0, count_reduced(l) - a->correction));
}

/* How many values are not 0. */
static struct tensor *count_nonzero(struct model *m, const struct layer *l) {
    enum sol_dtype type = l->in[0]->dtype;
    struct tensor *is_zero = decompose_with(m, l, LAYER_equal, l->in[0], 0);
    struct tensor *in[] = {is_zero, make_scalar(m, type, 0), make_scalar(m, type, 1)};
    return reduce(m, l, LAYER_sum, make_layer(m, LAYER_where, 3, in, NULL, l->origin));
}

/* An infinite p is the limit: the largest, or the smallest absolute value. */
struct tensor *decompose_norm(struct model *m, const struct layer *l) {
    double p = l->attr.p;
    if (p == 0) return count_nonzero(m, l);
    if (p == 2)
        return decompose_unary(
            m, l, LAYER_sqrt,
            reduce(m, l, LAYER_sum, decompose_unary(m, l, LAYER_square, l->in[0])));
    struct tensor *size = decompose_unary(m, l, LAYER_abs, l->in[0]);
    if (p == 1) return reduce(m, l, LAYER_sum, size);
    if (isinf(p)) return reduce(m, l, p > 0 ? LAYER_reduce_max : LAYER_reduce_min, size);
    struct tensor *total = reduce(m, l, LAYER_sum, decompose_with(m, l, LAYER_pow, size, p));
    return decompose_with(m, l, LAYER_pow, total, 1 / p);
}

/* An infinite maximum becomes the largest finite number: infinity - infinity would be NaN, but infinity minus a finite number is
 * infinite. */
struct tensor *decompose_logsumexp(struct model *m, const struct layer *l) {
    const struct attr *a = &l->attr;
    struct attr finite = ir_default_attr();
    finite.max = make_largest(l->in[0]), finite.min = -finite.max;
    struct tensor *top =
        decompose_reduce(m, l, LAYER_reduce_max, l->in[0], a->n_axes, a->axes, true);
    top = make_layer(m, LAYER_clamp, 1, &top, &finite, l->origin);
    struct tensor *e =
        decompose_unary(m, l, LAYER_exp, decompose_binary(m, l, LAYER_sub, l->in[0], top));
    struct tensor *total = decompose_reduce(m, l, LAYER_sum, e, a->n_axes, a->axes, true);
    struct tensor *y =
        decompose_binary(m, l, LAYER_add, decompose_unary(m, l, LAYER_log, total), top);
    return y && !a->keepdim ? make_reshape(m, y, l->out[0]->rank, l->out[0]->dim) : y;
}

/*
 * Shape inference of layers that compute: checks a layer's inputs and attributes, sets its output's rank and dims.
 * Error messages contain the shapes. Layers that only move values are in infer_shape.c.
 */
#include "ir/layer.h"

#include <stdio.h>
#include <string.h>

/* Dims that depend on symbols are printed as ?: "[?,3,224,224]". Long texts are cut off. */
const char *infer_shape_text(const struct tensor *t, char text[256]) {
    int at = snprintf(text, 256, "[");
    for (int i = 0; i < t->rank && at < 230; i++) {
        if (size_is_const(t->dim[i]))
            at += snprintf(text + at, (size_t)(256 - at), "%s%lld", i ? "," : "",
                           (long long)size_value(t->dim[i]));
        else at += snprintf(text + at, (size_t)(256 - at), "%s?", i ? "," : "");
    }
    snprintf(text + at, (size_t)(256 - at), "]");
    return text;
}

enum sol_status infer_axis(int64_t *axis, int rank) {
    if (*axis < -rank || *axis >= rank)
        return fail(SOL_EINVAL, "axis %lld of a tensor of rank %d", (long long)*axis, rank);
    if (*axis < 0) *axis += rank;
    return SOL_OK;
}

enum sol_status infer_axes(struct attr *a, int rank, bool seen[SOL_MAX_RANK]) {
    for (int i = 0; i < a->n_axes; i++) {
        TRY(infer_axis(&a->axes[i], rank));
        if (seen[a->axes[i]])
            return fail(SOL_EINVAL, "axis %lld is given twice", (long long)a->axes[i]);
        seen[a->axes[i]] = true;
    }
    return SOL_OK;
}

void infer_set_shape(struct tensor *out, const struct tensor *like) {
    out->rank = like->rank;
    memcpy(out->dim, like->dim, sizeof out->dim);
}

enum sol_status infer_none(struct layer *l) {
    (void)l;
    return SOL_OK;
}

/* Does the element type have this value? Doubles hold integers up to 2^53. */
static bool has_value(enum sol_dtype dtype, double value) {
    if (size_family(dtype) == FAMILY_FLOAT) return true;
    if (value != floor(value)) return false;
    if (dtype == SOL_BOOL || dtype == SOL_U8)
        return value >= 0 && value <= (dtype == SOL_U8 ? 255 : 1);
    const double limit = ldexp(1, dtype == SOL_I64 ? 53 : (int)size_element(dtype) * 8 - 1);
    return value >= -limit && value <= limit - (dtype != SOL_I64);
}

static enum sol_status check_constant(enum sol_dtype dtype, double value) {
    if (has_value(dtype, value)) return SOL_OK;
    return fail(SOL_EINVAL, "%g is no constant of type %s", value, size_dtype_name(dtype));
}

enum sol_status infer_bound(enum sol_dtype dtype, double value) {
    return isinf(value) ? SOL_OK : check_constant(dtype, value);
}

enum sol_status infer_scalar(struct layer *l) {
    l->out[0]->rank = 0;
    return check_constant(l->attr.dtype, l->attr.value);
}

/* The output has the first input's shape. */
enum sol_status infer_same(struct layer *l) {
    infer_set_shape(l->out[0], l->in[0]);
    return SOL_OK;
}

enum sol_status infer_clamp(struct layer *l) {
    TRY(infer_bound(l->in[0]->dtype, l->attr.min));
    TRY(infer_bound(l->in[0]->dtype, l->attr.max));
    return infer_same(l);
}

/* The same, for layers that work along `axis`. */
enum sol_status infer_axis_same(struct layer *l) {
    TRY(infer_axis(&l->attr.axis, l->in[0]->rank));
    return infer_same(l);
}

enum sol_status infer_arange(struct layer *l) {
    if (l->attr.n_shape != 1) return fail(SOL_EINVAL, "needs one length in shape");
    TRY(ir_check_symbols(l->model, l->attr.start));
    l->out[0]->rank = 1;
    l->out[0]->dim[0] = l->attr.shape[0];
    return SOL_OK;
}

/* Each stream takes two counters for its key, and each value one of 32 bits; of open dims ir/condition.c checks it. */
enum sol_status infer_random(struct layer *l) {
    const struct attr *a = &l->attr;
    if (l->in[0]->rank) return fail(SOL_EINVAL, "seed %s is not one value", SHAPE_TEXT(l->in[0]));
    if (a->stream < 0 || a->stream > INT32_MAX / 2)
        return fail(SOL_EINVAL, "stream %lld; streams are 0 to %d", (long long)a->stream,
                    INT32_MAX / 2);
    l->out[0]->rank = a->n_shape;
    for (int d = 0; d < a->n_shape; d++) l->out[0]->dim[d] = a->shape[d];
    const struct size n = ir_elements(l->out[0]);
    if (size_is_const(n) && size_value(n) > (int64_t)UINT32_MAX + 1)
        return fail(SOL_EUNSUPPORTED, "more than 2^32 values in %s", SHAPE_TEXT(l->out[0]));
    return SOL_OK;
}

/* `axis` is removed, or kept with size 1. */
enum sol_status infer_extreme(struct layer *l) {
    const struct tensor *x = l->in[0];
    struct tensor *out = l->out[0];
    TRY(infer_axis(&l->attr.axis, x->rank));
    if (size_is(x->dim[l->attr.axis], 0))
        return fail(SOL_EINVAL, "no largest or smallest of axis %lld, which is empty",
                    (long long)l->attr.axis);
    out->rank = 0;
    for (int d = 0; d < x->rank; d++)
        if (d != l->attr.axis) out->dim[out->rank++] = x->dim[d];
        else if (l->attr.keepdim) out->dim[out->rank++] = size_const(1);
    return SOL_OK;
}

/* A formula broadcasts with itself and with 1 only, although a symbol in it may be 1 at some calls. */
bool ir_broadcast(struct size a, struct size b, struct size *out) {
    *out = size_is(a, 1) ? b : a;
    return size_is(a, 1) || size_is(b, 1) || size_equal(a, b);
}

bool infer_broadcast_into(struct tensor *out, const struct tensor *t, int skip) {
    for (int d = 1 + skip; d <= t->rank; d++) {
        struct size *dim = &out->dim[out->rank - d];
        if (!ir_broadcast(*dim, t->dim[t->rank - d], dim)) return false;
    }
    return true;
}

void infer_set_ones(struct layer *l) {
    struct tensor *out = l->out[0];
    for (int i = out->rank = 0; i < l->n_in; i++)
        if (l->in[i]->rank > out->rank) out->rank = l->in[i]->rank;
    for (int d = 0; d < out->rank; d++) out->dim[d] = size_const(1);
}

enum sol_status infer_broadcast(struct layer *l) {
    infer_set_ones(l);
    for (int i = 0; i < l->n_in; i++)
        if (!infer_broadcast_into(l->out[0], l->in[i], 0))
            return fail(SOL_EINVAL, "shapes %s and %s do not broadcast", SHAPE_TEXT(l->in[0]),
                        SHAPE_TEXT(l->in[i]));
    return SOL_OK;
}

/* ---- Windows ---- */

static enum sol_status check_positive(const char *what, const int64_t value[2], int64_t min) {
    for (int i = 0; i < 2; i++)
        if (value[i] < min || value[i] > INT32_MAX)
            return fail(SOL_EINVAL, "%s is [%lld,%lld]; it must be at least %lld", what,
                        (long long)value[0], (long long)value[1], (long long)min);
    return SOL_OK;
}

/* The input must be [n,c,h,w], or [n,c,d,h,w] of a convolution, with constant c, not empty; stride, dilation and pad must be in range. */
static enum sol_status check_window(const struct layer *l) {
    const struct attr *a = &l->attr;
    const int rank = l->in[0]->rank;
    if (rank != 4 && (rank != 5 || l->kind != LAYER_conv))
        return fail(SOL_EINVAL, "input %s is no [n,c,h,w]", SHAPE_TEXT(l->in[0]));
    if (!size_is_const(l->in[0]->dim[1]))
        return fail(SOL_EUNSUPPORTED, "the channels of %s may not vary", SHAPE_TEXT(l->in[0]));
    for (int d = 1; d < rank; d++) {
        if (size_is(l->in[0]->dim[d], 0))
            return fail(SOL_EINVAL, "input %s has no channels, rows or columns",
                        SHAPE_TEXT(l->in[0]));
    }
    TRY(check_positive("stride", a->stride, 1));
    TRY(check_positive("dilation", a->dilation, 1));
    TRY(check_positive("pad", a->pad, 0));
    TRY(check_positive("depth", a->depth, 1));
    TRY(check_positive("depth", a->depth + 2, 0));
    return check_positive("pad", a->pad + 2, 0);
}

/* The number of positions of a window along rows (axis 0) or columns (1); 0 if it does not fit. With `ceil`, the last window may
 * end behind the padded input if it begins inside the input or its front padding, as in PyTorch: of an open dim it must be
 * known that no window begins behind that. */
static enum sol_status count_windows(struct layer *l, int axis, int64_t kernel, struct size *out) {
    const struct attr *a = &l->attr;
    const struct size in = l->in[0]->dim[l->in[0]->rank - 2 + axis];
    const int64_t stride = a->stride[axis], front = a->pad[axis], back = a->pad[2 + axis];
    const int64_t reach = a->dilation[axis] * (kernel - 1) + 1;
    const struct size space = size_add(in, size_const(front + back - reach));
    *out = a->ceil ? size_ceil(&l->model->quotients, space, stride)
                   : size_floor(&l->model->quotients, space, stride);
    *out = size_add(*out, size_const(1));
    if (a->ceil && size_is_const(in)) {
        int64_t n = size_value(*out);
        if ((n - 1) * stride >= size_value(in) + front) *out = size_const(n - 1);
    } else if (a->ceil && back + stride > reach) {
        return fail(SOL_EUNSUPPORTED, "the number of windows, rounded up, of %s is no formula",
                    SHAPE_TEXT(l->in[0]));
    }
    return SOL_OK;
}

/* The same along the depth, of a kernel of `kernel` planes. */
static struct size count_planes(struct layer *l, int64_t kernel) {
    const int64_t *a = l->attr.depth, reach = a[1] * (kernel - 1) + 1;
    const struct size space = size_add(l->in[0]->dim[2], size_const(a[2] + a[3] - reach));
    return size_add(size_floor(&l->model->quotients, space, a[0]), size_const(1));
}

/* Sets the output to [n, channels, rows, columns], where rows and columns are the numbers of the window's positions; or adds them to
 * the first dims of a volume. */
static enum sol_status set_windows(struct layer *l, const int64_t kernel[2], struct size channels) {
    struct tensor *out = l->out[0];
    out->rank = l->in[0]->rank;
    out->dim[0] = l->in[0]->dim[0];
    out->dim[1] = channels;
    for (int i = 0; i < 2; i++) {
        struct size *n = &out->dim[out->rank - 2 + i];
        TRY(count_windows(l, i, kernel[i], n));
        if (size_is_const(*n) && size_value(*n) < 1)
            return fail(SOL_EINVAL, "a window of [%lld,%lld] does not fit into input %s",
                        (long long)kernel[0], (long long)kernel[1], SHAPE_TEXT(l->in[0]));
    }
    return SOL_OK;
}

/* Each dim must be constant. To check the number of elements is not enough: a symbol times an empty dim is the constant 0. */
static enum sol_status check_weight(const struct tensor *w, int rank, const char *what) {
    bool sound = w->rank == rank;
    for (int d = 0; sound && d < rank; d++) sound = size_is_const(w->dim[d]);
    if (!sound) return fail(SOL_EINVAL, "weight %s is no constant %s", SHAPE_TEXT(w), what);
    if (size_is(w->dim[0], 0) || size_is(w->dim[1], 0))
        return fail(SOL_EUNSUPPORTED, "weight %s has no channels", SHAPE_TEXT(w));
    return SOL_OK;
}

static enum sol_status check_bias(const struct layer *l) {
    if (l->n_in < 3 || (l->in[2]->rank == 1 && size_equal(l->in[2]->dim[0], l->in[1]->dim[0])))
        return SOL_OK;
    return fail(SOL_EINVAL, "bias %s does not fit weight %s", SHAPE_TEXT(l->in[2]),
                SHAPE_TEXT(l->in[1]));
}

/* x [n,c,h,w], weight [k, c/groups, r, s], bias [k] gives [n,k,..]; of volumes x [n,c,d,h,w], weight [k, c/groups, q, r, s]. */
enum sol_status infer_conv(struct layer *l) {
    const struct tensor *x = l->in[0], *w = l->in[1];
    TRY(check_window(l));
    TRY(check_weight(w, x->rank, x->rank == 4 ? "[k,c,r,s]" : "[k,c,q,r,s]"));
    int64_t groups = l->attr.groups, c = size_value(x->dim[1]), k = size_value(w->dim[0]);
    if (groups < 1 || c % groups || k % groups)
        return fail(SOL_EINVAL, "%lld groups do not divide %lld input and %lld output channels",
                    (long long)groups, (long long)c, (long long)k);
    if (size_value(w->dim[1]) != c / groups)
        return fail(SOL_EINVAL, "weight %s expects %lld channels, input %s has %lld", SHAPE_TEXT(w),
                    (long long)(size_value(w->dim[1]) * groups), SHAPE_TEXT(x), (long long)c);
    TRY(check_bias(l));
    int64_t kernel[2] = {size_value(w->dim[x->rank - 2]), size_value(w->dim[x->rank - 1])};
    TRY(check_positive("kernel", kernel, 1));
    if (x->rank == 5) {
        struct size *planes = &l->out[0]->dim[2];
        *planes = count_planes(l, size_value(w->dim[2]));
        if (size_is(w->dim[2], 0) || (size_is_const(*planes) && size_value(*planes) < 1))
            return fail(SOL_EINVAL, "a window of %lld planes does not fit into input %s",
                        (long long)size_value(w->dim[2]), SHAPE_TEXT(x));
    }
    return set_windows(l, kernel, w->dim[0]);
}

/* Sets the output to [n, k, rows, columns]: in each dim, the windows of all input points, without the padding. */
static enum sol_status set_spread(struct layer *l, const int64_t kernel[2], struct size channels) {
    const struct attr *a = &l->attr;
    struct tensor *out = l->out[0];
    infer_set_shape(out, l->in[0]);
    out->dim[1] = channels;
    for (int i = 0; i < 2; i++) {
        struct size steps = size_sub(l->in[0]->dim[2 + i], size_const(1)),
                    n = size_scale(steps, a->stride[i]);
        bool fits = !size_is_const(n) || size_value(n) <= INT32_MAX;
        n = size_add(n, size_const(a->dilation[i] * (kernel[i] - 1) + 1 + a->output_pad[i] -
                                   a->pad[i] - a->pad[2 + i]));
        if (n.bad || !fits || (size_is_const(n) && size_value(n) < 1))
            return fail(SOL_EINVAL, "the result of input %s has no rows or columns, or too many",
                        SHAPE_TEXT(l->in[0]));
        out->dim[2 + i] = n;
    }
    return SOL_OK;
}

/* What the convolution of `l` makes of x, with this weight. */
static enum sol_status infer_windows(const struct layer *l, struct tensor *x, struct tensor *w,
                                     struct tensor *out) {
    struct layer conv = *l;
    conv.kind = LAYER_conv;
    conv.n_in = 2;
    conv.in = (struct tensor *[]){x, w};
    conv.out = &out;
    return infer_conv(&conv);
}

static struct tensor describe_shape(const struct attr *a) {
    struct tensor t = {.rank = a->n_shape};
    memcpy(t.dim, a->shape, sizeof a->shape);
    return t;
}

/* x [n,c,h,w], dy [n,k,p,q] gives the weight's shape, [k, c/groups, r, s]; volumes alike. dy must have the shape that the convolution
 * makes. */
enum sol_status infer_conv_weight(struct layer *l) {
    struct tensor weight = describe_shape(&l->attr), y = {0};
    TRY(infer_windows(l, l->in[0], &weight, &y));
    if (!ir_same_shape(&y, l->in[1], -1))
        return fail(SOL_EINVAL, "a convolution of %s with weight %s gives %s, not %s",
                    SHAPE_TEXT(l->in[0]), SHAPE_TEXT(&weight), SHAPE_TEXT(&y),
                    SHAPE_TEXT(l->in[1]));
    infer_set_shape(l->out[0], &weight);
    return SOL_OK;
}

/* The result has the shape of the attribute, of which the convolution with this weight must make x's. */
static enum sol_status set_shape(struct layer *l) {
    struct tensor y = describe_shape(&l->attr), x = {0};
    for (int d = 0; d < y.rank; d++) TRY(ir_check_symbols(l->model, y.dim[d]));
    TRY(infer_windows(l, &y, l->in[1], &x));
    if (!ir_same_shape(&x, l->in[0], -1))
        return fail(SOL_EINVAL, "a convolution of shape %s gives %s, not %s", SHAPE_TEXT(&y),
                    SHAPE_TEXT(&x), SHAPE_TEXT(l->in[0]));
    infer_set_shape(l->out[0], &y);
    return SOL_OK;
}

/* x [n,c,h,w], weight [c, k/groups, r, s], bias [k] gives [n,k,..]. */
enum sol_status infer_conv_transpose(struct layer *l) {
    const struct tensor *x = l->in[0], *w = l->in[1];
    TRY(check_window(l));
    TRY(check_weight(w, 4, "[c,k,r,s]"));
    int64_t groups = l->attr.groups, c = size_value(x->dim[1]), k = size_value(w->dim[1]);
    if (groups < 1 || c % groups || c != size_value(w->dim[0]))
        return fail(SOL_EINVAL, "weight %s in %lld groups does not fit input %s", SHAPE_TEXT(w),
                    (long long)groups, SHAPE_TEXT(x));
    if (l->n_in > 2 && (l->in[2]->rank != 1 || !size_is(l->in[2]->dim[0], k * groups)))
        return fail(SOL_EINVAL, "bias %s does not fit weight %s", SHAPE_TEXT(l->in[2]),
                    SHAPE_TEXT(w));
    int64_t kernel[2] = {size_value(w->dim[2]), size_value(w->dim[3])};
    TRY(check_positive("kernel", kernel, 1));
    TRY(check_positive("output_pad", l->attr.output_pad, 0));
    return l->attr.n_shape ? set_shape(l) : set_spread(l, kernel, size_const(k * groups));
}

enum sol_status infer_pool(struct layer *l) {
    const struct attr *a = &l->attr;
    TRY(check_window(l));
    TRY(check_positive("kernel", a->kernel, 1));
    for (int i = 0; i < 4; i++) {
        int64_t reach =
            a->dilation[i % 2] * (a->kernel[i % 2] - 1) + 1; /* as in PyTorch, with dilation */
        if (2 * a->pad[i] > reach)
            return fail(SOL_EINVAL, "pad %lld is more than half of a window over %lld",
                        (long long)a->pad[i], (long long)reach);
    }
    TRY(infer_bound(l->in[0]->dtype, a->min));
    return set_windows(l, a->kernel, l->in[0]->dim[1]);
}

/* Positions in a plane must be values of i32; of an open plane ir/condition.c checks it. */
enum sol_status infer_pool_index(struct layer *l) {
    TRY(infer_pool(l));
    const struct size plane = ir_count(l->in[0], 2, 4);
    if (size_is_const(plane) && size_value(plane) > INT32_MAX)
        return fail(SOL_EUNSUPPORTED, "input %s has more than %d rows and columns",
                    SHAPE_TEXT(l->in[0]), INT32_MAX);
    return SOL_OK;
}

/* dy and the positions have the shape that the pool makes of `shape`, which is the result's. */
enum sol_status infer_pool_grad(struct layer *l) {
    struct tensor x = describe_shape(&l->attr), y = {0};
    struct layer pool = *l;
    for (int d = 0; d < x.rank; d++) TRY(ir_check_symbols(l->model, x.dim[d]));
    x.dtype = l->in[0]->dtype;
    pool.kind = LAYER_max_pool_index;
    pool.n_in = 1;
    pool.in = (struct tensor *[]){&x};
    pool.out = (struct tensor *[]){&y};
    TRY(infer_pool_index(&pool));
    for (int i = 0; i < 2; i++)
        if (!ir_same_shape(&y, l->in[i], -1))
            return fail(SOL_EINVAL, "windows over %s give %s, but input %d is %s", SHAPE_TEXT(&x),
                        SHAPE_TEXT(&y), i, SHAPE_TEXT(l->in[i]));
    infer_set_shape(l->out[0], &x);
    return SOL_OK;
}

/* The attribute `kernel` is the output's size; windows follow from it and may differ in size (define_window.c). */
enum sol_status infer_adaptive(struct layer *l) {
    TRY(check_window(l));
    TRY(check_positive("kernel", l->attr.kernel, 1));
    infer_set_shape(l->out[0], l->in[0]);
    for (int i = 0; i < 2; i++) l->out[0]->dim[2 + i] = size_const(l->attr.kernel[i]);
    return SOL_OK;
}

/* ---- Others ---- */

/* x [.., c], weight [k, c], bias [k] gives [.., k], with any leading dims. */
enum sol_status infer_linear(struct layer *l) {
    const struct tensor *x = l->in[0], *w = l->in[1];
    TRY(check_weight(w, 2, "[k,c]"));
    if (x->rank < 1 || !size_equal(x->dim[x->rank - 1], w->dim[1]))
        return fail(SOL_EINVAL, "weight %s does not fit input %s", SHAPE_TEXT(w), SHAPE_TEXT(x));
    TRY(check_bias(l));
    infer_set_shape(l->out[0], x);
    l->out[0]->dim[x->rank - 1] = w->dim[0];
    return SOL_OK;
}

/* The inputs of quantized products behind x and the weight: zero[1], scale[k], bias[k], range[3]. */
static enum sol_status infer_quantized(struct layer *l, enum sol_status (*infer)(struct layer *)) {
    static const char *const names[] = {"zero point", "scale", "bias", "range"};
    struct layer product = *l;
    product.n_in = 2;
    TRY(infer(&product));
    const struct size k = l->in[1]->dim[0], n[] = {size_const(1), k, k, size_const(3)};
    for (int i = 2; i < l->n_in; i++)
        if (l->in[i]->rank != 1 || !size_equal(l->in[i]->dim[0], n[i - 2]))
            return fail(SOL_EINVAL, "%s %s does not fit weight %s", names[i - 2],
                        SHAPE_TEXT(l->in[i]), SHAPE_TEXT(l->in[1]));
    return SOL_OK;
}

enum sol_status infer_quant_conv(struct layer *l) { return infer_quantized(l, infer_conv); }
enum sol_status infer_quant_linear(struct layer *l) { return infer_quantized(l, infer_linear); }

/* a [..,m,c] times b [..,c,n] gives [..,m,n]; the leading dims broadcast. */
enum sol_status infer_matmul(struct layer *l) {
    const struct tensor *a = l->in[0], *b = l->in[1];
    struct tensor *out = l->out[0];
    infer_set_ones(l);
    bool fits = a->rank >= 2 && b->rank >= 2 &&
                size_equal(a->dim[a->rank - 1], b->dim[b->rank - 2]) &&
                infer_broadcast_into(out, a, 2) && infer_broadcast_into(out, b, 2);
    if (!fits) return fail(SOL_EINVAL, "no product of %s and %s", SHAPE_TEXT(a), SHAPE_TEXT(b));
    out->dim[out->rank - 2] = a->dim[a->rank - 2];
    out->dim[out->rank - 1] = b->dim[b->rank - 1];
    return SOL_OK;
}

/* x [n,c,..] and four vectors [c]: mean, variance, weight, bias. */
enum sol_status infer_batch_norm(struct layer *l) {
    const struct tensor *x = l->in[0];
    if (x->rank < 2) return fail(SOL_EINVAL, "input %s has no channels", SHAPE_TEXT(x));
    for (int i = 1; i < 5; i++)
        if (l->in[i]->rank != 1 || !size_equal(l->in[i]->dim[0], x->dim[1]))
            return fail(SOL_EINVAL, "parameter %s does not fit input %s", SHAPE_TEXT(l->in[i]),
                        SHAPE_TEXT(x));
    return infer_same(l);
}

enum sol_status infer_reduced_axes(struct layer *l, bool reduced[SOL_MAX_RANK]) {
    struct attr *a = &l->attr;
    int rank = l->in[0]->rank;
    TRY(infer_axes(a, rank, reduced));
    for (int d = 0; d < rank && !a->n_axes; d++) reduced[d] = true;
    a->n_axes = 0;
    for (int d = 0; d < rank; d++)
        if (reduced[d]) a->axes[a->n_axes++] = d;
    return SOL_OK;
}

/* Is the result, or a step of it, a maximum or minimum? */
static bool finds_extreme(const struct layer *l) {
    return l->kind == LAYER_reduce_max || l->kind == LAYER_reduce_min ||
           l->kind == LAYER_logsumexp || (l->kind == LAYER_norm && isinf(l->attr.p));
}

/* A sum over an empty axis is 0, but a maximum or minimum over it does not exist. */
enum sol_status infer_reduce(struct layer *l) {
    bool reduced[SOL_MAX_RANK] = {false};
    struct tensor *out = l->out[0];
    TRY(infer_reduced_axes(l, reduced));
    bool extreme = finds_extreme(l);
    out->rank = 0;
    for (int d = 0; d < l->in[0]->rank; d++) {
        if (reduced[d] && extreme && size_is(l->in[0]->dim[d], 0))
            return fail(SOL_EINVAL, "no largest or smallest of axis %d, which is empty", d);
        if (!reduced[d]) out->dim[out->rank++] = l->in[0]->dim[d];
        else if (l->attr.keepdim) out->dim[out->rank++] = size_const(1);
    }
    return SOL_OK;
}

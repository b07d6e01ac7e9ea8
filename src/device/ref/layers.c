/*
 * The reference of each layer: one function `eval_<kind>` per line of ir/layer.def.
 *
 *   ref_layer  ->  [table by kind]  ->  eval_<kind>(call)
 *
 * Each function loops over the points of the output and computes one after the other. It is meant to be
 * obviously correct, not fast. Formulas are those of PyTorch's manual.
 */
#include "device/ref/ref.h"

#include <math.h>
#include <string.h>

/* A tensor's dims as numbers, for the symbols of this call. */
struct shape {
    int rank;
    int64_t n; /* elements */
    int64_t dim[SOL_MAX_RANK];
    int64_t stride[SOL_MAX_RANK];
};

/* The arguments of a layer's function. */
struct layer_call {
    const struct layer *layer;
    const struct attr *attr;
    const int64_t *symbols;
    struct shape shape;     /* of the output */
    const float *const *in; /* a gather casts its indices to their type */
    float *out;
    enum sol_status *status;
};

/* ---- Points and shapes ---- */

static struct shape get_shape(const struct tensor *t, const int64_t *symbols) {
    struct shape s = {.rank = t->rank, .n = 1};
    for (int i = t->rank - 1; i >= 0; i--) {
        s.dim[i] = size_eval(&t->dim[i], symbols);
        s.stride[i] = s.n;
        s.n *= s.dim[i];
    }
    return s;
}

static struct shape get_in_shape(const struct layer_call *c, int i) {
    return get_shape(c->layer->in[i], c->symbols);
}

/* Advances `at` to the next point of a shape in row-major order. */
static void step_point(const struct shape *s, int64_t *at) {
    for (int i = s->rank - 1; i >= 0; i--) {
        if (++at[i] < s->dim[i]) return;
        at[i] = 0;
    }
}

/* The offset of the element of `s` that is broadcast to point `at` of a shape of rank `rank`. */
static int64_t find_broadcast(const struct shape *s, int rank, const int64_t *at) {
    int64_t offset = 0;
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] != 1) offset += at[rank - s->rank + i] * s->stride[i];
    return offset;
}

static int64_t wrap_axis(int64_t axis, int rank) { return axis < 0 ? axis + rank : axis; }

/* ---- Scalars ---- */

/* Comparisons are written so that NaN is returned, as by PyTorch's clamp, maximum and minimum. */
static float clamp_value(float x, float low, float high) {
    float v = x < low ? low : x;
    return v > high ? high : v;
}

static float max_value(float a, float b) { return isnan(a) || a > b ? a : b; }

static float min_value(float a, float b) { return isnan(a) || a < b ? a : b; }

/* PyTorch's threshold: above 20 the result, rounded to float, is x. Without it exp would overflow for large x. */
static float softplus_value(float x) { return x > 20 ? x : log1pf(expf(x)); }

static float sigmoid_value(float x) { return 1 / (1 + expf(-x)); }

/* ---- Sources ---- */

/* Inputs and parameters come from the caller. */
static void eval_input(const struct layer_call *c) { (void)c; }

static void eval_param(const struct layer_call *c) { (void)c; }

static void eval_scalar(const struct layer_call *c) { c->out[0] = (float)c->attr->value; }

/* ---- Pointwise, one input ---- */

/* A line of UNARY is a layer: its value for the input value x, with attributes a. */
#define UNARY(name, expression)                           \
    static void eval_##name(const struct layer_call *c) { \
        const struct attr *a = c->attr;                   \
        (void)a;                                          \
        for (int64_t i = 0; i < c->shape.n; i++) {        \
            float x = c->in[0][i];                        \
            c->out[i] = (expression);                     \
        }                                                 \
    }
UNARY(relu, x < 0 ? 0 : x)
UNARY(clamp, clamp_value(x, (float)a->min, (float)a->max))
UNARY(leaky_relu, x > 0 ? x : (float)a->alpha * x)
UNARY(elu, x > 0 ? x : (float)a->alpha * expm1f(x))
UNARY(sigmoid, sigmoid_value(x))
UNARY(tanh, tanhf(x))
UNARY(gelu, 0.5f * x * (1 + erff(x * (float)M_SQRT1_2)))
UNARY(gelu_tanh,
      0.5f * x * (1 + tanhf((float)(M_SQRT2 * M_2_SQRTPI / 2) * (x + 0.044715f * x * x * x))))
UNARY(silu, x / (1 + expf(-x)))
UNARY(hardsigmoid, clamp_value(x + 3, 0, 6) / 6)
UNARY(hardswish, x *clamp_value(x + 3, 0, 6) / 6)
UNARY(softplus, softplus_value(x))
UNARY(mish, x *tanhf(softplus_value(x)))
UNARY(exp, expf(x))
UNARY(log, logf(x))
UNARY(sqrt, sqrtf(x))
UNARY(rsqrt, 1 / sqrtf(x))
UNARY(abs, fabsf(x))
UNARY(neg, -x)
UNARY(square, x *x)
UNARY(reciprocal, 1 / x)
UNARY(erf, erff(x))

/* ---- Pointwise, two inputs ---- */

/* A line of BINARY is a layer: its value for x and y, the inputs' values at the broadcast point. */
#define BINARY(name, expression)                                              \
    static void eval_##name(const struct layer_call *c) {                     \
        struct shape s[2] = {get_in_shape(c, 0), get_in_shape(c, 1)};         \
        int64_t at[SOL_MAX_RANK] = {0};                                       \
        for (int64_t i = 0; i < c->shape.n; i++) {                            \
            float x = c->in[0][find_broadcast(&s[0], c->shape.rank, at)];     \
            float y = c->in[1][find_broadcast(&s[1], c->shape.rank, at)];     \
            c->out[i] = (expression);                                         \
            step_point(&c->shape, at);                                        \
        }                                                                     \
    }
BINARY(add, x + y)
BINARY(sub, x - y)
BINARY(mul, x *y)
BINARY(div, x / y)
BINARY(maximum, max_value(x, y))
BINARY(minimum, min_value(x, y))
BINARY(less, x < y)
BINARY(equal, x == y)

/* ---- Pointwise, three inputs ---- */

static void eval_where(const struct layer_call *c) {
    struct shape s[3] = {get_in_shape(c, 0), get_in_shape(c, 1), get_in_shape(c, 2)};
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        int from = c->in[0][find_broadcast(&s[0], c->shape.rank, at)] != 0 ? 1 : 2;
        c->out[i] = c->in[from][find_broadcast(&s[from], c->shape.rank, at)];
        step_point(&c->shape, at);
    }
}

/* ---- Convolution, linear, and composite layers ---- */

/* One output of a convolution. `x` begins at the sample's first channel of the group, `w` at the output
 * channel's filter. */
static double convolve_point(const struct attr *a, const struct shape *xs, const struct shape *ws,
                             const float *x, const float *w, int64_t row, int64_t col) {
    double sum = 0;
    for (int64_t c = 0; c < ws->dim[1]; c++)
        for (int64_t r = 0; r < ws->dim[2]; r++)
            for (int64_t s = 0; s < ws->dim[3]; s++) {
                int64_t i = row * a->stride[0] - a->pad[0] + r * a->dilation[0];
                int64_t j = col * a->stride[1] - a->pad[1] + s * a->dilation[1];
                if (i < 0 || i >= xs->dim[2] || j < 0 || j >= xs->dim[3]) continue;
                sum += (double)x[c * xs->stride[1] + i * xs->stride[2] + j] *
                       w[c * ws->stride[1] + r * ws->stride[2] + s];
            }
    return sum;
}

static void eval_conv(const struct layer_call *c) {
    struct shape xs = get_in_shape(c, 0), ws = get_in_shape(c, 1);
    const float *bias = c->layer->n_in > 2 ? c->in[2] : NULL;
    int64_t at[SOL_MAX_RANK] = {0}, k_per_group = ws.dim[0] / c->attr->groups;
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t k = at[1], group = k / k_per_group;
        const float *x = c->in[0] + at[0] * xs.stride[0] + group * ws.dim[1] * xs.stride[1];
        double sum =
            convolve_point(c->attr, &xs, &ws, x, c->in[1] + k * ws.stride[0], at[2], at[3]);
        c->out[i] = (float)(sum + (bias ? (double)bias[k] : 0));
        step_point(&c->shape, at);
    }
}

static void eval_linear(const struct layer_call *c) {
    struct shape ws = get_in_shape(c, 1);
    int64_t n_k = ws.dim[0], n_c = ws.dim[1];
    for (int64_t i = 0; i < c->shape.n; i++) {
        const float *x = c->in[0] + i / n_k * n_c, *w = c->in[1] + i % n_k * n_c;
        double sum = c->layer->n_in > 2 ? (double)c->in[2][i % n_k] : 0;
        for (int64_t j = 0; j < n_c; j++) sum += (double)x[j] * w[j];
        c->out[i] = (float)sum;
    }
}

/* Output point `at` is the product of row at[rank - 2] of the first matrix and column at[rank - 1] of the second. */
static void eval_matmul(const struct layer_call *c) {
    struct shape as = get_in_shape(c, 0), bs = get_in_shape(c, 1);
    int rank = c->shape.rank;
    int64_t at[SOL_MAX_RANK] = {0}, n = as.dim[as.rank - 1];
    as.dim[as.rank - 1] = bs.dim[bs.rank - 2] = 1; /* summed over: find_broadcast skips dims of 1 */
    for (int64_t i = 0; i < c->shape.n; i++) {
        const float *a = c->in[0] + find_broadcast(&as, rank, at),
                    *b = c->in[1] + find_broadcast(&bs, rank, at);
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += (double)a[j] * b[j * bs.stride[bs.rank - 2]];
        c->out[i] = (float)sum;
        step_point(&c->shape, at);
    }
}

static void eval_batch_norm(const struct layer_call *c) {
    const float *mean = c->in[1], *variance = c->in[2], *weight = c->in[3], *bias = c->in[4];
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t k = at[1];
        float scale = weight[k] / sqrtf(variance[k] + (float)c->attr->eps);
        c->out[i] = (c->in[0][i] - mean[k]) * scale + bias[k];
        step_point(&c->shape, at);
    }
}

/* One softmax over n values that lie `stride` apart. */
static void eval_softmax_row(const float *x, float *y, int64_t n, int64_t stride) {
    float top = -INFINITY;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) top = max_value(x[i * stride], top);
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i * stride] - top);
    for (int64_t i = 0; i < n; i++) y[i * stride] = (float)(exp((double)x[i * stride] - top) / sum);
}

static void eval_softmax(const struct layer_call *c) {
    int axis = (int)wrap_axis(c->attr->axis, c->shape.rank);
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        if (at[axis] == 0)
            eval_softmax_row(c->in[0] + i, c->out + i, c->shape.dim[axis], c->shape.stride[axis]);
        step_point(&c->shape, at);
    }
}

/* ---- Windows over the last two dims ---- */

/* A window of one plane: rows [top, bottom) and columns [left, right). */
struct pool_window {
    int64_t top, left, bottom, right;
};

/* The value of one output point (row, col) from its plane of the input. */
typedef float (*window_function)(const struct layer_call *c, const struct shape *xs,
                                 const float *plane, int64_t row, int64_t col);

static void eval_windows(const struct layer_call *c, window_function function) {
    struct shape xs = get_in_shape(c, 0);
    int64_t rows = c->shape.dim[c->shape.rank - 2], cols = c->shape.dim[c->shape.rank - 1];
    int64_t plane_size = xs.dim[xs.rank - 2] * xs.dim[xs.rank - 1];
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t plane = i / (rows * cols);
        c->out[i] = function(c, &xs, c->in[0] + plane * plane_size, i / cols % rows, i % cols);
    }
}

static float max_window(const struct layer_call *c, const struct shape *xs, const float *plane,
                        int64_t row, int64_t col) {
    const struct attr *a = c->attr;
    int64_t h = xs->dim[xs->rank - 2], w = xs->dim[xs->rank - 1];
    float top = (float)a->min;
    for (int64_t r = 0; r < a->kernel[0]; r++)
        for (int64_t s = 0; s < a->kernel[1]; s++) {
            int64_t i = row * a->stride[0] - a->pad[0] + r * a->dilation[0];
            int64_t j = col * a->stride[1] - a->pad[1] + s * a->dilation[1];
            if (i < 0 || i >= h || j < 0 || j >= w) continue;
            top = max_value(plane[i * w + j], top);
        }
    return top;
}

static double sum_window(const float *plane, int64_t width, struct pool_window win) {
    double sum = 0;
    for (int64_t i = win.top; i < win.bottom; i++)
        for (int64_t j = win.left; j < win.right; j++) sum += (double)plane[i * width + j];
    return sum;
}

/* With count_pad the divisor includes padding, but not what ceil mode adds beyond the padding. */
static float average_window(const struct layer_call *c, const struct shape *xs, const float *plane,
                            int64_t row, int64_t col) {
    const struct attr *a = c->attr;
    int64_t h = xs->dim[xs->rank - 2], w = xs->dim[xs->rank - 1];
    struct pool_window win = {.top = row * a->stride[0] - a->pad[0],
                              .left = col * a->stride[1] - a->pad[1]};
    win.bottom = min_i64(win.top + a->kernel[0], h + a->pad[2]);
    win.right = min_i64(win.left + a->kernel[1], w + a->pad[3]);
    int64_t padded = (win.bottom - win.top) * (win.right - win.left);
    win = (struct pool_window){max_i64(win.top, 0), max_i64(win.left, 0), min_i64(win.bottom, h),
                               min_i64(win.right, w)};
    if (win.top >= win.bottom || win.left >= win.right) return 0;
    int64_t inside = (win.bottom - win.top) * (win.right - win.left);
    return (float)(sum_window(plane, w, win) / (double)(a->count_pad ? padded : inside));
}

/* Output i of n covers the inputs from floor(i*h/n) to ceil((i+1)*h/n): neighbours may overlap. */
static float adaptive_window(const struct layer_call *c, const struct shape *xs, const float *plane,
                             int64_t row, int64_t col) {
    int64_t h = xs->dim[xs->rank - 2], w = xs->dim[xs->rank - 1];
    int64_t rows = c->shape.dim[c->shape.rank - 2], cols = c->shape.dim[c->shape.rank - 1];
    struct pool_window win = {row * h / rows, col * w / cols, ceil_div((row + 1) * h, rows),
                              ceil_div((col + 1) * w, cols)};
    int64_t inside = (win.bottom - win.top) * (win.right - win.left);
    return (float)(sum_window(plane, w, win) / (double)inside);
}

static void eval_max_pool(const struct layer_call *c) { eval_windows(c, max_window); }

static void eval_avg_pool(const struct layer_call *c) { eval_windows(c, average_window); }

static void eval_adaptive_avg_pool(const struct layer_call *c) { eval_windows(c, adaptive_window); }

/* ---- Reductions ---- */

/* Splits the input's shape for a reduction: `reduced` has the dims that are reduced, `kept` the others; the remaining dims
 * of each are 1. Both keep the input's rank and strides, so the offset of an element is the sum of its offsets in
 * both. */
static void split_shape(const struct layer_call *c, struct shape *kept, struct shape *reduced) {
    struct shape xs = get_in_shape(c, 0);
    *kept = *reduced = xs;
    kept->n = reduced->n = 1;
    for (int i = 0; i < xs.rank; i++) {
        bool is_axis = c->attr->n_axes == 0; /* no axes: all of them */
        for (int j = 0; j < c->attr->n_axes; j++)
            is_axis |= wrap_axis(c->attr->axes[j], xs.rank) == i;
        (is_axis ? kept : reduced)->dim[i] = 1;
        kept->n *= kept->dim[i];
        reduced->n *= reduced->dim[i];
    }
}

static int64_t find_offset(const struct shape *s, const int64_t *at) {
    int64_t offset = 0;
    for (int i = 0; i < s->rank; i++) offset += at[i] * s->stride[i];
    return offset;
}

/* Combines all inputs of each output in double; `divide` by their number makes a mean. */
static void eval_reduction(const struct layer_call *c, double start,
                           double (*combine)(double, double), bool divide) {
    struct shape kept, reduced;
    int64_t at[SOL_MAX_RANK] = {0};
    split_shape(c, &kept, &reduced);
    for (int64_t i = 0; i < kept.n; i++) {
        const float *x = c->in[0] + find_offset(&kept, at);
        int64_t inner[SOL_MAX_RANK] = {0};
        double value = start;
        for (int64_t j = 0; j < reduced.n; j++) {
            value = combine(value, (double)x[find_offset(&reduced, inner)]);
            step_point(&reduced, inner);
        }
        c->out[i] = (float)(divide ? value / (double)reduced.n : value);
        step_point(&kept, at);
    }
}

static double combine_sum(double a, double b) { return a + b; }

static double combine_max(double a, double b) { return isnan(a) || a > b ? a : b; }

static double combine_min(double a, double b) { return isnan(a) || a < b ? a : b; }

static void eval_sum(const struct layer_call *c) { eval_reduction(c, 0, combine_sum, false); }

static void eval_mean(const struct layer_call *c) { eval_reduction(c, 0, combine_sum, true); }

static void eval_reduce_max(const struct layer_call *c) {
    eval_reduction(c, -INFINITY, combine_max, false);
}

static void eval_reduce_min(const struct layer_call *c) {
    eval_reduction(c, INFINITY, combine_min, false);
}

/* ---- Layers that only move values ---- */

static void eval_reshape(const struct layer_call *c) {
    if (c->shape.n)
        memcpy(c->out, c->in[0], (size_t)(c->shape.n * size_element(c->layer->in[0]->dtype)));
}

/* A copy changes layouts only, and here all are plain. */
static void eval_copy(const struct layer_call *c) { eval_reshape(c); }

/* Output dim i is input dim axes[i]. */
static void eval_permute(const struct layer_call *c) {
    struct shape xs = get_in_shape(c, 0), moved = xs;
    int64_t at[SOL_MAX_RANK] = {0};
    for (int i = 0; i < xs.rank; i++)
        moved.stride[i] = xs.stride[wrap_axis(c->attr->axes[i], xs.rank)];
    for (int64_t i = 0; i < c->shape.n; i++) {
        c->out[i] = c->in[0][find_offset(&moved, at)];
        step_point(&c->shape, at);
    }
}

static void eval_slice(const struct layer_call *c) {
    struct shape xs = get_in_shape(c, 0);
    int axis = (int)wrap_axis(c->attr->axis, xs.rank);
    int64_t at[SOL_MAX_RANK] = {0}, first = size_eval(&c->attr->start, c->symbols) * xs.stride[axis];
    xs.stride[axis] *= c->attr->step;
    for (int64_t i = 0; i < c->shape.n; i++) {
        c->out[i] = c->in[0][first + find_offset(&xs, at)];
        step_point(&c->shape, at);
    }
}

static void eval_concat(const struct layer_call *c) {
    int axis = (int)wrap_axis(c->attr->axis, c->shape.rank);
    float *out = c->out; /* where the current input's part begins */
    for (int k = 0; k < c->layer->n_in; k++) {
        struct shape xs = get_in_shape(c, k);
        int64_t at[SOL_MAX_RANK] = {0};
        for (int64_t i = 0; i < xs.n; i++) {
            out[find_offset(&c->shape, at)] = c->in[k][i];
            step_point(&xs, at);
        }
        out += xs.dim[axis] * c->shape.stride[axis];
    }
}

static void eval_expand(const struct layer_call *c) {
    struct shape xs = get_in_shape(c, 0);
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        c->out[i] = c->in[0][find_broadcast(&xs, c->shape.rank, at)];
        step_point(&c->shape, at);
    }
}

/* Negative padding crops, as in PyTorch: a point is padding exactly when it is outside the
 * input. */
static void eval_pad(const struct layer_call *c) {
    struct shape xs = get_in_shape(c, 0);
    int64_t h = xs.dim[xs.rank - 2], w = xs.dim[xs.rank - 1];
    int64_t rows = c->shape.dim[xs.rank - 2], cols = c->shape.dim[xs.rank - 1];
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t row = i / cols % rows - c->attr->pad[0], col = i % cols - c->attr->pad[1];
        bool inside = row >= 0 && row < h && col >= 0 && col < w;
        int64_t plane = i / (rows * cols);
        c->out[i] = inside ? c->in[0][(plane * h + row) * w + col] : (float)c->attr->value;
    }
}

/* The row that index number `i` selects; -1, with the call's status set, if there is no such row. */
static int64_t read_row(const struct layer_call *c, int64_t i, int64_t rows) {
    const void *numbers = c->in[1];
    bool is_wide = c->layer->in[1]->dtype == SOL_I64;
    int64_t row = is_wide ? ((const int64_t *)numbers)[i] : ((const int32_t *)numbers)[i];
    if (row >= -rows && row < rows) return row < 0 ? row + rows : row;
    *c->status = fail(SOL_EINVAL, "gather: number %lld, but there are %lld rows", (long long)row,
                      (long long)rows);
    return -1;
}

static void eval_gather(const struct layer_call *c) {
    struct shape xs = get_in_shape(c, 0), ns = get_in_shape(c, 1);
    int axis = (int)wrap_axis(c->attr->axis, xs.rank);
    int64_t rows = xs.dim[axis], inner = xs.stride[axis];
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t outer = i / inner / ns.n, row = read_row(c, i / inner % ns.n, rows);
        if (row < 0) return;
        c->out[i] = c->in[0][(outer * rows + row) * inner + i % inner];
    }
}

/* ---- The table ---- */

static void (*const evals[N_LAYER_KINDS])(const struct layer_call *c) = {
#define LAYER(kind, ...) [LAYER_##kind] = eval_##kind,
#include "ir/layer.def"
#undef LAYER
};

enum sol_status ref_layer(const struct layer *layer, const int64_t *symbols, const float *const *in,
                          float *out) {
    enum sol_status status = SOL_OK;
    struct layer_call call = {.layer = layer,
                              .attr = &layer->attr,
                              .symbols = symbols,
                              .in = in,
                              .out = out,
                              .status = &status};
    call.shape = get_shape(layer->out[0], symbols);
    evals[layer->kind](&call);
    return status;
}

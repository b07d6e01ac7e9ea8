/* The reference of layers that sum products: convolution, linear, matmul; and of batch norm. */
#include "device/ref/eval.h"

#include <math.h>

/* A sum of products: of floats in double, of integers modulo 2^64. */
struct sum {
    double real;
    int64_t whole;
};

static void add_element(struct sum *sum, const struct layer_call *c, int k, int64_t i) {
    if (c->is_real) sum->real += ref_real(c, k, i);
    else sum->whole = REF_WRAP(sum->whole, +, ref_whole(c, k, i));
}

/* Adds the product of element `i` of the first input and element `j` of the second. */
static void add_product(struct sum *sum, const struct layer_call *c, int64_t i, int64_t j) {
    if (c->is_real) sum->real += ref_real(c, 0, i) * ref_real(c, 1, j);
    else sum->whole = REF_WRAP(sum->whole, +, REF_WRAP(ref_whole(c, 0, i), *, ref_whole(c, 1, j)));
}

static void set_sum(const struct layer_call *c, int64_t i, struct sum sum) {
    if (c->is_real) ref_set_real(c, i, sum.real);
    else ref_set_whole(c, i, sum.whole);
}

/* One output of a convolution. The sample's first channel of the group begins at element `x` of the first input, the output channel's
 * filter at element `w` of the second. */
static struct sum convolve_point(const struct layer_call *c, const struct shape *xs,
                                 const struct shape *ws, int64_t x, int64_t w, const int64_t *at) {
    const struct attr *a = c->attr;
    const int rows = xs->rank - 2, columns = xs->rank - 1;
    struct sum sum = {0};
    for (int64_t k = 0; k < ws->dim[1]; k++)
        for (int64_t r = 0; r < ws->dim[rows]; r++)
            for (int64_t s = 0; s < ws->dim[columns]; s++) {
                int64_t i = at[rows] * a->stride[0] - a->pad[0] + r * a->dilation[0];
                int64_t j = at[columns] * a->stride[1] - a->pad[1] + s * a->dilation[1];
                if (i < 0 || i >= xs->dim[rows] || j < 0 || j >= xs->dim[columns]) continue;
                add_product(&sum, c, x + k * xs->stride[1] + i * xs->stride[rows] + j,
                            w + k * ws->stride[1] + r * ws->stride[rows] + s);
            }
    return sum;
}

/* One output of a convolution of volumes: the sum over the planes of the kernel. */
static struct sum convolve_planes(const struct layer_call *c, const struct shape *xs,
                                  const struct shape *ws, int64_t x, int64_t w, const int64_t *at) {
    const int64_t *depth = c->attr->depth;
    struct sum sum = {0};
    for (int64_t q = 0; q < ws->dim[2]; q++) {
        const int64_t plane = at[2] * depth[0] - depth[2] + q * depth[1];
        if (plane < 0 || plane >= xs->dim[2]) continue;
        const struct sum part =
            convolve_point(c, xs, ws, x + plane * xs->stride[2], w + q * ws->stride[2], at);
        sum.real += part.real;
        sum.whole = REF_WRAP(sum.whole, +, part.whole);
    }
    return sum;
}

void ref_eval_conv(const struct layer_call *c) {
    struct shape xs = ref_get_shape(c, 0), ws = ref_get_shape(c, 1);
    int64_t at[SOL_MAX_RANK] = {0}, k_per_group = ws.dim[0] / c->attr->groups;
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t k = at[1], group = k / k_per_group;
        int64_t x = at[0] * xs.stride[0] + group * ws.dim[1] * xs.stride[1];
        struct sum sum =
            (xs.rank == 5 ? convolve_planes : convolve_point)(c, &xs, &ws, x, k * ws.stride[0], at);
        if (c->layer->n_in > 2) add_element(&sum, c, 2, k);
        set_sum(c, i, sum);
        ref_step_point(&c->shape, at);
    }
}

void ref_eval_linear(const struct layer_call *c) {
    struct shape ws = ref_get_shape(c, 1);
    int64_t n_k = ws.dim[0], n_c = ws.dim[1];
    for (int64_t i = 0; i < c->shape.n; i++) {
        struct sum sum = {0};
        if (c->layer->n_in > 2) add_element(&sum, c, 2, i % n_k);
        for (int64_t j = 0; j < n_c; j++)
            add_product(&sum, c, i / n_k * n_c + j, i % n_k * n_c + j);
        set_sum(c, i, sum);
    }
}

/* ---- The gradient of a weight ---- */

/* The point of dim d of x that tap `tap` of the kernel reads at point `at` of dim d of dy; -1: outside of x. */
static int64_t find_tap(const struct attr *a, const struct shape *xs, int d, int64_t at,
                        int64_t tap) {
    const int axis = d - (xs->rank - 2);
    const int64_t stride = axis < 0 ? a->depth[0] : a->stride[axis],
                  dilation = axis < 0 ? a->depth[1] : a->dilation[axis],
                  pad = axis < 0 ? a->depth[2] : a->pad[axis],
                  found = at * stride + tap * dilation - pad;
    return found < xs->dim[d] ? found : -1;
}

/* Point `at` of the weight, whose channel of x is `channel`: the sum over all points of channel at[0] of dy. */
static double sum_gradient(const struct layer_call *c, const int64_t *at, int64_t channel) {
    const struct shape xs = ref_get_shape(c, 0), ys = ref_get_shape(c, 1);
    const int64_t pixels = ys.stride[1];
    double sum = 0;
    for (int64_t i = 0; i < ys.dim[0] * pixels; i++) {
        const int64_t n = i / pixels;
        int64_t x = n * xs.stride[0] + channel * xs.stride[1];
        bool is_inside = true;
        for (int d = 2; d < xs.rank; d++) {
            const int64_t found =
                find_tap(c->attr, &xs, d, i % pixels / ys.stride[d] % ys.dim[d], at[d]);
            is_inside &= found >= 0;
            x += found * xs.stride[d];
        }
        if (is_inside)
            sum += ref_real(c, 0, x) *
                   ref_real(c, 1, n * ys.stride[0] + at[0] * ys.stride[1] + i % pixels);
    }
    return sum;
}

void ref_eval_conv_weight(const struct layer_call *c) {
    const struct shape ys = ref_get_shape(c, 1);
    const int64_t k_per_group = ys.dim[1] / c->attr->groups;
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        ref_set_real(c, i, sum_gradient(c, at, at[0] / k_per_group * c->shape.dim[1] + at[1]));
        ref_step_point(&c->shape, at);
    }
}

/* ---- Quantized products ---- */

/* Element `i` of the output, of channel k, from its integer sum modulo 2^32. */
static void set_quantized(const struct layer_call *c, int64_t i, int64_t k, int64_t sum) {
    const float whole = (float)(int32_t)(uint32_t)sum;
    double f = (double)((float)(whole * (float)ref_real(c, 3, k)) + (float)ref_real(c, 4, k));
    if (c->layer->n_in > 5)
        f = fmin(fmax(nearbyint(f) + ref_real(c, 5, 0), ref_real(c, 5, 1)), ref_real(c, 5, 2));
    ref_set_real(c, i, f);
}

void ref_eval_quant_conv(const struct layer_call *c) {
    const struct attr *a = c->attr;
    struct shape xs = ref_get_shape(c, 0), ws = ref_get_shape(c, 1);
    int64_t at[SOL_MAX_RANK] = {0}, k_per_group = ws.dim[0] / a->groups;
    const int64_t n_taps = ws.stride[0], zero = ref_whole(c, 2, 0);
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t sum = 0, x = at[0] * xs.stride[0] + at[1] / k_per_group * ws.dim[1] * xs.stride[1];
        for (int64_t tap = 0; tap < n_taps; tap++) {
            int64_t s = tap % ws.dim[3], r = tap / ws.dim[3] % ws.dim[2];
            int64_t row = at[2] * a->stride[0] - a->pad[0] + r * a->dilation[0];
            int64_t column = at[3] * a->stride[1] - a->pad[1] + s * a->dilation[1];
            if (row < 0 || row >= xs.dim[2] || column < 0 || column >= xs.dim[3]) continue;
            int64_t from = x + tap / ws.stride[1] * xs.stride[1] + row * xs.stride[2] + column;
            sum += (ref_whole(c, 0, from) - zero) * ref_whole(c, 1, at[1] * n_taps + tap);
        }
        set_quantized(c, i, at[1], sum);
        ref_step_point(&c->shape, at);
    }
}

void ref_eval_quant_linear(const struct layer_call *c) {
    struct shape ws = ref_get_shape(c, 1);
    int64_t n_k = ws.dim[0], n_c = ws.dim[1], zero = ref_whole(c, 2, 0);
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t sum = 0;
        for (int64_t j = 0; j < n_c; j++)
            sum += (ref_whole(c, 0, i / n_k * n_c + j) - zero) * ref_whole(c, 1, i % n_k * n_c + j);
        set_quantized(c, i, i % n_k, sum);
    }
}

/* Output point `at` is the product of row at[rank - 2] of the first matrix and column at[rank - 1] of the second. */
void ref_eval_matmul(const struct layer_call *c) {
    struct shape as = ref_get_shape(c, 0), bs = ref_get_shape(c, 1);
    int rank = c->shape.rank;
    int64_t at[SOL_MAX_RANK] = {0}, n = as.dim[as.rank - 1];
    as.dim[as.rank - 1] = bs.dim[bs.rank - 2] = 1; /* summed over: not part of the broadcast */
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t a = ref_find_broadcast(&as, rank, at), b = ref_find_broadcast(&bs, rank, at);
        struct sum sum = {0};
        for (int64_t j = 0; j < n; j++) add_product(&sum, c, a + j, b + j * bs.stride[bs.rank - 2]);
        set_sum(c, i, sum);
        ref_step_point(&c->shape, at);
    }
}

/* `v` has x, mean, variance, weight and bias of one point. */
static double normalize(const double v[5], double eps) {
    return (v[0] - v[1]) * (v[3] / sqrt(v[2] + eps)) + v[4];
}
static float normalize_single(const double v[5], float eps) {
    float scale = (float)v[3] / sqrtf((float)v[2] + eps);
    return ((float)v[0] - (float)v[1]) * scale + (float)v[4];
}

void ref_eval_batch_norm(const struct layer_call *c) {
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        double v[5] = {ref_real(c, 0, i)}, eps = c->attr->eps;
        for (int k = 1; k < 5; k++) v[k] = ref_real(c, k, at[1]);
        bool is_double = c->type == SOL_F64;
        ref_set_real(c, i, is_double ? normalize(v, eps) : (double)normalize_single(v, (float)eps));
        ref_step_point(&c->shape, at);
    }
}

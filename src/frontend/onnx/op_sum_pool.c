/*
 * Pooling by sums: LpPool, and averages with dilation, which the layer avg_pool does not have.
 *
 * A sum over a window is a convolution with ones. It runs over each channel alone: [n, c, h, w] becomes [n * c, 1, h, w]. With three
 * spatial dims it runs first over rows and columns, then over depth.
 */
#include "window.h"

#include <math.h>
#include <string.h>

/* Makes the padding at the end wider (ceil_mode), so that windows that are only partly inside count, too. The last window must begin
 * inside the input or the padding before it. Returns the number of windows. */
static int64_t count_windows(struct op_call *c, struct op_window *w, int i, int64_t in) {
    const int64_t reach = (w->kernel[i] - 1) * w->dilation[i] + 1, stride = w->stride[i],
                  free = in + w->begin[i] + w->end[i] - reach;
    if (free < 0) call_fail(c, fail(SOL_EINVAL, "a window larger than the input"));
    int64_t n = free / stride + 1;
    if (!call_int(c, "ceil_mode", 0)) return n;
    if (free % stride && n * stride < in + w->begin[i]) n++;
    w->end[i] = max_i64(w->end[i], (n - 1) * stride + reach - in - w->begin[i]);
    return n;
}

/* The number of positions of window `o` that are inside the input, or with `padded` inside the file's padding, too. */
static int64_t count_taps(const struct op_window *w, int i, int64_t o, int64_t in, bool padded) {
    int64_t n = 0;
    for (int64_t k = 0; k < w->kernel[i]; k++) {
        const int64_t at = o * w->stride[i] + k * w->dilation[i] - w->begin[i];
        n += at >= (padded ? -w->begin[i] : 0) && at < in + (padded ? w->end[i] : 0);
    }
    return n;
}

/* Sums over the last two dims of the window in x [m, h, w]. */
static sol_tensor sum_plane(struct op_call *c, sol_tensor x, const struct op_window *w) {
    const struct size one[4] = {size_const(1), size_const(1), size_const(w->kernel[1]),
                                size_const(w->kernel[2])};
    struct size dim[SOL_MAX_RANK];
    if (call_shape(c, x, dim) != 3) return x;
    x = call_reshape(c, x, 4, (struct size[]){dim[0], size_const(1), dim[1], dim[2]});
    sol_tensor ones = call_expand(c, call_scalar_of(c, 1, call_dtype(c, x)), 4, one);
    x = window_conv(c, (sol_tensor[]){x, ones, -1}, w, 1);
    if (call_shape(c, x, dim) != 4) return x;
    return call_reshape(c, x, 3, (struct size[]){dim[0], dim[2], dim[3]});
}

/* x [n, c, in..] becomes [n, c, out..]. */
static sol_tensor sum_windows(struct op_call *c, sol_tensor x, const struct op_window *w,
                              const int64_t *in, const int64_t *out) {
    const struct size batch = c->in[0]->dim[0], channels = c->in[0]->dim[1],
                      all = size_mul(batch, channels);
    struct op_window deep = *w;
    x = call_reshape(c, x, 3,
                     (struct size[]){size_scale(all, in[0]), size_const(in[1]), size_const(in[2])});
    x = sum_plane(c, x, w);
    if (w->n == 3) {
        for (int i = 1; i < WINDOW_DIMS; i++) {
            const bool is_depth = i == 1;
            deep.kernel[i] = is_depth ? w->kernel[0] : 1;
            deep.stride[i] = is_depth ? w->stride[0] : 1;
            deep.dilation[i] = is_depth ? w->dilation[0] : 1;
            deep.begin[i] = is_depth ? w->begin[0] : 0;
            deep.end[i] = is_depth ? w->end[0] : 0;
        }
        x = call_reshape(c, x, 3,
                         (struct size[]){all, size_const(in[0]), size_const(out[1] * out[2])});
        x = sum_plane(c, x, &deep);
    }
    struct size dim[5] = {batch, channels};
    for (int i = 0; i < w->n; i++) dim[2 + i] = size_const(out[WINDOW_DIMS - w->n + i]);
    return call_reshape(c, x, 2 + w->n, dim);
}

/* The divisor of each window of an average: [1, 1, out..]. */
static sol_tensor divisors(struct op_call *c, const struct op_window *given, const int64_t *in,
                           const int64_t *out) {
    const bool padded = call_int(c, "count_include_pad", 0) != 0;
    const int64_t n = out[0] * out[1] * out[2];
    float *count = ARENA_ARRAY(c->im->arena, float, n);
    int64_t dim[5] = {1, 1};
    for (int64_t i = 0; i < n; i++) {
        const int64_t at[WINDOW_DIMS] = {i / out[2] / out[1], i / out[2] % out[1], i % out[2]};
        count[i] = 1;
        for (int d = 0; d < WINDOW_DIMS; d++)
            count[i] *= (float)count_taps(given, d, at[d], in[d], padded);
    }
    for (int i = 0; i < given->n; i++) dim[2 + i] = out[WINDOW_DIMS - given->n + i];
    return call_param(c, SOL_F32, 2 + given->n, dim, count);
}

/* |x|^p, or the root of a sum of them. */
static sol_tensor raise(struct op_call *c, sol_tensor x, double p, bool is_root) {
    if (p == 1) return x;
    if (p == 2) return LAYER1(c, is_root ? "sqrt" : "square", x, "");
    return LAYER2(c, "pow", x, call_scalar_of(c, is_root ? 1 / p : p, call_dtype(c, x)), "");
}

/* LpPool, and AveragePool with dilation. */
enum sol_status op_sum_pool(struct op_call *c) {
    const bool is_norm = !strcmp(c->op->name, "LpPool");
    const double p = is_norm ? (double)call_int(c, "p", 2) : 1;
    int64_t in[WINDOW_DIMS] = {1, 1, 1}, out[WINDOW_DIMS] = {1, 1, 1};
    struct op_window given, w;
    window_init(c, &given);
    if (!call_attribute(c, "kernel_shape")) return fail(SOL_EINVAL, "kernel_shape is missing");
    window_list(c, "kernel_shape", &given, 1, given.kernel);
    window_read(c, &given);
    TRY(window_check_pads(&given));
    if (p < 1) return fail(SOL_EINVAL, "p is %g", p);
    w = given;
    for (int i = WINDOW_DIMS - w.n; i < WINDOW_DIMS; i++) {
        in[i] = call_dim(c, 0, i - WINDOW_DIMS + w.n + 2);
        out[i] = count_windows(c, &w, i, in[i]);
    }
    if (c->im->status) return c->im->status;
    const enum sol_dtype own = c->in[0]->dtype, dtype = own == SOL_F64 ? SOL_F64 : SOL_F32;
    sol_tensor x = call_cast(c, call_tensor(c, 0), dtype);
    if (is_norm) x = raise(c, LAYER1(c, "abs", x, ""), p, false);
    x = sum_windows(c, x, &w, in, out);
    if (is_norm) x = raise(c, x, p, true);
    else x = LAYER2(c, "div", x, call_cast(c, divisors(c, &given, in, out), dtype), "");
    return call_set_output(c, 0, call_cast(c, x, own));
}

/*
 * ConvTranspose: its padding, as that of a conv_transpose layer. The layer supports images only: one spatial dim becomes an image of one
 * row, three become several images.
 */
#include "window.h"

#include <string.h>

/* Sets the padding for output_shape, or for auto_pad SAME, whose result is the input's size times the stride. A larger result is
 * cropped by the padding; a smaller one gets zeros at the end. */
static void pad_to_shape(struct op_call *c, struct op_window *w, const int64_t more[WINDOW_DIMS]) {
    const char *mode = call_string(c, "auto_pad");
    int64_t wanted[WINDOW_DIMS] = {0};
    bool is_same = !strncmp(mode, "SAME_", 5), is_upper = !strcmp(mode, "SAME_UPPER");
    window_list(c, "output_shape", w, 1, wanted);
    for (int i = WINDOW_DIMS - w->n; i < WINDOW_DIMS; i++) {
        int64_t in = call_dim(c, 0, i - WINDOW_DIMS + w->n + 2);
        if (!wanted[i] && is_same) wanted[i] = in * w->stride[i];
        if (!wanted[i]) continue;
        int64_t reach = (w->kernel[i] - 1) * w->dilation[i] + 1;
        int64_t all = w->stride[i] * (in - 1) + more[i] + reach - wanted[i];
        w->begin[i] = all < 0 ? 0 : is_upper ? all / 2 : all - all / 2;
        w->end[i] = all - w->begin[i];
    }
}

static enum sol_status read_attributes(struct op_call *c, struct op_window *w,
                                       int64_t more[WINDOW_DIMS]) {
    window_init(c, w);
    window_kernel(c, w);
    window_read(c, w);
    window_list(c, "output_padding", w, 0, more);
    pad_to_shape(c, w, more);
    for (int i = 0; i < WINDOW_DIMS; i++) { /* zeros at the end that output_shape asks for */
        more[i] += max_i64(0, -w->end[i]);
        w->end[i] = max_i64(0, w->end[i]);
    }
    return c->im->status;
}

/* Over rows and columns. in: x [n,c,h,w], weight, and bias or -1. */
static sol_tensor deconv(struct op_call *c, const sol_tensor in[3], const struct op_window *w,
                         const int64_t more[WINDOW_DIMS]) {
    return call_layer(c, "conv_transpose", 2 + (in[2] >= 0), in,
                      "stride=%s dilation=%s pad=%s output_pad=%s groups=%lld",
                      window_pair(c, w->stride), window_pair(c, w->dilation), window_pads(c, w),
                      window_pair(c, more), (long long)call_int(c, "group", 1));
}

/* ---- Three dims ---- */

/* Puts x [n,k,depth,h,w] at every `stride`-th place of a depth of `full`, from `first` on; zeros elsewhere. */
static sol_tensor spread_depth(struct op_call *c, sol_tensor x, int64_t stride, int64_t first,
                               int64_t full) {
    struct size dim[SOL_MAX_RANK];
    if (call_shape(c, x, dim) != 5) return x;
    const int64_t depth = size_value(dim[2]), used = (depth - 1) * stride + 1;
    struct size four[4] = {size_mul(dim[0], dim[1]), dim[2], size_const(1),
                           size_mul(dim[3], dim[4])};
    x = call_reshape(c, x, 4, four);
    x = LAYER1(c, "pad", x, "pad=[0,0,%lld,0]", (long long)(stride - 1));
    four[1] = size_const(1);
    four[2] = size_const(depth * stride);
    x = LAYER1(c, "slice", call_reshape(c, x, 4, four), "axis=2 shape=[%lld]", (long long)used);
    x = LAYER1(c, "pad", x, "pad=[%lld,0,%lld,0]", (long long)first,
               (long long)(full - first - used));
    dim[2] = size_const(full);
    return call_reshape(c, x, 5, dim);
}

/* Images of all depths become one batch, and the taps along the depth further channels: y [n * depth, k * taps, h, w]. Then the
 * results of each tap are added at the places that it writes. */
static sol_tensor deconv_volume(struct op_call *c, const sol_tensor in[3],
                                const struct op_window *w, const int64_t more[WINDOW_DIMS]) {
    struct size dim[SOL_MAX_RANK], weight[SOL_MAX_RANK], out[SOL_MAX_RANK];
    if (call_shape(c, in[0], dim) != 5 || call_shape(c, in[1], weight) != 5) return -1;
    const int64_t depth = call_dim(c, 0, 2), taps = w->kernel[0];
    const int64_t reach = (depth - 1) * w->stride[0] + (taps - 1) * w->dilation[0] + 1;
    const int64_t full = reach + more[0], kept = full - w->begin[0] - w->end[0];
    if (depth < 1 || kept < 1) call_fail(c, fail(SOL_EINVAL, "%lld values", (long long)kept));
    if (c->im->status) return -1;
    sol_tensor flat = call_permute(c, in[0], 5, (int64_t[]){0, 2, 1, 3, 4}), sum = -1;
    flat = call_reshape(c, flat, 4,
                        (struct size[]){size_scale(dim[0], depth), dim[1], dim[3], dim[4]});
    sol_tensor two[3] = {flat, -1, -1};
    two[1] = call_reshape(
        c, in[1], 4, (struct size[]){weight[0], size_scale(weight[1], taps), weight[3], weight[4]});
    sol_tensor y = deconv(c, two, w, more);
    if (call_shape(c, y, out) != 4) return -1;
    const struct size k = size_const(size_value(out[1]) / taps);
    y = call_reshape(c, y, 6, (struct size[]){dim[0], dim[2], k, size_const(taps), out[2], out[3]});
    for (int64_t t = 0; t < taps && !c->im->status; t++) {
        sol_tensor tap = LAYER1(c, "slice", y, "axis=3 start=%lld shape=[1]", (long long)t);
        tap = call_reshape(c, tap, 5, (struct size[]){dim[0], dim[2], k, out[2], out[3]});
        tap = call_permute(c, tap, 5, (int64_t[]){0, 2, 1, 3, 4});
        tap = spread_depth(c, tap, w->stride[0], t * w->dilation[0], full);
        sum = t ? LAYER2(c, "add", sum, tap, "") : tap;
    }
    sum = LAYER1(c, "slice", sum, "axis=2 start=%lld shape=[%lld]", (long long)w->begin[0],
                 (long long)kept);
    if (in[2] < 0) return sum;
    struct size bias[4] = {k, size_const(1), size_const(1), size_const(1)};
    return LAYER2(c, "add", sum, call_reshape(c, in[2], 4, bias), "");
}

enum sol_status op_deconv(struct op_call *c) {
    struct op_window w;
    int64_t more[WINDOW_DIMS] = {0};
    TRY(read_attributes(c, &w, more));
    sol_tensor in[3] = {call_tensor(c, 0), call_tensor(c, 1), -1};
    if (call_has(c, 2)) in[2] = call_tensor(c, 2);
    if (w.n == 3) return call_set_output(c, 0, deconv_volume(c, in, &w, more));
    for (int i = 0; i < 2; i++) in[i] = window_rows(c, in[i], &w);
    return call_set_output(c, 0, window_no_rows(c, deconv(c, in, &w, more), &w));
}

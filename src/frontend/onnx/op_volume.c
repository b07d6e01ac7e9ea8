/*
 * Windows over three dims, composed of windows over two, since layers have no others.
 *
 * Pooling runs first over rows and columns, then over depth. This is exact for maxima, and for averages, too, since the number of
 * values in a window is a product over the dims. A convolution becomes one over rows and columns with more channels: for each
 * depth of the result, the images that its window covers are stacked as channels.
 */
#include "window.h"

#include <math.h>
#include <string.h>

/* ---- Pooling ---- */

sol_tensor volume_pool(struct op_call *c, sol_tensor x, const struct op_window *w) {
    struct size dim[SOL_MAX_RANK];
    struct op_window deep = *w;
    if (call_shape(c, x, dim) != 5) return x;
    sol_tensor y = window_pool(
        c, call_reshape(c, x, 4, (struct size[]){dim[0], size_mul(dim[1], dim[2]), dim[3], dim[4]}),
        w);
    struct size depth = dim[2];
    if (call_shape(c, y, dim) != 4) return y;
    struct size rows = dim[2], columns = dim[3], channels = c->in[0]->dim[1];
    /* [n, c, depth, pixels]: the window moves over depth. */
    y = call_reshape(c, y, 4, (struct size[]){dim[0], channels, depth, size_mul(rows, columns)});
    deep.kernel[1] = w->kernel[0], deep.stride[1] = w->stride[0], deep.dilation[1] = w->dilation[0];
    deep.begin[1] = w->begin[0], deep.end[1] = w->end[0];
    deep.kernel[2] = deep.stride[2] = deep.dilation[2] = 1;
    deep.begin[2] = deep.end[2] = 0;
    y = window_pool(c, y, &deep);
    call_shape(c, y, dim);
    return call_reshape(c, y, 5, (struct size[]){dim[0], channels, dim[2], rows, columns});
}

/* ---- Convolution ---- */

/* Pads dim 2 of [n, c, d, h, w] with zeros. */
static sol_tensor pad_depth(struct op_call *c, sol_tensor x, const struct op_window *w) {
    struct size dim[SOL_MAX_RANK];
    if (!w->begin[0] && !w->end[0]) return x;
    if (call_shape(c, x, dim) != 5) return x;
    struct size pixels = size_mul(dim[3], dim[4]),
                depth = size_add(dim[2], size_const(w->begin[0] + w->end[0]));
    x = call_reshape(c, x, 4, (struct size[]){dim[0], dim[1], dim[2], pixels});
    x = LAYER1(c, "pad", x, "pad=[%lld,0,%lld,0]", (long long)w->begin[0], (long long)w->end[0]);
    return call_reshape(c, x, 5, (struct size[]){dim[0], dim[1], depth, dim[3], dim[4]});
}

/* Makes [n * windows, groups * taps * channels per group, h, w] of [n, c, depth, h, w]. */
static sol_tensor stack_taps(struct op_call *c, sol_tensor x, const struct op_window *w,
                             int64_t groups, int64_t windows) {
    struct size dim[SOL_MAX_RANK];
    if (call_shape(c, x, dim) != 5) return x;
    sol_tensor *tap = ARENA_ARRAY(c->im->arena, sol_tensor, w->kernel[0]);
    int64_t channels = size_value(dim[1]) / groups;
    const struct size seven[7] = {dim[0],
                                  size_const(groups),
                                  size_const(1),
                                  size_const(channels),
                                  size_const(windows),
                                  dim[3],
                                  dim[4]};
    for (int64_t i = 0; i < w->kernel[0]; i++) {
        tap[i] =
            LAYER1(c, "slice", x, "axis=2 start=%lld step=%lld shape=[%lld]",
                   (long long)(i * w->dilation[0]), (long long)w->stride[0], (long long)windows);
        tap[i] = call_reshape(c, tap[i], 7, seven);
    }
    x = call_layer(c, "concat", (int)w->kernel[0], tap, "axis=2");
    x = call_permute(c, x, 7, (int64_t[]){0, 4, 1, 2, 3, 5, 6});
    return call_reshape(c, x, 4,
                        (struct size[]){size_scale(dim[0], windows),
                                        size_const(size_value(dim[1]) * w->kernel[0]), dim[3],
                                        dim[4]});
}

/* Makes [k, taps * channels, rows, columns] of [k, channels, taps, rows, columns]. */
static sol_tensor stack_weight(struct op_call *c, sol_tensor weight) {
    struct size dim[SOL_MAX_RANK];
    if (call_shape(c, weight, dim) != 5) return weight;
    weight = call_permute(c, weight, 5, (int64_t[]){0, 2, 1, 3, 4});
    return call_reshape(c, weight, 4,
                        (struct size[]){dim[0], size_mul(dim[1], dim[2]), dim[3], dim[4]});
}

sol_tensor volume_conv(struct op_call *c, const sol_tensor in[3], const struct op_window *w,
                       int64_t groups) {
    struct size dim[SOL_MAX_RANK];
    int64_t depth = call_dim(c, 0, 2) + w->begin[0] + w->end[0],
            reach = (w->kernel[0] - 1) * w->dilation[0] + 1;
    int64_t windows = (depth - reach) / w->stride[0] + 1, channels = call_dim(c, 0, 1);
    if (depth < reach || groups < 1 || channels % groups || w->kernel[0] > INT16_MAX)
        call_fail(c,
                  fail(SOL_EINVAL, "a window over %lld of %lld, %lld groups of %lld channels",
                       (long long)reach, (long long)depth, (long long)groups, (long long)channels));
    if (c->im->status) return -1;
    sol_tensor x = stack_taps(c, pad_depth(c, in[0], w), w, groups, windows);
    sol_tensor two[3] = {x, stack_weight(c, in[1]), in[2]}, y = window_conv(c, two, w, groups);
    if (call_shape(c, y, dim) != 4) return y;
    struct size batch = c->in[0]->dim[0], deep = size_const(windows);
    y = call_reshape(c, y, 5, (struct size[]){batch, deep, dim[1], dim[2], dim[3]});
    return call_permute(c, y, 5, (int64_t[]){0, 2, 1, 3, 4});
}

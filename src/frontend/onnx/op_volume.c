/*
 * Windows over three dims, composed of windows over two, since layers have no others.
 *
 * Pooling runs first over rows and columns, then over depth. This is exact for maxima, and for averages, too, since the number of
 * values in a window is a product over the dims. The layer conv knows volumes.
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

sol_tensor volume_conv(struct op_call *c, const sol_tensor in[3], const struct op_window *w,
                       int64_t groups) {
    return call_layer(c, "conv", 2 + (in[2] >= 0), in,
                      "stride=%s dilation=%s pad=%s depth=[%lld,%lld,%lld,%lld] groups=%lld",
                      window_pair(c, w->stride), window_pair(c, w->dilation), window_pads(c, w),
                      (long long)w->stride[0], (long long)w->dilation[0], (long long)w->begin[0],
                      (long long)w->end[0], (long long)groups);
}

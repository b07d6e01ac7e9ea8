/*
 * ConvTranspose as a convolution: stride - 1 zeros are inserted between the pixels of x, and the weight is rotated by 180 degrees.
 */
#include "window.h"

#include <string.h>

/* Inserts `stride` - 1 zeros after each value of dim `d` of [n, c, h, w]. */
static sol_tensor stretch(struct op_call *c, sol_tensor x, int d, int64_t stride) {
    struct size dim[SOL_MAX_RANK], rest = size_const(1);
    if (stride == 1 || call_shape(c, x, dim) != 4) return x;
    for (int i = d + 1; i < 4; i++) rest = size_mul(rest, dim[i]);
    /* Reshape so that each value (or row of values) is a row of its own, and append rows of zeros. */
    struct size lines = size_mul(dim[1], d == 2 ? dim[2] : size_mul(dim[2], dim[3]));
    x = call_reshape(c, x, 4, (struct size[]){dim[0], lines, size_const(1), rest});
    x = LAYER1(c, "pad", x, "pad=[0,0,%lld,0]", (long long)(stride - 1));
    dim[d] = size_scale(dim[d], stride);
    return call_reshape(c, x, 4, dim);
}

/* A pad below 0 removes values; *begin and *end become 0 then. */
static sol_tensor crop(struct op_call *c, sol_tensor x, int d, int64_t *begin, int64_t *end) {
    struct size dim[SOL_MAX_RANK];
    int64_t from = max_i64(0, -*begin), to = max_i64(0, -*end);
    *begin = max_i64(0, *begin), *end = max_i64(0, *end);
    if ((!from && !to) || call_shape(c, x, dim) != 4) return x;
    int64_t n = size_value(dim[d]) - from - to;
    if (n < 1) call_fail(c, fail(SOL_EINVAL, "pads leave nothing of dim %d", d));
    return LAYER1(c, "slice", x, "axis=%d start=%lld step=1 shape=[%lld]", d, (long long)from,
                  (long long)n);
}

/* Reverses dim `d`, which has `n` values. */
static sol_tensor reverse(struct op_call *c, sol_tensor x, int d, int64_t n) {
    int64_t *index = ARENA_ARRAY(c->im->arena, int64_t, n);
    for (int64_t i = 0; i < n; i++) index[i] = n - 1 - i;
    return n > 1 ? call_pick(c, x, d, n, index) : x;
}

/* Makes [groups * k, c, h, w] of [groups * c, k, h, w], and rotates each image by 180 degrees. */
static sol_tensor turn_weight(struct op_call *c, sol_tensor x, int64_t groups,
                              const struct op_window *w) {
    struct size dim[SOL_MAX_RANK];
    x = reverse(c, reverse(c, x, 2, w->kernel[1]), 3, w->kernel[2]);
    if (call_shape(c, x, dim) != 4) return x;
    struct size k = dim[1], channels = size_const(size_value(dim[0]) / groups);
    x = call_reshape(c, x, 5, (struct size[]){size_const(groups), channels, k, dim[2], dim[3]});
    x = call_permute(c, x, 5, (int64_t[]){0, 2, 1, 3, 4});
    return call_reshape(c, x, 4, (struct size[]){size_scale(k, groups), channels, dim[2], dim[3]});
}

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
    if (c->im->status) return c->im->status;
    if (w->n == 3) return fail(SOL_EUNSUPPORTED, "a window over 3 dims");
    return SOL_OK;
}

/*
 * Each pixel of x adds its window to the result at position * stride. So each value of the result is a convolution of x, with zeros
 * inserted, with the rotated window. Its padding is (kernel - 1) * dilation minus the node's pads, which crop the result. The
 * stretched x ends with stride - 1 zeros too many, so they are subtracted from the padding at the end.
 */
enum sol_status op_deconv(struct op_call *c) {
    struct op_window w;
    int64_t more[WINDOW_DIMS] = {0}, groups = call_int(c, "group", 1);
    TRY(read_attributes(c, &w, more));
    int64_t channels = call_dim(c, 0, 1);
    if (groups < 1 || channels % groups || channels != call_dim(c, 1, 0))
        return fail(SOL_EINVAL, "%lld groups, %lld channels, a weight for %lld", (long long)groups,
                    (long long)channels, (long long)call_dim(c, 1, 0));
    sol_tensor in[3] = {window_rows(c, call_tensor(c, 0), &w), -1, -1};
    for (int i = 1; i < WINDOW_DIMS; i++) {
        int64_t reach = (w.kernel[i] - 1) * w.dilation[i];
        in[0] = stretch(c, in[0], i + 1, w.stride[i]);
        w.begin[i] = reach - w.begin[i];
        w.end[i] = reach - w.end[i] + more[i] - (w.stride[i] - 1);
        in[0] = crop(c, in[0], i + 1, &w.begin[i], &w.end[i]);
        w.stride[i] = 1;
    }
    in[1] = turn_weight(c, window_rows(c, call_tensor(c, 1), &w), groups, &w);
    if (call_has(c, 2)) in[2] = call_tensor(c, 2);
    return call_set_output(c, 0, window_no_rows(c, window_conv(c, in, &w, groups), &w));
}

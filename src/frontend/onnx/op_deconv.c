/* ConvTranspose: its padding, as that of a conv_transpose layer. */
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
    if (c->im->status) return c->im->status;
    if (w->n == 3) return fail(SOL_EUNSUPPORTED, "a window over 3 dims");
    return SOL_OK;
}

enum sol_status op_deconv(struct op_call *c) {
    struct op_window w;
    int64_t more[WINDOW_DIMS] = {0}, groups = call_int(c, "group", 1);
    TRY(read_attributes(c, &w, more));
    sol_tensor in[3] = {window_rows(c, call_tensor(c, 0), &w),
                        window_rows(c, call_tensor(c, 1), &w), -1};
    if (call_has(c, 2)) in[2] = call_tensor(c, 2);
    for (int i = 0; i < WINDOW_DIMS; i++) { /* zeros at the end that output_shape asks for */
        more[i] += max_i64(0, -w.end[i]);
        w.end[i] = max_i64(0, w.end[i]);
    }
    sol_tensor y = call_layer(c, "conv_transpose", 2 + call_has(c, 2), in,
                              "stride=%s dilation=%s pad=%s output_pad=%s groups=%lld",
                              window_pair(c, w.stride), window_pair(c, w.dilation),
                              window_pads(c, &w), window_pair(c, more), (long long)groups);
    return call_set_output(c, 0, window_no_rows(c, y, &w));
}

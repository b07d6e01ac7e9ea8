/* Operators that move a window over rows and columns: convolution, pooling, LRN. With one dim they are images of one row. */
#include "import.h"

#include <math.h>
#include <string.h>

struct window {
    int64_t kernel[2], stride[2], dilation[2];
    int64_t pad[4]; /* top, left, bottom, right */
};

/* A list of one or two numbers, for columns alone or rows and columns; `otherwise` where it is missing. */
static void read_pair(struct call *c, const char *name, int n, int64_t otherwise, int64_t out[2]) {
    int64_t list[2] = {0};
    int found = call_ints(c, name, 2, list);
    if (found && found != n)
        call_fail(c, fail(SOL_EINVAL, "%s has %d values for %d dims", name, found, n));
    for (int i = 0; i < 2; i++) {
        bool is_given = found && i >= 2 - n;
        out[i] = is_given ? list[i - (2 - n)] : i >= 2 - n ? otherwise : 1;
        if (out[i] < 1 || out[i] > INT32_MAX) {
            call_fail(c, fail(SOL_EINVAL, "%s is %lld", name, (long long)out[i]));
            out[i] = 1;
        }
    }
}

/* ONNX's SAME: as many windows as strides fit into the input; an odd pad's larger half is at the end with UPPER. */
static void pad_same(struct call *c, int n, bool is_upper, struct window *w) {
    for (int i = 2 - n; i < 2; i++) {
        int64_t in = call_dim(c, 0, i + n), windows = ceil_div(in, w->stride[i]);
        int64_t reach = (w->kernel[i] - 1) * w->dilation[i] + 1;
        int64_t all = max_i64(0, (windows - 1) * w->stride[i] + reach - in);
        w->pad[i] = is_upper ? all / 2 : all - all / 2;
        w->pad[2 + i] = all - w->pad[i];
    }
}

/* Pads of each dim are apart in ONNX: all in front, then all behind. */
static void read_pads(struct call *c, int n, struct window *w) {
    const char *mode = call_string(c, "auto_pad");
    int64_t pads[4] = {0};
    int found = call_ints(c, "pads", 4, pads);
    if (found && found != 2 * n)
        call_fail(c, fail(SOL_EINVAL, "pads has %d values for %d dims", found, n));
    for (int i = 0; i < n; i++) {
        w->pad[2 - n + i] = pads[i];
        w->pad[4 - n + i] = pads[n + i];
    }
    for (int i = 0; i < 4; i++)
        if (w->pad[i] < 0 || w->pad[i] > INT32_MAX) {
            call_fail(c, fail(SOL_EINVAL, "a pad of %lld", (long long)w->pad[i]));
            w->pad[i] = 0;
        }
    if (!strcmp(mode, "SAME_UPPER") || !strcmp(mode, "SAME_LOWER"))
        pad_same(c, n, mode[5] == 'U', w);
    else if (!strcmp(mode, "VALID")) memset(w->pad, 0, sizeof w->pad);
    else if (*mode && strcmp(mode, "NOTSET") != 0)
        call_fail(c, fail(SOL_EINVAL, "auto_pad \"%.32s\"", mode));
}

/* Everything but the kernel, which is set. `n`: dims that the window moves over. */
static void read_window(struct call *c, int n, struct window *w) {
    read_pair(c, "strides", n, 1, w->stride);
    read_pair(c, "dilations", n, 1, w->dilation);
    read_pads(c, n, w);
}

/* Dims that a window moves over: 1 or 2. */
static int count_dims(struct call *c) {
    int n = call_rank(c, 0) - 2;
    if (n == 1 || n == 2) return n;
    call_fail(c, fail(SOL_EUNSUPPORTED, "a window over %d dims", n));
    return 2;
}

/* [n,c,w] as [n,c,1,w]. */
static sol_tensor one_row(struct call *c, sol_tensor x, int n) {
    struct size dim[SOL_MAX_RANK];
    if (n == 2 || call_shape(c, x, dim) != 3) return x;
    return call_reshape(c, x, 4, (struct size[]){dim[0], dim[1], size_const(1), dim[2]});
}

static sol_tensor no_row(struct call *c, sol_tensor y, int n) {
    struct size dim[SOL_MAX_RANK];
    if (n == 2 || call_shape(c, y, dim) != 4) return y;
    return call_reshape(c, y, 3, (struct size[]){dim[0], dim[1], dim[3]});
}

static const char *window_text(struct call *c, const struct window *w) {
    return arena_printf(c->im->arena, "stride=%s dilation=%s pad=%s", call_list(c, 2, w->stride),
                        call_list(c, 2, w->dilation), call_list(c, 4, w->pad));
}

/* The weight's own dims count; kernel_shape may only repeat them. */
static void check_kernel(struct call *c, int n, const struct window *w) {
    int64_t given[2];
    int found = call_ints(c, "kernel_shape", 2, given);
    for (int i = 0; i < found; i++)
        if (found != n || given[i] != w->kernel[2 - n + i])
            call_fail(c, fail(SOL_EINVAL, "kernel_shape %s does not fit the weight",
                              call_list(c, found, given)));
}

enum sol_status op_conv(struct call *c) {
    struct window w = {.kernel = {1, 1}};
    int n = count_dims(c);
    TRY(c->im->status);
    if (call_rank(c, 1) != n + 2)
        return fail(SOL_EINVAL, "a weight of rank %d for an input of rank %d", call_rank(c, 1),
                    n + 2);
    for (int i = 0; i < n; i++) w.kernel[2 - n + i] = call_dim(c, 1, 2 + i);
    check_kernel(c, n, &w);
    read_window(c, n, &w);
    sol_tensor in[3] = {one_row(c, call_tensor(c, 0), n), one_row(c, call_tensor(c, 1), n)};
    if (call_has(c, 2)) in[2] = call_tensor(c, 2);
    sol_tensor y = call_layer(c, "conv", 2 + call_has(c, 2), in, "%s groups=%lld",
                              window_text(c, &w), (long long)call_int(c, "group", 1));
    return call_give(c, 0, no_row(c, y, n));
}

/* SOL's windows are never more than half in the padding; where ONNX's are, the padding becomes a layer of its own. */
static sol_tensor pad_first(struct call *c, sol_tensor x, double value, struct window *w) {
    bool is_wide = false;
    for (int i = 0; i < 4; i++)
        is_wide |= 2 * w->pad[i] > w->dilation[i % 2] * (w->kernel[i % 2] - 1) + 1;
    if (!is_wide) return x;
    x = LAYER1(c, "pad", x, "pad=%s value=%s", call_list(c, 4, w->pad), call_real(c, value));
    memset(w->pad, 0, sizeof w->pad);
    return x;
}

/* MaxPool, AveragePool. */
enum sol_status op_pool(struct call *c) {
    struct window w = {0};
    int n = count_dims(c);
    bool is_max = !strcmp(c->op->layer, "max_pool");
    if (!call_attribute(c, "kernel_shape")) return fail(SOL_EINVAL, "kernel_shape is missing");
    read_pair(c, "kernel_shape", n, 1, w.kernel);
    read_window(c, n, &w);
    if (!is_max && (w.dilation[0] != 1 || w.dilation[1] != 1))
        return fail(SOL_EUNSUPPORTED, "an average with dilation");
    if (call_int(c, "storage_order", 0)) return fail(SOL_EUNSUPPORTED, "storage_order");
    for (int i = 0; i < 4 && !is_max; i++)
        if (w.pad[i] > w.kernel[i % 2] / 2)
            return fail(SOL_EUNSUPPORTED, "an average with a pad of more than half of its window");
    bool counts = call_int(c, "count_include_pad", 0) != 0,
         ceils = call_int(c, "ceil_mode", 0) != 0;
    sol_tensor x = one_row(c, call_tensor(c, 0), n);
    if (is_max || counts) x = pad_first(c, x, is_max ? -INFINITY : 0, &w);
    const char *more = is_max
                           ? arena_printf(c->im->arena, "dilation=%s", call_list(c, 2, w.dilation))
                       : counts ? "count_pad=true"
                                : "";
    sol_tensor y = LAYER1(c, c->op->layer, x, "kernel=%s stride=%s pad=%s ceil=%s %s",
                          call_list(c, 2, w.kernel), call_list(c, 2, w.stride),
                          call_list(c, 4, w.pad), ceils ? "true" : "false", more);
    return call_give(c, 0, no_row(c, y, n));
}

/* Over all dims behind the channels. */
enum sol_status op_global_pool(struct call *c) {
    int64_t axes[SOL_MAX_RANK];
    int n = call_rank(c, 0) - 2;
    if (n < 1) return fail(SOL_EINVAL, "an input of rank %d has no rows", n + 2);
    for (int i = 0; i < n; i++) axes[i] = 2 + i;
    return call_give(
        c, 0,
        LAYER1(c, c->op->layer, call_tensor(c, 0), "axes=%s keepdim=true", call_list(c, n, axes)));
}

/*
 * x / (bias + alpha / size * sum over `size` neighbouring channels of x^2) ^ beta, after ONNX's LRN. The mean over channels is an
 * average window over the rows of [n, 1, channels, pixels]; what lies outside counts as 0. The base is positive.
 */
enum sol_status op_lrn(struct call *c) {
    int64_t size = call_int(c, "size", 0);
    double alpha = call_float(c, "alpha", 1e-4), beta = call_float(c, "beta", 0.75),
           bias = call_float(c, "bias", 1);
    struct size dim[SOL_MAX_RANK];
    sol_tensor x = call_tensor(c, 0);
    int rank = call_shape(c, x, dim);
    if (size < 1 || rank < 3 || !(bias > 0))
        return fail(SOL_EINVAL, "size %lld, bias %g, rank %d", (long long)size, bias, rank);
    int64_t pixels = 1;
    for (int d = 2; d < rank; d++) pixels *= call_dim(c, 0, d);
    sol_tensor flat =
        call_reshape(c, LAYER1(c, "square", x, ""), 4,
                     (struct size[]){dim[0], size_const(1), dim[1], size_const(pixels)});
    sol_tensor mean = LAYER1(c, "avg_pool", flat,
                             "kernel=[%lld,1] stride=[1,1] pad=[%lld,0,%lld,0] count_pad=true",
                             (long long)size, (long long)((size - 1) / 2), (long long)(size / 2));
    sol_tensor base = LAYER2(c, "add",
                             LAYER2(c, "mul", call_reshape(c, mean, rank, dim),
                                    sol_model_scalar(c->im->model, alpha), ""),
                             sol_model_scalar(c->im->model, bias), "");
    sol_tensor power =
        LAYER2(c, "mul", LAYER1(c, "log", base, ""), sol_model_scalar(c->im->model, -beta), "");
    return call_give(c, 0, LAYER2(c, "mul", x, LAYER1(c, "exp", power, ""), ""));
}

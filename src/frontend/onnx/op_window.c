/*
 * Operators with windows: convolution, pooling, LRN. A tensor with one spatial dim becomes an image of one row; op_volume.c has
 * three spatial dims.
 */
#include "window.h"

#include <math.h>
#include <string.h>

/* ---- Attributes of windows ---- */

void window_init(struct op_call *c, struct op_window *w) {
    *w = (struct op_window){
        .n = call_rank(c, 0) - 2, .kernel = {1, 1, 1}, .stride = {1, 1, 1}, .dilation = {1, 1, 1}};
    if (w->n >= 1 && w->n <= WINDOW_DIMS) return;
    call_fail(c, fail(SOL_EUNSUPPORTED, "a window over %d dims", w->n));
    w->n = 2;
}

/* If the attribute is missing, `out` keeps the default that the caller has set. */
void window_list(struct op_call *c, const char *name, const struct op_window *w, int64_t min,
                 int64_t *out) {
    int64_t list[WINDOW_DIMS] = {0};
    int found = call_ints(c, name, WINDOW_DIMS, list);
    if (found && found != w->n)
        call_fail(c, fail(SOL_EINVAL, "%s has %d values for %d dims", name, found, w->n));
    for (int i = 0; i < found && !c->im->status; i++) {
        if (list[i] < min || list[i] > INT32_MAX)
            call_fail(c, fail(SOL_EINVAL, "%s is %lld", name, (long long)list[i]));
        else out[WINDOW_DIMS - w->n + i] = list[i];
    }
}

void window_kernel(struct op_call *c, struct op_window *w) {
    int64_t given[WINDOW_DIMS];
    int found = call_ints(c, "kernel_shape", WINDOW_DIMS, given), first = WINDOW_DIMS - w->n;
    if (call_rank(c, 1) != w->n + 2) {
        call_fail(c, fail(SOL_EINVAL, "a weight of rank %d for an input of rank %d",
                          call_rank(c, 1), w->n + 2));
        return;
    }
    for (int i = 0; i < w->n; i++) w->kernel[first + i] = call_dim(c, 1, 2 + i);
    for (int i = 0; i < found; i++)
        if (found != w->n || given[i] != w->kernel[first + i])
            call_fail(c, fail(SOL_EINVAL, "kernel_shape %s does not fit the weight",
                              call_format_ints(c, found, given)));
}

/* auto_pad SAME: pads so that there are ceil(input / stride) windows. Of an odd padding, the larger half is at the end with
 * UPPER. */
static void pad_same(struct op_call *c, bool is_upper, struct op_window *w) {
    for (int i = WINDOW_DIMS - w->n; i < WINDOW_DIMS; i++) {
        if (w->stride[i] == 1) { /* it does not depend on the size, which may be open */
            const int64_t pads = (w->kernel[i] - 1) * w->dilation[i];
            w->begin[i] = is_upper ? pads / 2 : pads - pads / 2;
            w->end[i] = pads - w->begin[i];
            continue;
        }
        int64_t in = call_dim(c, 0, i - WINDOW_DIMS + w->n + 2),
                windows = ceil_div(in, w->stride[i]);
        int64_t reach = (w->kernel[i] - 1) * w->dilation[i] + 1;
        int64_t all = max_i64(0, (windows - 1) * w->stride[i] + reach - in);
        w->begin[i] = is_upper ? all / 2 : all - all / 2;
        w->end[i] = all - w->begin[i];
    }
}

/* The attribute pads lists all begins, then all ends. auto_pad SAME_* and VALID override it; VALID means no padding. */
static void read_pads(struct op_call *c, struct op_window *w) {
    const char *mode = call_string(c, "auto_pad");
    int64_t pads[2 * WINDOW_DIMS] = {0};
    int found = call_ints(c, "pads", 2 * WINDOW_DIMS, pads), first = WINDOW_DIMS - w->n;
    if (found && found != 2 * w->n)
        call_fail(c, fail(SOL_EINVAL, "pads has %d values for %d dims", found, w->n));
    for (int i = 0; i < found; i++)
        if (pads[i] < 0 || pads[i] > INT32_MAX) {
            call_fail(c, fail(SOL_EINVAL, "a pad of %lld", (long long)pads[i]));
            pads[i] = 0;
        }
    for (int i = 0; i < w->n; i++) {
        w->begin[first + i] = pads[i];
        w->end[first + i] = pads[w->n + i];
    }
    if (!strcmp(mode, "SAME_UPPER") || !strcmp(mode, "SAME_LOWER")) pad_same(c, mode[5] == 'U', w);
    else if (!strcmp(mode, "VALID")) {
        memset(w->begin, 0, sizeof w->begin);
        memset(w->end, 0, sizeof w->end);
    } else if (*mode && strcmp(mode, "NOTSET") != 0) {
        call_fail(c, fail(SOL_EINVAL, "auto_pad \"%.32s\"", mode));
    }
}

void window_read(struct op_call *c, struct op_window *w) {
    window_list(c, "strides", w, 1, w->stride);
    window_list(c, "dilations", w, 1, w->dilation);
    read_pads(c, w);
}

/* ---- Images ---- */

const char *window_pair(struct op_call *c, const int64_t list[WINDOW_DIMS]) {
    return call_format_ints(c, 2, list + WINDOW_DIMS - 2);
}

const char *window_pads(struct op_call *c, const struct op_window *w) {
    return call_format_ints(c, 4, (int64_t[]){w->begin[1], w->begin[2], w->end[1], w->end[2]});
}

sol_tensor window_rows(struct op_call *c, sol_tensor x, const struct op_window *w) {
    struct size dim[SOL_MAX_RANK];
    if (w->n != 1 || call_shape(c, x, dim) != 3) return x;
    return call_reshape(c, x, 4, (struct size[]){dim[0], dim[1], size_const(1), dim[2]});
}

sol_tensor window_no_rows(struct op_call *c, sol_tensor y, const struct op_window *w) {
    struct size dim[SOL_MAX_RANK];
    if (w->n != 1 || call_shape(c, y, dim) != 4) return y;
    return call_reshape(c, y, 3, (struct size[]){dim[0], dim[1], dim[3]});
}

/* ---- Convolution ---- */

sol_tensor window_conv(struct op_call *c, const sol_tensor in[3], const struct op_window *w,
                       int64_t groups) {
    return call_layer(c, "conv", 2 + (in[2] >= 0), in, "stride=%s dilation=%s pad=%s groups=%lld",
                      window_pair(c, w->stride), window_pair(c, w->dilation), window_pads(c, w),
                      (long long)groups);
}

/* The layer supports images only: one spatial dim becomes an image of one row, three become images of more channels. */
sol_tensor window_conv_node(struct op_call *c, sol_tensor in[3]) {
    struct op_window w;
    window_init(c, &w);
    window_kernel(c, &w);
    window_read(c, &w);
    int64_t groups = call_int(c, "group", 1);
    if (w.n == 3) return volume_conv(c, in, &w, groups);
    for (int i = 0; i < 2; i++) in[i] = window_rows(c, in[i], &w);
    return window_no_rows(c, window_conv(c, in, &w, groups), &w);
}

enum sol_status op_conv(struct op_call *c) {
    sol_tensor in[3] = {call_tensor(c, 0), call_tensor(c, 1), -1};
    if (call_has(c, 2)) in[2] = call_tensor(c, 2);
    return call_set_output(c, 0, window_conv_node(c, in));
}

/* ---- Pooling ---- */

/*
 * SOL's pooling allows padding of at most half a window. For more, a pad layer comes first. An average that does not count the
 * padding is then divided by the same average over ones, which is the share of each window that is not padding.
 */
static bool is_wide(const struct op_window *w) {
    for (int i = 1; i < WINDOW_DIMS; i++)
        if (2 * max_i64(w->begin[i], w->end[i]) > w->dilation[i] * (w->kernel[i] - 1) + 1)
            return true;
    return false;
}

static sol_tensor pad_and_pool(struct op_call *c, sol_tensor x, const struct op_window *w) {
    bool is_max = !strcmp(c->op->layer, "max_pool");
    struct op_window inner = *w;
    x = LAYER1(c, "pad", x, "pad=%s value=%s", window_pads(c, w),
               call_format_double(c, is_max ? -INFINITY : 0));
    memset(inner.begin, 0, sizeof inner.begin);
    memset(inner.end, 0, sizeof inner.end);
    return window_pool(c, x, &inner);
}

static sol_tensor pool_wide(struct op_call *c, sol_tensor x, const struct op_window *w) {
    struct size dim[SOL_MAX_RANK];
    bool is_max = !strcmp(c->op->layer, "max_pool");
    sol_tensor y = pad_and_pool(c, x, w);
    if (is_max || call_int(c, "count_include_pad", 0) || call_shape(c, x, dim) != 4) return y;
    dim[0] = dim[1] = size_const(1);
    sol_tensor ones = call_expand(c, call_scalar(c, 1), 4, dim);
    return LAYER2(c, "div", y, pad_and_pool(c, ones, w), "");
}

sol_tensor window_pool(struct op_call *c, sol_tensor x, const struct op_window *w) {
    bool is_max = !strcmp(c->op->layer, "max_pool"), ceils = call_int(c, "ceil_mode", 0) != 0,
         counts = call_int(c, "count_include_pad", 0) != 0;
    if (is_wide(w)) return pool_wide(c, x, w);
    const char *more = is_max
                           ? arena_printf(c->im->arena, "dilation=%s", window_pair(c, w->dilation))
                       : counts ? "count_pad=true"
                                : "";
    return LAYER1(c, c->op->layer, x, "kernel=%s stride=%s pad=%s ceil=%s %s",
                  window_pair(c, w->kernel), window_pair(c, w->stride), window_pads(c, w),
                  ceils ? "true" : "false", more);
}

enum sol_status window_check_pads(const struct op_window *w) {
    for (int i = 0; i < WINDOW_DIMS; i++) {
        int64_t pad = max_i64(w->begin[i], w->end[i]),
                reach = (w->kernel[i] - 1) * w->dilation[i] + 1;
        if (pad && pad >= reach)
            return fail(SOL_EINVAL, "a pad of %lld beside a window of %lld", (long long)pad,
                        (long long)reach);
    }
    return SOL_OK;
}

/* MaxPool, AveragePool. */
enum sol_status op_pool(struct op_call *c) {
    struct op_window w;
    window_init(c, &w);
    if (!call_attribute(c, "kernel_shape")) return fail(SOL_EINVAL, "kernel_shape is missing");
    window_list(c, "kernel_shape", &w, 1, w.kernel);
    window_read(c, &w);
    bool is_dilated = w.dilation[0] != 1 || w.dilation[1] != 1 || w.dilation[2] != 1;
    TRY(window_check_pads(&w));
    if (strcmp(c->op->layer, "max_pool") != 0 && is_dilated) return op_sum_pool(c);
    sol_tensor x = call_tensor(c, 0);
    if (w.n == 3) return call_set_output(c, 0, volume_pool(c, x, &w));
    return call_set_output(c, 0, window_no_rows(c, window_pool(c, window_rows(c, x, &w), &w), &w));
}

/* Over all dims after the channels. */
enum sol_status op_global_pool(struct op_call *c) {
    int64_t axes[SOL_MAX_RANK];
    int n = call_rank(c, 0) - 2;
    if (n < 1) return fail(SOL_EINVAL, "an input of rank %d has no rows", n + 2);
    for (int i = 0; i < n; i++) axes[i] = 2 + i;
    return call_set_output(c, 0,
                           LAYER1(c, c->op->layer, call_tensor(c, 0), "axes=%s keepdim=true",
                                  call_format_ints(c, n, axes)));
}

/*
 * x / (bias + alpha / size * sum over `size` neighbouring channels of x^2) ^ beta. The mean over channels is an average pooling
 * over the rows of [n, 1, channels, pixels], with padding that counts as 0. The power is exp(-beta * log(base)), as the base is
 * positive.
 */
enum sol_status op_lrn(struct op_call *c) {
    int64_t size = call_int(c, "size", 0);
    double alpha = call_float(c, "alpha", 1e-4), beta = call_float(c, "beta", 0.75),
           bias = call_float(c, "bias", 1);
    struct size dim[SOL_MAX_RANK];
    sol_tensor x = call_tensor(c, 0);
    int rank = call_shape(c, x, dim);
    if (size < 1 || rank < 3 || !(bias > 0))
        return fail(SOL_EINVAL, "size %lld, bias %g, rank %d", (long long)size, bias, rank);
    struct size pixels = size_const(1);
    for (int d = 2; d < rank; d++) pixels = size_mul(pixels, dim[d]);
    sol_tensor flat = call_reshape(c, LAYER1(c, "square", x, ""), 4,
                                   (struct size[]){dim[0], size_const(1), dim[1], pixels});
    sol_tensor mean = LAYER1(c, "avg_pool", flat,
                             "kernel=[%lld,1] stride=[1,1] pad=[%lld,0,%lld,0] count_pad=true",
                             (long long)size, (long long)((size - 1) / 2), (long long)(size / 2));
    sol_tensor base = LAYER2(
        c, "add", LAYER2(c, "mul", call_reshape(c, mean, rank, dim), call_scalar(c, alpha), ""),
        call_scalar(c, bias), "");
    sol_tensor power = LAYER2(c, "mul", LAYER1(c, "log", base, ""), call_scalar(c, -beta), "");
    return call_set_output(c, 0, LAYER2(c, "mul", x, LAYER1(c, "exp", power, ""), ""));
}

/* The reference of layers with windows over the last two dims. */
#include "device/ref/eval.h"

#include <math.h>

/* A window of one plane: rows [top, bottom) and columns [left, right). */
struct window {
    int64_t top, left, bottom, right;
};

/* Writes element `i` of the output, point (row, col) of its plane. The plane of the input, of xs->dim[2] rows and xs->dim[3] columns,
 * begins at its element `plane`. */
typedef void window_function(const struct layer_call *c, int64_t i, const struct shape *xs,
                             int64_t plane, int64_t row, int64_t col);

static void eval_windows(const struct layer_call *c, window_function *function) {
    struct shape xs = ref_get_shape(c, 0);
    int64_t rows = c->shape.dim[2], cols = c->shape.dim[3];
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t plane = i / (rows * cols) * xs.stride[1];
        function(c, i, &xs, plane, i / cols % rows, i % cols);
    }
}

/* Merges element `from` of the input into the largest value so far: `top` of floats, `whole` of integers. */
static void merge_max(const struct layer_call *c, int64_t from, double *top, int64_t *whole) {
    if (!c->is_real) {
        *whole = max_i64(*whole, ref_whole(c, 0, from));
        return;
    }
    double x = ref_real(c, 0, from);
    if (isnan(x) || x > *top) *top = x;
}

static void max_window(const struct layer_call *c, int64_t i, const struct shape *xs, int64_t plane,
                       int64_t row, int64_t col) {
    const struct attr *a = c->attr;
    double top = c->type == SOL_F64 ? a->min : (double)(float)a->min;
    int64_t whole = c->is_real ? 0 : ref_constant(c->type, a->min);
    for (int64_t r = 0; r < a->kernel[0]; r++)
        for (int64_t s = 0; s < a->kernel[1]; s++) {
            int64_t y = row * a->stride[0] - a->pad[0] + r * a->dilation[0];
            int64_t x = col * a->stride[1] - a->pad[1] + s * a->dilation[1];
            if (y < 0 || y >= xs->dim[2] || x < 0 || x >= xs->dim[3]) continue;
            merge_max(c, plane + y * xs->dim[3] + x, &top, &whole);
        }
    if (c->is_real) ref_set_real(c, i, top);
    else ref_set_whole(c, i, whole);
}

/* Has element `from` of the input a larger value than element `best`? So has a NaN. */
static bool is_larger(const struct layer_call *c, int64_t from, int64_t best) {
    if (!c->is_real) return ref_whole(c, 0, from) > ref_whole(c, 0, best);
    const double x = ref_real(c, 0, from);
    return isnan(x) || x > ref_real(c, 0, best);
}

/* -1: all taps are outside. */
static void index_window(const struct layer_call *c, int64_t i, const struct shape *xs,
                         int64_t plane, int64_t row, int64_t col) {
    const struct attr *a = c->attr;
    int64_t best = -1;
    for (int64_t r = 0; r < a->kernel[0]; r++)
        for (int64_t s = 0; s < a->kernel[1]; s++) {
            int64_t y = row * a->stride[0] - a->pad[0] + r * a->dilation[0];
            int64_t x = col * a->stride[1] - a->pad[1] + s * a->dilation[1];
            if (y < 0 || y >= xs->dim[2] || x < 0 || x >= xs->dim[3]) continue;
            const int64_t at = y * xs->dim[3] + x;
            if (best < 0 || is_larger(c, plane + at, plane + best)) best = at;
        }
    ref_set_whole(c, i, best);
}

/* Adds up dy of the windows that have taken this point of the image: of the last ones that begin at or before it (docs/ir.md). */
static void take_back(const struct layer_call *c, int64_t i, const struct shape *ys, int64_t plane,
                      int64_t row, int64_t col) {
    const struct attr *a = c->attr;
    int64_t last[2] = {(row + a->pad[0]) / a->stride[0], (col + a->pad[1]) / a->stride[1]},
            first[2];
    for (int k = 0; k < 2; k++) {
        const int64_t reach = (a->kernel[k] - 1) * a->dilation[k] + 1;
        first[k] = max_i64(last[k] + 1 - ceil_div(reach, a->stride[k]), 0);
        last[k] = min_i64(last[k], ys->dim[2 + k] - 1);
    }
    double sum = 0;
    int64_t whole = 0;
    for (int64_t p = first[0]; p <= last[0]; p++)
        for (int64_t q = first[1]; q <= last[1]; q++) {
            const int64_t at = plane + p * ys->dim[3] + q;
            if (ref_whole(c, 1, at) != row * c->shape.dim[3] + col) continue;
            if (c->is_real) sum += ref_real(c, 0, at);
            else whole = REF_WRAP(whole, +, ref_whole(c, 0, at));
        }
    if (c->is_real) ref_set_real(c, i, sum);
    else ref_set_whole(c, i, whole);
}

static double sum_window(const struct layer_call *c, int64_t plane, int64_t width,
                         struct window win) {
    double sum = 0;
    for (int64_t i = win.top; i < win.bottom; i++)
        for (int64_t j = win.left; j < win.right; j++) sum += ref_real(c, 0, plane + i * width + j);
    return sum;
}

/* With count_pad the divisor includes padding, but not what ceil mode adds beyond the padding. */
static void average_window(const struct layer_call *c, int64_t i, const struct shape *xs,
                           int64_t plane, int64_t row, int64_t col) {
    const struct attr *a = c->attr;
    int64_t h = xs->dim[2], w = xs->dim[3];
    struct window win = {.top = row * a->stride[0] - a->pad[0],
                         .left = col * a->stride[1] - a->pad[1]};
    win.bottom = min_i64(win.top + a->kernel[0], h + a->pad[2]);
    win.right = min_i64(win.left + a->kernel[1], w + a->pad[3]);
    int64_t padded = (win.bottom - win.top) * (win.right - win.left);
    win = (struct window){max_i64(win.top, 0), max_i64(win.left, 0), min_i64(win.bottom, h),
                          min_i64(win.right, w)};
    int64_t inside = (win.bottom - win.top) * (win.right - win.left);
    bool is_empty = win.top >= win.bottom || win.left >= win.right;
    double divisor = (double)(a->count_pad ? padded : inside);
    ref_set_real(c, i, is_empty ? 0 : sum_window(c, plane, w, win) / divisor);
}

/* Output i of n covers the inputs from floor(i*h/n) to ceil((i+1)*h/n): neighbours may overlap. */
static void adaptive_window(const struct layer_call *c, int64_t i, const struct shape *xs,
                            int64_t plane, int64_t row, int64_t col) {
    int64_t h = xs->dim[2], w = xs->dim[3], rows = c->shape.dim[2], cols = c->shape.dim[3];
    struct window win = {row * h / rows, col * w / cols, ceil_div((row + 1) * h, rows),
                         ceil_div((col + 1) * w, cols)};
    int64_t inside = (win.bottom - win.top) * (win.right - win.left);
    ref_set_real(c, i, sum_window(c, plane, w, win) / (double)inside);
}

void ref_eval_max_pool(const struct layer_call *c) { eval_windows(c, max_window); }

void ref_eval_max_pool_index(const struct layer_call *c) { eval_windows(c, index_window); }

void ref_eval_max_pool_grad(const struct layer_call *c) { eval_windows(c, take_back); }

void ref_eval_avg_pool(const struct layer_call *c) { eval_windows(c, average_window); }

void ref_eval_adaptive_avg_pool(const struct layer_call *c) { eval_windows(c, adaptive_window); }

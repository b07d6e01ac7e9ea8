/*
 * Windows that no layer expresses: pooling with the indices of maxima, MaxUnpool, Col2Im, GlobalLpPool; over any number of dims.
 *
 * tap_of finds the input element that a tap of the kernel reads for an output position.
 */
#include "eval.h"

#include <math.h>
#include <string.h>

#define MAX_DIMS (SOL_MAX_RANK - 2)

/* Each list has one number per spatial dim. */
struct window {
    int n; /* spatial dims */
    int64_t kernel[MAX_DIMS], stride[MAX_DIMS], dilation[MAX_DIMS];
    int64_t before[MAX_DIMS], after[MAX_DIMS]; /* pads */
    int64_t in[MAX_DIMS], out[MAX_DIMS];
};

/* An attribute of `n` integers, not below `min`, which is also their default. */
static void read_list(struct eval *e, const char *name, int n, int64_t min, int64_t *out) {
    const int64_t *list;
    int found = eval_ints(e, name, &list);
    eval_check(e, !found || found == n, "an attribute of another length than the window's dims");
    for (int i = 0; i < n; i++) {
        out[i] = found ? list[i] : min;
        eval_check(e, out[i] >= min && out[i] <= INT32_MAX, "an attribute out of range");
    }
}

/* auto_pad SAME: pads so that the output has ceil(input / stride) positions. */
static void pad_same(struct window *w, bool is_upper) {
    for (int d = 0; d < w->n; d++) {
        int64_t reach = (w->kernel[d] - 1) * w->dilation[d] + 1;
        int64_t all =
            max_i64(0, (ceil_div(w->in[d], w->stride[d]) - 1) * w->stride[d] + reach - w->in[d]);
        w->before[d] = is_upper ? all / 2 : all - all / 2;
        w->after[d] = all - w->before[d];
    }
}

/* auto_pad overrides pads if it is given. */
static void read_pads(struct eval *e, struct window *w) {
    const char *mode = eval_string(e, "auto_pad", "NOTSET");
    int64_t pads[2 * MAX_DIMS];
    read_list(e, "pads", 2 * w->n, 0, pads);
    for (int d = 0; d < w->n; d++) {
        w->before[d] = pads[d];
        w->after[d] = pads[w->n + d];
    }
    if (!strncmp(mode, "SAME", 4)) pad_same(w, !strcmp(mode, "SAME_UPPER"));
    else if (!strcmp(mode, "VALID")) {
        memset(w->before, 0, sizeof w->before);
        memset(w->after, 0, sizeof w->after);
    } else eval_check(e, !strcmp(mode, "NOTSET"), "auto_pad");
}

/* Sets the output's dims. `is_ceil`: the last window may end after the padded input if it begins in the input or in the pad
 * before it. */
static void place_windows(struct eval *e, struct window *w, bool is_ceil) {
    for (int d = 0; d < w->n; d++) {
        int64_t reach = (w->kernel[d] - 1) * w->dilation[d] + 1;
        int64_t room = w->in[d] + w->before[d] + w->after[d] - reach;
        eval_check(e, room >= 0 || is_ceil, "a window larger than its input");
        w->out[d] =
            room < 0 ? 1 : (is_ceil ? ceil_div(room, w->stride[d]) : room / w->stride[d]) + 1;
        /* A window that would begin in the pad after the input is left out. */
        if (is_ceil && (w->out[d] - 1) * w->stride[d] >= w->in[d] + w->before[d]) w->out[d]--;
    }
}

/* Sets all but the kernel and the output's dims. */
static void read_window(struct eval *e, const struct array *x, struct window *w) {
    eval_check(e, x->rank >= 3, "an input without dims to move over");
    w->n = x->rank - 2;
    memcpy(w->in, x->dim + 2, (size_t)w->n * sizeof *w->in);
    read_list(e, "strides", w->n, 1, w->stride);
    read_list(e, "dilations", w->n, 1, w->dilation);
    read_pads(e, w);
}

/* The offset, within a channel of the input, that tap `k` reads for output position `o`; -1: in the padding. */
static int64_t tap_of(const struct window *w, const int64_t *o, const int64_t *k) {
    int64_t at = 0;
    for (int d = 0; d < w->n; d++) {
        int64_t i = o[d] * w->stride[d] - w->before[d] + k[d] * w->dilation[d];
        if (i < 0 || i >= w->in[d]) return -1;
        at = at * w->in[d] + i;
    }
    return at;
}

/* ---- Operators ---- */

/* Adds each block of columns to its position in the image. */
void run_col2im(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t *image, *block, dim[SOL_MAX_RANK];
    struct window w = {.n = eval_in_ints(e, 1, &image)};
    eval_check(e, x->rank == 3 && w.n > 0 && w.n <= MAX_DIMS && eval_in_ints(e, 2, &block) == w.n,
               "shapes");
    for (int d = 0; d < w.n; d++) {
        eval_check(e,
                   block[d] > 0 && block[d] <= INT32_MAX && image[d] >= 0 && image[d] <= INT32_MAX,
                   "sizes");
        w.kernel[d] = block[d];
        w.in[d] = image[d];
    }
    read_list(e, "strides", w.n, 1, w.stride);
    read_list(e, "dilations", w.n, 1, w.dilation);
    read_pads(e, &w);
    place_windows(e, &w, false);
    int64_t taps = product(w.n, w.kernel), places = product(w.n, w.out), size = product(w.n, w.in);
    eval_check(e, x->dim[1] % taps == 0 && x->dim[2] == places, "blocks that do not fit the image");
    dim[0] = x->dim[0];
    dim[1] = x->dim[1] / taps;
    memcpy(dim + 2, w.in, (size_t)w.n * sizeof *dim);
    struct array *result = eval_out(e, 0, x->type, w.n + 2, dim);
    double *y = SPACE_ARRAY(e->space, double, result->n), *v = array_doubles(e->space, x);
    for (int64_t c = 0; c < dim[0] * dim[1]; c++) {
        struct walk k, o;
        walk_init(&k, w.n, w.kernel);
        for (int64_t t = 0; t < taps; t++, walk_next(&k)) {
            walk_init(&o, w.n, w.out);
            for (int64_t p = 0; p < places; p++, walk_next(&o)) {
                int64_t to = tap_of(&w, o.at, k.at);
                if (to >= 0) y[c * size + to] += v[(c * taps + t) * places + p];
            }
        }
    }
    array_fill_doubles(result, y);
}

/* Refuses padding as wide as the window: such a window would contain only padding, which has no maximum and no average. */
static void check_pads(struct eval *e, const struct window *w) {
    for (int d = 0; d < w->n; d++) {
        int64_t pad = max_i64(w->before[d], w->after[d]),
                reach = (w->kernel[d] - 1) * w->dilation[d] + 1;
        if (pad && pad >= reach)
            eval_stop(e, fail(SOL_EINVAL, "a pad of %lld beside a window of %lld", (long long)pad,
                              (long long)reach));
    }
}

/* Reads the window; `dim` becomes the dims of the result. */
static struct window plan_pool(struct eval *e, const struct array *x, int64_t dim[SOL_MAX_RANK]) {
    struct window w = {0};
    eval_check(e, x->rank >= 3, "an input without dims to move over");
    eval_check(e, eval_attribute(e, "kernel_shape") != NULL, "attribute kernel_shape is missing");
    read_list(e, "kernel_shape", x->rank - 2, 1, w.kernel);
    read_window(e, x, &w);
    check_pads(e, &w);
    place_windows(e, &w, eval_int(e, "ceil_mode", 0));
    memcpy(dim, x->dim, sizeof x->dim);
    memcpy(dim + 2, w.out, (size_t)w.n * sizeof *dim);
    return w;
}

/* Converts a row-major offset in a plane to a column-major one: the first spatial dim is the fastest. */
static int64_t column_major(const struct window *w, int64_t at) {
    int64_t result = 0, place[MAX_DIMS];
    for (int d = w->n - 1; d >= 0; d--) {
        place[d] = at % w->in[d];
        at /= w->in[d];
    }
    for (int d = w->n - 1; d >= 0; d--) result = result * w->in[d] + place[d];
    return result;
}

/* Padding is ignored; a window without input values gives -infinity. Output 1 has the index of each maximum in the whole input. */
void run_max_pool(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t dim[SOL_MAX_RANK];
    struct window w = plan_pool(e, x, dim);
    struct array *y = eval_out(e, 0, x->type, x->rank, dim),
                 *index = eval_out(e, 1, TYPE_I64, x->rank, dim);
    int64_t in = product(w.n, w.in), out = product(w.n, w.out);
    bool by_column = eval_int(e, "storage_order", 0);
    double *v = array_doubles(e->space, x);
    struct walk o, k;
    walk_init(&o, x->rank, dim);
    for (int64_t i = 0; i < y->n; i++, walk_next(&o)) {
        int64_t best = -1;
        const double *plane = v + i / out * in;
        walk_init(&k, w.n, w.kernel);
        for (int64_t t = 0; t < k.n; t++, walk_next(&k)) {
            int64_t at = tap_of(&w, o.at + 2, k.at);
            /* Takes the first of equal values; NaN is larger than all. */
            if (at >= 0 && (best < 0 || plane[at] > plane[best] || plane[at] != plane[at]))
                best = at;
        }
        array_set_double(y, i, best < 0 ? -INFINITY : plane[best]);
        if (best >= 0)
            array_set_int(index, i, i / out * in + (by_column ? column_major(&w, best) : best));
    }
}

/* The p of a norm, at least 1. */
static double read_power(struct eval *e) {
    int64_t p = eval_int(e, "p", 2);
    if (p < 1) eval_stop(e, fail(SOL_EINVAL, "p is %lld", (long long)p));
    return (double)p;
}

/* The p-norm over all spatial dims. */
void run_global_norm(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t dim[SOL_MAX_RANK];
    eval_check(e, x->rank >= 2, "a rank below 2");
    for (int d = 0; d < x->rank; d++) dim[d] = d < 2 ? x->dim[d] : 1;
    int64_t n = product(x->rank - 2, x->dim + 2);
    struct array *y = eval_out(e, 0, x->type, x->rank, dim);
    double p = read_power(e), *v = array_doubles(e->space, x);
    for (int64_t i = 0; i < y->n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < n; k++) sum += pow(fabs(v[i * n + k]), p);
        array_set_double(y, i, pow(sum, 1 / p));
    }
}

/* Element `i` of `index`; unlike other indices, it may not be negative. */
static int64_t unpool_place(struct eval *e, const struct array *index, int64_t i, int64_t size) {
    int64_t at = array_int(index, i);
    if (at < 0 || at >= size)
        eval_stop(e, fail(SOL_EINVAL, "index %lld of %lld values", (long long)at, (long long)size));
    return at;
}

/* Puts each value at the position of its maximum. Indices are positions in the shape that the window implies, also with
 * output_shape. */
void run_max_unpool(struct eval *e) {
    const struct array *x = eval_in(e, 0), *index = eval_in(e, 1);
    struct window w = {0};
    int64_t dim[SOL_MAX_RANK], *wanted;
    eval_check(e, x->rank >= 3 && index->n == x->n, "shapes that do not fit");
    read_list(e, "kernel_shape", x->rank - 2, 1, w.kernel);
    read_window(e, x, &w);
    memcpy(dim, x->dim, sizeof dim);
    for (int d = 0; d < w.n; d++)
        dim[2 + d] = (w.in[d] - 1) * w.stride[d] - w.before[d] - w.after[d] + w.kernel[d];
    struct array *y = eval_new(e, x->type, x->rank, dim), *result = y;
    for (int64_t i = 0; i < x->n; i++)
        memcpy(array_at(y, unpool_place(e, index, i, y->n)), array_at(x, i), types[x->type].size);
    if (eval_has(e, 2)) {
        eval_check(e, eval_in_ints(e, 2, &wanted) == x->rank, "output_shape");
        result = eval_new(e, x->type, x->rank, wanted);
        struct walk walk;
        walk_init(&walk, x->rank, y->dim);
        array_strides(result, walk.stride[0]);
        for (int d = 0; d < x->rank; d++)
            eval_check(e, wanted[d] >= y->dim[d], "an output too small");
        for (int64_t i = 0; i < y->n; i++, walk_next(&walk))
            memcpy(array_at(result, walk.offset[0]), array_at(y, i), types[x->type].size);
    }
    eval_set_output(e, 0, result);
}

/*
 * Windows over any number of dims, and convolutions as plain loops.
 *
 * All of them use eval_window_tap, which finds the input element that a tap of the kernel reads for an output position.
 */
#include "eval_window.h"

#include <math.h>
#include <string.h>

void eval_window_list(struct eval *e, const char *name, int n, int64_t min, int64_t *out) {
    const int64_t *list;
    int found = eval_ints(e, name, &list);
    eval_check(e, !found || found == n, "an attribute of another length than the window's dims");
    for (int i = 0; i < n; i++) {
        out[i] = found ? list[i] : min;
        eval_check(e, out[i] >= min && out[i] <= INT32_MAX, "an attribute out of range");
    }
}

/* auto_pad SAME: pads so that the output has ceil(input / stride) positions. */
static void pad_same(struct eval_window *w, bool is_upper) {
    for (int d = 0; d < w->n; d++) {
        int64_t reach = (w->kernel[d] - 1) * w->dilation[d] + 1;
        int64_t all =
            max_i64(0, (ceil_div(w->in[d], w->stride[d]) - 1) * w->stride[d] + reach - w->in[d]);
        w->before[d] = is_upper ? all / 2 : all - all / 2;
        w->after[d] = all - w->before[d];
    }
}

/* auto_pad overrides pads if it is given. */
static void read_pads(struct eval *e, struct eval_window *w) {
    const char *mode = eval_string(e, "auto_pad", "NOTSET");
    int64_t pads[2 * MAX_DIMS];
    eval_window_list(e, "pads", 2 * w->n, 0, pads);
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

void eval_window_place(struct eval *e, struct eval_window *w, bool is_ceil) {
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

void eval_window_read(struct eval *e, const struct array *x, struct eval_window *w) {
    eval_check(e, x->rank >= 3, "an input without dims to move over");
    w->n = x->rank - 2;
    memcpy(w->in, x->dim + 2, (size_t)w->n * sizeof *w->in);
    eval_window_list(e, "strides", w->n, 1, w->stride);
    eval_window_list(e, "dilations", w->n, 1, w->dilation);
    read_pads(e, w);
}

int64_t eval_window_tap(const struct eval_window *w, const int64_t *o, const int64_t *k) {
    int64_t at = 0;
    for (int d = 0; d < w->n; d++) {
        int64_t i = o[d] * w->stride[d] - w->before[d] + k[d] * w->dilation[d];
        if (i < 0 || i >= w->in[d]) return -1;
        at = at * w->in[d] + i;
    }
    return at;
}

/* ---- Convolution ---- */

/* Sizes of a convolution of [batch, channels, ..] with [features, channels / groups, ..]. */
struct conv {
    struct eval_window w;
    int64_t batch, channels, features, groups, per_group; /* per_group: input channels */
    int64_t dim[SOL_MAX_RANK];                            /* of the result */
};

/* Reads the attributes and checks that the shapes fit. */
static struct conv plan_conv(struct eval *e, const struct array *x, const struct array *weight) {
    struct conv c = {.groups = eval_int(e, "group", 1)};
    eval_check(e, x->rank >= 3 && weight->rank == x->rank, "ranks that do not fit");
    memcpy(c.w.kernel, weight->dim + 2, (size_t)(x->rank - 2) * sizeof *c.w.kernel);
    eval_window_read(e, x, &c.w);
    eval_window_place(e, &c.w, false);
    c.batch = x->dim[0];
    c.channels = x->dim[1];
    c.features = weight->dim[0];
    c.per_group = weight->dim[1];
    eval_check(e,
               c.groups > 0 && c.features % c.groups == 0 && c.per_group * c.groups == c.channels,
               "groups or channels that do not fit");
    c.dim[0] = c.batch;
    c.dim[1] = c.features;
    memcpy(c.dim + 2, c.w.out, (size_t)c.w.n * sizeof *c.dim);
    return c;
}

/* The value of feature `m` at output position `o`; `x` is one sample. */
static double convolve_at(const struct conv *c, const double *x, const double *weight, int64_t m,
                          const int64_t *o) {
    int64_t in = eval_window_inner(&c->w, c->w.in),
            first = m / (c->features / c->groups) * c->per_group;
    double sum = 0;
    struct walk k;
    walk_init(&k, c->w.n, c->w.kernel);
    for (int64_t t = 0; t < k.n; t++, walk_next(&k)) {
        int64_t at = eval_window_tap(&c->w, o, k.at);
        for (int64_t ch = 0; ch < c->per_group && at >= 0; ch++)
            sum += x[(first + ch) * in + at] * weight[(m * c->per_group + ch) * k.n + t];
    }
    return sum;
}

/* All output points. Exact for integers of 8 bits, since sums cannot reach 2^53 within the memory limit. */
static double *convolve(struct eval *e, const struct conv *c, const double *x,
                        const double *weight) {
    double *y = SPACE_ARRAY(e->space, double, product(c->w.n + 2, c->dim));
    int64_t in = eval_window_inner(&c->w, c->w.in);
    struct walk walk;
    walk_init(&walk, c->w.n + 2, c->dim);
    for (int64_t i = 0; i < walk.n; i++, walk_next(&walk))
        y[i] = convolve_at(c, x + walk.at[0] * c->channels * in, weight, walk.at[1], walk.at + 2);
    return y;
}

/* Adds bias[f] for each feature f, which is dim 1. */
static void add_bias(struct eval *e, const struct array *bias, const int64_t *dim, int rank,
                     double *y) {
    int64_t inner = product(rank - 2, dim + 2);
    eval_check(e, bias->n == dim[1], "a bias that does not fit");
    for (int64_t i = 0; i < product(rank, dim); i++) y[i] += array_double(bias, i / inner % dim[1]);
}

void run_conv(struct eval *e) {
    const struct array *x = eval_in(e, 0), *weight = eval_in(e, 1);
    struct conv c = plan_conv(e, x, weight);
    double *y = convolve(e, &c, array_doubles(e->space, x), array_doubles(e->space, weight));
    if (eval_has(e, 2)) add_bias(e, eval_in(e, 2), c.dim, x->rank, y);
    eval_set_output_doubles(e, 0, x->type, x->rank, c.dim, y);
}

/* x minus its zero point, in input `zero`: one per position of dim 0, or one for all. */
static double *shifted(struct eval *e, const struct array *x, int zero) {
    double *v = array_doubles(e->space, x);
    if (!eval_has(e, zero)) return v;
    const struct array *z = eval_in(e, zero);
    eval_check(e, z->n == 1 || (x->rank && z->n == x->dim[0]), "zero points that do not fit");
    for (int64_t i = 0; i < x->n; i++) v[i] -= array_double(z, z->n == 1 ? 0 : i / (x->n / z->n));
    return v;
}

/* Inputs of 8 bits; the result is i32. */
void run_conv_integer(struct eval *e) {
    const struct array *x = eval_in(e, 0), *weight = eval_in(e, 1);
    struct conv c = plan_conv(e, x, weight);
    double *v = shifted(e, x, 2);
    eval_set_output_doubles(e, 0, TYPE_I32, x->rank, c.dim,
                            convolve(e, &c, v, shifted(e, weight, 3)));
}

/* Inputs: x, its scale and zero point; weight, its scale and zero point; scale and zero point of y; bias. */
void run_qlinear_conv(struct eval *e) {
    const struct array *x = eval_in(e, 0), *weight = eval_in(e, 3), *w_scale = eval_in(e, 4);
    struct conv c = plan_conv(e, x, weight);
    double *y = convolve(e, &c, shifted(e, x, 2), shifted(e, weight, 5));
    if (eval_has(e, 8)) add_bias(e, eval_in(e, 8), c.dim, x->rank, y);
    double x_scale = eval_in_double(e, 1, 1), scale = eval_in_double(e, 6, 1),
           zero = eval_in_double(e, 7, 0);
    enum type type = eval_in(e, 7)->type;
    bool is_signed = types[type].kind == KIND_SIGNED;
    int64_t inner = eval_window_inner(&c.w, c.w.out);
    eval_check(e, w_scale->n == 1 || w_scale->n == c.features, "scales that do not fit");
    for (int64_t i = 0; i < product(x->rank, c.dim); i++) {
        double by = array_double(w_scale, w_scale->n == 1 ? 0 : i / inner % c.features);
        double value = rint(y[i] * x_scale * by / scale) + zero;
        y[i] = fmax(is_signed ? -128 : 0, fmin(is_signed ? 127 : 255, value));
    }
    eval_set_output_doubles(e, 0, type, x->rank, c.dim, y);
}

/* ---- Transposed convolution ---- */

/* Each input point adds the kernel to the output, so the window moves over the output. Sets the output's dims and the padding. */
static void place_transposed(struct eval *e, struct eval_window *w) {
    const char *mode = eval_string(e, "auto_pad", "NOTSET");
    const int64_t *shape;
    int64_t extra[MAX_DIMS];
    int n = eval_ints(e, "output_shape", &shape);
    eval_window_list(e, "output_padding", w->n, 0, extra);
    eval_check(e, !n || n == w->n || n == w->n + 2, "output_shape");
    if (n == w->n + 2) shape += 2;
    for (int d = 0; d < w->n; d++) {
        int64_t full =
            (w->in[d] - 1) * w->stride[d] + extra[d] + (w->kernel[d] - 1) * w->dilation[d] + 1;
        bool is_same = !strncmp(mode, "SAME", 4);
        int64_t wanted = n ? shape[d] : w->in[d] * w->stride[d], all = full - wanted;
        if (n || is_same) {
            bool is_upper = !strcmp(mode, "SAME_UPPER");
            all = max_i64(0, all);
            w->before[d] = is_upper ? all / 2 : all - all / 2;
            w->after[d] = all - w->before[d];
        }
        w->out[d] = n || is_same ? wanted : full - w->before[d] - w->after[d];
        eval_check(e, w->out[d] >= 0 && w->out[d] <= INT32_MAX, "an output without a size");
    }
}

/* Adds the product of one input value with the kernel to the output planes of its group. `back`: the window,
 * whose `in` is the size of the output planes. */
static void spread(const struct eval_window *back, const struct walk *point, const double *k,
                   double value, int64_t features, double *y) {
    int64_t taps = eval_window_inner(back, back->kernel), out = eval_window_inner(back, back->in);
    struct walk at;
    walk_init(&at, back->n, back->kernel);
    for (int64_t t = 0; t < taps; t++, walk_next(&at)) {
        int64_t to = eval_window_tap(back, point->at + 2, at.at);
        for (int64_t m = 0; m < features && to >= 0; m++)
            y[m * out + to] += value * k[m * taps + t];
    }
}

/* Weights are [channels, features per group, ..]. */
void run_conv_transpose(struct eval *e) {
    const struct array *x = eval_in(e, 0), *weight = eval_in(e, 1);
    int64_t groups = eval_int(e, "group", 1), dim[SOL_MAX_RANK];
    struct eval_window w;
    eval_check(e,
               x->rank >= 3 && weight->rank == x->rank && weight->dim[0] == x->dim[1] &&
                   groups > 0 && x->dim[1] % groups == 0,
               "shapes that do not fit");
    memcpy(w.kernel, weight->dim + 2, (size_t)(x->rank - 2) * sizeof *w.kernel);
    eval_window_read(e, x, &w);
    place_transposed(e, &w);
    int64_t per = weight->dim[1], channels = x->dim[1], taps = eval_window_inner(&w, w.kernel),
            out = eval_window_inner(&w, w.out);
    dim[0] = x->dim[0];
    dim[1] = per * groups;
    memcpy(dim + 2, w.out, (size_t)w.n * sizeof *dim);
    struct array *result = eval_out(e, 0, x->type, x->rank, dim);
    double *y = SPACE_ARRAY(e->space, double, result->n), *v = array_doubles(e->space, x),
           *k = array_doubles(e->space, weight);
    memcpy(w.in, w.out, sizeof w.in); /* taps are positions in the output's planes */
    struct walk point;
    walk_init(&point, x->rank, x->dim);
    for (int64_t i = 0; i < x->n; i++, walk_next(&point)) {
        int64_t c = point.at[1], first = c / (channels / groups) * per;
        spread(&w, &point, k + c * per * taps, v[i], per, y + (point.at[0] * dim[1] + first) * out);
    }
    if (eval_has(e, 2)) add_bias(e, eval_in(e, 2), dim, x->rank, y);
    array_fill_doubles(result, y);
}

/* Adds each block of columns to its position in the image. */
void run_col2im(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t *image, *block, dim[SOL_MAX_RANK];
    struct eval_window w = {.n = eval_in_ints(e, 1, &image)};
    eval_check(e, x->rank == 3 && w.n > 0 && w.n <= MAX_DIMS && eval_in_ints(e, 2, &block) == w.n,
               "shapes");
    for (int d = 0; d < w.n; d++) {
        eval_check(e,
                   block[d] > 0 && block[d] <= INT32_MAX && image[d] >= 0 && image[d] <= INT32_MAX,
                   "sizes");
        w.kernel[d] = block[d];
        w.in[d] = image[d];
    }
    eval_window_list(e, "strides", w.n, 1, w.stride);
    eval_window_list(e, "dilations", w.n, 1, w.dilation);
    read_pads(e, &w);
    eval_window_place(e, &w, false);
    int64_t taps = eval_window_inner(&w, w.kernel), places = eval_window_inner(&w, w.out),
            size = eval_window_inner(&w, w.in);
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
                int64_t to = eval_window_tap(&w, o.at, k.at);
                if (to >= 0) y[c * size + to] += v[(c * taps + t) * places + p];
            }
        }
    }
    array_fill_doubles(result, y);
}

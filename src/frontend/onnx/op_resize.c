/*
 * Resize and Upsample, dim by dim.
 *
 * Each value of the result has a position between the input's values, which depends on sizes only (find_place). Mode nearest is a
 * gather of the nearest value. Modes linear and cubic are weighted sums of taps, by a layer resample, which takes two neighboring dims
 * at once. There are two or four taps; antialias widens the filter by 1 / scale, so there are more. Of many taps, and of f64, each is a
 * gather, multiplied by a parameter with a weight per position. The dims do not depend on each other, since the weights of a point are
 * products over the dims. A tap outside the input reads the edge, so
 * indices are clamped, unless exclude_outside gives it the weight 0. Integers are computed as floats and rounded once.
 */
#include "import.h"

#include <math.h>
#include <string.h>

#define MAX_SIZE (1 << 24) /* of a dim */
#define MAX_TAPS 256
#define MAX_RESAMPLED 16 /* taps of a layer resample */

/* The resizing of one dim: `size` values become `n`; `scale` is n / size, or that of the file. `start` and `end` bound the part of the
 * input that tf_crop_and_resize reads, in units of the input; a position outside of the input gets the value `outside`. */
struct stretch {
    const char *mode, *coordinates, *nearest;
    int64_t size, n;
    double scale;
    double cubic, start, end, outside;
    bool drops_outside, crops, widens;
};

/* Dims whose taps are known, and which the next resample takes. */
struct pending {
    int n, axis;        /* of the first */
    sol_tensor taps[4]; /* indices and weights of each */
};

/* The position in the input of value `i` of the result. */
static double find_place(const struct stretch *s, int64_t i) {
    double x = (double)i, last = (double)s->size - 1;
    if (!strcmp(s->coordinates, "asymmetric")) return x / s->scale;
    if (!strcmp(s->coordinates, "tf_half_pixel_for_nn")) return (x + 0.5) / s->scale;
    double width = s->scale * (double)s->size; /* before it is rounded down to n */
    if (!strcmp(s->coordinates, "align_corners")) return s->n > 1 ? x * last / (width - 1) : 0;
    if (!strcmp(s->coordinates, "pytorch_half_pixel") && s->n == 1) return 0;
    if (s->crops)
        return s->n > 1 ? last * (s->start + x * (s->end - s->start) / (double)(s->n - 1))
                        : last * (s->start + s->end) / 2;
    if (!strcmp(s->coordinates, "half_pixel_symmetric")) {
        double offset = (double)s->size / 2 * (1 - (double)s->n / width);
        return offset + (x + 0.5) / s->scale - 0.5;
    }
    return (x + 0.5) / s->scale - 0.5;
}

static int64_t round_place(const char *how, double x) {
    if (!strcmp(how, "floor")) return (int64_t)floor(x);
    if (!strcmp(how, "ceil")) return (int64_t)ceil(x);
    if (!strcmp(how, "round_prefer_ceil")) return (int64_t)floor(x + 0.5);
    return (int64_t)ceil(x - 0.5); /* round_prefer_floor */
}

/* ---- Taps ---- */

static double find_widening(const struct stretch *s) {
    return s->widens && s->scale < 1 ? 1 / s->scale : 1;
}

/* The filter reaches less than this far from a position, on both sides. */
static double find_reach(const struct stretch *s) {
    return (!strcmp(s->mode, "linear") ? 1 : 2) * find_widening(s);
}

static int count_taps(const struct stretch *s) {
    if (!strcmp(s->mode, "nearest")) return 1;
    return (int)fmin(MAX_TAPS + 1, ceil(2 * find_reach(s)));
}

/* The first tap for the position `at`. */
static double find_first(const struct stretch *s, double at) {
    if (!strcmp(s->mode, "nearest")) return (double)round_place(s->nearest, at);
    return floor(at - find_reach(s)) + 1;
}

/* The weight of a tap at a distance from the position (cubic: after Keys). */
static double weigh(const struct stretch *s, double distance) {
    double a = s->cubic, d = fabs(distance) / find_widening(s);
    if (!strcmp(s->mode, "nearest")) return 1;
    if (!strcmp(s->mode, "linear")) return fmax(0, 1 - d);
    if (d >= 2) return 0;
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

static bool is_outside(const struct stretch *s, double at) {
    return s->crops && (at < 0 || at > (double)(s->size - 1));
}

/* The indices and weights of all taps, [taps, n]. Weights are divided by their sum, which differs from 1 only if taps are dropped or
 * the filter is widened. */
static void fill_taps(const struct stretch *s, int n_taps, int64_t *index, double *weight) {
    for (int64_t i = 0; i < s->n; i++) {
        double x = find_place(s, i), first = find_first(s, x), sum = 0;
        for (int k = 0; k < n_taps; k++) {
            double at = first + k, w = weigh(s, at - x);
            if (s->drops_outside && (at < 0 || at >= (double)s->size)) w = 0;
            sum += w;
            index[k * s->n + i] = max_i64(0, min_i64((int64_t)at, s->size - 1));
            weight[k * s->n + i] = w;
        }
        for (int k = 0; k < n_taps; k++)
            weight[k * s->n + i] = is_outside(s, x) ? 0 : weight[k * s->n + i] / sum;
    }
}

/* A parameter of the element type of x, with a value for each index of dim `d` of `rank`. */
static sol_tensor make_factor(struct op_call *c, sol_tensor x, int d, int rank, int64_t n,
                              const double *values) {
    int64_t shape[SOL_MAX_RANK];
    for (int i = 0; i < rank - d; i++) shape[i] = i ? 1 : n;
    if (call_dtype(c, x) == SOL_F64) return call_param(c, SOL_F64, rank - d, shape, values);
    float *single = ARENA_ARRAY(c->im->arena, float, n);
    for (int64_t i = 0; i < n; i++) single[i] = (float)values[i];
    return call_cast(c, call_param(c, SOL_F32, rank - d, shape, single), call_dtype(c, x));
}

/* The value `outside` at the positions outside of the input, else 0. */
static sol_tensor add_outside(struct op_call *c, sol_tensor y, int d, int rank,
                              const struct stretch *s) {
    double *value = ARENA_ARRAY(c->im->arena, double, s->n);
    for (int64_t i = 0; i < s->n; i++) value[i] = is_outside(s, find_place(s, i)) ? s->outside : 0;
    return LAYER2(c, "add", y, make_factor(c, y, d, rank, s->n, value), "");
}

/* Resamples the pending dims. */
static sol_tensor resample(struct op_call *c, sol_tensor x, struct pending *p) {
    const enum sol_dtype type = call_dtype(c, x);
    sol_tensor in[5];
    if (!p->n || c->im->status) return x;
    in[0] = call_cast(c, x, SOL_F32);
    memcpy(in + 1, p->taps, sizeof p->taps);
    x = call_layer(c, "resample", 1 + 2 * p->n, in, "axis=%d", p->axis);
    p->n = 0;
    return call_cast(c, x, type);
}

/* Makes dim `d` pending; dims that do not lie before it are resampled first. */
static sol_tensor add_pending(struct op_call *c, sol_tensor x, int d, int64_t n, int64_t n_taps,
                              const int64_t *index, const double *weight, struct pending *p) {
    const int64_t dim[] = {n_taps, n};
    float *single = ARENA_ARRAY(c->im->arena, float, n *n_taps);
    for (int64_t i = 0; i < n * n_taps; i++) single[i] = (float)weight[i];
    if (p->n == 2 || p->axis != d - 1) x = resample(c, x, p);
    if (!p->n) p->axis = d;
    p->taps[2 * p->n] = call_param(c, SOL_I64, 2, dim, index);
    p->taps[2 * p->n++ + 1] = call_param(c, SOL_F32, 2, dim, single);
    return x;
}

/* A weighted sum of taps along dim `d` of `rank`. */
static sol_tensor stretch_weighted(struct op_call *c, sol_tensor x, int d, int rank,
                                   const struct stretch *s, struct pending *pending) {
    int n_taps = count_taps(s);
    sol_tensor sum = -1;
    if (n_taps > MAX_TAPS) call_fail(c, fail(SOL_EUNSUPPORTED, "a scale of %g", s->scale));
    if (c->im->status) return -1;
    int64_t *index = ARENA_ARRAY(c->im->arena, int64_t, s->n *n_taps);
    double *weight = ARENA_ARRAY(c->im->arena, double, s->n *n_taps);
    fill_taps(s, n_taps, index, weight);
    if (n_taps <= MAX_RESAMPLED && call_dtype(c, x) != SOL_F64) {
        x = add_pending(c, x, d, s->n, n_taps, index, weight, pending);
        return s->crops ? add_outside(c, resample(c, x, pending), d, rank, s) : x;
    }
    for (int k = 0; k < n_taps && !c->im->status; k++) {
        sol_tensor tap = LAYER2(c, "mul", call_pick(c, x, d, s->n, index + k * s->n),
                                make_factor(c, x, d, rank, s->n, weight + k * s->n), "");
        sum = k ? LAYER2(c, "add", sum, tap, "") : tap;
    }
    return s->crops ? add_outside(c, sum, d, rank, s) : sum;
}

static sol_tensor stretch_nearest(struct op_call *c, sol_tensor x, int d, const struct stretch *s) {
    int64_t *index = ARENA_ARRAY(c->im->arena, int64_t, s->n);
    for (int64_t i = 0; i < s->n; i++)
        index[i] = max_i64(0, min_i64(round_place(s->nearest, find_place(s, i)), s->size - 1));
    return call_pick(c, x, d, s->n, index);
}

/* ---- Attributes and inputs ---- */

/* The floats of input `i`, at most `max`, which must be known; returns their count. */
static int read_floats(struct op_call *c, int i, int max, float *out) {
    struct import_value *v = call_has(c, i) ? c->in[i] : NULL;
    if (!v || (v->rank == 1 && size_is(v->dim[0], 0))) return 0;
    const void *at = call_read_bytes(v);
    bool is_known = at && v->dtype == SOL_F32 && v->rank == 1 && size_value(v->dim[0]) <= max;
    if (!is_known) {
        call_fail(c, fail(SOL_EUNSUPPORTED, "scales that are not known before the call"));
        return 0;
    }
    memcpy(out, at, (size_t)size_value(v->dim[0]) * sizeof *out);
    return (int)size_value(v->dim[0]);
}

static const char *string_or(struct op_call *c, const char *name, const char *default_value) {
    const char *text = call_string(c, name);
    return *text ? text : default_value;
}

/* The attributes, which are equal for all dims. Before opset 11: asymmetric, rounded down. */
static struct stretch read_stretch(struct op_call *c) {
    bool is_old = c->im->opset < 11 || !strcmp(c->op->name, "Upsample");
    return (struct stretch){
        .mode = string_or(c, "mode", "nearest"),
        .coordinates =
            string_or(c, "coordinate_transformation_mode", is_old ? "asymmetric" : "half_pixel"),
        .nearest = string_or(c, "nearest_mode", is_old ? "floor" : "round_prefer_floor"),
        .cubic = call_float(c, "cubic_coeff_a", -0.75),
        .outside = call_float(c, "extrapolation_value", 0),
        .widens = call_int(c, "antialias", 0) != 0,
        .crops = !strcmp(call_string(c, "coordinate_transformation_mode"), "tf_crop_and_resize"),
        .drops_outside = call_int(c, "exclude_outside", 0) != 0};
}

/* The dims to resize: those of the attribute, or all. Returns their count. */
static int read_axes(struct op_call *c, int rank, int64_t axes[SOL_MAX_RANK]) {
    int n = call_ints(c, "axes", SOL_MAX_RANK, axes);
    bool named[SOL_MAX_RANK] = {false};
    for (int d = 0; d < rank && !n; d++) axes[d] = d;
    for (int i = 0; i < n; i++) axes[i] = call_axis_of_list(c, axes[i], rank, named);
    return n ? n : rank;
}

static sol_tensor stretch_dim(struct op_call *c, sol_tensor x, int d, int rank, struct stretch *s,
                              struct pending *pending) {
    s->size = call_dim(c, 0, d);
    if (s->n < 1 || s->n > MAX_SIZE || s->size < 1)
        call_fail(
            c, fail(SOL_EUNSUPPORTED, "%lld values of %lld", (long long)s->n, (long long)s->size));
    if (c->im->status) return -1;
    return !strcmp(s->mode, "nearest") && !s->crops ? stretch_nearest(c, x, d, s)
                                                    : stretch_weighted(c, x, d, rank, s, pending);
}

/* Nearest neighbours of an open dim, a whole number of times as large: each value is repeated. */
static sol_tensor repeat_dim(struct op_call *c, sol_tensor x, int d, int rank, double scale,
                             const struct stretch *s) {
    struct size dim[SOL_MAX_RANK + 1];
    bool floors = !strcmp(s->coordinates, "asymmetric") && !strcmp(s->nearest, "floor"),
         rounds = strstr(s->coordinates, "half_pixel") && !strcmp(s->nearest, "round_prefer_floor");
    if (strcmp(s->mode, "nearest") || !(floors || rounds) || scale != floor(scale) || scale < 1 ||
        scale > MAX_SIZE || rank == SOL_MAX_RANK) {
        call_fail(c, fail(SOL_EUNSUPPORTED, "dim %d is open", d));
        return -1;
    }
    call_shape(c, x, dim);
    memmove(dim + d + 2, dim + d + 1, sizeof *dim * (size_t)(rank - d - 1));
    dim[d + 1] = size_const(1);
    x = call_reshape(c, x, rank + 1, dim);
    dim[d + 1] = size_const((int64_t)scale);
    x = call_expand(c, x, rank + 1, dim);
    dim[d] = size_scale(dim[d], (int64_t)scale);
    memmove(dim + d + 1, dim + d + 2, sizeof *dim * (size_t)(rank - d - 1));
    return call_reshape(c, x, rank, dim);
}

static enum sol_status check_resize(struct op_call *c, const struct stretch *s) {
    static const char *const known = "half_pixel half_pixel_symmetric pytorch_half_pixel "
                                     "align_corners asymmetric tf_half_pixel_for_nn "
                                     "tf_crop_and_resize";
    if (!import_has_word("nearest linear cubic", s->mode))
        return fail(SOL_EUNSUPPORTED, "mode \"%.32s\"", s->mode);
    if (!import_has_word(known, s->coordinates))
        return fail(SOL_EUNSUPPORTED, "coordinate_transformation_mode \"%.32s\"", s->coordinates);
    return c->im->status;
}

/* The new sizes and scales of dims. `roi` has all starts, then all ends. */
struct request {
    int n;
    int64_t axes[SOL_MAX_RANK], sizes[SOL_MAX_RANK];
    float scales[SOL_MAX_RANK], roi[2 * SOL_MAX_RANK];
    bool has_sizes, keeps_ratio;
};

/* With not_larger or not_smaller, all dims get the smallest or the largest scale. */
static void keep_ratio(struct op_call *c, struct request *r) {
    const char *policy = call_string(c, "keep_aspect_ratio_policy");
    bool is_smaller = !strcmp(policy, "not_smaller");
    double scale = is_smaller ? 0 : INFINITY;
    r->keeps_ratio = r->has_sizes && (is_smaller || !strcmp(policy, "not_larger"));
    if (*policy && !import_has_word("stretch not_larger not_smaller", policy))
        call_fail(c, fail(SOL_EUNSUPPORTED, "keep_aspect_ratio_policy \"%.32s\"", policy));
    for (int i = 0; i < r->n && r->keeps_ratio; i++) {
        double one = (double)r->sizes[i] / (double)call_dim(c, 0, (int)r->axes[i]);
        scale = is_smaller ? fmax(scale, one) : fmin(scale, one);
    }
    for (int i = 0; i < r->n && r->keeps_ratio; i++) {
        r->scales[i] = (float)scale;
        r->sizes[i] =
            (int64_t)fmin(2 * MAX_SIZE, scale * (double)call_dim(c, 0, (int)r->axes[i]) + 0.5);
    }
}

/* Inputs of Resize: x, roi, scales, sizes. Before opset 11, and of Upsample: x, scales. */
static enum sol_status read_request(struct op_call *c, struct request *r, bool crops) {
    bool is_old = c->im->opset < 11 || !strcmp(c->op->name, "Upsample");
    r->n = read_axes(c, call_rank(c, 0), r->axes);
    r->has_sizes = call_has(c, 3);
    int found = r->has_sizes ? call_input_ints(c, 3, SOL_MAX_RANK, r->sizes)
                             : read_floats(c, is_old ? 1 : 2, SOL_MAX_RANK, r->scales);
    if (found != r->n && !c->im->status)
        return fail(SOL_EINVAL, "%d scales for %d dims", found, r->n);
    if (crops && read_floats(c, 1, 2 * SOL_MAX_RANK, r->roi) != 2 * r->n && !c->im->status)
        return fail(SOL_EINVAL, "a region of other than %d numbers", 2 * r->n);
    keep_ratio(c, r);
    return c->im->status;
}

/* Resizes the dim of entry `i` of the request. */
static sol_tensor stretch_entry(struct op_call *c, sol_tensor x, const struct request *r, int i,
                                struct stretch *s, struct pending *pending) {
    int d = (int)r->axes[i], rank = call_rank(c, 0);
    double given = (double)r->scales[i];
    bool stays = r->has_sizes ? size_is(c->in[0]->dim[d], r->sizes[i]) : given == 1;
    if (stays && !s->crops) return x;
    if (!r->has_sizes && !size_is_const(c->in[0]->dim[d]))
        return repeat_dim(c, x, d, rank, given, s);
    double size = (double)call_dim(c, 0, d);
    s->start = (double)r->roi[i];
    s->end = (double)r->roi[r->n + i];
    double part = s->crops ? s->end - s->start : 1;
    if (!r->has_sizes && !(given > 0 && given * size * part < MAX_SIZE)) {
        call_fail(c, fail(SOL_EINVAL, "a scale of %g", given));
        return x;
    }
    s->n = r->has_sizes ? r->sizes[i] : (int64_t)floor(size * part * given);
    s->scale = r->has_sizes && !r->keeps_ratio ? (double)s->n / size : given;
    return stretch_dim(c, x, d, rank, s, pending);
}

enum sol_status op_resize(struct op_call *c) {
    struct stretch s = read_stretch(c);
    struct request r = {0};
    struct pending pending = {0};
    TRY(check_resize(c, &s));
    TRY(read_request(c, &r, s.crops));
    sol_tensor x = call_tensor(c, 0);
    enum sol_dtype own = call_dtype(c, x);
    bool is_whole = size_family(own) != FAMILY_FLOAT && strcmp(s.mode, "nearest") != 0;
    if (is_whole) x = call_cast(c, x, SOL_F32);
    for (int i = 0; i < r.n && !c->im->status; i++) x = stretch_entry(c, x, &r, i, &s, &pending);
    x = resample(c, x, &pending);
    if (is_whole) x = call_cast(c, LAYER1(c, "round", x, ""), own);
    return call_set_output(c, 0, x);
}

/*
 * Resize and Upsample, dim by dim.
 *
 * Each value of the result has a position between the input's values, which depends on sizes only (find_place). Mode nearest is a
 * gather of the nearest value. Modes linear and cubic are a weighted sum of two or four taps: each is a gather, multiplied by a
 * parameter with a weight per position. Dims are resized one after the other, since the weights of a point are products over the
 * dims. A tap outside the input reads the edge, so indices are clamped, unless exclude_outside gives it the weight 0.
 */
#include "import.h"

#include <math.h>
#include <string.h>

#define MAX_SIZE 65536 /* of a dim */

/* The resizing of one dim: `size` values become `n`; `scale` is n / size, or that of the file. */
struct stretch {
    const char *mode, *coordinates, *nearest;
    int64_t size, n;
    double scale;
    double cubic;
    bool drops_outside;
};

/* The position in the input of value `i` of the result. */
static double find_place(const struct stretch *s, int64_t i) {
    double x = (double)i, last = (double)s->size - 1;
    if (!strcmp(s->coordinates, "asymmetric")) return x / s->scale;
    double width = s->scale * (double)s->size; /* before it is rounded down to n */
    if (!strcmp(s->coordinates, "align_corners")) return s->n > 1 ? x * last / (width - 1) : 0;
    if (!strcmp(s->coordinates, "pytorch_half_pixel") && s->n == 1) return 0;
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

/* The weight of tap `k`, when the position is `t` after tap 0 (linear) or tap 1 (cubic, after Keys). */
static double weigh(const struct stretch *s, int k, double t) {
    double a = s->cubic, d = fabs(t + 1 - k);
    if (!strcmp(s->mode, "linear")) return k ? t : 1 - t;
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

/* The indices and weights of tap `k` for all results. Weights are divided by their sum, which differs from 1 only if taps are
 * dropped. */
static void fill_tap(const struct stretch *s, int k, int n_taps, int64_t *index, float *weight) {
    for (int64_t i = 0; i < s->n; i++) {
        double x = find_place(s, i), first = floor(x) - (n_taps == 4);
        double sum = 0, mine = 0;
        for (int j = 0; j < n_taps; j++) {
            double at = first + j, w = weigh(s, j, x - floor(x));
            if (s->drops_outside && (at < 0 || at >= (double)s->size)) w = 0;
            sum += w;
            if (j == k) mine = w;
        }
        index[i] = max_i64(0, min_i64((int64_t)first + k, s->size - 1));
        weight[i] = (float)(mine / sum);
    }
}

/* Linear or cubic, along dim `d` of `rank`. Weights have dims of 1 after dim `d`, to broadcast. */
static sol_tensor stretch_weighted(struct op_call *c, sol_tensor x, int d, int rank,
                                   const struct stretch *s) {
    int n_taps = !strcmp(s->mode, "linear") ? 2 : 4;
    int64_t shape[SOL_MAX_RANK];
    sol_tensor sum = -1;
    for (int i = 0; i < rank - d; i++) shape[i] = i ? 1 : s->n;
    for (int k = 0; k < n_taps && !c->im->status; k++) {
        int64_t *index = ARENA_ARRAY(c->im->arena, int64_t, s->n);
        float *weight = ARENA_ARRAY(c->im->arena, float, s->n);
        fill_tap(s, k, n_taps, index, weight);
        sol_tensor tap = LAYER2(c, "mul", call_pick(c, x, d, s->n, index),
                                call_param(c, SOL_F32, rank - d, shape, weight), "");
        sum = k ? LAYER2(c, "add", sum, tap, "") : tap;
    }
    return sum;
}

static sol_tensor stretch_nearest(struct op_call *c, sol_tensor x, int d, const struct stretch *s) {
    int64_t *index = ARENA_ARRAY(c->im->arena, int64_t, s->n);
    for (int64_t i = 0; i < s->n; i++)
        index[i] = max_i64(0, min_i64(round_place(s->nearest, find_place(s, i)), s->size - 1));
    return call_pick(c, x, d, s->n, index);
}

/* The floats of input `i`, which must be known; returns their count. */
static int read_floats(struct op_call *c, int i, float out[SOL_MAX_RANK]) {
    struct import_value *v = call_has(c, i) ? c->in[i] : NULL;
    if (!v || (v->rank == 1 && size_is(v->dim[0], 0))) return 0;
    const void *at = call_read_bytes(v);
    bool is_known =
        at && v->dtype == SOL_F32 && v->rank == 1 && size_value(v->dim[0]) <= SOL_MAX_RANK;
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

static sol_tensor stretch_dim(struct op_call *c, sol_tensor x, int d, int rank, struct stretch *s) {
    s->size = call_dim(c, 0, d);
    if (s->n < 1 || s->n > MAX_SIZE || s->size < 1)
        call_fail(
            c, fail(SOL_EUNSUPPORTED, "%lld values of %lld", (long long)s->n, (long long)s->size));
    if (c->im->status) return -1;
    return !strcmp(s->mode, "nearest") ? stretch_nearest(c, x, d, s)
                                       : stretch_weighted(c, x, d, rank, s);
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
    const char *policy = call_string(c, "keep_aspect_ratio_policy");
    if (strcmp(s->mode, "nearest") && strcmp(s->mode, "linear") && strcmp(s->mode, "cubic"))
        return fail(SOL_EUNSUPPORTED, "mode \"%.32s\"", s->mode);
    if (!strcmp(s->coordinates, "tf_crop_and_resize"))
        return fail(SOL_EUNSUPPORTED, "tf_crop_and_resize");
    if (call_int(c, "antialias", 0)) return fail(SOL_EUNSUPPORTED, "antialias");
    if (*policy && strcmp(policy, "stretch") != 0)
        return fail(SOL_EUNSUPPORTED, "keep_aspect_ratio_policy \"%.32s\"", policy);
    return c->im->status;
}

/* Inputs of Resize: x, roi, scales, sizes. Before opset 11, and of Upsample: x, scales. */
enum sol_status op_resize(struct op_call *c) {
    struct stretch s = read_stretch(c);
    int64_t axes[SOL_MAX_RANK], sizes[SOL_MAX_RANK];
    float scales[SOL_MAX_RANK];
    TRY(check_resize(c, &s));
    bool is_old = c->im->opset < 11 || !strcmp(c->op->name, "Upsample"), has_sizes = call_has(c, 3);
    int rank = call_rank(c, 0), n = read_axes(c, rank, axes);
    int found = has_sizes ? call_input_ints(c, 3, SOL_MAX_RANK, sizes)
                          : read_floats(c, is_old ? 1 : 2, scales);
    if (found != n)
        return c->im->status ? c->im->status : fail(SOL_EINVAL, "%d scales for %d dims", found, n);
    sol_tensor x = call_tensor(c, 0);
    for (int i = 0; i < n; i++) {
        int d = (int)axes[i];
        if (has_sizes ? size_is(c->in[0]->dim[d], sizes[i]) : scales[i] == 1) continue;
        if (!has_sizes && !size_is_const(c->in[0]->dim[d])) {
            x = repeat_dim(c, x, d, rank, (double)scales[i], &s);
            continue;
        }
        double size = (double)call_dim(c, 0, d);
        if (!has_sizes && !(scales[i] > 0 && scales[i] * size < MAX_SIZE))
            return fail(SOL_EUNSUPPORTED, "a scale of %g", (double)scales[i]);
        s.n = has_sizes ? sizes[i] : (int64_t)floor(size * (double)scales[i]);
        s.scale = has_sizes ? (double)s.n / size : (double)scales[i];
        x = stretch_dim(c, x, d, rank, &s);
    }
    return call_set_output(c, 0, x);
}

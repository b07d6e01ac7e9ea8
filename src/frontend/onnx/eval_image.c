/*
 * Sampling images between their pixels: Resize, GridSample, AffineGrid, RoiAlign, DeformConv.
 *
 * They differ in how a point of the result is mapped to a position in the input, and in the values outside of it. Between pixels
 * they interpolate linearly or with a cubic. Positions are doubles that depend on files and data, so they are clamped before they
 * become indices: a cast of NaN or 1e30 to an integer would be undefined.
 */
#include "eval.h"

#include <math.h>
#include <string.h>

/* ---- Resize: one dim after the other, each output point a weighted sum of a few input points ---- */

enum mode { NEAREST, LINEAR, CUBIC };

/* Limits of a region of interest, relative to the size of the image; it may extend beyond the image. */
#define FARTHEST 1000

/* How one dim is resized. */
struct axis {
    int64_t in, out;
    double scale, start, end; /* start, end: of the region of interest, relative to `in` */
};

/* The attributes, and all dims. */
struct resize {
    enum mode mode;
    const char *transform, *nearest;
    double a, outside; /* coefficient of the cubic; value outside of the input */
    bool antialias, excludes, crops;
    struct axis axis[SOL_MAX_RANK];
};

/* The position in the input of output point `i`. */
static double source_of(const struct resize *r, const struct axis *x, int64_t i) {
    double at = (double)i, in = (double)x->in, out = (double)x->out;
    const char *t = r->transform;
    if (!strcmp(t, "asymmetric")) return at / x->scale;
    if (!strcmp(t, "align_corners")) return x->out > 1 ? at * (in - 1) / (x->scale * in - 1) : 0;
    if (!strcmp(t, "pytorch_half_pixel")) return x->out > 1 ? (at + 0.5) / x->scale - 0.5 : -0.5;
    if (!strcmp(t, "tf_half_pixel_for_nn")) return (at + 0.5) / x->scale;
    if (r->crops)
        return x->out > 1 ? x->start * (in - 1) + at * (x->end - x->start) * (in - 1) / (out - 1)
                          : 0.5 * (x->start + x->end) * (in - 1);
    double offset = 0;
    if (!strcmp(t, "half_pixel_symmetric")) offset = in / 2 * (1 - out / (x->scale * in));
    return offset + (at + 0.5) / x->scale - 0.5;
}

/* The weight of a pixel at a distance: Keys' cubic, a polynomial below 1, another one below 2, then 0. */
static double cubic(double distance, double a) {
    double d = fabs(distance);
    if (d < 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

/* Halfway between pixels, round_prefer_floor rounds down and round_prefer_ceil up, unlike C's rint, which rounds to even. */
static int64_t nearest_to(const struct resize *r, double at) {
    if (!strcmp(r->nearest, "floor")) return (int64_t)floor(at);
    if (!strcmp(r->nearest, "ceil")) return (int64_t)ceil(at);
    if (!strcmp(r->nearest, "round_prefer_ceil")) return (int64_t)floor(at + 0.5);
    return (int64_t)ceil(at - 0.5);
}

/* The weights of input points [*first, *first + n) for a point at `at`; returns n, at most `most`. With antialias, the filter is
 * widened by 1 / scale. */
static int64_t weigh(const struct resize *r, const struct axis *x, double at, int64_t *first,
                     double *weight, int64_t most) {
    if (r->mode == NEAREST) {
        *first = nearest_to(r, at);
        weight[0] = 1;
        return 1;
    }
    double widen = r->antialias && x->scale < 1 ? 1 / x->scale : 1, sum = 0;
    double reach = (r->mode == LINEAR ? 1 : 2) * widen;
    *first = (int64_t)ceil(at - reach);
    int64_t n = min_i64(most, max_i64(1, (int64_t)floor(at + reach) - *first + 1));
    for (int64_t k = 0; k < n; k++) {
        double d = ((double)(*first + k) - at) / widen;
        weight[k] = r->mode == LINEAR ? fmax(0, 1 - fabs(d)) : cubic(d, r->a);
        if (r->excludes && (*first + k < 0 || *first + k >= x->in)) weight[k] = 0;
        sum += weight[k];
    }
    for (int64_t k = 0; k < n && sum != 0; k++) weight[k] /= sum;
    return n;
}

/* Resizes [outer, in, inner] to [outer, out, inner]. Points outside the input read the edge. */
static double *resize_axis(struct eval *e, const struct resize *r, const struct axis *x,
                           const double *v, int64_t outer, int64_t inner) {
    double *y = SPACE_ARRAY(e->space, double, outer * x->out * inner);
    /* A filter covers at most 4 / scale pixels. The input dim limits it, too, since all pixels beyond an edge are equal. */
    int64_t most = x->scale < 1 ? (int64_t)fmin(4 / x->scale + 8, 4 * (double)x->in + 64) : 8;
    double *weight = SPACE_ARRAY(e->space, double, most);
    for (int64_t i = 0; i < x->out; i++) {
        double at = source_of(r, x, i);
        /* Only with crops does a point outside the input get the extrapolation value. */
        bool is_outside = r->crops && (at < 0 || at > (double)(x->in - 1));
        int64_t first, n = weigh(r, x, fmax(-4e9, fmin(4e9, at)), &first, weight, most);
        for (int64_t o = 0; o < outer; o++) {
            for (int64_t j = 0; j < inner; j++) {
                double sum = 0;
                for (int64_t k = 0; k < n; k++) {
                    int64_t from = max_i64(0, min_i64(first + k, x->in - 1));
                    sum += weight[k] * v[(o * x->in + from) * inner + j];
                }
                y[(o * x->out + i) * inner + j] = is_outside ? r->outside : sum;
            }
        }
    }
    return y;
}

/* Before opset 11 there are no attributes for coordinates: x / scale, rounded down for nearest. */
static void read_modes(struct eval *e, struct resize *r) {
    const char *mode = eval_string(e, "mode", "nearest");
    r->mode = !strcmp(mode, "linear") ? LINEAR : !strcmp(mode, "cubic") ? CUBIC : NEAREST;
    eval_check(e, r->mode || !strcmp(mode, "nearest"), "mode");
    bool is_old = e->opset < 11; /* or Upsample */
    r->transform =
        eval_word(e, "coordinate_transformation_mode", is_old ? "asymmetric" : "half_pixel",
                  "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric "
                  "tf_half_pixel_for_nn tf_crop_and_resize");
    r->nearest = eval_word(e, "nearest_mode", is_old ? "floor" : "round_prefer_floor",
                           "round_prefer_floor round_prefer_ceil floor ceil");
    r->a = eval_float(e, "cubic_coeff_a", -0.75);
    r->outside = eval_float(e, "extrapolation_value", 0);
    r->antialias = eval_int(e, "antialias", 0);
    r->excludes = eval_int(e, "exclude_outside", 0);
    r->crops = !strcmp(r->transform, "tf_crop_and_resize");
}

/* A computed size, rounded down. Large sizes are refused by allocation. */
static int64_t size_of(struct eval *e, double size) {
    eval_check(e, size >= 0 && size < 1e15, "a size out of range");
    return (int64_t)size;
}

/* Sets the sizes of the dims `named`. With not_larger or not_smaller, all dims get the smallest or the largest scale, which keeps
 * the aspect ratio. */
static void keep_ratio(struct eval *e, struct resize *r, const int *named, int n,
                       const int64_t *sizes) {
    const char *policy =
        eval_word(e, "keep_aspect_ratio_policy", "stretch", "stretch not_larger not_smaller");
    bool is_smaller = !strcmp(policy, "not_smaller");
    double scale = is_smaller ? 0 : INFINITY;
    for (int i = 0; i < n; i++) {
        double s = (double)sizes[i] / (double)r->axis[named[i]].in;
        scale = is_smaller ? fmax(scale, s) : fmin(scale, s);
    }
    for (int i = 0; i < n; i++) {
        struct axis *x = &r->axis[named[i]];
        bool stretches = !strcmp(policy, "stretch");
        x->out = stretches ? sizes[i] : size_of(e, scale * (double)x->in + 0.5);
        x->scale = stretches ? (double)x->out / (double)x->in : scale;
    }
}

/* Reads sizes or scales. Positions are computed with the scale of the file, even if out / in differs from it. */
static void read_sizes(struct eval *e, struct resize *r, const struct array *x, int scales_at,
                       const int *named, int n) {
    const struct array *scales =
        eval_has(e, scales_at) && eval_in(e, scales_at)->n ? e->in[scales_at] : NULL;
    int64_t *sizes;
    int n_sizes = scales_at == 2 ? eval_in_ints(e, 3, &sizes) : 0;
    const float *old;
    int n_old = scales_at == 1 && !scales ? eval_floats(e, "scales", &old) : 0;
    eval_check(e,
               n_sizes  ? n_sizes == n
               : scales ? scales->n == n
                        : n_old == x->rank,
               "neither sizes nor scales");
    for (int i = 0; i < n && !n_sizes; i++) {
        struct axis *axis = &r->axis[named[i]];
        axis->scale = scales ? array_double(scales, i) : (double)old[i];
        eval_check(e, axis->scale > 1e-9 && axis->scale < 1e9, "a scale out of range");
        double part = r->crops ? axis->end - axis->start : 1;
        axis->out = size_of(e, (double)axis->in * part * axis->scale);
    }
    if (n_sizes) keep_ratio(e, r, named, n, sizes);
}

/* The weights of a point are products over the dims, so dims are resized one after the other. Dims that do not change are
 * skipped. */
static void resize(struct eval *e, int scales_at) {
    const struct array *x = eval_in(e, 0),
                       *roi = scales_at == 2 && eval_has(e, 1) ? eval_in(e, 1) : NULL;
    const int64_t *axes;
    int named[SOL_MAX_RANK], n = eval_ints(e, "axes", &axes);
    bool seen[SOL_MAX_RANK] = {false};
    int64_t dim[SOL_MAX_RANK];
    struct resize r = {0};
    read_modes(e, &r);
    eval_check(e, n <= x->rank && x->n > 0, "axes, or an empty input");
    for (int i = 0; i < (n ? n : x->rank); i++)
        named[i] = n ? eval_axis_of_list(e, axes[i], x->rank, seen) : i;
    if (!n) n = x->rank;
    for (int d = 0; d < x->rank; d++) r.axis[d] = (struct axis){x->dim[d], x->dim[d], 1, 0, 1};
    for (int i = 0; i < n && roi && roi->n == 2 * n; i++) {
        r.axis[named[i]].start = array_double(roi, i);
        r.axis[named[i]].end = array_double(roi, n + i);
        bool is_near =
            fabs(r.axis[named[i]].start) < FARTHEST && fabs(r.axis[named[i]].end) < FARTHEST;
        eval_check(e, is_near, "a region out of range");
    }
    read_sizes(e, &r, x, scales_at, named, n);
    for (int d = 0; d < x->rank; d++) dim[d] = r.axis[d].out;
    struct array *y = eval_out(e, 0, x->type, x->rank, dim);
    double *v = array_doubles(e->space, x);
    for (int d = 0; d < x->rank && y->n; d++) {
        bool stays = r.axis[d].out == r.axis[d].in && r.axis[d].scale == 1 && !r.crops;
        int64_t outer = product(d, dim), inner = product(x->rank - d - 1, x->dim + d + 1);
        if (!stays) v = resize_axis(e, &r, &r.axis[d], v, outer, inner);
    }
    for (int64_t i = 0; i < y->n && is_integer(x->type) && r.mode != NEAREST; i++)
        v[i] = rint(v[i]);
    array_fill_doubles(y, v);
}

/* In opset 10, scales are input 1. */
void run_resize(struct eval *e) { resize(e, e->opset < 11 ? 1 : 2); }

/* The predecessor of Resize; its rules are those of opset 9. */
void run_upsample(struct eval *e) {
    e->opset = 9;
    resize(e, 1);
}

/* ---- Reading at a point ---- */

/* One channel of an image, with `n` spatial dims. */
struct plane {
    const double *v;
    int n;
    const int64_t *dim;
};
/* The value of a position outside the image: 0, the nearest pixel, or the mirrored image. */
enum beyond { ZEROS, BORDER, REFLECTION };

/* Reflects x at `low` and `high` until it is between them. */
static double reflect(double x, double low, double high) {
    double range = high - low;
    if (range <= 0) return 0;
    double d = fmod(fabs(x - low), 2 * range);
    return d > range ? high - (d - range) : low + d;
}

/* The pixel at `at`, which may be outside the image. */
static double pixel(const struct plane *p, const int64_t *at, enum beyond beyond, bool aligned) {
    int64_t offset = 0;
    for (int d = 0; d < p->n; d++) {
        int64_t i = at[d], last = p->dim[d] - 1;
        if (beyond == ZEROS && (i < 0 || i > last)) return 0;
        if (beyond == REFLECTION)
            i = (int64_t)reflect((double)i, aligned ? 0 : -0.5, (double)last + (aligned ? 0 : 0.5));
        offset = offset * p->dim[d] + max_i64(0, min_i64(i, last));
    }
    return p->v[offset];
}

/* Nearest, linear or cubic interpolation in all dims: the sum over all neighbours, each weighted by the product of its weights. */
static double interpolate(const struct plane *p, const double *at, enum mode mode,
                          enum beyond beyond, bool aligned) {
    int64_t size[SOL_MAX_RANK], place[SOL_MAX_RANK];
    int width = mode == LINEAR ? 2 : mode == CUBIC ? 4 : 1;
    double sum = 0;
    struct walk k;
    for (int d = 0; d < p->n; d++) size[d] = width;
    walk_init(&k, p->n, size);
    for (int64_t t = 0; t < k.n; t++, walk_next(&k)) {
        double weight = 1;
        for (int d = 0; d < p->n; d++) {
            place[d] = mode == NEAREST ? (int64_t)rint(at[d])
                                       : (int64_t)floor(at[d]) - (width / 2 - 1) + k.at[d];
            double away = at[d] - (double)place[d];
            if (mode == LINEAR) weight *= 1 - fabs(away);
            if (mode == CUBIC) weight *= cubic(away, -0.75);
        }
        if (weight != 0) sum += weight * pixel(p, place, beyond, aligned);
    }
    return sum;
}

/* ---- GridSample ---- */

/* The attributes. */
struct sampling {
    enum mode mode;
    enum beyond beyond;
    bool aligned; /* -1 and 1 are the centers of the outermost pixels, not their outer edges */
};

/* The modes are bilinear and bicubic in opset 16, linear and cubic in opset 20. */
static struct sampling read_sampling(struct eval *e) {
    const char *mode = eval_string(e, "mode", "linear");
    const char *beyond = eval_string(e, "padding_mode", "zeros");
    struct sampling s = {LINEAR, ZEROS, eval_int(e, "align_corners", 0)};
    if (!strcmp(mode, "nearest")) s.mode = NEAREST;
    else if (!strcmp(mode, "cubic") || !strcmp(mode, "bicubic")) s.mode = CUBIC;
    else eval_check(e, !strcmp(mode, "linear") || !strcmp(mode, "bilinear"), "mode");
    if (!strcmp(beyond, "border")) s.beyond = BORDER;
    else if (!strcmp(beyond, "reflection")) s.beyond = REFLECTION;
    else eval_check(e, !strcmp(beyond, "zeros"), "padding_mode");
    return s;
}

/* Clamps a position, so that it can be cast to an integer; NaN becomes a position outside. */
static double tame(double at) { return at == at ? fmax(-1e9, fmin(1e9, at)) : -1e9; }

/* Maps [-1, 1] to pixels of a dim, and moves a point outside into the image. For the cubic, `pixel` moves each
 * neighbour instead. */
static double pixel_of(const struct sampling *s, double g, int64_t size) {
    double last = (double)size - 1,
           at = s->aligned ? (g + 1) / 2 * last : ((g + 1) * (last + 1) - 1) / 2;
    double low = s->aligned ? 0 : -0.5, high = s->aligned ? last : last + 0.5;
    if (s->beyond == REFLECTION && s->mode != CUBIC && (at < low || at > high))
        at = reflect(at, low, high);
    if (s->beyond == BORDER && s->mode != CUBIC) at = fmax(0, fmin(last, at));
    return tame(at);
}

/* Each output point samples the image at the position of the grid, in all channels. */
void run_grid_sample(struct eval *e) {
    const struct array *x = eval_in(e, 0), *grid = eval_in(e, 1);
    struct sampling s = read_sampling(e);
    int n = x->rank - 2;
    int64_t dim[SOL_MAX_RANK] = {0};
    eval_check(e,
               n > 0 && grid->rank == x->rank && grid->dim[n + 1] == n && grid->dim[0] == x->dim[0],
               "shapes that do not fit");
    memcpy(dim, x->dim, 2 * sizeof *dim);
    memcpy(dim + 2, grid->dim + 1, (size_t)n * sizeof *dim);
    struct array *y = eval_out(e, 0, x->type, x->rank, dim);
    double *v = array_doubles(e->space, x), at[SOL_MAX_RANK];
    int64_t points = product(n, dim + 2), size = product(n, x->dim + 2);
    eval_check(e, size > 0 || !y->n, "an empty image");
    for (int64_t i = 0; i < y->n; i++) {
        int64_t place = (i / (points * dim[1]) * points + i % points) * n;
        /* The coordinates of a point begin with the innermost dim. */
        for (int d = 0; d < n; d++)
            at[d] = pixel_of(&s, array_double(grid, place + n - 1 - d), x->dim[2 + d]);
        struct plane p = {v + i / points * size, n, x->dim + 2};
        array_set_double(y, i, interpolate(&p, at, s.mode, s.beyond, s.aligned));
    }
}

/* Multiplies positions, from -1 to 1 in each dim, by a matrix per sample. */
void run_affine_grid(struct eval *e) {
    const struct array *theta = eval_in(e, 0);
    int64_t *size, dim[SOL_MAX_RANK];
    int n = eval_in_ints(e, 1, &size) - 2;
    bool aligned = eval_int(e, "align_corners", 0);
    eval_check(e,
               (n == 2 || n == 3) && theta->rank == 3 && theta->dim[1] == n &&
                   theta->dim[2] == n + 1 && theta->dim[0] == size[0],
               "shapes that do not fit");
    dim[0] = size[0];
    memcpy(dim + 1, size + 2, (size_t)n * sizeof *dim);
    dim[n + 1] = n;
    struct array *y = eval_out(e, 0, theta->type, n + 2, dim);
    struct walk walk;
    walk_init(&walk, n + 2, dim);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk)) {
        int64_t row = (walk.at[0] * n + walk.at[n + 1]) * (n + 1);
        double sum = array_double(theta, row + n);
        for (int d = 0; d < n; d++) {
            double at = (double)walk.at[1 + d], count = (double)dim[1 + d];
            double place =
                aligned ? count > 1 ? 2 * at / (count - 1) - 1 : 0 : (2 * at + 1) / count - 1;
            sum += array_double(theta, row + n - 1 - d) * place;
        }
        array_set_double(y, i, sum);
    }
}

/* ---- RoiAlign ---- */

/* Linear interpolation; 0 for positions more than one pixel outside the image. `takes_most`: the largest weighted corner instead
 * of the sum. */
static double sample_region(const struct plane *p, double row, double column, bool takes_most) {
    double at[2] = {row, column}, most = -INFINITY, sum = 0;
    int64_t low[2];
    for (int d = 0; d < 2; d++) {
        if (at[d] < -1 || at[d] > (double)p->dim[d]) return 0;
        at[d] = fmax(0, at[d]);
        low[d] = min_i64((int64_t)at[d], p->dim[d] - 1);
        if (low[d] == p->dim[d] - 1) at[d] = (double)low[d];
    }
    for (int k = 0; k < 4; k++) {
        double y = at[0] - (double)low[0], x = at[1] - (double)low[1];
        double weight = (k & 2 ? y : 1 - y) * (k & 1 ? x : 1 - x);
        int64_t r = min_i64(low[0] + (k >> 1), p->dim[0] - 1),
                c = min_i64(low[1] + (k & 1), p->dim[1] - 1);
        double value = weight * p->v[r * p->dim[1] + c];
        sum += value;
        most = fmax(most, value);
    }
    return takes_most ? most : sum;
}

/* A region of one channel, in pixels, divided into bins. */
struct region {
    struct plane plane;
    double top, left, bin_height, bin_width;
    int64_t n_rows, n_columns; /* samples in a bin */
};

/* The number of samples along one dim of a bin: `fixed`, or if that is 0, the size of the bin in pixels, rounded up. */
static int64_t count_samples(int64_t fixed, double size) {
    return fixed ? fixed : (int64_t)fmax(0, fmin(1024, ceil(size)));
}

/* The mean of the samples of one bin, or their maximum. */
static double pool_region(const struct region *r, int64_t row, int64_t column, bool is_max) {
    double sum = 0, most = -INFINITY;
    int64_t n = r->n_rows * r->n_columns;
    for (int64_t k = 0; k < n; k++) {
        double y = (double)row + ((double)(k / r->n_columns) + 0.5) / (double)r->n_rows;
        double x = (double)column + ((double)(k % r->n_columns) + 0.5) / (double)r->n_columns;
        double value = sample_region(&r->plane, r->top + r->bin_height * y,
                                     r->left + r->bin_width * x, is_max);
        sum += value;
        most = fmax(most, value);
    }
    return is_max ? most : sum / (double)max_i64(1, n);
}

/* `corner`: left, top, right, bottom. In the old coordinate mode, without the shift by half a pixel of opset 16, a region is at
 * least one pixel large. */
static void place_region(struct eval *e, const double corner[4], int64_t rows, int64_t columns,
                         struct region *r) {
    bool is_old =
        e->opset < 16 || eval_is(e, "coordinate_transformation_mode", "output_half_pixel");
    double scale = eval_float(e, "spatial_scale", 1), half = is_old ? 0 : 0.5;
    int64_t fixed = eval_int(e, "sampling_ratio", 0);
    eval_check(e, fixed >= 0 && fixed < 1024, "sampling_ratio");
    r->left = corner[0] * scale - half;
    r->top = corner[1] * scale - half;
    double width = corner[2] * scale - half - r->left, height = corner[3] * scale - half - r->top;
    r->bin_width = (is_old ? fmax(width, 1) : width) / (double)columns;
    r->bin_height = (is_old ? fmax(height, 1) : height) / (double)rows;
    r->n_rows = count_samples(fixed, r->bin_height);
    r->n_columns = count_samples(fixed, r->bin_width);
}

/* The result is [regions, channels, rows, columns]: each region of interest, resampled to the same size. */
void run_roi_align(struct eval *e) {
    const struct array *x = eval_in(e, 0), *rois = eval_in(e, 1), *batch = eval_in(e, 2);
    int64_t rows = eval_int(e, "output_height", 1), columns = eval_int(e, "output_width", 1);
    bool is_max = eval_is(e, "mode", "max");
    eval_check(e,
               x->rank == 4 && rois->rank == 2 && rois->dim[1] == 4 && batch->n == rois->dim[0] &&
                   rows > 0 && columns > 0 && product(2, x->dim + 2) > 0,
               "shapes that do not fit");
    struct array *y =
        eval_out(e, 0, x->type, 4, (int64_t[]){rois->dim[0], x->dim[1], rows, columns});
    double *v = array_doubles(e->space, x), *corners = array_doubles(e->space, rois);
    int64_t bins = rows * columns, size = x->dim[2] * x->dim[3];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t roi = i / bins / x->dim[1], image = eval_index(e, array_int(batch, roi), x->dim[0]);
        struct region r = {
            .plane = {v + (image * x->dim[1] + i / bins % x->dim[1]) * size, 2, x->dim + 2}};
        place_region(e, corners + 4 * roi, rows, columns, &r);
        array_set_double(y, i, pool_region(&r, i / columns % rows, i % columns, is_max));
    }
}

/* ---- DeformConv: an offset moves each tap of the kernel, and a mask weights it ---- */

/* Inputs and attributes. Offsets and masks have a plane of points for each tap of each group. */
struct deform {
    int n; /* spatial dims */
    const struct array *x, *weight, *offset, *mask;
    const double *v, *w;
    int64_t groups, offset_groups, taps, points;
    int64_t pad[SOL_MAX_RANK], stride[SOL_MAX_RANK], dilation[SOL_MAX_RANK];
};

/* An attribute of `most` integers, of which the first `n` are used: of the pads only those at the begin, since the size of the
 * result is that of the offsets. */
static void read_moves(struct eval *e, const char *name, int most, int n, int64_t default_value,
                       int64_t *out) {
    const int64_t *list;
    int found = eval_ints(e, name, &list);
    eval_check(e, !found || found == most, "an attribute of another length");
    for (int d = 0; d < n; d++) out[d] = found ? list[d] : default_value;
    for (int d = 0; d < n; d++)
        eval_check(e, out[d] >= 0 && out[d] <= INT32_MAX, "an attribute out of range");
}

/* Reads inputs and attributes; `dim` becomes the dims of the result. */
static struct deform read_deform(struct eval *e, int64_t dim[SOL_MAX_RANK]) {
    struct deform d = {.x = eval_in(e, 0), .weight = eval_in(e, 1), .offset = eval_in(e, 2)};
    const int64_t *x = d.x->dim, *w = d.weight->dim;
    d.n = d.x->rank - 2;
    d.mask = eval_has(e, 4) ? eval_in(e, 4) : NULL;
    d.groups = eval_int(e, "group", 1);
    d.offset_groups = eval_int(e, "offset_group", 1);
    eval_check(e,
               d.n > 0 && d.weight->rank == d.x->rank && d.offset->rank == d.x->rank &&
                   d.groups > 0 && d.offset_groups > 0 && w[1] * d.groups == x[1] &&
                   w[0] % d.groups == 0 && x[1] % d.offset_groups == 0,
               "shapes that do not fit");
    read_moves(e, "pads", 2 * d.n, d.n, 0, d.pad);
    read_moves(e, "strides", d.n, d.n, 1, d.stride);
    read_moves(e, "dilations", d.n, d.n, 1, d.dilation);
    memcpy(dim, d.offset->dim, sizeof d.offset->dim);
    dim[1] = w[0];
    d.taps = product(d.n, w + 2);
    d.points = product(d.n, dim + 2);
    eval_check(e, dim[0] == x[0] && d.offset->dim[1] == d.offset_groups * d.taps * d.n,
               "offsets that do not fit");
    eval_check(e, !d.mask || d.mask->n == x[0] * d.offset_groups * d.taps * d.points,
               "a mask that does not fit");
    d.v = array_doubles(e->space, d.x);
    d.w = array_doubles(e->space, d.weight);
    return d;
}

/* The sum over the taps of one input channel at the point of `o`, whose offset within a plane of the result is `point`. */
static double deform_channel(const struct deform *d, const struct walk *o, int64_t channel,
                             const double *w, int64_t point) {
    int64_t size = product(d->n, d->x->dim + 2),
            group = channel / (d->x->dim[1] / d->offset_groups);
    struct plane p = {d->v + (o->at[0] * d->x->dim[1] + channel) * size, d->n, d->x->dim + 2};
    double sum = 0, at[SOL_MAX_RANK];
    struct walk k;
    walk_init(&k, d->n, d->weight->dim + 2);
    for (int64_t t = 0; t < d->taps; t++, walk_next(&k)) {
        int64_t tap = (o->at[0] * d->offset_groups + group) * d->taps + t;
        for (int i = 0; i < d->n; i++)
            at[i] =
                tame((double)(o->at[2 + i] * d->stride[i] - d->pad[i] + k.at[i] * d->dilation[i]) +
                     array_double(d->offset, (tap * d->n + i) * d->points + point));
        double factor = d->mask ? array_double(d->mask, tap * d->points + point) : 1;
        sum += factor * w[t] * interpolate(&p, at, LINEAR, ZEROS, false);
    }
    return sum;
}

/* A convolution whose taps are moved by offsets, which are an input. Values between pixels are interpolated; those
 * outside are 0. */
void run_deform_conv(struct eval *e) {
    int64_t dim[SOL_MAX_RANK];
    struct deform d = read_deform(e, dim);
    struct array *y = eval_out(e, 0, d.x->type, d.x->rank, dim);
    int64_t per = d.weight->dim[1], features = d.weight->dim[0];
    eval_check(e, !eval_has(e, 3) || eval_in(e, 3)->n == features, "a bias that does not fit");
    struct walk o;
    walk_init(&o, d.x->rank, dim);
    for (int64_t i = 0; i < y->n; i++, walk_next(&o)) {
        int64_t m = o.at[1], first = m / (features / d.groups) * per;
        double sum = eval_has(e, 3) ? array_double(e->in[3], m) : 0;
        for (int64_t c = 0; c < per; c++)
            sum += deform_channel(&d, &o, first + c, d.w + (m * per + c) * d.taps, i % d.points);
        array_set_double(y, i, sum);
    }
}

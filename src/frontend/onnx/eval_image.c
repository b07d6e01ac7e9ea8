/*
 * Sampling images between their pixels, at positions that are inputs: RoiAlign, DeformConv.
 *
 * Positions are doubles that depend on files and data, so they are clamped before they become indices: a cast of NaN or 1e30 to an
 * integer would be undefined.
 */
#include "eval.h"

#include <math.h>
#include <string.h>

/* ---- Reading at a point ---- */

/* One channel of an image, with `n` spatial dims. */
struct plane {
    const double *v;
    int n;
    const int64_t *dim;
};

/* The pixel at `at`; 0 outside the image. */
static double pixel(const struct plane *p, const int64_t *at) {
    int64_t offset = 0;
    for (int d = 0; d < p->n; d++) {
        if (at[d] < 0 || at[d] >= p->dim[d]) return 0;
        offset = offset * p->dim[d] + at[d];
    }
    return p->v[offset];
}

/* Linear interpolation in all dims: the sum over all neighbours, each weighted by the product of its weights. */
static double interpolate(const struct plane *p, const double *at) {
    int64_t size[SOL_MAX_RANK], place[SOL_MAX_RANK];
    double sum = 0;
    struct walk k;
    for (int d = 0; d < p->n; d++) size[d] = 2;
    walk_init(&k, p->n, size);
    for (int64_t t = 0; t < k.n; t++, walk_next(&k)) {
        double weight = 1;
        for (int d = 0; d < p->n; d++) {
            place[d] = (int64_t)floor(at[d]) + k.at[d];
            weight *= 1 - fabs(at[d] - (double)place[d]);
        }
        if (weight != 0) sum += weight * pixel(p, place);
    }
    return sum;
}

/* Clamps a position, so that it can be cast to an integer; NaN becomes a position outside. */
static double tame(double at) { return at == at ? fmax(-1e9, fmin(1e9, at)) : -1e9; }

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
        sum += factor * w[t] * interpolate(&p, at);
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

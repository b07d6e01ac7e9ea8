/*
 * The tensors of a job, its results by a naive loop, and its run.
 *
 * Memory that a kernel must not read holds NaN; memory that it must not write holds a mark. Buffers end exactly after their last value, so
 * ASan finds accesses beyond it.
 */
#include "../unit/check.h"
#include "channels.h"
#include "job.h"

#include <math.h>

/* ---- Tensors ---- */

/* Memory of exactly n floats, `place` floats after an aligned address. */
static float *new_floats(struct job_data *d, int64_t n, int place, float value) {
    size_t size = (size_t)(n + place) * sizeof(float);
    void *memory = NULL;
    REQUIRE(!posix_memalign(&memory, 64, size ? size : 1));
    d->memory[d->n_memory++] = memory;
    float *at = (float *)memory + place;
    for (int64_t i = 0; i < n; i++) at[i] = value;
    return at;
}

static float *new_random(struct random *r, struct job_data *d, int64_t n, int place) {
    float *at = new_floats(d, n, place, 0);
    for (int64_t i = 0; i < n; i++) at[i] = random_float(r, -1, 1);
    return at;
}

/* Samples of `channels` x `pixels`: random values, 0 in pad lanes, NaN in the gaps between
 * samples. */
static float *new_images(struct random *r, struct job_data *d, const struct job *j, int channels,
                         const int *map, bool plain, int64_t pixels, int64_t gap) {
    int64_t stride = channels * pixels + gap, n = j->batch ? j->batch * stride - gap : 0;
    float *at = new_floats(d, n, plain ? j->place : 0, NAN);
    const struct images images = {j->batch, stride, pixels, channels, j->p.lanes, map, plain};
    fill_images(r, &images, at);
    return at;
}

/* One value per stored channel, 0 for padding. */
static float *new_vector(struct random *r, struct job_data *d, int channels, const int *map) {
    float *at = new_random(r, d, channels, 0);
    for (int c = 0; c < channels; c++)
        if (map && map[c] < 0) at[c] = 0;
    return at;
}

/* Memory of y: NaN in samples, a mark in the gaps between them. */
static float *new_output(struct job_data *d, const struct job *j) {
    const struct dnn_problem *p = &j->p;
    int64_t image = (int64_t)p->k * job_points_out(p), stride = image + j->y_gap;
    float *y = new_floats(d, j->batch ? j->batch * stride - j->y_gap : 0, p->y_plain ? j->place : 0,
                          JOB_MARK);
    for (int64_t n = 0; n < j->batch; n++)
        for (int64_t i = 0; i < image; i++) y[n * stride + i] = NAN;
    return y;
}

/* Rounds to bf16, to the nearest. */
static void round_floats(float *at, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &at[i], sizeof bits);
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
        if (at[i] == at[i]) memcpy(&at[i], &bits, sizeof bits);
    }
}

static void make_data(struct random *r, const struct job *j, struct job_data *d) {
    const struct dnn_problem *p = &j->p;
    int64_t pixels = job_points_in(p), out = job_points_out(p);
    d->x = new_images(r, d, j, p->c, p->c_map, p->x_plain, pixels, j->x_gap);
    d->weight =
        new_random(r, d, (int64_t)p->k_model * (p->c_model / p->groups) * job_taps(p), j->place);
    if (j->rounded) {
        round_floats(d->x, j->batch ? j->batch * (p->c * pixels + j->x_gap) - j->x_gap : 0);
        round_floats(d->weight, (int64_t)p->k_model * (p->c_model / p->groups) * job_taps(p));
    }
    if (p->bias) d->bias = new_vector(r, d, p->k, p->k_map);
    if (p->residual)
        d->residual = new_images(r, d, j, p->k, p->k_map, p->residual_plain, out, j->residual_gap);
    if (p->prologue) d->scale = new_vector(r, d, p->c, p->c_map);
    if (p->prologue) d->shift = new_vector(r, d, p->c, p->c_map);
    d->y = new_output(d, j);
    d->again = new_output(d, j);
}

void job_free(struct job_data *d) {
    for (int i = 0; i < d->n_memory; i++) free(d->memory[i]);
    free(d->expected);
}

/* ---- The naive loop ---- */

/* P(x[n, c, row, col]) of struct dnn_problem (dnn/dnn.h); c counts stored channels. */
static double read_x(const struct job *j, const struct job_data *d, int64_t n, int c, int64_t plane,
                     int64_t row, int64_t col) {
    const struct dnn_problem *p = &j->p;
    int64_t pixels = job_points_in(p);
    if (plane < 0 || (p->kd && plane >= p->d)) return 0;
    if (row < 0 || row >= p->h || col < 0 || col >= p->w) return 0;
    const float *image = d->x + n * (p->c * pixels + j->x_gap);
    double v = (double)
        image[locate_pixel(p->lanes, p->x_plain, pixels, c, (plane * p->h + row) * p->w + col)];
    return p->prologue ? fmax(v * d->scale[c] + d->shift[c], (double)p->prologue_min) : v;
}

/* The position in x that a window's row or column i reads for position `at` of y; -1: none. */
static int64_t find_source(bool transposed, int64_t at, int64_t step, int64_t pad, int64_t i) {
    if (!transposed) return at * step - pad + i;
    return (at + pad - i) % step || at + pad < i ? -1 : (at + pad - i) / step;
}

/* The weights between two channels of the model, of one group. */
static const float *find_weights(const struct dnn_problem *p, const float *weight, int64_t k,
                                 int64_t c) {
    const int64_t in = p->c_model / p->groups, out = p->k_model / p->groups,
                  pair = p->transposed || p->turned ? c * out + k % out : k * in + c % in;
    return weight + pair * job_taps(p);
}

/* The sum for model channel k at a pixel. *size becomes the root of the sum of squared
 * products. */
static double sum_products(const struct job *j, const struct job_data *d, int64_t n, int k,
                           int64_t pixel, double *size) {
    const struct dnn_problem *p = &j->p;
    int per_group = p->c_model / p->groups, first = k / (p->k_model / p->groups) * per_group;
    double sum = 0, squares = 0;
    for (int c = 0; c < p->c; c++) {
        int model = p->c_map ? p->c_map[c] : c;
        if (model < first || model >= first + per_group) continue;
        const float *w = find_weights(p, d->weight, k, model);
        for (int i = 0; i < job_taps(p); i++) {
            const int64_t plane =
                pixel / (p->oh * p->ow) * p->sd - p->pd + i / (p->kh * p->kw) * p->dd;
            int64_t row = find_source(p->transposed, pixel / p->ow % p->oh, p->sh, p->pt,
                                      i / p->kw % p->kh * p->dh);
            int64_t col =
                find_source(p->transposed, pixel % p->ow, p->sw, p->pl, i % p->kw * p->dw);
            const int tap = p->turned ? job_taps(p) - 1 - i : i;
            double product = read_x(j, d, n, c, plane, row, col) * w[tap];
            sum += product;
            squares += product * product;
        }
    }
    *size = fmax(*size, sqrt(squares));
    return sum;
}

static double clamp_output(const struct dnn_problem *p, double v) {
    if (p->act == DNN_ACT_RELU) return fmax(v, 0);
    if (p->act == DNN_ACT_CLAMP) return fmin(fmax(v, (double)p->act_min), (double)p->act_max);
    return v;
}

void job_expect(const struct job *j, struct job_data *d) {
    const struct dnn_problem *p = &j->p;
    int64_t out = job_points_out(p), residual_stride = p->k * out + j->residual_gap;
    d->expected = calloc((size_t)(j->batch * p->k * out + 1), sizeof *d->expected);
    REQUIRE(d->expected);
    for (int64_t n = 0; n < j->batch; n++)
        for (int k = 0; k < p->k; k++)
            for (int64_t i = 0; i < out; i++) {
                int model = p->k_map ? p->k_map[k] : k;
                if (model < 0) continue; /* pad lanes hold 0 */
                double v = sum_products(j, d, n, model, i, &d->scale_of_y);
                int64_t at =
                    n * residual_stride + locate_pixel(p->lanes, p->residual_plain, out, k, i);
                if (p->bias) v += (double)d->bias[k];
                if (p->residual) v += (double)d->residual[at];
                d->scale_of_y = fmax(d->scale_of_y, fabs(v));
                d->expected[(n * p->k + k) * out + i] = clamp_output(p, v) * (j->negated ? -1 : 1);
            }
}

/* ---- Running and comparing ---- */

/* `user` of the epilogue. */
struct shown {
    const struct job *job;
    const struct dnn_call *call;
};

static void negate(void *user, int64_t n, int64_t k_block, int64_t pixel, int n_pixels) {
    const struct shown *shown = user;
    const struct dnn_problem *p = &shown->job->p;
    int64_t lanes = p->kind == DNN_LINEAR ? 1 : p->lanes, out = job_points_out(p);
    float *place = shown->call->y + n * shown->call->y_stride + (k_block * out + pixel) * lanes;
    for (int64_t i = 0; i < n_pixels * lanes; i++) place[i] = -place[i];
}

static void set_call(const struct job *j, struct job_data *d, float *y) {
    const struct dnn_problem *p = &j->p;
    int64_t out = job_points_out(p);
    d->call = (struct dnn_call){.x = d->x,
                                .packed = d->packed,
                                .weight = d->weight,
                                .bias = d->bias,
                                .residual = d->residual,
                                .scale = d->scale,
                                .shift = d->shift,
                                .y = y,
                                .batch = j->batch,
                                .x_stride = p->c * job_points_in(p) + j->x_gap,
                                .y_stride = p->k * out + j->y_gap,
                                .residual_stride = p->k * out + j->residual_gap};
}

void job_run_tasks(const struct dnn_plan *plan, const struct job *j, struct job_data *d, float *y,
                   int64_t step, bool backwards) {
    int64_t n = plan->impl->n_tasks(plan, j->batch), ranges = ceil_div(n, step);
    set_call(j, d, y);
    struct shown shown = {j, &d->call};
    if (j->negated) d->call.epilogue = negate, d->call.epilogue_user = &shown;
    for (int64_t i = 0; i < ranges; i++) {
        int64_t begin = (backwards ? ranges - 1 - i : i) * step;
        plan->impl->run(plan, &d->call, d->scratch, begin, min_i64(n, begin + step));
    }
    d->call.epilogue_user = NULL;
}

void job_pack(struct random *r, const struct dnn_plan *plan, struct job_data *d) {
    int64_t n = plan->n_pack_tasks;
    bool backwards = random_int(r, 0, 1);
    for (int64_t i = 0; i < n; i++)
        plan->impl->pack(plan, d->weight, d->packed, backwards ? n - 1 - i : i);
}

void job_prepare(struct random *r, const struct dnn_plan *plan, struct job *j, struct job_data *d) {
    make_data(r, j, d);
    d->packed = new_floats(d, (int64_t)(plan->packed_size / sizeof(float)), 0, NAN);
    d->scratch = new_floats(d, (int64_t)(plan->scratch_size / sizeof(float)), 0, NAN);
}

double job_error(const struct job *j, const struct job_data *d) {
    const struct dnn_problem *p = &j->p;
    int64_t out = job_points_out(p), stride = p->k * out + j->y_gap;
    double worst = 0;
    for (int64_t n = 0; n < j->batch; n++)
        for (int k = 0; k < p->k; k++)
            for (int64_t i = 0; i < out; i++) {
                double y = (double)d->y[n * stride + locate_pixel(p->lanes, p->y_plain, out, k, i)];
                double error = fabs(y - d->expected[(n * p->k + k) * out + i]);
                bool padding = p->k_map && p->k_map[k] < 0;
                if (padding && y != 0) return INFINITY;
                worst = error <= worst ? worst : isnan(error) ? INFINITY : error;
            }
    return worst / fmax(d->scale_of_y, 1e-30);
}

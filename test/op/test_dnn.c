/*
 * Conformance of the DNN module: every implementation of convolutions and linear layers, with every
 * instruction set, against a naive loop.
 *
 *   random problem -> refuse? -> plan -> pack -> run, twice -> compare
 *
 * The memory around the output is compared, too. Problems come from a few families (3x3, pointwise,
 * grouped, stem, linear, odd ones), so each implementation gets at least N_ACCEPTED problems that it
 * accepts. Memory that a kernel must not read holds NaN; memory that it must not write holds a mark.
 * Buffers end exactly after their last value, so ASan finds accesses beyond it.
 *
 * Quantized products have a test of their own, test_int8.c.
 *
 * Two more tests. NaN propagates: if all of x is NaN, all of y is NaN. Every call of a vendor's
 * library fails in turn: the result is an error, nothing leaks, and later results are correct.
 */
#include "../unit/check.h"
#include "channels.h"
#include "device/cpu/cpu.h"
#include "dnn/dnn.h"
#include "dnn/list.h"
#include "dnn/onednn.h"
#include "run/program.h"

#include <math.h>

#define N_ACCEPTED 200
#define N_NAN 30
#define N_FAILING 20
#define MAX_TRIES 200000
#define MAX_CALLS 20000 /* more calls and allocations than one run of a library has */
#define MAX_CHANNELS 512
#define MAX_REASONS 32
#define MARK 12345.0f

/* A problem and the parameters of one call. Gaps are elements between samples; `place` is the
 * alignment. */
struct job {
    struct dnn_problem p;
    int c_map[MAX_CHANNELS], k_map[MAX_CHANNELS];
    int64_t batch, x_gap, y_gap, residual_gap;
    bool rounded; /* x and the weight are bf16: rounding the factors changes nothing */
    int place;    /* offset of plain tensors and the weight from an aligned address, in elements */
    bool negated; /* by an epilogue: this detects a region without a call, or with two */
};

/* The job's tensors, and the results of the naive loop. */
struct data {
    float *x, *weight, *bias, *residual, *scale, *shift, *y, *again, *packed, *scratch;
    void *memory[12];
    int n_memory;
    double *expected; /* [n][stored k][pixel] */
    double scale_of_y;
    struct dnn_call call;
};

struct row {
    int accepted, refused;
    const char *reason[MAX_REASONS];
    int count[MAX_REASONS];
    double worst, worst_allowed; /* error and allowed error with the largest ratio */
};

/* ---- Problems ---- */

static void choose_channels(struct random *r, struct job *j, int c_model, int k_model) {
    struct dnn_problem *p = &j->p;
    p->c = p->c_model = c_model;
    p->k = p->k_model = k_model;
    if (!p->x_plain) {
        p->c = map_channels(r, c_model, p->lanes, j->c_map);
        p->c_map = p->c == c_model ? NULL : j->c_map;
    }
    if (!p->y_plain) {
        p->k = map_channels(r, k_model, p->lanes, j->k_map);
        p->k_map = p->k == k_model ? NULL : j->k_map;
    }
}

/* Chooses the sizes of the image, the window and its padding. False if the window does not fit. */
static bool choose_image(struct random *r, struct job *j, int kernel, int stride) {
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 14, 17, 28, 31};
    struct dnn_problem *p = &j->p;
    p->h = RANDOM_PICK(r, sizes);
    p->w = RANDOM_PICK(r, sizes);
    if (random_one_in(r, 10)) p->h = 3, p->w = random_int(r, 32, 250); /* more tiles than a strip */
    p->kh = p->kw = kernel;
    p->sh = p->sw = stride;
    bool dilated = kernel > 1 && random_one_in(r, 6);
    p->dh = dilated ? random_int(r, 1, 3) : 1, p->dw = dilated ? random_int(r, 1, 3) : 1;
    if (random_one_in(r, 8)) p->kw = random_int(r, 1, 4);
    if (random_one_in(r, 8)) p->sw = random_int(r, 1, 4);
    int most = min_i64(kernel - 1, 3), pad = kernel / 2;
    if (kernel == 1 && random_one_in(r, 4)) most = 2; /* legal, though nothing but bias is there */
    bool even = random_one_in(r, 2);
    int high = pad * p->dh, wide = pad * p->dw;
    p->pt = even ? high : random_int(r, 0, most);
    p->pl = even ? wide : random_int(r, 0, most);
    int pb = even ? high : random_int(r, 0, most), pr = even ? wide : random_int(r, 0, most);
    int rows = p->h + p->pt + pb - p->dh * (p->kh - 1) - 1;
    int cols = p->w + p->pl + pr - p->dw * (p->kw - 1) - 1;
    p->oh = rows / p->sh + 1;
    p->ow = cols / p->sw + 1;
    return rows >= 0 && cols >= 0;
}

/* Rarely another type than f32, which kernels must refuse if they do not know it. */
static void choose_types(struct random *r, struct job *j) {
    enum sol_dtype *const types[] = {&j->p.x_type, &j->p.w_type, &j->p.y_type};
    if (random_one_in(r, 50)) *types[random_int(r, 0, 2)] = SOL_F64;
    if (random_one_in(r, 3)) j->p.factors = SOL_BF16;
    j->rounded = random_one_in(r, 2);
}

/* Chooses what is fused with the sum: bias, residual, prologue, activation. */
static void choose_fusion(struct random *r, struct job *j) {
    struct dnn_problem *p = &j->p;
    p->bias = random_one_in(r, 2);
    p->residual = random_one_in(r, 3);
    /* A plain residual of a blocked y needs a y without padded channels. */
    p->residual_plain = p->y_plain || (p->k_map == NULL && random_one_in(r, 4));
    p->prologue = p->kind == DNN_CONV && random_one_in(r, 4);
    p->prologue_min = random_one_in(r, 2) ? 0 : -INFINITY;
    p->act = (enum dnn_act)random_int(r, DNN_ACT_NONE, DNN_ACT_CLAMP);
    /* Pad lanes hold act(0), and the invariant requires 0 there: so the range includes 0. */
    p->act_min = random_float(r, -1, 0);
    p->act_max = random_float(r, 0, 1);
}

/* Points of a channel of x and of y, and of the window. */
static int64_t points_in(const struct dnn_problem *p) {
    return (int64_t)(p->kd ? p->d : 1) * p->h * p->w;
}
static int64_t points_out(const struct dnn_problem *p) {
    return (int64_t)(p->kd ? p->od : 1) * p->oh * p->ow;
}
static int taps_of(const struct dnn_problem *p) { return (p->kd ? p->kd : 1) * p->kh * p->kw; }

static int64_t count_products(const struct job *j) {
    const struct dnn_problem *p = &j->p;
    return (int64_t)p->k_model * points_out(p) * (p->c_model / p->groups) * taps_of(p);
}

static void choose_call(struct random *r, struct job *j) {
    static const int batches[] = {0, 1, 1, 3}, threads[] = {1, 2, 4, 16};
    struct dnn_problem *p = &j->p;
    j->batch = RANDOM_PICK(r, batches);
    p->batch_hint = random_one_in(r, 2) ? 1 : 32;
    p->threads = RANDOM_PICK(r, threads);
    p->trained = random_one_in(r, 2);
    /* A convolution with a plain y has no epilogue. */
    j->negated = random_one_in(r, 3) && (p->kind != DNN_CONV || !p->y_plain);
    j->place = random_int(r, 0, 3);
    if (p->kind == DNN_LINEAR && count_products(j) < 20000) j->batch = random_int(r, 0, 300);
    if (p->kind == DNN_LINEAR) return; /* its tensors are dense */
    j->x_gap = random_int(r, 0, 1) * points_in(p) * (p->x_plain ? 1 : p->lanes);
    j->y_gap = random_int(r, 0, 1) * points_out(p) * (p->y_plain ? 1 : p->lanes);
    j->residual_gap = random_int(r, 0, 1) * points_out(p) * (p->residual_plain ? 1 : p->lanes);
}

static const int channel_counts[] = {1, 3, 16, 17, 32, 58, 64};

static bool make_linear(struct random *r, struct job *j) {
    static const int sizes[] = {1, 3, 7, 17, 58, 64, 100, 257, 512, 1000, 2048};
    struct dnn_problem *p = &j->p;
    p->kind = DNN_LINEAR;
    p->x_plain = p->y_plain = true;
    p->h = p->w = p->oh = p->ow = p->kh = p->kw = p->sh = p->sw = p->dh = p->dw = 1;
    p->c = p->c_model = RANDOM_PICK(r, sizes);
    p->k = p->k_model = RANDOM_PICK(r, sizes);
    return true;
}

/* Channels of blocked tensors whose groups are padded to whole blocks, as layouts do. */
static int pad_groups(int model, int groups, int lanes, int *map) {
    int n = 0;
    for (int i = 0; i < model; i++) {
        if (i % (model / groups) == 0)
            while (n % lanes) map[n++] = -1;
        map[n++] = i;
    }
    while (n % lanes) map[n++] = -1;
    return n;
}

static void pad_channels(struct job *j) {
    struct dnn_problem *p = &j->p;
    if (!p->x_plain) p->c = pad_groups(p->c_model, p->groups, p->lanes, j->c_map);
    if (!p->y_plain) p->k = pad_groups(p->k_model, p->groups, p->lanes, j->k_map);
    p->c_map = p->c == p->c_model ? NULL : j->c_map;
    p->k_map = p->k == p->k_model ? NULL : j->k_map;
}

/* Groups of equal size; one channel each is depthwise. */
static bool make_grouped(struct random *r, struct job *j) {
    static const int groups[] = {2, 3, 4, 16, 17, 32, 58};
    j->p.groups = RANDOM_PICK(r, groups);
    int most = j->p.groups > 16 ? 2 : 24;
    bool depthwise = random_one_in(r, 2);
    if (depthwise && random_one_in(r, 2)) j->p.x_plain = j->p.y_plain = true;
    int c = depthwise ? 1 : random_int(r, 1, most), k = depthwise ? 1 : random_int(r, 1, most);
    if (!depthwise && random_one_in(r, 3)) c = k = 16;
    if (c * j->p.groups > 320 || k * j->p.groups > 320) return false;
    choose_channels(r, j, c * j->p.groups, k * j->p.groups);
    if (!depthwise && j->p.groups <= 4 && random_one_in(r, 2)) pad_channels(j);
    return choose_image(r, j, random_int(r, 0, 4) * 2 + 1, random_int(r, 1, 2));
}

/* The first layer of most networks: few plain channels, a large window. */
static bool make_stem(struct random *r, struct job *j) {
    static const int kernels[] = {3, 5, 7, 11};
    j->p.x_plain = true;
    j->p.y_plain = random_one_in(r, 3);
    choose_channels(r, j, random_one_in(r, 2) ? 3 : random_int(r, 1, 5),
                    RANDOM_PICK(r, channel_counts));
    return choose_image(r, j, RANDOM_PICK(r, kernels), random_int(r, 1, 4));
}

/* A volume; kernels take plain ones. */
static bool make_volume(struct random *r, struct job *j) {
    struct dnn_problem *p = &j->p;
    p->x_plain = p->y_plain = !random_one_in(r, 16);
    p->d = random_int(r, 1, 6), p->kd = random_int(r, 1, 4), p->sd = random_int(r, 1, 3);
    p->dd = random_one_in(r, 3) ? 2 : 1, p->pd = random_int(r, 0, 3);
    const int room = p->d + p->pd + random_int(r, 0, 3) - p->dd * (p->kd - 1) - 1;
    p->od = room / p->sd + 1;
    if (random_one_in(r, 4)) p->groups = 2;
    const bool depthwise = random_one_in(r, 4);
    int c = depthwise ? 1 : random_int(r, 1, 20), k = depthwise ? 1 : random_int(r, 1, 40);
    if (depthwise) p->groups = random_int(r, 1, 20);
    choose_channels(r, j, c * p->groups, k * p->groups);
    return choose_image(r, j, random_int(r, 1, 4), random_int(r, 1, 3)) && room >= 0;
}

static bool make_odd(struct random *r, struct job *j) {
    j->p.x_plain = random_one_in(r, 3);
    choose_channels(r, j, random_int(r, 1, 70), random_int(r, 1, 70));
    return choose_image(r, j, random_int(r, 1, 6), random_int(r, 1, 7));
}

/* A transposed convolution, whose windows may overlap or leave gaps. False if it has no rows or no columns. */
static bool make_transposed(struct random *r, struct job *j) {
    struct dnn_problem *p = &j->p;
    p->transposed = true;
    p->y_plain = random_one_in(r, 16);
    if (random_one_in(r, 3)) {
        p->groups = random_int(r, 2, 40);
        const int channels = p->groups * (1 << random_int(r, 0, 3));
        choose_channels(r, j, channels, channels);
        memcpy(j->k_map, j->c_map, sizeof j->k_map); /* as layouts do */
        if (!p->x_plain && !p->y_plain) p->k = p->c, p->k_map = p->c_map ? j->k_map : NULL;
    } else {
        if (random_one_in(r, 16)) p->groups = 2;
        const int out = RANDOM_PICK(r, channel_counts) / p->groups * p->groups;
        choose_channels(r, j, RANDOM_PICK(r, channel_counts) / p->groups * p->groups, out);
    }
    if (!p->c || !p->k) return false;
    p->h = random_int(r, 1, 17), p->w = random_int(r, 1, 31);
    p->kh = random_int(r, 1, 5), p->kw = random_int(r, 1, 5);
    p->sh = random_int(r, 1, 4), p->sw = random_int(r, 1, random_one_in(r, 8) ? 40 : 4);
    p->dh = random_one_in(r, 4) ? 2 : 1, p->dw = random_one_in(r, 4) ? 3 : 1;
    p->pt = random_int(r, 0, 4), p->pl = random_int(r, 0, 4);
    p->oh = (p->h - 1) * p->sh - p->pt + p->dh * (p->kh - 1) + 1 + random_int(r, -2, 2);
    p->ow = (p->w - 1) * p->sw - p->pl + p->dw * (p->kw - 1) + 1 + random_int(r, -2, 2);
    return p->oh > 0 && p->ow > 0;
}

static bool make_square(struct random *r, struct job *j, int kernel) {
    choose_channels(r, j, RANDOM_PICK(r, channel_counts), RANDOM_PICK(r, channel_counts));
    return choose_image(r, j, kernel, kernel == 1 && random_one_in(r, 3) ? 2 : 1);
}

/* A convolution with a turned weight: the gradient of one by its input. */
static bool make_turned(struct random *r, struct job *j) {
    j->p.turned = true;
    return make_square(r, j, random_one_in(r, 3) ? random_int(r, 1, 5) : 3);
}

static bool make_family(struct random *r, struct job *j) {
    switch (random_int(r, 0, 9)) {
    case 0: return make_linear(r, j);
    case 1: return make_grouped(r, j);
    case 2: return make_stem(r, j);
    case 3: return make_odd(r, j);
    case 4: return make_square(r, j, 1);
    case 5: return make_transposed(r, j);
    case 6: return make_volume(r, j);
    case 7: return make_turned(r, j);
    default: return make_square(r, j, 3);
    }
}

static void make_job(struct random *r, const struct dnn_isa *isa, struct job *j) {
    do {
        memset(j, 0, sizeof *j);
        j->p.lanes = isa->lanes;
        j->p.groups = 1;
        j->p.x_plain = random_one_in(r, 8);
        j->p.y_plain = random_one_in(r, 8);
    } while (!make_family(r, j) || count_products(j) > 3000000);
    choose_types(r, j);
    choose_fusion(r, j);
    choose_call(r, j);
}

/* ---- Tensors ---- */

/* Memory of exactly n floats, `place` floats after an aligned address. */
static float *new_floats(struct data *d, int64_t n, int place, float value) {
    size_t size = (size_t)(n + place) * sizeof(float);
    void *memory = NULL;
    REQUIRE(!posix_memalign(&memory, 64, size ? size : 1));
    d->memory[d->n_memory++] = memory;
    float *at = (float *)memory + place;
    for (int64_t i = 0; i < n; i++) at[i] = value;
    return at;
}

static float *new_random(struct random *r, struct data *d, int64_t n, int place) {
    float *at = new_floats(d, n, place, 0);
    for (int64_t i = 0; i < n; i++) at[i] = random_float(r, -1, 1);
    return at;
}

/* Samples of `channels` x `pixels`: random values, 0 in pad lanes, NaN in the gaps between
 * samples. */
static float *new_images(struct random *r, struct data *d, const struct job *j, int channels,
                         const int *map, bool plain, int64_t pixels, int64_t gap) {
    int64_t stride = channels * pixels + gap, n = j->batch ? j->batch * stride - gap : 0;
    float *at = new_floats(d, n, plain ? j->place : 0, NAN);
    const struct images images = {j->batch, stride, pixels, channels, j->p.lanes, map, plain};
    fill_images(r, &images, at);
    return at;
}

/* One value per stored channel, 0 for padding. */
static float *new_vector(struct random *r, struct data *d, int channels, const int *map) {
    float *at = new_random(r, d, channels, 0);
    for (int c = 0; c < channels; c++)
        if (map && map[c] < 0) at[c] = 0;
    return at;
}

/* Memory of y: NaN in samples, a mark in the gaps between them. */
static float *new_output(struct data *d, const struct job *j) {
    const struct dnn_problem *p = &j->p;
    int64_t image = (int64_t)p->k * points_out(p), stride = image + j->y_gap;
    float *y =
        new_floats(d, j->batch ? j->batch * stride - j->y_gap : 0, p->y_plain ? j->place : 0, MARK);
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

static void make_data(struct random *r, const struct job *j, struct data *d) {
    const struct dnn_problem *p = &j->p;
    int64_t pixels = points_in(p), out = points_out(p);
    d->x = new_images(r, d, j, p->c, p->c_map, p->x_plain, pixels, j->x_gap);
    d->weight =
        new_random(r, d, (int64_t)p->k_model * (p->c_model / p->groups) * taps_of(p), j->place);
    if (j->rounded) {
        round_floats(d->x, j->batch ? j->batch * (p->c * pixels + j->x_gap) - j->x_gap : 0);
        round_floats(d->weight, (int64_t)p->k_model * (p->c_model / p->groups) * taps_of(p));
    }
    if (p->bias) d->bias = new_vector(r, d, p->k, p->k_map);
    if (p->residual)
        d->residual = new_images(r, d, j, p->k, p->k_map, p->residual_plain, out, j->residual_gap);
    if (p->prologue) d->scale = new_vector(r, d, p->c, p->c_map);
    if (p->prologue) d->shift = new_vector(r, d, p->c, p->c_map);
    d->y = new_output(d, j);
    d->again = new_output(d, j);
}

static void free_data(struct data *d) {
    for (int i = 0; i < d->n_memory; i++) free(d->memory[i]);
    free(d->expected);
}

/* ---- The naive loop ---- */

/* P(x[n, c, row, col]) of struct dnn_problem (dnn/dnn.h); c counts stored channels. */
static double read_x(const struct job *j, const struct data *d, int64_t n, int c, int64_t plane,
                     int64_t row, int64_t col) {
    const struct dnn_problem *p = &j->p;
    int64_t pixels = points_in(p);
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
    return weight + pair * taps_of(p);
}

/* The sum for model channel k at a pixel. *size becomes the root of the sum of squared
 * products. */
static double sum_products(const struct job *j, const struct data *d, int64_t n, int k,
                           int64_t pixel, double *size) {
    const struct dnn_problem *p = &j->p;
    int per_group = p->c_model / p->groups, first = k / (p->k_model / p->groups) * per_group;
    double sum = 0, squares = 0;
    for (int c = 0; c < p->c; c++) {
        int model = p->c_map ? p->c_map[c] : c;
        if (model < first || model >= first + per_group) continue;
        const float *w = find_weights(p, d->weight, k, model);
        for (int i = 0; i < taps_of(p); i++) {
            const int64_t plane =
                pixel / (p->oh * p->ow) * p->sd - p->pd + i / (p->kh * p->kw) * p->dd;
            int64_t row = find_source(p->transposed, pixel / p->ow % p->oh, p->sh, p->pt,
                                      i / p->kw % p->kh * p->dh);
            int64_t col =
                find_source(p->transposed, pixel % p->ow, p->sw, p->pl, i % p->kw * p->dw);
            const int tap = p->turned ? taps_of(p) - 1 - i : i;
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

static void compute_expected(const struct job *j, struct data *d) {
    const struct dnn_problem *p = &j->p;
    int64_t out = points_out(p), residual_stride = p->k * out + j->residual_gap;
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
    int64_t lanes = p->kind == DNN_LINEAR ? 1 : p->lanes, out = points_out(p);
    float *place = shown->call->y + n * shown->call->y_stride + (k_block * out + pixel) * lanes;
    for (int64_t i = 0; i < n_pixels * lanes; i++) place[i] = -place[i];
}

static void set_call(const struct job *j, struct data *d, float *y) {
    const struct dnn_problem *p = &j->p;
    int64_t out = points_out(p);
    d->call = (struct dnn_call){.x = d->x,
                                .packed = d->packed,
                                .weight = d->weight,
                                .bias = d->bias,
                                .residual = d->residual,
                                .scale = d->scale,
                                .shift = d->shift,
                                .y = y,
                                .batch = j->batch,
                                .x_stride = p->c * points_in(p) + j->x_gap,
                                .y_stride = p->k * out + j->y_gap,
                                .residual_stride = p->k * out + j->residual_gap};
}

/* Runs all tasks in ranges of `step`, forwards or backwards. The result must not depend on either. */
static void run_tasks(const struct dnn_plan *plan, const struct job *j, struct data *d, float *y,
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

static void pack_weights(struct random *r, const struct dnn_plan *plan, struct data *d) {
    int64_t n = plan->n_pack_tasks;
    bool backwards = random_int(r, 0, 1);
    for (int64_t i = 0; i < n; i++)
        plan->impl->pack(plan, d->weight, d->packed, backwards ? n - 1 - i : i);
}

static void prepare_job(struct random *r, const struct dnn_plan *plan, struct job *j,
                        struct data *d) {
    make_data(r, j, d);
    d->packed = new_floats(d, (int64_t)(plan->packed_size / sizeof(float)), 0, NAN);
    d->scratch = new_floats(d, (int64_t)(plan->scratch_size / sizeof(float)), 0, NAN);
}

static void run_job(struct random *r, const struct dnn_plan *plan, struct job *j, struct data *d) {
    prepare_job(r, plan, j, d);
    pack_weights(r, plan, d);
    compute_expected(j, d);
    run_tasks(plan, j, d, d->y, 1 << 20, false);
    run_tasks(plan, j, d, d->again, random_int(r, 1, 3), true);
}

/* Largest error of the output, relative to scale_of_y; NaN counts as infinite. */
static double measure_error(const struct job *j, const struct data *d) {
    const struct dnn_problem *p = &j->p;
    int64_t out = points_out(p), stride = p->k * out + j->y_gap;
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

/* Are the gaps between samples unchanged, and have both runs given the same bits? */
static bool is_tidy(const struct job *j, const struct data *d) {
    int64_t image = (int64_t)j->p.k * points_out(&j->p), stride = image + j->y_gap;
    for (int64_t n = 0; n + 1 < j->batch; n++)
        for (int64_t i = image; i < stride; i++)
            if (d->y[n * stride + i] != MARK) return false;
    size_t size = j->batch ? (size_t)(j->batch * stride - j->y_gap) * sizeof(float) : 0;
    return !size || !memcmp(d->y, d->again, size);
}

/* The error of a direct sum of n products grows like sqrt(n) (at most 1e-7 * sqrt(n) was measured).
 * Winograd adds the rounding errors of its transforms; F(4,3) has up to about ten times the error of
 * direct. 1e-5 is the limit in docs/numerics.md. Factors that are rounded to bf16 have errors of up to 2^-9 of their values. */
static double find_allowed(const struct dnn_impl *impl, const struct job *j) {
    double n = (double)(j->p.c_model / j->p.groups) * taps_of(&j->p);
    const bool loses_bits = j->p.factors == SOL_BF16 && (!j->rounded || j->p.prologue);
    return 3e-7 * sqrt(n) + 1e-6 + (impl->approximate ? 1e-5 : 0) + (loses_bits ? 0x1p-7 : 0);
}

static void print_job(const struct dnn_impl *impl, const struct dnn_isa *isa, const struct job *j) {
    const struct dnn_problem *p = &j->p;
    printf("  %s %s: batch %d, c %d (model %d), k %d (model %d), groups %d, ", impl->name,
           isa->name, (int)j->batch, p->c, p->c_model, p->k, p->k_model, p->groups);
    printf("image %dx%d -> %dx%d, window %dx%d stride %d,%d pad %d,%d dilation %d,%d,", p->h, p->w,
           p->oh, p->ow, p->kh, p->kw, p->sh, p->sw, p->pt, p->pl, p->dh, p->dw);
    printf("%s%s%s%s%s%s act %d, ", p->x_plain ? " x plain" : "", p->y_plain ? " y plain" : "",
           p->bias ? " bias" : "", p->residual ? " residual" : "",
           p->residual && p->residual_plain ? " (plain)" : "", p->prologue ? " prologue" : "",
           (int)p->act);
    printf("threads %d, gaps %d %d %d, place %d\n", p->threads, (int)j->x_gap, (int)j->y_gap,
           (int)j->residual_gap, j->place);
    if (j->negated) printf("  with an epilogue\n");
}

static void test_job(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                     struct job *j, struct row *row) {
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = j->p};
    struct data d = {0};
    impl->plan(&plan);
    run_job(r, &plan, j, &d);
    double error = measure_error(j, &d), allowed = find_allowed(impl, j);
    if (row->worst_allowed == 0 || error / allowed > row->worst / row->worst_allowed) {
        row->worst = error;
        row->worst_allowed = allowed;
    }
    bool ok = CHECK(error <= allowed);
    ok &= CHECK(is_tidy(j, &d));
    ok &= CHECK(!exec_take_failure());
    ok &= CHECK(isfinite(plan.cost) && plan.cost > 0);
    if (!ok) printf("  error %g, allowed %g:\n", error, allowed), print_job(impl, isa, j);
    free_data(&d);
}

/* ---- NaN ---- */

/* Does every window begin inside the image? */
static bool reads_everywhere(const struct dnn_problem *p) {
    if (p->kd && (p->pd > 0 || (p->od - 1) * p->sd >= p->d)) return false;
    return p->pt == 0 && p->pl == 0 && (p->oh - 1) * p->sh < p->h && (p->ow - 1) * p->sw < p->w;
}

static int64_t count_numbers(const struct job *j, const float *y) {
    const struct dnn_problem *p = &j->p;
    int64_t out = points_out(p), stride = p->k * out + j->y_gap, n_numbers = 0;
    for (int64_t n = 0; n < j->batch; n++)
        for (int k = 0; k < p->k; k++)
            for (int64_t i = 0; i < out && !(p->k_map && p->k_map[k] < 0); i++)
                n_numbers += !isnan(y[n * stride + locate_pixel(p->lanes, p->y_plain, out, k, i)]);
    return n_numbers;
}

static void test_nan(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                     struct job *j) {
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = j->p};
    struct data d = {0};
    impl->plan(&plan);
    prepare_job(r, &plan, j, &d);
    int64_t image = j->p.c * points_in(&j->p);
    for (int64_t i = 0; i < j->batch * (image + j->x_gap) - j->x_gap; i++) d.x[i] = NAN;
    pack_weights(r, &plan, &d);
    run_tasks(&plan, j, &d, d.y, 1 << 20, false);
    if (!CHECK(count_numbers(j, d.y) == 0)) {
        printf("  %d numbers:\n", (int)count_numbers(j, d.y));
        print_job(impl, isa, j);
    }
    free_data(&d);
}

/* ---- Failing calls of libraries ---- */

/* Refuse, plan, pack and run, while the n-th call or allocation fails. Returns true if there were fewer than n. */
static bool live_once(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                      struct job *j, long *fail_at, long n) {
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = j->p};
    struct data d = {0};
    onednn_forget();
    *fail_at = n;
    bool ok = !dnn_refuse(impl, &j->p);
    if (ok) impl->plan(&plan);
    if (ok) prepare_job(r, &plan, j, &d);
    if (ok) pack_weights(r, &plan, &d);
    enum sol_status status = exec_take_failure();
    if (ok && !status) run_tasks(&plan, j, &d, d.y, 1 << 20, false);
    if (!status) status = exec_take_failure();
    bool failed = *fail_at == 0;
    *fail_at = 0;
    ok = ok && !status;
    CHECK(failed || ok);
    if (ok) compute_expected(j, &d);
    if (ok) CHECK(measure_error(j, &d) <= find_allowed(impl, j));
    free_data(&d);
    return !failed;
}

static void test_failing(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                         struct job *j, long *n_failed) {
    long *const countdowns[] = {&vendor_fail_at, &mem_fail_at};
    for (int i = 0; i < COUNT(countdowns); i++) {
        long n = 1;
        while (!live_once(r, impl, isa, j, countdowns[i], n) && n < MAX_CALLS) n++;
        CHECK(n < MAX_CALLS);
        *n_failed += n - 1;
    }
}

/* ---- The table ---- */

static void count_reason(struct row *row, const char *reason) {
    int i = 0;
    while (i < MAX_REASONS - 1 && row->reason[i] && strcmp(row->reason[i], reason)) i++;
    row->reason[i] = reason;
    row->count[i]++;
    row->refused++;
}

/* ---- Sums in parts ---- */

/* The error of a 3x3 convolution of many channels, of positive numbers. */
static double add_many(const struct dnn_impl *impl, const struct dnn_isa *isa, bool trained) {
    static struct job job;
    struct random r = random_start(1);
    struct data d = {0};
    struct dnn_problem *p = &job.p;
    *p = (struct dnn_problem){.kind = DNN_CONV, .lanes = isa->lanes, .threads = 1, .groups = 1};
    p->c = p->c_model = 1024, p->k = p->k_model = 2 * isa->lanes;
    p->h = p->w = p->oh = p->ow = 4, p->kh = p->kw = 3;
    p->batch_hint = job.batch = p->sh = p->sw = p->dh = p->dw = p->pt = p->pl = 1;
    p->trained = trained;
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = *p};
    impl->plan(&plan);
    prepare_job(&r, &plan, &job, &d);
    for (int64_t i = 0; i < p->c * points_in(p); i++) d.x[i] = fabsf(d.x[i]);
    for (int64_t i = 0; i < (int64_t)p->k * p->c * 9; i++) d.weight[i] = fabsf(d.weight[i]);
    pack_weights(&r, &plan, &d);
    compute_expected(&job, &d);
    run_tasks(&plan, &job, &d, d.y, 1 << 20, false);
    const double error = measure_error(&job, &d);
    free_data(&d);
    return error;
}

/* Where rounding errors are kept small, sums are added up in parts. */
static void test_parts(const struct dnn_isa *isa) {
    static const struct dnn_impl *const impls[] = {&dnn_direct, &dnn_winograd4, &dnn_winograd2};
    for (int i = 0; i < COUNT(impls); i++) {
        const double whole = add_many(impls[i], isa, false), parts = add_many(impls[i], isa, true);
        printf("%s %s: error %.2e of a sum, %.2e of a sum in parts\n", impls[i]->name, isa->name,
               whole, parts);
        CHECK(parts < whole / 2);
    }
}

/* The next random problem that the implementation accepts. */
static bool find_job(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                     struct job *j, struct row *row) {
    for (int i = 0; i < MAX_TRIES; i++) {
        make_job(r, isa, j);
        const char *reason = dnn_refuse(impl, &j->p);
        if (!reason) return true;
        count_reason(row, reason);
    }
    return false;
}

static void test_all_nan(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa) {
    static struct job job;
    struct row row = {0};
    for (int n = 0; n < N_NAN && find_job(r, impl, isa, &job, &row);) {
        if (!reads_everywhere(&job.p) || !job.batch) continue;
        test_nan(r, impl, isa, &job);
        n++;
    }
}

static void test_all_failing(struct random *r, const struct dnn_impl *impl,
                             const struct dnn_isa *isa) {
    static struct job job;
    struct row row = {0};
    long n_failed = 0;
    for (int n = 0; n < N_FAILING && find_job(r, impl, isa, &job, &row); n++)
        test_failing(r, impl, isa, &job, &n_failed);
    if (n_failed) printf("           %6ld calls and allocations failed in turn\n", n_failed);
}

/* Tests of their own have matmuls, whose operands have strides of their own, and gradients of weights: test_matmul.c, test_conv_weight.c. */
static bool is_tested_elsewhere(const struct dnn_impl *impl) {
    return !strcmp(impl->name, "matmul") || impl == &dnn_conv_weight ||
           impl == &dnn_conv_weight_grouped || impl == &dnn_winograd_weight;
}

static void test_implementation(const struct dnn_impl *impl, const struct dnn_isa *isa,
                                uint64_t seed) {
    static struct job job;
    struct row row = {0};
    struct random r = random_start(seed);
    bool available = true;
    const char *detail = impl->probe ? impl->probe(&available) : NULL;
    if (!available) {
        printf("%-10s %-8s skipped: %s\n", impl->name, isa->name, detail);
        return;
    }
    while (row.accepted < N_ACCEPTED && find_job(&r, impl, isa, &job, &row)) {
        row.accepted++;
        test_job(&r, impl, isa, &job, &row);
    }
    CHECK(row.accepted == N_ACCEPTED);
    printf("%-10s %-8s accepted %4d, worst error %.1e of allowed %.1e, refused %5d\n", impl->name,
           isa->name, row.accepted, row.worst, row.worst_allowed, row.refused);
    for (int i = 0; i < MAX_REASONS && row.reason[i]; i++)
        printf("           %6d refused: %s\n", row.count[i], row.reason[i]);
    test_all_nan(&r, impl, isa);
    if (impl->probe) test_all_failing(&r, impl, isa);
}

/* Arguments: [seed [implementation]] */
int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    int n_tested = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        const bool has = cpu_has(isa);
        if (!has) printf("skipped %s: this CPU lacks it\n", isa->name);
        if (has) test_parts(isa);
        for (int i = 0; has && dnn_impls[i]; i++)
            if (dnn_impls[i] != &dnn_linear_int8 && !is_tested_elsewhere(dnn_impls[i]) &&
                (argc < 3 || !strcmp(argv[2], dnn_impls[i]->name))) {
                test_implementation(dnn_impls[i], isa, seed);
                n_tested++;
            }
    }
    if (!CHECK(n_tested > 0))
        fprintf(stderr, "no implementation of this test has the name %s\n", argv[2]);
    return check_done();
}

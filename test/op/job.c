/*
 * Random problems of convolutions and linear layers. They come from a few families (3x3, pointwise, grouped, stem, linear, odd ones), so
 * that each implementation accepts enough of them.
 */
#include "job.h"

#include "../unit/check.h"
#include "channels.h"

#include <math.h>

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

int64_t job_points_in(const struct dnn_problem *p) {
    return (int64_t)(p->kd ? p->d : 1) * p->h * p->w;
}
int64_t job_points_out(const struct dnn_problem *p) {
    return (int64_t)(p->kd ? p->od : 1) * p->oh * p->ow;
}
int job_taps(const struct dnn_problem *p) { return (p->kd ? p->kd : 1) * p->kh * p->kw; }

static int64_t count_products(const struct job *j) {
    const struct dnn_problem *p = &j->p;
    return (int64_t)p->k_model * job_points_out(p) * (p->c_model / p->groups) * job_taps(p);
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
    j->x_gap = random_int(r, 0, 1) * job_points_in(p) * (p->x_plain ? 1 : p->lanes);
    j->y_gap = random_int(r, 0, 1) * job_points_out(p) * (p->y_plain ? 1 : p->lanes);
    j->residual_gap = random_int(r, 0, 1) * job_points_out(p) * (p->residual_plain ? 1 : p->lanes);
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

void job_make(struct random *r, const struct dnn_isa *isa, struct job *j) {
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

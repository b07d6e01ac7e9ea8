/*
 * Direct convolution: packing of weights.
 *
 *   run/exec.c, once per version of the parameters, or in each call that trains -> dnn_direct_pack, on ranges of tasks
 *
 * direct.h explains the terms and the layout. A program that trains packs at each step: so a float takes a load and a store, and the
 * weight is read in its own order.
 */
#include "dnn/direct.h"

#define MAX_LANES 16 /* of a channel block */

/* The stored channel at a place among those of the group; -1 if there is none. */
static int64_t find_channel(const struct dnn_problem *p, int64_t group, int64_t in_group) {
    const int64_t k_group = p->k / p->groups;
    return in_group < k_group ? group * k_group + in_group : -1;
}

/* ---- Floats ---- */

/* The weights of some positions of the clipped kernel that belong to an output phase: where they are in a kernel. */
struct taps {
    int n;
    int64_t offset[64];
};

/* Finds the next ones. `next`: the first position to look at; set to the one behind the last. */
static void find_taps(const struct dnn_plan *plan, const struct direct_phase *phase, int64_t *next,
                      struct taps *taps) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param, kh = param[DIRECT_KH], kw = param[DIRECT_KW];
    const int64_t all = param[DIRECT_KD] * kh * kw;
    int64_t ignored;
    for (taps->n = 0; *next < all && taps->n < (int)COUNT(taps->offset); ++*next) {
        const int64_t s = *next % kw, r = *next / kw % kh, plane = *next / kw / kh;
        if (!direct_row(plan, phase->row, r, &ignored) ||
            !direct_column(plan, phase->column, s, &ignored))
            continue;
        const int64_t row = param[DIRECT_KERNEL_ROW] + r, column = param[DIRECT_KERNEL_COLUMN] + s;
        const int64_t offset = (plane * p->kh + row) * p->kw + column;
        taps->offset[taps->n++] = p->turned ? (int64_t)p->kh * p->kw - 1 - offset : offset;
    }
}

/* Channels of x and of y: where their kernels begin in the weight, as a sum of both. -1: padding. */
struct filters {
    int64_t c[MAX_LANES], k[2 * MAX_LANES];
};

/* n channels of x from stored channel c on, and those of a pair of output blocks. */
static void find_filters(const struct dnn_plan *plan, int64_t c, int64_t n, int64_t group,
                         int64_t pair, struct filters *out) {
    const struct dnn_problem *p = &plan->problem;
    const bool by_c = p->transposed || p->turned; /* the weight's first dim */
    const int64_t taps = plan->param[DIRECT_KD] * p->kh * p->kw, width = 2 * p->lanes,
                  in = p->c_model / p->groups, c_step = by_c ? p->k_model * taps : taps,
                  k_step = by_c ? taps : in * taps;
    for (int64_t i = 0; i < n; i++) {
        const int channel = dnn_model_channel(p->c_map, c + i);
        out->c[i] = channel < 0 ? -1 : (p->groups > 1 ? channel % in : channel) * c_step;
    }
    for (int64_t j = 0; j < width; j++) {
        const int64_t stored = find_channel(p, group, pair * width + j);
        const int channel = stored < 0 ? -1 : dnn_model_channel(p->k_map, stored);
        out->k[j] = channel < 0 ? -1 : channel * k_step;
    }
}

/* Writes the weights of one tap between one channel, whose kernels begin at `first`, and n others, `step` floats apart. Padding becomes
 * 0. */
static void pack_row(const float *weight, int64_t first, const int64_t *other, int64_t n, float *to,
                     int64_t step) {
    for (int64_t i = 0; i < n; i++)
        to[i * step] = first < 0 || other[i] < 0 ? 0 : weight[first + other[i]];
}

/* Packs the weights of a phase between n channels of x and a pair of output blocks, in the weight's own order. */
static void pack_phase(const struct dnn_plan *plan, const float *weight,
                       const struct direct_phase *phase, const struct filters *at, int64_t n,
                       float *to) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t width = 2 * p->lanes;
    const bool by_c = p->transposed || p->turned;
    struct taps taps;
    int64_t next = 0;
    for (find_taps(plan, phase, &next, &taps); taps.n; find_taps(plan, phase, &next, &taps)) {
        for (int64_t i = 0; i < (by_c ? n : width); i++)
            for (int t = 0; t < taps.n; t++) {
                float *row = to + t * n * width;
                const float *tap = weight + taps.offset[t];
                if (by_c) pack_row(tap, at->c[i], at->k, width, row + i * width, 1);
                else pack_row(tap, at->k[i], at->c, n, row + i, width);
            }
        to += taps.n * n * width;
    }
}

/* ---- Quantized numbers ---- */

/* Channels [c, c + 4). */
static void pack_quads(const struct dnn_plan *plan, const int8_t *weight, int64_t c, int64_t k,
                       int8_t *to, int64_t step) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param;
    const int64_t c_group = p->c_model / p->groups;
    const int k_model = k < 0 ? -1 : dnn_model_channel(p->k_map, k);
    for (int64_t tap = 0; tap < param[DIRECT_KH] * param[DIRECT_KW]; tap++, to += step)
        for (int64_t i = 0; i < 4; i++) {
            const int c_model = c + i < p->c ? dnn_model_channel(p->c_map, c + i) : -1;
            const int64_t row = param[DIRECT_KERNEL_ROW] + tap / param[DIRECT_KW];
            const int64_t column = param[DIRECT_KERNEL_COLUMN] + tap % param[DIRECT_KW];
            const int64_t pair = k_model * c_group + c_model % c_group;
            const bool padding = c_model < 0 || k_model < 0;
            to[i] = padding ? 0 : weight[(pair * p->kh + row) * p->kw + column];
        }
}

/* The sum of all weights that are packed for output channel k. */
static int32_t sum_weights(const struct dnn_plan *plan, const int8_t *weight, int64_t k) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param, c_group = p->c_model / p->groups;
    const int k_model = k < 0 ? -1 : dnn_model_channel(p->k_map, k);
    int32_t sum = 0;
    for (int64_t c = 0; k_model >= 0 && c < c_group; c++)
        for (int64_t tap = 0; tap < param[DIRECT_KH] * param[DIRECT_KW]; tap++) {
            const int64_t row = param[DIRECT_KERNEL_ROW] + tap / param[DIRECT_KW];
            const int64_t column = param[DIRECT_KERNEL_COLUMN] + tap % param[DIRECT_KW];
            sum += weight[((k_model * c_group + c) * p->kh + row) * p->kw + column];
        }
    return sum;
}

/* n quads of x from stored channel c on, and a pair of output blocks. */
static void pack_block_quads(const struct dnn_plan *plan, const int8_t *weight, int64_t c,
                             int64_t n, int64_t group, int64_t pair, float *to) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t unit = direct_unit(plan), width = 2 * p->lanes;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            pack_quads(plan, weight, c + i * unit, find_channel(p, group, pair * width + j),
                       (int8_t *)(to + i * width + j), n * width * unit);
}

static void pack_sums(const struct dnn_plan *plan, const int8_t *weight, int64_t group,
                      int64_t pair, int32_t *to) {
    const int64_t width = 2 * plan->problem.lanes;
    for (int64_t j = 0; j < width; j++)
        to[j] = sum_weights(plan, weight, find_channel(&plan->problem, group, pair * width + j));
}

/* ---- Tasks ---- */

/* Pack task: (group, pair, channel block of x), the last one fastest. The first one of a pair packs the pair's sums. */
void dnn_direct_pack(const struct dnn_plan *plan, const float *weight, float *packed,
                     int64_t task) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t *param = plan->param, width = 2 * p->lanes, unit = direct_unit(plan);
    const int64_t pair = task / param[DIRECT_C_BLOCKS] % param[DIRECT_PAIRS];
    const int64_t group = task / param[DIRECT_C_BLOCKS] / param[DIRECT_PAIRS];
    const int64_t c_block = task % param[DIRECT_C_BLOCKS], n = direct_channels(plan, c_block);
    const int64_t c = (group * param[DIRECT_C_BLOCKS] + c_block) * param[DIRECT_BLOCK] * unit;
    const int64_t before = direct_count_channels(plan, c_block) * width;
    float *to = packed + task / param[DIRECT_C_BLOCKS] * param[DIRECT_PAIR];
    struct direct_phase phase[DIRECT_MAX_PHASES];
    struct filters at;
    dnn_direct_phases(plan, phase);
    if (unit > 1 && !c_block) pack_sums(plan, (const int8_t *)weight, group, pair, (int32_t *)to);
    if (unit == 1) find_filters(plan, c, n, group, pair, &at);
    for (int64_t f = 0; f < direct_phases(plan); f++) {
        float *block = to + phase[f].weights + phase[f].n_taps / param[DIRECT_C_BLOCKS] * before;
        if (unit == 1) pack_phase(plan, weight, &phase[f], &at, n, block);
        else pack_block_quads(plan, (const int8_t *)weight, c, n, group, pair, block);
    }
}

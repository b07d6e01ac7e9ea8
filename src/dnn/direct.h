/*
 * Direct convolution: the data layouts that direct.c (plan, cost), direct_pack.c (packing) and direct_kernel.c (computation)
 * share.
 *
 *   task = (sample, plane of y, block, group, part of the pairs)  ->  pairs  ->  tiles  ->  taps
 *
 *   block  DIRECT_ROWS x DIRECT_COLUMNS pixels of y; smaller at the bottom and right edge
 *   pair   two neighbouring channel blocks of y (2*LANES channels of one group); the last pair may be one block
 *   tile   up to `values` pixels (struct dnn_kernels) of a block, in one row or two, times one pair. Its sums stay in
 *          registers.
 *   strip  neighbouring tiles of a row, which are transposed and stored together if y is plain
 *   tap    one (channel block of x, kernel plane, kernel row, kernel column): the channels of the block, contiguous in memory. A tile
 *          sums over all taps of its group.
 *
 *   packed   [group][pair][output phase][channel block][kernel plane][kernel row][kernel column][channel][2*LANES]
 *   scratch  the lists of output phases and of taps, then the panel: a zero padded copy of the x that one block reads
 *   panel    [channel block][kernel plane][row phase][row][column phase][column][channel]
 *
 * Quantized numbers: four channels are one quad of 32 bits (int8.h). All of the above then counts quads where it says channels of x or
 * floats, and `packed` begins each pair with the sums of its weights, [2*LANES] of i32. The panel holds the zero point where x has no
 * pixels.
 *
 * Phases remove strides: row q of the padded image is row q / sh of phase q % sh; the same for columns. So for each tap,
 * neighbouring pixels of y read neighbouring pixels of the panel, for any stride. With a large dilation most of these rows
 * are never read; then phase r holds the rows that kernel row r reads instead (DIRECT_ROW_SPLIT). Without padding, prologue
 * and column stride there is no panel: x is read in place, by the same address formula with the image's strides.
 *
 * A transposed convolution of stride (sh, sw) has sh * sw output phases: the points of y whose row is t and whose column is u
 * modulo the stride. Point (i, j) of a phase is row i * sh + t, column j * sw + u of y. All points of a phase read the same few
 * kernel rows and columns, at the same distance from row i and column j of x. So each phase is a convolution of stride 1 with taps
 * of its own, and its tiles are stored with gaps between their pixels. OH, OW, ROWS and COLUMNS below count points of a phase; a block
 * has these points of all phases. Other convolutions have one output phase.
 */
#ifndef SOL_DNN_DIRECT_H
#define SOL_DNN_DIRECT_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum direct_param {
    DIRECT_H, /* sizes of x and y; a 1x1 convolution without stride treats the image as one row */
    DIRECT_W,
    DIRECT_OH,
    DIRECT_OW,
    DIRECT_KH, /* the clipped kernel: without the rows and columns that only ever multiply padding */
    DIRECT_KW,
    DIRECT_KERNEL_ROW, /* its first row and column in the problem's kernel, and its padding */
    DIRECT_KERNEL_COLUMN,
    DIRECT_PT,
    DIRECT_PL,
    DIRECT_BLOCK, /* channels of a pixel that are contiguous in x: lanes, or 1 if x is plain. Quads: lanes / 4, or 1 */
    DIRECT_STEP,  /* channels per step of the inner loop: STEP of simd.h; 1 quad */
    DIRECT_C_BLOCKS, /* channel blocks of x per group */
    DIRECT_PAIRS,    /* per group; the last one may be half empty */
    DIRECT_SHARES,   /* tasks per (block, group): each computes a part of the pairs */
    DIRECT_ROWS,     /* pixels of y in a block */
    DIRECT_COLUMNS,
    DIRECT_PANEL,      /* 1: x is copied into a panel; 0: it is read in place */
    DIRECT_ROW_PHASES, /* of the panel */
    DIRECT_COLUMN_PHASES,
    DIRECT_ROW_SPLIT,  /* 1: each kernel row has a phase of its own */
    DIRECT_ROW_STRIDE, /* floats between the inputs of two rows of y, in panel or image */
    DIRECT_ROW_PHASE,  /* floats between two phases */
    DIRECT_COLUMN_PHASE,
    DIRECT_C_STRIDE, /* floats between two channel blocks of x */
    DIRECT_TABLE,    /* bytes of the list of taps in scratch */
    DIRECT_PAIR,     /* floats of packed weights of one pair, with the sums */
    DIRECT_SH, /* steps from point to point and from tap to tap in x: 1 if transposed, else the problem's */
    DIRECT_SW,
    DIRECT_DH,
    DIRECT_DW,
    DIRECT_REACH_H, /* rows of x from the first to the last one that a point reads */
    DIRECT_REACH_W,
    DIRECT_UP_H, /* numbers of output phases: the stride if transposed, else 1 */
    DIRECT_UP_W,
    DIRECT_Y_H, /* rows and columns of y, of all phases */
    DIRECT_Y_W,
    DIRECT_D, /* planes of x, of y and of the kernel; images are volumes of one plane */
    DIRECT_OD,
    DIRECT_KD,
    DIRECT_PLANE, /* floats between the inputs of two planes of the kernel, in panel or volume */
    DIRECT_PART, /* taps whose products are added up before they are added to those of other taps */
};

/* An output phase: rows i * UP_H + row and columns j * UP_W + column of y. */
struct direct_phase {
    int64_t row, column;
    int64_t tap, n_taps; /* in the list of taps */
    int64_t weights;     /* floats before its weights in those of a pair */
};

/* One entry of the list of taps. */
struct direct_tap {
    int64_t offset;     /* floats from the input of the tile's first pixel, in panel or image */
    int64_t n_channels; /* contiguous channels to sum, without padding at the block's end */
};

static inline int64_t direct_phases(const struct dnn_plan *plan) {
    return plan->param[DIRECT_UP_H] * plan->param[DIRECT_UP_W];
}

/* Taps of all output phases. */
static inline int64_t direct_taps(const struct dnn_plan *plan) {
    return plan->param[DIRECT_C_BLOCKS] * plan->param[DIRECT_KD] * plan->param[DIRECT_KH] *
           plan->param[DIRECT_KW];
}

/* Does kernel row r of the clipped kernel belong to row `phase` of the output phases? *out: rows of x, padding included, from the
 * first one that a point may read to the one that this kernel row reads. */
static inline bool direct_row(const struct dnn_plan *plan, int64_t phase, int64_t r, int64_t *out) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t at = phase + p->pt - r * p->dh;
    *out = p->transposed ? at / p->sh + plan->param[DIRECT_PT] : r * p->dh;
    return !p->transposed || at % p->sh == 0;
}

/* The same for columns. */
static inline bool direct_column(const struct dnn_plan *plan, int64_t phase, int64_t s,
                                 int64_t *out) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t at = phase + p->pl - s * p->dw;
    *out = p->transposed ? at / p->sw + plan->param[DIRECT_PL] : s * p->dw;
    return !p->transposed || at % p->sw == 0;
}

/* The most output phases. */
#define DIRECT_MAX_PHASES 64

/* Fills in direct_phases(plan) entries. */
void dnn_direct_phases(const struct dnn_plan *plan, struct direct_phase *phase);

/* Halo rows: each phase of the panel has this many rows more than the block of y. */
static inline int64_t direct_more_rows(const struct dnn_plan *plan) {
    const int64_t *param = plan->param;
    return param[DIRECT_ROW_SPLIT] ? 0 : param[DIRECT_REACH_H] / param[DIRECT_SH];
}

static inline int64_t direct_more_columns(const struct dnn_plan *plan) {
    return plan->param[DIRECT_REACH_W] / plan->param[DIRECT_SW];
}

/* Channels per number of 32 bits: 4, or 1 for floats. */
static inline int64_t direct_unit(const struct dnn_plan *plan) {
    return plan->problem.x_type == SOL_F32 ? 1 : 4;
}

/* Channels of the taps of channel block `c_block`: without padding at its end, rounded up to the kernel's step. All groups use one
 * list of taps, so the most of any group. */
static inline int64_t direct_channels(const struct dnn_plan *plan, int64_t c_block) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t unit = direct_unit(plan);
    int64_t n = 1;
    if (p->x_plain || !p->c_map) return plan->param[DIRECT_BLOCK];
    for (int64_t group = 0; group < p->groups; group++) {
        const int *map = p->c_map + (group * plan->param[DIRECT_C_BLOCKS] + c_block) * p->lanes;
        for (int64_t i = n; i < p->lanes; i++)
            if (map[i] >= 0) n = i + 1;
    }
    return round_up(ceil_div(n, unit), plan->param[DIRECT_STEP]);
}

/* Channels that the taps of the channel blocks [0, c_block) sum. */
static inline int64_t direct_count_channels(const struct dnn_plan *plan, int64_t c_block) {
    int64_t n = 0;
    for (int64_t c = 0; c < c_block; c++) n += direct_channels(plan, c);
    return n;
}

/* struct dnn_impl's function of this name. */
void dnn_direct_pack(const struct dnn_plan *plan, const float *weight, float *packed, int64_t task);

#endif

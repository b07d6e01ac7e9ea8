/*
 * Direct convolution: what direct.c (plan, cost, packing) and direct_kernel.c (the work) share.
 *
 * y is cut into blocks of rows x columns of pixels, and the output channels of a group into pairs
 * of channel blocks. A tile of up to `pixels` pixels and one pair is summed in registers over a
 * list of taps; a tap is one (channel block, kernel row, kernel column) and stands for the block's
 * channels that lie side by side.
 *
 *   packed   [group][k pair][channel block][kernel row][kernel column][channel][2*LANES]
 *   scratch  the taps, then the panel: a zero padded copy of the x that a block needs
 *   panel    [channel block][row phase][row][column phase][column][channel]
 *
 * Phases take strides out of the panel: row q of the padded image is number q / sh of phase q % sh,
 * columns alike. Pixels of y that are neighbours thus read neighbours in the panel for each tap,
 * whatever the strides. With a large dilation most of these rows would not be read; then phase r
 * instead holds what kernel row r needs. Where x needs neither padding nor a prologue it is read in
 * place, by the same formula with the image's strides.
 */
#ifndef SOL_DNN_DIRECT_H
#define SOL_DNN_DIRECT_H

#include "dnn/dnn.h"

/* Indices into dnn_plan.param. */
enum direct_param {
    DIRECT_H, /* sizes of x and y; a 1x1 convolution that only walks pixels has one long row */
    DIRECT_W,
    DIRECT_OH,
    DIRECT_OW,
    DIRECT_KH, /* the kernel without the rows and columns that never meet the image ... */
    DIRECT_KW,
    DIRECT_KERNEL_ROW, /* ... its place in the problem's kernel, and what then is its padding */
    DIRECT_KERNEL_COLUMN,
    DIRECT_PT,
    DIRECT_PL,
    DIRECT_BLOCK,    /* channels side by side in x: the lanes, or 1 when x is plain */
    DIRECT_STEP,     /* channels that a kernel takes at once */
    DIRECT_C_BLOCKS, /* of x per group */
    DIRECT_PAIRS,    /* of k blocks per group; the last one may be half empty */
    DIRECT_SHARES,   /* tasks that divide the pairs of one group and block of y */
    DIRECT_ROWS,     /* pixels of y in a block */
    DIRECT_COLUMNS,
    DIRECT_PANEL,      /* is x copied? */
    DIRECT_ROW_PHASES, /* of the panel */
    DIRECT_COLUMN_PHASES,
    DIRECT_ROW_SPLIT,  /* does each kernel row have a phase of its own? */
    DIRECT_ROW_STRIDE, /* floats between the inputs of two rows of y, in panel or image */
    DIRECT_ROW_PHASE,  /* floats between two phases */
    DIRECT_COLUMN_PHASE,
    DIRECT_C_STRIDE, /* floats between two channel blocks */
    DIRECT_TABLE,    /* bytes of scratch that the taps take */
    DIRECT_PAIR,     /* floats of one pair's weights */
};

/* One entry of the list that a tile is summed over. */
struct direct_tap {
    int64_t offset;     /* of x, in floats */
    int64_t n_channels; /* side by side; padding at a block's end is left out */
};

static inline int64_t direct_taps(const struct dnn_plan *plan) {
    return plan->param[DIRECT_C_BLOCKS] * plan->param[DIRECT_KH] * plan->param[DIRECT_KW];
}

/* Rows of one phase of the panel beyond those of the block. */
static inline int64_t direct_more_rows(const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    return plan->param[DIRECT_ROW_SPLIT] ? 0 : (plan->param[DIRECT_KH] - 1) * p->dh / p->sh;
}

static inline int64_t direct_more_columns(const struct dnn_plan *plan) {
    return (plan->param[DIRECT_KW] - 1) * plan->problem.dw / plan->problem.sw;
}

/* Channels that a tap of channel block `c_block` stands for. Groups have one list of taps for all. */
static inline int64_t direct_channels(const struct dnn_plan *plan, int64_t c_block) {
    const struct dnn_problem *p = &plan->problem;
    int64_t n = plan->param[DIRECT_BLOCK];
    if (n == 1 || p->groups > 1 || !p->c_map) return n;
    while (n > 1 && p->c_map[c_block * p->lanes + n - 1] < 0) n--;
    return round_up(n, plan->param[DIRECT_STEP]);
}

#endif

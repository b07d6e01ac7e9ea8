/*
 * The function of the step of attention: from the step's arguments to blocks of rows.
 *
 *   run/exec.c -> dnn_attention_run: task -> index of the outer dims, rows -> kernels->attention
 *
 * This file is part of deployed libraries.
 */
#include "dnn/attention.h"

#include "dnn/list.h"

#include <string.h>

/* Blocks of rows per matrix: of at most ATTENTION_ROWS rows, in whole vectors. */
static int64_t count_blocks(const int64_t *arg) {
    const int64_t lanes = arg[ATTENTION_LANES];
    return ceil_div(ceil_div(arg[ATTENTION_M], lanes), ATTENTION_ROWS / lanes);
}

static int64_t count_tasks(const struct step *step, const int64_t *arg) {
    int64_t n = arg[ATTENTION_E] ? count_blocks(arg) : 0;
    (void)step;
    for (int i = 0; i < ATTENTION_OUTER; i++) n *= arg[ATTENTION_DIM + i];
    return n;
}

static float read_float(int64_t bits) {
    const uint32_t low = (uint32_t)bits;
    float x;
    memcpy(&x, &low, sizeof x);
    return x;
}

/* Where pointer `pointer` has matrix number `index`, from row `row` on. */
static int64_t find_offset(const int64_t *arg, int pointer, int64_t index, int64_t row) {
    int64_t at = row * arg[attention_stride(pointer, ATTENTION_OUTER)];
    for (int i = ATTENTION_OUTER - 1; i >= 0; i--) {
        at += index % arg[ATTENTION_DIM + i] * arg[attention_stride(pointer, i)];
        index /= arg[ATTENTION_DIM + i];
    }
    return at;
}

static struct attention_block make_block(void *const *ptr, const int64_t *arg, int64_t index,
                                         int64_t row, int64_t end) {
    const int row_dim = ATTENTION_OUTER;
    struct attention_block b = {.row = row,
                                .rows = end - row,
                                .total_rows = arg[ATTENTION_M],
                                .keys = arg[ATTENTION_N],
                                .d = arg[ATTENTION_D],
                                .e = arg[ATTENTION_E],
                                .q_row = arg[attention_stride(ATTENTION_Q, row_dim)],
                                .k_row = arg[attention_stride(ATTENTION_K, row_dim)],
                                .v_row = arg[attention_stride(ATTENTION_V, row_dim)],
                                .y_row = arg[attention_stride(ATTENTION_Y, row_dim)],
                                .mask_row = arg[attention_stride(ATTENTION_MASK, row_dim)],
                                .mask_key = arg[attention_stride(ATTENTION_MASK, row_dim + 1)],
                                .scale = read_float(arg[ATTENTION_SCALE]),
                                .cap = read_float(arg[ATTENTION_CAP]),
                                .is_causal = arg[ATTENTION_CAUSAL],
                                .is_strict = arg[ATTENTION_STRICT],
                                .may_round = arg[ATTENTION_PAIRS],
                                .is_bool = arg[ATTENTION_MASK_SIZE] == 1};
    b.q = (const float *)ptr[ATTENTION_Q] + find_offset(arg, ATTENTION_Q, index, row);
    b.k = (const float *)ptr[ATTENTION_K] + find_offset(arg, ATTENTION_K, index, 0);
    b.v = (const float *)ptr[ATTENTION_V] + find_offset(arg, ATTENTION_V, index, 0);
    b.y = (float *)ptr[ATTENTION_Y] + find_offset(arg, ATTENTION_Y, index, row);
    if (ptr[ATTENTION_MASK])
        b.mask = (const char *)ptr[ATTENTION_MASK] +
                 find_offset(arg, ATTENTION_MASK, index, row) * arg[ATTENTION_MASK_SIZE];
    return b;
}

static void run_blocks(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                       int64_t begin, int64_t end) {
    const struct dnn_kernels *kernels = step->data;
    const int64_t blocks = count_blocks(arg), lanes = arg[ATTENTION_LANES];
    const int64_t vectors = ceil_div(arg[ATTENTION_M], lanes);
    for (int64_t task = begin; task < end; task++) {
        const int64_t index = task / blocks, part = task % blocks;
        const int64_t row = dnn_split(vectors, part, blocks) * lanes,
                      last = dnn_split(vectors, part + 1, blocks) * lanes;
        const struct attention_block b =
            make_block(ptr, arg, index, row, min_i64(last, arg[ATTENTION_M]));
        kernels->attention(&b, scratch);
    }
}

const struct step_kind step_attention = {
    .name = "attention", .run = run_blocks, .n_tasks = count_tasks};

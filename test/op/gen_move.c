/* Random cases of layers that only move values; the table is in gen_layer.c. */
#include "gen_parts.h"

#include <stdio.h>
#include <string.h>

/* Splits the last dim in two if possible, and merges the first two dims after the batch if there
 * are two. */
void gen_reshape_case(struct gen *g, const char *kind, const char *attributes) {
    char text[160] = "shape=[", dim[24];
    int x = gen_random_leaf(g, -1, 1), rank = g->value[x].rank;
    size_t used = strlen(text);
    (void)attributes;
    for (int i = 0; i < rank - 1; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s,",
                                 gen_dim_text(g->value[x].dim[i], dim));
    int64_t last = g->value[x].dim[rank - 1], factor = last > 0 && last % 4 == 0 ? 4 : 1;
    if (last < 0) snprintf(text + used, sizeof text - used, "%s,1]", gen_dim_text(last, dim));
    else snprintf(text + used, sizeof text - used, "%d,%d]", (int)factor, (int)(last / factor));
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

void gen_permute_case(struct gen *g, const char *kind, const char *attributes) {
    int x = gen_random_leaf(g, -1, 1), rank = g->value[x].rank, axis[SOL_MAX_RANK];
    char text[64] = "axes=[";
    (void)attributes;
    for (int i = 0; i < rank; i++) {
        int at = random_int(g->random, 0, i);
        axis[i] = axis[at];
        axis[at] = i;
    }
    for (int i = 0; i < rank; i++)
        sprintf(text + strlen(text), "%d%s", axis[i], i + 1 < rank ? "," : "]");
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

void gen_slice_case(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    char text[96];
    int x = gen_random_leaf(g, -1, 1), axis = random_int(r, 0, g->value[x].rank - 1);
    int64_t extent = g->value[x].dim[axis];
    (void)attributes;
    if (extent < 0) { /* a symbolic dim is sliced only as a whole */
        int rank = g->value[x].rank;
        int64_t dim[SOL_MAX_RANK] = {5};
        memcpy(dim + 1, g->value[x].dim, sizeof *dim * (size_t)rank);
        x = gen_leaf(g, false, rank + 1, dim, -1, 1), axis = 0, extent = 5;
    }
    int start = random_int(r, 0, (int)extent - 1), step = random_one_in(r, 3) ? 2 : 1;
    int n = random_int(r, 1, (int)((extent - start + step - 1) / step));
    if (random_one_in(r, 3)) start += (n - 1) * step, step = -step; /* backwards */
    snprintf(text, sizeof text, "axis=%d start=%d step=%d shape=[%d]", axis, start, step, n);
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* Into a dim that may be larger than needed; also into an open one, from which a slice reads the values again. */
void gen_place_case(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    char text[96], n[SIZE_TEXT];
    int x = gen_random_leaf(g, -1, 1), axis = random_int(r, 0, g->value[x].rank - 1);
    const int64_t extent = g->value[x].dim[axis];
    int start = random_int(r, 0, 3), step = random_one_in(r, 2) ? 1 : random_int(r, 2, 3);
    const int behind = random_int(r, 0, 3);
    (void)attributes;
    if (extent < 0) { /* $0 values, forwards */
        snprintf(text, sizeof text, "axis=%d start=%d step=%d shape=[%d*$0+%d]", axis, start, step,
                 step, start + behind);
    } else {
        const int reach = (int)(extent - 1) * step, size = start + reach + 1 + behind;
        if (random_one_in(r, 3)) start += reach, step = -step;
        snprintf(text, sizeof text, "axis=%d start=%d step=%d shape=[%d]", axis, start, step, size);
    }
    int y = gen_add(g, kind, 1, &x, text);
    gen_output(g, y);
    snprintf(text, sizeof text, "axis=%d start=%d step=%d shape=[%s]", axis, start, step,
             gen_size_text(g, x, axis, n));
    gen_output(g, gen_add(g, "slice", 1, &y, text));
}

void gen_concat_case(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_shape(g, GEN_MOST / 4, dim), axis = random_int(r, 0, rank - 1),
        n = random_int(r, 1, 5), in[5];
    char text[32];
    (void)attributes;
    if (dim[axis] < 0) dim[axis] = 3;
    for (int i = 0; i < n; i++) {
        in[i] = gen_leaf(g, random_one_in(r, 4), rank, dim, -1, 1);
        if (random_one_in(r, 2)) dim[axis] = random_int(r, 1, 17);
    }
    snprintf(text, sizeof text, "axis=%d", axis);
    gen_output(g, gen_add(g, kind, n, in, text));
}

void gen_expand_case(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_shape(g, GEN_MOST, dim), drop = random_int(r, 0, rank - 1);
    char text[128] = "shape=[", one[24];
    (void)attributes;
    for (int i = 0; i < rank; i++) {
        sprintf(text + strlen(text), "%s%s", gen_dim_text(dim[i], one), i + 1 < rank ? "," : "]");
        if (random_one_in(r, 2)) dim[i] = 1;
    }
    int x = gen_leaf(g, false, rank - drop, dim + drop, -1, 1);
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

void gen_pad_case(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    char text[96];
    int x = gen_random_image(g, random_int(r, 1, 17));
    (void)attributes;
    snprintf(text, sizeof text, "pad=[%d,%d,%d,%d] value=%s", random_int(r, 0, 3),
             random_int(r, 0, 3), random_int(r, 0, 3), random_int(r, 0, 3),
             random_one_in(r, 2)  ? "0.0"
             : g->type == SOL_F32 ? "-1.5"
                                  : "1.0");
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* Indices from the whole range, including negative ones. */
void gen_gather_case(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK], numbers[2] = {g->batch, random_int(r, 1, 9)};
    char text[32];
    (void)attributes;
    int rank = gen_shape(g, GEN_MOST / 16, dim), axis = random_int(r, 0, rank - 1);
    if (dim[axis] < 0) dim[axis] = 5;
    int drop = random_int(r, 0, 2);
    int in[2] = {gen_leaf(g, random_one_in(r, 2), rank, dim, -4, 4), 0};
    in[1] = gen_numbers(g, random_one_in(r, 4), 2 - drop, numbers + drop, dim[axis]);
    snprintf(text, sizeof text, "axis=%d", axis);
    gen_output(g, gen_add(g, kind, 2, in, text));
}

/* The first half along dim 1, which has gaps between samples. */
static int add_half(struct gen *g, int x) {
    char text[64];
    snprintf(text, sizeof text, "axis=1 shape=[%d]", (int)(g->value[x].dim[1] + 1) / 2);
    return gen_add(g, "slice", 1, &x, text);
}

/* Of up to 3 dims of indices, some of them batches. */
void gen_scatter_case(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    static const int counts[] = {1, 2, 3, 7, 40, 300};
    int64_t dim[SOL_MAX_RANK];
    char text[64];
    (void)attributes;
    const int n_index = random_int(r, 0, 3), rank = n_index + random_int(r, 0, 2),
              axis = random_int(r, 0, n_index), rows = RANDOM_PICK(r, counts);
    for (int d = 0; d < rank; d++) dim[d] = random_int(r, 1, d < n_index ? 9 : 20);
    if (random_one_in(r, 8) && n_index) dim[n_index - 1] = 300; /* more than are checked at once */
    if (random_one_in(r, 2) && n_index) dim[0] = g->batch;
    int in[2] = {gen_leaf(g, random_one_in(r, 4), rank, dim, -1, 1),
                 gen_numbers(g, random_one_in(r, 4), n_index, dim, rows)};
    const bool has_gaps = n_index > 1 && random_one_in(r, 2);
    for (int i = 0; i < 2 && has_gaps; i++) in[i] = add_half(g, in[i]);
    snprintf(text, sizeof text, "axis=%d shape=[%d]", axis, rows);
    gen_output(g, gen_add(g, kind, 2, in, text));
}

/* `n` times `start`, or from there on upward. */
static int add_range(struct gen *g, int64_t start, int step, int64_t n) {
    char text[80];
    snprintf(text, sizeof text, "start=%d step=%d shape=[%d] dtype=i64", (int)start, step, (int)n);
    return gen_value(g, sol_model_layer(g->model, "arange", 0, NULL, text, NULL), 0, 0, 0);
}

/* Tap `tap` of n results is element (i + tap) / factor, at most the last one: the indices of an enlarged or cut dim. */
static int add_tap(struct gen *g, int64_t tap, int64_t factor, int64_t n, int64_t size) {
    char text[40];
    int at = gen_add(g, "floor_div", 2,
                     (int[]){add_range(g, tap, 1, n), add_range(g, factor, 0, 1)}, "");
    at = gen_add(g, "minimum", 2, (int[]){at, add_range(g, size - 1, 0, 1)}, "");
    snprintf(text, sizeof text, "shape=[1,%d]", (int)n);
    return gen_add(g, "reshape", 1, &at, text);
}

/* Indices [taps, n] near each other, or anywhere. */
static int add_taps(struct gen *g, int64_t taps, int64_t n, int64_t size) {
    int row[16];
    const int64_t dim[2] = {taps, n}, factor = random_int(g->random, 1, 3);
    if (random_one_in(g->random, 3))
        return gen_positions(g, random_one_in(g->random, 2), 2, dim, size);
    for (int k = 0; k < taps; k++) row[k] = add_tap(g, k, factor, n, size);
    return gen_add(g, "concat", (int)taps, row, "axis=0");
}

/* Along one or two dims, which may be the last ones. */
void gen_resample_case(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK];
    char text[32];
    (void)attributes;
    int rank = gen_shape(g, GEN_MOST / 16, dim), axis = random_int(r, 0, rank - 1), in[5], n_in = 3;
    bool has_two = axis + 1 < rank && !random_one_in(r, 3);
    for (int d = axis; d <= axis + has_two; d++)
        if (dim[d] < 0) dim[d] = 5;
    in[0] = gen_leaf(g, random_one_in(r, 4), rank, dim, -4, 4);
    for (int d = axis; d <= axis + has_two; d++) {
        int64_t taps[2] = {random_int(r, 1, random_one_in(r, 8) ? 16 : 4), random_int(r, 1, 60)};
        in[2 * (d - axis) + 1] = add_taps(g, taps[0], taps[1], dim[d]);
        in[2 * (d - axis) + 2] = gen_leaf(g, random_one_in(r, 2), 2, taps, -1, 1);
        n_in = 3 + 2 * (d - axis);
    }
    snprintf(text, sizeof text, "axis=%d", axis);
    gen_output(g, gen_add(g, kind, n_in, in, text));
}

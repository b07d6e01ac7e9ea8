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

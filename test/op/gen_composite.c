/* Random cases of composites: norms, attention, reductions that are composites, and of triangles, and of transposed convolutions. */
#include "gen_parts.h"

#include <stdio.h>
#include <string.h>

#define MOST 5000 /* elements of a tensor */

/* A norm over the last dims of x, with parameters for the last dim. Values are far from 0 in some cases, which is hard for a variance. */
void gen_axes_norm(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_shape(g, MOST, dim), n = random_int(r, 1, rank), in[3];
    int n_in = random_int(r, 1, strcmp(kind, "rms_norm") ? 3 : 2);
    char text[64] = "axes=[";
    (void)attributes;
    if (dim[rank - 1] < 0) dim[rank - 1] = 17;
    float offset = random_one_in(r, 3) ? 100 : 0;
    in[0] = gen_leaf(g, false, rank, dim, offset - 4, offset + 4);
    for (int i = 1; i < n_in; i++) in[i] = gen_leaf(g, true, 1, &dim[rank - 1], -2, 2);
    for (int i = n; i > 0; i--) sprintf(text + strlen(text), "%d%s", -i, i > 1 ? "," : "]");
    strcat(text, " eps=0.001");
    gen_output(g, gen_add(g, kind, n_in, in, text));
    if (offset > 0) g->tolerance = 2e-4; /* rounding of the mean, relative to the distances */
}

void gen_group_norm(struct gen *g, const char *kind, const char *attributes) {
    static const int counts[] = {1, 2, 3, 4, 17};
    struct random *r = g->random;
    int groups = RANDOM_PICK(r, counts), rank = random_int(r, 2, 5), in[3];
    int64_t c = groups * RANDOM_PICK(r, counts), dim[5] = {g->batch, c};
    char text[64];
    (void)attributes;
    for (int d = 2; d < rank; d++) dim[d] = random_int(r, 1, 6);
    in[0] = gen_leaf(g, false, rank, dim, -4, 4);
    for (int i = 1; i < 3; i++) in[i] = gen_leaf(g, true, 1, &c, -2, 2);
    snprintf(text, sizeof text, "groups=%d eps=0.01", groups);
    gen_output(g, gen_add(g, kind, random_int(r, 1, 3), in, text));
}

/* Adds what a convolution may be fused with: a batch norm's product and sum, a residual, an activation. */
static int gen_behind_conv(struct gen *g, int y, int64_t k) {
    static const char *const acts[] = {"relu", "sigmoid", "clamp min=-0.5 max=0.5"};
    struct random *r = g->random;
    if (random_one_in(r, 2))
        y = gen_add(g, "mul", 2, (int[]){y, gen_leaf(g, true, 3, (int64_t[]){k, 1, 1}, -2, 2)}, "");
    if (random_one_in(r, 2))
        y = gen_add(g, "add", 2, (int[]){y, gen_leaf(g, true, 3, (int64_t[]){k, 1, 1}, -1, 1)}, "");
    if (random_one_in(r, 4)) y = gen_add(g, "add", 2, (int[]){y, gen_add(g, "abs", 1, &y, "")}, "");
    const char *act = RANDOM_PICK(r, acts);
    const char *attributes = strchr(act, ' ') ? strchr(act, ' ') + 1 : "";
    char name[16];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(act, " "), act);
    return random_one_in(r, 2) ? gen_add(g, name, 1, &y, attributes) : y;
}

void gen_conv_transpose(struct gen *g, const char *kind, const char *attributes) {
    static const int counts[] = {1, 2, 3, 8, 17};
    struct random *r = g->random;
    int groups = random_one_in(r, 2) ? 1 : random_int(r, 2, 3), h = random_int(r, 1, 9),
        w = random_int(r, 1, 9), in[3];
    int64_t c = groups * RANDOM_PICK(r, counts), k = RANDOM_PICK(r, counts), all = groups * k;
    int kh = random_int(r, 1, 5), kw = random_int(r, 1, 5), dilation = random_one_in(r, 4) ? 2 : 1;
    int top = random_int(r, 0, (kh - 1) / 2), left = random_int(r, 0, (kw - 1) / 2);
    int sh = random_int(r, 1, 3), sw = random_int(r, 1, 3);
    char text[200], end[100], batch[24];
    (void)attributes;
    if (random_one_in(r, 4)) c = k * groups, k = c / groups; /* depthwise, if k is 1 */
    in[0] = gen_leaf(g, false, 4, (int64_t[]){g->batch, c, h, w}, -1, 1);
    in[1] = gen_leaf(g, true, 4, (int64_t[]){c, k, kh, kw}, -0.5f, 0.5f);
    in[2] = gen_leaf(g, true, 1, &all, -1, 1);
    int rows = (h - 1) * sh + (kh - 1) * dilation + 1 - 2 * top + random_int(r, 0, sh - 1),
        columns = (w - 1) * sw + (kw - 1) * dilation + 1 - 2 * left + random_int(r, 0, sw - 1);
    if (random_one_in(r, 2))
        snprintf(end, sizeof end, "shape=[%s,%d,%d,%d]", gen_dim_text(g->batch, batch), (int)all,
                 rows, columns);
    else snprintf(end, sizeof end, "output_pad=[%d,%d]", random_int(r, 0, 2), random_int(r, 0, 2));
    snprintf(text, sizeof text, "stride=[%d,%d] pad=[%d,%d,%d,%d] dilation=[%d,%d] groups=%d %s",
             sh, sw, top, left, top, left, dilation, dilation, groups, end);
    int y = gen_add(g, kind, random_int(r, 2, 3), in, text);
    gen_output(g, g->type == SOL_F32 && random_one_in(r, 2) ? gen_behind_conv(g, y, all) : y);
    g->tolerance = 4e-5; /* Winograd */
}

/* Heads may be grouped, or shared by all batches; the mask may lack dims. */
void gen_attention(struct gen *g, const char *kind, const char *attributes) {
    static const int sizes[] = {1, 2, 5, 8, 16, 17}, lengths[] = {1, 2, 7, 16, 17, 40};
    struct random *r = g->random;
    int m = RANDOM_PICK(r, lengths), n = random_one_in(r, 16) ? 130 : RANDOM_PICK(r, lengths),
        d = RANDOM_PICK(r, sizes);
    int shared = random_int(r, 1, 3), heads = random_int(r, 1, 3), has_mask = random_int(r, 0, 1);
    int64_t q[4] = {g->batch, shared * heads, m, d}, k[4] = {g->batch, heads, n, d},
            v[4] = {g->batch, heads, n, RANDOM_PICK(r, sizes)}, mask[4] = {g->batch, q[1], m, n};
    int drop = random_int(r, 0, 3), in[4];
    char text[96];
    (void)attributes;
    if (shared == 1 && random_one_in(r, 4)) q[1] = k[1] = v[1] = mask[1] = 1;
    for (int i = drop; i < 3; i++)
        if (random_one_in(r, 3)) mask[i] = 1;
    in[0] = gen_leaf(g, false, 4, q, -1, 1);
    in[1] = gen_leaf(g, false, 4, k, -1, 1);
    in[2] = gen_leaf(g, false, 4, v, -1, 1);
    if (has_mask) in[3] = gen_leaf(g, random_one_in(r, 3), 4 - drop, mask + drop, -2, 2);
    snprintf(text, sizeof text, "scale=0.5 causal=%s softcap=%s strict=%s",
             random_one_in(r, 2) ? "true" : "false", random_one_in(r, 3) ? "1.5" : "0.0",
             random_one_in(r, 2) ? "true" : "false");
    gen_output(g, gen_add(g, kind, 3 + has_mask, in, text));
}

/* The last two dims are a matrix; leading dims, also the batch, may be missing. */
void gen_triangle(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[4] = {g->batch, 3, random_int(r, 1, 20), random_int(r, 1, 20)};
    int drop = random_int(r, 0, 2);
    char text[64];
    (void)attributes;
    if (random_one_in(r, 4)) dim[random_int(r, 2, 3)] = g->batch;
    int x = gen_leaf(g, false, 4 - drop, dim + drop, -1, 1);
    snprintf(text, sizeof text, "diagonal=%d value=%s", random_int(r, -5, 5),
             random_one_in(r, 2) ? "0.0" : "1.0");
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* Random cases of convolution, linear, matmul and batch norm; the table is in gen_layer.c. */
#include "base/size.h"
#include "gen_parts.h"

#include <stdio.h>

int gen_random_image(struct gen *g, int c) {
    static const int sizes[] = {1, 2, 3, 5, 7, 8, 13, 16, 17, 28};
    int h = RANDOM_PICK(g->random, sizes), w = RANDOM_PICK(g->random, sizes);
    return gen_leaf(g, false, 4, (int64_t[]){random_one_in(g->random, 6) ? 2 : g->batch, c, h, w},
                    -1, 1);
}

/* A convolution of volumes, sometimes depthwise. */
static void gen_volume_case(struct gen *g, const char *kind) {
    static const int counts[] = {1, 3, 8, 17, 32};
    struct random *r = g->random;
    const bool depthwise = random_one_in(r, 3);
    const int groups = depthwise ? random_int(r, 2, 20) : random_one_in(r, 4) ? 2 : 1;
    const int c = depthwise ? 1 : RANDOM_PICK(r, counts),
              k = depthwise ? 1 : RANDOM_PICK(r, counts);
    const int planes = random_int(r, 1, 3), rows = random_int(r, 1, 3),
              columns = random_int(r, 1, 3);
    const int64_t d = random_int(r, planes, 5), h = random_int(r, rows, 8),
                  w = random_int(r, columns, 20);
    const int in[3] = {
        gen_leaf(g, false, 5, (int64_t[]){g->batch, c * groups, d, h, w}, -1, 1),
        gen_leaf(g, true, 5, (int64_t[]){k * groups, c, planes, rows, columns}, -0.5f, 0.5f),
        gen_leaf(g, true, 1, (int64_t[]){k * groups}, -1, 1)};
    char text[128];
    snprintf(text, sizeof text, "stride=[%d,%d] pad=[%d,%d,%d,%d] depth=[%d,1,%d,%d] groups=%d",
             random_int(r, 1, 2), random_int(r, 1, 2), rows / 2, columns / 2, random_int(r, 0, 1),
             columns / 2, random_int(r, 1, 2), planes / 2, random_int(r, 0, 1), groups);
    gen_output(g, gen_add(g, kind, random_int(r, 2, 3), in, text));
}

void gen_conv_case(struct gen *g, const char *kind, const char *attributes) {
    static const int counts[] = {1, 3, 8, 16, 17, 32, 58, 64},
                     group_counts[] = {1, 1, 1, 2, 3, 16, 17};
    struct random *r = g->random;
    (void)attributes;
    if (random_one_in(g->random, 4)) {
        gen_volume_case(g, kind);
        return;
    }
    int groups = RANDOM_PICK(r, group_counts), c = RANDOM_PICK(r, counts),
        k = RANDOM_PICK(r, counts);
    if (groups > 4) c = k = 1;
    int kernel = random_int(r, 0, 2) * 2 + 1,
        wide = random_one_in(r, 6) ? random_int(r, 1, 4) : kernel;
    int x = gen_random_image(g, c * groups), dilation = random_one_in(r, 6) ? 2 : 1;
    int in[3] = {x, gen_leaf(g, true, 4, (int64_t[]){k * groups, c, kernel, wide}, -0.5f, 0.5f), 0};
    in[2] = gen_leaf(g, true, 1, (int64_t[]){k * groups}, -1, 1);
    /* The window must fit at least once, so small images get padding of the window's size. */
    int reach = (kernel - 1) * dilation, reach_w = (wide - 1) * dilation;
    bool small =
        g->value[x].dim[2] <= reach || g->value[x].dim[3] <= reach_w || random_one_in(r, 8);
    int pad = small ? reach : kernel / 2, pad_w = small ? reach_w : wide / 2;
    char text[128];
    snprintf(text, sizeof text, "stride=[%d,%d] pad=[%d,%d,%d,%d] dilation=[%d,%d] groups=%d",
             random_int(r, 1, 2), random_int(r, 1, 2), pad, pad_w, pad + random_int(r, 0, 1), pad_w,
             dilation, dilation, groups);
    gen_output(g, gen_add(g, kind, random_int(r, 2, 3), in, text));
    g->tolerance = 4e-5; /* Winograd */
}

/* Sizes and attributes of a convolution of images or volumes. */
struct conv_sizes {
    int rank, groups;
    int64_t x[5], w[5];
    char text[160];
};

static void choose_conv(struct gen *g, struct conv_sizes *c) {
    static const int counts[] = {1, 3, 8, 16, 17, 32, 58}, group_counts[] = {1, 1, 1, 2, 16, 17},
                     strides[] = {1, 1, 2};
    struct random *r = g->random;
    char depth[48] = "";
    c->rank = random_one_in(r, 5) ? 5 : 4;
    c->groups = RANDOM_PICK(r, group_counts);
    const int each = c->groups == 1 ? 0 : RANDOM_PICK(r, ((int[]){1, 1, 2, 4})),
              in = each ? each : RANDOM_PICK(r, counts), out = each ? each : RANDOM_PICK(r, counts);
    c->x[0] = random_one_in(r, 6) ? 2 : g->batch, c->x[1] = in * c->groups;
    c->w[0] = out * c->groups, c->w[1] = in;
    for (int d = 2; d < c->rank; d++) c->w[d] = random_int(r, 1, 3);
    for (int d = 2; d < c->rank; d++)
        c->x[d] = random_int(r, (int)c->w[d], d == 2 && c->rank == 5 ? 4 : 15);
    if (c->rank == 5)
        snprintf(depth, sizeof depth, " depth=[%d,1,%d,%d]", random_int(r, 1, 2),
                 random_int(r, 0, 1), random_int(r, 0, 1));
    snprintf(c->text, sizeof c->text, "stride=[%d,%d] pad=[%d,%d,%d,%d] groups=%d%s",
             RANDOM_PICK(r, strides), RANDOM_PICK(r, strides), random_int(r, 0, 2),
             random_int(r, 0, 2), random_int(r, 0, 2), random_int(r, 0, 2), c->groups, depth);
}

/* dy is an input, or computed by the convolution itself, which makes x and dy blocked. */
void gen_conv_weight(struct gen *g, const char *kind, const char *attributes) {
    struct conv_sizes c;
    char text[320], shape[96];
    int used = 0;
    (void)attributes;
    choose_conv(g, &c);
    int in[2] = {gen_leaf(g, false, c.rank, c.x, -1, 1),
                 gen_leaf(g, true, c.rank, c.w, -0.5f, 0.5f)};
    if (random_one_in(g->random, 2)) in[0] = gen_add(g, "relu", 1, in, "");
    const int y = gen_add(g, "conv", 2, in, c.text);
    in[1] = random_one_in(g->random, 2) ? gen_leaf(g, false, c.rank, g->value[y].dim, -1, 1) : y;
    for (int d = 0; d < c.rank; d++)
        used += snprintf(shape + used, sizeof shape - (size_t)used, ",%d", (int)c.w[d]);
    snprintf(text, sizeof text, "shape=[%s] %s", shape + 1, c.text);
    gen_output(g, gen_add(g, kind, 2, in, text));
    g->tolerance = 4e-5; /* Winograd */
}

void gen_linear_case(struct gen *g, const char *kind, const char *attributes) {
    static const int sizes[] = {1, 3, 7, 16, 17, 64, 100, 257, 1000};
    struct random *r = g->random;
    (void)attributes;
    int c = RANDOM_PICK(r, sizes), k = RANDOM_PICK(r, sizes), rank = random_int(r, 1, 3);
    int64_t dim[3] = {g->batch, 5, c};
    int in[3] = {gen_leaf(g, false, rank, dim + 3 - rank, -1, 1), 0, 0};
    if (rank == 2) in[0] = gen_leaf(g, false, 2, (int64_t[]){g->batch, c}, -1, 1);
    in[1] = gen_leaf(g, true, 2, (int64_t[]){k, c}, -1, 1);
    in[2] = gen_leaf(g, true, 1, (int64_t[]){k}, -1, 1);
    gen_output(g, gen_add(g, kind, random_int(r, 2, 3), in, ""));
}

/* ---- Quantized products ---- */

static int leaf_of(struct gen *g, enum sol_dtype type, bool param, int rank, const int64_t *dim) {
    g->type = type;
    return gen_leaf(g, param, rank, dim, -1, 1);
}

static int vector_of(struct gen *g, enum sol_dtype type, double value, int n) {
    char text[32];
    g->type = type;
    snprintf(text, sizeof text, "shape=[%d]", n);
    return gen_add(g, "expand", 1, (int[]){gen_scalar(g, value)}, text);
}

/* Powers of two, so that the product of scale and sum is exact: results do not depend on whether it is rounded before the bias is
 * added. */
static int scale_of(struct gen *g, int64_t k) {
    int in[3] = {leaf_of(g, SOL_BOOL, true, 1, &k), vector_of(g, SOL_F32, 1.0 / 512, (int)k),
                 vector_of(g, SOL_F32, 1.0 / 4096, (int)k)};
    return gen_add(g, "where", 3, in, "");
}

/* Zero point and limits, of whole numbers inside the type's range. */
static int range_of(struct gen *g, bool is_signed) {
    struct random *r = g->random;
    const int first = is_signed ? -128 : 0, zero = random_int(r, first, first + 255);
    int low = random_one_in(r, 2) ? first : random_int(r, first, zero);
    int high = random_one_in(r, 2) ? first + 255 : random_int(r, zero, first + 255);
    int in[3] = {vector_of(g, SOL_F32, zero, 1), vector_of(g, SOL_F32, low, 1),
                 vector_of(g, SOL_F32, high, 1)};
    return gen_add(g, "concat", 3, in, "axis=0");
}

/* in[0] and in[1] are x and the weight of k channels; adds the other inputs and the layer. */
static void add_quantized(struct gen *g, const char *kind, int in[6], int64_t k,
                          const char *attributes) {
    struct random *r = g->random;
    const bool is_signed = random_one_in(r, 2), has_range = random_one_in(r, 2);
    char text[192];
    const int first = g->value[in[0]].type == SOL_I8 ? -128 : 0;
    in[2] = vector_of(g, SOL_I32, random_int(r, first, first + 255), 1);
    in[3] = scale_of(g, k);
    in[4] = leaf_of(g, SOL_F32, true, 1, &k);
    if (has_range) in[5] = range_of(g, is_signed);
    snprintf(text, sizeof text, "%s dtype=%s", attributes,
             !has_range  ? "f32"
             : is_signed ? "i8"
                         : "u8");
    int y = gen_add(g, kind, has_range ? 6 : 5, in, text);
    g->value[y].type = !has_range ? SOL_F32 : is_signed ? SOL_I8 : SOL_U8;
    gen_output(g, y);
}

static enum sol_dtype any_quantized(struct gen *g) {
    return random_one_in(g->random, 2) ? SOL_U8 : SOL_I8;
}

void gen_quant_linear_case(struct gen *g, const char *kind, const char *attributes) {
    static const int sizes[] = {1, 3, 7, 16, 17, 64, 100, 257, 1000};
    struct random *r = g->random;
    int64_t c = RANDOM_PICK(r, sizes), k = RANDOM_PICK(r, sizes), dim[3] = {g->batch, 5, c};
    int rank = random_int(r, 1, 3), in[6];
    in[0] = leaf_of(g, any_quantized(g), false, rank, dim + 3 - rank);
    in[1] = leaf_of(g, SOL_I8, true, 2, (int64_t[]){k, c});
    add_quantized(g, kind, in, k, attributes);
}

void gen_quant_conv_case(struct gen *g, const char *kind, const char *attributes) {
    static const int counts[] = {1, 3, 8, 16, 17, 32, 58, 64},
                     sizes[] = {1, 2, 3, 7, 8, 13, 17, 28};
    struct random *r = g->random;
    int64_t c = RANDOM_PICK(r, counts), k = RANDOM_PICK(r, counts);
    int h = RANDOM_PICK(r, sizes), w = RANDOM_PICK(r, sizes), rows = random_int(r, 1, 4),
        columns = random_int(r, 1, 4), dilation = random_one_in(r, 4) ? 2 : 1, in[6];
    const int groups = random_one_in(r, 6) ? 2 : 1;
    char text[128];
    in[0] = leaf_of(g, any_quantized(g), false, 4, (int64_t[]){g->batch, c * groups, h, w});
    in[1] = leaf_of(g, SOL_I8, true, 4, (int64_t[]){k * groups, c, rows, columns});
    (void)attributes;
    /* Padding of the window's size, where the image may be smaller than the window */
    int pad = h <= (rows - 1) * dilation ? rows * dilation : random_int(r, 0, rows - 1),
        pad_w = w <= (columns - 1) * dilation ? columns * dilation : random_int(r, 0, columns - 1);
    snprintf(text, sizeof text, "stride=[%d,%d] pad=[%d,%d,%d,%d] dilation=[%d,%d] groups=%d",
             random_int(r, 1, 3), random_int(r, 1, 3), pad, pad_w, pad, random_int(r, 0, 1) + pad_w,
             dilation, dilation, groups);
    add_quantized(g, kind, in, k * groups, text);
}

/* The layers around a product in a transformer: scales before it, a softmax and a second product after it. */
static int add_attention(struct gen *g, int x, int y) {
    struct random *r = g->random;
    int64_t value[2] = {g->value[y].dim[g->value[y].rank - 1], random_int(r, 1, 20)};
    int scale = gen_scalar(g, 0.5);
    if (random_one_in(r, 2)) x = gen_add(g, "mul", 2, (int[]){x, scale}, "");
    if (random_one_in(r, 2)) y = gen_add(g, "mul", 2, (int[]){y, scale}, "");
    int scores = gen_add(g, "matmul", 2, (int[]){x, y}, "");
    if (random_one_in(r, 4)) gen_output(g, scores);
    char text[32];
    snprintf(text, sizeof text, "axis=%d", g->value[scores].rank - 1);
    int weights = gen_add(g, "softmax", 1, &scores, text);
    return gen_add(g, "matmul", 2,
                   (int[]){weights, gen_leaf(g, random_one_in(r, 2), 2, value, -1, 1)}, "");
}

/* An operand with these dims: a leaf, or often a permuted one, whose last two dims or any dims are exchanged. */
static int add_operand(struct gen *g, bool param, int rank, const int64_t *dim) {
    struct random *r = g->random;
    int axes[4] = {0, 1, 2, 3};
    int64_t from[4];
    char text[64];
    if (random_one_in(r, 2)) return gen_leaf(g, param, rank, (int64_t *)dim, -1, 1);
    for (int n = random_int(r, 1, 2); n > 0; n--) {
        int i = n == 1 ? rank - 1 : random_int(r, 0, rank - 1),
            k = n == 1 ? rank - 2 : random_int(r, 0, rank - 1);
        int axis = axes[i];
        axes[i] = axes[k], axes[k] = axis;
    }
    for (int i = 0; i < rank; i++) from[axes[i]] = dim[i];
    int at = snprintf(text, sizeof text, "axes=[%d", axes[0]);
    for (int i = 1; i < rank; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, ",%d", axes[i]);
    snprintf(text + at, sizeof text - (size_t)at, "]");
    return gen_add(g, "permute", 1, (int[]){gen_leaf(g, param, rank, from, -1, 1)}, text);
}

/* Leading dims may be missing or 1 in either operand. */
void gen_matmul_case(struct gen *g, const char *kind, const char *attributes) {
    static const int sizes[] = {1, 2, 5, 16, 17, 31, 64};
    struct random *r = g->random;
    (void)attributes;
    int64_t a[4] = {g->batch, 3, RANDOM_PICK(r, sizes), RANDOM_PICK(r, sizes)},
            b[4] = {g->batch, 3, a[3], RANDOM_PICK(r, sizes)};
    int at = random_int(r, 0, 2), bt = random_int(r, 0, 2);
    for (int d = 0; d < 2; d++)
        if (random_one_in(r, 3)) (random_one_in(r, 2) ? a : b)[d] = 1;
    if (at == 2 && bt == 2) a[2] = 520; /* one product of so many rows that b is packed once */
    int in[2] = {add_operand(g, false, 4 - at, a + at),
                 add_operand(g, random_one_in(r, 4), 4 - bt, b + bt)};
    bool is_alone = size_family(g->type) != FAMILY_FLOAT || random_one_in(r, 2);
    gen_output(g, is_alone ? gen_add(g, kind, 2, in, "") : add_attention(g, in[0], in[1]));
}

void gen_batch_norm_case(struct gen *g, const char *kind, const char *attributes) {
    static const float low[] = {-1, 0.5f, 0.5f, -1}, high[] = {1, 2, 2, 1};
    struct random *r = g->random;
    (void)attributes;
    int64_t dim[SOL_MAX_RANK], c;
    int rank = gen_shape(g, GEN_MOST, dim), in[5];
    if (rank == 1) dim[rank++] = 17;
    c = dim[1];
    in[0] = gen_leaf(g, false, rank, dim, -4, 4);
    bool param = !random_one_in(r, 5);
    for (int i = 0; i < 4; i++) in[i + 1] = gen_leaf(g, param, 1, &c, low[i], high[i]);
    gen_output(g, gen_add(g, kind, 5, in, "eps=1e-05"));
}

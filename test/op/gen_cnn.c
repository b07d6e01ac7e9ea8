/*
 * Small random networks of convolutions. They test blocked layouts, padded channels, concats in
 * place, fused epilogues and prologues and the copies between layouts together.
 *
 * Most channel counts are not multiples of a vector's width, so segments of a concat start in the
 * middle of blocks. The tensors of a network have few different sizes, so sums and concats find
 * operands.
 */
#include "gen_parts.h"

#include <stdio.h>
#include <string.h>

static const int counts[] = {1, 3, 8, 16, 17, 24, 32, 58};

static int channels(const struct gen *g, int x) { return (int)g->value[x].dim[1]; }

static int add_param(struct gen *g, int c, float low, float high) {
    return gen_leaf(g, true, 1, (int64_t[]){c}, low, high);
}

static int add_bn(struct gen *g, int x) {
    int c = channels(g, x), in[5] = {x};
    in[1] = add_param(g, c, -0.5f, 0.5f);
    in[2] = add_param(g, c, 0.5f, 1.5f);
    in[3] = add_param(g, c, 0.5f, 1.5f);
    in[4] = add_param(g, c, -0.5f, 0.5f);
    return gen_add(g, "batch_norm", 5, in, "eps=1e-05");
}

static int add_act(struct gen *g, int x) {
    static const char *const kinds[] = {"relu", "relu", "relu",      "silu",    "x*sigmoid",
                                        "gelu", "tanh", "hardswish", "sigmoid", "clamp"};
    const char *kind = RANDOM_PICK(g->random, kinds);
    if (!strcmp(kind, "x*sigmoid")) {
        int gate = gen_add(g, "sigmoid", 1, &x, "");
        return gen_add(g, "mul", 2, (int[]){x, gate}, "");
    }
    return gen_add(g, kind, 1, &x, strcmp(kind, "clamp") ? "" : "min=0.0 max=6.0");
}

/* The range of the weights keeps values about equally large from layer to layer. */
static int add_conv_of(struct gen *g, int x, int k, int kernel, int stride, int groups) {
    struct random *r = g->random;
    int c = channels(g, x) / groups, in[3] = {x};
    float bound = 1.7f / (float)(kernel * (c > 30 ? 6 : c > 10 ? 4 : c > 2 ? 2 : 1));
    char text[96];
    in[1] = gen_leaf(g, true, 4, (int64_t[]){k, c, kernel, kernel}, -bound, bound);
    bool bias = random_one_in(r, 2);
    if (bias) in[2] = add_param(g, k, -0.5f, 0.5f);
    int pad = kernel / 2;
    snprintf(text, sizeof text, "stride=[%d,%d] pad=[%d,%d,%d,%d] groups=%d", stride, stride, pad,
             pad, pad, pad, groups);
    int y = gen_add(g, "conv", bias ? 3 : 2, in, text);
    if (random_one_in(r, 2)) y = add_bn(g, y);
    return random_one_in(r, 3) ? y : add_act(g, y);
}

static int add_conv(struct gen *g, int x) {
    static const int kernels[] = {1, 3, 3, 5};
    int kernel = RANDOM_PICK(g->random, kernels), stride = random_one_in(g->random, 6) ? 2 : 1;
    return add_conv_of(g, x, RANDOM_PICK(g->random, counts), kernel, stride, 1);
}

static int add_grouped(struct gen *g, int x) {
    int c = channels(g, x), groups = c % 8 == 0 && random_one_in(g->random, 2) ? c / 8 : c;
    if (c % 2 == 0 && random_one_in(g->random, 3)) groups = 2;
    return add_conv_of(g, x, c, 3, random_one_in(g->random, 4) ? 2 : 1, groups);
}

static int add_pool(struct gen *g, int x) {
    static const char *const kinds[] = {"max_pool", "avg_pool"};
    const char *text = random_one_in(g->random, 2) ? "kernel=[3,3] stride=[1,1] pad=[1,1,1,1]"
                                                   : "kernel=[2,2] stride=[2,2] ceil=true";
    return gen_add(g, RANDOM_PICK(g->random, kinds), 1, &x, text);
}

/* Another tensor with as many rows and columns as x, and as many channels if `same_channels`; x itself if none is found. */
static int find_like(struct gen *g, int x, bool same_channels) {
    const struct gen_value *v = &g->value[x];
    for (int i = 0; i < 12; i++) {
        int y = random_int(g->random, 0, g->n - 1);
        const struct gen_value *w = &g->value[y];
        if (w->rank != 4 || w->dim[0] != v->dim[0] || !gen_same_dim(g, x, y, 2) ||
            !gen_same_dim(g, x, y, 3))
            continue;
        if (!same_channels || w->dim[1] == v->dim[1]) return y;
    }
    return x;
}

static int add_residual(struct gen *g, int x) {
    int y = find_like(g, x, true);
    if (y == x || random_one_in(g->random, 2)) y = add_conv_of(g, y, channels(g, x), 3, 1, 1);
    int sum = gen_add(g, random_one_in(g->random, 6) ? "mul" : "add", 2, (int[]){x, y}, "");
    return random_one_in(g->random, 2) ? add_act(g, sum) : sum;
}

static int add_concat(struct gen *g, int x) {
    int in[3] = {x, find_like(g, x, false), find_like(g, x, false)};
    return gen_add(g, "concat", random_int(g->random, 2, 3), in, "axis=1");
}

static int add_slice(struct gen *g, int x) {
    int c = channels(g, x), start = random_int(g->random, 0, c - 1),
        n = random_int(g->random, 1, c - start);
    char text[96];
    snprintf(text, sizeof text, "axis=1 start=%d step=1 shape=[%d]", start, n);
    return gen_add(g, "slice", 1, &x, text);
}

/* Squeeze and excitation: a factor per channel that is computed from the channels' means. */
static int add_excitation(struct gen *g, int x) {
    int mean = gen_add(g, "mean", 1, &x, "axes=[2,3] keepdim=true");
    int small = add_conv_of(g, mean, 8, 1, 1, 1),
        factor = add_conv_of(g, small, channels(g, x), 1, 1, 1);
    factor = gen_add(g, "sigmoid", 1, &factor, "");
    return gen_add(g, "mul", 2, (int[]){x, factor}, "");
}

/* Channel shuffle with two groups, as in ShuffleNet. */
static int add_shuffle(struct gen *g, int x) {
    int c = channels(g, x);
    char text[3 * SIZE_TEXT], h[SIZE_TEXT], w[SIZE_TEXT];
    if (c % 2) return x;
    gen_size_text(g, x, 2, h), gen_size_text(g, x, 3, w);
    snprintf(text, sizeof text, "shape=[$0,2,%d,%s,%s]", c / 2, h, w);
    int y = gen_add(g, "reshape", 1, &x, text);
    y = gen_add(g, "permute", 1, &y, "axes=[0,2,1,3,4]");
    snprintf(text, sizeof text, "shape=[$0,%d,%s,%s]", c, h, w);
    return gen_add(g, "reshape", 1, &y, text);
}

/* Batch norm and relu before the convolution, as in DenseNet. */
static int add_preact(struct gen *g, int x) {
    int y = add_bn(g, x);
    y = gen_add(g, "relu", 1, &y, "");
    return random_one_in(g->random, 3) ? add_grouped(g, y) : add_conv_of(g, y, 17, 1, 1, 1);
}

static int add_block(struct gen *g, int x) {
    switch (random_int(g->random, 0, 10)) {
    case 0:
    case 1:
    case 2: return add_conv(g, x);
    case 3: return add_grouped(g, x);
    case 4: return add_pool(g, x);
    case 5: return add_residual(g, x);
    case 6: return add_concat(g, x);
    case 7: return add_slice(g, x);
    case 8: return add_excitation(g, x);
    case 9: return add_shuffle(g, x);
    default: return add_preact(g, x);
    }
}

static int add_head(struct gen *g, int x) {
    int c = channels(g, x), in[3];
    if (random_one_in(g->random, 2)) {
        in[0] = gen_add(g, "mean", 1, &x, "axes=[2,3]");
    } else {
        char text[32];
        int y = gen_add(g, "adaptive_avg_pool", 1, &x, "kernel=[1,1]");
        snprintf(text, sizeof text, "shape=[$0,%d]", c);
        in[0] = gen_add(g, "reshape", 1, &y, text);
    }
    in[1] = gen_leaf(g, true, 2, (int64_t[]){10, c}, -0.3f, 0.3f);
    in[2] = add_param(g, 10, -1, 1);
    return gen_add(g, "linear", 3, in, "");
}

void gen_cnn(struct gen *g, struct random *r) {
    static const int sizes[] = {1, 4, 7, 8, 13, 16};
    int size = RANDOM_PICK(r, sizes);
    gen_start(g, r, "cnn");
    gen_cnn_of(g, size, size);
}

void gen_cnn_of(struct gen *g, int64_t rows, int64_t columns) {
    struct random *r = g->random;
    int x;
    g->tolerance = 1e-4; /* several layers, also with Winograd */
    x = gen_leaf(g, false, 4, (int64_t[]){g->batch, random_one_in(r, 2) ? 3 : 16, rows, columns},
                 -1, 1);
    for (int i = random_int(r, 1, 7); i > 0 && g->n < GEN_VALUES - 30; i--) {
        x = add_block(g, x);
        if (random_one_in(r, 8)) gen_output(g, x);
    }
    gen_output(g, random_one_in(r, 3) ? add_head(g, x) : x);
}

/*
 * A convolution or linear layer followed by pointwise layers, all or some of which become its
 * generated epilogue.
 *
 * Chains have diamonds, operands of the same shape, operands that are broadcast along any dims,
 * second convolutions, values with other readers, and layers that are not 0 at 0, whose results
 * must not be written into pad lanes.
 */
#include "gen_parts.h"

#include <stdio.h>
#include <string.h>

static const int counts[] = {1, 3, 16, 17, 32, 58};

static const struct {
    const char *kind, *attributes;
} calm[] = {
    {"relu", ""},
    {"sigmoid", ""},
    {"silu", ""},
    {"gelu", ""},
    {"gelu_tanh", ""},
    {"hardswish", ""},
    {"hardsigmoid", ""},
    {"tanh", ""},
    {"mish", ""},
    {"softplus", ""},
    {"leaky_relu", "alpha=0.1"},
    {"elu", "alpha=1.0"},
    {"abs", ""},
    {"neg", ""},
    {"erf", ""},
    {"clamp", "min=-1.0 max=2.0"},
    {"clamp", "min=0.5 max=2.0"},
};

static int add_calm(struct gen *g, int x) {
    int which = random_int(g->random, 0, (int)(sizeof calm / sizeof *calm) - 1);
    return gen_add(g, calm[which].kind, 1, &x, calm[which].attributes);
}

/* ---- The anchor layer ---- */

static int add_conv(struct gen *g, int x, int k, int kernel) {
    struct random *r = g->random;
    int c = (int)g->value[x].dim[1], in[3] = {x}, pad = kernel / 2;
    bool depthwise = k == c && random_one_in(r, 3), bias = random_one_in(r, 2);
    float bound = 2.0f / (float)(kernel * (depthwise ? 1 : c > 30 ? 6 : c > 10 ? 4 : 2));
    char text[96];
    in[1] = gen_leaf(g, true, 4, (int64_t[]){k, depthwise ? 1 : c, kernel, kernel}, -bound, bound);
    if (bias) in[2] = gen_leaf(g, true, 1, (int64_t[]){k}, -0.5f, 0.5f);
    snprintf(text, sizeof text, "pad=[%d,%d,%d,%d] groups=%d", pad, pad, pad, pad,
             depthwise ? c : 1);
    return gen_add(g, "conv", bias ? 3 : 2, in, text);
}

static int add_linear(struct gen *g, int x, int k) {
    int c = (int)g->value[x].dim[g->value[x].rank - 1], in[3] = {x};
    bool bias = random_one_in(g->random, 2);
    in[1] = gen_leaf(g, true, 2, (int64_t[]){k, c}, -0.3f, 0.3f);
    if (bias) in[2] = gen_leaf(g, true, 1, (int64_t[]){k}, -0.5f, 0.5f);
    return gen_add(g, "linear", bias ? 3 : 2, in, "");
}

/* A new anchor that reads x: a linear layer with k outputs, or a conv with k channels. */
static int add_anchor(struct gen *g, int x, int k) {
    static const int kernels[] = {1, 3, 3, 5};
    if (g->value[x].rank < 4) return add_linear(g, x, k);
    return add_conv(g, x, k, RANDOM_PICK(g->random, kernels));
}

static int add_start(struct gen *g) {
    static const int sizes[] = {1, 4, 7, 13, 16};
    struct random *r = g->random;
    int c = RANDOM_PICK(r, counts), h = RANDOM_PICK(r, sizes), w = RANDOM_PICK(r, sizes);
    switch (random_int(r, 0, 4)) {
    case 0: return gen_leaf(g, false, 2, (int64_t[]){g->batch, c}, -1, 1);
    case 1: return gen_leaf(g, false, 3, (int64_t[]){g->batch, h, c}, -1, 1);
    default: return gen_leaf(g, false, 4, (int64_t[]){g->batch, c, h, w}, -1, 1);
    }
}

/* ---- The chain ---- */

/* A leaf of y's shape, in which some dims are missing or 1. */
static int add_leaf_like(struct gen *g, int y) {
    struct random *r = g->random;
    const struct gen_value *v = &g->value[y];
    int64_t dim[SOL_MAX_RANK];
    int skip = random_one_in(r, 4) ? random_int(r, 0, v->rank - 1) : 0;
    bool same = random_one_in(r, 3);
    for (int i = skip; i < v->rank; i++)
        dim[i - skip] = !same && random_one_in(r, 2) ? 1 : v->dim[i];
    return gen_leaf(g, random_one_in(r, 2), v->rank - skip, dim, -1, 1);
}

/* x; k, the anchor's channels; the anchor and the layers after it, all of one shape. */
struct chain {
    int x, k, n, value[32];
};

static int pick_value(struct gen *g, const struct chain *chain) {
    return chain->value[random_int(g->random, 0, chain->n - 1)];
}

static int add_operand(struct gen *g, const struct chain *chain, int y) {
    switch (random_int(g->random, 0, 5)) {
    case 0: return pick_value(g, chain); /* a diamond */
    case 1: return add_anchor(g, chain->x, chain->k);
    case 2: return add_calm(g, add_leaf_like(g, y));
    case 3: return gen_value(g, sol_model_scalar(g->model, -0.75), 0.75, -0.75, 0);
    default: return add_leaf_like(g, y);
    }
}

/* Adds a layer that reads y. For products and sums, one operand is bounded, so values stay small. */
static int add_link(struct gen *g, const struct chain *chain, int y) {
    static const char *const kinds[] = {"add", "add", "mul", "mul", "sub", "maximum", "minimum"};
    struct random *r = g->random;
    if (random_one_in(r, 2)) return add_calm(g, y);
    int operand = add_operand(g, chain, y);
    const char *kind = RANDOM_PICK(r, kinds);
    if (!strcmp(kind, "mul")) operand = gen_add(g, "tanh", 1, &operand, "");
    int in[2] = {y, operand};
    if (random_one_in(r, 2)) in[0] = operand, in[1] = y;
    return gen_add(g, kind, 2, in, "");
}

static int add_end(struct gen *g, int y) {
    int in[2] = {y, y};
    switch (random_int(g->random, 0, 3)) {
    case 0: return add_anchor(g, y, 8);
    case 1: in[0] = add_calm(g, y); return gen_add(g, "concat", 2, in, "axis=1");
    default: return y;
    }
}

void gen_epilogue(struct gen *g, struct random *r) {
    gen_start(g, r, "epilogue");
    g->tolerance = 1e-4; /* Winograd */
    struct chain chain = {.x = add_start(g), .k = RANDOM_PICK(r, counts)};
    if (g->value[chain.x].rank == 4 && random_one_in(r, 2)) /* then it is blocked */
        chain.x = add_conv(g, chain.x, RANDOM_PICK(r, counts), 1);
    int y = add_anchor(g, chain.x, chain.k);
    chain.value[chain.n++] = y;
    for (int i = random_int(r, 1, 7); i > 0; i--) {
        y = add_link(g, &chain, y);
        chain.value[chain.n++] = y;
    }
    if (random_one_in(r, 5)) gen_output(g, pick_value(g, &chain));
    gen_output(g, add_end(g, y));
}

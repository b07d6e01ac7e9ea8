/*
 * Models with several open sizes. Symbol 0 is the batch; the others are rows and columns of images, or lengths of sequences.
 *
 * Each model can run with sizes of 1 and above unless a window is larger: then a call is refused, with the same message on all
 * devices.
 */
#include "gen_parts.h"

#include <stdio.h>
#include <string.h>

static int64_t add_symbol(struct gen *g, const char *name) {
    return random_one_in(g->random, 3) ? sol_model_symbol_multiple(g->model, name, 4)
                                       : sol_model_symbol(g->model, name);
}

static int add_image(struct gen *g, int64_t c) {
    int64_t h = add_symbol(g, "h"), w = add_symbol(g, "w");
    if (random_one_in(g->random, 5)) w = 9; /* rows alone are open */
    return gen_leaf(g, false, 4, (int64_t[]){g->batch, c, h, w}, -1, 1);
}

static int add_formatted(struct gen *g, const char *kind, int x, const char *format, int a, int b) {
    char text[160];
    snprintf(text, sizeof text, format, a, b);
    return gen_add(g, kind, 1, &x, text);
}

/* ---- Windows ---- */

/* The largest window, at most `most`, that fits into rows and columns whose number is known. */
static int fit_window(const struct gen *g, int x, int most) {
    for (int d = 2; d < 4; d++) {
        const int64_t size = g->value[x].dim[d];
        if (size > 0 && size < most) most = (int)size;
    }
    return most;
}

static int add_pool(struct gen *g, int x) {
    static const char *const kinds[] = {"max_pool", "avg_pool", "avg_pool"}, *const more[] = {
                                                                                 "", " min=0.0",
                                                                                 ""};
    struct random *r = g->random;
    char text[160];
    int kind = random_int(r, 0, 2), most = fit_window(g, x, 4), kh = random_int(r, 1, most),
        kw = random_int(r, 1, most);
    int sh = random_int(r, 1, kh), sw = random_int(r, 1, kw), ph = random_int(r, 0, kh - sh),
        pw = random_int(r, 0, kw - sw);
    if (ph > kh / 2) ph = kh / 2;
    if (pw > kw / 2) pw = kw / 2;
    snprintf(text, sizeof text, "kernel=[%d,%d] stride=[%d,%d] pad=[%d,%d,%d,%d] ceil=%s%s", kh, kw,
             sh, sw, ph, pw, ph, pw, random_one_in(r, 2) ? "true" : "false",
             kind ? random_one_in(r, 2) ? " count_pad=true" : "" : more[random_int(r, 0, 2)]);
    return gen_add(g, kinds[kind], 1, &x, text);
}

static int add_conv(struct gen *g, int x, int k) {
    struct random *r = g->random;
    int c = (int)g->value[x].dim[1], kernel = random_int(r, 1, 4), groups = 1;
    int dilation[2] = {random_int(r, 1, 2), random_int(r, 1, 2)};
    kernel = fit_window(g, x, kernel);
    for (int i = 0; i < 2; i++)
        if (fit_window(g, x, (kernel - 1) * dilation[i] + 1) <= (kernel - 1) * dilation[i])
            dilation[i] = 1;
    if (c < 1) return x; /* an error of the builder, which the test prints */
    if (c % 8 == 0 && random_one_in(r, 3)) k = c, groups = random_one_in(r, 2) ? c : c / 8;
    int in[3] = {x, gen_leaf(g, true, 4, (int64_t[]){k, c / groups, kernel, kernel}, -0.4f, 0.4f),
                 gen_leaf(g, true, 1, (int64_t[]){k}, -1, 1)};
    char text[160];
    snprintf(text, sizeof text, "stride=[%d,%d] pad=[%d,%d,%d,%d] dilation=[%d,%d] groups=%d",
             random_int(r, 1, 3), random_int(r, 1, 3), random_int(r, 0, 2), random_int(r, 0, 2),
             random_int(r, 0, 2), random_int(r, 0, 2), dilation[0], dilation[1], groups);
    return gen_add(g, "conv", random_int(r, 2, 3), in, text);
}

static void make_windows(struct gen *g) {
    static const int counts[] = {1, 3, 8, 16, 17, 32};
    struct random *r = g->random;
    int x = add_image(g, RANDOM_PICK(r, counts));
    for (int i = random_int(r, 1, 3); i > 0; i--) {
        switch (random_int(r, 0, 4)) {
        case 0: x = add_pool(g, x); break;
        case 1:
            x = add_formatted(g, "pad", x, "pad=[1,%d,0,%d] value=0.5", random_int(r, 0, 2),
                              random_int(r, 0, 2));
            break;
        default: x = add_conv(g, x, RANDOM_PICK(r, counts)); break;
        }
        if (random_one_in(r, 3)) x = gen_add(g, "relu", 1, &x, "");
    }
    if (random_one_in(r, 4))
        x = add_formatted(g, "adaptive_avg_pool", x, "kernel=[%d,%d]", random_int(r, 1, 3),
                          random_int(r, 1, 2));
    gen_output(g, x);
}

/* ---- Gradients of convolutions ---- */

/* The gradients of a convolution's x and weight, for its output as the gradient of that. */
static void make_gradients(struct gen *g) {
    static const int counts[] = {1, 3, 8, 16, 17, 32};
    struct random *r = g->random;
    char text[160], all[200 + 4 * SIZE_TEXT], size[4][SIZE_TEXT];
    int k = RANDOM_PICK(r, counts), c = RANDOM_PICK(r, counts), groups = 1;
    int kernel = random_int(r, 1, 4), x = add_image(g, c), pad = random_int(r, 0, kernel / 2);
    kernel = fit_window(g, x, kernel);
    if (random_one_in(r, 3)) k = groups = c;
    x = gen_add(g, "relu", 1, &x, "");
    const int w = gen_leaf(g, true, 4, (int64_t[]){k, c / groups, kernel, kernel}, -0.4f, 0.4f);
    snprintf(text, sizeof text, "stride=[%d,%d] pad=[%d,%d,%d,%d] groups=%d", random_int(r, 1, 3),
             random_int(r, 1, 2), pad, pad, pad, random_int(r, 0, 1), groups);
    const int y = gen_add(g, "conv", 2, (int[]){x, w}, text);
    for (int d = 0; d < 4; d++) gen_size_text(g, x, d, size[d]);
    snprintf(all, sizeof all, "shape=[%s,%s,%s,%s] %s", size[0], size[1], size[2], size[3], text);
    gen_output(g, gen_add(g, "conv_transpose", 2, (int[]){y, w}, all));
    snprintf(all, sizeof all, "shape=[%d,%d,%d,%d] %s", k, c / groups, kernel, kernel, text);
    gen_output(g, gen_add(g, "conv_weight", 2, (int[]){x, y}, all));
}

/* ---- Movements and reductions ---- */

/* The last values along an open dim; all but some; or some from the beginning. */
static int add_slice(struct gen *g, int x, int d) {
    char text[3 * SIZE_TEXT], size[SIZE_TEXT];
    gen_size_text(g, x, d, size);
    switch (random_int(g->random, 0, 2)) {
    case 0: snprintf(text, sizeof text, "axis=%d start=%s-1 shape=[1]", d, size); break;
    case 1: snprintf(text, sizeof text, "axis=%d start=1 shape=[%s-1]", d, size); break;
    default: snprintf(text, sizeof text, "axis=%d shape=[1]", d); break;
    }
    return gen_add(g, "slice", 1, &x, text);
}

static int add_concat(struct gen *g, int x, int d) {
    const char *act = random_one_in(g->random, 2) ? "sigmoid" : "tanh";
    int in[2] = {x, gen_add(g, act, 1, &x, "")};
    if (random_one_in(g->random, 2)) in[0] = gen_add(g, "neg", 1, &x, "");
    return add_formatted(g, "relu", gen_add(g, "concat", 2, in, d == 1 ? "axis=1" : "axis=2"), "",
                         0, 0);
}

/* Joins dims 1 and 2 and parts them again, with a layer between. */
static int add_flatten(struct gen *g, int x) {
    char text[5 * SIZE_TEXT], a[SIZE_TEXT], b[SIZE_TEXT], c[SIZE_TEXT];
    if (g->value[x].rank != 3) return x;
    gen_size_text(g, x, 0, a), gen_size_text(g, x, 1, b), gen_size_text(g, x, 2, c);
    snprintf(text, sizeof text, "shape=[%s,-1]", a);
    int y = gen_add(g, "reshape", 1, &x, text);
    y = gen_add(g, "tanh", 1, &y, "");
    snprintf(text, sizeof text, "shape=[%s,%s,%s]", a, b, c);
    return gen_add(g, "reshape", 1, &y, text);
}

static void make_sequence(struct gen *g) {
    struct random *r = g->random;
    int64_t s = add_symbol(g, "s"), d = random_one_in(r, 2) ? 16 : 5;
    int x = gen_leaf(g, false, 3, (int64_t[]){g->batch, s, d}, -1, 1);
    for (int i = random_int(r, 1, 4); i > 0; i--) {
        switch (random_int(r, 0, 7)) {
        case 0: x = add_slice(g, x, 1); break;
        case 1: x = add_concat(g, x, 1); break;
        case 2: x = add_concat(g, x, 2); break;
        case 3: x = add_flatten(g, x); break;
        case 4: x = add_formatted(g, "pad", x, "pad=[%d,1,2,0] value=0.5", 1, 0); break;
        case 5: x = gen_add(g, "permute", 1, &x, "axes=[0,2,1]"); break;
        case 6: x = add_formatted(g, "softmax", x, "axis=%d", random_int(r, 1, 2), 0); break;
        default: {
            int mean = gen_add(g, "mean", 1, &x, "axes=[1] keepdim=true");
            x = gen_add(g, "sub", 2, (int[]){x, mean}, "");
        }
        }
    }
    gen_output(g, x);
    if (random_one_in(r, 2)) gen_output(g, gen_add(g, "reduce_max", 1, &x, "axes=[-1]"));
}

static int linear_of(struct gen *g, int x, int64_t k) {
    int64_t c = g->value[x].dim[g->value[x].rank - 1];
    int in[2] = {x, gen_leaf(g, true, 2, (int64_t[]){k, c}, -0.5f, 0.5f)};
    return gen_add(g, "linear", 2, in, "");
}

/* Attention with four heads of eight values: the sequence's length is open. */
static void make_attention(struct gen *g) {
    int64_t s = add_symbol(g, "s"), c = 32;
    char size[SIZE_TEXT], text[3 * SIZE_TEXT];
    int x = gen_leaf(g, false, 3, (int64_t[]){g->batch, s, c}, -1, 1), part[3];
    gen_size_text(g, x, 1, size);
    snprintf(text, sizeof text, "shape=[$0,%s,4,8]", size);
    for (int i = 0; i < 3; i++) {
        int y = linear_of(g, x, c);
        y = gen_add(g, "reshape", 1, &y, text);
        part[i] = gen_add(g, "permute", 1, &y, i == 1 ? "axes=[0,2,3,1]" : "axes=[0,2,1,3]");
    }
    int scores = gen_add(g, "matmul", 2, (int[]){part[0], part[1]}, "");
    scores = gen_add(g, "softmax", 1, &scores, "axis=-1");
    int y = gen_add(g, "matmul", 2, (int[]){scores, part[2]}, "");
    y = gen_add(g, "permute", 1, &y, "axes=[0,2,1,3]");
    snprintf(text, sizeof text, "shape=[$0,%s,32]", size);
    y = gen_add(g, "reshape", 1, &y, text);
    y = gen_add(g, "add", 2, (int[]){x, linear_of(g, y, c)}, "");
    gen_output(g, y);
    g->tolerance = 1e-4;
}

/* A recurrent layer behind the product of its inputs, over an open number of steps, and a reduction over these. */
static void make_recurrent(struct gen *g) {
    static const char *const kinds[] = {"rnn_tanh", "rnn_relu", "lstm", "gru"};
    struct random *r = g->random;
    int64_t s = add_symbol(g, "s"), units = random_one_in(r, 2) ? 19 : 64;
    int kind = random_int(r, 0, 3), axis = random_int(r, 0, 1);
    int64_t dim[3] = {axis ? g->batch : s, axis ? s : g->batch, 11};
    int x = gen_leaf(g, false, 3, dim, -1, 1);
    x = linear_of(g, x, units * (kind < 2 ? 1 : kind == 2 ? 4 : 3));
    int y = gen_recurrent_of(g, kinds[kind], x, g->batch, units, axis, -1);
    gen_output(g, y);
    y = add_slice(g, y, axis);
    gen_output(g, linear_of(g, y, 5));
}

void gen_open(struct gen *g, struct random *r) {
    gen_start(g, r, "open");
    switch (random_int(r, 0, 7)) {
    case 0:
    case 1: make_windows(g); break;
    case 7: make_gradients(g); break;
    case 6: make_recurrent(g); break;
    case 2:
    case 3: {
        int64_t h = add_symbol(g, "h"), w = add_symbol(g, "w");
        gen_cnn_of(g, h, w);
        break;
    }
    case 4: make_sequence(g); break;
    default: make_attention(g); break;
    }
    g->tolerance = 1e-4;
}
